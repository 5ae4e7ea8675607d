"""Results of PromQL queries and the protocol of whoever answers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from gpuwatch.model import Labels


class PromQLError(Exception):
    """A query that cannot be parsed, is not supported, or fails while it is evaluated."""


@dataclass(frozen=True, slots=True)
class Vector:
    """An instant vector: one value per series. A scalar is one series without labels."""

    labels: tuple[Labels, ...]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self.labels)

    def items(self) -> Iterator[tuple[Labels, float]]:
        """Yield (labels, value) pairs as plain Python values."""
        return zip(self.labels, self.values.tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class RangeSeries:
    """One series of a range query; `times` in milliseconds, only where the query had a value."""

    labels: Labels
    times: tuple[int, ...]
    values: tuple[float, ...]


class Querier(Protocol):
    """Answers PromQL: the store of this process or a Prometheus. Raises `PromQLError`."""

    def instant(self, expr: str, time: int) -> Vector:
        """Evaluate `expr` at `time` (milliseconds)."""
        ...

    def range(self, expr: str, start: int, end: int, step: int) -> tuple[RangeSeries, ...]:
        """Evaluate `expr` at start, start + step, … up to `end` (milliseconds)."""
        ...
