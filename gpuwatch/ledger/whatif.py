"""What-if rows: one change at a time, what it buys in context and requests, and what it costs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.ledger.changes import FREE, HARDWARE, SPEED, Change, changes_of
from gpuwatch.ledger.defaults import at_length
from gpuwatch.ledger.lengths import allowed_length
from gpuwatch.ledger.plan import barely_short, capacity_of, card_of, fraction_needed, overflows, verdict_of
from gpuwatch.ledger.starts import obstacles
from gpuwatch.ledger.steps import refusals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatch.ledger.need import Engine

CONTEXT_STEP = 1024
SMALL_GAIN = 1.01
MUCH_LONGER = 1.25
"""A tight context is proposed beside one that fits where it is this many times as long."""

VERDICTS = {"fits": 0, "tight": 1, "unknown": 2, "does_not_fit": 3}
"""Verdicts, the best first."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a change buys: the longest request, how many of full length fit, and the verdict.

    `serves` is False where the engine, launched like this, holds no request that was asked for, whatever the verdict
    on the card; it is True where it is `lacking` less for one than the figures are uncertain by.
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
    lacking: bool = False

    @property
    def whole(self) -> bool:
        """Whether each pool holds a request of full length."""
        return self.max_concurrency >= self.engine.deployment.pools


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
    """Yield the longest context that fits where the one that was asked for does not serve, and a longer tight one."""
    if obstacles(engine.model, engine.deployment):
        return
    if base.verdict != "does_not_fit" and base.serves and base.whole:
        return
    deployment = engine.deployment
    asked = deployment.context
    flag = "--context-length" if deployment.engine == "sglang" else "--max-model-len"
    fitting = _longest(engine, others, share, ("fits",))
    tight = _longest(engine, others, share, ("fits", "tight"))
    lengths = [fitting] if fitting else []
    if tight > MUCH_LONGER * fitting:
        lengths.append(tight)
    for length in lengths:
        costs = "longer requests are refused"
        shorter = replace(engine, deployment=at_length(deployment, length))
        yield Change(f"{flag} {asked} → {length}", costs, SPEED, shorter)


def _longest(engine: Engine, others: Sequence[Engine], share: float | None, verdicts: Sequence[str]) -> int:
    """Return the longest context of which the pool holds a request with one of `verdicts`; 0 for none.

    It is the longest that the engine takes for the model, or a multiple of `CONTEXT_STEP`.
    """
    deployment = engine.deployment

    def holds(context: int) -> bool:
        shorter = replace(engine, deployment=at_length(deployment, context))
        row = _measure(Change("", "", FREE, shorter), others, share)
        return row.verdict in verdicts and row.serves and row.whole

    allowed = allowed_length(engine.model, deployment.engine, deployment.version)
    refused = allowed is not None and allowed < deployment.context and not deployment.longer_allowed
    if allowed is not None and refused and holds(allowed):
        return allowed
    low, high = 0, (deployment.context - 1) // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle * CONTEXT_STEP) else (low, middle - 1)
    return low * CONTEXT_STEP


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
        for change in changes_of(asked)
        if change.available
        and change.weight != HARDWARE
        and (four_bit_kv or change.engine.deployment.kv_dtype != "nvfp4")
    ]
    bought = [(change, row) for change in singles if _more(row := _measure(change, ()), base)]
    pairs = [_measure(pair, ()) for pair in _pairs([change for change, _ in bought])]
    pairs = [row for row in pairs if _more(row, base)]
    unharmed = min((row for row in pairs if row.weight <= 2 * SPEED), key=_worth, default=None)
    serving = [row for row in pairs if row.whole]
    if unharmed is None or (not unharmed.whole and serving):
        unharmed = min(serving or pairs, key=lambda row: (row.weight, -row.max_concurrency), default=None)
    rows = sorted((row for _, row in bought), key=_worth)
    return (*rows, unharmed) if unharmed is not None else tuple(rows)


def concurrency(engine: Engine, context: int) -> float:
    """Return how many requests of `context` tokens fit into the engine's pool."""
    return capacity_of(engine.with_deployment(context=context)).served


def _worth(row: Row) -> tuple[float, int]:
    return -row.max_concurrency, row.weight


def _more(row: Row, base: Row) -> bool:
    return row.max_concurrency > SMALL_GAIN * base.max_concurrency


def _beside(engine: Engine, others: Sequence[Engine]) -> Iterator[Change]:
    """Yield the changes that are possible beside `others`: a larger share is none, which the others would lack."""
    share = engine.deployment.fraction
    return (change for change in changes_of(engine) if not others or change.engine.deployment.fraction == share)


def _pairs(singles: Sequence[Change]) -> Iterator[Change]:
    """Yield every two different changes as one; the second is computed for the engine that the first one made."""
    for first, second in itertools.combinations(singles, 2):
        for again in changes_of(first.engine):
            if again.change == second.change:
                both = sorted((first.change, second.change), key=lambda change: change.startswith("without"))
                words = " and ".join(both)  # "A and without B": the other way round B would be given up with A
                yield Change(words, f"{first.costs}; {second.costs}", first.weight + second.weight, again.engine)


def _order(row: Row) -> int:
    """Return the place of a row: one that may lack a little of a request is as good as an unknown one."""
    if not row.serves:
        return VERDICTS["does_not_fit"]
    return max(VERDICTS["unknown"], VERDICTS[row.verdict]) if row.lacking else VERDICTS[row.verdict]


def _gain(row: Row, base: Row) -> float:
    if base.max_context == 0:
        return float("inf") if row.max_context else 1.0
    return row.max_context / base.max_context


def _measure(change: Change, others: Sequence[Engine], share: float | None = None) -> Row:
    engine, context = change.engine, change.engine.deployment.context
    if share is None:
        found = capacity_of(engine, sum(card_of([other]).total for other in others))
    else:
        found = capacity_of(engine.with_deployment(fraction=share, fraction_told=True))
    counted = context + min(change.recent, context)  # as many tokens of the narrow type take the same bytes
    longest = found.max_context
    asked = [engine.with_deployment(context=counted), *others]
    verdict = verdict_of(asked)
    holds = verdict != "does_not_fit"
    lacking = not others and holds and barely_short(found)
    if not others and not lacking:
        holds = found.served * context >= found.pools * counted and not overflows(asked, verdict)
    return Row(
        change.change,
        change.costs,
        change.weight,
        engine,
        max(longest - change.recent, longest // 2) if change.recent else longest,
        found.served * context / counted,
        verdict,
        change.available,
        holds and not obstacles(engine.model, engine.deployment) and not refusals(engine.model, engine.deployment),
        lacking,
    )
