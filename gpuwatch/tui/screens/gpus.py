"""The GPUs: a table of all figures, and everything about the selected one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw import gpu_details
from gpuwatch.tui.draw import gpus as draw
from gpuwatch.tui.draw.common import unkeyed
from gpuwatch.tui.screens.base import ListAndDetail
from gpuwatch.tui.text import crop, rule
from gpuwatch.tui.view.gpus import nvml_problem
from gpuwatch.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from gpuwatch.tui.text import Line
    from gpuwatch.tui.view.model import Model


class Gpus(ListAndDetail):
    """A table above, the details of the selected GPU below."""

    def draw(self, model: Model, width: int, height: int) -> None:
        """Fill the table and the details."""
        table, detail = self.query_one("#list", Panel), self.query_one("#detail", Panel)
        problem = nvml_problem(model.snapshot) if model.snapshot is not None else ""
        head: list[Line] = [draw.section(width, problem)]
        if not model.gpus:
            why = problem or ("no GPU was seen" if model.snapshot is not None else "looking for GPUs…")
            self.set_height(table, height)
            self.set_height(detail, 0)
            table.show(unkeyed([crop(((f" {why}", "dim"),), width)]), head)
            return
        hosts = len({gpu.host for gpu in model.gpus}) > 1
        header, rows = draw.table(model.gpus, width, hosts=hosts)
        least = min(len(rows), max(height // 3, 3)) + 2
        best = len(rows) + 2 if len(rows) + 2 <= height * 2 // 3 else least
        self.set_height(table, best)
        self.set_height(detail, height - best)
        table.show([(gpu.key, line) for gpu, line in rows], [*head, header])
        gpu = next((g for g in model.gpus if g.key == table.selected), model.gpus[0])
        lines: list[Line] = []
        tall = height - best >= 24
        lines += [((" ", ""), *draw.bar(gpu, width - 2)), draw.legend(model.gpus, gpu, width), ()]
        lines += [*gpu_details.charts(model, gpu, width, 6 if tall else 3), ()] if height - best >= 16 else []
        lines += gpu_details.details(gpu, width)
        title = rule(((f"{gpu.title}  {gpu.name}", "title"),), width)
        detail.show(unkeyed(lines), [title])

    def on_panel_moved(self, event: Panel.Moved) -> None:
        """The details follow the selection."""
        if event.panel.id == "list" and self.model is not None:
            self.query_one("#detail", Panel).scroll_to(y=0, animate=False)
            self.show(self.model)

    def on_panel_picked(self, event: Panel.Picked) -> None:
        """Go to the details."""
        event.stop()
        self.query_one("#detail", Panel).focus()
