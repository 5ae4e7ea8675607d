"""``nvidia-smi --query-…  --format=csv``, dmon and pmon: one row per GPU or process and moment.

A heading says what the columns are. Without one, nothing is read: a bare number could be anything.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.sources.files.smi_units import (
    FACTORS,
    MIB,
    QUERIES,
    REASON_NAMES,
    absent,
    number,
    stamp,
)
from gpuwatch.sources.nvml.integrated import memory_kind
from gpuwatch.sources.nvml.readings import CLOCK_REASONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.sources.files.samples import Found

HEADINGS = (
    "memory",
    "utilization.",
    "clocks",
    "temperature.",
    "power.",
    "pcie.link",
    "ecc.errors",
    "remapped_rows",
    "retired_pages",
    "# gpu",
    "#Date",
    "#YYYY",
    "_gpu_",
)
"""What a heading holds."""

# So many lines of something else end a table; a few come from whoever looks on.
_PATIENCE = 5
_UNIT = re.compile(r" \[[^\]]*\]$")
_OTHERS = {
    "timestamp",
    "index",
    "name",
    "uuid",
    "gpu_uuid",
    "gpu_name",
    "gpu_bus_id",
    "gpu_serial",
    "pci.bus_id",
    "driver_version",
    "count",
    "pstate",
    "fan.speed",
    "pid",
    "process_name",
    "used_memory",
    "used_gpu_memory",
    "serial",
    "compute_mode",
    "mig.mode.current",
    "persistence_mode",
    "power.max_limit",
    "power.min_limit",
}
_REASON = re.compile(r"^clocks_(?:event|throttle)_reasons\.(\w+)$")
_FAMILIES = re.compile(
    r"^(?:clocks|memory|temperature|utilization|power|pcie|ecc|remapped_rows|retired_pages|encoder)\b[\w.]*$"
)

# Columns of dmon and pmon (see their man page); MB there are 2**20 bytes.
_DMON = {
    "pwr": ("power_watts", 1.0),
    "gtemp": ("temperature_celsius", 1.0),
    "mtemp": ("memory_temperature_celsius", 1.0),
    "sm": ("busy_ratio", 0.01),
    "mem": ("memory_bandwidth_busy_ratio", 0.01),
    "mclk": ("memory_clock_hertz", 1e6),
    "pclk": ("sm_clock_hertz", 1e6),
    "fb": ("memory_used_bytes", float(MIB)),
}
# Counted over the life of the card (man nvidia-smi: "aggregated"); queries print what came since the driver began.
_DMON_ECC = {"sbecc": "corrected", "dbecc": "uncorrected"}


class CsvReader:
    """Reads rows one after another; lines that are no rows end a table."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._columns: list[str] = []
        self._monitor: list[str] = []
        self._order: dict[tuple[str, ...], int] = {}
        self._same = self._others = 0
        self._seen: tuple[str, ...] = ()

    def line(self, at: int, text: str) -> None:
        """Read one line."""
        if text.startswith("#"):
            self._monitor_head(text)
        elif self._monitor and text[:1] in (" ", *"0123456789"):
            self._monitor_row(text)
        elif "," in text or self._columns or is_heading(text):
            self._row(at, [part.strip() for part in text.split(",")], text)

    def _row(self, at: int, parts: list[str], text: str) -> None:
        if is_heading(text):
            self._columns = [_UNIT.sub("", part) for part in parts]
            self._order, self._seen, self._others = {}, (), 0
            return
        if not self._columns or len(parts) != len(self._columns):
            self._others += 1
            if self._others > _PATIENCE:
                self._columns = []
            return
        self._others = 0
        row = dict(zip(self._columns, parts, strict=True))
        time = stamp(row["timestamp"]) if "timestamp" in row else 0
        self._found.is_kind("nvidia_smi")
        labels = self._labels(row)
        if "pid" in row:
            self._process(row, labels, time)
        else:
            self._gpu(at, row, labels, time)

    def _labels(self, row: dict[str, str]) -> dict[str, str]:
        """Return what says which GPU a row is of; without any, the place of the row among those of one moment."""
        labels = {"gpu": row["index"]} if "index" in row else {}
        uuid = row.get("uuid") or row.get("gpu_uuid") or ""
        if uuid.startswith(("GPU-", "MIG-")):
            labels["uuid"] = uuid
        if not labels and "pid" not in row:
            mark = (row.get("timestamp", "")[:19], row.get("pci.bus_id", ""))
            if "pci.bus_id" in row:
                labels["gpu"] = str(self._order.setdefault(mark[1:], len(self._order)))
            else:
                self._same = self._same + 1 if mark == self._seen else 0
                labels["gpu"] = str(self._same)
            self._seen = mark
        return labels

    def _gpu(self, at: int, row: dict[str, str], labels: dict[str, str], time: int) -> None:
        info = {"name": row.get("name", row.get("gpu_name", "")), "pci_bus_id": row.get("pci.bus_id", "")}
        info["driver_version"] = row.get("driver_version", "")
        if any(info.values()):
            info["memory_kind"] = memory_kind(info["name"])
            self._found.samples.add("gpu_info", 1.0, time, **labels, **info)
        for column, text in row.items():
            reason = _REASON.match(column)
            if reason is not None:
                self._reason(reason[1], text, labels, time)
                continue
            name, kind, unit = QUERIES.get(column, ("", "", ""))
            if not name or (column == "power.limit" and "enforced.power.limit" in row):
                continue
            value = {"Yes": 1.0, "No": 0.0}.get(text) if unit == "yes" else number(text)
            if value is not None:
                extra = {"type": kind} if kind else {}
                self._found.samples.add(f"gpu_{name}", value * FACTORS[unit], time, **labels, **extra)
            elif absent(text):
                self._found.absent(f"gpu_{name}", labels.get("gpu", ""), absent(text), at, time)

    def _reason(self, name: str, text: str, labels: dict[str, str], time: int) -> None:
        active: dict[str, float] = {}
        if name in ("active", "supported"):
            mask = int(text, 16) if name == "active" and re.fullmatch(r"0x[0-9A-Fa-f]+", text) else None
            active = {} if mask is None else {reason: float(bool(mask & bit)) for reason, bit in CLOCK_REASONS}
        elif name in REASON_NAMES and text in ("Active", "Not Active"):
            active = {REASON_NAMES[name]: float(text == "Active")}
        for reason, value in active.items():
            self._found.samples.add("gpu_clocks_event_active", value, time, **labels, reason=reason)

    def _process(self, row: dict[str, str], labels: dict[str, str], time: int) -> None:
        used = number(row.get("used_memory", row.get("used_gpu_memory", "")))
        if used is not None:
            name = row.get("process_name", "")
            self._found.samples.add(
                "gpu_process_memory_bytes", used * MIB, time, **labels, pid=row["pid"], process=name
            )

    def _monitor_head(self, text: str) -> None:
        words = text.replace("#", " ").split()
        if "gpu" in words:
            self._monitor = [] if "pid" in words else words
        elif "Idx" not in words:
            self._monitor = []

    def _monitor_row(self, text: str) -> None:
        parts = text.split()
        if len(parts) != len(self._monitor):
            self._monitor = []
            return
        row = dict(zip(self._monitor, parts, strict=True))
        time = (
            stamp(f"{row['Date'][:4]}/{row['Date'][4:6]}/{row['Date'][6:]} {row['Time']}")
            if {"Date", "Time"} <= set(row)
            else 0
        )
        self._found.is_kind("nvidia_smi")
        for column, (name, factor) in _DMON.items():
            value = number(row.get(column, ""))
            if value is not None:
                self._found.samples.add(f"gpu_{name}", value * factor, time, gpu=row["gpu"])
        for column, kind in _DMON_ECC.items():
            errors = number(row.get(column, ""))
            if errors is not None:
                labels = {"gpu": row["gpu"], "type": kind, "since": "ever"}
                self._found.samples.add("gpu_ecc_errors_total", errors, time, **labels)
        if row.get("tviol") in ("0", "1"):
            held = float(row["tviol"])
            self._found.samples.add("gpu_clocks_event_active", held, time, gpu=row["gpu"], reason="thermal")
        held_by_power = number(row.get("pviol", ""))
        if held_by_power is not None:
            # dmon prints the share of the time, where a query prints whether it is so at that moment.
            share = held_by_power * 0.01
            self._found.samples.add("gpu_clocks_event_active", share, time, gpu=row["gpu"], reason="sw_power_cap")


def is_heading(text: str) -> bool:
    """Return whether a line is the heading of a query: names that nvidia-smi has, and nothing else."""
    if text.startswith("#"):
        return bool(re.match(r"#(?:Date|YYYYMMDD)? *(?:Time|HH:MM:SS)? *gpu ", text))
    if not text[:1].islower() or len(text) > 4000:
        return False
    names = [_UNIT.sub("", part.strip()) for part in text.split(",")]
    known = sum(name in QUERIES or bool(_FAMILIES.match(name) and "." in name) for name in names)
    others = sum(name in _OTHERS or bool(_REASON.match(name)) for name in names)
    return known + others == len(names) and (known > 0 or len(names) > 1)


def read_csv(lines: Sequence[tuple[int, str]], found: Found) -> None:
    """Read every table in (number, text) lines."""
    reader = CsvReader(found)
    for at, text in lines:
        reader.line(at, text)
