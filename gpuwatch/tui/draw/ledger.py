"""Ledger lines: where the memory of each GPU is, piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw.bars import PEAK
from gpuwatch.tui.draw.common import columns, labelled, with_remark
from gpuwatch.tui.draw.gpus import bar
from gpuwatch.tui.text import clean, crop, fit
from gpuwatch.tui.view.ledger import FREE, KINDS, Kind, compared, what_if
from gpuwatch.units import age, count, gib, percent, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.ledger.whatif import Row as Change
    from gpuwatch.tui.text import Line, Row
    from gpuwatch.tui.view.engines import Engine
    from gpuwatch.tui.view.gpus import Gpu
    from gpuwatch.tui.view.ledger import Compared, Live
    from gpuwatch.tui.view.model import Model


_LABEL, _BYTES, _SHARE = 20, 10, 5


def gpu_rows(model: Model, width: int) -> list[Row]:
    """Return each GPU's bar with one line per piece of memory; the pieces and what is free sum to the total."""
    rows: list[Row] = []
    for gpu in model.gpus:
        rows += [(gpu.key, line) for line in _gpu(gpu, model.engines, width)]
        rows.append((None, ()))
    return rows[:-1]


def _gpu(gpu: Gpu, engines: tuple[Engine, ...], width: int) -> list[Line]:
    """Return the ledger of one GPU."""
    total, used = gpu.get("gpu_memory_total"), gpu.get("gpu_memory_used")
    figures = f"{gib(used)} of {gib(total)} GiB used"
    names = " ".join(clean(server) for _, server, _ in gpu.engines) or "no known engine"
    old = f"  figures {age(gpu.stale)} old" if gpu.stale is not None else ""
    lines = [
        crop(
            (
                (f" {gpu.title}  ", "bright"),
                (f"{gpu.name}  ", ""),
                (f"{figures}  ", ""),
                (names, "dim"),
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
    beside = compared(gpu, engines)
    if beside:
        lines.append(_heading(width))
    lines += _pieces(gpu, beside, total, width)
    wide = bool(beside)
    lines.append(_piece(FREE, gpu.get("gpu_memory_free"), total, width, wide=wide))
    lines.append(_piece(_PEAK, gpu.get("gpu_memory_peak"), total, width, wide=wide))
    return lines + _residual(gpu, total, width) + _missing(gpu, width)


def _pieces(gpu: Gpu, beside: Mapping[str, Compared], total: float, width: int) -> list[Line]:
    """Return a line for each piece, and for each part that was stated or predicted and is not there."""
    parts = {part.kind: part.bytes for part in gpu.parts}
    split = "kv_used" in parts or "kv_free" in parts
    lines = []
    for kind, look in KINDS.items():
        row = beside.get(kind)
        if kind == "kv_pool" and split and row is not None:
            lines.append(_piece(_WHOLE_POOL, row.measured, total, width, row, wide=True))
        elif kind in parts or row is not None:
            lines.append(_piece(look, parts.get(kind), total, width, row, wide=bool(beside)))
    return lines


def _heading(width: int) -> Line:
    names = [("", _LABEL, "<", ""), ("measured", _BYTES, ">", "label"), ("share", _SHARE, ">", "label")]
    names += [(name, _BYTES, ">", "label") for name in ("stated", "predicted", "differs")]
    return crop(columns(names), width)


def _piece(
    look: Kind, amount: float | None, total: float, width: int, row: Compared | None = None, *, wide: bool = False
) -> Line:
    """Return one piece: glyph, name, bytes, share, what was stated and predicted, meaning.

    `wide` keeps the columns of statement and prediction free where this piece has none.
    """
    share = percent(amount / total) if amount is not None else "n/a"
    cells = [
        (f"{look.glyph} {look.label}", _LABEL, "<", look.tone),
        (size(amount), _BYTES, ">", "bright"),
        (share, _SHARE, ">", ""),
    ]
    if row is not None:
        cells += [
            (size(row.stated), _BYTES, ">", ""),
            (size(row.predicted), _BYTES, ">", ""),
            (_signed(row.differs), _BYTES, ">", ""),
        ]
    elif wide:
        cells += [("", _BYTES, "<", "")] * 3
    return with_remark(columns(cells), look.meaning, width)


def _signed(amount: float | None) -> str:
    if amount is None:
        return "n/a"
    return f"{'-' if amount < 0 else '+'}{size(abs(amount))}"


_PEAK = Kind(PEAK, "peak", "peak", "highest use of the last minute")
_WHOLE_POOL = Kind("▚", "bar.kv_used", "KV pool", "used and free together")


def _missing(gpu: Gpu, width: int) -> list[Line]:
    """Return how much of what its engines state is not on the GPU, and what that may be."""
    missing = gpu.get("gpu_ledger_missing")
    if missing is None:
        return []
    text = (
        f"{size(missing)} of the weights and the KV pool that are stated are not held by the engine's processes here: "
        "it sleeps, they are on another GPU, or its own processes are not these"
    )
    return labelled("missing", text, width, "warn", _LABEL)


def _residual(gpu: Gpu, total: float, width: int) -> list[Line]:
    """Return what no engine states, by name, and how it grew."""
    parts = {part.kind: part.bytes for part in gpu.parts}
    left = parts.get("unexplained")
    named = [f"{text} {size(parts[kind])}" for kind, text in _UNSTATED.items() if kind in parts]
    if left is not None:
        named.append(f"unexplained {size(left)} ({100 * left / total:.1f} %)")
    text = ", ".join(named)
    grown = gpu.get("gpu_ledger_growth")
    if grown is not None:
        changed = f"{size(abs(grown))} {'less' if grown < 0 else 'more'}"
        text += f"; the GPU holds {changed} than a minute after its engines began to serve"
    return labelled("residual", text, width, "", _LABEL) if named else []


_UNSTATED = {"other": "other processes", "rest": "contexts and communication"}


def engines(model: Model, width: int) -> list[Line]:
    """Return what each engine states about its memory per GPU, and what a change would buy it."""
    lines: list[Line] = []
    for engine in model.engines:
        name = fit(f"{engine.title} {engine.address}", 22).rstrip()
        said = {query: value for query in _STATED if (value := engine.get(query)) is not None}
        text = " · ".join(f"{label} {size(said[query])}" for query, label in _STATED.items() if query in said)
        missing = [label for query, label in _STATED.items() if query not in said]
        if missing:
            text += (" · " if text else "") + f"not stated: {', '.join(missing)}"
        lines += labelled(name, text, width, "", 22)
        if model.snapshot is not None:
            lines += _changes(what_if(model.snapshot, engine, model.gpus), width)
    return lines


def _changes(live: Live, width: int) -> list[Line]:
    if live.lacks:
        return labelled("  what if", f"needs {live.lacks}", width, "dim", 22)
    requests = f"requests of {count(live.context)} tokens at once"
    lines = labelled("  what if", f"now {live.now:.1f} {requests}", width, "", 22)
    *singles, best = live.rows or (None,)
    for row in singles[:MOST_ROWS]:
        if row is not None:
            lines.append(_change(row, width))
    if best is not None:
        change = clean(best.change) if best.change.startswith("without ") else f"with {clean(best.change)}"
        words = f"{change} these cards serve {best.max_concurrency:.1f} {requests}"
        lines += labelled("", words, width, "ok" if best.max_concurrency >= 1 else "", 22)
    return lines


def _change(row: Change, width: int) -> Line:
    cells = [
        ("", 22, "<", ""),
        (f"{row.max_concurrency:.1f}", 6, ">", "bright"),
        (clean(row.change), 46, "<", ""),
    ]
    return with_remark(columns(cells, 1), clean(row.costs), width)


MOST_ROWS = 4
_STATED = {
    "weights": "weights",
    "kv_cache_bytes": "KV pool",
    "activation_peak": "activation peak",
    "graph_bytes": "CUDA graphs",
}
