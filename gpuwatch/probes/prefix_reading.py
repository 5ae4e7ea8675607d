"""How many tokens of a prompt an engine took from its prefix cache: told by the reply, or by two looks at its page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.engines.version import parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.probes.exchange import Ask, Reply
    from gpuwatch.probes.meter import Reading
    from gpuwatch.probes.run import Run

COUNTED_WITHIN = 5.0
"""Seconds within which a request is on the page; engines count it a moment after they have sent the token."""
LOOK_EVERY = 0.05
TOKENS_SINCE = (0, 9, 0)
"""The first vLLM whose counters of the prefix cache are in tokens."""
NEEDS = {
    "vllm": "cached tokens in the usage (--enable-prompt-tokens-details) or the counters of /metrics",
    "sglang": "cached tokens in the usage (--enable-cache-report) or the counters of /metrics (--enable-metrics)",
    "other": "usage.prompt_tokens_details.cached_tokens, which this server does not send",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one prompt, or of several together.

    Attributes:
        tokens: Prompt tokens of all of them; None where the server does not count.
        cached: Tokens that were found in the cache; None: not known, see `detail`.
        ttft: Median seconds to the first token.
        detail: Why something is not known, or what the server refused.
        refused: Whether no answer came; `kind` says what came instead (`Reply.kind`).
        ended: Whether the probe was over before an answer came.
        told: Whether the server itself said how many tokens were cached.
    """

    tokens: int | None = None
    cached: int | None = None
    ttft: float | None = None
    detail: str = ""
    refused: bool = False
    ended: bool = False
    told: bool = False
    kind: str = ""


def send(run: Run, asks: Sequence[Ask], concurrency: int = 1, *, tells: bool = False) -> Seen:
    """Send requests and find out how many of their tokens were cached. Nobody else may use the server meanwhile.

    Args:
        run: Where to send.
        asks: The requests.
        concurrency: Requests at a time.
        tells: Whether the server is known to tell cached tokens. SGLang, and older versions of vLLM, leave them out
            where there are none; only then is nothing said the same as nothing found.
    """
    before = run.metrics()
    replies = run.ask_all(asks, concurrency)
    if any(reply.kind == "cancelled" for reply in replies) or run.over:
        return Seen(ended=True)
    failed = next((reply for reply in replies if not reply.answered), None)
    if failed is not None:
        return Seen(detail=failed.error, refused=True, kind=failed.kind)
    tokens, ttft = _tokens(asks, replies), _median([_first_token(reply) for reply in replies])
    told = [reply.cached_tokens for reply in replies if reply.cached_tokens is not None]
    if len(told) == len(replies) or tells:
        return Seen(tokens, sum(told), ttft, told=True)
    if before is not None and before.least("prefix_cache_enabled") == 0:
        return Seen(tokens, None, ttft, "prefix caching is off, the page says")
    if before is None or tokens is None or before.total("prefix_cache_queries_total") is None:
        return Seen(tokens, None, ttft, NEEDS[run.server.engine])
    return _counted(run, before, tokens, len(replies), ttft)


def _tokens(asks: Sequence[Ask], replies: Sequence[Reply]) -> int | None:
    """Return the prompt tokens as the server counts them, else the ids that were sent."""
    counts = [
        reply.prompt_tokens
        if reply.prompt_tokens is not None
        else None
        if isinstance(ask.prompt, str)
        else len(ask.prompt)
        for ask, reply in zip(asks, replies, strict=True)
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _first_token(reply: Reply) -> float:
    """Return the seconds to the token. One was asked for: where it has no text of its own, its end is the answer's."""
    return reply.ended - reply.started if reply.ttft is None else reply.ttft


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _counted(run: Run, before: Reading, tokens: int, requests: int, ttft: float | None) -> Seen:
    """Read the counters until they hold what was sent."""
    block = int(before.most("kv_block_size_tokens") or 1) if _counts_blocks(run) else 1
    least = tokens if block == 1 else tokens - requests * (block - 1)
    until = time.monotonic() + COUNTED_WITHIN
    while True:
        after = run.metrics()
        queries, hits = (_grown(before, after, name) for name in ("queries", "hits"))
        if queries is not None and hits is not None and queries * block >= least:
            break
        if time.monotonic() >= until or run.cancelled.wait(LOOK_EVERY):
            break
    if queries is None or hits is None:
        return Seen(tokens, None, ttft, "the metrics page could not be read, or the engine was restarted")
    looked_up = queries * block
    if looked_up == 0:
        return Seen(tokens, None, ttft, "the engine counted no look-up in its prefix cache")
    if looked_up > tokens:
        return Seen(tokens, None, ttft, f"others use the server: {looked_up:,} tokens were looked up, {tokens:,} sent")
    if looked_up < least:
        return Seen(tokens, None, ttft, f"only {looked_up:,} of {tokens:,} tokens were looked up")
    return Seen(tokens, hits * block, ttft)


def _counts_blocks(run: Run) -> bool:
    """Return whether the counters are in blocks, as those of vLLM 0.7.3 to 0.8.5."""
    version = parse_version(run.server.version)
    return run.server.engine == "vllm" and version is not None and version < TOKENS_SINCE


def _grown(before: Reading, after: Reading | None, name: str) -> int | None:
    """Return by how much a counter of the prefix cache grew; None where it is not there or fell."""
    if after is None:
        return None
    old, new = before.total(f"prefix_cache_{name}_total"), after.total(f"prefix_cache_{name}_total")
    if old is None or new is None or new < old:
        return None
    return round(new - old)
