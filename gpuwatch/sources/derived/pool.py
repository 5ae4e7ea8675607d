"""Evictions that are seen in the KV pool itself, where the places of the running batch do not show them.

A prompt that is computed in chunks is admitted as soon as its first chunk fits. When the pool is full before the
prompt is done, it is thrown out and admitted again at once: on the next page as many run and wait as before. But what
it had computed is gone from the pool, and none of the engine's counters ever told of it.

Blocks are also freed when a request ends, when a client goes away, when blocks leave a sliding window, and when a KV
cache has been handed over to another engine. So a fall of what the pool holds is an eviction only if

- it is more than the blocks that running requests hold in part, and a notable share of the pool;
- no request finished on either of the two pages, nor on the one before: the front end may see an end a page earlier,
  and no fewer requests are open than before;
- the pool was at its end: it grows at a speed that would have filled it by then;
- half of what is gone was never told of by the counters of prompt and generation tokens: a prompt that was computed
  in part, or again. What a request holds that has its first token was told of;
- no prompt got its first token on these pages, nor soon after (`engine.LASTING_MS`): at the end of a prompt, its
  tokens are told of and blocks that have left a sliding window are freed;
- no such fall was seen while there was room in the pool (`SPOILT_MS`): where there was one, the engine frees blocks
  for another reason, or its clients give up and send again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

ROOM = 0.9
"""A pool that is filled to less than this when it falls threw nothing out."""
FULL = 0.98
"""A pool that is filled to this, or grew fast enough to be, may have thrown a request out."""
HIGH = 0.7
"""KV usage on the page before an eviction is at least this, however far apart the pages are."""
SHARE = 0.01
"""A fall by less than this share of the pool is none."""
BLOCKS_PER_REQUEST = 2
"""Running requests free and take so many blocks in the course of things."""
UNTOLD = 0.5
"""So much of what is gone must have been computed without being told of."""
SPOILT_MS = 600_000
"""How long a fall while there was room forbids the reading of falls."""
SPEED_WINDOW_MS = 60_000
"""How long the speed at which the pool filled is remembered, to tell that there was room in it."""
RECENT = 2
"""Falls are taken for evictions only where the pool filled fast enough in so many gaps between pages before it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """What is held in the pool at one scrape, and what the counters have told of by then.

    `used` and `size` are blocks, `untold` is tokens held less tokens counted, whose zero means nothing.
    """

    time: int
    running: float
    open: float
    finished: float
    prompt: float
    untold: float
    used: float
    size: float
    block: float

    @property
    def usage(self) -> float:
        """Return the used share of the pool."""
        return self.used / self.size


@dataclass(slots=True)
class PoolTrail:
    """The pool of one engine across scrapes. Times in milliseconds."""

    _last: Pool | None = None
    _before: Pool | None = None
    _lowest: float = 0.0
    _speeds: deque[tuple[int, float]] = field(default_factory=deque)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _spoilt_at: int | None = None

    def forget(self) -> None:
        """Start again: the engine was restarted, or its page was not seen for long."""
        self._last = self._before = self._spoilt_at = None
        self._speeds.clear()
        self._recent.clear()

    def update(self, pool: Pool | None) -> bool | None:
        """Take the next page; return whether a fall to it seems an eviction, None where it fell without need.

        Either holds only if no prompt gets its first token soon after; `spoil` is told of the latter then.
        """
        before, last = self._before, self._last
        self._before, self._last = last, pool
        if pool is None:
            return False
        if last is None:
            self._lowest = pool.untold
            return False
        gap = (pool.time - last.time) / 1000
        most = last.usage + self._speed(pool.time) * gap
        reach = last.usage + max(self._recent, default=0.0) * gap
        untold = last.untold - self._lowest
        self._lowest = min(self._lowest, pool.untold)
        if gap > 0:
            self._note_speed(pool.time, max(0.0, (pool.used - last.used) / pool.size / gap))
        if before is None or not _fell(before, last, pool) or untold < UNTOLD * (last.used - pool.used) * pool.block:
            return False
        if most < ROOM:
            return None
        return last.usage >= HIGH and reach >= FULL and not self._is_spoilt(pool.time)

    def spoil(self, time: int) -> None:
        """Note that the pool fell at `time` although there was room in it."""
        self._spoilt_at = time

    def _is_spoilt(self, time: int) -> bool:
        return self._spoilt_at is not None and time - self._spoilt_at < SPOILT_MS

    def _speed(self, time: int) -> float:
        """Return the most that the pool filled in a second of late, as a share of it."""
        while self._speeds and self._speeds[0][0] <= time - SPEED_WINDOW_MS:
            self._speeds.popleft()
        return self._speeds[0][1] if self._speeds else 0.0

    def _note_speed(self, time: int, speed: float) -> None:
        while self._speeds and self._speeds[-1][1] <= speed:
            self._speeds.pop()
        self._speeds.append((time, speed))
        self._recent.append(speed)


def _fell(before: Pool, last: Pool, pool: Pool) -> bool:
    """Return whether the pool lost more than requests free as they run, while nothing ended and nobody went away."""
    fall = last.used - pool.used
    usual = BLOCKS_PER_REQUEST * (last.running + 1)
    return (
        fall > max(usual, SHARE * pool.size)
        and before.finished == pool.finished
        and before.prompt == pool.prompt
        and pool.open >= last.open
        and pool.running > 0
    )
