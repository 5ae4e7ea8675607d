"""What the replies of one wave say together: how it ended, its times and its rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from gpuwatch.probes.point import Point
from gpuwatch.probes.truncation import fate
from gpuwatch.probes.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.probes.exchange import Reply
    from gpuwatch.probes.limits import Pool
    from gpuwatch.probes.meter import Peaks
    from gpuwatch.probes.point import Outcome

_IN_ONE_PIECE = "the stream came in one piece: no times within it"
_TEXT = Vocabulary()
"""Prompts of text, whose tokens per word the server counted."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a wave from outside its streams.

    Attributes:
        peaks: Of the engine's page and of the GPUs.
        preempted: Preemptions; None: the page does not count them.
        pool: The KV pool; None: not known.
        seats: Requests that ran in two looks in a row while others waited and the pool had room for one of them.
        beside: Requests that ran by a look at the page that began when all had begun to generate, and was over before
            one of them ended; None: there was no such look, or the page lags behind the streams (SGLang's).
        allowance: Tokens of a request that was held for others and not let go: it may have ended before they began,
            and its stream been read late. None: it says nothing.
    """

    peaks: Peaks
    preempted: int | None = None
    pool: Pool | None = None
    seats: float | None = None
    beside: float | None = None
    allowance: int | None = None

    def full(self, tokens: int) -> bool:
        """Return whether the pool was once too full for a prompt of so many tokens."""
        usage = self.peaks.kv_usage
        return usage is not None and self.pool is not None and full_at(usage, self.pool, tokens)

    def waited(self, tokens: int, requests: int) -> bool:
        """Return whether the page shows that requests waited: fewer ran than were sent, or the pool was full."""
        running = self.peaks.running
        return self.full(tokens) or (running is not None and running < requests)

    def together(self, replies: Sequence[Reply]) -> bool:
        """Return whether all requests were being answered at some moment, by their streams and the page."""
        if not _overlap(replies):
            return False
        if self.beside is not None:
            return self.beside >= len(replies)
        running = self.peaks.running
        if self.allowance is None or (running is not None and running >= len(replies)):
            return True
        return all(reply.generated < self.allowance for reply in replies)


def judge(
    replies: Sequence[Reply],
    tokens: int,
    seen: Seen,
    *,
    over: str = "",
    words: Vocabulary = _TEXT,
    single: bool = True,
) -> Point:
    """Return what the replies of one wave say together.

    `words` made the prompts of `tokens` tokens. `single`: pieces are tokens, so they can be counted where
    the server did not say how many tokens came.
    """
    peaks = seen.peaks
    outcome, detail = _outcome(replies, tokens, seen, over=over, words=words)
    good = [reply for reply in replies if reply.answered and reply.first_token is not None]
    whole = len(good) == len(replies)
    ttfts = [reply.ttft for reply in good if reply.ttft is not None]
    started = min((reply.started for reply in good), default=0.0)
    first_tokens = max((reply.first_token for reply in good if reply.first_token is not None), default=0.0) - started
    counted = [reply.prompt_tokens for reply in good if reply.prompt_tokens is not None]
    length = round(median(counted)) if counted and outcome not in ("cut", "ignored") else tokens
    known = single or all(reply.completion_tokens is not None for reply in good)
    rates = [rate for reply in good if known and (rate := reply.decode_rate) is not None]
    limited = sum(reply.pauses for reply in replies)
    seconds = max((reply.ended for reply in good), default=started) - started
    fullest = max(peaks.gpu_memory.values(), default=None)
    buffered = bool(good) and all(reply.buffered for reply in good)
    undisturbed = whole and outcome == "ok" and not limited and not buffered
    long = bool(counted) or not words.guessed
    if not detail and (limited or buffered):
        detail = f"{limited} sent back by a rate limit: no rates" if limited else _IN_ONE_PIECE
    return Point(
        concurrency=len(replies),
        prompt_tokens=length,
        outcome=outcome,
        detail=detail,
        ttft=median(ttfts) if ttfts else None,
        ttft_most=max(ttfts, default=None),
        prefill_rate=length * len(good) / first_tokens if undisturbed and long and first_tokens > 0 else None,
        decode_rate=median(rates) if rates else None,
        output_rate=sum(reply.generated for reply in good) / seconds
        if good and known and seconds > 0 and not limited
        else None,
        kv_usage=peaks.kv_usage,
        running=peaks.running,
        preemptions=seen.preempted,
        held_tokens=max((length + reply.generated for reply in good), default=None) if known and whole else None,
        gpu_bytes=fullest[0] if fullest else None,
        gpu_size=fullest[1] if fullest else None,
        cached_tokens=max((reply.cached_tokens for reply in good if reply.cached_tokens is not None), default=None),
        counted_tokens=min(counted, default=None),
        limited=limited,
        uncounted=bool(good) and not known,
        ran_on=any(reply.ran_on for reply in replies),
        buffered=buffered,
        sent_tokens=tokens,
        sent_bytes=max(reply.sent_bytes for reply in replies),
    )


def _outcome(replies: Sequence[Reply], tokens: int, seen: Seen, *, over: str, words: Vocabulary) -> tuple[Outcome, str]:
    for kind in ("lost", "failed", "login", "refused", "timeout", "limited"):
        bad = [reply for reply in replies if reply.kind == kind and not reply.ran_on]
        if bad and not (over and kind == "timeout"):
            share = "" if len(replies) == 1 else f"{len(bad)} of {len(replies)}: "
            return kind, share + bad[0].error
    if over or any(not reply.answered for reply in replies):
        return "stopped", over or "not all requests were sent"
    return _unread(replies, tokens, words) or _held(replies, tokens, seen)


def _held(replies: Sequence[Reply], tokens: int, seen: Seen) -> tuple[Outcome, str]:
    """Return whether requests that were all answered were in the KV pool at the same time, and what shows why not."""
    if seen.preempted:
        return "preempted", f"{seen.preempted} preemption{'s' if seen.preempted > 1 else ''}"
    unseen = all(reply.buffered for reply in replies) and not seen.waited(tokens, len(replies))
    if len(replies) == 1 or seen.together(replies) or unseen:
        return "ok", ""
    if seen.full(tokens) or (seen.pool is not None and seen.pool.each(len(replies)) < tokens):
        return "queued", "not all were in the KV pool at the same time"
    running = seen.peaks.running
    if seen.seats is not None and seen.seats == running and running < len(replies):
        return "sequences", f"not all ran at the same time although the KV pool had room, at most {running:.0f} ran"
    unclear: tuple[Outcome, str] = "unclear", "that all ran at the same time is not shown, nor why they would not"
    return ("apart", "no page that shows why") if seen.pool is None else unclear


def full_at(usage: float, pool: Pool, tokens: float) -> bool:
    """Return whether a pool used to this share has no room for so many tokens of one request."""
    return (1 - usage) * pool.usable < pool.demand(math.ceil(tokens))


def _unread(replies: Sequence[Reply], tokens: int, words: Vocabulary) -> tuple[Outcome, str] | None:
    """Return what happened to prompts that the server accepted without reading them whole, None where it read all."""
    fates = [fate(reply, tokens, words) for reply in replies]
    kinds: tuple[Literal["ignored", "cut"], ...] = ("ignored", "cut")
    for kind in kinds:
        if kind not in fates:
            continue
        share = "" if len(replies) == 1 else f"{fates.count(kind)} of {len(replies)}: "
        if kind == "ignored":
            return kind, f"{share}an answer without one token"
        counted = min(reply.prompt_tokens for reply in replies if reply.prompt_tokens is not None)
        return kind, f"{share}sent {tokens:,} tokens, the server counts {counted:,}"
    return None


def _overlap(replies: Sequence[Reply]) -> bool:
    """Return whether at some moment all streams had begun and none had ended."""
    firsts = [reply.first_token for reply in replies if reply.first_token is not None]
    return len(firsts) == len(replies) and max(firsts) < min(reply.ended for reply in replies)
