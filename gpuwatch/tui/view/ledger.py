"""Where the memory of one GPU is: what engines state about themselves, what NVML counts, and what nobody explains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of memory: its glyph and colour tone in a bar, its short name, and what it means."""

    glyph: str
    tone: str
    label: str
    meaning: str


KINDS: Mapping[str, Kind] = {
    "weights": Kind("█", "bar.weights", "weights", "model weights, as the engine printed them"),
    "kv_used": Kind("▓", "bar.kv_used", "KV used", "KV pool times its usage"),
    "kv_free": Kind("░", "bar.kv_free", "KV free", "rest of the KV pool: allocated, and free for tokens"),
    "kv_pool": Kind("▚", "bar.kv_used", "KV pool", "KV pool; how much of it is used on this GPU is not known"),
    "work": Kind("▒", "bar.work", "activations+graphs", "profiled activation peak and CUDA graphs"),
    "rest": Kind("c", "bar.rest", "context+comms", "the engine's own memory beyond what it states"),
    "engine": Kind("e", "bar.rest", "engine", "memory of an engine that does not state what is in it"),
    "other": Kind("o", "bar.other", "other processes", "visible processes that belong to no known engine"),
    "unexplained": Kind("?", "bar.unexplained", "unexplained", "used memory that nothing above accounts for"),
    "reserved": Kind("r", "bar.rest", "driver", "what the driver keeps for itself"),
}
"""Every kind of used memory, in the order of the bar; what is left is free."""

FREE = Kind("·", "dim", "free", "neither used nor reserved")


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a GPU's memory: a key of `KINDS` and bytes."""

    kind: str
    bytes: float


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


def _of_engine(statement: Statement, limit: float | None, *, rest_is_known: bool) -> dict[str, float]:
    """Divide one engine's memory on a GPU: `limit` is what it holds there in bytes, None when that is unknown.

    An engine may hold less than it states (asleep, activations not in use now): the statements are taken in the
    order weights, pool, graphs and activations until `limit` is used up.
    """
    if statement.silent:
        return {"engine": limit} if limit is not None else {}
    parts: dict[str, float] = {}
    left = float("inf") if limit is None else limit

    def take(kind: str, amount: float | None) -> None:
        nonlocal left
        if amount:
            taken = min(amount, left)
            parts[kind] = parts.get(kind, 0.0) + taken
            left -= taken

    take("weights", statement.weights)
    if statement.kv_pool is not None and statement.kv_usage is not None:
        take("kv_used", statement.kv_pool * statement.kv_usage)
        take("kv_free", statement.kv_pool * (1 - statement.kv_usage))
    else:
        take("kv_pool", statement.kv_pool)
    take("work", statement.graphs)
    take("work", statement.activations)
    if rest_is_known and limit is not None:
        take("rest" if statement.whole else "engine", left)
    return parts


def divide(
    used: float | None,
    reserved: float | None,
    other: float | None,
    engines: Sequence[tuple[Statement, float | None]],
) -> tuple[Part, ...]:
    """Return the parts of a GPU's used memory, largest truth first: what does not add up is ``unexplained``.

    Args:
        used: Bytes in use as NVML counts them, without the driver's reserve. None: not known, nothing is divided.
        reserved: Bytes the driver keeps.
        other: Bytes of visible processes that belong to no known engine.
        engines: What each engine on the GPU states, and the bytes its processes hold there (None: not visible).

    Returns:
        Parts in the order of `KINDS`; those of `used` sum to `used`.
    """
    if used is None:
        return ()
    left = used
    total: dict[str, float] = {}

    def put(kind: str, amount: float) -> None:
        nonlocal left
        taken = min(max(amount, 0.0), left)
        left -= taken
        total[kind] = total.get(kind, 0.0) + taken

    put("other", other or 0.0)
    for statement, held in sorted(engines, key=lambda item: item[1] is None):
        limit = left if held is None else min(held, left)
        for kind, amount in _of_engine(statement, limit, rest_is_known=held is not None).items():
            if held is not None or kind != "engine":
                put(kind, amount)
    total["unexplained"] = left
    total["reserved"] = reserved or 0.0
    return tuple(Part(kind, total[kind]) for kind in KINDS if total.get(kind, 0.0) > 0)
