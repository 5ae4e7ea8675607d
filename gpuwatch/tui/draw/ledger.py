"""Ledger lines: where the memory of each GPU is, piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw.bars import PEAK
from gpuwatch.tui.draw.common import columns, labelled
from gpuwatch.tui.draw.gpus import bar
from gpuwatch.tui.format import age, gib, percent, size
from gpuwatch.tui.text import clean, crop, fit
from gpuwatch.tui.view.ledger import FREE, KINDS, Kind

if TYPE_CHECKING:
    from gpuwatch.tui.text import Line, Row
    from gpuwatch.tui.view.gpus import Gpu
    from gpuwatch.tui.view.model import Model


def gpu_rows(model: Model, width: int) -> list[Row]:
    """Return each GPU's bar with one line per piece of memory; the pieces and what is free sum to the total."""
    rows: list[Row] = []
    for gpu in model.gpus:
        rows += [(gpu.key, line) for line in _gpu(gpu, width)]
        rows.append((None, ()))
    return rows[:-1]


def _gpu(gpu: Gpu, width: int) -> list[Line]:
    """Return the ledger of one GPU."""
    total, used = gpu.get("gpu_memory_total"), gpu.get("gpu_memory_used")
    figures = f"{gib(used)} of {gib(total)} GiB used"
    engines = " ".join(clean(server) for _, server, _ in gpu.engines) or "no known engine"
    old = f"  figures {age(gpu.stale)} old" if gpu.stale is not None else ""
    lines = [
        crop(
            (
                (f" {gpu.title}  ", "bright"),
                (f"{gpu.name}  ", ""),
                (f"{figures}  ", ""),
                (engines, "dim"),
                (old, "warn"),
            ),
            width,
        )
    ]
    if gpu.problem:
        lines.append(crop(((f" ✗ {gpu.problem}", "crit"),), width))
    if total is None or used is None:
        why = gpu.reasons.get("gpu_memory_used", "")
        lines.append(((f" memory n/a ({why})" if why else " memory n/a", "dim"),))
        return lines
    lines.append(((" ", ""), *bar(gpu, width - 2)))
    lines += [_piece(KINDS[part.kind], part.bytes, total, width) for part in gpu.parts]
    free = gpu.get("gpu_memory_free")
    lines.append(_piece(FREE, free, total, width))
    peak = gpu.get("gpu_memory_peak")
    lines.append(_piece(_PEAK, peak, total, width))
    return lines


def _piece(look: Kind, amount: float | None, total: float, width: int) -> Line:
    """Return one piece: glyph, name, bytes, share, meaning."""
    share = percent(amount / total) if amount is not None else "n/a"
    line = columns(
        [(f"{look.glyph} {look.label}", 20, "<", look.tone), (size(amount), 10, ">", "bright"), (share, 5, ">", "")]
    )
    return crop((*line, (f"  {look.meaning}", "dim")), width)


_PEAK = Kind(PEAK, "peak", "peak", "highest use of the last minute")


def statements(model: Model, width: int) -> list[Line]:
    """Return what each engine states about its memory per GPU, and where it said so."""
    lines: list[Line] = []
    for engine in model.engines:
        said = {query: value for query in _STATED if (value := engine.get(query)) is not None}
        text = " · ".join(f"{name} {size(said[query])}" for query, name in _STATED.items() if query in said)
        missing = [name for query, name in _STATED.items() if query not in said]
        if missing:
            text += (" · " if text else "") + f"not stated: {', '.join(missing)}"
        lines += labelled(fit(f"{engine.title} {engine.address}", 22).rstrip(), text, width, "", 22)
    return lines


_STATED = {
    "weights": "weights",
    "kv_cache_bytes": "KV pool",
    "activation_peak": "activation peak",
    "graph_bytes": "CUDA graphs",
}
