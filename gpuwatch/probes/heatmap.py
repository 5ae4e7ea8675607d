"""A table of shares as text: one cell per pair of values, shaded so that the eye finds the hole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.units import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuwatch.probes.statistics import Share

SHADES = " ░▒▓█"
"""From none to all; a cell that was not measured has a dot."""
CELL = 9


def shade(ratio: float | None) -> str:
    """Return two characters for a ratio of 0 to 1; full blocks mean all, blanks none."""
    if ratio is None:
        return "··"
    step = 0 if ratio <= 0 else len(SHADES) - 1 if ratio >= 1 else 1 + min(2, int(ratio * 3))
    return SHADES[step] * 2


def heat_map(
    cells: Mapping[tuple[int, int], Share],
    columns: Sequence[int],
    rows: Sequence[int],
    labels: tuple[str, Callable[[int], str], Callable[[int], str]],
) -> tuple[str, ...]:
    """Return the lines of a heat map.

    Args:
        cells: Share of each (column, row).
        columns: Values from left to right.
        rows: Values from top to bottom.
        labels: The corner's text, and how a row and a column are named.
    """
    corner, row_name, column_name = labels
    width = max(len(corner), *(len(row_name(row)) for row in rows)) if rows else len(corner)
    lines = [corner.ljust(width) + "".join(column_name(column).rjust(CELL) for column in columns)]
    for row in rows:
        line = row_name(row).rjust(width)
        for column in columns:
            share = cells.get((column, row))
            ratio = share.ratio if share is not None else None
            line += (
                "   " + shade(ratio) + (percent(ratio).removesuffix(" %") if ratio is not None else "-").rjust(CELL - 5)
            )
        lines.append(line)
    return tuple(lines)
