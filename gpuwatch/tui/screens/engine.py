"""One engine: its pool, requests and latencies per rank, charts, settings, and where each was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw import engine_details
from gpuwatch.tui.draw import engines as draw
from gpuwatch.tui.draw.charts import side_by_side
from gpuwatch.tui.draw.common import unkeyed
from gpuwatch.tui.draw.frame import KeyHint
from gpuwatch.tui.screens.base import View
from gpuwatch.tui.text import crop, rule
from gpuwatch.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Hashable

    from textual.app import ComposeResult

    from gpuwatch.tui.text import Line
    from gpuwatch.tui.view.engines import Engine
    from gpuwatch.tui.view.model import Model


class EngineView(View):
    """Everything about one engine; `e` goes to the next one."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.chosen: Hashable | None = None

    def compose(self) -> ComposeResult:
        """Make the panels."""
        yield Panel(id="body")

    def hints(self) -> list[KeyHint]:
        """Offer the next engine where there is one."""
        several = self.model is not None and len(self.model.engines) > 1
        return [KeyHint("e", "next engine", "next_engine")] if several else []

    def open_at(self, key: Hashable) -> None:
        """Show an engine."""
        self.chosen = key
        if self.model is not None:
            self.show(self.model)

    def next_engine(self) -> None:
        """Show the next engine."""
        if self.model is None or not self.model.engines:
            return
        keys = [engine.key for engine in self.model.engines]
        place = keys.index(self.chosen) if self.chosen in keys else 0
        self.query_one(Panel).scroll_to(y=0, animate=False)
        self.open_at(keys[(place + 1) % len(keys)])

    def draw(self, model: Model, width: int, height: int) -> None:
        """Fill the page."""
        panel = self.query_one(Panel)
        if not model.engines:
            text = "looking for engines…" if model.snapshot is None else "no engine was found"
            panel.show(unkeyed([crop(((f" {text}", "dim"),), width)]), [rule((("Engine", "title"),), width)])
            return
        places = [engine.key for engine in model.engines]
        if self.chosen not in places:
            self.chosen = places[0]
        engine = model.engines[places.index(self.chosen)]
        lines: list[Line] = engine_details.problem_lines(engine, width)
        if len(engine.ranks) > 1:
            header, rows = draw.table([engine], width)
            lines += [header, *(line for _, line in rows)]
        elif engine.ranks:
            lines += draw.block(model, engine, width)
        lines += self._charts(model, engine, width, height)
        for rank in engine.ranks:
            name = f"dp{rank.dp_rank}  {rank.model}" if len(engine.ranks) > 1 else "figures"
            lines += [rule(((name, "title"),), width), *engine_details.rank_figures(engine, rank, width)]
        lines += [rule((("settings and facts", "title"),), width), *engine_details.settings(engine, width)]
        several = f"  ({places.index(self.chosen) + 1} of {len(places)})" if len(places) > 1 else ""
        title = [*draw.heading(engine, hosts=len({e.host for e in model.engines}) > 1), (several, "dim")]
        panel.show(unkeyed(lines), [rule(title, width)])

    def _charts(self, model: Model, engine: Engine, width: int, height: int) -> list[Line]:
        """Return the charts: of all figures of a single rank, of the KV pool where there are several ranks."""
        if not engine.ranks:
            return []
        per_line = 3 if width >= 100 else 2
        each = width // per_line - 2
        tall = 7 if height >= 50 else 5 if height >= 36 else 3
        if len(engine.ranks) > 1:
            blocks = engine_details.kv_chart_blocks(model, engine, each, tall)
        else:
            blocks = engine_details.chart_blocks(model, engine.ranks[0], each, tall)
        lines: list[Line] = [()]
        for start in range(0, len(blocks), per_line):
            lines += [*side_by_side(blocks[start : start + per_line], each), ()]
        return lines
