"""A recording as OpenMetrics text, so that a Prometheus can be filled with it.

``promtool tsdb create-blocks-from openmetrics`` reads this. The series are those of a live run: the recording is
replayed through the pipeline, so that derived series and ``ALERTS`` are there too. The format has no stale markers: in
Prometheus a series that ended is seen for its lookback of five minutes more.
Format: https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
"""

from __future__ import annotations

import math
import re
from array import array
from typing import TYPE_CHECKING

from gpuwatch.model import NAME, label
from gpuwatch.pipeline.replay import Play
from gpuwatch.promql.nodes import quote
from gpuwatch.recording import Reader
from gpuwatch.series import METRICS
from gpuwatch.sources.files.read import playable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.model import Labels
    from gpuwatch.pipeline.core import Pipeline

_PART = re.compile(r"_(bucket|count|sum)$")
_ORDER = {"bucket": 0, "count": 1, "sum": 2}


class History:
    """Samples of many series over time, in the order they came.

    Args:
        step_ms: The least time between two samples of a series that are kept; 0 keeps all.
    """

    def __init__(self, step_ms: int = 0) -> None:
        self._step = step_ms
        self._times: dict[Labels, array[int]] = {}
        self._values: dict[Labels, array[float]] = {}
        self.moved = 0
        """Milliseconds by which the newest samples are later than they were recorded."""
        self.set_back: list[int] = []
        """Milliseconds by which the clock was set back, each time that it was."""

    def add(self, labels: Labels, time: int, value: float) -> None:
        """Keep a sample; `time` in milliseconds. One that is not newer than the series' last one is left out."""
        times = self._times.get(labels)
        if times is None:
            times = self._times[labels] = array("q")
            self._values[labels] = array("d")
        elif time <= times[-1] or time - times[-1] < self._step:
            return
        times.append(time)
        self._values[labels].append(value)

    def take(self, pipeline: Pipeline, time: int) -> None:
        """Keep what lives in the store of `pipeline` at `time`."""
        for labels, value, at in pipeline.store.newest(time):
            self.add(labels, at + self.moved, value)

    def went_back(self, back: int, pause: int) -> None:
        """Move what comes from now on behind what is there, `pause` milliseconds later: the clock was set back."""
        self.moved += back + pause
        self.set_back.append(back)

    @property
    def series(self) -> int:
        """The number of series."""
        return len(self._times)

    def lines(self) -> Iterator[str]:
        """Yield the text line by line, each with its line feed: families by name, and within a series by time."""
        families: dict[str, list[Labels]] = {}
        for labels in self._times:
            families.setdefault(_family(label(labels, NAME)), []).append(labels)
        for family in sorted(families):
            metric = METRICS.get(family)
            kind = metric.kind if metric is not None else "unknown"
            shown = family.removesuffix("_total") if kind == "counter" else family
            yield f"# TYPE {shown} {kind}\n"
            if metric is not None:
                yield f"# HELP {shown} {_escaped(metric.help)}\n"
            if kind == "histogram":
                yield from self._histograms(families[family])
            else:
                for labels in sorted(families[family]):
                    head = _head(labels)
                    for time, value in zip(self._times[labels], self._values[labels], strict=True):
                        yield _line(head, time, value)
        yield "# EOF\n"

    def _histograms(self, members: list[Labels]) -> Iterator[str]:
        """Yield histograms one after the other, and of each all buckets of a moment before those of the next."""
        groups: dict[Labels, list[tuple[int, float, Labels]]] = {}
        for labels in members:
            part = _PART.search(label(labels, NAME))
            bound = float(label(labels, "le").replace("Inf", "inf") or "inf")
            own = tuple(pair for pair in labels if pair[0] not in (NAME, "le"))
            groups.setdefault(own, []).append((_ORDER[part[1]] if part else 0, bound, labels))
        for own in sorted(groups):
            points = []
            for order, bound, labels in groups[own]:
                head = _head(labels)
                for time, value in zip(self._times[labels], self._values[labels], strict=True):
                    points.append((time, order, bound, head, value))
            points.sort(key=lambda point: point[:3])
            for time, _, _, head, value in points:
                yield _line(head, time, value)


def replayed(path: str | Path, rules: RuleSet, step_ms: int = 0) -> tuple[History, str]:
    """Replay a recording; return all its series, and why it ended early where it is damaged.

    Where the clock was set back, later times are moved on: a series goes on in time only.

    Raises:
        RecordingError: the file cannot be read or is no recording.
    """
    history = History(step_ms)
    with playable(path) as file:
        reader = Reader(file)
        play = Play(reader.header, rules)
        pause, before = max(1000, round(1000 * reader.header.interval)), None
        for tick in reader.ticks():
            play.tick(tick)
            if before is not None and tick.time < before:
                history.went_back(before - tick.time, pause)
            before = tick.time
            history.take(play.pipeline, tick.time)
    return history, reader.cut.replace(file, str(path))


def _family(name: str) -> str:
    """Return the family of a series: without the suffix that a part of a histogram has."""
    base = _PART.sub("", name)
    return base if base in METRICS and METRICS[base].kind == "histogram" else name


def _head(labels: Labels) -> str:
    inside = ",".join(f"{key}={quote(value)}" for key, value in labels if key != NAME)
    name = label(labels, NAME)
    return f"{name}{{{inside}}}" if inside else name


def _line(head: str, time: int, value: float) -> str:
    return f"{head} {_number(value)} {time / 1000:.3f}\n"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
