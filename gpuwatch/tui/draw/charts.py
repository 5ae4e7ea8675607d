"""Charts of figures over time, beside each other."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from gpuwatch.tui.text import fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.tui.text import Line, Span


def side_by_side(blocks: Sequence[tuple[str, list[str], str]], each: int) -> list[Line]:
    """Return (heading, chart rows, tone) blocks of `each` cells side by side; the area is darker than its edge."""
    head: list[Span] = []
    for text, _, _ in blocks:
        head += [(" ", ""), (fit(text, each), "label"), (" ", "")]
    lines: list[Line] = [tuple(head)]
    for row in range(len(blocks[0][1])):
        spans: list[Span] = []
        for _, rows, tone in blocks:
            above = rows[row - 1] if row else " " * len(rows[row])
            spans += [(" ", ""), *_edge(rows[row], above, tone), (" ", "")]
        lines.append(tuple(spans))
    return lines


def _edge(row: str, above: str, tone: str) -> list[Span]:
    """Return one row of a chart: cells with something above them belong to the area."""
    return [
        ("".join(char for char, _ in run), f"{tone}.area" if inside else tone)
        for inside, run in groupby(zip(row, above, strict=True), key=lambda pair: pair[1] != " ")
    ]
