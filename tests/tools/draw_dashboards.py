"""Draw the dashboards as Grafana lays them out, from what a real Prometheus answers, into docs/images/dashboard-*.png.

usage: python tests/tools/draw_dashboards.py [NAME...] [--out FOLDER]

Needs matplotlib (the extra `draw`) and the Prometheus of `tests/e2e/fetch.sh prometheus`. The data are those of the
end-to-end test: half an hour of four machines, one of them the demo recording.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import textwrap
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "e2e"), str(Path(__file__).parent)]

import board_data  # noqa: E402  # the folders are on the path now
from board_query import lines_of  # noqa: E402
from board_units import show  # noqa: E402
from prometheus_server import PrometheusServer  # noqa: E402

WIDTH = 1600
UNIT, GAP, DPI = 30, 8, 100
SHOWN_AT = {"gpuwatch-engine": 900}
LATE = 1720
"""Second of the scenario at which tables and stats are read: a storm, a hot card, a lost one, a silent engine."""
LEGEND_LINES = 6
CHOSEN = {"gpuwatch-engine": {"host": "node-02", "server": "10.0.0.2:8000"}}
"""What is selected on a dashboard; All otherwise."""
BACK, PANEL, EDGE, TEXT, DIM = "#111217", "#181b1f", "#2c3035", "#ccccdc", "#8e8e9c"
NAMED = {
    "green": "#73BF69", "yellow": "#FADE2A", "orange": "#FF9830", "red": "#F2495C", "blue": "#5794F2",
    "purple": "#B877D9", "text": TEXT,
}  # fmt: skip
PALETTE = (
    "#7EB26D", "#EAB839", "#6ED0E0", "#EF843C", "#E24D42", "#1F78C1", "#BA43A9", "#705DA0", "#508642", "#CCA300",
    "#447EBC", "#C15C17", "#890F02", "#0A437C", "#6D1F62", "#584477", "#B7DBAB", "#F4D598", "#70DBED", "#F9BA8F",
)  # fmt: skip


def colour(name: str) -> str:
    return NAMED.get(name, name)


def step_colour(value: float, thresholds: dict) -> str:
    """Return the colour of a value by Grafana's steps."""
    found = thresholds["steps"][0]["color"]
    for step in thresholds["steps"][1:]:
        if value >= step["value"]:
            found = step["color"]
    return colour(found)


