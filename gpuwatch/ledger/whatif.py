"""What-if rows: one change at a time, what it buys in context and requests, and what it costs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_versions import risky_above
from gpuwatch.ledger.kv import element_bytes
from gpuwatch.ledger.lengths import too_long
from gpuwatch.ledger.need import Engine, with_weights
from gpuwatch.ledger.plan import (
    capacity_of,
    card_of,
    fewer_ranks,
    fraction_needed,
    own_pool,
    pool_flag,
    possible_tp,
    retuned,
    verdict_of,
)
from gpuwatch.ledger.starts import cut_width, most_sharing, obstacles
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FRACTION_STEP = 0.03
RECENT_TOKENS = 4096
"""Tokens that stay in 16 bits in the mixed-precision row."""
WINDOW_TOKENS = 4096
CONTEXT_STEP = 1024
LEAST_CHUNK = 1024
SMALL_GAIN = 1.01
SCALED_TOGETHER = 128
"""Weights that share a scale in most quantised checkpoints."""

VERDICTS = {"fits": 0, "tight": 1, "unknown": 2, "does_not_fit": 3}
"""Verdicts, the best first."""
FREE, SPEED, QUALITY, HARDWARE = range(4)
"""What a change costs, cheapest first."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change in words, what it costs in words, the class of the cost, and the changed engine.

    `available` is False for what neither engine offers today, and for another model. `recent` tokens of each request
    take twice the bytes that the engine's KV type gives.
    """

    change: str
    costs: str
    weight: int
    engine: Engine
    available: bool = True
    recent: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """What a change buys: the longest request, how many of full length fit, and the verdict.

    `serves` is False where the engine, launched like this, holds no request that was asked for, whatever the verdict
    on the card.
    """

    change: str
    costs: str
    weight: int
    engine: Engine
    max_context: int
    max_concurrency: float
    verdict: str
    available: bool = True
    serves: bool = True


def what_if(engine: Engine, others: Sequence[Engine] = ()) -> tuple[Row, ...]:
    """Return the changes that buy something, best first.

    First come those that make what was asked for fit, the cheapest of them first; then the others by how much longer
    a request they allow. Where the engine does not start with its ranks, only what changes that is of use. `others`
    share the cards and stay as they are.
    """
    share = _share(engine, others)
    base = _measure(Change("", "", FREE, engine), others, share)
    rows = [_measure(change, others, share) for change in _beside(engine, others)]
    for change in _shorter(engine, base, others, share):
        row = _measure(change, others, share)
        rows.append(replace(row, max_context=min(row.max_context, change.engine.deployment.context)))
    stuck = bool(obstacles(engine.model, engine.deployment))
    useful = [row for row in rows if _order(row) < _order(base) or (_gain(row, base) > SMALL_GAIN and not stuck)]
    return tuple(
        sorted(useful, key=lambda row: (_order(row), row.weight if _order(row) == 0 else 0, -_gain(row, base)))
    )


def _share(engine: Engine, others: Sequence[Engine]) -> float | None:
    """Return the share of the card with which vLLM is launched beside others; None where its own fraction counts."""
    if not others or engine.deployment.engine != "vllm" or engine.deployment.fraction_asked:
        return None
    return min(1.0, fraction_needed(engine))


def _shorter(engine: Engine, base: Row, others: Sequence[Engine], share: float | None) -> Iterator[Change]:
    """Yield the longest context that fits where the one that was asked for does not."""
    if obstacles(engine.model, engine.deployment):
        return
    if base.verdict != "does_not_fit" and _serves(base):
        return
    asked = engine.deployment.context
    low, high = 0, (asked - 1) // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        tried = engine.with_deployment(context=middle * CONTEXT_STEP)
        row = _measure(Change("", "", FREE, tried), others, share)
        low, high = (middle, high) if row.verdict == "fits" and _serves(row) else (low, middle - 1)
    if low:
        flag = "--context-length" if engine.deployment.engine == "sglang" else "--max-model-len"
        length = low * CONTEXT_STEP
        costs = "longer requests are refused"
        yield Change(f"{flag} {asked} → {length}", costs, SPEED, engine.with_deployment(context=length))


def best_pair(engine: Engine, others: Sequence[Engine] = ()) -> Row | None:
    """Return the cheapest two changes that together make what was asked for fit, when no single one does.

    More cards are another question: two changes are sought on those that there are, though twice as many would do.
    """
    share = _share(engine, others)
    base = _measure(Change("", "", FREE, engine), others, share)
    changes = [change for change in _beside(engine, others) if change.available]
    measured = [(change, _measure(change, others, share)) for change in changes]
    here = [(change, row) for change, row in measured if change.weight != HARDWARE]
    alone = min(_order(row) for row in (base, *(row for _, row in here)))
    if alone == 0:
        return None
    enough = any(_order(row) == 0 for _, row in measured)
    singles = [change for change, _ in (here if enough else measured)]
    better = [row for row in (_measure(pair, others, share) for pair in _pairs(singles)) if _order(row) < alone]
    return min(better, key=lambda row: (row.weight, _order(row), -row.max_context), default=None)


def on_these_cards(engine: Engine, context: int, *, four_bit_kv: bool = False) -> tuple[Row, ...]:
    """Return what single changes, and last the best two together, buy an engine that runs, without more cards.

    Changes that buy nothing are left out; the largest gain comes first, of equal ones the cheaper. The two are the best
    that cost no quality, or, where those serve no request of `context` tokens, the cheapest that do.

    Args:
        engine: As it runs.
        context: Tokens of the requests whose concurrency is measured.
        four_bit_kv: Whether the cards have kernels for a 4-bit KV cache (Blackwell).
    """
    asked = engine.with_deployment(context=context)
    base = _measure(Change("", "", FREE, asked), ())
    singles = [
        change
        for change in _changes(asked)
        if change.available
        and change.weight != HARDWARE
        and (four_bit_kv or change.engine.deployment.kv_dtype != "nvfp4")
    ]
    bought = [(change, row) for change in singles if _more(row := _measure(change, ()), base)]
    pairs = [_measure(pair, ()) for pair in _pairs([change for change, _ in bought])]
    pairs = [row for row in pairs if _more(row, base)]
    unharmed = min((row for row in pairs if row.weight <= 2 * SPEED), key=_worth, default=None)
    serving = [row for row in pairs if _serves(row)]
    if unharmed is None or (not _serves(unharmed) and serving):
        unharmed = min(serving or pairs, key=lambda row: (row.weight, -row.max_concurrency), default=None)
    rows = sorted((row for _, row in bought), key=_worth)
    return (*rows, unharmed) if unharmed is not None else tuple(rows)


def concurrency(engine: Engine, context: int) -> float:
    """Return how many requests of `context` tokens fit into the engine's pool."""
    return capacity_of(engine.with_deployment(context=context)).served


