"""The fleet: a table of all machines, and the findings of the selected one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.snapshot import shared_name_text
from gpuwatch.tui.draw import findings as draw_findings
from gpuwatch.tui.draw import fleet as draw
from gpuwatch.tui.draw.common import keyed, labelled, unkeyed
from gpuwatch.tui.screens.base import ListAndDetail
from gpuwatch.tui.text import clean, crop, rule
from gpuwatch.tui.view.fleet import conclusion_of, totals
from gpuwatch.tui.view.status import prometheus_trouble
from gpuwatch.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gpuwatch.tui.text import Line, Row, Span
    from gpuwatch.tui.view.findings import Row as FindingRow
    from gpuwatch.tui.view.fleet import Machine
    from gpuwatch.tui.view.model import Model


NARROW = 100


class Fleet(ListAndDetail):
    """One row per machine; enter opens the machine."""

    def draw(self, model: Model, width: int, height: int) -> None:
        """Fill the table and the findings of the selected machine."""
        table, detail = self.query_one("#list", Panel), self.query_one("#detail", Panel)
        detail.can_focus = False
        if model.snapshot is None or not model.machines:
            self.set_height(table, height)
            self.set_height(detail, 0)
            table.show(unkeyed(self._nothing(model, width)), [rule((("Fleet", "title"),), width)])
            return
        rows: list[Row] = [
            (machine.key, draw.machine_line(machine, model.machines, width)) for machine in model.machines
        ]
        below = min(max(height // 3, 5), 14)
        size = min(len(rows) + 2, height - below)
        self.set_height(table, size)
        self.set_height(detail, height - size)
        spans: list[Span] = []
        for text, tone in totals(model.machines, brief=width < NARROW):
            spans += [(" · " if spans else "", "dim"), (text, tone)]
        table.show(rows, [rule(spans, width), draw.header(model.machines, width)])
        machine = next((m for m in model.machines if m.key == table.selected), model.machines[0])
        title = rule(((machine.name, "title"),), width)
        detail.show(self._about(model, machine, width, height - size - 1), [title])

    def _nothing(self, model: Model, width: int) -> list[Line]:
        """Return what is said while no machine is known."""
        snapshot = model.snapshot
        if snapshot is None:
            return [(), crop(((" ◌ ", "info"), ("asking Prometheus…", "bright")), width)]
        text, tone = prometheus_trouble(snapshot)
        if text:
            return [(), *labelled("", text, width, tone, 1)]
        words = "this Prometheus has no series of gpuwatch: nothing is scraped, or the matchers leave nothing"
        return [(), crop(((" ? ", "warn"), (words, "bright")), width), *draw_findings.problem_lines(snapshot, width)]

    def _about(self, model: Model, machine: Machine, width: int, room: int) -> list[Row]:
        """Return the findings of one machine, or what can be said without one."""
        assert model.snapshot is not None
        if machine.programs > 1:
            text = shared_name_text(machine.programs)
            shared = unkeyed(labelled("", f"▲ {text}", width, "warn", 1))
            alone = replace(machine, programs=1)
            return [*shared, *self._about(model, alone, width, room - len(shared))]
        if not machine.findings:
            glyph, words, tone = conclusion_of(model.snapshot, (machine,))
            lines = [crop(((f" {glyph} ", tone), (words, tone)), width)]
            lines += [crop(((f" {clean(problem)}", "warn"),), width) for problem in model.snapshot.problems]
            return unkeyed(lines)
        lines_of: list[Row] = []
        for detailed in (2, 1, 0):
            lines_of = []
            for row in machine.findings:
                lines_of += keyed(row.key, draw_findings.entry(row, width, detailed))
            if len(lines_of) <= room:
                break
        return unkeyed([line for _, line in lines_of])

    @property
    def selected(self) -> Hashable | None:
        """The machine under the cursor."""
        return self.query_one("#list", Panel).selected

    def finding(self) -> FindingRow | None:
        """Return the worst finding of the selected machine."""
        selected = self.selected
        for machine in self.model.machines if self.model is not None else ():
            if machine.key == selected and machine.findings:
                return machine.findings[0]
        return None

    def on_panel_moved(self, event: Panel.Moved) -> None:
        """The findings follow the selection."""
        if event.panel.id == "list" and self.model is not None:
            self.query_one("#detail", Panel).scroll_to(y=0, animate=False)
            self.show(self.model)

    async def on_panel_picked(self, event: Panel.Picked) -> None:
        """Open the machine."""
        event.stop()
        if event.panel.id == "list" and event.panel.selected is not None:
            self.app.post_message(self.Opened("overview", event.panel.selected))
