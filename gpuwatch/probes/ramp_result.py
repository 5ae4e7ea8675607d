"""What a ramp found, as figures and findings of its result."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from gpuwatch.probes import truncation
from gpuwatch.probes.ramp_verdict import expected
from gpuwatch.probes.refusal import Refused, longer, refused
from gpuwatch.probes.truncation import Short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.probes.point import Point
    from gpuwatch.probes.ramp import Ramp, Search
    from gpuwatch.probes.result import Figure
    from gpuwatch.probes.run import Run
    from gpuwatch.probes.truncation import Fate


def facts(ramp: Ramp, searches: list[Search]) -> Iterator[Figure]:
    """Yield the figures of the whole ramp, and of the search at each concurrency."""
    server, pool = ramp.run.server, ramp.pool
    yield "output_tokens", ramp.options.output, "tokens"
    yield "max_model_len", server.max_model_len, "tokens"
    yield "kv_pool_tokens", pool.tokens if pool else None, "tokens"
    yield "answered", any(search.measured for search in searches), ""
    yield "kv_block_tokens", pool.block if pool else None, "tokens"
    yield "ledger_kv_pool_tokens", ramp.options.ledger_tokens, "tokens"
    for search in searches:
        at = f"at_{search.concurrency}"
        yield f"carried_{at}", (search.carried or None) if search.sequences is None else None, "tokens"
        broke = search.bad if search.bad is not None and search.bad.broken else None
        yield f"broke_{at}", broke.prompt_tokens if broke else None, "tokens"
        yield f"broke_how_{at}", broke.outcome if broke else None, ""
        due = expected(ramp, search.concurrency) if search.sequences is None else None
        yield f"expected_{at}", due, "tokens"
        yield f"resolution_{at}", ramp.resolution(search), "tokens"
    rates = [point.output_rate for search in searches for point in search.points if point.output_rate is not None]
    yield "output_tokens_per_s_median", median(rates) if rates else None, "tokens/s"


def truncations(run: Run, points: list[Point], output: int) -> tuple[Finding, ...]:
    """Judge prompts that were cut or ignored without an error, by the shortest of them at each concurrency."""
    shortest: dict[int, Short] = {}
    for point in points:
        known = shortest.get(point.concurrency)
        if point.outcome in ("cut", "ignored") and (known is None or point.prompt_tokens < known.sent):
            kind: Fate = "cut" if point.outcome == "cut" else "ignored"
            shortest[point.concurrency] = Short(point.prompt_tokens, point.counted_tokens, kind)
    whole = max((point.prompt_tokens for point in points if point.begun and point.counted_tokens), default=None)
    return truncation.finding(run, list(shortest.values()), whole, output)


def refusals(ramp: Ramp, searches: list[Search]) -> Iterator[Finding]:
    """Judge requests that are refused although they are within the length that the server states."""
    stated = ramp.run.server.max_model_len
    for search in searches:
        bad, more = search.bad, ramp.options.output + ramp.room(search.concurrency)
        if bad is None or stated is None or bad.outcome != "refused" or bad.sent_tokens + more > stated:
            continue
        if ramp.run.vocabulary.guessed or longer(bad.detail, stated, ramp.options.output):
            continue
        low, step = search.good, ramp.resolution(search)
        found = low is not None and bad.sent_tokens - low.sent_tokens <= step
        request = Refused(bad.sent_tokens, more, bad.detail, bad.sent_bytes, ramp.run.vocabulary.exact)
        yield refused(ramp.run, request, search.carried + more if low else None, step if found else None)
        return
