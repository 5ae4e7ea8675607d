"""What engines did in each stretch of a recording: increases of their counters and histograms, means of their gauges.

Increases survive a counter that starts anew, and belong to the true time between two samples. Where nothing was sampled
for long, nobody knows when the increase came: it belongs to no window.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.model import NAME
from gpuwatch.report.data import COUNTERS, Curve, Histogram, Window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.model import Batch, Labels

SHORTEST_MS = 2000
"""Least length of a window."""
MOST_WINDOWS = 720
"""When there are more windows than this, neighbours become one."""
SHORTEST_HOLE_MS = 10_000
HOLE_INTERVALS = 5
"""A stretch without a sample of so many intervals, and at least 10 s, is a hole."""
MOST_POINTS = 480
"""A curve is thinned to the lowest and highest value of this many stretches."""

_PREFIX = "gpuwatch_engine_"
_GAUGES = {"requests_running": "running", "requests_waiting": "waiting", "kv_cache_usage_ratio": "kv_usage"}
_COUNTED = {
    "prompt_tokens_total": "prompt_tokens",
    "generation_tokens_total": "generation_tokens",
    "requests_finished_total": "finished",
    "preemptions_total": "preemptions",
    "prefix_cache_queries_total": "prefix_queries",
    "prefix_cache_hits_total": "prefix_hits",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "ttft",
    "inter_token_latency_seconds": "itl",
    "e2e_latency_seconds": "e2e",
    "queue_time_seconds": "queue",
    "prompt_length_tokens": "prompt_length",
    "generation_length_tokens": "generation_length",
}
EngineKey: TypeAlias = tuple[str, str, str, str]
"""Server, data-parallel rank, engine kind, model name."""
Part: TypeAlias = tuple[str, float]
"""A counter or histogram, and of a histogram the upper bound; -1 is its sum, and 0 a plain counter."""
_SUM = -1.0


def longest_gap(interval: float) -> int:
    """Return the most milliseconds between two samples that belong together; `interval` in seconds."""
    return max(SHORTEST_HOLE_MS, round(HOLE_INTERVALS * 1000 * interval))


@dataclass(slots=True)
class _Sums:
    """A window in the making."""

    start: int
    end: int
    counted: dict[Part, float] = field(default_factory=dict)
    gauges: dict[str, tuple[float, int]] = field(default_factory=dict)

    def join(self, later: _Sums) -> None:
        self.end = later.end
        for part, value in later.counted.items():
            self.counted[part] = self.counted.get(part, 0.0) + value
        for name, (total, number) in later.gauges.items():
            before = self.gauges.get(name, (0.0, 0))
            self.gauges[name] = (before[0] + total, before[1] + number)


class Points:
    """A gauge as it was sampled."""

    def __init__(self) -> None:
        self._times: array[int] = array("q")
        self._values: array[float] = array("d")
        self._sum = 0.0

    def add(self, time: int, value: float) -> None:
        """Keep a sample; one that is no number is left out."""
        if math.isfinite(value):
            self._times.append(time)
            self._values.append(value)
            self._sum += value

    @property
    def mean(self) -> float | None:
        """The mean of all samples, None where there are none. That of a thinned curve is one of extremes."""
        return self._sum / len(self._values) if self._values else None

    def curve(self) -> Curve:
        """Return the curve: all points, or of each stretch the lowest and the highest."""
        count = len(self._times)
        if count <= 2 * MOST_POINTS:
            return Curve(tuple(self._times), tuple(self._values))
        first, length = self._times[0], self._times[-1] - self._times[0] + 1
        kept: dict[int, list[int]] = {}
        for index in range(count):
            place = (self._times[index] - first) * MOST_POINTS // length
            extremes = kept.setdefault(place, [index, index])
            if self._values[index] < self._values[extremes[0]]:
                extremes[0] = index
            if self._values[index] > self._values[extremes[1]]:
                extremes[1] = index
        chosen = sorted({index for extremes in kept.values() for index in extremes})
        return Curve(tuple(self._times[index] for index in chosen), tuple(self._values[index] for index in chosen))


class EngineBook:
    """Everything that is kept of one engine.

    Args:
        width_ms: Length of a window.
        gap_ms: Most milliseconds between two samples that belong together.
        since: When the server was last seen without any series of this engine: its counters begin at 0 then. None:
            they may have counted before.
    """

    def __init__(self, width_ms: int, gap_ms: int, since: int | None = None) -> None:
        self.points = {name: Points() for name in _GAUGES.values()}
        self.holes: list[tuple[int, int]] = []
        """From and until, where nothing was sampled for longer than `gap_ms`."""
        self._width = width_ms
        self._gap = gap_ms
        self._last: dict[Labels, float] = {}
        self._seen = since
        self._known: set[Part] = set()
        self._windows: list[_Sums] = []

    def take(self, time: int, rows: Sequence[tuple[int, Labels, Part]], values: Sequence[float]) -> None:
        """Take in the samples of one page at `time`: (place of the value, series, what it is)."""
        if self._seen is not None and time - self._seen > self._gap:
            self.holes.append((self._seen, time))
            self._last.clear()
            self._seen = None
        window = self._window(time)
        gauges: dict[str, float] = {}
        for row, labels, part in rows:
            value = values[row]
            if part[0] in self.points:
                gauges[part[0]] = gauges.get(part[0], 0.0) + value
                continue
            self._known.add(part)
            if not math.isfinite(value):
                continue
            # What was not there in the sample before appears with its first event: it has counted since then.
            before = self._last.get(labels, 0.0 if self._seen is not None else None)
            self._last[labels] = value
            if before is not None and value != before:
                increase = value - before if value > before else value
                window.counted[part] = window.counted.get(part, 0.0) + increase
        for name, value in gauges.items():
            self.points[name].add(time, value)
            if math.isfinite(value):
                total, number = window.gauges.get(name, (0.0, 0))
                window.gauges[name] = (total + value, number + 1)
        window.end = self._seen = time

    def windows(self) -> tuple[Window, ...]:
        """Return the finished windows; a last one of less than half the length of the others is part of the one before.

        After a hole there is no neighbour, and it stands alone.
        """
        done = list(self._windows)
        if len(done) > 1 and done[-1].end - done[-1].start < self._width / 2 and done[-1].start == done[-2].end:
            short, before = done.pop(), done.pop()
            whole = _Sums(before.start, before.end, dict(before.counted), dict(before.gauges))
            whole.join(short)
            done.append(whole)
        return tuple(self._finished(window) for window in done if window.end > window.start)

    def _window(self, time: int) -> _Sums:
        start = self._seen if self._seen is not None else time
        if not self._windows:
            self._windows.append(_Sums(start, time))
        elif start - self._windows[-1].start >= self._width or start > self._windows[-1].end:
            if len(self._windows) >= MOST_WINDOWS:
                self._halve()
            self._windows.append(_Sums(start, time))
        return self._windows[-1]

    def _halve(self) -> None:
        """Join every second window to the one before it, unless there is a hole between the two."""
        kept: list[_Sums] = []
        alone = False
        for window in self._windows:
            if alone and window.start == kept[-1].end:
                kept[-1].join(window)
                alone = False
            else:
                kept.append(window)
                alone = True
        if len(kept) < len(self._windows):
            self._width *= 2
        self._windows = kept

    def _finished(self, sums: _Sums) -> Window:
        means = {name: total / number for name, (total, number) in sums.gauges.items()}
        counted = {name: sums.counted.get((name, 0.0), 0.0) for name in COUNTERS if (name, 0.0) in self._known}
        histograms = {}
        for name in _HISTOGRAMS.values():
            bounds = sorted(bound for kind, bound in self._known if kind == name and bound != _SUM)
            if bounds and math.isinf(bounds[-1]):
                counts = tuple(sums.counted.get((name, bound), 0.0) for bound in bounds)
                histograms[name] = Histogram(tuple(bounds), counts, sums.counted.get((name, _SUM), 0.0))
        return Window(
            sums.start,
            sums.end,
            means.get("running"),
            means.get("waiting"),
            means.get("kv_usage"),
            counted,
            histograms,
        )


def rows_of(batch: Batch) -> dict[EngineKey, list[tuple[int, Labels, Part]]]:
    """Return for each engine of a batch which values a report keeps: (place of the value, series, what it is)."""
    found: dict[EngineKey, list[tuple[int, Labels, Part]]] = {}
    for row, labels in enumerate(batch.keys):
        pairs = dict(labels)
        part = _part(pairs)
        if part is not None:
            engine = tuple(pairs.get(key, "") for key in ("server", "dp_rank", "engine_kind", "model_name"))
            found.setdefault(engine, []).append((row, labels, part))  # type: ignore[arg-type]  # four texts
    return found


def _part(pairs: Mapping[str, str]) -> Part | None:
    name = pairs[NAME]
    if not name.startswith(_PREFIX) or "server" not in pairs:
        return None
    name = name[len(_PREFIX) :]
    if name in _GAUGES:
        return _GAUGES[name], 0.0
    if name in _COUNTED:
        return _COUNTED[name], 0.0
    base, _, kind = name.rpartition("_")
    if base not in _HISTOGRAMS or kind not in ("bucket", "sum"):
        return None
    return _HISTOGRAMS[base], float(pairs["le"].replace("Inf", "inf")) if kind == "bucket" else _SUM
