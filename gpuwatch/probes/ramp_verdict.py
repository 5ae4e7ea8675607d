"""What the waves of the ramp mean: sentences, advice, and the finding about a pool that is too small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding
from gpuwatch.probes.refusal import longer
from gpuwatch.probes.vocabulary import GUESSED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatch.probes.limits import Pool
    from gpuwatch.probes.point import Point
    from gpuwatch.probes.ramp import Ramp, Search
    from gpuwatch.probes.run import Run


def expected(ramp: Ramp, concurrency: int) -> int | None:
    """Return the longest prompt that should go well by the server's own figures: its pool and its context."""
    limits = []
    if ramp.pool is not None:
        limits.append(ramp.pool.each(concurrency))
    if ramp.run.server.max_model_len is not None:
        limits.append(ramp.run.server.max_model_len)
    return max(0, min(limits) - ramp.options.output) if limits else None


_HOW = {
    "queued": "the requests no longer fit into the KV pool at the same time",
    "apart": "not all of them ran at the same time; the KV pool, a limit on sequences or a busy machine may be why",
    "preempted": "requests were thrown out of the KV pool and computed again",
    "cut": "the server reads a part of the prompt only, without an error",
    "ignored": "the server ignores the prompt, without an error",
    "refused": "the server refuses it",
    "timeout": "no answer came in time",
    "failed": "the server failed",
    "lost": "the connection was lost",
}
_HELD_UP = (
    "Where not all ran at the same time, times to first token hold the wait for requests that the probe itself kept "
    "going, for up to {room:,} further tokens: they are not those of the server."
)
_CAPS = {
    "context": "the longest that leaves room for the answer",
    "held": "the longest that leaves room for the answer and for the {room:,} tokens that a request may generate while "
    "it waits for the others",
    "pool": "longer ones can never fit into the KV pool, and were not sent",
    "made": "the longest that a probe sends",
    "asked": "the longest that was asked for",
    "memory": "longer ones would fill the GPU, and were not sent",
}


def conclusion(ramp: Ramp, searches: Sequence[Search]) -> Iterator[str]:
    """Yield sentences that say what the waves mean."""
    for search in searches:
        who = "One request" if search.concurrency == 1 else f"{search.concurrency} requests at once"
        if search.sequences is not None:
            yield from _too_few(ramp, search, search.sequences)
        elif search.bad is not None and search.bad.broken:
            how = _HOW[search.bad.outcome]
            detail = f" ({search.bad.detail})" if search.bad.detail and search.bad.outcome != "queued" else ""
            carried = f"up to {search.carried:,} tokens go well" if search.carried else "no tried length went well"
            yield f"{who}: {carried}; at {search.bad.prompt_tokens:,} {how}{detail}."
            if held_up(ramp, search):
                yield _HELD_UP.format(room=ramp.room(search.concurrency))
        elif search.carried:
            yield f"{who}: every length up to {search.carried:,} tokens goes well{_end(ramp, search)}."
        elif search.points and search.points[-1].outcome != "unclear":
            yield f"{who}: nothing could be measured ({search.points[-1].detail or search.points[-1].outcome})."
        yield from _unclear(search, who)
        yield from _compared(ramp, search)
    if not any(search.measured for search in searches):
        yield "No request was answered: nothing is known about the limits of this server."
    told = ramp.options.ledger_tokens
    if told is not None and ramp.pool is not None:
        yield (
            f"The memory ledger expects a KV pool of {told:,.0f} tokens from model, flags and GPU; the server has "
            f"{ramp.pool.tokens:,} ({100 * (ramp.pool.tokens / told - 1):+.0f} %)."
        )
    if not ramp.run.server.has_metrics:
        yield "Without a metrics page preemptions cannot be seen: the true limit may be lower."
    yield from _seen(ramp, [point for search in searches for point in search.points])
    yield from _speed(searches)


def _seen(ramp: Ramp, points: Sequence[Point]) -> Iterator[str]:
    """Say what could not be seen or measured, and why."""
    if ramp.run.vocabulary.guessed:
        yield GUESSED
    if any(point.ran_on and point.counted_tokens is None for point in points):
        yield (
            "The server ignores max_tokens: its answers were cut off after what was asked for, and its counts, which "
            "come at the end, were not seen."
        )
    elif ramp.counts is False:
        yield "The server counts no prompt tokens: whether it read every prompt whole cannot be seen."
    timed = [point for point in points if point.ttft is not None or point.buffered]
    if any(point.buffered for point in timed) and not all(point.buffered for point in timed):
        yield (
            "Some streams came in one piece: the machine was too busy to read or send them as they were made. Such "
            "waves have no times."
        )
    elif timed and all(point.buffered for point in timed):
        yield (
            "The stream comes in one piece at its end: what stands in front of the server holds it back (nginx: "
            "proxy_buffering off). Times to first token and rates of prefill and decoding are not known, nor whether "
            "all requests ran at the same time, unless the page shows it."
        )
    if any(point.uncounted for point in points):
        yield (
            "The server does not count the tokens of its answers as they come, and a piece of its stream may hold "
            "several: waves without a count have no decode and output rates."
        )
    if any(longer(point.detail, ramp.run.server.max_model_len, ramp.options.output) for point in points):
        yield "By the words of its refusals, prompts were longer than the server counts: it does not count all of them."
    yield from ramp.run.rate_limited()
    if any(point.limited for point in points):
        yield "Waves in which requests were sent back have no prefill and output rates: their seconds hold the pauses."


