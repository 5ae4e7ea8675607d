"""The logs: lines of all sources, recognised lines marked, filtered by words."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding

from gpuwatch.snapshot import PLAYED
from gpuwatch.tui.draw import logs as draw
from gpuwatch.tui.draw.common import paragraph, unkeyed
from gpuwatch.tui.draw.frame import KeyHint
from gpuwatch.tui.screens.base import View
from gpuwatch.tui.text import clean, rule
from gpuwatch.tui.view.logs import filtered
from gpuwatch.tui.view.status import plural
from gpuwatch.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.widgets import Input

    from gpuwatch.tui.text import Line
    from gpuwatch.tui.view.model import Model

DETAIL_HEIGHT = 6


class Logs(View):
    """Follows the end of the logs; with a line selected it stays there and shows it in full."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", show=False),
        Binding("h", "hits", show=False),
        Binding("escape", "close", show=False),
    ]

    DEFAULT_CSS = "Logs Input { height: 1; border: none; padding: 0 1; background: $panel; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.words = ""
        self.hits_only = False
        self._input: Input | None = None

    def compose(self) -> ComposeResult:
        """Make the panels."""
        yield Panel(id="lines", tail=True)
        yield Panel(id="detail")

    def hints(self) -> list[KeyHint]:
        """Offer the filter."""
        return [
            KeyHint("/", "filter", "filter_logs"),
            KeyHint("h", "all lines" if self.hits_only else "hits only", "log_hits"),
        ]

    def draw(self, model: Model, width: int, height: int) -> None:
        """Fill the list and, where a line is selected, the details."""
        lines, detail = self.query_one("#lines", Panel), self.query_one("#detail", Panel)
        everything = model.snapshot.lines if model.snapshot is not None else ()
        shown = filtered(everything, self.words, hits_only=self.hits_only)
        names = draw.source_width(shown) if shown else 0
        lines.show(
            [((line.source, line.line), draw.log_line(line, width, names)) for line in shown],
            [self._head(model, len(shown), width)],
        )
        if not shown:
            lines.show(unkeyed(paragraph(self._nothing(model), width, "dim")), [self._head(model, 0, width)])
        chosen = next((line for line in shown if (line.source, line.line) == lines.selected), None)
        search = 1 if self._input is not None else 0
        tall = min(DETAIL_HEIGHT, height // 2) if chosen is not None else 0
        self.set_height(detail, tall)
        self.set_height(lines, max(height - tall - search, 1))
        if chosen is not None:
            detail.show(unkeyed(draw.details(chosen, width)), [rule((("line", "title"),), width)])

    def _head(self, model: Model, shown: int, width: int) -> Line:
        """Return the rule with the number of lines and what they are filtered by."""
        total = len(model.snapshot.lines) if model.snapshot is not None else 0
        parts = [f"{shown} of {plural(total, 'line')}" if shown != total else plural(total, "line")]
        if model.snapshot is not None and model.snapshot.mode in PLAYED:
            parts.append("the recognised ones, recordings hold no others")
        if self.words:
            parts.append(f"with “{clean(self.words)}”")
        if self.hits_only:
            parts.append(f"only {draw.HIT}")
        return rule((("Logs", "title"), (f"  {'  '.join(parts)}", "dim")), width)

    def _nothing(self, model: Model) -> str:
        """Return why there are no lines."""
        if model.snapshot is None:
            return "no data yet"
        if model.snapshot.lines:
            return "no line matches; escape clears the filter"
        if not any(source.kind == "log" for source in model.snapshot.sources):
            return "no log is being read: name one with --log FILE, journal:UNIT, docker:NAME or k8s:NAMESPACE/POD"
        if model.snapshot.mode in PLAYED:
            return (
                "no recognised line yet, and recordings hold no others: "
                "what the log told is in the findings and in the engine's facts"
            )
        return "no line was read yet"

    def on_panel_moved(self, event: Panel.Moved) -> None:
        """The details follow the selection."""
        if event.panel.id == "lines" and self.model is not None:
            self.show(self.model)

    def action_hits(self) -> None:
        """Show only recognised lines, or all again."""
        self.hits_only = not self.hits_only
        self._again()

    async def action_filter(self) -> None:
        """Open the line in which the filter is typed."""
        from textual.widgets import Input  # noqa: PLC0415  # only needed once somebody filters

        if self._input is None:
            self._input = Input(value=self.words, placeholder="words that a line must hold; enter keeps, escape clears")
            await self.mount(self._input)
        self._input.focus()
        self._again()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        event.stop()
        self.words = event.value
        self._again()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and go back to the lines."""
        event.stop()
        await self._close_input()

    async def action_close(self) -> None:
        """Clear the filter, the selection, or leave the view."""
        panel = self.query_one("#lines", Panel)
        if self._input is not None or self.words or self.hits_only:
            self.words, self.hits_only = "", False
            await self._close_input()
        elif panel.selected is not None:
            panel.action_edge(1)
        else:
            self.post_message(self.Opened("overview"))

    async def _close_input(self) -> None:
        """Remove the input line."""
        if self._input is not None:
            await self._input.remove()
            self._input = None
        self.query_one("#lines", Panel).focus()
        self._again()

    def _again(self) -> None:
        """Draw again; the footer names what the keys do now."""
        if self.model is not None:
            self.show(self.model)
        self.post_message(self.HintsChanged())
