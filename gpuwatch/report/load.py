"""Sections about what an engine did: totals, courses over time, and figures against concurrency."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.report.document import Figure, Heading, Table, Text
from gpuwatch.report.figures import (
    SHORTEST_POINT,
    SHORTEST_RATE,
    added_seconds,
    at_most,
    for_plot,
    levels,
    mean,
    merged,
    rate,
    told,
)
from gpuwatch.report.svg import Line, Mark, clock_text, plot, sparkline
from gpuwatch.units import NONE, count, number, percent, seconds, with_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatch.report.data import EngineRun, Histogram, RunData, Window
    from gpuwatch.report.document import Block
    from gpuwatch.report.figures import Level

LATENCIES = (
    ("ttft", "time to first token"),
    ("itl", "time between tokens"),
    ("e2e", "arrival to last token"),
    ("queue", "time in the queue"),
)

SHORT_WORK = 40
"""Work of fewer windows than this has rates that the idle parts of its first and last window lower by over 5 %."""
SHARES = (0.5, 0.95, 0.99)
COARSE = (
    "Quantiles are as fine as the buckets of the engine: within one, its values are taken as evenly spread. Of one "
    "that lies in the first bucket no more is known than the bucket's end."
)


def shown(value: float | None, unit: str) -> str:
    """Return a figure; an infinite latency is one above the engine's highest bucket."""
    if value is not None and math.isinf(value):
        return "above all buckets"
    return with_unit(value, unit)


def quantile_text(share: float, histogram: Histogram) -> str:
    """Return a quantile of a latency; of one in the first bucket only that it is no higher than its bound."""
    bound = at_most(share, histogram)
    return shown(told(share, histogram), "seconds") if bound is None else f"≤ {shown(bound, 'seconds')}"


def blocks(run: RunData) -> list[Block]:
    """Return the sections of all engines of a run."""
    found: list[Block] = []
    for engine in run.engines:
        found += _engine(run, engine)
    return found


def _engine(run: RunData, engine: EngineRun) -> list[Block]:
    busy = [window for window in engine.windows if window.busy]
    name = f": {engine.title}" if len(run.engines) > 1 else ""
    found: list[Block] = [Heading(f"Load and latency{name}")]
    whole = merged(busy)
    if whole is None:
        return [*found, Text("The engine had nothing to do, or its page holds no figures of requests.", "quiet")]
    length = added_seconds(busy)
    width = max(window.seconds for window in busy)
    found.append(_totals(whole, length, run.sampled_seconds, width, engine))
    if length < SHORT_WORK * width:
        found.append(
            Text(
                f"Work is counted in whole windows of up to {seconds(width)}: in so short a time the idle parts of the "
                f"first and the last one make rates lower by up to {percent(min(1.0, 2 * width / length))}.",
                "quiet",
            )
        )
    if any(name in whole.histograms for name, _ in LATENCIES):
        found.append(Text(COARSE, "quiet"))
    found += _courses(run, engine)
    found += _by_concurrency(busy, name)
    return found


def _totals(whole: Window, length: float, of: float, width: float, engine: EngineRun) -> Table:
    """Return the totals of `length` seconds with work of `of`, counted in windows of up to `width` seconds."""
    counted = whole.counted
    rough = f", in whole windows of up to {seconds(width)}" if width >= SHORTEST_POINT else ""
    running, waiting = (engine.curves[key].highest if key in engine.curves else None for key in ("running", "waiting"))
    rows = [
        ("had work", f"{seconds(length)} of {seconds(of)}{rough}"),
        ("requests finished", count(counted.get("finished"))),
        ("prompt tokens", _amount(whole, length, "prompt_tokens")),
        ("generated tokens", _amount(whole, length, "generation_tokens")),
        ("requests running", f"{number(whole.running)} on average, {count(running)} at most"),
        ("requests waiting", f"{number(whole.waiting)} on average, {count(waiting)} at most"),
        ("preemptions", count(counted.get("preemptions"))),
        ("prefix cache hits", _hits(whole)),
    ]
    lengths = [
        mean(whole.histograms[name]) for name in ("prompt_length", "generation_length") if name in whole.histograms
    ]
    if len(lengths) == 2:
        rows.append(("mean request", f"{count(lengths[0])} prompt and {count(lengths[1])} generated tokens"))
    for name, text in LATENCIES:
        if name in whole.histograms:
            rows.append((text, _spread(whole.histograms[name])))
    return Table(("", ""), tuple(rows))


