"""Changes with a value computed from the figures of an incident: memory fraction, chunk, batch, context."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import HIGHEST_FRACTION, SMALLEST_CHUNK
from gpuwatch.diagnosis.causes.view import advise
from gpuwatch.diagnosis.explanation import count, size
from gpuwatch.engines.flag_versions import always_risky
from gpuwatch.ledger.defaults import NEW_FRACTION, NEW_FRACTION_SINCE, OLD_FRACTION
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Run
    from gpuwatch.diagnosis.finding import Advice

LOWEST_FRACTION = 0.05
USUAL_SHARES = (0.9, 0.95)
"""Above the last one, contexts and the next peak have too little left."""
USUAL_CARD = 80 * GIB
"""Where a card's size is not known, it is not taken to be larger than this."""
LARGEST_CARD = 288 * GIB
"""No card that engines run on has more memory (B300)."""
V1 = (0, 8, 0)
"""vLLM from here on uses the V1 engine unless told otherwise."""
JSON_LIMITS = (0, 9, 0)
"""vLLM from here on reads --limit-mm-per-prompt as JSON without a complaint."""
DEFAULT_SWAP = 4 * GIB
SPARE = 8 * GIB
"""What SGLang's guide to tuning wants free after the start for activations: 5 to 8 GB."""
RESERVE = GIB // 2
"""What is left free beside a peak that was seen: the next one may be a little larger."""
POOL_FLAG = "--kv-cache-memory-bytes"
"""vLLM's flag for a pool of a fixed size, with which it does not profile."""
QUARTER = GIB // 4
"""Sizes of a fixed pool are proposed in multiples of this."""
UNMEASURED = 5 * GIB // 2
"""What the activations of a step and CUDA graphs may take where the engine did not profile them."""


def chunk_flag(run: Run) -> str:
    """Return the flag for the token budget of one step."""
    return "--chunked-prefill-size" if run.sglang else "--max-num-batched-tokens"


def seats_flag(run: Run) -> str:
    """Return the flag for the most requests in a batch."""
    return "--max-running-requests" if run.sglang else "--max-num-seqs"


def length_flag(run: Run) -> str:
    """Return the flag for the longest request."""
    return "--context-length" if run.sglang else "--max-model-len"


def fraction_flag(run: Run) -> str:
    """Return the flag for the engine's share of GPU memory."""
    return "--mem-fraction-static" if run.sglang else "--gpu-memory-utilization"


def default_fraction(run: Run) -> float | None:
    """Return the share of GPU memory that this version takes where nothing is set; None where that is not known."""
    version = run.version
    if run.sglang or version is None:
        return None
    return NEW_FRACTION if version >= NEW_FRACTION_SINCE else OLD_FRACTION


def _counted_from(run: Run) -> tuple[float | None, str]:
    """Return the share that the engine has, and what to say where it is the default and was not printed."""
    current = run.number("memory_fraction")
    if current is not None:
        return current, ""
    default = default_fraction(run)
    return default, "" if default is None else f" (counted from {default:g}, the default of this version)"


def share_of(run: Run) -> float | None:
    """Return the share of the card that the engine may take, printed or the default; None where it is not known."""
    return _counted_from(run)[0]


def least_total(run: Run) -> float | None:
    """Return a lower bound of a card's memory: what weights and pool take of the engine's share, over that share."""
    share, weights, pool = _counted_from(run)[0], run.number("weights.bytes"), pool_bytes(run)
    return (weights + pool) / share if share and weights and pool else None


def pool_bytes(run: Run) -> float | None:
    """Return the size of the KV pool; vLLM V0 tells its blocks, and those that --swap-space (4 GiB) has room for."""
    pool, blocks, swapped = run.number("kv.bytes"), run.number("kv.blocks"), run.number("kv.cpu_blocks")
    if pool is not None or not blocks or not swapped:
        return pool
    space = run.number("flag.swap-space")
    return blocks * (DEFAULT_SWAP if space is None else space * GIB) / swapped


def first_engine(run: Run) -> bool:
    """Whether the run is of vLLM V0: by its version, or by the blocks on the host, which only V0 has."""
    if run.sglang:
        return False
    return run.number("kv.cpu_blocks") is not None or (run.version is not None and run.version < V1)


def fixed_pool(run: Run) -> float | None:
    """Return the bytes of a KV pool that a flag of vLLM fixes, beside which its share of the card has no effect."""
    return None if run.sglang else run.number(f"flag.{POOL_FLAG.removeprefix('--')}")


def _set_pool(pool: float, change: float, why: str) -> list[Advice]:
    """Return the advice to change a fixed pool by some bytes, to a quarter of a GiB; no value where none is left."""
    proposed = (pool + change) // QUARTER * QUARTER if change else 0
    text = why + (f": {size(pool)} are fixed, {size(proposed)} proposed" if proposed > 0 else "")
    return [advise(text, POOL_FLAG, int(pool), int(proposed) if proposed > 0 else None)]


