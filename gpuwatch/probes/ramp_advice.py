"""What to change where the ramp found the KV pool too small: seats, a limit on the pool, or the memory for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import HIGHEST_FRACTION
from gpuwatch.diagnosis.explanation import size
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.room import BYTES_FLAG, whole_mib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatch.probes.limits import Pool, PoolSetting
    from gpuwatch.probes.ramp import Ramp, Search


def advice(ramp: Ramp, searches: Sequence[Search]) -> Iterator[Advice]:
    """Yield what to change where the pool was too small."""
    pool, limit = ramp.pool, ramp.run.server.max_model_len
    sglang = ramp.run.server.engine == "sglang"
    for search in searches:
        bad = search.bad
        if bad is None or bad.outcome not in ("queued", "preempted") or pool is None or search.sequences:
            continue
        wanted = pool.demand(limit or search.cap + ramp.options.output)
        fits = pool.ranks * (pool.usable // wanted) if wanted else 0
        fewer = 1 <= fits < search.concurrency
        if fewer:
            yield Advice(
                f"for requests of full length ({wanted:,} tokens): admit as many as the pool of "
                f"{pool.tokens:,} tokens holds",
                "--max-running-requests" if sglang else "--max-num-seqs",
                None,
                str(fits),
            )
        need = f"{search.concurrency} requests of full length need {wanted * search.concurrency:,} tokens"
        each = wanted * -(-search.concurrency // pool.ranks)
        yield larger(pool, ramp.setting, each, f"{'or ' if fewer else ''}make the pool larger: {need}", sglang=sglang)
        return


def larger(pool: Pool, setting: PoolSetting, tokens: int, text: str, *, sglang: bool) -> Advice:
    """Return the advice for a pool of `tokens` usable tokens on each rank: `text`, and the flag that decides on it.

    A value is given only where it follows from figures of the engine, and the GPUs have so much free.
    """
    if setting.override is not None and not sglang:
        return _override(pool, setting, tokens, text)
    flag = "--mem-fraction-static" if sglang else BYTES_FLAG if setting.fixed_bytes else "--gpu-memory-utilization"
    now = f"{setting.fixed_bytes:.0f}" if setting.fixed_bytes and not sglang else None
    if now is None and setting.fraction is not None:
        now = f"{setting.fraction:g}"
    ways = f"{text} (more memory for it, an 8-bit KV cache, more GPUs)"
    pool_bytes = setting.fixed_bytes or setting.pool_bytes
    if pool_bytes is None or sglang:
        return Advice(ways, flag, now)
    more = max(0, tokens + pool.block - pool.tokens) * pool_bytes / pool.tokens  # a block is kept back
    free = "" if setting.free is None else f", and {size(setting.free)} are free"
    ways += f"; that is {size(more)} more per GPU{free}"
    if setting.free is None or setting.total is None or more > setting.free:
        return Advice(ways, flag, now)
    if setting.fixed_bytes:
        return Advice(ways, flag, now, whole_mib(setting.fixed_bytes + more, up=True))
    if setting.fraction is None:
        return Advice(ways, flag)
    fraction = math.ceil((setting.fraction + more / setting.total) * 100) / 100
    return Advice(ways, flag, now, f"{fraction:g}" if fraction <= HIGHEST_FRACTION else None)


def _override(pool: Pool, setting: PoolSetting, tokens: int, text: str) -> Advice:
    """Return the advice where a flag fixes the number of blocks: memory for the engine does nothing beside it."""
    assert setting.override is not None
    blocks = -(-tokens // pool.block) + 1
    text += f", {blocks:,} blocks; the pool is limited by this flag"
    if setting.profiled is None:
        more = "remove it, and the engine takes what the memory allows"
    elif setting.profiled <= setting.override:
        more = f"memory profiling found room for {setting.profiled:,} only: more memory first, and without this flag"
    else:
        beyond = "" if blocks <= setting.profiled else ", fewer than that"
        more = f"remove it, memory profiling found room for {setting.profiled:,}{beyond}"
        return Advice(f"{text}: {more}", "--num-gpu-blocks-override", str(setting.override), str(setting.profiled))
    return Advice(f"{text}: {more}", "--num-gpu-blocks-override", str(setting.override), "(none)")
