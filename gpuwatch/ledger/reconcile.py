"""Every byte on a card, live: what engines state about themselves against what NVML counts, and the rest by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPONENTS = (
    "weights",
    "kv_used",
    "kv_free",
    "kv_pool",
    "work",
    "rest",
    "engine",
    "other",
    "unexplained",
    "reserved",
    "free",
)
"""What memory is for, in the order of a bar. ``kv_pool`` is used and free where usage is not known per GPU, ``engine``
the memory of an engine that does not state its large parts or does not hold them, ``rest`` contexts and communication
of one that does."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one engine says about its memory on each of its GPUs, in bytes; None: it did not say.

    `kv_usage` is the used part of the pool (0-1), None where it differs per rank or is unknown.
    """

    weights: float | None = None
    kv_pool: float | None = None
    kv_usage: float | None = None
    activations: float | None = None
    graphs: float | None = None

    @property
    def silent(self) -> bool:
        """Whether the engine states nothing about its memory."""
        return self.weights is None and self.kv_pool is None and self.activations is None and self.graphs is None

    @property
    def whole(self) -> bool:
        """Whether the large parts are stated, so that what is left can only be contexts and communication."""
        return self.weights is not None and self.kv_pool is not None


@dataclass(frozen=True, slots=True)
class Card:
    """What NVML counts on one GPU, in bytes; None: not known.

    Args:
        used: In use, without the driver's reserve.
        reserved: What the driver keeps.
        free: Neither used nor reserved.
        other: Held by visible processes that belong to no known engine.
    """

    used: float | None
    reserved: float | None = None
    free: float | None = None
    other: float | None = None


BELIEVED = 0.9
"""Least part of its weights and pool that an engine's processes hold where its statement is taken: ranks differ."""


def missing(statement: Statement, held: float) -> float:
    """Return the bytes of weights and pool that an engine states and its processes, which hold `held`, do not have.

    0 where they have at least `BELIEVED` of them. What is missing is asleep, on another card or in another container,
    or the processes are others than the engine's.
    """
    stated = (statement.weights or 0.0) + (statement.kv_pool or 0.0)
    return stated - held if held < BELIEVED * stated else 0.0


def missing_on(card: Card, engines: Sequence[tuple[Statement, float | None]]) -> float | None:
    """Return what engines state and do not hold on a GPU; None where none both states and shows what it holds."""
    known = [(statement, held) for statement, held in engines if held is not None and not statement.silent]
    if card.used is None or not known:
        return None
    return sum(missing(statement, min(held, card.used)) for statement, held in known)


def of_engine(statement: Statement, limit: float, *, rest_is_known: bool) -> dict[str, float]:
    """Divide what one engine holds on a GPU, at most `limit` bytes.

    An engine may hold less than it states (asleep, activations not in use now): the statements are taken in the
    order weights, pool, graphs and activations until `limit` is used up. Where it is known that all of `limit` is the
    engine's, what it does not state is its rest. A statement that `limit` contradicts divides nothing: which of the
    parts are there is not known.
    """
    if statement.silent or missing(statement, limit):
        return {"engine": limit} if rest_is_known else {}
    parts: dict[str, float] = {}
    left = limit

    def take(component: str, amount: float | None) -> None:
        nonlocal left
        if amount is not None:
            taken = min(amount, left)
            parts[component] = parts.get(component, 0.0) + taken
            left -= taken

    pool, usage = statement.kv_pool, statement.kv_usage
    take("weights", statement.weights)
    if pool is not None and usage is not None:
        take("kv_used", pool * usage)
        take("kv_free", pool * (1 - usage))
    else:
        take("kv_pool", pool)
    take("work", statement.graphs)
    take("work", statement.activations)
    if rest_is_known:
        parts["rest" if statement.whole else "engine"] = left
    return parts


def divide(card: Card, engines: Sequence[tuple[Statement, float | None]]) -> dict[str, float]:
    """Return a GPU's memory by component, in the order of `COMPONENTS`; what does not add up is ``unexplained``.

    Args:
        card: What NVML counts. Where `used` is not known, nothing is divided.
        engines: What each engine on the GPU states, and the bytes its processes hold there (None: not visible).

    Returns:
        Bytes of the components that are known, 0 among them; those of `used` sum to `used`.
    """
    if card.used is None:
        return {}
    left = card.used
    total: dict[str, float] = {}

    def put(component: str, amount: float) -> None:
        nonlocal left
        taken = min(max(amount, 0.0), left)
        left -= taken
        total[component] = total.get(component, 0.0) + taken

    if card.other is not None:
        put("other", card.other)
    for statement, held in sorted(engines, key=lambda item: item[1] is None):
        limit = left if held is None else min(held, left)
        for component, amount in of_engine(statement, limit, rest_is_known=held is not None).items():
            put(component, amount)
    total["unexplained"] = left
    if card.reserved is not None:
        total["reserved"] = card.reserved
    if card.free is not None:
        total["free"] = card.free
    return {component: total[component] for component in COMPONENTS if component in total}
