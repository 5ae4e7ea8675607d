"""Longer and longer prompts at given concurrencies: how fast, how full, and where it breaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding
from gpuwatch.probes.limits import read_pool
from gpuwatch.probes.result import Result
from gpuwatch.probes.wave import DANGEROUS, MOST_HELD, wave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.probes.limits import Pool
    from gpuwatch.probes.result import Figure
    from gpuwatch.probes.run import Run
    from gpuwatch.probes.wave import Point

NAME = "ramp"
UNKNOWN_LIMIT = 131_072
"""Longest prompt that is tried where the server does not say its limit."""
RESERVE_BYTES = 256 << 20
"""GPU memory that is to stay free; less is taken for the edge."""
_MOST_POINTS = 64


@dataclass(frozen=True, slots=True)
class RampOptions:
    """What to try.

    Attributes:
        concurrencies: Requests at once, one search each.
        first: Shortest prompt in tokens.
        longest: Longest prompt in tokens; None: the limit of the server.
        output: Tokens that each request generates.
        resolution: Tokens to which the breaking point is found; None: a 32nd of the limit, at least a block.
        repeats: Waves per length; the figures are those of the median time to first token.
        to_the_end: Go on where the engine could die: prompts that can never fit, memory at its edge, server errors.
        ledger_tokens: Tokens that the memory ledger expects in the KV pool; None: not known.
    """

    concurrencies: tuple[int, ...] = (1, 2, 4)
    first: int = 1024
    longest: int | None = None
    output: int = 32
    resolution: int | None = None
    repeats: int = 1
    to_the_end: bool = False
    ledger_tokens: float | None = None


@dataclass(slots=True)
class _Search:
    """The search at one concurrency: the longest length that went well, and the shortest that did not."""

    concurrency: int
    cap: int
    why_cap: str
    good: Point | None = None
    bad: Point | None = None
    points: list[Point] = field(default_factory=list)

    @property
    def carried(self) -> int:
        return self.good.prompt_tokens if self.good is not None else 0


@dataclass(slots=True)
class _Ramp:
    run: Run
    options: RampOptions
    pool: Pool | None
    gpu_before: float | None
    stopped: str = ""
    waves: int = 0

    def search(self) -> list[_Search]:
        """Search at each concurrency until something forbids to go on."""
        searches: list[_Search] = []
        for concurrency in self.options.concurrencies:
            cap, why = self._cap(concurrency)
            search = _Search(concurrency, cap, why)
            searches.append(search)
            self._double(search)
            if search.bad is not None and search.bad.broken and not self._must_stop(search.bad):
                self._bisect(search)
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
        caps = []
        if limit is not None:
            caps.append((limit - options.output - self.room(concurrency), "context"))
        if self.pool is not None and not options.to_the_end:
            caps.append((self.pool.usable - options.output, "pool"))
        if options.longest is not None:
            caps.append((options.longest, "asked"))
        if not caps:
            caps.append((UNKNOWN_LIMIT, "asked"))
        length, why = min(caps)
        return max(1, length), why

    def _double(self, search: _Search) -> None:
        length = min(self.options.first, search.cap)
        while True:
            point = self._measure(search, length)
            if point.outcome == "stopped" or point.broken or point.outcome == "limited":
                search.bad = point
                self._must_stop(point)
                return
            search.good = point
            if length >= search.cap or self._near_the_edge(search):
                return
            length = min(length * 2, search.cap)

    def _bisect(self, search: _Search) -> None:
        assert search.bad is not None
        low, high = search.carried, search.bad.prompt_tokens
        step = self.resolution(search.cap)
        while high - low > step and not self.stopped:
            middle = (low + high) // 2
            point = self._measure(search, middle)
            if point.outcome in ("stopped", "limited"):
                self._must_stop(point)
                return
            if point.broken:
                search.bad, high = point, middle
                if self._must_stop(point):
                    return
            else:
                search.good, low = point, middle

    def resolution(self, cap: int) -> int:
        """Return the tokens to which the breaking point is found."""
        block = self.pool.block if self.pool is not None else 1
        return self.options.resolution or max(block, cap // 32, 16)

    def _measure(self, search: _Search, length: int) -> Point:
        """Measure one length; of several waves the one with the median time to first token, unless one breaks."""
        points = []
        for _ in range(self.options.repeats):
            self.waves += 1
            words = f"{search.concurrency} x {length:,} tokens"
            self.run.report(self.waves, max(self.waves + 1, self.expected_waves()), words)
            name = f"{self.run.seed}/{self.run.started}/{self.waves}"
            output = self.options.output
            room = self.room(search.concurrency)
            points.append(wave(self.run, length, search.concurrency, output, room=room, pool=self.pool, name=name))
            if points[-1].outcome not in ("ok", "sequences"):
                break
        point = points[-1]
        if len(points) > 1 and not point.broken:
            timed = sorted((each for each in points if each.ttft is not None), key=lambda each: each.ttft or 0.0)
            point = timed[len(timed) // 2] if timed else point
        search.points.append(point)
        return point

    def expected_waves(self) -> int:
        """Return about how many waves there will be, for the progress."""
        cap, _ = self._cap()
        doublings = max(1, (cap // max(1, self.options.first)).bit_length() + 1)
        halvings = (cap // self.resolution(cap)).bit_length() if len(self.options.concurrencies) > 1 else 0
        each = (doublings + halvings) * self.options.repeats
        return min(_MOST_POINTS, each * len(self.options.concurrencies))

    def _must_stop(self, point: Point) -> bool:
        """Note why nothing more is sent after `point`; return whether it is so."""
        if point.outcome in ("stopped", "limited") or self.run.over:
            self.stopped = self.stopped or self.run.over or point.detail
        elif point.outcome in DANGEROUS and not self.options.to_the_end:
            self.stopped = f"the server failed ({point.detail}); nothing more is sent, so that it survives"
        return bool(self.stopped)

    def _near_the_edge(self, search: _Search) -> bool:
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
    pool = read_pool(run.metrics(), run.server.engine)
    gpus = run.gpu_memory()
    ramp = _Ramp(run, options, pool, max((used for used, _ in gpus.values()), default=None))
    run.report(0, ramp.expected_waves(), "warm-up")
    run.ask(run.vocabulary.prompt(64, f"warm-up {run.started}"), 4, ignore_eos=True)
    searches = ramp.search()
    points = [point for search in searches for point in search.points]
    return Result(
        probe=NAME,
        server=run.server,
        started=run.started,
        complete=not ramp.stopped,
        stopped_because=ramp.stopped,
        facts=tuple(_facts(ramp, searches)),
        rows=tuple(point.row(ramp.gpu_before) for point in points),
        findings=findings(run, pool),
        conclusion=tuple(_conclusion(ramp, searches)),
        advice=tuple(_advice(ramp, searches)),
    )


def _facts(ramp: _Ramp, searches: list[_Search]) -> Iterator[Figure]:
    server, pool = ramp.run.server, ramp.pool
    yield "output_tokens", ramp.options.output, "tokens"
    yield "max_model_len", server.max_model_len, "tokens"
    yield "kv_pool_tokens", pool.tokens if pool else None, "tokens"
    yield "kv_block_tokens", pool.block if pool else None, "tokens"
    yield "ledger_kv_pool_tokens", ramp.options.ledger_tokens, "tokens"
    for search in searches:
        at = f"at_{search.concurrency}"
        yield f"carried_{at}", search.carried or None, "tokens"
        broke = search.bad if search.bad is not None and search.bad.broken else None
        yield f"broke_{at}", broke.prompt_tokens if broke else None, "tokens"
        yield f"broke_how_{at}", broke.outcome if broke else None, ""
        yield f"expected_{at}", expected(ramp, search.concurrency), "tokens"
        yield f"resolution_{at}", ramp.resolution(search.cap), "tokens"
    rates = [point.output_rate for search in searches for point in search.points if point.output_rate is not None]
    yield "output_tokens_per_s_median", median(rates) if rates else None, "tokens/s"


def expected(ramp: _Ramp, concurrency: int) -> int | None:
    """Return the longest prompt that should go well by the server's own figures: its pool and its context."""
    limits = []
    if ramp.pool is not None:
        limits.append(ramp.pool.each(concurrency))
    if ramp.run.server.max_model_len is not None:
        limits.append(ramp.run.server.max_model_len)
    return max(0, min(limits) - ramp.options.output) if limits else None


