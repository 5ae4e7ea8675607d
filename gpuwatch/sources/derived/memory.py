"""Peaks, steps and transients of one GPU's used memory over the last minute.

A prefill peak lives between two scrapes. The NVML worker therefore reads used memory at 10 Hz and hands over the
lowest, highest and last value per tick; this module keeps one minute of them and answers three questions.
"""

# ruff: noqa: PLR1730  # calls of min and max make the loops, run for each GPU and tick, four times as slow

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW_MS = 60_000
"""How far back peaks, steps and transients look."""
BURST_MS = 10_000
"""The stretch within which a step takes half of its memory at least; what grows steadily takes a sixth."""
HELD = 0.5
"""An engine that serves holds at least this share of what it uses at a peak: its weights and its pool."""


@dataclass(slots=True)
class Span:
    """Consecutive ticks with the same readings: first and last time in milliseconds, bytes."""

    first: int
    last: int
    low: float
    high: float
    used: float


@dataclass(slots=True)
class MemoryTrail:
    """One GPU's used memory of the last minute. Not thread-safe; times never go backwards."""

    spans: deque[Span] = field(default_factory=deque)
    serving_since: int | None = None
    engines: frozenset[str] = frozenset()
    emptied: int = -1
    """The last tick whose window held a level too low for an engine that serves."""

    def add(self, time: int, used: float, low: float, high: float) -> None:
        """Append one tick and forget what is older than the window."""
        spans = self.spans
        high, low = max(high, used), min(low, used)
        if spans and spans[-1].low == low and spans[-1].high == high and low == high:
            spans[-1].last = time
        else:
            spans.append(Span(time, time, low, high, used))
        while len(spans) > 1 and spans[0].last <= time - WINDOW_MS:
            spans.popleft()

    def serve(self, time: int, engines: frozenset[str], *, ready: bool) -> None:
        """Say which engines use the GPU and whether all of them answer and are awake.

        Loading weights, allocating the pool and waking up are steps too, but not the ones a prompt causes: a step
        counts only from the moment at which every engine on the GPU was ready, and starts anew when one comes or goes.
        """
        if not ready or not engines:
            self.serving_since = None
        elif self.serving_since is None or engines != self.engines:
            self.serving_since = time
        self.engines = engines

    def summary(self) -> Summary:
        """Return peak, step and transient of the window, in bytes.

        A step is the largest rise while engines served, None when none served. Where less than half of it came within
        `BURST_MS`, it was many small ones, and the step is the largest rise within that time. A transient is the height
        of the highest peak above the higher of the lowest levels before and after it, while engines served as well:
        memory that a caching allocator keeps after a peak is none, the next peak reuses it, nor is that of a start that
        failed or of an engine that slept. Not every engine says that it sleeps: where less than `HELD` of the peak was
        used in between, neither is known until that has left the window.
        """
        peak = max(span.high for span in self.spans)
        since = self.serving_since
        if since is None:
            return Summary(peak, None, None)
        spans = [span for span in self.spans if span.last >= since]
        if min(span.low for span in spans) < HELD * max(span.high for span in spans):
            self.emptied = spans[-1].last
        spans = [span for span in spans if span.last > self.emptied]
        return Summary(peak, _step(spans), _transient(spans)) if spans else Summary(peak, None, None)


def _transient(spans: Sequence[Span]) -> float:
    after: list[float] = []
    level = spans[-1].used
    for span in reversed(spans):
        # Within a tick the last reading comes after the highest one; the lowest may have come before it.
        if span.used < level:
            level = span.used
        after.append(level)
        if span.low < level:
            level = span.low
    transient, before = 0.0, spans[0].low
    for span in spans:
        level = after.pop()
        if before > level:
            level = before
        if span.high - level > transient:
            transient = span.high - level
        if span.low < before:
            before = span.low
    return transient


def _step(spans: Sequence[Span]) -> float:
    step, floor = 0.0, inf
    for span in spans:
        if span.high - floor > step:
            step = span.high - floor
        if span.low < floor:
            floor = span.low
    if step <= 0 or (burst := _burst(spans)) >= step / 2:
        return step
    return burst


def _burst(spans: Sequence[Span]) -> float:
    """Return the largest rise within `BURST_MS`, or from one span to the next where they are further apart."""
    burst = 0.0
    floors: deque[Span] = deque()  # those that may still be the lowest, the lowest first
    for span in spans:
        while len(floors) > 1 and floors[0].last < span.first - BURST_MS:
            floors.popleft()
        if floors and span.high - floors[0].low > burst:
            burst = span.high - floors[0].low
        while floors and floors[-1].low >= span.low:
            floors.pop()
        floors.append(span)
    return burst


class Summary(NamedTuple):
    """The last minute of one GPU's memory, in bytes."""

    peak: float
    step: float | None
    transient: float | None
