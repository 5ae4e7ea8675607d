"""Work on labels, done once: the label tuples of a vector stay the same objects while its series do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import numpy as np

from gpuwatch.model import NAME
from gpuwatch.promql.values import PromQLError, Vector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from gpuwatch.model import Labels

T = TypeVar("T")
Many: TypeAlias = "tuple[Labels, ...]"
Floats: TypeAlias = "NDArray[np.float64]"
Mask: TypeAlias = "NDArray[np.bool_]"

EMPTY = Vector((), np.empty(0))
NO_LABELS: Many = ((),)

_REMEMBERED = 32


class Memo(Generic[T]):
    """A function of label tuples that remembers its results by the identity of its arguments."""

    __slots__ = ("_make", "_results")

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._results: dict[tuple[int, ...], tuple[tuple[Many, ...], T]] = {}

    def __call__(self, *labels: Many) -> T:
        """Return the function's result for `labels`."""
        key = tuple(map(id, labels))
        found = self._results.get(key)
        if found is None:
            if len(self._results) >= _REMEMBERED:
                self._results.clear()
            found = self._results[key] = (labels, self._make(*labels))  # keeping the labels keeps their ids taken
        return found[1]


class Picker:
    """Keeps the labels at the places that a mask names; equal masks of the same labels give the same object."""

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: dict[tuple[int, bytes], tuple[Many, Many]] = {}

    def labels(self, labels: Many, mask: Mask) -> Many:
        """Return the labels where `mask` is true."""
        key = (id(labels), mask.tobytes())
        found = self._results.get(key)
        if found is None:
            if len(self._results) >= _REMEMBERED:
                self._results.clear()
            picked = tuple(one for one, keep in zip(labels, mask.tolist(), strict=True) if keep)
            found = self._results[key] = (labels, picked)
        return found[1]

    def vector(self, labels: Many, values: Floats, mask: Mask) -> Vector:
        """Return the vector of the series where `mask` is true."""
        kept = int(np.count_nonzero(mask))
        if kept == len(labels):
            return Vector(labels, values)
        if not kept:
            return EMPTY
        return Vector(self.labels(labels, mask), values[mask])


class Joiner:
    """Puts the parts of a vector, one per block, together."""

    __slots__ = ("_memo",)

    def __init__(self) -> None:
        self._memo: Memo[Many] = Memo(_join)

    def __call__(self, parts: list[Vector]) -> Vector:
        """Return all series of `parts` as one vector."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return EMPTY
        return Vector(self._memo(*[part.labels for part in parts]), np.concatenate([part.values for part in parts]))


def _join(*parts: Many) -> Many:
    return tuple(labels for part in parts for labels in part)


def drop_name(labels: Labels) -> Labels:
    """Return `labels` without the metric name."""
    return tuple(pair for pair in labels if pair[0] != NAME)


def without_names(many: Many) -> Many:
    """Drop the metric name of every series.

    Raises:
        PromQLError: Two series become equal.
    """
    return distinct(tuple(map(drop_name, many)))


def distinct(many: Many) -> Many:
    """Return `many`.

    Raises:
        PromQLError: Two series are equal.
    """
    if len(set(many)) != len(many):
        raise PromQLError("vector cannot contain metrics with the same labelset")
    return many


def signature(names: Iterable[str], *, keep: bool) -> Callable[[Labels], Labels]:
    """Return the function that keeps only the labels `names`, or all but them and the metric name."""
    wanted = frozenset(names)
    if keep:
        return lambda labels: tuple(pair for pair in labels if pair[0] in wanted)
    wanted |= {NAME}
    return lambda labels: tuple(pair for pair in labels if pair[0] not in wanted)


def make_labels(values: dict[str, str]) -> Labels:
    """Return sorted labels; empty values are left out."""
    return tuple(sorted((key, value) for key, value in values.items() if value))
