"""The plan: every byte on each card, a verdict, what fits at most, and the fewest cards."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.ledger.budget import SGLANG_CONTEXT_BYTES, pool_bytes
from gpuwatch.ledger.fraction import fraction_flag, highest_fraction, takes_from_the_system
from gpuwatch.ledger.kv import whole_bytes_per_token
from gpuwatch.ledger.need import GROWTH, Engine
from gpuwatch.ledger.notes import notes_of
from gpuwatch.ledger.pool import longest_context, pool_of
from gpuwatch.ledger.ranks import at_tp, own_pool, pool_flag, possible_tp
from gpuwatch.ledger.starts import obstacles
from gpuwatch.ledger.steps import refusals
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.ledger.budget import Deployment

Verdict: TypeAlias = Literal["fits", "tight", "unknown", "does_not_fit"]

PARTS = ("weights", "kv_cache", "activations", "graphs", "context", "communication")
ERRORS = {"weights": 0.01, "kv_cache": 0.02, "activations": 0.35, "graphs": 0.6, "context": 0.5, "communication": 0.5}
"""Relative error of each part, from the figures in `docs/ledger.md`."""
MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU: bytes by part (all engines on it together), their sum, and its memory."""

    gpu: int
    components: dict[str, float]
    capacity: float

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.components.values())


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one pool of an engine holds: its bytes on one card, tokens, longest single request, requests of full length.

    Data-parallel groups have a pool each, `pools` of them.
    """

    engine: Engine
    bytes_per_token: float
    pool_bytes: float
    tokens: int
    max_context: int
    max_concurrency: float
    pools: int = 1

    @property
    def served(self) -> float:
        """Requests of full length that all pools hold together."""
        return self.pools * self.max_concurrency


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan. `error_band` is the relative uncertainty of a card's total.

    `serves` is False where an engine, launched as it is, does not hold one of the requests that were asked for,
    whatever the verdict, and where it does not start.
    """

    verdict: Verdict
    cards: tuple[Card, ...]
    capacities: tuple[Capacity, ...]
    fewest_gpus: int | None
    error_band: float
    notes: tuple[str, ...]
    serves: bool = True


def card_of(engines: Sequence[Engine], gpu: int = 0) -> Card:
    """Return the fullest card when `engines` share it."""
    parts = dict.fromkeys(PARTS, 0.0)
    for engine in engines:
        taken = engine.residents
        parts["weights"] += taken.weights
        parts["kv_cache"] += engine.kv_bytes
        parts["activations"] += taken.activations
        parts["graphs"] += taken.graphs
        parts["context"] += taken.context
        parts["communication"] += taken.communication
    return Card(gpu, parts, engines[0].deployment.capacity)


def verdict_of(engines: Sequence[Engine]) -> Verdict:
    """Judge whether `engines` fit on their cards together.

    It does not fit when the engine will not start with its ranks, when the parts are more than the card, or when the
    share of the card that was asked for holds no request. It is tight when the parts are more than the card by less
    than they are uncertain, and one engine's own budget holds the request; when that share lacks as little; and
    when they would be with a KV cache of `GROWTH` times the size and what unpacking a 4-bit cache takes, within the
    part of the card that the engine may use; and when the engine's part of unified memory leaves the system too little.
    It is unknown where a config lacks a field that is needed, or a model has parts that are not computed, and the
    others are less than the card; and where weights whose bits are not known do not fit in 16 bits, and would in the
    fewest there are.
    """
    found = _judged(engines)
    if found != "does_not_fit" or all(engine.weights_known for engine in engines):
        return found
    return found if _judged([engine.lightest for engine in engines]) == "does_not_fit" else "unknown"