def _unclear(search: Search, who: str) -> Iterator[str]:
    """Say which waves show neither that all their requests ran at the same time nor what kept them apart."""
    lengths = sorted(point.prompt_tokens for point in search.points if point.outcome == "unclear")
    if lengths and search.sequences is None:
        yield (
            f"{who} of {', '.join(f'{length:,}' for length in lengths)} tokens were answered, and all fit by the "
            "server's figures; that they ran at the same time is not shown: a busy machine, or a limit on sequences."
        )


def held_up(ramp: Ramp, search: Search) -> bool:
    """Return whether requests waited for others that the probe itself kept going."""
    waiting = ("sequences", "queued", "apart", "unclear")
    waited = any(point.outcome in waiting and point.ttft is not None for point in search.points)
    return waited and ramp.room(search.concurrency) > 0


def _too_few(ramp: Ramp, search: Search, most: Point) -> Iterator[str]:
    """Say that the server never ran all requests at once, whatever room the pool had."""
    ran = "not all of them ran" if most.running is None else f"at most {most.running:.0f} ran"
    yield (
        f"{search.concurrency} requests at once: {ran} at the same time although the pool had room, so the number of "
        "sequences is limited by the server (--max-num-seqs, --max-running-requests). What so many requests need of "
        "the pool is not known."
    )
    if held_up(ramp, search):
        yield _HELD_UP.format(room=ramp.room(search.concurrency))
    bad = search.bad
    if bad is None or not bad.broken:
        yield f"All were answered up to {search.carried:,} tokens, one after the other."
    elif bad.outcome == "queued":
        fewer = "" if bad.running is None else f": {bad.running:.0f} ran"
        yield f"At {bad.prompt_tokens:,} tokens the pool had no room for as many as before{fewer}."
    else:
        detail = f" ({bad.detail})" if bad.detail else ""
        yield f"At {bad.prompt_tokens:,} tokens {_HOW[bad.outcome]}{detail}."


def _end(ramp: Ramp, search: Search) -> str:
    """Say why no longer prompt was sent, and what the figures give where room is kept for what requests generate."""
    if search.carried < search.cap and search.why_cap != "memory":
        return ""
    room = ramp.room(search.concurrency)
    if search.why_cap != "context" or not room:
        return f": {_CAPS[search.why_cap]}"
    due = expected(ramp, search.concurrency)
    more = "" if due is None or ramp.pool is None else f"; by the server's figures {due:,} tokens fit"
    return f": {_CAPS['held'].format(room=room)}{more}"


def _compared(ramp: Ramp, search: Search) -> Iterator[str]:
    due = expected(ramp, search.concurrency)
    if (
        due is None
        or search.sequences is not None
        or search.bad is None
        or search.bad.outcome not in ("queued", "preempted", "refused")
        or ramp.run.vocabulary.guessed
        or longer(search.bad.detail, ramp.run.server.max_model_len, ramp.options.output)
    ):
        return
    step = ramp.resolution(search)
    away = due - search.carried
    if -step <= away <= step:
        yield f"That is what the server's figures give: {due:,} tokens, within one step of {step:,}."
    else:
        word = "earlier" if away > 0 else "later"
        yield f"The server's figures give {due:,} tokens: it broke {abs(away):,} tokens {word} than that."


def _speed(searches: Sequence[Search]) -> Iterator[str]:
    """Say how the time to first token grows from the shortest to the longest prompt of one request."""
    for search in searches:
        good = [point for point in search.points if point.outcome == "ok" and point.ttft and point.prefill_rate]
        good.sort(key=lambda point: point.prompt_tokens)
        if search.concurrency != 1 or len(good) < 2:
            continue
        first, last = good[0], good[-1]
        yield (
            f"Time to first token goes from {first.ttft:.3g} s at {first.prompt_tokens:,} tokens to {last.ttft:.3g} s "
            f"at {last.prompt_tokens:,}; prefill goes from {first.prefill_rate:,.0f} to {last.prefill_rate:,.0f} "
            "tokens/s."
        )


def findings(run: Run, pool: Pool | None, accepted: int = 0) -> tuple[Finding, ...]:
    """Return the finding that one request of full length does not fit into the pool, where that is so.

    `accepted` are the tokens of the longest request that the server began with, prompt and answer.
    """
    limit = run.server.max_model_len
    if pool is None or limit is None or pool.usable >= limit:
        return ()
    flag = "--context-length" if run.server.engine == "sglang" else "--max-model-len"
    page = f"{run.server.url}/metrics"
    taken = accepted > pool.usable
    return (
        Finding(
            id="max_model_len_exceeds_kv",
            severity="warning",
            title="One full-length request does not fit into the KV pool",
            cause=(
                f"A request of {limit:,} tokens can never be served: the KV pool has room for {pool.usable:,} tokens. "
                + (
                    f"One of {accepted:,} is accepted all the same, and waits or is thrown out again and again."
                    if taken
                    else f"The server states a limit of {limit:,} tokens all the same."
                )
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
                    f"the server states a limit of {limit:,} tokens",
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