def _amount(whole: Window, length: float, name: str) -> str:
    value = whole.counted.get(name)
    return (
        NONE
        if value is None
        else f"{count(value)}, {with_unit(rate(whole, name, length), 'tokens/s')} while it had work"
    )


def _hits(whole: Window) -> str:
    asked = whole.counted.get("prefix_queries")
    hits = whole.counted.get("prefix_hits")
    if asked is None or hits is None:
        return NONE
    return percent(hits / asked) if asked else "nothing was looked up"


def _spread(histogram: Histogram) -> str:
    if not histogram.count:
        return "none was observed"
    parts = (f"p{round(share * 100)} {quantile_text(share, histogram)}" for share in SHARES)
    return f"{', '.join(parts)}, mean {shown(mean(histogram), 'seconds')} ({count(histogram.count)} observed)"


def _courses(run: RunData, engine: EngineRun) -> list[Block]:
    points = for_plot(engine.windows)
    rates = for_plot(engine.windows, SHORTEST_RATE)
    span = (0.0, max(1.0, run.seconds))
    marks = marks_of(run, engine)

    def since(time: float) -> float:
        return (time - run.started) / 1000

    def middle(window: Window) -> float:
        return since((window.start + window.end) / 2)

    def counted(label: str, name: str) -> Line:
        return Line(label, _points((middle(point), rate(point, name)) for point in rates))

    def quantiles(name: str) -> list[Line]:
        known = [(middle(point), point.histograms[name]) for point in points if name in point.histograms]
        lines = [
            Line(f"p{round(share * 100)}", _points((x, told(share, histogram)) for x, histogram in known))
            for share in SHARES[:2]
        ]
        if any(at_most(share, histogram) is not None for share in SHARES[:2] for _, histogram in known):
            lines.append(Line("mean", _points((x, mean(histogram)) for x, histogram in known)))
        return lines

    def curve(label: str, name: str) -> Line:
        known = engine.curves.get(name)
        pairs = zip(known.times, known.values, strict=True) if known is not None else ()
        return Line(label, tuple((since(time), value) for time, value in pairs))

    limit = (float(engine.limit), f"max-num-seqs {engine.limit}") if engine.limit and _near(engine) else None
    tokens = [counted("generated", "generation_tokens"), counted("prompt", "prompt_tokens")]
    plots = [
        ("Tokens per second", "tokens/s", tokens, None, None),
        ("Requests", "count", [curve("running", "running"), curve("waiting", "waiting")], limit, None),
        ("KV pool in use", "ratio", [curve("used", "kv_usage")], None, 1.0),
        ("Preemptions per second", "per second", [counted("preempted", "preemptions")], None, None),
        ("Time to first token", "seconds", quantiles("ttft"), None, None),
        ("Time between tokens", "seconds", quantiles("itl"), None, None),
        ("Time in the queue", "seconds", quantiles("queue"), None, None),
    ]
    found: list[Block] = []
    for title, unit, lines, line_limit, top in plots:
        drawn = [line for line in lines if line.points]
        if not drawn or (unit == "per second" and not any(y for line in drawn for _, y in line.points)):
            continue
        picture = plot(drawn, unit, span, title=title, marks=marks, limit=line_limit, top=top)
        legend = tuple((f"c{index}", line.label) for index, line in enumerate(drawn)) if len(drawn) > 1 else ()
        found.append(Figure(title, picture, legend, tuple((line.label, summary(line, unit)) for line in drawn)))
    return found


def _points(pairs: Iterable[tuple[float, float | None]]) -> tuple[tuple[float, float], ...]:
    """Return those of the points that have a value."""
    return tuple((x, y) for x, y in pairs if y is not None)


