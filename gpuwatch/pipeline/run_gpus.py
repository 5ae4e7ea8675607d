"""What is kept of each GPU of a recording, and what its memory was for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.engines.log_text import clean
from gpuwatch.ledger.reconcile import COMPONENTS
from gpuwatch.model import NAME, label, name_of
from gpuwatch.pipeline.run_windows import Points
from gpuwatch.report.data import GpuRun
from gpuwatch.sources.derived.ledger import Ledger

if TYPE_CHECKING:
    from gpuwatch.model import Batch, Labels

_USED = ("gpuwatch_gpu_memory_used_high_bytes", "gpuwatch_gpu_memory_used_bytes")
_GPU_CURVES = {"gpuwatch_gpu_busy_ratio": "busy", "gpuwatch_gpu_power_watts": "power"}


@dataclass(slots=True)
class Gpu:
    """Everything that is kept of one GPU."""

    index: str = ""
    total: float | None = None
    used: Points = field(default_factory=Points)
    busy: Points = field(default_factory=Points)
    power: Points = field(default_factory=Points)
    peak: float | None = None
    peak_time: int = 0
    looked: float = 0.0
    """The peak at which the ledger was looked at last."""
    looked_tick: int = 0
    near: bool = False
    at_peak: tuple[Batch, ...] = ()
    """The batches of all targets at the peak."""
    name: str = ""
    driver: str = ""


def gpu_run(uuid: str, gpu: Gpu, config: Batch, at_end: dict[str, tuple[tuple[str, float], ...]]) -> GpuRun:
    """Return what was kept of a GPU; `at_end` is what the memory of each was for at the end."""
    return GpuRun(
        index=gpu.index,
        uuid=uuid,
        name=clean(gpu.name),
        driver=gpu.driver,
        total=gpu.total,
        used=gpu.used.curve(),
        peak=gpu.peak,
        peak_time=gpu.peak_time,
        at_peak=ledger_of(gpu.at_peak, config).get(uuid, ()),
        at_end=at_end.get(uuid, ()),
        busy=gpu.busy.curve(),
        busy_mean=gpu.busy.mean,
        power=gpu.power.curve(),
    )


def by_index(item: tuple[str, Gpu]) -> tuple[bool, int, str, str]:
    """Return a key that sorts GPUs, with their UUIDs, by number."""
    uuid, gpu = item
    return not gpu.index.isdigit(), int(gpu.index) if gpu.index.isdigit() else 0, gpu.index, uuid


def gpu_rows(keys: tuple[Labels, ...]) -> list[tuple[int, str, str, Labels]]:
    """Return which values of a batch are of a GPU: (place of the value, UUID, what it is, series)."""
    found = []
    kinds = {**dict.fromkeys(_USED, "used"), **_GPU_CURVES, "gpuwatch_gpu_info": "info"}
    kinds["gpuwatch_gpu_memory_total_bytes"] = "total"
    for row, labels in enumerate(keys):
        pairs = dict(labels)
        kind = kinds.get(pairs[NAME])
        if kind is not None and "uuid" in pairs:
            found.append((row, pairs["uuid"], kind, labels))
    return found


def ledger_of(batches: tuple[Batch, ...], config: Batch) -> dict[str, tuple[tuple[str, float], ...]]:
    """Return what each card's memory was for when its engines said `batches`, by UUID."""
    found: dict[str, dict[str, float]] = {}
    batch = Ledger().update(config.time, (*batches, config))
    for labels, value in zip(batch.keys, batch.values, strict=True):
        if name_of(labels) == "gpuwatch_ledger_bytes":
            parts = found.setdefault(label(labels, "uuid"), {})
            component = label(labels, "component")
            parts[component] = parts.get(component, 0.0) + float(value)
    return {
        uuid: tuple((component, parts[component]) for component in COMPONENTS if component in parts)
        for uuid, parts in found.items()
    }
