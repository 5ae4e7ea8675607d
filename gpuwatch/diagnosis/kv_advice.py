"""What to change about a KV pool that is too small: nearest cause first, values computed from what was seen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import HIGHEST_FRACTION
from gpuwatch.diagnosis.explanation import count, size
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.room import fixed_pool, memory_flag, quantised, room_of, whole_mib

if TYPE_CHECKING:
    from gpuwatch.diagnosis.capacity import Length, Pool
    from gpuwatch.diagnosis.context import Subject


EIGHT_BITS = "an 8-bit KV cache (--kv-cache-dtype) doubles it"
"""What is said only where the cache is not known to be stored in 8 bits already."""


def blocks_override(subject: Subject) -> float | None:
    """Return the KV blocks that --num-gpu-blocks-override forces, or None where it is not used."""
    return subject.now("engine_num_gpu_blocks_override") or subject.number("kv.blocks_override")


def pool_limit(subject: Subject, pool: Pool | None, length: Length | None, admitted: int | None) -> list[Advice]:
    """Return the advice to lift a limit that somebody put on the pool, or nothing where there is none."""
    if subject.sglang:
        fact = subject.fact("flag.max-total-tokens")
        if fact is None:
            return []
        return [Advice("the pool is capped by a flag: remove the cap", "--max-total-tokens", str(fact.value), "(none)")]
    override = blocks_override(subject)
    if not override:
        return []
    profiled = subject.config("kv_cache_profiled_blocks", "kv.blocks_profiled")
    if profiled is None:
        return [
            Advice(
                "the pool is limited by this flag: remove it, and the engine takes what the memory allows",
                "--num-gpu-blocks-override",
                f"{override:.0f}",
                "(none)",
            )
        ]
    if profiled <= override:
        return []
    text = f"the pool is limited by this flag: remove it, memory profiling found room for {count(profiled)} blocks"
    if pool is not None and pool.blocks is not None and length is not None and admitted is not None:
        needed = pool.blocks_needed(admitted, length.tokens)
        verdict = "" if needed <= profiled else ", more than that"
        need = "needs" if admitted == 1 else "need"
        text += f"; {_requests(admitted)} of {count(length.tokens)} tokens {need} {count(needed)}{verdict}"
    return [Advice(text, "--num-gpu-blocks-override", f"{override:.0f}", f"{profiled:.0f}")]


def seats_advice(
    subject: Subject, pool: Pool | None, length: Length | None, limit: float | None, admitted: int | None
) -> list[Advice]:
    """Return the advice to admit only as many requests as the pool holds, and fewer than ran at once."""
    if pool is None or length is None:
        return []
    flag = "--max-running-requests" if subject.sglang else "--max-num-seqs"
    now = f"{limit:.0f}" if limit is not None else None
    fits = max(1, pool.holds(length.tokens))
    open_ = admitted if admitted is not None else limit
    most = subject.over("max_over_time", "engine_requests_running", "2m")
    if open_ is not None and fits >= min(open_, most or open_):
        return _fewer_seats(subject, length, flag, now, int(min(open_, fits)))
    text = f"admit only what fits: {count(pool.tokens)} tokens hold {_requests(fits)} of {count(length.tokens)}"
    if pool.holds(length.tokens) < 1:
        text = (
            f"not even one request of {count(length.tokens)} tokens fits into {count(pool.tokens)}; admit one at a time"
        )
    if length.basis == "running":
        text += " (an estimate until requests have finished)"
    if length.basis == "held":
        text += " or more (fewer fit if they grow further)"
    return [Advice(text, flag, now, str(fits))]


def _fewer_seats(subject: Subject, length: Length, flag: str, now: str | None, fitting: int) -> list[Advice]:
    """Return the advice where as many as run at most would fit by their typical length, and yet some are thrown out.

    The pool holds what runs beside the evictions: the mean of running requests over the last minute, at most one
    request fewer than the `fitting` ones.
    """
    if fitting <= 1:
        return []
    ran = subject.over("avg_over_time", "engine_requests_running", "1m")
    fewer = fitting - 1 if ran is None else max(1, min(fitting - 1, math.floor(ran)))
    text = (
        f"admit fewer: {_requests(fitting)} would fit if each had the typical {count(length.tokens)} tokens, but "
        "lengths vary, and longer ones together do not fit"
    )
    if ran is not None:
        text += f"; {ran:.1f} ran on average in the last minute"
    return [Advice(text, flag, now, str(fewer))]


def pool_advice(subject: Subject, pool: Pool | None, length: Length | None, admitted: int | None) -> list[Advice]:
    """Return the size of the pool that would hold what is admitted, and the memory setting that gives it."""
    if pool is None or length is None or admitted is None:
        return []
    needed = admitted * length.tokens
    if needed <= pool.tokens:
        return []
    text = (
        f"or a pool of {count(needed)} tokens (+{count(needed - pool.tokens)}) "
        f"for {_requests(admitted)} of {count(length.tokens)}"
    )
    if pool.blocks is not None:
        text += f": {count(pool.blocks_needed(admitted, length.tokens))} blocks of {count(pool.block)}"
    override = None if subject.sglang else blocks_override(subject)
    if override and pool.blocks is not None:
        blocks = pool.blocks_needed(admitted, length.tokens)
        profiled = subject.config("kv_cache_profiled_blocks", "kv.blocks_profiled")
        if profiled is None or blocks <= profiled:
            return [Advice(text, "--num-gpu-blocks-override", f"{override:.0f}", str(blocks))]
    flag, now = memory_flag(subject)
    proposed, room = _setting(subject, needed - pool.tokens, pool.tokens)
    if room:
        text += f"; {room}"
    if proposed is None:
        text += "; more GPUs enlarge it" if quantised(subject) else f"; {EIGHT_BITS}, more GPUs enlarge it as well"
    return [Advice(text, flag, now, proposed)]


def _requests(number: int) -> str:
    return "one request" if number == 1 else f"{count(number)} requests"


def _setting(subject: Subject, more: float, tokens: float) -> tuple[str | None, str]:
    """Return the value of the memory flag that gives `more` tokens, and whether the GPUs have that much free.

    Only where the bytes of the pool are known, and for vLLM only: its fraction is one of the total memory.
    """
    fixed = fixed_pool(subject)
    pool_bytes = subject.config("kv_cache_bytes", "kv.bytes") or fixed
    if pool_bytes is None or not tokens:
        return None, ""
    wanted = more * pool_bytes / tokens
    room = room_of(subject, "1m")
    words = f"that is {size(wanted)} more per GPU" + (f", and {room.words}" if room is not None else "")
    current = subject.config("memory_fraction_ratio", "memory_fraction")
    if room is None or wanted > room.share() or subject.sglang or (fixed is None and current is None):
        return None, words
    if fixed is not None or current is None:
        return whole_mib((fixed or 0.0) + wanted, up=True), words
    fraction = math.ceil((current + wanted / room.total) * 100) / 100
    if fraction > HIGHEST_FRACTION:
        return None, f"that is {size(wanted)} more per GPU"
    return f"{fraction:g}", words
