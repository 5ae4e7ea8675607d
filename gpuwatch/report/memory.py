"""Sections about GPUs: memory over time with its peak, and what it was for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.report.document import Figure, Heading, Table, Text
from gpuwatch.report.load import marks_of
from gpuwatch.report.svg import Bar, Line, bars, clock_text, plot, sparkline
from gpuwatch.units import NONE, percent, size

if TYPE_CHECKING:
    from gpuwatch.report.data import Curve, GpuRun, RunData
    from gpuwatch.report.document import Block

NAMES = {
    "weights": "weights",
    "kv_used": "KV used",
    "kv_free": "KV free",
    "kv_pool": "KV pool",
    "work": "activations and graphs",
    "rest": "contexts and communication",
    "engine": "engine, not divided",
    "other": "other processes",
    "unexplained": "unexplained",
    "reserved": "driver's reserve",
    "free": "free",
}


def blocks(run: RunData) -> list[Block]:
    """Return the sections of all GPUs of a run."""
    found: list[Block] = [Heading("GPU memory")]
    gpus = [gpu for gpu in run.gpus if gpu.used.times or gpu.total is not None]
    if not gpus:
        return [*found, Text("No GPU was seen: memory, clocks and power are not known.", "quiet")]
    found.append(_table(run, gpus))
    found += _plots(run, gpus)
    ledger = _ledger(gpus)
    return found + ledger


def _table(run: RunData, gpus: list[GpuRun]) -> Table:
    head = ("GPU", "", "memory", "peak", "at", "of the card", "left at the peak", "busy (mean)", "power (highest)")
    rows = []
    for gpu in gpus:
        left = (
            None
            if gpu.total is None or gpu.peak is None
            else gpu.total - dict(gpu.at_end).get("reserved", 0.0) - gpu.peak
        )
        power = gpu.power.highest
        rows.append(
            (
                gpu.index,
                gpu.name,
                size(gpu.total),
                size(gpu.peak),
                NONE if gpu.peak is None else clock_text((gpu.peak_time - run.started) / 1000),
                percent(gpu.peak / gpu.total) if gpu.peak is not None and gpu.total else NONE,
                size(left),
                percent(gpu.busy_mean),
                NONE if power is None else f"{power:,.0f} W",
            )
        )
    return Table(head, tuple(rows), numbers_from=2)


def _plots(run: RunData, gpus: list[GpuRun]) -> list[Block]:
    span = (0.0, max(1.0, run.seconds))
    marks = marks_of(run, None)
    totals = {gpu.total for gpu in gpus if gpu.total is not None}
    limit = (next(iter(totals)), "card") if len(totals) == 1 else None
    memory = [Line(f"GPU {gpu.index}", _points(run, gpu.used)) for gpu in gpus if gpu.used.times]
    found: list[Block] = []
    kinds = (
        ("Memory in use, highest of each moment", "bytes", memory, limit),
        ("Busy", "ratio", [Line(f"GPU {gpu.index}", _points(run, gpu.busy)) for gpu in gpus if gpu.busy.times], None),
    )
    for title, unit, lines, line_limit in kinds:
        if lines:
            picture = plot(
                lines, unit, span, title=title, marks=marks, limit=line_limit, top=1.0 if unit == "ratio" else None
            )
            legend = tuple((f"c{index % 8}", line.label) for index, line in enumerate(lines)) if len(lines) > 1 else ()
            text = tuple((line.label, sparkline([y for _, y in line.points])) for line in lines)
            found.append(Figure(title, picture, legend, text))
    return found


def _points(run: RunData, curve: Curve) -> tuple[tuple[float, float], ...]:
    return tuple(((time - run.started) / 1000, value) for time, value in zip(curve.times, curve.values, strict=True))


def _ledger(gpus: list[GpuRun]) -> list[Block]:
    known = [gpu for gpu in gpus if gpu.at_peak]
    if not known:
        return []
    parts = [name for name in NAMES if any(name in dict(gpu.at_peak) for gpu in known)]
    reach = max(gpu.total or sum(value for _, value in gpu.at_peak) for gpu in known)
    rows = [
        Bar(
            f"GPU {gpu.index}",
            tuple((colour(name), NAMES[name], value) for name, value in gpu.at_peak),
            gpu.peak,
            f"peak {size(gpu.peak)}",
        )
        for gpu in known
    ]
    picture = bars(rows, reach, title="memory at the peak by what it is for", text=size)
    legend = tuple((colour(name), NAMES[name]) for name in parts)
    head = ("GPU", *(NAMES[name] for name in parts))
    table = Table(
        head,
        tuple((gpu.index, *(size(dict(gpu.at_peak).get(name)) for name in parts)) for gpu in known),
        numbers_from=1,
    )
    return [
        Heading("Memory ledger at the peak"),
        Figure("What each card's memory was for; the line is the peak", picture, legend),
        table,
    ]


def colour(name: str) -> str:
    """Return the class of the colour of a part of a card's memory."""
    return f"m-{name.replace('_', '-')}"