_HOW = {
    "queued": "the requests no longer fit into the KV pool at the same time",
    "preempted": "requests were thrown out of the KV pool and computed again",
    "refused": "the server refuses it",
    "timeout": "no answer came in time",
    "failed": "the server failed",
    "lost": "the connection was lost",
}
_CAPS = {
    "context": "the longest that leaves room for the answer",
    "pool": "longer ones can never fit into the KV pool, and were not sent",
    "asked": "the longest that was asked for",
    "memory": "longer ones would fill the GPU, and were not sent",
}


def _conclusion(ramp: _Ramp, searches: list[_Search]) -> Iterator[str]:
    for search in searches:
        who = "One request" if search.concurrency == 1 else f"{search.concurrency} requests at once"
        if search.bad is not None and search.bad.broken:
            how = _HOW[search.bad.outcome]
            detail = f" ({search.bad.detail})" if search.bad.detail and search.bad.outcome != "queued" else ""
            carried = f"up to {search.carried:,} tokens go well" if search.carried else "no tried length went well"
            yield f"{who}: {carried}; at {search.bad.prompt_tokens:,} {how}{detail}."
        elif search.carried:
            end = f": {_CAPS[search.why_cap]}" if search.carried >= search.cap or search.why_cap == "memory" else ""
            yield f"{who}: every length up to {search.carried:,} tokens goes well{end}."
        yield from _compared(ramp, search)
        if any(point.outcome == "sequences" for point in search.points):
            yield (
                f"{who}: they did not all run at the same time although the pool had room, so the number of sequences "
                "is limited by the server (--max-num-seqs, --max-running-requests)."
            )
    told = ramp.options.ledger_tokens
    if told is not None and ramp.pool is not None:
        yield (
            f"The memory ledger expects a KV pool of {told:,.0f} tokens from model, flags and GPU; the server has "
            f"{ramp.pool.tokens:,} ({100 * (ramp.pool.tokens / told - 1):+.0f} %)."
        )
    if not ramp.run.server.has_metrics:
        yield "Without a metrics page preemptions cannot be seen: the true limit may be lower."
    yield from _speed(searches)


