"""Playing a recording through the same pipeline: at its own pace for a screen, or as fast as it goes."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.pipeline.feed import Questions, Subscribers
from gpuwatch.recording import Reader, RecordingError, tick_times
from gpuwatch.snapshot import Recording, Snapshot

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.clock import Clock
    from gpuwatch.model import Absence, Fact
    from gpuwatch.pipeline.core import TickResult
    from gpuwatch.recording import Header, Tick
    from gpuwatch.snapshot import Mode, SourceState

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
LONGEST_GAP = 5.0
"""Seconds without a tick that a replay waits for; a longer gap of the recording is skipped."""
SLOWEST, FASTEST = 0.1, 100.0
BEHIND_SECONDS = 0.2
"""A replay that cannot keep its speed shows a snapshot this often, and leaves the others out."""
MOST_BEHIND_SECONDS = 1.0
"""What a replay is behind by more than this is never made up for."""
PROGRESS_SECONDS = 0.5
"""How often a jump forward says how far it has come."""


class Play:
    """The pipeline of one recording, tick by tick.

    Where time goes back (the clock was set between two runs that share a recording) a new pipeline goes on: the old
    one could not order its samples.
    """

    def __init__(self, header: Header, rules: RuleSet, mode: Mode = "replay") -> None:
        self._settings = Settings(header.host, mode, header.interval, header.history_ms)
        self._rules = rules
        self._pipeline: Pipeline | None = None
        self._time = 0

    @property
    def pipeline(self) -> Pipeline:
        """The present pipeline.

        Raises:
            LookupError: there was no tick yet.
        """
        if self._pipeline is None:
            raise LookupError("nothing was played yet")
        return self._pipeline

    def tick(self, tick: Tick) -> TickResult:
        """Evaluate the next tick of the recording."""
        if self._pipeline is None or tick.time < self._time:
            self._pipeline = Pipeline(self._settings, self._rules, tick.time)
        self._time = tick.time
        for target in tick.forgotten:
            self._pipeline.forget(target, tick.time)
        return self._pipeline.tick(tick.time, tick.batches)


def replay(source: str | Path | Reader, rules: RuleSet) -> Iterator[TickResult]:
    """Play a recording as fast as it goes and yield the result of every tick; a `Reader` knows afterwards what is cut.

    Raises:
        RecordingError: the file cannot be read or is no recording.
    """
    reader = source if isinstance(source, Reader) else Reader(source)
    play = Play(reader.header, rules)
    for tick in reader.ticks():
        yield play.tick(tick)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was there after a tick besides what the store still knows."""

    number: int
    result: TickResult
    sources: tuple[SourceState, ...]
    absent: tuple[Absence, ...]
    facts: tuple[Fact, ...]


