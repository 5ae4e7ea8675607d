"""Longer and longer prompts at given concurrencies: how fast, how full, and where it breaks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpuwatch.probes.client import ProbeError
from gpuwatch.probes.limits import read_pool, read_setting
from gpuwatch.probes.point import DANGEROUS, ENDING
from gpuwatch.probes.ramp_advice import advice
from gpuwatch.probes.ramp_result import facts, refusals, truncations
from gpuwatch.probes.ramp_verdict import conclusion, findings
from gpuwatch.probes.result import Result
from gpuwatch.probes.truncation import cut_at, fate
from gpuwatch.probes.vocabulary import MOST_PROMPT_TOKENS
from gpuwatch.probes.wave import MOST_HELD, counted_alone, wave

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.probes.limits import Pool, PoolSetting
    from gpuwatch.probes.point import Point
    from gpuwatch.probes.run import Run

NAME = "ramp"
UNKNOWN_LIMIT = 131_072
"""Longest prompt that is tried where the server does not say its limit."""
RESERVE_BYTES = 256 << 20
"""GPU memory that is to stay free; less is taken for the edge."""
WARM_UP_TOKENS = 16
_MOST_POINTS = 64
_HALVINGS = 5
"""Halvings from a length that broke to a 32nd of it."""
TRIES_APART = 2
"""Further waves where requests did not run at the same time and nothing shows why: a busy machine may be why."""
_UNCLEAR = ("apart", "unclear")
_READ = ("ok", "sequences", "queued", *_UNCLEAR, "preempted")
"""Waves of which every request was answered."""


@dataclass(frozen=True, slots=True)
class RampOptions:
    """What to try.

    Attributes:
        concurrencies: Requests at once, one search each.
        first: Shortest prompt in tokens.
        longest: Longest prompt in tokens; None: the limit of the server.
        output: Tokens that each request generates.
        resolution: Tokens to which the breaking point is found; None: a 32nd of it, at least a block.
        repeats: Waves per length; the figures are those of the median time to first token.
        to_the_end: Go on where the engine could die: prompts that can never fit, memory at its edge, server errors.
        ledger_tokens: Tokens that the memory ledger expects in the KV pool; None: not known.
        told: Numbers of the engine's command line and log that decide on its pool, by the name of the fact.
    """

    concurrencies: tuple[int, ...] = (1, 2, 4)
    first: int = 1024
    longest: int | None = None
    output: int = 32
    resolution: int | None = None
    repeats: int = 1
    to_the_end: bool = False
    ledger_tokens: float | None = None
    told: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Search:
    """The search at one concurrency: the longest length that went well, and the shortest that did not.

    `low` is the longest that broke nothing, whether or not all requests ran at the same time.
    """

    concurrency: int
    cap: int
    why_cap: str
    good: Point | None = None
    bad: Point | None = None
    low: int = 0
    points: list[Point] = field(default_factory=list)

    @property
    def carried(self) -> int:
        """The longest prompt that went well, 0 where none did."""
        return self.good.prompt_tokens if self.good is not None else 0

    @property
    def sequences(self) -> Point | None:
        """The longest wave in which the server ran fewer requests at once than it was sent, with room in the pool.

        None where all of another wave ran at once: then that number is not limited.
        """
        if any(point.outcome == "ok" and not point.buffered for point in self.points):
            return None
        found = [point for point in self.points if point.outcome == "sequences"]
        return max(found, key=lambda point: point.prompt_tokens, default=None)

    @property
    def measured(self) -> bool:
        """Whether at least one request was answered."""
        return any(point.ttft is not None or point.outcome == "ignored" or point.buffered for point in self.points)

    def take(self, point: Point) -> None:
        """Take a wave that broke nothing."""
        self.low = point.sent_tokens
        if point.outcome != "unclear":
            self.good = point

    def judged(self, point: Point) -> Point:
        """Lay a wave to the limit on sequences where as many ran as with room in the pool, which shows that limit."""
        most = None if self.sequences is None else self.sequences.running
        if most is None or point.running != most or point.outcome not in ("queued", "unclear"):
            return point
        return replace(point, outcome="sequences", detail=f"no more than {most:.0f} ever ran")

    def settle(self) -> None:
        """Judge again, by what all waves showed, those that came before the limit on sequences was seen."""
        if self.sequences is None:
            return
        self.points = [self.judged(point) for point in self.points]
        broken = [point for point in self.points if point.broken]
        self.good = self.sequences
        self.bad = min(broken, key=lambda point: point.sent_tokens, default=None)


@dataclass(slots=True)
class Ramp:
    """The whole probe: a search at each concurrency.

    `whole` is the longest prompt of which all tokens were counted, `counts` whether the server counts prompt tokens
    (None: not known yet), `single` whether each piece of a stream is one token.
    """

    run: Run
    options: RampOptions
    pool: Pool | None
    gpu_before: float | None
    setting: PoolSetting
    stopped: str = ""
    waves: int = 0
    whole: int = 0
    counts: bool | None = None
    single: bool = False

    def warm_up(self) -> None:
        """Send one short request, and see by the server's count whether a piece of its stream is one token.

        It may be several: with speculative decoding, with an interval of streaming, behind some gateways.
        """
        words = self.run.vocabulary.prompt(64, f"warm-up {self.run.started}")
        reply = self.run.ask(words, min(WARM_UP_TOKENS, max(4, self.options.output)), ignore_eos=True)
        pieces, tokens = len(reply.token_times), reply.completion_tokens
        self.single = tokens is not None and tokens - 1 <= pieces  # the last one may have no text and no piece

    def search(self) -> list[Search]:
        """Search at each concurrency until something forbids to go on."""
        searches: list[Search] = []
        for concurrency in self.options.concurrencies:
            cap, why = self._cap(concurrency)
            search = Search(concurrency, cap, why)
            searches.append(search)
            self._double(search)
            if search.bad is not None and search.bad.broken and not self._must_stop(search.bad):
                self._bisect(search)
            search.settle()
            if self.stopped:
                break
        return searches

    def room(self, concurrency: int) -> int:
        """Return the tokens that a request may generate beyond its output, while it waits for the others."""
        limit = self.run.server.max_model_len
        return 0 if concurrency == 1 else MOST_HELD if limit is None else min(MOST_HELD, limit // 8)

    def _cap(self, concurrency: int = 1) -> tuple[int, str]:
        """Return the longest prompt to try, and what forbids longer ones."""
        options, limit = self.options, self.run.server.max_model_len
        caps = [(MOST_PROMPT_TOKENS, "made")]
        if limit is not None:
            caps.append((limit - options.output - self.room(concurrency), "context"))
        if self.pool is not None and not options.to_the_end:
            caps.append((self.pool.usable - options.output, "pool"))
        if options.longest is not None:
            caps.append((options.longest, "asked"))
        if len(caps) == 1:
            caps.append((UNKNOWN_LIMIT, "asked"))
        length, why = min(caps)
        return max(1, length), why

    def _double(self, search: Search) -> None:
        length = min(self.options.first, search.cap)
        while True:
            point = self._measure(search, length)
            if point.broken or point.outcome in ENDING:
                search.bad = point
                self._must_stop(point)
                self._revise(search)
                return
            search.take(point)
            if self._revise(search):
                return
            if length >= search.cap or self._near_the_edge(search):
                return
            length = min(length * 2, search.cap)

    def _bisect(self, search: Search) -> None:
        while not self.stopped:
            assert search.bad is not None
            step = self.resolution(search)
            low, high = search.low, search.bad.sent_tokens
            if high - low <= step:
                return
            point = self._measure(search, (low + high) // 2)
            if point.outcome in ENDING:
                self._must_stop(point)
                return
            if point.broken:
                search.bad = point
                self._must_stop(point)
            else:
                search.take(point)
            self._revise(search)

    def _revise(self, search: Search) -> bool:
        """Judge texts again once another length shows that they were cut; return whether it does.

        A text's length is an estimate: that a little of it was cut off shows only when a longer one counts the same.
        """
        if self.run.vocabulary.exact:
            return False
        read = [(place, point) for place, point in enumerate(search.points) if point.outcome in (*_READ, "cut")]
        limit = cut_at((p.sent_tokens, p.counted_tokens) for _, p in read if p.counted_tokens is not None)
        if limit is None:
            return False
        for place, point in read:
            if point.counted_tokens == limit and point.outcome != "cut":
                sent = point.sent_tokens
                detail = f"sent {sent:,} tokens, the server counts {limit:,}, as of other lengths"
                search.points[place] = replace(point, outcome="cut", prompt_tokens=sent, detail=detail)
        whole = [point for point in search.points if point.outcome in ("ok", "sequences")]
        search.good = max(whole, key=lambda point: point.sent_tokens, default=None)
        broken = [point for point in search.points if point.broken]
        search.bad = min(broken, key=lambda point: point.sent_tokens, default=search.bad)
        search.low = search.good.sent_tokens if search.good is not None else 0
        self.whole = min(self.whole, search.low)
        return True

    def resolution(self, search: Search) -> int:
        """Return the tokens to which the breaking point is found: a 32nd of what broke, else of the longest length."""
        block = self.pool.block if self.pool is not None else 1
        length = search.bad.sent_tokens if search.bad is not None and search.bad.broken else search.cap
        return self.options.resolution or max(block, length // 32, 16)

    def _measure(self, search: Search, length: int) -> Point:
        """Measure one length; of several waves the one with the median time to first token, unless one breaks."""
        points = []
        for _ in range(self.options.repeats):
            points.append(self._together(search.concurrency, length))
            if points[-1].outcome not in ("ok", "sequences", "unclear"):
                break
        point = points[-1]
        if len(points) > 1 and not point.broken:
            timed = sorted((each for each in points if each.ttft is not None), key=lambda each: each.ttft or 0.0)
            point = timed[len(timed) // 2] if timed else point
        point = search.judged(point)
        search.points.append(point)
        return point

    def _together(self, concurrency: int, length: int) -> Point:
        """Send one wave, and again where its requests did not run at the same time and nothing shows why.

        Where all of them fit into the pool with their answers, they first generate no more than fits as well while
        they wait for each other; else the waiting itself could fill it.
        """
        room = self.room(concurrency)
        spare = None if self.pool is None else self.pool.each(concurrency) - length - self.options.output
        fits = spare is not None and spare >= 0
        least = min(room, spare) if spare is not None and fits else room
        point = self._wave(concurrency, length, least, capped=least < room)
        for _ in range(TRIES_APART if point.outcome in _UNCLEAR else 0):
            again = self._wave(concurrency, length, room)
            if again.outcome not in (*_UNCLEAR, "queued", "preempted") or not fits:
                point = again
            if point.outcome not in _UNCLEAR:
                break
        return point

    def _wave(self, concurrency: int, length: int, room: int, *, capped: bool = False) -> Point:
        self.waves += 1
        words = f"{concurrency} x {length:,} tokens"
        self.run.report(self.waves, max(self.waves + 1, self.expected_waves()), words)
        name = f"{self.run.seed}/{self.run.started}/{self.waves}"
        more: dict[str, Any] = {"room": room, "pool": self.pool, "name": name, "single": self.single}
        seen = wave(self.run, length, concurrency, self.options.output, capped=capped, **more)
        return self._read_whole(seen, length, name)

    def _read_whole(self, point: Point, length: int, name: str) -> Point:
        """Return a wave that was accepted with what the server counts of its prompts, where it did not say it yet."""
        if point.counted_tokens is not None:
            self.counts = True
            self.whole = max(self.whole, length if point.outcome in _READ else 0)
            return point
        if point.ran_on or point.outcome not in _READ or length <= self.whole or self.counts is False or self.run.over:
            return point
        alone = counted_alone(self.run, length, name)
        if not alone.ok:
            return point
        self.counts = alone.prompt_tokens is not None
        if fate(alone, length, self.run.vocabulary) == "cut":
            detail = f"sent {length:,} tokens, the server counts {alone.prompt_tokens:,}"
            return replace(point, outcome="cut", detail=detail, counted_tokens=alone.prompt_tokens)
        if self.counts:
            self.whole = length
        return replace(point, counted_tokens=alone.prompt_tokens)

    def expected_waves(self) -> int:
        """Return about how many waves there will be, for the progress."""
        cap, _ = self._cap()
        doublings = max(1, (cap // max(1, self.options.first)).bit_length() + 1)
        halvings = _HALVINGS if len(self.options.concurrencies) > 1 else 0
        each = (doublings + halvings) * self.options.repeats
        return min(_MOST_POINTS, each * len(self.options.concurrencies))

    def _must_stop(self, point: Point) -> bool:
        """Note why nothing more is sent after `point`; return whether it is so."""
        if point.outcome in ENDING or self.run.over:
            login = f"the login was refused ({point.detail})" if point.outcome == "login" else ""
            self.stopped = self.stopped or self.run.over or login or point.detail
        elif point.outcome in DANGEROUS and not self.options.to_the_end:
            self.stopped = f"the server failed ({point.detail}); nothing more is sent, so that it survives"
        return bool(self.stopped)

    def _near_the_edge(self, search: Search) -> bool:
        """Return whether twice the length would leave too little GPU memory, judged by the last two steps."""
        seen = [point for point in search.points if point.gpu_bytes is not None and point.gpu_size is not None]
        if len(seen) < 2 or self.options.to_the_end:
            return False
        last, before = seen[-1], seen[-2]
        assert last.gpu_bytes is not None
        assert last.gpu_size is not None
        assert before.gpu_bytes is not None
        rise = last.gpu_bytes - before.gpu_bytes
        if rise <= 0 or last.gpu_bytes + 2 * rise <= last.gpu_size - RESERVE_BYTES:
            return False
        search.why_cap = "memory"
        self.stopped = (
            f"twice {last.prompt_tokens:,} tokens would fill the GPU: {last.gpu_bytes / 2**30:.1f} of "
            f"{last.gpu_size / 2**30:.1f} GiB now, {rise / 2**30:.2f} GiB more with the last step"
        )
        return True


def probe(run: Run, options: RampOptions) -> Result:
    """Find how long prompts may be at each concurrency, and measure the way there."""
    reading = run.metrics()
    pool = read_pool(reading, run.server.engine)
    _check_room(run, options, pool)
    gpus = run.gpu_memory()
    before = max((used for used, _ in gpus.values()), default=None)
    ramp = Ramp(run, options, pool, before, read_setting(reading, options.told, gpus))
    run.report(0, ramp.expected_waves(), "warm-up")
    ramp.warm_up()
    searches = ramp.search()
    points = [point for search in searches for point in search.points]
    return Result(
        probe=NAME,
        server=run.server,
        started=run.started,
        complete=not ramp.stopped,
        stopped_because=ramp.stopped,
        facts=tuple(facts(ramp, searches)),
        rows=tuple(point.row(ramp.gpu_before) for point in points),
        findings=(
            *findings(run, pool, max((p.prompt_tokens + options.output for p in points if p.begun), default=0)),
            *truncations(run, points, options.output),
            *refusals(ramp, searches),
        ),
        conclusion=tuple(conclusion(ramp, searches)),
        advice=tuple(advice(ramp, searches)),
    )


def _check_room(run: Run, options: RampOptions, pool: Pool | None) -> None:
    """Refuse an answer that leaves no room for a prompt.

    Raises:
        ProbeError: it is too long.
    """
    limit = run.server.max_model_len
    for most, who in ((limit, "the server takes"), (pool.usable if pool is not None else None, "the KV pool holds")):
        if most is not None and options.output >= most and not (who != "the server takes" and options.to_the_end):
            raise ProbeError(f"--max-tokens {options.output:,}: {who} {most:,} tokens with the prompt")