def _near(engine: EngineRun) -> bool:
    """Return whether the batch came near its limit, so that the limit is worth a line in the plot."""
    highest = engine.curves["running"].highest if "running" in engine.curves else None
    return highest is not None and engine.limit is not None and highest >= engine.limit / 4


def summary(line: Line, unit: str) -> str:
    """Return a line as a text shows it: a row of characters, and from where to where it goes."""
    values = [y for _, y in line.points]
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "above all buckets"
    most = shown(max(values), unit)
    return f"{sparkline(values)} {shown(min(known), unit)} to {most}"


def marks_of(run: RunData, engine: EngineRun | None) -> tuple[Mark, ...]:
    """Return the stretches of warnings and critical findings, for one engine those that are about it or about none."""
    found = []
    for finding in run.findings:
        server = finding.labels.get("server", "")
        if finding.severity == "info" or (engine is not None and server not in ("", engine.server)):
            continue
        for begun, ended in run.times_of(finding):
            start, end = ((time - run.started) / 1000 for time in (begun, run.ended if ended is None else ended))
            text = f"{finding.id}, {clock_text(max(0.0, start))} to {clock_text(end)}"
            found.append(Mark(start, end, finding.severity, text))
    return tuple(found)


def _by_concurrency(busy: Sequence[Window], name: str) -> list[Block]:
    found = levels(busy)
    if not found:
        return []
    head = (
        "requests running",
        "for",
        "generated",
        "per request",
        "TTFT p50",
        "TTFT p95",
        "ITL p50",
        "ITL p95",
        "waiting",
    )
    rows = tuple(
        (
            level.text,
            seconds(level.seconds),
            with_unit(level.rate("generation_tokens"), "tokens/s"),
            with_unit(_per_request(level), "tokens/s"),
            *(_of_level(level, kind, share) for kind in ("ttft", "itl") for share in (0.5, 0.95)),
            number(level.whole.waiting),
        )
        for level in found
    )
    result: list[Block] = [Heading(f"Against concurrency{name}"), Table(head, rows, numbers_from=1)]
    if len(found) > 1:
        result.append(_level_plot(found, "Generated tokens per second", "tokens/s", (("all", _generated),)))
        for title, kind in (("Time between tokens", "itl"), ("Time to first token", "ttft")):
            kinds = tuple((f"p{round(share * 100)}", _asking(kind, share)) for share in (0.5, 0.95))
            result.append(_level_plot(found, title, "seconds", kinds))
    else:
        result.append(Text("The concurrency hardly varied: one level says nothing about a trend.", "quiet"))
    return [block for block in result if not isinstance(block, Figure) or block.svg]


def _generated(level: Level) -> float | None:
    return level.rate("generation_tokens")


def _asking(kind: str, share: float) -> Callable[[Level], float | None]:
    return lambda level: told(share, level.whole.histograms[kind]) if kind in level.whole.histograms else None


def _level_plot(
    found: Sequence[Level], title: str, unit: str, kinds: tuple[tuple[str, Callable[[Level], float | None]], ...]
) -> Figure:
    lines = []
    for label, ask in kinds:
        values = ((float(index), ask(level)) for index, level in enumerate(found))
        points = _points(values)
        if points:
            lines.append(Line(label, points))
    if not lines:
        return Figure(title, "")
    last = len(found) - 1
    svg = plot(
        lines,
        unit,
        (-0.3, last + 0.3),
        title=title,
        x_text=lambda value: found[int(value)].text if 0 <= value <= last else "",
        dots=True,
    )
    legend = tuple((f"c{index}", line.label) for index, line in enumerate(lines)) if len(lines) > 1 else ()
    return Figure(f"{title}, by requests running", svg, legend)


def _per_request(level: Level) -> float | None:
    value = level.rate("generation_tokens")
    return None if value is None or level.running <= 0 else value / level.running


def _of_level(level: Level, kind: str, share: float) -> str:
    known = level.whole.histograms.get(kind)
    return NONE if known is None else quantile_text(share, known)
