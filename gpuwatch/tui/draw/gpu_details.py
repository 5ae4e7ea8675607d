"""Everything about one GPU: charts, identity, and every figure with its meaning or the reason of its absence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.queries import QUERIES
from gpuwatch.tui.draw.bars import chart
from gpuwatch.tui.draw.charts import side_by_side
from gpuwatch.tui.draw.common import beside, labelled
from gpuwatch.tui.draw.figures import figure
from gpuwatch.tui.text import clean
from gpuwatch.tui.view.gpus import FIGURES, GOOD_STATES
from gpuwatch.units import age, count, percent, size, with_unit

if TYPE_CHECKING:
    from gpuwatch.tui.text import Line
    from gpuwatch.tui.view.gpus import Gpu
    from gpuwatch.tui.view.model import Model

_LABEL = 20
_INFO = ("name", "architecture", "memory_kind", "driver_version", "pci_bus_id")
_FIGURES = tuple(query for query in FIGURES if query != "gpu_unresponsive")


def details(gpu: Gpu, width: int) -> list[Line]:
    """Return identity and figures, beside each other where there is room."""
    if width < 130:
        return [*identity(gpu, width), *figures(gpu, width)]
    half = 64
    return beside(identity(gpu, half), figures(gpu, width - half), half)


def identity(gpu: Gpu, width: int) -> list[Line]:
    """Return the state, who the GPU is, and who uses it."""
    lines: list[Line] = []
    if gpu.problem:
        lines += labelled("state", f"✗ {gpu.problem}", width, "crit", _LABEL)
    elif gpu.state in GOOD_STATES:
        words = ("✓ ok", "ok") if gpu.state else ("no state known", "dim")
        lines += labelled("state", words[0], width, words[1], _LABEL)
    if gpu.stale is not None:
        lines += labelled("figures are", f"{age(gpu.stale)} old", width, "warn", _LABEL)
    for reason, share in gpu.throttle:
        lines += labelled("throttled by", f"▲ {clean(reason)}: {percent(share)} of the time", width, "warn", _LABEL)
    for code, times in gpu.xid:
        lines += labelled("Xid", f"● {clean(code)}, seen {count(times)} times", width, "crit", _LABEL)
    for name, value in (("uuid", gpu.uuid), ("host", gpu.host)):
        lines += labelled(name, value, width, "", _LABEL)
    for name in _INFO:
        if gpu.info.get(name):
            lines += labelled(name.replace("_", " ").replace("pci", "PCI"), gpu.info[name], width, "", _LABEL)
    for _, server, held in gpu.engines:
        memory = size(held) if held is not None else "memory not visible"
        lines += labelled("engine", f"{clean(server)} · {memory}", width, "", _LABEL)
    return lines


def figures(gpu: Gpu, width: int) -> list[Line]:
    """Return every figure with its meaning, or why it is absent."""
    stale = gpu.stale is not None
    return [figure(query, gpu.get(query), gpu.reasons.get(query, ""), width, stale=stale) for query in _FIGURES]


def charts(model: Model, gpu: Gpu, width: int, height: int) -> list[Line]:
    """Return used memory, busy time and power of one GPU over time, side by side."""
    assert model.snapshot is not None
    each = max((width - 6) // 3, 10)
    blocks = []
    for query, name, top, tone in (
        ("gpu_memory_used", "memory", gpu.get("gpu_memory_total"), "bar.kv_used"),
        ("gpu_busy", "busy", 1.0, "spark.good"),
        ("gpu_power", "power", gpu.get("gpu_power_limit"), "spark.warn"),
    ):
        values = model.history.trace(gpu.key, query, model.snapshot.time, each)
        scale = f" of {with_unit(top, QUERIES[query].unit)}" if top is not None and query != "gpu_busy" else ""
        head = f"{name} {with_unit(gpu.get(query), QUERIES[query].unit)}{scale}"
        blocks.append((head, chart(values, each, height, top), tone))
    return side_by_side(blocks, each)