class Board:
    """A figure in Grafana's grid."""

    def __init__(self, document: dict, server: PrometheusServer, start: float, now: float, end: float) -> None:
        self.document, self.server, self.start, self.now, self.end = document, server, start, now, end
        self.chosen = CHOSEN.get(document["uid"], {})
        rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in document["panels"])
        self.height = rows * (UNIT + GAP) + 60
        self.figure = plt.figure(figsize=(WIDTH / DPI, self.height / DPI), dpi=DPI, facecolor=BACK)

    def box(self, left: float, top: float, width: float, height: float):
        """Return axes over a rectangle in pixels from the upper left corner."""
        place = (left / WIDTH, 1 - (top + height) / self.height, width / WIDTH, height / self.height)
        return self.figure.add_axes(place)

    def blank(self, *place: float):
        axes = self.box(*place)
        axes.set_xlim(0, place[2])
        axes.set_ylim(place[3], 0)
        axes.axis("off")
        return axes

    def draw(self) -> None:
        head = self.blank(0, 0, WIDTH, 52)
        head.text(12, 20, self.document["title"], color=TEXT, fontsize=13, va="center", weight="bold")
        variables = [v for v in self.document["templating"]["list"] if v["type"] == "query"]
        shown = "   ".join(f"{v['label']}: {self.chosen.get(v['name'], 'All')}" for v in variables)
        head.text(12, 42, f"Data source: prometheus   {shown}", color=DIM, fontsize=9, va="center")
        for panel in self.document["panels"]:
            grid = panel["gridPos"]
            column = WIDTH / 24
            place = (
                grid["x"] * column + GAP / 2,
                56 + grid["y"] * (UNIT + GAP),
                grid["w"] * column - GAP,
                grid["h"] * (UNIT + GAP) - GAP,
            )
            if panel["type"] == "row":
                self.blank(*place).text(
                    6, 18, "⌄ " + panel["title"], color=TEXT, fontsize=11, va="center", weight="bold"
                )
                continue
            frame = self.blank(*place)
            frame.add_patch(Rectangle((0, 0), place[2], place[3], facecolor=PANEL, edgecolor=EDGE, linewidth=1))
            frame.text(10, 16, panel["title"], color=TEXT, fontsize=9.5, va="center", weight="bold")
            end = self.now if any(t["instant"] for t in panel["targets"]) else self.end
            lines = lines_of(self.server, self.document, panel, self.start, end, chosen=self.chosen)
            if not lines:
                text = panel["fieldConfig"]["defaults"]["noValue"]
                frame.text(place[2] / 2, place[3] / 2 + 8, text, color=DIM, fontsize=10, ha="center", va="center")
                continue
            inner = (place[0] + 8, place[1] + 30, place[2] - 16, place[3] - 38)
            getattr(self, "draw_" + panel["type"].replace("-", "_"))(panel, lines, inner)

    def time_axis(self, axes) -> None:
        axes.set_xlim(self.start, self.end)
        ticks = [self.start + (self.end - self.start) * part / 4 for part in range(5)]
        axes.set_xticks(ticks)
        axes.set_xticklabels([datetime.fromtimestamp(at, timezone.utc).strftime("%H:%M") for at in ticks])
        axes.tick_params(colors=DIM, labelsize=7.5, length=0)
        axes.set_facecolor(PANEL)
        axes.grid(color=EDGE, linewidth=0.6)
        for side in axes.spines.values():
            side.set_visible(False)

    def draw_timeseries(self, panel: dict, lines: list, place: tuple) -> None:
        defaults = panel["fieldConfig"]["defaults"]
        unit, left = defaults["unit"], 62
        entries = min(len(lines), LEGEND_LINES) + (len(lines) > LEGEND_LINES)
        legend = 14 * entries + 18
        axes = self.box(place[0] + left, place[1], place[2] - left - 6, place[3] - legend - 18)
        self.time_axis(axes)
        styles = {
            o["matcher"]["options"]: {p["id"]: p["value"] for p in o["properties"]}
            for o in panel["fieldConfig"]["overrides"]
        }
        drawn, stack = [], {}
        for number, line in enumerate(lines):
            style = styles.get(line.query, {})
            fixed = style.get("color", {}).get("fixedColor")
            paint = colour(fixed) if fixed else PALETTE[number % len(PALETTE)]
            times, values = with_gaps(line.times, line.values)
            if defaults["custom"]["stacking"]["mode"] == "normal":
                base = [stack.get(at, 0.0) for at in line.times]
                top = [b + v for b, v in zip(base, line.values, strict=True)]
                stack.update(zip(line.times, top, strict=True))
                axes.fill_between(line.times, base, top, color=paint, alpha=0.75, linewidth=0.4)
            else:
                axes.plot(
                    times, values, color=paint, linewidth=1.1, linestyle="--" if "custom.lineStyle" in style else "-"
                )
                if len(line.times) == 1:
                    axes.plot(times, values, color=paint, marker="o", markersize=2.5)
            drawn.append((paint, line))
        self.limits(axes, defaults)
        low, high = axes.get_ylim()
        if defaults["custom"].get("axisSoftMin") is not None:
            low = min(0.0, low) if low < 0 and min(min(x.values) for x in lines) < 0 else 0.0
        high = defaults.get("max", high if high > low else low + 1)
        scale = binary_step(high - low) if unit in ("bytes", "binBps") else 1.0
        ticks = [tick * scale for tick in plt.MaxNLocator(4).tick_values(low / scale, high / scale)]
        axes.set_yticks(ticks, [show(tick, unit) for tick in ticks])
        axes.set_ylim(low, high)
        table = self.blank(place[0], place[1] + place[3] - legend, place[2], legend)
        self.legend(table, drawn, unit, place[2])

    def limits(self, axes, defaults: dict) -> None:
        if defaults["custom"]["thresholdsStyle"]["mode"] == "off":
            return
        steps = defaults["thresholds"]["steps"]
        for before, step in pairwise(steps):
            paint = before["color"] if step["color"] == "green" else step["color"]
            axes.axhline(step["value"], color=colour(paint), linestyle=(0, (6, 4)), linewidth=1)

    def legend(self, table, drawn: list, unit: str, width: float) -> None:
        table.text(width - 78, 8, "Last *", color=DIM, fontsize=7.5, ha="right", va="center")
        table.text(width - 6, 8, "Max", color=DIM, fontsize=7.5, ha="right", va="center")
        for number, (paint, line) in enumerate(drawn[:LEGEND_LINES]):
            y = 22 + 14 * number
            table.add_patch(Rectangle((6, y - 1), 12, 3, facecolor=paint))
            table.text(24, y, line.name[: int((width - 170) / 5.6)], color=TEXT, fontsize=7.5, va="center")
            known = [v for v in line.values if v == v]  # noqa: PLR0124  # NaN is not itself
            for x, value in (
                (width - 78, known[-1:] or [float("nan")]),
                (width - 6, [max(known, default=float("nan"))]),
            ):
                table.text(x, y, show(value[0], unit), color=TEXT, fontsize=7.5, ha="right", va="center")
        if len(drawn) > LEGEND_LINES:
            table.text(
                24, 22 + 14 * LEGEND_LINES, f"… {len(drawn) - LEGEND_LINES} more", color=DIM, fontsize=7.5, va="center"
            )

    def draw_stat(self, panel: dict, lines: list, place: tuple) -> None:
        defaults = panel["fieldConfig"]["defaults"]
        named = panel["options"]["textMode"] == "value_and_name"
        columns = min(len(lines), max(1, round(place[2] / 120)))
        rows = -(-len(lines) // columns)
        axes = self.blank(*place)
        for number, line in enumerate(lines):
            x = (number % columns + 0.5) * place[2] / columns
            y = (number // columns + 0.5) * place[3] / rows
            value = line.values[-1]
            text = show(value, defaults["unit"])
            size = min(24, place[3] / rows / 2.4, place[2] / columns / len(text) / 0.9)
            axes.text(
                x, y - (size * 0.3 if named else 0), text, fontsize=size, ha="center", va="center",
                color=step_colour(value, defaults["thresholds"]),
            )  # fmt: skip
            if named:
                width = int(place[2] / columns / 4.6)
                axes.text(x, y + size * 0.95, line.name[:width], color=DIM, fontsize=6.5, ha="center", va="center")

    def draw_table(self, panel: dict, lines: list, place: tuple) -> None:
        columns, rows, styles = table_of(panel, lines)
        axes = self.blank(*place)
        widths = column_widths(columns, rows, styles, place[2])
        left = 0.0
        for name in columns:
            axes.text(left + 4, 10, name, color=DIM, fontsize=8, va="center", weight="bold")
            left += widths[name]
        top = 21.0
        for row in rows:
            wrapped = {}
            for name in columns:
                style = styles.get(name, {})
                fits = max(3, int((widths[name] - 10) / 6.2))
                text = cell_text(row.get(name), style)
                wraps = style.get("custom.cellOptions", {}).get("wrapText")
                wrapped[name] = textwrap.wrap(text, fits) if wraps else [text[:fits]]
            height = 22 + 12 * (max(map(len, wrapped.values())) - 1)
            if top + height > place[3]:
                break
            axes.plot([0, place[2]], [top] * 2, color=EDGE, linewidth=0.6)
            left = 0.0
            for name in columns:
                text = "\n".join(wrapped[name])
                self.cell(
                    axes, row.get(name), text, styles.get(name, {}), (left + 4, top + height / 2, widths[name] - 10)
                )
                left += widths[name]
            top += height

    def cell(self, axes, value, text: str, style: dict, place: tuple) -> None:
        x, y, width = place
        if value is None:
            return
        paint = TEXT
        steps = style.get("thresholds")
        if isinstance(value, float) and steps:
            paint = step_colour(value, steps)
        options = style.get("mappings", [{}])[0].get("options", {})
        if str(value) in options:
            paint = colour(options[str(value)]["color"])
        if style.get("custom.cellOptions", {}).get("type") == "gauge":
            axes.add_patch(Rectangle((x, y - 6), (width - 50) * min(1.0, value), 12, facecolor=paint, alpha=0.8))
            axes.text(x + width, y, text, color=paint, fontsize=8, va="center", ha="right")
            return
        if style.get("links"):
            paint = "#6E9FFF"
        axes.text(x, y, text, color=paint, fontsize=8, va="center", linespacing=1.1)

    def draw_barchart(self, panel: dict, lines: list, place: tuple) -> None:
        columns, rows, styles = table_of(panel, lines)
        axes = self.box(place[0] + 90, place[1], place[2] - 100, place[3] - 60)
        axes.set_facecolor(PANEL)
        names = [row["GPU"] for row in rows][::-1]
        left = [0.0] * len(rows)
        for name in columns[1:]:
            values = [row.get(name) or 0.0 for row in rows][::-1]
            paint = styles.get(name, {}).get("color", {}).get("fixedColor", "#888888")
            axes.barh(range(len(rows)), values, left=left, height=0.75, color=paint, label=name, linewidth=0)
            left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_yticks(range(len(rows)), names)
        axes.tick_params(colors=DIM, labelsize=7.5, length=0)
        axes.set_xlim(0, max(left) * 1.02)
        axes.set_xticks([at * 20 * 2**30 for at in range(8)])
        axes.set_xlim(0, max(left) * 1.02)
        axes.set_xticklabels([show(tick, panel["fieldConfig"]["defaults"]["unit"]) for tick in axes.get_xticks()])
        for side in axes.spines.values():
            side.set_visible(False)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.45, -0.05), ncol=4, fontsize=7.5, frameon=False, labelcolor=TEXT
        )

    def draw_state_timeline(self, panel: dict, lines: list, place: tuple) -> None:
        names = list(dict.fromkeys(line.name for line in lines))
        axes = self.box(place[0] + 330, place[1], place[2] - 340, place[3] - 40)
        self.time_axis(axes)
        options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
        axes.set_axisbelow(True)
        for line in lines:
            row = names.index(line.name)
            for begin, until, value in runs_of(line):
                paint = options.get(f"{value:g}", {}).get("color", "text")
                axes.barh(row, until - begin, left=begin, height=0.8, color=colour(paint), linewidth=0)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), [textwrap.shorten(name, 60, placeholder="…") for name in names])
        foot = self.blank(place[0], place[1] + place[3] - 18, place[2], 18)
        for number, entry in enumerate(options.values()):
            foot.add_patch(Rectangle((340 + 90 * number, 6), 10, 8, facecolor=colour(entry["color"])))
            foot.text(356 + 90 * number, 10, entry["text"], color=TEXT, fontsize=7.5, va="center")