def _judged(engines: Sequence[Engine]) -> Verdict:
    """Judge engines by their weights as they are counted."""
    if any(obstacles(engine.model, engine.deployment) for engine in engines) or too_much_asked(engines):
        return "does_not_fit"
    card = card_of(engines)
    if card.total > card.capacity:
        return "tight" if barely_over(engines, card) else "does_not_fit"
    if any(not engine.model.complete for engine in engines):
        return "unknown"
    over = beyond_card(engines)
    if over > 0:
        return "tight" if over <= error_band(card) * card.total else "does_not_fit"
    short = [engine for engine in engines if engine.deployment.fraction_asked and starved(engine, engines)]
    if short:
        barely = all(barely_short(capacity_of(engine, _others(engines, engine))) for engine in short)
        return "tight" if barely else "does_not_fit"
    peak = card.total + (GROWTH - 1) * card.components["kv_cache"] + sum(e.unpacked_bytes for e in engines)
    shares = _shares(engines)
    own = len(shares) == len(engines)  # each engine has its share; else the last takes what the others leave
    usable = card.capacity * (sum(shares) if own else max(engine.deployment.fraction for engine in engines))
    cramped = any(takes_from_the_system(engine.deployment) for engine in engines)
    return "fits" if peak <= usable and not cramped else "tight"


def barely_over(engines: Sequence[Engine], card: Card) -> bool:
    """Return whether an engine's parts are more than its card by no more than they are uncertain, and it would serve.

    The engine decides by what it measures itself: what is set aside for contexts and communication differs by card.
    """
    over = card.total - card.capacity
    if len(engines) > 1 or not 0 < over <= error_band(card) * card.total or not engines[0].model.complete:
        return False
    return starts(engines)


def barely_short(found: Capacity) -> bool:
    """Return whether a pool holds less than one request by no more than what its engine counts is uncertain by.

    A size of the pool that was asked for is certain.
    """
    one = replace(found.engine, requests=1)
    if found.max_concurrency >= 1 or found.pool_bytes <= 0 or one.deployment.pool_asked or not one.model.complete:
        return False
    return one.kv_bytes - found.pool_bytes <= _spread(card_of([one]), _budgeted(one.deployment))


def _budgeted(deployment: Deployment) -> tuple[str, ...]:
    """Return the parts that an engine's own budget counts before it makes the pool."""
    if deployment.engine == "sglang":
        return "weights", "kv_cache", "context", "communication"
    version = deployment.version
    graphs = () if version and version < (0, 20) else ("graphs",)
    context = ("context",) if version and version < (0, 9, 1) else ()
    return "weights", "kv_cache", "activations", "communication", *graphs, *context


def beyond_card(engines: Sequence[Engine]) -> float:
    """Return the bytes by which pools of a size that vLLM was told, with all beside them, are more than the card."""
    more = sum(max(0.0, (one.asked_pool or 0.0) - one.kv_bytes) for one in engines)
    card = card_of(engines)
    return max(0.0, card.total + more - card.capacity) if more else 0.0


def overflows(engines: Sequence[Engine], verdict: Verdict) -> bool:
    """Return whether a card does not hold its engines, whatever their own budgets say.

    One engine that makes its pool of what its budget leaves is judged by that; a size that was asked for is allocated
    without a look at the card.
    """
    over = card_of(engines).total > engines[0].deployment.capacity or beyond_card(engines) > 0
    return over and (len(engines) > 1 or (verdict == "does_not_fit" and engines[0].deployment.pool_asked))


def too_much_asked(engines: Sequence[Engine]) -> bool:
    """Return whether several engines of vLLM were each told a share of the same card, and all are more than it."""
    return len(engines) > 1 and sum(_shares(engines)) > 1


def _shares(engines: Sequence[Engine]) -> list[float]:
    told = (engine.deployment for engine in engines)
    return [one.fraction for one in told if one.engine == "vllm" and one.fraction_asked and not one.pool_asked]


def starved(engine: Engine, engines: Sequence[Engine]) -> bool:
    """Return whether the engine's pool, as it is launched beside the others, holds less than one request."""
    available = available_bytes(engine, _others(engines, engine))
    return pool_of(engine.model, engine.deployment, max(0.0, available)).concurrency < 1


def available_bytes(engine: Engine, others: float = 0.0) -> float:
    """Return the bytes of the engine's pool on one card where other engines take `others` bytes of it.

    A share that vLLM was told is its own, whatever the others take; by its own default it would take theirs, too.
    """
    deployment = engine.deployment
    own = deployment.engine == "vllm" and deployment.fraction_asked
    return pool_bytes(engine.model, deployment, engine.residents) - (0.0 if own else others) - engine.uncounted


