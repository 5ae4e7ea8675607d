"""Changes with a value computed from the figures of an incident: memory fraction, chunk, batch, context."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import HIGHEST_FRACTION, SMALLEST_CHUNK
from gpuwatch.diagnosis.causes.view import advise
from gpuwatch.diagnosis.explanation import count, size
from gpuwatch.ledger.defaults import NEW_FRACTION, NEW_FRACTION_SINCE, OLD_FRACTION
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Run
    from gpuwatch.diagnosis.finding import Advice

LOWEST_FRACTION = 0.05
USUAL_SHARES = (0.9, 0.95)
"""Above the last one, contexts and the next peak have too little left."""
DEFAULT_SWAP = 4 * GIB
SPARE = 8 * GIB
"""What SGLang's guide to tuning wants free after the start for activations: 5 to 8 GB."""
RESERVE = GIB // 2
"""What is left free beside a peak that was seen: the next one may be a little larger."""


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


def smaller_chunk(run: Run, step_tokens: float | None = None) -> list[Advice]:
    """Return the advice to process prompts in smaller chunks; a step of `step_tokens` is known not to fit.

    Activations grow in proportion to the tokens of a step: the largest power of two below half of them is proposed.
    """
    budget = run.number("max_num_batched_tokens")
    base = min(step_tokens or budget or 0, budget or step_tokens or 0)
    if base <= SMALLEST_CHUNK:
        return (
            [advise("process prompts in smaller chunks", chunk_flag(run), budget and int(budget))] if not base else []
        )
    proposed = max(SMALLEST_CHUNK, 1 << int(math.log2(base / 2)))
    why = f"a step of {count(step_tokens)} tokens did not fit; " if step_tokens else ""
    text = (
        f"{why}process prompts in chunks of {count(proposed)}, which take about {proposed / base:.0%} of the "
        "activations"
    )
    return [advise(text, chunk_flag(run), None if budget is None else int(budget), proposed)]


def lower_fraction(run: Run, missing: float, total: float | None, why: str) -> list[Advice]:
    """Return the advice to give the engine less of the card, so that `missing` bytes and a reserve stay free."""
    current = run.number("memory_fraction")
    base, note = _counted_from(run)
    total = total or run.number("gpu.total_bytes")
    if base is None:
        return [advise(why, fraction_flag(run))]
    if not total:
        return [advise(why + note, fraction_flag(run), current, max(LOWEST_FRACTION, round(base - 0.03, 2)))]
    step = max(0.02, math.ceil((missing + RESERVE) / total * 100) / 100)
    proposed = max(LOWEST_FRACTION, round(base - step, 2))
    return [advise(f"{why}: {size(step * total)} less for the pool{note}", fraction_flag(run), current, proposed)]


def higher_fraction(run: Run, missing: float, total: float | None, why: str) -> list[Advice]:
    """Return the advice to give the engine `missing` bytes more of the card; no value where the card has no more.

    Where no value can be given and the engine has all that is usual, there is none.
    Where the card's size is not printed, a lower bound of it gives a share that is large enough in any case.
    """
    current = run.number("memory_fraction")
    base, note = _counted_from(run)
    known = total or run.number("gpu.total_bytes")
    total = known or least_total(run)
    spent = base is not None and base >= USUAL_SHARES[-1]
    if base is None or not total or missing <= 0:
        return [] if spent else [advise(why, fraction_flag(run), current)]
    wanted = math.ceil((base + missing / total) * 100) / 100
    if wanted > HIGHEST_FRACTION and not known:
        return [] if spent else [advise(f"{why}: {size(missing)} more", fraction_flag(run), current)]
    if wanted > HIGHEST_FRACTION:
        return [advise(f"{why}; {size(missing)} more would take {wanted:.0%} of the card, which it does not have")]
    return [advise(f"{why}: {size(missing)} more{note}", fraction_flag(run), current, wanted)]


def more_cards(run: Run, why: str) -> Advice:
    """Return the advice to use more GPUs for the model: twice as many, where it is known how many it has."""
    flag = "--tp-size" if run.sglang else "--tensor-parallel-size"
    return advise(why, flag, run.told_tp, None if run.told_tp is None else run.told_tp * 2)


def fewer_seats(run: Run, proposed: int, why: str, current: float | None = None) -> list[Advice]:
    """Return the advice to admit fewer requests at a time."""
    current = current if current is not None else run.number("max_num_seqs")
    if current is not None and proposed >= current:
        return []
    return [advise(why, seats_flag(run), None if current is None else int(current), proposed)]


def shorter(run: Run, proposed: float | None, why: str, current: float | None = None) -> list[Advice]:
    """Return the advice to accept shorter requests."""
    current = current if current is not None else run.number("max_model_len")
    asked = None if current is None else int(current)
    return [advise(why, length_flag(run), asked, None if proposed is None else int(proposed))]


def next_share(run: Run, why: str) -> list[Advice]:
    """Return the advice to take the next of the usual shares of a card, where nothing tells how much is missing.

    Where the engine has more than the last of them, there is none: the rest is for contexts and peaks.
    """
    base, note = _counted_from(run)
    proposed = next((share for share in USUAL_SHARES if share > base), None) if base is not None else USUAL_SHARES[-1]
    if proposed is None:
        return []
    return [advise(why + note, fraction_flag(run), run.number("memory_fraction"), proposed)]


def larger_share(run: Run, why: str) -> list[Advice]:
    """Return the advice to give the pool more of the card; none where the engine has all that may be given.

    SGLang prints what is left free after its start. Of the card outside the share, (free - `SPARE`) / free goes to the
    pool; as graphs and contexts have some of that part, a little less than `SPARE` stays free, which is why it is the
    upper end.
    """
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
