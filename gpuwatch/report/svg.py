"""Plots as SVG text for an HTML page: no script, no font, no address. Colours are classes that the page defines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from gpuwatch.units import GIB, MIB, with_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH = 760
HEIGHT = 190
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 18, 26
COLOURS = 8
"""The page defines the classes ``c0`` to ``c7``; further lines repeat them dashed."""
GAP = 3.0
"""A line is broken where two points are further apart than this many times the usual distance."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot; points are (x, y) by x, an infinite y lies above everything that is known."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch of the x axis with a severity, and a text that shows when one points at it."""

    start: float
    end: float
    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a stacked bar: parts are (class of the colour, text, value); `mark` is drawn as a line across."""

    label: str
    parts: tuple[tuple[str, str, float], ...]
    mark: float | None = None
    note: str = ""


def plot(
    lines: Sequence[Line],
    unit: str,
    span: tuple[float, float],
    *,
    title: str,
    x_text: Callable[[float], str] | None = None,
    marks: Sequence[Mark] = (),
    limit: tuple[float, str] | None = None,
    top: float | None = None,
    dots: bool = False,
) -> str:
    """Return a plot of lines over time in seconds, or over whatever `x_text` writes at the ticks of the x axis.

    `limit` is a horizontal line with its text, `top` the least upper end of the y axis, `dots` marks each point.
    """
    finite = [y for line in lines for _, y in line.points if math.isfinite(y)]
    highest = max([*finite, *([limit[0]] if limit else []), *([top] if top is not None else [])], default=1.0)
    ticks = y_ticks(highest, unit)
    scale = _Scale(span[0], (span[1] - span[0]) or 1.0, ticks[-1])
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(title)}</title>']
    for mark in marks:
        left, right = scale.x(max(span[0], mark.start)), scale.x(min(span[1], mark.end))
        parts.append(
            f'<rect class="mark {escape(mark.severity)}" x="{left:.1f}" y="{TOP}" width="{max(2.0, right - left):.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(mark.text)}</title></rect>'
        )
    for tick in ticks:
        y, text = scale.y(tick), tick_text(tick, unit, ticks[-1])
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="y" x="{LEFT - 6}" y="{y + 3.5:.1f}">{escape(text)}</text>')
    for value, text in x_ticks(*span, x_text):
        parts.append(f'<text class="x" x="{scale.x(value):.1f}" y="{HEIGHT - 8}">{escape(text)}</text>')
    if limit is not None:
        y = scale.y(limit[0])
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="limit" x="{WIDTH - RIGHT}" y="{y - 4:.1f}">{escape(limit[1])}</text>')
    for number, line in enumerate(lines):
        colour = f"c{number % COLOURS}{' dashed' if number >= COLOURS else ''}"
        parts += _drawn(line, scale, colour, [line.points] if x_text is not None else stretches(line.points))
        if dots:
            parts += [
                f'<circle class="{colour}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3">'
                f"<title>{escape(line.label)}: {escape(_reading(y, unit))}</title></circle>"
                for x, y in line.points
            ]
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where values lie in a picture: x from `start` over `length`, y from 0 to `reach`."""

    start: float
    length: float
    reach: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.start) / self.length * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return TOP + (1 - min(value, self.reach) / self.reach) * (HEIGHT - TOP - BOTTOM)


def _drawn(line: Line, scale: _Scale, colour: str, parts: Sequence[tuple[tuple[float, float], ...]]) -> list[str]:
    """Return the path of each part of a line, and a small arrow at the top for each infinite value."""
    found = []
    for points in parts:
        path = " ".join(
            f"{'L' if index else 'M'}{scale.x(x):.1f} {scale.y(y):.1f}" for index, (x, y) in enumerate(points)
        )
        found.append(f'<path class="line {colour}" d="{path}{"h1" if len(points) == 1 else ""}"/>')
    found += [
        f'<path class="above {colour}" d="M{scale.x(x) - 3:.1f} {TOP + 5} l3 -5 l3 5 z">'
        "<title>above the highest bucket</title></path>"
        for x, y in line.points
        if math.isinf(y)
    ]
    return found


def bars(rows: Sequence[Bar], reach: float, *, title: str, text: Callable[[float], str]) -> str:
    """Return horizontal stacked bars, one per row; `reach` is the value at the right end, `text` writes a value."""
    height = 26 * len(rows) + 22
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img"><title>{escape(title)}</title>']
    scale = (WIDTH - LEFT - RIGHT) / (reach or 1.0)
    for number, row in enumerate(rows):
        top = 26 * number + 2
        parts.append(f'<text class="y" x="{LEFT - 6}" y="{top + 14}">{escape(row.label)}</text>')
        x = float(LEFT)
        for colour, name, value in row.parts:
            width = value * scale
            parts.append(
                f'<rect class="{escape(colour)}" x="{x:.2f}" y="{top}" width="{max(0.0, width):.2f}" height="20">'
                f"<title>{escape(name)}: {escape(text(value))}</title></rect>"
            )
            x += width
        if row.mark is not None:
            at = LEFT + row.mark * scale
            parts.append(
                f'<line class="peak" x1="{at:.1f}" x2="{at:.1f}" y1="{top - 1}" y2="{top + 21}">'
                f"<title>{escape(row.note)}</title></line>"
            )
    parts += [
        f'<text class="x" x="{LEFT + tick * scale:.1f}" y="{height - 6}">'
        f"{escape(tick_text(tick, 'bytes', reach))}</text>"
        for tick in y_ticks(reach, "bytes")
        if tick <= reach
    ]
    parts.append("</svg>")
    return "".join(parts)


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return values as a row of block characters from 0 to the highest, for a text that has no pictures."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    top = max(known)
    step = max(1.0, len(known) / width)
    means = []
    at = 0.0
    while at < len(known):
        part = known[int(at) : max(int(at) + 1, int(at + step))]
        means.append(max(part))
        at += step
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(blocks[min(7, int(value / top * 7.999)) if top > 0 and value > 0 else 0] for value in means)


def stretches(points: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], ...]]:
    """Return points cut where nothing was seen for a while, and where a value is not finite."""
    gaps = sorted(b[0] - a[0] for a, b in pairwise(points))
    usual = gaps[len(gaps) // 2] if gaps else 0.0
    found: list[list[tuple[float, float]]] = [[]]
    last: float | None = None
    for x, y in points:
        if not math.isfinite(y):
            found.append([])
            continue
        if last is not None and usual > 0 and x - last > GAP * usual:
            found.append([])
        found[-1].append((x, y))
        last = x
    return [tuple(stretch) for stretch in found if stretch]


def y_ticks(highest: float, unit: str) -> list[float]:
    """Return three to six round values from 0 to at least `highest`."""
    if highest <= 0 or not math.isfinite(highest):
        highest = 1.0
    base = GIB if unit == "bytes" and highest >= GIB else MIB if unit == "bytes" else 1.0
    step = base * nice(highest / base / 4)
    count = max(1, math.ceil(highest / step - 1e-9))
    return [step * index for index in range(count + 1)]


def nice(value: float) -> float:
    """Return 1, 2, 2.5 or 5 times a power of ten that is at least `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= value * (1 - 1e-9))


def tick_text(value: float, unit: str, reach: float) -> str:
    """Return a value at an axis whose highest one is `reach`, so that all are written in the same unit."""
    if unit == "bytes":
        base, name = (GIB, "GiB") if reach >= GIB else (MIB, "MiB")
        return f"{value / base:,.4g} {name}"
    if unit == "seconds":
        return f"{value * 1000:,.4g} ms" if reach < 1 else f"{value:,.4g} s"
    if unit == "ratio":
        return f"{value * 100:.4g} %"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def x_ticks(start: float, end: float, text: Callable[[float], str] | None) -> list[tuple[float, str]]:
    """Return places and texts of an x axis: whole numbers for `text`, else times since the start."""
    if text is not None:
        return [(float(value), text(value)) for value in range(math.ceil(start), math.floor(end) + 1)]
    length = end - start
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    step = next((step for step in steps if length / step <= 9), 7 * 86400)
    return [(start + at, clock_text(at)) for at in range(0, int(length) + 1, step)]


def clock_text(seconds: float) -> str:
    """Return a time since the start: ``0:40``, ``12:05``, ``1:02:05``."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def _reading(value: float, unit: str) -> str:
    return "above the highest bucket" if math.isinf(value) else with_unit(value, unit)
