"""The header and the footer: fixed lines, whose entries can be clicked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events

    from gpuwatch.tui.text import Line


class Bar(Panel, can_focus=False):
    """One or two fixed lines. `places` are (first cell, cell after the last, action) of what can be clicked."""

    DEFAULT_CSS = "Bar { height: 1; overflow-y: hidden; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.places: Sequence[tuple[int, int, str]] = ()

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Set the lines; the bar grows and shrinks with them."""
        if self.styles.height is None or self.styles.height.value != len(lines):
            self.styles.height = len(lines)
        self.show([(None, line) for line in lines])

    def on_click(self, event: events.Click) -> None:
        """Run the action of the entry that was clicked."""
        for start, end, action in self.places:
            if start <= event.x < end:
                self.app.call_next(self.app.run_action, action)
