"""What reading and writing share: the header, a tick, and how values become JSON and come back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.model import Batch, Labels

VERSION = 1
GZIP = 31
"""Window bits of zlib that stand for a gzip stream."""
HISTORY_MS = 900_000
"""How much past a pipeline keeps whose recording does not say it."""
LAST_MS = 253_402_300_799_999
"""The end of the year 9999: a later time cannot be shown."""
_EXACT = 2.0**53
_SPECIAL = {"NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf}


class RecordingError(Exception):
    """A recording that cannot be written or read; the message is one line."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a recording.

    `created` in milliseconds, `interval` in seconds; `history_ms` is how much past the rules could look at.
    """

    host: str
    created: int
    interval: float
    program: str
    note: str = ""
    history_ms: int = HISTORY_MS


@dataclass(frozen=True, slots=True)
class Tick:
    """The batches that one evaluation of the rules saw, and the targets that were given up since the one before.

    `found` is what an earlier evaluation found, where that was written since the tick before.
    """

    time: int
    batches: tuple[Batch, ...]
    forgotten: tuple[str, ...] = ()
    found: Mapping[str, Any] | None = None


class Table:
    """The series of one target in the order of their numbers, with the last value of each (None: gone)."""

    def __init__(self) -> None:
        self.keys: list[Labels] = []
        self.index: dict[Labels, int] = {}
        self.values: list[float | None] = []

    def add(self, labels: Labels) -> int:
        """Give a series the next number and return it."""
        number = len(self.keys)
        self.keys.append(labels)
        self.index[labels] = number
        self.values.append(None)
        return number


def changes(table: Table, numbers: list[int], values: Sequence[float]) -> list[tuple[int, int | float | str | None]]:
    """Return (number, encoded value) of what differs from `table`, in order, and bring `table` up to date."""
    old = table.values
    changed: list[tuple[int, int | float | str | None]] = []
    for number, value in zip(numbers, values, strict=True):
        before = old[number]
        if before != value and not (before is not None and math.isnan(before) and math.isnan(value)):
            changed.append((number, encode(before, float(value))))
            old[number] = float(value)
    if len(numbers) < len(old):
        present = set(numbers)
        for number, before in enumerate(old):
            if before is not None and number not in present:
                changed.append((number, None))
                old[number] = None
    changed.sort(key=_number)
    return changed


def _number(item: tuple[int, Any]) -> int:
    return item[0]


def encode(before: float | None, value: float) -> int | float | str:
    """Return a value as it is written after `before`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    base = 0.0 if before is None else before
    if value.is_integer() and base.is_integer() and abs(value) < _EXACT and abs(base) < _EXACT:
        return int(value) - int(base)
    return value


def decode(before: float | None, value: Any) -> float | None:
    """Return the value that was written as `value` after `before`; the inverse of `encode`.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: nothing of the kind was ever written.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return _SPECIAL[value]
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, int):
        base = 0.0 if before is None or not before.is_integer() else before
        return base + value
    return float(value)
