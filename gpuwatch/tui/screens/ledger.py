"""The ledger: where the memory of each GPU is, as far as engines and NVML say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw import ledger as draw
from gpuwatch.tui.draw.common import unkeyed
from gpuwatch.tui.screens.base import View
from gpuwatch.tui.text import crop, rule
from gpuwatch.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Hashable

    from textual.app import ComposeResult

    from gpuwatch.tui.view.model import Model


class Ledger(View):
    """The pieces of each GPU's memory, what each engine states, and what a change would buy."""

    def compose(self) -> ComposeResult:
        """Make the panels."""
        yield Panel(id="pieces")
        yield Panel(id="stated")

    def on_mount(self) -> None:
        """The statements are only read."""
        self.query_one("#stated", Panel).can_focus = False

    def open_at(self, key: Hashable) -> None:
        """Select a GPU."""
        self.query_one("#pieces", Panel).select(key)

    def draw(self, model: Model, width: int, height: int) -> None:
        """Fill the page."""
        pieces, stated = self.query_one("#pieces", Panel), self.query_one("#stated", Panel)
        rows = draw.gpu_rows(model, width)
        if not rows:
            text = "looking for GPUs…" if model.snapshot is None else "no GPU was seen, so there is no memory to divide"
            rows = unkeyed([crop(((f" {text}", "dim"),), width)])
        lines = draw.engines(model, width)
        tall = min(len(lines) + 1, height // 3) if lines else 0
        self.set_height(stated, tall)
        self.set_height(pieces, height - tall)
        title = (("Ledger", "title"), ("  memory by what it is for; unexplained = used - all that is known", "dim"))
        pieces.show(rows, [rule(title, width)])
        if lines:
            stated.show(
                unkeyed(lines),
                [
                    rule(
                        (
                            ("Engines", "title"),
                            ("  what they state about each GPU, and what a change would buy", "dim"),
                        ),
                        width,
                    )
                ],
            )