def capacity_of(engine: Engine, others: float = 0.0) -> Capacity:
    """Return what the engine's pool holds when `others` bytes of its card are taken by other engines."""
    deployment = engine.deployment
    available = available_bytes(engine, others)
    pool = pool_of(engine.model, deployment, available)
    per_token = whole_bytes_per_token(engine.model, deployment.kv_dtype)
    longest = longest_context(engine.model, deployment, max(0.0, available))
    return Capacity(
        engine, per_token, max(0.0, available), pool.tokens, longest, pool.concurrency, pools=deployment.pools
    )


def fraction_needed(engine: Engine, others: Sequence[Engine] = ()) -> float:
    """Return the reserve fraction that holds the engine and the requests asked for, rounded up to hundredths.

    vLLM's is of all memory, and from 0.9.1 on without the CUDA context. SGLang's is of what was free before the
    weights, hence of what `others`, started earlier, leave.
    """
    deployment, taken = engine.deployment, engine.residents
    if deployment.engine == "sglang":
        free = deployment.capacity - SGLANG_CONTEXT_BYTES - taken.communication
        free -= sum(card_of([other]).total for other in others)
        need = taken.weights + engine.kv_bytes
        share = need / free if free > 0 else 1.0
    else:
        counted = taken.total - (taken.context if deployment.version >= (0, 9, 1) else 0.0)
        if deployment.version and deployment.version < (0, 20):
            counted -= taken.graphs
        share = (counted + engine.kv_bytes) / deployment.capacity
    return math.ceil(100 * share) / 100


def make_plan(engines: Sequence[Engine]) -> Plan:
    """Plan `engines` that share the same cards.

    Raises:
        ValueError: a model has no layer that keeps anything, or there is no engine.
    """
    if not engines:
        raise ValueError("no model to plan")
    card = card_of(engines)
    ranks = max(engine.deployment.cards for engine in engines)
    whole = [_others(engines, engine) for engine in engines]
    told = [len(engines) == 1 or engine.deployment.fraction_asked for engine in engines]
    capacities = tuple(
        capacity_of(engine, others) if own else _at_share(engine, engines[:at])
        for at, (engine, others, own) in enumerate(zip(engines, whole, told, strict=True))
    )
    verdict = verdict_of(engines)
    notes_of_ranks = [note for engine in engines for note in obstacles(engine.model, engine.deployment)]
    notes = list(notes_of_ranks)
    notes += [note for engine in engines for note in notes_of(engine)]
    serves = not notes_of_ranks and not overflows(engines, verdict) and not too_much_asked(engines)
    if verdict != "unknown" and not notes_of_ranks:
        short = [note for found, own in zip(capacities, told, strict=True) if own for note in start_notes(found)]
        certain = [found for found, own in zip(capacities, told, strict=True) if own and not barely_short(found)]
        refuses = short if verdict == "does_not_fit" else any(map(start_notes, certain))
        notes, serves = [*short, *notes], serves and not refuses
    refused = [str(no) for engine in engines for no in refusals(engine.model, engine.deployment)]
    notes, serves = [*refused, *notes], serves and not refused
    if len(engines) > 1:
        notes += _sharing_notes(engines)
    return Plan(
        verdict=verdict,
        cards=tuple(replace(card, gpu=gpu) for gpu in range(ranks)),
        capacities=capacities,
        fewest_gpus=fewest_gpus(engines),
        error_band=error_band(card),
        notes=tuple(dict.fromkeys(notes)),
        serves=serves,
    )


def _at_share(engine: Engine, earlier: Sequence[Engine]) -> Capacity:
    """Return what the pool of one of several engines holds with the share of the card that it needs."""
    share = min(1.0, fraction_needed(engine, earlier))
    sharing = engine.with_deployment(fraction=share, fraction_told=True)
    if engine.deployment.engine == "sglang":  # its share is of what those that started earlier leave
        taken = sum(card_of([other]).total for other in earlier)
        sharing = sharing.with_deployment(capacity=max(1.0, engine.deployment.capacity - taken))
    return capacity_of(sharing)


def _sharing_notes(engines: Sequence[Engine]) -> list[str]:
    """Say that engines on the same cards need shares, where they were told none or too large ones."""
    if too_much_asked(engines):
        total = sum(_shares(engines))
        return [
            f"shares of {total:g} in all of the same cards: the last engine will not start; give each what it needs"
        ]
    if all(engine.deployment.fraction_asked for engine in engines):
        return []
    return [
        "by its default one engine takes all of the cards, and the next will not start: give each the share it needs"
    ]