def _serves(row: Row) -> bool:
    """Return whether each pool holds a request of full length."""
    return row.max_concurrency >= row.engine.deployment.pools


def _worth(row: Row) -> tuple[float, int]:
    return -row.max_concurrency, row.weight


def _more(row: Row, base: Row) -> bool:
    return row.max_concurrency > SMALL_GAIN * base.max_concurrency


def _beside(engine: Engine, others: Sequence[Engine]) -> Iterator[Change]:
    """Yield the changes that are possible beside `others`: a larger share is none, which the others would lack."""
    share = engine.deployment.fraction
    return (change for change in _changes(engine) if not others or change.engine.deployment.fraction == share)


def _pairs(singles: Sequence[Change]) -> Iterator[Change]:
    """Yield every two different changes as one; the second is computed for the engine that the first one made."""
    for first, second in itertools.combinations(singles, 2):
        for again in _changes(first.engine):
            if again.change == second.change:
                words, costs = f"{first.change} and {second.change}", f"{first.costs}; {second.costs}"
                yield Change(words, costs, first.weight + second.weight, again.engine)


def _order(row: Row) -> int:
    return VERDICTS[row.verdict if row.serves else "does_not_fit"]


def _gain(row: Row, base: Row) -> float:
    if base.max_context == 0:
        return float("inf") if row.max_context else 1.0
    return row.max_context / base.max_context