def smaller_pool(run: Run, room: float | None, why: str) -> list[Advice]:
    """Return the advice to make a fixed pool so much smaller that it, and a step, go into `room` bytes."""
    pool = fixed_pool(run)
    if pool is None:
        return []
    change = -RESERVE if room is None else min(room - UNMEASURED - pool, -RESERVE)
    return _set_pool(pool, change, why)


def smaller_chunk(run: Run, step_tokens: float | None = None, fits: float = 0.5) -> list[Advice]:
    """Return the advice to process prompts in smaller chunks; a step of `step_tokens` is known not to fit.

    Activations grow in proportion to the tokens of a step: the largest power of two below half of them is proposed, or
    below the part of them, `fits`, for which there is memory, where that is less.
    """
    budget = run.number("max_num_batched_tokens")
    if first_engine(run) and not run.yes("chunked_prefill") and not run.yes("flag.enable-chunked-prefill"):
        # Without chunked prefill V0 refuses a budget below the longest request.
        return []
    base = min(step_tokens or budget or 0, budget or step_tokens or 0)
    if base <= SMALLEST_CHUNK:
        return (
            [advise("process prompts in smaller chunks", chunk_flag(run), budget and int(budget))] if not base else []
        )
    proposed = max(SMALLEST_CHUNK, 1 << int(math.log2(max(1.0, base * min(0.5, fits)))))
    why = f"a step of {count(step_tokens)} tokens did not fit; " if step_tokens else ""
    text = (
        f"{why}process prompts in chunks of {count(proposed)}, which take about {proposed / base:.0%} of the "
        "activations"
    )
    return [advise(text, chunk_flag(run), None if budget is None else int(budget), proposed)]


def lower_fraction(run: Run, missing: float, total: float | None, why: str) -> list[Advice]:
    """Return the advice to give the engine less of the card, so that `missing` bytes and a reserve stay free.

    None where the weights alone need more than what would be left. A pool of a fixed size is made smaller instead.
    """
    if (pool := fixed_pool(run)) is not None:
        return _set_pool(pool, -(missing + RESERVE), why)
    current = run.number("memory_fraction")
    base, note = _counted_from(run)
    total = total or run.number("gpu.total_bytes")
    if base is None:
        return [advise(why, fraction_flag(run))]
    if not total:
        lower = max(LOWEST_FRACTION, min(round(base - 0.03, 2), _beyond_trap(run, base)))
        return [advise(why + note, fraction_flag(run), current, lower)]
    step = max(0.02, math.ceil((missing + RESERVE) / total * 100) / 100)
    proposed = max(LOWEST_FRACTION, min(round(base - step, 2), _beyond_trap(run, base)))
    if proposed * total < (run.number("weights.bytes") or 0):
        return []
    less = size((base - proposed) * total)
    return [advise(f"{why}: {less} less for the pool{note}", fraction_flag(run), current, proposed)]


def _beyond_trap(run: Run, base: float) -> float:
    """Return the share that the table of traps proposes instead of `base`; 1 where `base` is none."""
    flag = fraction_flag(run).removeprefix("--")
    traps = always_risky("sglang" if run.sglang else "vllm", {flag: base})
    return min((float(trap.proposed) for trap in traps), default=1.0)


def higher_fraction(run: Run, missing: float, total: float | None, why: str) -> list[Advice]:
    """Return the advice to give the engine `missing` bytes more of the card; no value where the card has no more.

    Where no value can be given and the engine has all that is usual, there is none.
    Where the card's size is not printed, a lower bound of it gives a share that is large enough in any case.
    A pool of a fixed size is made larger instead.
    """
    if (pool := fixed_pool(run)) is not None:
        return _set_pool(pool, missing + QUARTER if missing > 0 else 0, why)
    current = run.number("memory_fraction")
    base, note = _counted_from(run)
    known = total or run.number("gpu.total_bytes")
    total = known or least_total(run)
    spent = base is not None and base >= USUAL_SHARES[-1]
    if base is not None and not known and missing > (HIGHEST_FRACTION - base) * LARGEST_CARD:
        return []
    if base is None or not total or missing <= 0:
        return [] if spent else [advise(why, fraction_flag(run), current)]
    wanted = math.ceil((base + missing / total) * 100) / 100
    if wanted > HIGHEST_FRACTION and not known:
        return [] if spent else [advise(f"{why}: {size(missing)} more", fraction_flag(run), current)]
    if wanted > HIGHEST_FRACTION:
        text = f"{why}: {size(missing)} more would take {wanted:.0%} of the card"
        return [advise(f"{text}, which it does not have" if wanted >= 1 else f"{text}; contexts need the last few")]
    return [advise(f"{why}: {size(missing)} more{note}", fraction_flag(run), current, wanted)]


def more_cards(run: Run, why: str) -> Advice:
    """Return the advice to use more GPUs for the model: twice as many, where it is known how many it has."""
    flag = "--tp-size" if run.sglang else "--tensor-parallel-size"
    ranks = run.told_tp or (1 if run.fact("model") is not None and run.fact("tp") is None else None)
    return advise(why, flag, run.told_tp, None if ranks is None else ranks * 2)


