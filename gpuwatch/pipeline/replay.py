"""Playing a recording through the same pipeline: at its own pace for a screen, or as fast as it goes."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.pipeline.feed import Questions, Subscribers
from gpuwatch.recording import Reader
from gpuwatch.snapshot import Recording, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.clock import Clock
    from gpuwatch.pipeline.core import TickResult
    from gpuwatch.snapshot import Mode

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
LONGEST_GAP = 5.0
"""Seconds without a tick that a replay waits for; a longer gap of the recording is skipped."""

HISTORY_MS = 900_000


def replay(path: str | Path, rules: RuleSet) -> Iterator[TickResult]:
    """Play a recording as fast as it goes and yield the result of every tick.

    Raises:
        RecordingError: the file cannot be read or is no recording.
    """
    for _, result in played(Reader(path), rules):
        yield result


def played(reader: Reader, rules: RuleSet) -> Iterator[tuple[Pipeline, TickResult]]:
    """Play what `reader` reads as fast as it goes; yield the pipeline and its result after every tick."""
    pipeline: Pipeline | None = None
    for tick in reader.ticks():
        if pipeline is None:
            settings = Settings(reader.header.host, "replay", reader.header.interval, HISTORY_MS)
            pipeline = Pipeline(settings, rules, tick.time)
        yield pipeline, pipeline.tick(tick.time, tick.batches)


class Replay:
    """Plays a recording for a screen, in a thread of its own; starts again at the end when `endless`."""

    def __init__(
        self, path: str | Path, rules: RuleSet, clock: Clock, *, mode: Mode = "replay", endless: bool = False
    ) -> None:
        self.path = str(path)
        self.rules = rules
        self.clock = clock
        self.mode = mode
        self.subscribers = Subscribers()
        self.questions = Questions()
        self.speed = 1.0
        self._endless = endless
        self._paused = False
        self._rule_readings = False
        reader = Reader(path)
        reader.close()
        self._header = reader.header
        self._length = 0.0
        self._pipeline: Pipeline | None = None
        self._last: TickResult | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    def start(self) -> None:
        """Start playing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop playing; waits at most two seconds."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call `callback` with every snapshot; the returned function ends that."""
        return self.subscribers.add(callback)

    def at(self, time: int) -> Future[Snapshot]:
        """Ask for the snapshot of a past moment (milliseconds) of what was played so far."""
        return self.questions.put(lambda: self._past(time))

    def pause(self, paused: bool) -> None:
        """Halt, or go on."""
        self._paused = paused

    def set_speed(self, speed: float) -> None:
        """Play `speed` times as fast as it was recorded."""
        self.speed = max(0.1, min(100.0, speed))

    def show_rule_readings(self, wanted: bool) -> None:
        """Say whether snapshots carry the present value of each rule's comparisons."""
        self._rule_readings = wanted

    def _past(self, time: int) -> Snapshot:
        if self._pipeline is None:
            raise LookupError("nothing was played yet")
        return self._pipeline.at(time)

    def _run(self) -> None:
        self._length = self._measure()
        while not self._stop.is_set():
            cut = self._play_once()
            if self._last is None or not self._endless:
                self._end(cut)
                break
        while not self._stop.is_set():
            self.questions.answer_for(0.25)

    def _measure(self) -> float:
        times = [tick.time for tick in Reader(self.path).ticks()]
        return (times[-1] - times[0]) / 1000 if times else 0.0

    def _end(self, cut: str) -> None:
        """Say that nothing follows, and why where the recording is damaged."""
        if self._stop.is_set():
            return
        position = Recording(self.path, error=cut, position=self._length, length=self._length, ended=True)
        if self._last is not None and self._pipeline is not None:
            last = self._pipeline.snapshot(self._last, rules=self._rule_readings, recording=position)
        else:
            error = f"holds no complete tick{': ' if cut else ''}{cut.removeprefix(f'{self.path}: ')}"
            made = self._header.created
            last = Snapshot(
                made,
                made,
                self._header.host,
                self.mode,
                self._header.interval,
                recording=replace(position, error=error),
            )
        self.subscribers.publish(last)

    def _play_once(self) -> str:
        """Play from the start to the end; return why the recording is cut, if it is."""
        first = last = 0
        reader = Reader(self.path)
        for tick in reader.ticks():
            if self._pipeline is None or not first:
                settings = Settings(self._header.host, self.mode, self._header.interval, HISTORY_MS)
                self._pipeline = Pipeline(settings, self.rules, tick.time)
                first = last = tick.time
            self._wait((tick.time - last) / 1000)
            if self._stop.is_set():
                reader.close()
                return ""
            last = tick.time
            try:
                result = self._last = self._pipeline.tick(tick.time, tick.batches)
                position = Recording(self.path, position=(tick.time - first) / 1000, length=self._length)
                if self.subscribers:
                    self.subscribers.publish(
                        self._pipeline.snapshot(result, rules=self._rule_readings, recording=position)
                    )
            except Exception:
                log.exception("a tick failed")
        return reader.cut

    def _wait(self, seconds: float) -> None:
        """Let the recorded `seconds` pass at the present speed, answering questions meanwhile."""
        left = min(seconds, LONGEST_GAP)
        before = self.clock.monotonic()
        while left > 0 and not self._stop.is_set():
            self.questions.answer_for(min(0.05, left / self.speed))
            now = self.clock.monotonic()
            if not self._paused:
                left -= (now - before) * self.speed
            before = now