def runs_of(line) -> list[tuple[float, float, float]]:
    """Return (begin, end, value) of every stretch of equal values."""
    runs: list[tuple[float, float, float]] = []
    for at, value in zip(line.times, line.values, strict=True):
        if runs and runs[-1][2] == value and at - runs[-1][1] <= 1:
            runs[-1] = (runs[-1][0], at + 15, value)
        else:
            runs.append((at, at + 15, value))
    return runs


def binary_step(span: float) -> float:
    """Return the power of 1024 in which `span` bytes are counted."""
    return next((1024.0**power for power in (5, 4, 3, 2, 1) if span >= 1024.0**power), 1.0)


def with_gaps(times: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    """Break a line where samples are missing, as Grafana does without `spanNulls`."""
    out_t, out_v = [], []
    for at, value in zip(times, values, strict=True):
        if out_t and at - out_t[-1] > 20:
            out_t.append(at - 1)
            out_v.append(float("nan"))
        out_t.append(at)
        out_v.append(value)
    return out_t, out_v


def column_widths(columns: list[str], rows: list[dict], styles: dict, room: float) -> dict[str, float]:
    """Return the width of each column: its own, or a share of what is left by the length of its texts."""
    widths = {name: float(styles.get(name, {}).get("custom.width") or 0) for name in columns}
    weight = {
        name: min(60, max(len(name), *(len(cell_text(row.get(name), styles.get(name, {}))) for row in rows)))
        for name in columns
        if not widths[name]
    }
    left = room - sum(widths.values())
    return {name: width or left * weight[name] / sum(weight.values()) for name, width in widths.items()}


def cell_text(value, style: dict) -> str:
    return show(value, style.get("unit", "none")) if isinstance(value, float) else str(value or "")


def table_of(panel: dict, lines: list) -> tuple[list[str], list[dict], dict]:
    """Return columns, rows and the style of each column, after Grafana's `merge` and `organize`."""
    organize = next(t["options"] for t in panel["transformations"] if t["id"] == "organize")
    single = len(panel["targets"]) == 1
    rows: dict[tuple, dict] = {}
    for line in lines:
        labels = {key: value for key, value in line.labels.items() if key != "__name__"}
        row = rows.setdefault(tuple(sorted(labels.items())), dict(labels))
        row["Value" if single else f"Value #{line.query}"] = line.values[-1]
    order = sorted(
        (name for name in organize["indexByName"] if not organize["excludeByName"].get(name)),
        key=organize["indexByName"].get,
    )
    renamed = organize["renameByName"]
    present = [name for name in order if any(name in row for row in rows.values())]
    columns = [renamed.get(name, name) for name in present]
    shown = [{renamed.get(name, name): row.get(name) for name in present} for row in rows.values()]
    for sort in panel["options"].get("sortBy", []):
        shown.sort(
            key=lambda row: (row.get(sort["displayName"]) is not None, row.get(sort["displayName"]) or 0),
            reverse=sort["desc"],
        )
    styles = {
        o["matcher"]["options"]: {p["id"]: p["value"] for p in o["properties"]}
        for o in panel["fieldConfig"]["overrides"]
    }
    return columns, shown, styles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="dashboards, such as gpuwatch-fleet; all by default")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        history, start, end = board_data.whole_history(folder)
        server = PrometheusServer(folder, "".join(history.lines()))
        try:
            for path in sorted((ROOT / "dashboards").glob("*.json")):
                if options.names and path.stem not in options.names:
                    continue
                now = start / 1000 + SHOWN_AT.get(path.stem, LATE)
                board = Board(json.loads(path.read_text()), server, start / 1000, now, end / 1000)
                board.draw()
                picture = options.out / f"dashboard-{path.stem.removeprefix('gpuwatch-')}.png"
                board.figure.savefig(picture, facecolor=BACK)
                plt.close(board.figure)
                shrink(picture)
                print(picture, picture.stat().st_size)
        finally:
            server.stop()


def shrink(picture: Path) -> None:
    """Write the picture with a palette: a third of the bytes."""
    from PIL import Image  # noqa: PLC0415  # comes with matplotlib

    with Image.open(picture) as image:
        image.convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE).save(picture, optimize=True)


if __name__ == "__main__":
    main()