def _compared(ramp: _Ramp, search: _Search) -> Iterator[str]:
    due = expected(ramp, search.concurrency)
    if due is None or search.bad is None or search.bad.outcome not in ("queued", "preempted", "refused"):
        return
    step = ramp.resolution(search.cap)
    held = search.good.held_tokens if search.good is not None else None
    carried = search.carried if held is None else max(search.carried, held - ramp.options.output)
    away = due - carried
    if -step <= away <= step:
        yield f"That is what the server's figures give: {due:,} tokens, within one step of {step:,}."
    else:
        word = "earlier" if away > 0 else "later"
        yield f"The server's figures give {due:,} tokens: it broke {abs(away):,} tokens {word} than that."


def _speed(searches: list[_Search]) -> Iterator[str]:
    """Say how the time to first token grows from the shortest to the longest prompt of one request."""
    for search in searches:
        good = [point for point in search.points if point.outcome == "ok" and point.ttft and point.prefill_rate]
        good.sort(key=lambda point: point.prompt_tokens)
        if search.concurrency != 1 or len(good) < 2:
            continue
        first, last = good[0], good[-1]
        yield (
            f"Time to first token grows from {first.ttft:.3g} s at {first.prompt_tokens:,} tokens to {last.ttft:.3g} s "
            f"at {last.prompt_tokens:,}; prefill goes from {first.prefill_rate:,.0f} to {last.prefill_rate:,.0f} "
            "tokens/s."
        )


def _advice(ramp: _Ramp, searches: list[_Search]) -> Iterator[Advice]:
    sglang = ramp.run.server.engine == "sglang"
    limit = ramp.run.server.max_model_len
    for search in searches:
        bad = search.bad
        if bad is None or bad.outcome not in ("queued", "preempted") or ramp.pool is None:
            continue
        wanted = ramp.pool.demand(limit or search.cap + ramp.options.output)
        fits = ramp.pool.ranks * (ramp.pool.usable // wanted) if wanted else 0
        if 1 <= fits < search.concurrency:
            yield Advice(
                f"for requests of full length ({wanted:,} tokens): admit as many as the pool of "
                f"{ramp.pool.tokens:,} tokens holds",
                "--max-running-requests" if sglang else "--max-num-seqs",
                None,
                str(fits),
            )
        yield Advice(
            f"or make the pool larger: {search.concurrency} such requests need {wanted * search.concurrency:,} tokens "
            "(more memory for it, an 8-bit KV cache, more GPUs)",
            "--mem-fraction-static" if sglang else "--gpu-memory-utilization",
        )
        return


def findings(run: Run, pool: Pool | None) -> tuple[Finding, ...]:
    """Return the finding that one request of full length does not fit into the pool, where that is so."""
    limit = run.server.max_model_len
    if pool is None or limit is None or pool.usable >= limit:
        return ()
    flag = "--context-length" if run.server.engine == "sglang" else "--max-model-len"
    page = f"{run.server.url}/metrics"
    return (
        Finding(
            id="max_model_len_exceeds_kv",
            severity="critical",
            title="One full-length request does not fit into the KV pool",
            cause=(
                f"A request of {limit:,} tokens can never be served: the KV pool has room for {pool.usable:,} tokens. "
                "It is accepted all the same, and waits or is thrown out again and again."
            ),
            confidence=0.95,
            evidence=(
                Evidence(
                    f"the KV pool holds {pool.tokens:,} tokens",
                    page,
                    name="gpuwatch_engine_kv_cache_tokens",
                    value=float(pool.tokens),
                    unit="tokens",
                ),
                Evidence(
                    f"requests of up to {limit:,} tokens are accepted",
                    f"{run.server.url}/v1/models",
                    name="gpuwatch_engine_config_max_model_len_tokens",
                    value=float(limit),
                    unit="tokens",
                ),
            ),
            advice=(Advice("accept no more than fits", flag, str(limit), str(pool.usable)),),
            since=int(run.started * 1000),
        ),
    )
