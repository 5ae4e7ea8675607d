"""Changes with a value computed from the figures of an incident: memory fraction, chunk, batch, context."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import HIGHEST_FRACTION, SMALLEST_CHUNK
from gpuwatch.diagnosis.causes.view import advise
from gpuwatch.diagnosis.explanation import GIB, count, size

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Run
    from gpuwatch.diagnosis.finding import Advice

LOWEST_FRACTION = 0.05
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
    total = total or run.number("gpu.total_bytes")
    if current is None:
        return [advise(why, fraction_flag(run))]
    if not total:
        return [advise(why, fraction_flag(run), current, max(LOWEST_FRACTION, round(current - 0.03, 2)))]
    step = max(0.02, math.ceil((missing + RESERVE) / total * 100) / 100)
    proposed = max(LOWEST_FRACTION, round(current - step, 2))
    return [advise(f"{why}: {size(step * total)} less for the pool", fraction_flag(run), current, proposed)]


def higher_fraction(run: Run, missing: float, total: float | None, why: str) -> list[Advice]:
    """Return the advice to give the engine `missing` bytes more of the card; no value where the card has no more."""
    current = run.number("memory_fraction")
    total = total or run.number("gpu.total_bytes")
    if current is None or not total or missing <= 0:
        return [advise(why, fraction_flag(run), current)]
    wanted = math.ceil((current + missing / total) * 100) / 100
    if wanted > HIGHEST_FRACTION:
        return [advise(f"{why}; {size(missing)} more would take {wanted:.0%} of the card, which it does not have")]
    return [advise(f"{why}: {size(missing)} more", fraction_flag(run), current, wanted)]


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


def more_pool(run: Run) -> list[Advice]:
    """Return the ways to a larger KV pool."""
    return [
        advise(
            "or enlarge the pool: more of the card where it is free", fraction_flag(run), run.number("memory_fraction")
        ),
        advise(
            "or store the KV cache in 8 bits, or use more GPUs",
            "--kv-cache-dtype",
            run.text("kv.dtype") or None,
            "fp8_e4m3" if run.sglang else "fp8",
        ),
    ]
