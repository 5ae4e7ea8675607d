"""Time: every reading of a clock in gpuwatch goes through a `Clock`, so that tests and replays own time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading


class Clock(Protocol):
    """Wall time in milliseconds, monotonic time in seconds, and an interruptible wait."""

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        ...

    def ahead(self) -> int:
        """Return the milliseconds that `now` is ahead of the machine, whose clock was set back; 0 where it was not."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait up to `seconds` for `event`; return whether it is set."""
        ...


class SystemClock:
    """The machine's clocks, made steady: wall time that never goes back and whose differences are true intervals.

    A jump forward (a suspended machine, a first NTP sync) is followed. A jump back is not: time goes on from where
    it was, because samples must keep their order and their distances; `ahead` is what to take off where the machine's
    own time is meant. A small drift is followed by a millisecond per reading.
    """

    _JUMP_MS = 1000

    def __init__(self) -> None:
        self._offset = time.time_ns() // 1_000_000 - self._ticks()

    @staticmethod
    def _ticks() -> int:
        return time.monotonic_ns() // 1_000_000

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        steady = self._ticks() + self._offset
        ahead = time.time_ns() // 1_000_000 - steady
        if ahead > self._JUMP_MS:
            self._offset += ahead
        elif 1 < abs(ahead) <= self._JUMP_MS:
            self._offset += 1 if ahead > 0 else -1
        return self._ticks() + self._offset

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        return time.monotonic()

    def ahead(self) -> int:
        """Return the milliseconds that `now` is ahead of the machine, whose clock was set back; 0 where it was not."""
        ahead = self._ticks() + self._offset - time.time_ns() // 1_000_000
        return ahead if ahead > self._JUMP_MS else 0

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait up to `seconds` for `event`; return whether it is set."""
        return event.wait(max(0.0, seconds))


class ManualClock:
    """A clock that stands still until it is moved. `wait` moves it and returns at once."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now
        self._monotonic = 0.0
        self._ahead = 0

    def now(self) -> int:
        """Return milliseconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._now += round(seconds * 1000)
        self._monotonic += seconds

    def set(self, now: int) -> None:
        """Set wall time; monotonic time moves by the difference, never backwards."""
        self._monotonic += max(0, now - self._now) / 1000
        self._now = now

    def ahead(self) -> int:
        """Return the milliseconds by which `step_back` has set back the machine's clock."""
        return self._ahead

    def step_back(self, seconds: float) -> None:
        """Set the machine's clock back; `now` goes on as that of `SystemClock` does."""
        self._ahead += round(seconds * 1000)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Move time forward by `seconds` and return whether `event` is set."""
        self.advance(max(0.0, seconds))
        return event.is_set()