def fewer_seats(run: Run, proposed: int, why: str, current: float | None = None) -> list[Advice]:
    """Return the advice to admit fewer requests at a time."""
    current = current if current is not None else run.number("max_num_seqs")
    if current is not None and proposed >= current:
        return []
    return [advise(why, seats_flag(run), None if current is None else int(current), proposed)]


def fitting_seats(run: Run, holds: float | None) -> list[Advice]:
    """Return the advice to admit no more requests than the pool holds: `holds`, or what the engine said it does."""
    fits = holds if holds is not None else run.number("max_concurrency")
    if fits is not None and fits >= 1:
        number = max(1, int(fits))
        return fewer_seats(run, number, f"admit only what fits: about {count(number)} requests at a time")
    current = run.number("max_num_seqs")
    return [advise("admit fewer requests at a time", seats_flag(run), current and int(current))]


def fewer_images(run: Run, why: str) -> list[Advice]:
    """Return the advice to accept fewer images and videos in one prompt; SGLang has no flag that all versions share."""
    if run.sglang:
        return [advise(why)]
    # Pairs of names and numbers are what earlier versions read.
    pairs = run.version is not None and run.version < JSON_LIMITS
    proposed = "image=1,video=0" if pairs else '{"image": 1, "video": 0}'
    return [advise(why, "--limit-mm-per-prompt", run.text("flag.limit-mm-per-prompt"), proposed)]


def capped_image(run: Run, why: str) -> list[Advice]:
    """Return the advice to cap the size of an image, where the engine has a flag for it."""
    return [] if run.sglang else [advise(why + ': {"max_pixels": …}', "--mm-processor-kwargs")]


def shorter(run: Run, proposed: float | None, why: str, current: float | None = None) -> list[Advice]:
    """Return the advice to accept shorter requests."""
    current = current if current is not None else run.number("max_model_len")
    asked = None if current is None else int(current)
    return [advise(why, length_flag(run), asked, None if proposed is None else int(proposed))]


def next_share(run: Run, why: str) -> list[Advice]:
    """Return the advice to take the next of the usual shares of a card, where nothing tells how much is missing.

    Where the engine has more than the last of them, there is none: the rest is for contexts and peaks.
    """
    if (pool := fixed_pool(run)) is not None:
        return _set_pool(pool, 0, why)
    base, note = _counted_from(run)
    proposed = next((share for share in USUAL_SHARES if share > base), None) if base is not None else USUAL_SHARES[-1]
    if proposed is None:
        return []
    return [advise(why + note, fraction_flag(run), run.number("memory_fraction"), proposed)]


def share_for(run: Run, missing: float, why: str) -> list[Advice]:
    """Return the advice to take a usual share of the card that gives `missing` bytes more, its size being unknown.

    A share is proposed with the size that the card must have for it; none where that is more than `USUAL_CARD`.
    """
    if (pool := fixed_pool(run)) is not None:
        return _set_pool(pool, missing + QUARTER, why)
    base, note = _counted_from(run)
    current = run.number("memory_fraction")
    if base is None:
        return next_share(run, why)
    for share in USUAL_SHARES:
        if share > base and missing / (share - base) <= USUAL_CARD:
            enough = (
                f": {size(missing)} are missing, which it gives on cards of {size(missing / (share - base))} and up"
            )
            return [advise(why + enough + note, fraction_flag(run), current, share)]
    if base >= USUAL_SHARES[-1]:
        return []
    return [advise(f"{why}: at least {size(missing)} more{note}", fraction_flag(run), current)]


def larger_share(run: Run, why: str) -> list[Advice]:
    """Return the advice to give the pool more of the card; none where the engine has all that may be given.

    SGLang prints what is left free after its start. Of the card outside the share, (free - `SPARE`) / free goes to the
    pool; as graphs and contexts have some of that part, a little less than `SPARE` stays free, which is why it is the
    upper end.
    """
    if (pool := fixed_pool(run)) is not None:
        return _set_pool(pool, 0, why)
    current, free = run.number("memory_fraction"), run.number("avail.at_end_bytes")
    if current is not None and current >= USUAL_SHARES[-1]:
        return []
    if not run.sglang or current is None or free is None or free <= SPARE or not 0 < current < 1:
        return [advise(why, fraction_flag(run), current)]
    proposed = math.floor((current + (1 - current) * (free - SPARE) / free) * 100) / 100
    if not current < proposed <= HIGHEST_FRACTION:
        return [advise(why, fraction_flag(run), current)]
    return [advise(f"{why}; {size(free)} are free after the start", fraction_flag(run), current, proposed)]


def more_pool(run: Run) -> list[Advice]:
    """Return the ways to a larger KV pool."""
    return [
        *larger_share(run, "or enlarge the pool: more of the card where it is free"),
        advise(
            "or store the KV cache in 8 bits, or use more GPUs",
            "--kv-cache-dtype",
            run.text("kv.dtype") or None,
            "fp8_e4m3" if run.sglang else "fp8",
        ),
    ]