def start_notes(found: Capacity) -> list[str]:
    """Say what is needed where the card holds a request and the engine's share of it does not."""
    engine = found.engine
    if found.max_concurrency >= 1:
        return _too_large(engine)
    flag = f"--{fraction_flag(engine.deployment.engine)}"
    needed, given = fraction_needed(engine), engine.deployment.fraction
    limit = pool_flag(engine.deployment) or f"{flag} {given:g}"
    request = f"one request of {engine.deployment.context:,} tokens"
    if barely_short(found):
        possible = given < needed <= highest_fraction(engine.deployment)
        enough = f"; {flag} {needed:.2f} is enough" if possible else ""
        doubt = "which is less than these figures are uncertain by: the engine may not start"
        return [f"with {limit} the pool lacks a little for {request}, {doubt}{enough}"]
    words = f"with {limit} the pool holds less than {request}"
    if engine.deployment.engine == "sglang" and found.tokens > 0:
        words += ", so the engine refuses one"
    else:
        words += ", so the engine will not start"
    if engine.deployment.pool_asked:
        return [f"{words}: the size of the pool was asked for"]
    if given < needed < 1 and card_of([engine]).total <= engine.deployment.capacity:
        return [f"{words}: it needs {needed:.2f}"]
    highest = highest_fraction(engine.deployment)
    raised = engine.with_deployment(fraction=highest, fraction_told=True)
    if given < highest and verdict_of([raised]) != "does_not_fit":
        return [f"{words}: {flag} {highest:g} may be enough, by less than these figures are uncertain by"]
    return [f"{words}: no fraction is enough with all that the engine sets aside"]


def _too_large(engine: Engine) -> list[str]:
    """Say how large a pool the card holds, where a larger one was asked for."""
    card, over, pool = card_of([engine]), beyond_card([engine]), engine.asked_pool or 0.0
    if over <= error_band(card) * card.total or card.total > card.capacity:
        return []
    words = (
        f"with {pool_flag(engine.deployment)} the pool is {pool / GIB:.1f} GiB, which with all beside it is "
        f"{over / GIB:.1f} GiB more than the card, so the engine will not start"
    )
    return [f"{words}: {(pool - over) / GIB:.1f} GiB fit"]


def _others(engines: Sequence[Engine], engine: Engine) -> float:
    """Return the bytes that the other engines take of the same card."""
    return sum(card_of([other]).total for other in engines if other is not engine)


def error_band(card: Card) -> float:
    """Return the relative uncertainty of a card's total: the parts' errors, taken as independent."""
    return _spread(card, PARTS) / card.total if card.total else 0.0


def _spread(card: Card, parts: Sequence[str]) -> float:
    """Return the uncertainty of the sum of some parts in bytes."""
    return math.sqrt(sum((card.components[part] * ERRORS[part]) ** 2 for part in parts))


def fewest_gpus(engines: Sequence[Engine]) -> int | None:
    """Return the fewest cards, 1, 2, 4 …, on which the engines fit, or fit tightly, and serve, with tensor parallelism.

    A size of the pool that was asked for is that of other cards, and left out with a fraction beside it. None where
    there are none up to `MOST_GPUS`, and where a config lacks what it takes to know.
    """
    most = 1 if any(engine.deployment.mig for engine in engines) else MOST_GPUS
    count = 1
    while count <= most:
        tried = [own_pool(at_tp(engine.with_deployment(idle_fraction=0.0), count)) for engine in engines]
        verdict = verdict_of(tried)
        if verdict == "unknown":
            return None
        if all(possible_tp(engine) for engine in tried) and verdict != "does_not_fit" and starts(tried):
            return count
        count *= 2
    return None


def starts(engines: Sequence[Engine]) -> bool:
    """Return whether each pool holds one request; of several engines only those have one that were told their share."""
    judged = [engine for engine in engines if len(engines) == 1 or engine.deployment.fraction_asked]
    short = [engine for engine in judged if starved(engine, engines)]
    return all(barely_short(capacity_of(engine, _others(engines, engine))) for engine in short)
