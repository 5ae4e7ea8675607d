"""A catalogue figure as a line: its name, its value or why there is none, its meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.queries import QUERIES
from gpuwatch.tui.text import crop, fit, width_of
from gpuwatch.tui.view.table import figure_name
from gpuwatch.units import with_unit

if TYPE_CHECKING:
    from gpuwatch.tui.text import Line


def figure(query: str, value: float | None, why: str, width: int, *, stale: bool = False) -> Line:
    """Return one catalogue figure: name, value or why there is none, meaning."""
    text = with_unit(value, QUERIES[query].unit)
    if value is None and why:
        text = f"{text} ({why})"
    tone = "dim" if value is None else "stale" if stale else "bright"
    shown = fit(text, max(15, min(width_of(text), width - 40)))
    return crop(
        (
            (" ", ""),
            (fit(figure_name(query), 20), "label"),
            (" ", ""),
            (shown, tone),
            (f" {QUERIES[query].meaning}", "dim"),
        ),
        width,
    )
