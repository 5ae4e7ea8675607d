"""Requests of one length that are all sent at the same moment, and held until all of them generate."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.probes.meter import Peaks, watched
from gpuwatch.probes.truncation import fate
from gpuwatch.probes.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.probes.exchange import Reply
    from gpuwatch.probes.limits import Pool
    from gpuwatch.probes.meter import Reading
    from gpuwatch.probes.result import Value
    from gpuwatch.probes.run import Run

Outcome: TypeAlias = Literal[
    "ok",
    "sequences",
    "queued",
    "preempted",
    "cut",
    "ignored",
    "refused",
    "timeout",
    "limited",
    "login",
    "failed",
    "lost",
    "stopped",
]
"""sequences: not all ran at the same time although the pool had room; queued: it had none; stopped: by the probe.

cut: fewer prompt tokens were counted than were sent; ignored: an answer without one token.
"""

BROKEN = frozenset({"queued", "preempted", "cut", "ignored", "refused", "timeout", "failed", "lost"})
DANGEROUS = frozenset({"failed", "lost"})
ENDING = frozenset({"stopped", "limited", "login"})
"""What says nothing about the length, and ends the probe: its own end, a rate limit that stays, a refused login."""
_TEXT = Vocabulary()
"""Prompts of text, whose tokens per word the server counted."""
MOST_HELD = 1024
"""Tokens that a request generates at most while it waits for the others."""
LINGER_SECONDS = 0.5
"""How long all requests are held at most when all are there, until the metrics page was looked at."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one wave measured. None: not measured or not told. Times in seconds, rates in tokens per second.

    `sent_tokens` is the length that was meant; `prompt_tokens` is what the server counts of it where all were read.
    `held_tokens` are prompt and generated tokens of the longest request, `counted_tokens` the least prompt tokens that
    the server counted of a request, `sent_bytes` the size of the largest body. `limited` is how often a rate limit made
    requests wait: such a wave has no rates, because the waiting is in its seconds. `ran_on`: the server ignores
    max_tokens. `buffered`: streams came in one piece, so that no time within them is known. `uncounted`: how many
    tokens came is not known, so there are no rates of decoding and output.
    """

    concurrency: int
    prompt_tokens: int
    outcome: Outcome
    detail: str = ""
    ttft: float | None = None
    ttft_most: float | None = None
    prefill_rate: float | None = None
    decode_rate: float | None = None
    output_rate: float | None = None
    kv_usage: float | None = None
    running: float | None = None
    preemptions: int | None = None
    held_tokens: int | None = None
    gpu_bytes: float | None = None
    gpu_size: float | None = None
    cached_tokens: int | None = None
    counted_tokens: int | None = None
    limited: int = 0
    uncounted: bool = False
    ran_on: bool = False
    buffered: bool = False
    sent_tokens: int = 0
    sent_bytes: int = 0

    @property
    def broken(self) -> bool:
        """Whether this load is beyond what the server carries."""
        return self.outcome in BROKEN

    @property
    def begun(self) -> bool:
        """Whether the server accepted the requests, whatever came of them."""
        return self.outcome in ("ok", "sequences", "queued", "preempted", "timeout")

    def row(self, gpu_before: float | None) -> dict[str, Value]:
        """Return the point as a row of a result; `gpu_before` are the bytes of the fullest GPU before the probe."""
        step = None if self.gpu_bytes is None or gpu_before is None else self.gpu_bytes - gpu_before
        row: dict[str, Value] = {
            "concurrency": self.concurrency,
            "prompt_tokens": self.prompt_tokens,
            "counted_tokens": self.counted_tokens,
            "outcome": self.outcome,
            "ttft_s": self.ttft,
            "ttft_max_s": self.ttft_most,
            "prefill_tokens_per_s": self.prefill_rate,
            "decode_tokens_per_s": self.decode_rate,
            "output_tokens_per_s": self.output_rate,
            "kv_usage_ratio": self.kv_usage,
            "running": self.running,
            "preemptions": self.preemptions,
            "held_tokens": self.held_tokens,
            "gpu_peak_bytes": self.gpu_bytes,
            "gpu_step_bytes": step,
            "detail": self.detail,
        }
        return row


class _Hold:
    """Lets requests end together: none before all of them have generated `output` tokens, or have failed."""

    def __init__(self, requests: int, output: int, linger: float) -> None:
        self._missing = set(range(requests))
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
        self.arrive(index)

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


class _Shut:
    """Ends the holding when it is certain that the pool is too small.

    That is after a preemption, or when two looks in a row show requests that wait and no room for one of them.
    """

    def __init__(self, hold: _Hold, pool: Pool | None, tokens: int, preempted: float | None) -> None:
        self._hold, self._pool, self._tokens, self._preempted = hold, pool, tokens, preempted
        self._before = False

    def look(self, reading: Reading | None, began: float) -> None:
        self._hold.seen(began, read=reading is not None)
        if reading is None:
            return
        usage, waiting = reading.least("kv_cache_usage_ratio"), reading.total("requests_waiting")
        full = bool(waiting) and self._pool is not None and usage is not None and _full(usage, self._pool, self._tokens)
        preempted = reading.total("preemptions_total")
        more = preempted is not None and self._preempted is not None and preempted > self._preempted
        if more or (full and self._before):
            self._hold.give_up()
        self._before = full


def _full(usage: float, pool: Pool, tokens: int) -> bool:
    """Return whether a pool used to this share has no room for a prompt of so many tokens."""
    return (1 - usage) * pool.usable < pool.demand(tokens)


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
    shut = _Shut(hold, pool, tokens, before.total("preemptions_total") if before is not None else None)
    with watched(run.metrics, run.gpu_memory, look=shut.look, poke=hold.poke) as peaks:
        if concurrency == 1:
            replies = [send(0)]
        else:
            with ThreadPoolExecutor(concurrency, thread_name_prefix="wave") as threads:
                replies = list(threads.map(send, range(concurrency)))
    if concurrency == 1 and not hold.looked:
        peaks.kv_usage = None  # all looks came before the prompt was whole in the pool
    after = run.metrics()
    preempted = None
    if before is not None and after is not None:
        first, last = before.total("preemptions_total"), after.total("preemptions_total")
        preempted = None if first is None or last is None else max(0, round(last - first))
    words = run.vocabulary
    return judge(replies, tokens, peaks, preempted=preempted, pool=pool, over=run.over, words=words, single=single)


def counted_alone(run: Run, tokens: int, name: str) -> Reply:
    """Send the first prompt of a wave once more, alone and to its end: only then does the server say what it counts.

    A stream that is closed when all requests were held together ends before the usage comes.
    """
    return run.ask(run.vocabulary.prompt(tokens, f"{name}/0"), 1, ignore_eos=True)


def judge(
    replies: Sequence[Reply],
    tokens: int,
    peaks: Peaks,
    *,
    preempted: int | None,
    pool: Pool | None,
    over: str = "",
    words: Vocabulary = _TEXT,
    single: bool = True,
) -> Point:
    """Return what the replies of one wave say together.

    `words` made the prompts of `tokens` tokens. `single`: pieces are tokens, so they can be counted where
    the server did not say how many tokens came.
    """
    outcome, detail = _outcome(replies, tokens, peaks, preempted, pool, over=over, words=words)
    good = [reply for reply in replies if reply.answered and reply.first_token is not None]
    ttfts = [reply.ttft for reply in good if reply.ttft is not None]
    started = min((reply.started for reply in good), default=0.0)
    first_tokens = max((reply.first_token for reply in good if reply.first_token is not None), default=0.0) - started
    counted = [reply.prompt_tokens for reply in good if reply.prompt_tokens is not None]
    length = round(median(counted)) if counted and outcome not in ("cut", "ignored") else tokens
    known = single or all(reply.completion_tokens is not None for reply in good)
    rates = [rate for reply in good if known and (rate := reply.decode_rate) is not None]
    limited = sum(reply.pauses for reply in replies)
    if limited and not detail:
        detail = f"{limited} sent back by a rate limit: no rates"
    seconds = max((reply.ended for reply in good), default=started) - started
    fullest = max(peaks.gpu_memory.values(), default=None)
    buffered = bool(good) and all(reply.buffered for reply in good)
    undisturbed = len(good) == len(replies) and outcome == "ok" and not limited and not buffered
    long = bool(counted) or not words.guessed
    if buffered and not detail:
        detail = "the stream came in one piece: no times within it"
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
        preemptions=preempted,
        held_tokens=max((length + reply.generated for reply in good), default=None)
        if known and len(good) == len(replies)
        else None,
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


def _outcome(
    replies: Sequence[Reply],
    tokens: int,
    peaks: Peaks,
    preempted: int | None,
    pool: Pool | None,
    *,
    over: str,
    words: Vocabulary,
) -> tuple[Outcome, str]:
    for kind in ("lost", "failed", "login", "refused", "timeout", "limited"):
        bad = [reply for reply in replies if reply.kind == kind and not reply.ran_on]
        if bad and not (over and kind == "timeout"):
            share = "" if len(replies) == 1 else f"{len(bad)} of {len(replies)}: "
            return kind, share + bad[0].error
    if over or any(not reply.answered for reply in replies):
        return "stopped", over or "not all requests were sent"
    return _unread(replies, tokens, words) or _held(replies, tokens, peaks, preempted, pool)


def _held(
    replies: Sequence[Reply], tokens: int, peaks: Peaks, preempted: int | None, pool: Pool | None
) -> tuple[Outcome, str]:
    """Return whether requests that were all answered were in the KV pool at the same time."""
    if preempted:
        return "preempted", f"{preempted} preemption{'s' if preempted > 1 else ''}"
    if len(replies) == 1 or _together(replies):
        return "ok", ""
    if all(reply.buffered for reply in replies) and not _waited(peaks, pool, tokens, len(replies)):
        return "ok", ""
    if peaks.kv_usage is not None and pool is not None and not _full(peaks.kv_usage, pool, tokens):
        most = "" if peaks.running is None else f", at most {peaks.running:.0f} ran"
        return "sequences", f"not all ran at the same time although the KV pool had room{most}"
    return "queued", "not all were in the KV pool at the same time"


def _waited(peaks: Peaks, pool: Pool | None, tokens: int, requests: int) -> bool:
    """Return whether the page shows that requests waited: fewer ran than were sent, or the pool was full."""
    full = peaks.kv_usage is not None and pool is not None and _full(peaks.kv_usage, pool, tokens)
    return full or (peaks.running is not None and peaks.running < requests)


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


def _together(replies: Sequence[Reply]) -> bool:
    """Return whether at some moment all requests had begun to generate and none had ended."""
    firsts = [reply.first_token for reply in replies if reply.first_token is not None]
    return len(firsts) == len(replies) and max(firsts) < min(reply.ended for reply in replies)
