"""GPU rows: identity, state, figures with the reason of what is absent, and the division of memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuwatch.tui.text import clean
from gpuwatch.tui.view.ledger import Part, parts_of
from gpuwatch.tui.view.reasons import source_problem
from gpuwatch.tui.view.table import (
    GPU_KEY,
    absences,
    collect,
    collect_by,
    in_number_order,
    reason_text,
    texts,
    why_absent,
)
from gpuwatch.units import age

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.model import Absence
    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.view.table import Key

FIGURES = (
    "gpu_unresponsive",
    "gpu_memory_total",
    "gpu_memory_used",
    "gpu_memory_free",
    "gpu_memory_reserved",
    "gpu_memory_peak",
    "gpu_memory_other",
    "gpu_memory_unattributed",
    "gpu_ledger_growth",
    "gpu_ledger_missing",
    "gpu_busy",
    "gpu_bandwidth_busy",
    "gpu_sm_clock",
    "gpu_power",
    "gpu_power_limit",
    "gpu_temperature",
    "gpu_pcie_width",
    "gpu_pcie_width_max",
    "gpu_pcie_receive",
    "gpu_pcie_transmit",
)
"""Catalogue queries with one value per GPU."""

GOOD_STATES = ("", "ok")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `figures` holds what is known by query name; `reasons` says why others are absent.

    `problem` is one sentence, empty while all is well; `stale` is the age of the figures in seconds when they are
    older than the snapshot.
    """

    key: Key
    host: str
    index: str
    uuid: str
    name: str
    state: str = ""
    problem: str = ""
    stale: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    engines: tuple[tuple[str, str, float | None], ...] = ()
    throttle: tuple[tuple[str, float], ...] = ()
    xid: tuple[tuple[str, float], ...] = ()
    info: Mapping[str, str] = field(default_factory=dict)

    def get(self, query: str) -> float | None:
        """Return one figure, None when it is absent."""
        return self.figures.get(query)

    @property
    def card(self) -> tuple[str, str]:
        """The card that this is, or that this MIG device is a part of: host and index."""
        return self.host, self.index.partition(":")[0] or self.uuid

    @property
    def title(self) -> str:
        """What a person calls this GPU."""
        return f"GPU {self.index}" if self.index else f"GPU {self.uuid}"


_NOISE = re.compile(r"(?i)\b(NVIDIA|GeForce|Tesla|Graphics|Generation|HBM\d\w*|SXM\d*|PCIe)\b|[-_](?=SXM|PCIe)")
_GIGABYTES = re.compile(r"(?i)[\s-]*(\d+)\s?GB\b")


def short_name(name: str) -> str:
    """Return a product name in few characters: ``NVIDIA H100 80GB HBM3`` is ``H100 80G``."""
    short = _GIGABYTES.sub(r" \1G", _NOISE.sub(" ", clean(name)))
    return " ".join(short.replace("-", " ").split()) or clean(name)


def gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """Return every GPU that the snapshot speaks of, by host and index."""
    figures = collect(snapshot, FIGURES, GPU_KEY)
    infos = texts(snapshot, "gpu_info", GPU_KEY)
    states = texts(snapshot, "gpu_state", GPU_KEY)
    held = collect_by(snapshot, "gpu_memory_engine", GPU_KEY, "server")
    serving = collect_by(snapshot, "gpu_engine", GPU_KEY, "server")
    throttle = collect_by(snapshot, "gpu_throttle", GPU_KEY, "reason")
    xid = collect_by(snapshot, "gpu_xid", GPU_KEY, "xid")
    indexes = _indexes(snapshot)
    missing = absences(snapshot, "uuid")
    divided = collect_by(snapshot, "gpu_ledger", GPU_KEY, "component")
    rows = []
    for key in sorted(
        set(figures) | set(infos) | set(states), key=lambda k: (k[0], in_number_order(indexes.get(k, "")), k[1])
    ):
        own = figures.get(key, {})
        bytes_of = dict(held.get(key, ()))
        servers = sorted(set(bytes_of) | {server for server, _ in serving.get(key, ())})
        state = states.get(key, {}).get("state", "")
        index = clean(indexes.get(key, ""))
        row = Gpu(
            key=key,
            host=clean(key[0]),
            index=index,
            uuid=clean(key[1]),
            name=short_name(infos.get(key, {}).get("name", "")) or "GPU",
            state=state,
            figures=own,
            reasons={
                query: why for query in FIGURES if query not in own and (why := why_absent(missing, key[1], query))
            },
            parts=parts_of(dict(divided.get(key, ()))),
            engines=tuple((key[0], server, bytes_of.get(server)) for server in servers),
            throttle=throttle.get(key, ()),
            xid=xid.get(key, ()),
            info={name: clean(value) for name, value in infos.get(key, {}).items()},
        )
        rows.append(replace(row, problem=_problem(row, missing)))
    return tuple(rows)


def _indexes(snapshot: Snapshot) -> dict[Key, str]:
    """Return the display index of each GPU, from whichever answer names it."""
    found: dict[Key, str] = {}
    for query in ("gpu_state", "gpu_info", *FIGURES):
        for labels, _ in snapshot.answer(query).samples:
            own = dict(labels)
            if own.get("gpu"):
                found.setdefault((own.get("host", ""), own.get("uuid", "")), own["gpu"])
    return found


def _problem(row: Gpu, missing: Mapping[tuple[str, str], Absence]) -> str:
    """Return what is wrong with a GPU in one sentence, or nothing."""
    silent = row.get("gpu_unresponsive")
    if row.state == "hung" or silent:
        since = f" for {age(silent)}" if silent else ""
        return f"{row.title} has not answered{since}"
    if row.state in GOOD_STATES:
        return ""
    absence = missing.get((row.key[1], ""))
    why = clean(absence.detail or reason_text(absence)) if absence is not None else ""
    words = {
        "lost": "is lost",
        "late": "gives no new figures: the NVML worker may wait for a processor",
        "resetting": "needs a reset",
        "no_permission": "may not be read (no permission)",
        "failed": "cannot be read",
    }
    said = words.get(row.state, f"is in state {clean(row.state)}")
    return f"{row.title} {said}: {why}" if why and why != said else f"{row.title} {said}"


def keep_last(row: Gpu, last: Gpu, seconds: float) -> Gpu:
    """Return `row` with the figures that `last` had `seconds` ago, marked as stale."""
    return replace(
        row,
        stale=seconds,
        name=row.name if row.info else last.name,
        figures={**last.figures, **{k: v for k, v in row.figures.items() if k == "gpu_unresponsive"}},
        parts=last.parts,
        engines=row.engines or last.engines,
        throttle=(),
        info=row.info or last.info,
    )


def nvml_problem(snapshot: Snapshot) -> str:
    """Return what is wrong with NVML as a whole in one sentence, or nothing."""
    for (host,), own in collect(snapshot, ("nvml_unresponsive",), ("host",)).items():
        silent = own.get("nvml_unresponsive")
        if silent:
            where = f" on {clean(host)}" if host not in ("", snapshot.host) else ""
            return f"NVML has not answered{where} for {age(silent)}"
    for source in snapshot.sources:
        if source.kind == "nvml" and not source.up:
            since = f" for {age(source.age)}" if source.age is not None else ""
            return f"NVML: {clean(source_problem(source))}{since}"
    return ""


def no_gpu(snapshot: Snapshot) -> str:
    """Return why no GPU is there: what is wrong with NVML, that nobody looks, or that none was seen yet."""
    if problem := nvml_problem(snapshot):
        return problem
    watched = snapshot.mode != "live" or any(source.kind == "nvml" for source in snapshot.sources)
    return "none seen yet" if watched else "not looked for: gpus = false in the configuration"
