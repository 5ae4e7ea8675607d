"""What to change about a KV pool that is too small: nearest cause first, values computed from what was seen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import HIGHEST_FRACTION
from gpuwatch.diagnosis.context import GPU_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.explanation import count, size
from gpuwatch.diagnosis.finding import Advice

if TYPE_CHECKING:
    from gpuwatch.diagnosis.capacity import Length, Pool
    from gpuwatch.diagnosis.context import Subject


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


def seats_advice(subject: Subject, pool: Pool | None, length: Length | None, limit: float | None) -> list[Advice]:
    """Return the advice to admit only as many requests as the pool holds."""
    if pool is None or length is None:
        return []
    flag = "--max-running-requests" if subject.sglang else "--max-num-seqs"
    fits = max(1, pool.holds(length.tokens))
    if limit is not None and fits >= limit:
        return []
    text = f"admit only what fits: {count(pool.tokens)} tokens hold {_requests(fits)} of {count(length.tokens)}"
    if pool.holds(length.tokens) < 1:
        text = (
            f"not even one request of {count(length.tokens)} tokens fits into {count(pool.tokens)}; admit one at a time"
        )
    if length.basis == "running":
        text += " (an estimate until requests have finished)"
    if length.basis == "held":
        text += " or more (fewer fit if they grow further)"
    return [Advice(text, flag, f"{limit:.0f}" if limit is not None else None, str(fits))]


def pool_advice(subject: Subject, pool: Pool | None, length: Length | None, admitted: int | None) -> list[Advice]:
    """Return the size of the pool that would hold what is admitted, and the memory fraction that gives it."""
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
    flag = "--mem-fraction-static" if subject.sglang else "--gpu-memory-utilization"
    current = subject.config("memory_fraction_ratio", "memory_fraction")
    now = f"{current:g}" if current is not None else None
    proposed, room = _fraction(subject, needed - pool.tokens, pool.tokens, current)
    if room:
        text += f"; {room}"
    if proposed is None:
        text += "; an 8-bit KV cache (--kv-cache-dtype) doubles it, more GPUs enlarge it as well"
    return [Advice(text, flag, now, proposed)]


def _requests(number: int) -> str:
    return "one request" if number == 1 else f"{count(number)} requests"


def _fraction(subject: Subject, more: float, tokens: float, current: float | None) -> tuple[str | None, str]:
    """Return the memory fraction that gives `more` tokens, and whether the GPUs have that much free.

    Only where the bytes of the pool are known, and for vLLM only: its fraction is one of the total memory.
    """
    pool_bytes = subject.config("kv_cache_bytes", "kv.bytes")
    if pool_bytes is None or not tokens:
        return None, ""
    wanted = more * pool_bytes / tokens
    free = _least_free(subject)
    if free is None:
        return None, f"that is {size(wanted)} more per GPU"
    least, total = free
    if wanted > least:
        return None, f"that is {size(wanted)} more per GPU, and {size(least)} are free"
    if subject.sglang or current is None:
        return None, f"that is {size(wanted)} more per GPU, of {size(least)} that are free"
    fraction = math.ceil((current + wanted / total) * 100) / 100
    if fraction > HIGHEST_FRACTION:
        return None, f"that is {size(wanted)} more per GPU"
    return f"{fraction:g}", f"that is {size(wanted)} more per GPU, of {size(least)} that are free"


def _least_free(subject: Subject) -> tuple[float, float] | None:
    """Return (free, total) bytes of the engine's GPU that has the least free memory at its peaks."""
    placed = subject.select("gpu_engine", SERVER_SCOPE)
    found: list[tuple[float, float]] = []
    for labels, _ in subject.context.samples(placed):
        gpu = subject.context.about(dict(labels))
        free = gpu.over("min_over_time", "gpu_memory_free_bytes", "1m", GPU_SCOPE)
        total = gpu.now("gpu_memory_total_bytes", GPU_SCOPE)
        if free is None or not total:
            return None
        found.append((free, total))
    return min(found, default=None)
