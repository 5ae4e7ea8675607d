"""Requests of one length that are all sent at the same moment, and held until all of them generate."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.probes.meter import watched
from gpuwatch.probes.wave_judge import Seen, full_at, judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatch.probes.exchange import Reply
    from gpuwatch.probes.limits import Pool
    from gpuwatch.probes.meter import Reading
    from gpuwatch.probes.point import Point
    from gpuwatch.probes.run import Run

MOST_HELD = 1024
"""Tokens that a request generates at most while it waits for the others."""
LINGER_SECONDS = 0.5
"""How long all requests are held at most when all are there, until the metrics page was looked at."""


class _Hold:
    """Lets requests end together: none before all of them have generated `output` tokens, or have failed."""

    def __init__(self, requests: int, output: int, linger: float) -> None:
        self._missing = set(range(requests))
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._output, self._linger = output, linger
        self._lock = threading.Lock()
        self._together: float | None = None
        self.poke = threading.Event()
        self.over, self.looked = False, False
        """Whether a request has ended, and whether the page was looked at when all were there."""

    def enough(self, index: int) -> Callable[[int], bool]:
        def check(tokens: int) -> bool:
            if tokens >= self._output:
                self.arrive(index)
            with self._lock:
                self._begun.add(index)
                at = self._together
            return at is not None and tokens >= self._output and time.monotonic() >= at + self._linger

        return check

    def noticed(self, index: int) -> Callable[[int], bool]:
        """Return what holds nothing and ends nothing, and has the page looked at once all were there."""

        def check(tokens: int) -> bool:
            if tokens >= min(2, self._output):  # the page shows the step before: the prompt is whole in it then
                self.arrive(index)
            return False

        return check

    def ended(self, index: int) -> None:
        """Take note of the end of a request."""
        with self._lock:
            self.over = True
            self._ended.add(index)
        self.arrive(index)

    def generating(self) -> int:
        """Return how many requests have a token and no end yet."""
        with self._lock:
            return len(self._begun - self._ended)

    def arrive(self, index: int) -> None:
        with self._lock:
            self._missing.discard(index)
            if not self._missing and self._together is None:
                self._together = time.monotonic()
                self.poke.set()

    def seen(self, began: float, *, read: bool) -> None:
        """Take note of a look at the page that is over; one that began when all were there is enough."""
        with self._lock:
            if self._together is not None and began >= self._together:
                self._linger = 0.0
                self.looked = self.looked or (read and not self.over)

    def give_up(self) -> None:
        """Hold no longer: it is certain that not all will be there at the same time."""
        with self._lock:
            if self._together is None:
                self._together = -math.inf


class _Watch:
    """Sees why requests wait, and ends the holding when it is certain that the pool is too small.

    It is after a preemption, or when two looks in a row show requests that wait and no room for one of them. A prompt
    takes its room of the pool bit by bit; only when all that run generate does the page show what they hold. For
    `seats` and `beside` see `wave_judge.Seen`.

    Args:
        hold: Of the wave.
        pool: The KV pool, where it is known.
        tokens: Prompt length.
        answer: Most tokens that a request may generate; SGLang admits one only where they would fit as well.
        preempted: Preemptions before the wave.
    """

    def __init__(self, hold: _Hold, pool: Pool | None, tokens: int, answer: int, preempted: float | None) -> None:
        self._hold, self._pool, self._preempted = hold, pool, preempted
        self._tokens, self._answer = tokens, answer
        self._full_before, self._ran_before = False, 0.0
        self.seats: float | None = None
        self.beside: float | None = None

    def look(self, reading: Reading | None, began: float) -> None:
        """Take one look at the page; `began` is the monotonic time before it, None a page that was not read."""
        generating = self._hold.generating()
        self._hold.seen(began, read=reading is not None)
        if reading is None:
            return
        preempted = reading.total("preemptions_total")
        more = preempted is not None and self._preempted is not None and preempted > self._preempted
        waiting, running = reading.total("requests_waiting"), reading.total("requests_running") or 0.0
        if self._hold.looked:
            self.beside = max(running, self.beside or 0.0)
        full = bool(waiting) and self._full(reading.least("kv_cache_usage_ratio"), self._tokens) is True
        if more or (full and self._full_before):
            self._hold.give_up()
        self._full_before = full
        further = self._tokens + (1 + running) * self._answer
        room = bool(waiting) and self._full(reading.most("kv_cache_usage_ratio"), further) is False
        if room and 0 < running == self._ran_before and generating >= running:
            self.seats = max(running, self.seats or 0.0)
        self._ran_before = running if room else 0.0

    def _full(self, usage: float | None, tokens: float) -> bool | None:
        """Return whether a pool used to this share has no room for so many tokens; None where it is not known."""
        return None if usage is None or self._pool is None else full_at(usage, self._pool, tokens)


def wave(
    run: Run,
    tokens: int,
    concurrency: int,
    output: int,
    *,
    room: int,
    pool: Pool | None,
    name: str,
    single: bool = True,
    capped: bool = False,
) -> Point:
    """Send `concurrency` different prompts of `tokens` tokens at once and return what was seen.

    Each request generates `output` tokens; where there are several, those that come first go on until the last one is
    there, for up to `room` tokens, so that all of them hold their KV cache at the same time.

    Args:
        run: The run.
        tokens: Prompt length.
        concurrency: Requests at once.
        output: Tokens to generate, at least 1.
        room: Most further tokens that a request may generate while it is held.
        pool: The KV pool, where it is known.
        name: Makes the prompts of this wave different from those of others.
        single: Whether each piece of this server's streams is one token.
        capped: Whether `room` is small, so that a request may end by itself right when all are there.
    """
    held = min(room, MOST_HELD) if concurrency > 1 else 0
    hold = _Hold(concurrency, output, LINGER_SECONDS if run.server.has_metrics else 0.0)
    asks = []
    for index in range(concurrency):
        ask = run.make(run.vocabulary.prompt(tokens, f"{name}/{index}"), output + max(0, held), ignore_eos=True)
        asks.append(replace(ask, enough=hold.enough(index) if held > 0 else hold.noticed(index)))

    def send(index: int) -> Reply:
        try:
            return run.send(asks[index])
        finally:
            hold.ended(index)

    before = run.metrics()
    sofar = before.total("preemptions_total") if before is not None else None
    watch = _Watch(hold, pool, tokens, output + max(0, held), sofar)
    with watched(run.metrics, run.gpu_memory, look=watch.look, poke=hold.poke) as peaks:
        if concurrency == 1:
            replies = [send(0)]
        else:
            with ThreadPoolExecutor(concurrency, thread_name_prefix="wave") as threads:
                replies = list(threads.map(send, range(concurrency)))
    if concurrency == 1 and not hold.looked:
        peaks.kv_usage = None  # all looks came before the prompt was whole in the pool
    seen = Seen(
        peaks,
        _more_preemptions(sofar, run.metrics()),
        pool,
        watch.seats,
        watch.beside if run.server.engine == "vllm" else None,
        output + held if held > 0 and not capped else None,
    )
    return judge(replies, tokens, seen, over=run.over, words=run.vocabulary, single=single)


def _more_preemptions(before: float | None, after: Reading | None) -> int | None:
    now = after.total("preemptions_total") if after is not None else None
    return None if before is None or now is None else max(0, round(now - before))


def counted_alone(run: Run, tokens: int, name: str) -> Reply:
    """Send the first prompt of a wave once more, alone and to its end: only then does the server say what it counts.

    A stream that is closed when all requests were held together ends before the usage comes.
    """
    return run.ask(run.vocabulary.prompt(tokens, f"{name}/0"), 1, ignore_eos=True)