class Replay:
    """Plays a recording for a screen, in a thread of its own; starts again at the end when `endless`.

    What was played within the history of the rules is kept, so that a step back is shown at once; a longer way back
    is played again from the start, as fast as it goes. Positions are seconds of the recording from its first tick.
    """

    def __init__(
        self, path: str | Path, rules: RuleSet, clock: Clock, *, mode: Mode = "replay", endless: bool = False
    ) -> None:
        """Open the recording.

        Raises:
            RecordingError: the file cannot be read or is no recording.
        """
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
        self._reader = Reader(path)
        self._reader.close()
        self._header = self._reader.header
        self._cut = ""
        self._wish: float | None = None
        self._positions: list[float] = []
        self._begin()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    # What others may do, from any thread

    def start(self) -> None:
        """Start playing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop playing; waits at most two seconds."""
        self._stop.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call `callback` with every snapshot; the returned function ends that."""
        return self.subscribers.add(callback)

    def at(self, time: int) -> Future[Snapshot]:
        """Ask for the snapshot of a past moment (milliseconds) of what was played so far."""
        return self.questions.put(lambda: self._play.pipeline.at(time))

    def pause(self, paused: bool) -> None:
        """Halt, or go on."""
        self._paused = paused
        self._wake()

    def set_speed(self, speed: float) -> None:
        """Play `speed` times as fast as it was recorded, within 0.1 and 100."""
        self.speed = max(SLOWEST, min(FASTEST, speed))
        self._wake()

    def seek(self, position: float) -> None:
        """Go to a position; the newest wish wins."""
        self._wish = max(0.0, position)
        self._wake()

    def show_rule_readings(self, wanted: bool) -> None:
        """Say whether snapshots carry the present value of each rule's comparisons."""
        self._rule_readings = wanted

    def _wake(self) -> None:
        self.questions.put(lambda: None)

    # The thread

    def _run(self) -> None:
        try:
            self._rewind()
            self._positions = _positions(tick_times(self.path))
        except RecordingError as error:  # removed since it was opened
            self._give_up(error)
        while not self._stop.is_set():
            try:
                self._advance()
            except RecordingError as error:
                self._give_up(error)
            except Exception:
                log.exception("a tick failed")
        self._reader.close()

    def _give_up(self, error: RecordingError) -> None:
        """Say why nothing more can be read."""
        self._cut, self._ended = str(error), True
        self._publish()

    def _advance(self) -> None:
        """Do the next thing there is to do: a jump, nothing while halted, or the next tick."""
        wish, self._wish = self._wish, None
        if wish is not None:
            self._jump(wish)
        elif self._ended or (self._paused and self._shown >= 0):
            self.questions.answer_for(0.25)
            self._due = self.clock.monotonic()
        else:
            self._step()

    def _rewind(self) -> None:
        """Stand before the first tick."""
        self._reader.close()
        self._reader = Reader(self.path)
        self._begin()

    def _begin(self) -> None:
        self._ticks = self._reader.ticks()
        self._play = Play(self._header, self.rules, self.mode)
        self._next: Tick | None = None
        self._head = -1  # number of the newest tick that was evaluated
        self._shown = -1  # number of the tick on the screen
        self._seen: deque[_Seen] = deque()
        self._ended = False
        self._due = self.clock.monotonic()
        self._published = self._due - BEHIND_SECONDS

    def _step(self) -> None:
        """Show the next tick when its time has come."""
        number = self._shown + 1
        if not self._there(number):
            self._end()
            return
        gap = min(self._positions[number] - self._positions[number - 1], LONGEST_GAP) if number else 0.0
        if not self._wait(gap):
            return
        if number > self._head:
            self._evaluate()
        self._shown = number
        now = self.clock.monotonic()
        if now - self._due < BEHIND_SECONDS or now - self._published >= BEHIND_SECONDS:
            self._publish()
        self._due = max(self._due, now - MOST_BEHIND_SECONDS)

    def _there(self, number: int) -> bool:
        """Whether there is a tick with this number; the next one to be evaluated is read."""
        if number <= self._head:
            return True
        if self._next is None:
            self._next = next(self._ticks, None)
        if self._next is None:
            self._cut = self._reader.cut
            del self._positions[self._head + 1 :]
            return False
        while len(self._positions) <= number:  # written since it was measured
            self._positions.append(self._positions[-1] + self._header.interval if self._positions else 0.0)
        return True

    def _evaluate(self) -> None:
        """Evaluate the tick that was read, and keep what it found as long as the rules' history goes back."""
        tick, self._next = self._next, None
        assert tick is not None
        self._head += 1
        if self._seen and tick.time < self._seen[-1].result.time:
            self._seen.clear()  # another pipeline goes on, which does not know what was before
        result = self._play.tick(tick)
        pipeline = self._play.pipeline
        self._seen.append(
            _Seen(self._head, result, pipeline.source_states(tick.time), pipeline.absent, pipeline.facts.all())
        )
        while self._seen[0].result.time <= tick.time - self._header.history_ms:
            self._seen.popleft()

    def _wait(self, seconds: float) -> bool:
        """Let `seconds` of the recording pass at the present speed; return whether nothing else was wished meanwhile.

        `_due` is when the tick on the screen was due, and then when the next one is: what came late does not make the
        next one late.
        """
        left, before = seconds, self._due
        while not self._stop.is_set():
            now = self.clock.monotonic()
            left -= (now - before) * self.speed
            before = now
            if left <= 0:
                self._due = now + left / self.speed
                return True
            self.questions.answer_for(min(0.05, left / self.speed))
            if self._wish is not None or self._paused:
                self._due = self.clock.monotonic()
                return False
        return False

    def _jump(self, position: float) -> None:
        """Go to a position and show it; a newer wish ends the way there."""
        number = max(bisect_right(self._positions, position + 1e-6) - 1, 0)
        if number <= self._head and (not self._seen or self._seen[0].number > number):
            self._rewind()
        said = self.clock.monotonic()
        while self._head < number and self._there(self._head + 1):
            self._evaluate()
            self._shown = self._head
            self.questions.answer_for(0)
            if self._stop.is_set() or self._wish is not None:
                return
            if self.clock.monotonic() - said > PROGRESS_SECONDS:
                self._publish()
                said = self.clock.monotonic()
        self._shown = min(number, self._head)
        self._ended = False
        self._due = self.clock.monotonic()
        if self._shown >= 0:
            self._publish()

    def _end(self) -> None:
        """Begin again, or say that nothing follows, and why where the recording is damaged."""
        if self._endless and self._head >= 0:
            self._rewind()
            return
        self._ended = True
        self._publish()

    # Snapshots

    def _position(self) -> Recording:
        length = self._positions[-1] if self._positions else 0.0
        position = self._positions[self._shown] if 0 <= self._shown < len(self._positions) else 0.0
        return Recording(
            self.path,
            error=self._cut if self._ended else "",
            position=position,
            length=length,
            ended=self._ended,
            speed=self.speed,
        )

    def _publish(self) -> None:
        if self._stop.is_set() or not self.subscribers:
            return
        self.subscribers.publish(self._snapshot())
        self._published = self.clock.monotonic()

    def _snapshot(self) -> Snapshot:
        if not self._seen:
            return self._nothing()
        seen = next((item for item in reversed(self._seen) if item.number == self._shown), self._seen[-1])
        whole = self._play.pipeline.snapshot(seen.result, rules=self._rule_readings, recording=self._position())
        if seen.number == self._head:
            return whole
        return replace(whole, sources=seen.sources, absent=seen.absent, facts=seen.facts)

    def _nothing(self) -> Snapshot:
        """Return what is shown of a recording without a tick."""
        cut, made = self._cut, self._header.created
        error = f"holds no complete tick{': ' if cut else ''}{cut.removeprefix(f'{self.path}: ')}"
        position = replace(self._position(), error=error)
        header = self._header
        return Snapshot(made, made, header.host, self.mode, header.interval, recording=position)


def _positions(times: array[int]) -> list[float]:
    """Return the seconds from the first tick to each; where time goes back none passes."""
    positions: list[float] = []
    at = 0
    for number, time in enumerate(times):
        if number:
            at += max(0, time - times[number - 1])
        positions.append(at / 1000)
    return positions
