"""Figures of a run or a part of it, from the windows of its engines: rates, quantiles, and figures by concurrency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.report.data import Histogram, Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PLOTTED = 120
"""A plot over time has at most about this many points."""
SHORTEST_POINT = 10.0
"""Seconds of windows that one quantile in a plot is made of at least: those of fewer requests say little."""
SHORTEST_RATE = 4.0
"""Seconds of windows that one rate in a plot is made of at least."""


def quantile(share: float, histogram: Histogram) -> float | None:
    """Return a quantile as Prometheus' ``histogram_quantile`` does, or None where nothing was observed.

    Within a bucket the observations are taken as evenly spread. A quantile in the last bucket is infinite: all that is
    known is that it lies above the highest bound.
    """
    count = histogram.count
    if count <= 0:
        return None
    wanted = share * count
    lower_bound, lower_count = 0.0, 0.0
    for bound, cumulative in zip(histogram.bounds, histogram.counts, strict=True):
        if cumulative >= wanted and cumulative > lower_count:
            if math.isinf(bound):
                return math.inf
            if bound <= 0:
                return bound
            return lower_bound + (bound - lower_bound) * (wanted - lower_count) / (cumulative - lower_count)
        lower_bound, lower_count = bound, cumulative
    return math.inf


def at_most(share: float, histogram: Histogram) -> float | None:
    """Return the bound of the first bucket where a quantile lies in it: that it is no higher is all that is known.

    None: it lies in another bucket, or nothing was observed.
    """
    if histogram.count <= 0 or not histogram.bounds or histogram.counts[0] < share * histogram.count:
        return None
    bound = histogram.bounds[0]
    return bound if 0 < bound < math.inf and histogram.counts[0] > 0 else None


def told(share: float, histogram: Histogram) -> float | None:
    """Return a quantile as `quantile` does, None where it lies in the first bucket."""
    return None if at_most(share, histogram) is not None else quantile(share, histogram)


def mean(histogram: Histogram) -> float | None:
    """Return the mean of the observations, None where there are none."""
    return histogram.total / histogram.count if histogram.count > 0 else None


def merged(windows: Sequence[Window]) -> Window | None:
    """Return neighbouring windows as one, or None for none."""
    if not windows:
        return None
    counted: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    for window in windows:
        for name, value in window.counted.items():
            counted[name] = counted.get(name, 0.0) + value
        for name, histogram in window.histograms.items():
            histograms[name] = _added(histograms[name], histogram) if name in histograms else histogram
    return Window(
        windows[0].start,
        windows[-1].end,
        _time_mean(windows, "running"),
        _time_mean(windows, "waiting"),
        _time_mean(windows, "kv_usage"),
        counted,
        histograms,
    )


def added_seconds(windows: Iterable[Window]) -> float:
    """Return the length of all windows together, which need not be neighbours."""
    return sum(window.seconds for window in windows)


def rate(window: Window, counter: str, seconds: float | None = None) -> float | None:
    """Return the increase of a counter per second, None where the engine does not have it."""
    value = window.counted.get(counter)
    length = window.seconds if seconds is None else seconds
    return None if value is None or length <= 0 else value / length


def for_plot(windows: Sequence[Window], shortest: float = SHORTEST_POINT) -> tuple[Window, ...]:
    """Return windows joined to the points of a plot, each `shortest` seconds long, or as long as there is no gap."""
    if not windows:
        return ()
    length = max(shortest, (windows[-1].end - windows[0].start) / 1000 / PLOTTED)
    points: list[Window] = []
    group: list[Window] = []
    for window in windows:
        if group and window.start > group[-1].end:
            points += [joined for joined in (merged(group),) if joined is not None]
            group = []
        group.append(window)
        if (window.end - group[0].start) / 1000 >= 0.95 * length:
            points += [joined for joined in (merged(group),) if joined is not None]
            group = []
    points += [joined for joined in (merged(group),) if joined is not None]
    return tuple(points)


@dataclass(frozen=True, slots=True)
class Level:
    """What an engine did while `low` to `high` requests ran: all windows of that concurrency taken together."""

    low: int
    high: int
    seconds: float
    running: float
    windows: tuple[Window, ...]
    whole: Window

    @property
    def text(self) -> str:
        """The range as text."""
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"

    def rate(self, counter: str) -> float | None:
        """Return the increase of a counter per second of this level."""
        return rate(self.whole, counter, self.seconds)


def levels(windows: Sequence[Window], shortest: float = 5.0) -> tuple[Level, ...]:
    """Return the concurrency levels 1, 2, 3-4, 5-8, 9-16, … that lasted at least `shortest` seconds."""
    groups: dict[int, list[Window]] = {}
    for window in windows:
        if window.running is not None and window.running >= 0.5 and window.seconds > 0:
            groups.setdefault(max(0, math.ceil(math.log2(max(1.0, round(window.running))))), []).append(window)
    found = []
    for power in sorted(groups):
        members = tuple(groups[power])
        seconds = added_seconds(members)
        whole = merged(members)
        if whole is None or whole.running is None or seconds < shortest:
            continue
        low = 1 if power == 0 else 2 ** (power - 1) + 1
        found.append(Level(low, 2**power, seconds, whole.running, members, whole))
    return tuple(found)


def _added(first: Histogram, second: Histogram) -> Histogram:
    if first.bounds == second.bounds:
        counts = tuple(a + b for a, b in zip(first.counts, second.counts, strict=True))
        return Histogram(first.bounds, counts, first.total + second.total)
    bounds = tuple(sorted(set(first.bounds) & set(second.bounds)))
    one, other = (
        dict(zip(first.bounds, first.counts, strict=True)),
        dict(zip(second.bounds, second.counts, strict=True)),
    )
    return Histogram(bounds, tuple(one[bound] + other[bound] for bound in bounds), first.total + second.total)


def _time_mean(windows: Sequence[Window], name: str) -> float | None:
    known = [(getattr(window, name), window.seconds) for window in windows if getattr(window, name) is not None]
    weight = sum(seconds for _, seconds in known)
    if not known:
        return None
    if weight <= 0:
        return float(known[-1][0])
    return float(sum(value * seconds for value, seconds in known) / weight)
