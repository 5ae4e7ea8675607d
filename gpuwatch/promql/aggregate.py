"""Aggregations of an instant vector over groups of labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuwatch.promql.labels import EMPTY, Floats, Many, Memo, distinct, make_labels, signature
from gpuwatch.promql.range_functions import exact_sum, quantile
from gpuwatch.promql.select import VectorOp
from gpuwatch.promql.values import PromQLError, Vector

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpuwatch.model import Labels
    from gpuwatch.promql.nodes import Aggregate
    from gpuwatch.promql.select import ScalarOp, Scope, Source

_CANCELLED = 2.0**-52 / 1e-11
_INT64 = 2.0**63


@dataclass(frozen=True, slots=True)
class Groups:
    """Which series belong together: a group number per series, and the same sorted by group."""

    labels: Many
    member: NDArray[np.intp]
    count: Floats
    order: NDArray[np.intp]
    starts: NDArray[np.intp]

    def split(self) -> list[NDArray[np.intp]]:
        """Return the places of the members of each group, in the order of the vector."""
        return np.split(self.order, self.starts[1:])


class AggregateOp(VectorOp):
    """One aggregation; the grouping of the labels is remembered."""

    __slots__ = ("_function", "_groups", "_inner", "_key")

    def __init__(self, scope: Scope, node: Aggregate, inner: VectorOp, more: tuple[Source, ...] = ()) -> None:
        super().__init__(scope, inner.sources + more)
        self._inner = inner
        self._key = signature(node.labels, keep=not node.without)
        self._groups: Memo[Groups] = Memo(self._group)
        self._function = _plain(node.op, exact=scope.left_open)

    def compute(self, time: int) -> Vector:
        """Aggregate the inner vector."""
        vector = self._inner.at(time)
        if not vector.labels:
            return EMPTY
        if self.unchanged(vector):
            return self._value
        groups = self._groups(vector.labels)
        return Vector(groups.labels, self._function(vector.values, groups))

    def _group(self, many: Many) -> Groups:
        numbers: dict[Labels, int] = {}
        member = np.fromiter((numbers.setdefault(self._key(one), len(numbers)) for one in many), np.intp, len(many))
        order = np.argsort(member, kind="stable")
        starts = np.searchsorted(member[order], np.arange(len(numbers)))
        return Groups(tuple(numbers), member, np.bincount(member).astype(float), order, starts)


class ParameterOp(AggregateOp):
    """An aggregation with a number: topk, bottomk and quantile."""

    __slots__ = ("_op", "_param")

    def __init__(self, scope: Scope, node: Aggregate, inner: VectorOp, param: ScalarOp) -> None:
        super().__init__(scope, node, inner, param.sources)
        self._op = node.op
        self._param = param

    def compute(self, time: int) -> Vector:
        """Aggregate the inner vector with the parameter's value at `time`."""
        vector = self._inner.at(time)
        param = self._param.at(time)
        if self._op != "quantile" and not -_INT64 <= param < _INT64:
            raise PromQLError(f"{self._op} of {param} series")
        if not vector.labels:
            return EMPTY
        groups = self._groups(vector.labels)
        if self._op == "quantile":
            return Vector(groups.labels, np.array([quantile(param, vector.values[part]) for part in groups.split()]))
        values = vector.values.tolist()
        sign = -1 if self._op == "topk" else 1
        chosen = [
            place
            for part in groups.split()
            for place in sorted(part.tolist(), key=lambda at: (values[at] != values[at], sign * values[at]))[
                : max(0, int(param))
            ]
        ]
        return Vector(tuple(vector.labels[at] for at in chosen), vector.values[chosen]) if chosen else EMPTY


class CountValuesOp(VectorOp):
    """count_values: how often each value occurs, with the value as a label."""

    __slots__ = ("_inner", "_key", "_label")

    def __init__(self, scope: Scope, node: Aggregate, inner: VectorOp, label: str) -> None:
        super().__init__(scope, inner.sources)
        self._inner = inner
        self._label = label
        by = (*node.labels, label) if not node.without else node.labels
        self._key = signature(by, keep=not node.without)

    def compute(self, time: int) -> Vector:
        """Count the inner vector's values."""
        counts: dict[Labels, int] = {}
        for labels, value in self._inner.at(time).items():
            key = self._key(make_labels({**dict(labels), self._label: shortest(value)}))
            counts[key] = counts.get(key, 0) + 1
        return Vector(distinct(tuple(counts)), np.array(list(counts.values()), dtype=float)) if counts else EMPTY


def shortest(value: float) -> str:
    """Return a number as Go's ``strconv.FormatFloat(value, 'f', -1, 64)`` does: shortest, never an exponent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = np.format_float_positional(value, unique=True, trim="-")
    return text.removesuffix(".")


def _plain(op: str, *, exact: bool) -> Callable[[Floats, Groups], Floats]:
    """Return the function of values and groups; Prometheus 3 adds up exactly, Prometheus 2 does not."""
    if op == "sum":
        return _exact_sums if exact else _sums
    if op == "avg":
        return _averages
    if op in ("min", "max"):
        reduce = np.fmin.reduceat if op == "min" else np.fmax.reduceat
        return lambda values, groups: reduce(values[groups.order], groups.starts)
    if op == "count":
        return lambda _, groups: groups.count.copy()
    if op == "group":
        return lambda _, groups: np.ones(len(groups.labels))
    return lambda values, groups: _variances(values, groups, root=op == "stddev")


def _sums(values: Floats, groups: Groups) -> Floats:
    return np.bincount(groups.member, weights=values, minlength=len(groups.labels)).astype(float, copy=False)


def _exact_sums(values: Floats, groups: Groups) -> Floats:
    sums = _sums(values, groups)
    doubtful = _sums(np.abs(values), groups) * _CANCELLED > np.abs(sums)
    if doubtful.any():
        for number in np.nonzero(doubtful & np.isfinite(sums))[0]:
            sums[number] = exact_sum(values[groups.member == number], sums[number])
    return sums


def _averages(values: Floats, groups: Groups) -> Floats:
    means = _exact_sums(values, groups) / groups.count
    overflown = ~np.isfinite(means)
    if overflown.any():
        scaled = _sums(values / groups.count[groups.member], groups)
        finite = np.logical_and.reduceat(np.isfinite(values[groups.order]), groups.starts)
        means = np.where(overflown & finite, scaled, means)
    return means


def _variances(values: Floats, groups: Groups, *, root: bool) -> Floats:
    """Return the population variance or deviation, relative to each group's first value so that equal values give 0."""
    shifted = values - values[groups.order[groups.starts]][groups.member]
    means = _sums(shifted, groups) / groups.count
    variances = _sums((shifted - means[groups.member]) ** 2, groups) / groups.count
    return np.sqrt(variances) if root else variances
