"""What the screen remembers by itself: pixels of its sparklines, last good rows, and when findings began.

Everything else about the past is asked from the feed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from gpuwatch.diagnosis.finding import Severity
    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.view.engines import Engine
    from gpuwatch.tui.view.findings import FindingKey
    from gpuwatch.tui.view.gpus import Gpu
    from gpuwatch.tui.view.table import Key

    Pixels: TypeAlias = "deque[tuple[int, float | None]]"

ENGINE_TRACES = (
    "kv_usage",
    "running",
    "waiting",
    "prompt_rate",
    "generation_rate",
    "preemption_rate",
    "eviction_rate",
    "ttft_p95",
    "itl_p95",
)
GPU_TRACES = ("gpu_memory_used", "gpu_busy", "gpu_power")
WIDEST = 240
"""Cells of the widest chart; twice as many ticks are kept."""
FORGET_SECONDS = 900.0
"""A GPU or engine that has been silent for longer is no longer shown with old figures."""


EPISODES_MS = 86_400_000
"""A finding that was over for longer is no longer listed among the earlier ones."""
MOST_EPISODES = 50
"""The most times that one finding is remembered to have fired."""


@dataclass(frozen=True, slots=True)
class Mark:
    """When a finding fired, in milliseconds; `until` is None while it lasts."""

    severity: Severity
    since: int
    until: int | None


class History:
    """The screen's own memory of snapshots; another host, the demo or a jump back starts it afresh.

    A replay that goes back to what is remembered changes nothing: the same figures would come again.
    """

    def __init__(self) -> None:
        self._traces: dict[tuple[Hashable, str], Pixels] = {}
        self._seen: dict[Hashable, int] = {}
        self._gpus: dict[Key, tuple[int, Gpu]] = {}
        self._engines: dict[Key, tuple[int, Engine]] = {}
        self._marks: dict[FindingKey, dict[int, Mark]] = {}
        self._time = 0
        self._origin: tuple[object, ...] = ()

    def _forget(self) -> None:
        """Start afresh."""
        self._traces.clear()
        self._seen.clear()
        self._gpus.clear()
        self._engines.clear()
        self._marks.clear()
        self._time = 0

    def record(self, snapshot: Snapshot, gpus: Sequence[Gpu], engines: Sequence[Engine]) -> None:
        """Remember one live snapshot and the rows made from it."""
        origin = (snapshot.mode, snapshot.host, snapshot.focus)
        again = snapshot.time <= self._time and self._knows(snapshot)
        if origin != self._origin or (snapshot.time < self._time and not again):
            self._forget()
        if snapshot.time == self._time or (again and origin == self._origin):
            return
        gap = round((snapshot.time - self._time) / 1000 / max(snapshot.interval, 0.05)) - 1 if self._time else 0
        for gpu in gpus:
            self._push(gpu.key, {name: gpu.get(name) for name in GPU_TRACES}, snapshot.time, gap)
            if gpu.get("gpu_memory_used") is not None and not gpu.problem:
                self._gpus[gpu.key] = (snapshot.time, gpu)
        for engine in engines:
            for rank in engine.ranks:
                self._push(rank.key, {name: rank.get(name) for name in ENGINE_TRACES}, snapshot.time, gap)
            if engine.ranks:
                self._engines[engine.key] = (snapshot.time, engine)
        self._push_gaps(snapshot.time, gap)
        self._mark(snapshot)
        self._close_marks(snapshot)
        self._time, self._origin = snapshot.time, origin

    def _knows(self, snapshot: Snapshot) -> bool:
        """Return whether a moment of a replay, but not its begin, is one that is remembered."""
        oldest = min((pixels[0][0] for pixels in self._traces.values() if pixels), default=self._time + 1)
        return snapshot.recording is not None and snapshot.recording.position > 0 and snapshot.time >= oldest

    def _mark(self, snapshot: Snapshot) -> None:
        """Remember when each finding began and ended; a finding that fires again gets a mark of its own."""
        for finding in snapshot.findings:
            if finding.state == "pending":
                continue
            begun = self._marks.setdefault(finding.key, {})
            until = (finding.until or snapshot.time) if finding.state == "resolved" else None
            old = begun.get(finding.since)
            if old is None or until is None or old.until is None:
                begun[finding.since] = Mark(finding.severity, finding.since, until)

    def _close_marks(self, snapshot: Snapshot) -> None:
        """End the marks of findings that are gone, and forget those that ended long ago."""
        present = {finding.key: finding.since for finding in snapshot.findings if finding.state == "firing"}
        horizon = snapshot.time - EPISODES_MS
        for key, begun in list(self._marks.items()):
            for since in sorted(begun)[:-MOST_EPISODES]:
                del begun[since]
            for since, mark in list(begun.items()):
                if mark.until is None and present.get(key) != since:
                    begun[since] = Mark(mark.severity, mark.since, snapshot.time)
                elif mark.until is not None and mark.until < horizon:
                    del begun[since]
            if not begun:
                del self._marks[key]

    def _push(self, thing: Hashable, figures: Mapping[str, float | None], time: int, gap: int) -> None:
        """Append one tick of each trace; missed ticks become gaps."""
        self._seen[thing] = time
        for name, value in figures.items():
            trace = self._traces.get((thing, name))
            if trace is None:
                trace = self._traces[thing, name] = deque(maxlen=2 * WIDEST)
            elif gap > 0:
                trace.extend((time, None) for _ in range(min(gap, 2 * WIDEST)))
            trace.append((time, value))

    def _push_gaps(self, time: int, gap: int) -> None:
        """Append a gap to the traces of what is not there now; forget what has been away for long."""
        for key in list(self._traces):
            seen = self._seen[key[0]]
            if (time - seen) / 1000 > FORGET_SECONDS:
                del self._traces[key]
            elif seen != time:
                self._traces[key].extend((time, None) for _ in range(min(gap + 1, 2 * WIDEST)))

    def trace(self, thing: Hashable, name: str, until: int, width: int) -> list[float | None]:
        """Return the last `width` ticks of a figure up to the time `until`."""
        pixels = self._traces.get((thing, name), ())
        return [value for time, value in pixels if time <= until][-width:]

    def marks(self) -> list[Mark]:
        """Return when findings fired, the oldest first."""
        return sorted((mark for begun in self._marks.values() for mark in begun.values()), key=lambda m: m.since)

    def episodes(self, key: FindingKey, before: int) -> tuple[Mark, ...]:
        """Return when a finding fired before the one that began at `before` (milliseconds), the newest first."""
        begun = self._marks.get(key, {})
        return tuple(begun[since] for since in sorted(begun, reverse=True) if since < before)

    def last_gpus(self) -> Mapping[Key, tuple[int, Gpu]]:
        """Return each GPU as it was when it last had figures, and when that was."""
        return self._gpus

    def last_engines(self) -> Mapping[Key, tuple[int, Engine]]:
        """Return each engine as it was when it last had figures, and when that was."""
        return self._engines
