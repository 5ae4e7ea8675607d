"""The overview: is it healthy, and if not, why, in one look."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.tui.draw import engine_details, frame
from gpuwatch.tui.draw import engines as draw_engines
from gpuwatch.tui.draw import findings as draw_findings
from gpuwatch.tui.draw import gpus as draw_gpus
from gpuwatch.tui.draw.charts import side_by_side
from gpuwatch.tui.draw.common import unkeyed
from gpuwatch.tui.draw.logs import log_line, source_width
from gpuwatch.tui.screens.base import View
from gpuwatch.tui.text import crop, rule
from gpuwatch.tui.view.gpus import no_gpu, nvml_problem
from gpuwatch.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.text import Line, Row
    from gpuwatch.tui.view.findings import Row as FindingRow
    from gpuwatch.tui.view.model import Model

CHART_HEIGHT = 4
MOST_CHART_HEIGHT = 10


def share(total: int, wants: dict[str, tuple[int, int]], then: Sequence[str] = ()) -> dict[str, int]:
    """Divide `total` lines among sections that want (least, best) each.

    Earlier sections get their least first; what is left goes to those in `then` first, then to the others.
    """
    given = {}
    left = total
    for name, (least, _) in wants.items():
        given[name] = min(least, max(left, 0))
        left -= given[name]
    for name in dict.fromkeys((*then, *wants)):
        more = min(max(wants[name][1] - given[name], 0), max(left, 0))
        given[name] += more
        left -= more
    return given


def _is_void(snapshot: Snapshot) -> bool:
    """Return whether this is the end of a recording without a single tick."""
    return snapshot.recording is not None and snapshot.recording.ended and not snapshot.answers


class Overview(View):
    """GPUs, engines, findings, and where there is room charts and the end of the log."""

    def compose(self) -> ComposeResult:
        """Make the panels."""
        yield Panel(id="gpus")
        yield Panel(id="engines")
        yield Panel(id="charts")
        yield Panel(id="findings")
        yield Panel(id="tail")
        yield Panel(id="timeline")

    def on_mount(self) -> None:
        """Only lists can be walked through."""
        for name in ("charts", "tail", "timeline"):
            self._panel(name).can_focus = False

    def _panel(self, name: str) -> Panel:
        return self.query_one(f"#{name}", Panel)

    def focus_first(self) -> None:
        """The findings are what one came for."""
        self._panel("findings").focus()

    def finding(self) -> FindingRow | None:
        """Return the finding under the cursor."""
        key = self._panel("findings").selected
        rows = self.model.findings if self.model is not None else ()
        return next((row for row in rows if row.key == key), rows[0] if rows else None)

    def draw(self, model: Model, width: int, height: int) -> None:
        """Divide the height among the sections and fill them."""
        snapshot = model.snapshot
        unfocused = snapshot is not None and snapshot.mode == "prometheus" and snapshot.focus is None
        if (
            snapshot is None
            or unfocused
            or (model.empty and snapshot.looked_for and snapshot.mode != "demo")
            or _is_void(snapshot)
        ):
            self._draw_empty(model, width, height)
            return
        room = height - 1
        gpu_rows, gpu_foot = self._gpus(model, width)
        engine_rows = draw_engines.overview(model, width, max(room - len(gpu_rows) - 10, 5))
        finding_rows = draw_findings.overview(model, width, room)
        lines = list(snapshot.lines)
        want = {
            "findings": (min(len(finding_rows), 5) + 1, len(finding_rows) + 1),
            "engines": (min(len(engine_rows), 7), len(engine_rows)),
            "gpus": (min(len(gpu_rows), 4) + 2, len(gpu_rows) + 2),
            "charts": (0, CHART_HEIGHT + 1 if model.engines and any(e.ranks for e in model.engines) else 0),
            "tail": (0, len(lines) + 1 if lines else 0),
        }
        sizes = self._settle(share(room, want, ("gpus", "engines")))
        if sizes["charts"]:
            sizes["charts"] += min(max(room - sum(sizes.values()), 0), MOST_CHART_HEIGHT - CHART_HEIGHT)
        if sum(sizes.values()) < room:
            sizes["findings"] += room - sum(sizes.values())
        if sizes["findings"] - 1 < len(finding_rows):
            finding_rows = draw_findings.overview(model, width, sizes["findings"] - 1)
        for name in want:
            self.set_height(self._panel(name), sizes[name])
        in_sight = sizes["gpus"] - 1 - len(gpu_foot)
        self._panel("gpus").show(gpu_rows, [self._gpus_rule(model, width, in_sight)], gpu_foot)
        self._panel("engines").show(engine_rows)
        self._panel("findings").show(finding_rows, [self._findings_rule(model, width)])
        if sizes["charts"]:
            self._panel("charts").show(unkeyed(self._charts(model, width, sizes["charts"] - 1)))
        if sizes["tail"]:
            shown = lines[-(sizes["tail"] - 1) :]
            names = source_width(shown)
            self._panel("tail").show(
                unkeyed([log_line(line, width, names) for line in shown]), [rule((("Log", "title"),), width)]
            )
        self._timeline(model, width)

    def _settle(self, sizes: dict[str, int]) -> dict[str, int]:
        """Drop sections that got too little to be of use, and give their lines to the findings."""
        for name, least in (("charts", CHART_HEIGHT + 1), ("tail", 3)):
            if 0 < sizes[name] < least:
                sizes["findings"] += sizes[name]
                sizes[name] = 0
        return sizes

    def _timeline(self, model: Model, width: int) -> None:
        """Draw the time line."""
        self.set_height(self._panel("timeline"), 1)
        viewing = model.snapshot.time if model.snapshot is not None and model.pulse.paused else None
        self._panel("timeline").show(unkeyed([draw_findings.time_line(model, width, viewing)]))

    def _gpus_rule(self, model: Model, width: int, in_sight: int) -> Line:
        """Return the rule above the GPUs: how many of them are in sight where not all are, and what NVML lacks."""
        assert model.snapshot is not None
        problem = nvml_problem(model.snapshot)
        few = f"{in_sight} of {len(model.gpus)}" if 0 <= in_sight < len(model.gpus) else ""
        return draw_gpus.section(width, problem if not model.gpus or "NVML has" in problem else "", few)

    def _gpus(self, model: Model, width: int) -> tuple[list[Row], list[Line]]:
        """Return the lines of the GPUs, and the legend."""
        assert model.snapshot is not None
        hosts = len({gpu.host for gpu in model.gpus}) > 1
        names = draw_gpus.name_width(model.gpus, width)
        rows: list[Row] = [(gpu.key, draw_gpus.gpu_line(gpu, width, names, hosts=hosts)) for gpu in model.gpus]
        if not rows:
            text = f" no GPU: {no_gpu(model.snapshot)}"
            rows = unkeyed([crop(((text, "dim"),), width)])
        chosen = self._panel("gpus").selected
        selected = next((gpu for gpu in model.gpus if gpu.key == chosen), model.gpus[0] if model.gpus else None)
        legend = draw_gpus.legend(model.gpus, selected, width)
        return rows, [legend] if legend else []

    def _findings_rule(self, model: Model, width: int) -> Line:
        """Return the rule above the findings, with their numbers."""
        firing = [row.finding.severity for row in model.findings if row.finding.state == "firing"]
        counts = [f"{firing.count(name)} {name}" for name in ("critical", "warning", "info") if name in firing]
        right = ((" · ".join(counts), "dim"),) if counts else ()
        return rule((("Findings", "title"),), width, right)

    def _charts(self, model: Model, width: int, height: int) -> list[Line]:
        """Return the charts of the selected engine; with several ranks the KV pool of each."""
        key = self._panel("engines").selected
        engine = next((e for e in model.engines if e.key == key and e.ranks), None)
        engine = engine or next(e for e in model.engines if e.ranks)
        number = 5 if width >= 170 else 4 if width >= 120 else 3
        each = width // number - 2
        if len(engine.ranks) > 1:
            blocks = engine_details.kv_chart_blocks(model, engine, each, height, number)
        else:
            name = engine.address if len(model.engines) > 1 else ""
            blocks = engine_details.chart_blocks(model, engine.ranks[0], each, height, name)
        return side_by_side(blocks[:number], each)

    def _draw_empty(self, model: Model, width: int, height: int) -> None:
        """Draw the start, or a machine with nothing to watch."""
        for name in ("gpus", "engines", "charts", "tail", "timeline"):
            self.set_height(self._panel(name), 0)
        panel = self._panel("findings")
        self.set_height(panel, height)
        if model.snapshot is None:
            panel.show(unkeyed(frame.starting(width)))
        elif model.snapshot.mode == "prometheus":
            panel.show(unkeyed(frame.asking(width)))
        elif _is_void(model.snapshot):
            panel.show(unkeyed(frame.nothing_recorded(model.snapshot, width)))
        else:
            demo = getattr(self.app, "can_demo", False)
            panel.show(unkeyed(frame.empty_machine(model.snapshot, width, demo=demo)))

    def on_panel_moved(self, event: Panel.Moved) -> None:
        """The legend and the charts follow the selection."""
        if self.model is not None and event.panel.id in ("gpus", "engines"):
            self.show(self.model)

    async def on_panel_picked(self, event: Panel.Picked) -> None:
        """Open the view of what was picked."""
        event.stop()
        view = {"gpus": "gpus", "engines": "engine", "findings": "findings"}.get(event.panel.id or "")
        if view:
            self.app.post_message(self.Opened(view, event.panel.selected))
