"""The rules: state of each with its value against the threshold; and the sources they stand on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw import rules as draw
from gpuwatch.tui.draw.common import unkeyed
from gpuwatch.tui.screens.base import View
from gpuwatch.tui.text import crop, rule
from gpuwatch.tui.widgets.panel import Panel
from gpuwatch.units import seconds, size

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from gpuwatch.tui.text import Line, Row, Span
    from gpuwatch.tui.view.model import Model


class Rules(View):
    """A table of rules, the selected one in full, and the sources."""

    def compose(self) -> ComposeResult:
        """Make the panels."""
        yield Panel(id="problems")
        yield Panel(id="list")
        yield Panel(id="detail")
        yield Panel(id="sources")

    def draw(self, model: Model, width: int, height: int) -> None:
        """Fill the panels."""
        wrong, table, detail, sources = (
            self.query_one(f"#{name}", Panel) for name in ("problems", "list", "detail", "sources")
        )
        snapshot = model.snapshot
        header: Line = ()
        rows: list[Row]
        if snapshot is None or not snapshot.rules:
            text = "no rules are loaded yet" if snapshot is not None else "no data yet"
            rows = unkeyed([crop(((f" {text}", "dim"),), width)])
        else:
            header, found = draw.table(snapshot, width)
            rows = [(row.name, line) for row, line in found]
        lines = draw.sources(snapshot, width) if snapshot is not None else []
        source_height = min(len(lines) + 1, max(height // 4, 3)) if lines else 0
        problems = draw.problems(snapshot, width) if snapshot is not None else []
        problem_height = min(len(problems) + 1, max(height // 4, 3)) if problems else 0
        if problems:
            wrong.show(unkeyed(problems), [rule((("Problems of rules", "crit"),), width)])
        self.set_height(wrong, problem_height)
        height -= problem_height
        detail_height = min(9, height // 3) if snapshot is not None and snapshot.rules else 0
        self.set_height(sources, source_height)
        self.set_height(detail, detail_height)
        self.set_height(table, height - source_height - detail_height)
        table.show(
            rows, [rule((("Rules", "title"),), width), header] if header else [rule((("Rules", "title"),), width)]
        )
        if snapshot is not None and snapshot.rules:
            row = next((r for r, _ in found if r.name == table.selected), found[0][0])
            detail.show(unkeyed(draw.details(row, width)), [rule(((row.name, "title"),), width)])
        if lines:
            sources.show(unkeyed(lines), [rule((("Sources", "title"),), width, self._own(model))])

    def _own(self, model: Model) -> tuple[Span, ...]:
        """Return what gpuwatch itself uses."""
        assert model.snapshot is not None
        parts = []
        for query, name, show in (
            ("own_cpu", "CPU", _cores),
            ("own_resident", "memory", size),
            ("own_tick", "tick", seconds),
        ):
            samples = model.snapshot.answer(query).samples
            if samples:
                parts.append(f"{name} {show(samples[0][1])}")
        return ((f"gpuwatch itself: {'  '.join(parts)}", "dim"),) if parts else ()

    def focus_first(self) -> None:
        """The list is what one walks through."""
        self.query_one("#list", Panel).focus()

    def on_panel_moved(self, event: Panel.Moved) -> None:
        """The details follow the selection."""
        if event.panel.id == "list" and self.model is not None:
            self.show(self.model)

    def on_panel_picked(self, event: Panel.Picked) -> None:
        """Go to the details."""
        event.stop()
        self.query_one("#detail", Panel).focus()


def _cores(value: float) -> str:
    """Return cores as a percentage of one."""
    return f"{value * 100:.1f} % of a core"
