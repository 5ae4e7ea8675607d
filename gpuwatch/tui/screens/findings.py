"""The findings: a list, and everything about the selected one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw import findings as draw
from gpuwatch.tui.draw.common import unkeyed
from gpuwatch.tui.screens.base import ListAndDetail
from gpuwatch.tui.text import crop, rule
from gpuwatch.tui.view.fleet import conclusion_on_page
from gpuwatch.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from gpuwatch.tui.text import Line
    from gpuwatch.tui.view.findings import Row
    from gpuwatch.tui.view.model import Model


class Findings(ListAndDetail):
    """The list above, cause, evidence, advice and runbook of the selected finding below."""

    def finding(self) -> Row | None:
        """Return the finding under the cursor."""
        rows = self.model.findings if self.model is not None else ()
        key = self.query_one("#list", Panel).selected
        return next((row for row in rows if row.key == key), rows[0] if rows else None)

    def draw(self, model: Model, width: int, height: int) -> None:
        """Fill the list and the details."""
        table, detail = self.query_one("#list", Panel), self.query_one("#detail", Panel)
        snapshot = model.snapshot
        head = [rule((("Findings", "title"),), width)]
        if snapshot is None:
            self.set_height(table, height)
            self.set_height(detail, 0)
            table.show(unkeyed([((" looking for GPUs and engines…", "dim"),)]), head)
            return
        glyph, words, tone = conclusion_on_page(model)
        rows = [(row.key, draw.head_line(row, width)) for row in model.findings]
        first: list[Line] = [crop(((f" {glyph} ", tone), (words, tone)), width)] if words else []
        first = [*draw.problem_lines(snapshot, width), *first]
        listed = max(min(len(rows) + len(first), height // 3), 1) + 1
        self.set_height(table, listed)
        self.set_height(detail, height - listed)
        table.show([*unkeyed(first), *rows], head)
        row = self.finding()
        lines = draw.details(row, width) if row is not None else []
        lines += [(), *draw.not_judged(snapshot, width)] if snapshot.not_enough else []
        title = row.finding.id if row is not None else "nothing selected"
        detail.show(unkeyed(lines), [rule(((title, "title"),), width)])

    def on_panel_moved(self, event: Panel.Moved) -> None:
        """The details follow the selection."""
        if event.panel.id == "list" and self.model is not None:
            self.query_one("#detail", Panel).scroll_to(y=0, animate=False)
            self.show(self.model)

    def on_panel_picked(self, event: Panel.Picked) -> None:
        """Go to the details."""
        event.stop()
        self.query_one("#detail", Panel).focus()