def _measure(change: Change, others: Sequence[Engine], share: float | None = None) -> Row:
    engine, context = change.engine, change.engine.deployment.context
    if share is None:
        found = capacity_of(engine, sum(card_of([other]).total for other in others))
    else:
        found = capacity_of(engine.with_deployment(fraction=share, fraction_asked=True))
    counted = context + min(change.recent, context)  # as many tokens of the narrow type take the same bytes
    longest = found.max_context
    verdict = verdict_of([engine.with_deployment(context=counted), *others])
    holds = verdict != "does_not_fit" if others else found.served * context >= found.pools * counted
    return Row(
        change.change,
        change.costs,
        change.weight,
        engine,
        max(longest - change.recent, longest // 2) if change.recent else longest,
        found.served * context / counted,
        verdict,
        change.available,
        holds and not obstacles(engine.model, engine.deployment) and too_long(engine.model, engine.deployment) is None,
    )


def _changes(engine: Engine) -> Iterator[Change]:
    """Yield every change that is possible."""
    yield from _settings(engine)
    yield from _kv_types(engine)
    yield from _weight_types(engine)
    yield from _shapes(engine)


def _settings(engine: Engine) -> Iterator[Change]:
    deployment = engine.deployment
    sglang = deployment.engine == "sglang"
    flag = "mem-fraction-static" if sglang else "gpu-memory-utilization"
    highest = risky_above(deployment.engine, flag)
    fraction = min(highest, round(deployment.fraction + FRACTION_STEP, 2))
    if fraction < (needed := fraction_needed(engine)) <= highest:
        fraction = needed
    if fraction > deployment.fraction and not deployment.pool_asked:
        left = (1 - fraction) * deployment.capacity / GIB
        yield Change(
            f"--{flag} {deployment.fraction:g} → {fraction:g}",
            f"{left:.1f} GiB of the card stay for everything the engine did not count",
            SPEED,
            engine.with_deployment(fraction=fraction, fraction_asked=True),
        )
    if deployment.pool_asked:
        yield Change(
            f"without {pool_flag(deployment)}",
            "nothing: the pool is what the card has left",
            FREE,
            own_pool(engine),
        )
    if deployment.chunk >= 2 * LEAST_CHUNK:
        flag = "--chunked-prefill-size" if sglang else "--max-num-batched-tokens"
        yield Change(
            f"{flag} {deployment.chunk} → {deployment.chunk // 2}",
            "prefill in smaller steps: a later first token under load",
            SPEED,
            retuned(engine.with_deployment(chunk=deployment.chunk // 2), engine),
        )
    if deployment.sequences > 16:  # below that a batch is small already
        flag = "--max-running-requests" if sglang else "--max-num-seqs"
        yield Change(
            f"{flag} {deployment.sequences} → {deployment.sequences // 4}",
            "fewer requests at a time; the sampler's peak shrinks with it",
            SPEED,
            engine.with_deployment(sequences=deployment.sequences // 4),
        )


def _kv_types(engine: Engine) -> Iterator[Change]:
    deployment = engine.deployment
    if element_bytes(deployment.kv_dtype, engine.model.dtype) >= 2:  # 16 bits
        eight = "fp8_e4m3" if deployment.engine == "sglang" else "fp8"
        yield Change(
            f"--kv-cache-dtype {deployment.kv_dtype} → {eight}",
            "exact digit strings suffer first; calibrated scales are needed",
            QUALITY,
            engine.with_deployment(kv_dtype=eight),
        )
        yield Change(
            f"KV of the last {RECENT_TOKENS:,} tokens in 16 bits, older in FP8",
            "neither vLLM nor SGLang offers it today; digits in the far past suffer",
            QUALITY,
            engine.with_deployment(kv_dtype=eight),
            available=False,
            recent=RECENT_TOKENS,
        )
    if element_bytes(deployment.kv_dtype, engine.model.dtype) >= 1 and deployment.engine == "vllm":
        yield Change(
            f"--kv-cache-dtype {deployment.kv_dtype} → nvfp4",
            "4-bit KV: needs Blackwell, and recall of details falls",
            QUALITY,
            engine.with_deployment(kv_dtype="nvfp4"),
        )


def _weight_types(engine: Engine) -> Iterator[Change]:
    model = engine.model
    bits = 16.0 if model.quantisation is None else model.quantisation.bits
    plain = replace(engine, weights_bytes=None)
    if engine.weights_bytes is not None and engine.parameters is None:
        return  # only the bytes are known, so another type cannot be computed
    if bits > 8:  # bits
        yield Change(
            "weights in FP8 or INT8",
            "needs a quantised checkpoint; small loss of quality" + _blocks(engine, experts=True),
            QUALITY,
            replace(plain, model=with_weights(model, "fp8")),
        )
    if bits > 4:  # bits
        yield Change(
            "weights in INT4 (AWQ, GPTQ)",
            "needs a quantised checkpoint; test on your own tasks, long reasoning suffers first"
            + _blocks(engine, experts=False),
            QUALITY,
            replace(plain, model=with_weights(model, "int4")),
        )


def _blocks(engine: Engine, *, experts: bool) -> str:
    """Return what a checkpoint with a scale for 128 weights would have to be like; empty where the ranks fit it."""
    width = cut_width(engine.model, engine.deployment, SCALED_TOGETHER, experts=experts)
    if not width:
        return ""
    words = f"{width:,} over {engine.deployment.tp} ranks cuts groups of {SCALED_TOGETHER}"
    return f"; {words}, so one with such scales does not start"


def _startable(engine: Engine) -> Iterator[Change]:
    """Yield the most ranks, of those that there are, with which the engine starts."""
    before = engine.deployment
    for tried in itertools.islice(fewer_ranks(engine), 1):
        after = tried.deployment
        words = [f"tensor parallel {before.tp} → {after.tp}"] if after.tp != before.tp else []
        words += [f"pipeline parallel {before.pp} → {after.pp}"] if after.pp != before.pp else []
        words += [f"--decode-context-parallel-size {before.dcp} → {after.dcp}"] if after.dcp != before.dcp else []
        yield Change(", ".join(words), "nothing: it does not start otherwise", FREE, tried)


def _shapes(engine: Engine) -> Iterator[Change]:
    deployment, model = engine.deployment, engine.model
    if obstacles(model, deployment):
        yield from _startable(engine)
        if deployment.engine == "vllm" and model.experts is not None and not deployment.expert_parallel:
            whole = engine.with_deployment(expert_parallel=True)
            yield Change("--enable-expert-parallel", "ranks with busier experts are waited for", SPEED, whole)
    double = retuned(engine.with_deployment(tp=deployment.tp * 2), engine)
    if possible_tp(double):
        kind = "links slower than NVLink cost speed" if deployment.tp == 1 else "more communication in every step"
        words = f"tensor parallel {deployment.tp} → {deployment.tp * 2}"
        yield Change(words, f"twice the cards; {kind}", HARDWARE, double)
    copies = most_sharing(model, deployment) if deployment.dp_attention == 1 else 1
    plain = all(group.kind in ("full", "mla") for group in model.attention)
    if deployment.engine == "vllm" and copies > deployment.dcp and plain:
        yield Change(
            f"--decode-context-parallel-size {deployment.dcp} → {copies}",
            "uses the copied KV heads; needs vLLM 0.10 or later and more communication in decode",
            SPEED,
            engine.with_deployment(dcp=copies),
        )
    full = [group for group in model.layers if group.kind == "full"]
    if len(full) == len(model.layers) == 1 and full[0].count >= 4:  # a quarter of them stay
        group = full[0]
        kept = replace(group, count=-(-group.count // 4))
        windowed = replace(group, kind="sliding", count=group.count - kept.count, window=WINDOW_TOKENS)
        yield Change(
            f"a variant with a window of {WINDOW_TOKENS:,} tokens in three of four layers",
            "another model: what lies far back is seen by a quarter of the layers",
            QUALITY,
            replace(engine, model=replace(model, layers=(kept, windowed))),
            available=False,
        )
