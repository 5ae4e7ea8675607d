"""The table of plain ``nvidia-smi``: whole, or the few rows of it that somebody pasted.

Layouts of R410 to R590: two rows per GPU (three with MIG mode), then processes, with or without MIG columns.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.sources.files.smi_units import MIB, absent, number, stamp
from gpuwatch.sources.nvml.integrated import memory_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.sources.files.samples import Found

MARKS = ("NVIDIA-SMI ", "MiB / ", "MiB /", "| Processes:", "|  GPU   ", "Usage/Cap", "Not Supported      |")

_HEAD = re.compile(
    r"NVIDIA-SMI (?P<smi>[\d.]+).*?Driver Version: (?P<driver>[\d.]+)(?:.*?CUDA Version: (?P<cuda>[\d.]+))?"
)
_GPU = re.compile(
    r"^\| *(?P<gpu>\d+) +(?P<name>\S.*?) +(?:(?P<persistence>On|Off|N/A) +)?\| +"
    r"(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+) +"
    r"(?P<display>On|Off|N/A) +\| *(?P<ecc>\S+) *\|"
)
_USE = re.compile(
    r"^\| *(?P<fan>\d+%|N/A|ERR!) +(?P<temp>\d+C|N/A|ERR!) +(?P<perf>P\d+|N/A|ERR!)? +"
    r"(?P<power>\d+W|N/A|ERR!|Unknown Error) */ *"
    r"(?P<cap>\d+W|N/A|ERR!) *\| *(?:(?P<used>\d+)MiB */ *(?P<total>\d+)MiB|(?P<none>[\w/ !]+?)) *\| *"
    r"(?P<busy>\d+%|N/A|ERR!)"
)
_MIG = re.compile(
    r"^\| *(?P<gpu>\d+) +(?P<gi>\d+) +(?P<ci>\d+) +(?P<dev>\d+) *\| *(?P<used>\d+)MiB */ *(?P<total>\d+)MiB *\|"
    r"(?: *\d+ +(?P<ecc>\d+|N/A) *\|)?"
)
_PROCESS = re.compile(
    r"^\| *(?P<gpu>\d+)(?: +(?:N/A|\d+) +(?:N/A|\d+))? +(?P<pid>\d+) +(?P<type>C|G|C\+G|M\+C) +(?P<name>\S.*?) +"
    r"(?P<used>\d+MiB|N/A) *\|"
)
_DATE = re.compile(r"^[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \d{4}$")


class _Table:
    """One print of the table."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.time = 0
        self.driver = ""
        self.gpu: dict[str, str] | None = None
        self.rows = 0
        self.processes: int | None = None

    def line(self, number_: int, text: str) -> None:
        if _DATE.match(text):
            self.time = stamp(text)
        elif (head := _HEAD.search(text)) is not None:
            self.driver = head["driver"]
            self.found.tell("driver.version", head["driver"], number_, self.time)
            if head["cuda"]:
                self.found.tell("cuda.version", head["cuda"], number_, self.time)
        elif "Processes:" in text:
            self.end()
            self.processes = 0
        elif text.startswith("|"):
            self._row(number_, text)

    def end(self) -> None:
        """Say how many processes were listed, where there was a list."""
        if self.processes is not None:
            self.found.tell("nvidia_smi.processes", self.processes, 0, self.time)
        self.processes = None

    def _row(self, line: int, text: str) -> None:
        process = _PROCESS.match(text) if self.processes is not None or "MiB |" in text else None
        if process is not None:
            self._process(process, line)
            return
        gpu = _GPU.match(text)
        if gpu is not None:
            self._gpu(gpu, line)
            return
        mig = _MIG.match(text)
        if mig is not None:
            labels = {"gpu": mig["gpu"], "gi": mig["gi"], "ci": mig["ci"]}
            self._add("memory_used_bytes", float(mig["used"]) * MIB, labels)
            self._add("memory_total_bytes", float(mig["total"]) * MIB, labels)
            if (mig["ecc"] or "").isdigit():
                self._add("ecc_errors_total", float(mig["ecc"]), {**labels, "type": "uncorrected"})
            return
        use = _USE.match(text)
        if use is not None:
            self._use(use, line)

    def _gpu(self, row: re.Match[str], line: int) -> None:
        self.gpu = {"gpu": row["gpu"]}
        self.rows += 1
        self.found.samples.add(
            "gpu_info",
            1.0,
            self.time,
            gpu=row["gpu"],
            name=row["name"].removesuffix("..."),
            pci_bus_id=row["bus"],
            driver_version=self.driver,
            memory_kind=memory_kind(row["name"]),
        )
        if row["ecc"].isdigit():
            self._add("ecc_errors_total", float(row["ecc"]), {**self.gpu, "type": "uncorrected"})
        elif row["ecc"] == "ERR!":
            self.found.absent("gpu_ecc_errors_total", row["gpu"], row["ecc"], line, self.time)

    def _use(self, row: re.Match[str], line: int) -> None:
        # A row that lost the one above it is still that of some GPU.
        if self.gpu is None:
            self.gpu = {"gpu": str(self.rows)}
            self.rows += 1
        labels, self.gpu = self.gpu, None
        if row["fan"] == "ERR!":
            self.found.absent("gpu_fan_ratio", labels["gpu"], row["fan"], line, self.time)
        for group, name, factor in (
            ("temp", "temperature_celsius", 1.0),
            ("power", "power_watts", 1.0),
            ("cap", "power_limit_watts", 1.0),
            ("busy", "busy_ratio", 0.01),
        ):
            value = number(row[group])
            if value is not None:
                self._add(name, value * factor, labels)
            elif absent(row[group]):
                self.found.absent(f"gpu_{name}", labels["gpu"], absent(row[group]), line, self.time)
        if row["used"]:
            self._add("memory_used_bytes", float(row["used"]) * MIB, labels)
            self._add("memory_total_bytes", float(row["total"]) * MIB, labels)
        else:
            self.found.absent("gpu_memory_used_bytes", labels["gpu"], row["none"].strip(), line, self.time)

    def _process(self, row: re.Match[str], line: int) -> None:
        if self.processes is not None:
            self.processes += 1
        if row["name"].endswith("Xwayland"):
            self.found.tell("nvidia_smi.display", row["name"], line, self.time)
        used = number(row["used"])
        if used is not None:
            labels = {"gpu": row["gpu"], "pid": row["pid"], "process": row["name"]}
            self._add("process_memory_bytes", used * MIB, labels)

    def _add(self, name: str, value: float, labels: dict[str, str]) -> None:
        self.found.is_kind("nvidia_smi")
        self.found.samples.add(f"gpu_{name}", value, self.time, **labels)


def read_table(lines: Sequence[tuple[int, str]], found: Found) -> None:
    """Read every table in (number, text) lines; each print begins with its heading or its date."""
    table = _Table(found)
    for at, text in lines:
        if "NVIDIA-SMI " in text or _DATE.match(text):
            started = table.time if "NVIDIA-SMI " in text and not table.rows else 0
            table.end()
            table = _Table(found)
            table.time = started
        table.line(at, text)
    table.end()
