"""Binary operators: with a number, between vectors with label matching, and the set operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpuwatch.model import NAME
from gpuwatch.promql.labels import (
    EMPTY,
    Floats,
    Many,
    Memo,
    Picker,
    distinct,
    drop_name,
    make_labels,
    signature,
    without_names,
)
from gpuwatch.promql.nodes import COMPARISONS
from gpuwatch.promql.select import ScalarOp, VectorOp
from gpuwatch.promql.values import PromQLError, Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuwatch.model import Labels
    from gpuwatch.promql.nodes import Binary, Matching
    from gpuwatch.promql.select import Scope

_Places: TypeAlias = "NDArray[np.intp]"

OPERATORS: dict[str, np.ufunc] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}


def scalar_operator(op: str, left: ScalarOp, right: ScalarOp) -> ScalarOp:
    """Return the operation between two numbers, by the rules of IEEE 754; comparisons give 0 or 1."""
    function = OPERATORS[op]

    def at(time: int) -> float:
        return float(function(np.float64(left.at(time)), np.float64(right.at(time))))

    return ScalarOp(at, left.sources + right.sources)


def _drops_name(node: Binary, scope: Scope) -> bool:
    """Say whether the result has no metric name; Prometheus 2 forgot about atan2."""
    if node.op in COMPARISONS:
        return node.as_bool
    return node.op != "atan2" or scope.left_open


class NumberOp(VectorOp):
    """A vector with a number on the right, or on the left when `swapped`."""

    __slots__ = ("_filters", "_function", "_names", "_picker", "_scalar", "_swapped", "_vector")

    def __init__(self, scope: Scope, node: Binary, vector: VectorOp, scalar: ScalarOp, *, swapped: bool) -> None:
        super().__init__(scope, vector.sources + scalar.sources)
        self._vector = vector
        self._scalar = scalar
        self._swapped = swapped
        self._function = OPERATORS[node.op]
        self._filters = node.op in COMPARISONS and not node.as_bool
        self._picker = Picker()
        self._names: Memo[Many] | None = Memo(without_names) if _drops_name(node, scope) else None

    def compute(self, time: int) -> Vector:
        """Apply the operator; a comparison without bool keeps the series for which it holds."""
        vector = self._vector.at(time)
        if not vector.labels:
            return EMPTY
        number = self._scalar.at(time)
        if self.unchanged(vector, number):
            return self._value
        result = self._function(number, vector.values) if self._swapped else self._function(vector.values, number)
        if self._filters:
            return self._picker.vector(vector.labels, vector.values, result)
        labels = self._names(vector.labels) if self._names is not None else vector.labels
        return Vector(labels, result.astype(float, copy=False))


class SetOp(VectorOp):
    """The set operators and, or, unless."""

    __slots__ = ("_both", "_guard", "_key", "_left", "_op", "_picker", "_places", "_right")

    def __init__(self, scope: Scope, node: Binary, left: VectorOp, right: VectorOp) -> None:
        super().__init__(scope, left.sources + right.sources)
        self._op = node.op
        # The side of an `and` that reads less is looked at first: nothing there, nothing anywhere.
        self._guard = right if node.op == "and" and len(right.sources) < len(left.sources) else left
        self._left = left
        self._right = right
        self._key = signature(node.matching.labels, keep=node.matching.on)
        self._picker = Picker()
        self._places: Memo[NDArray[np.bool_]] = Memo(self._place)
        self._both: Memo[Many] = Memo(lambda one, other: distinct(one + other))

    def compute(self, time: int) -> Vector:
        """Keep or join the series whose labels match."""
        if self._op != "or" and not self._guard.at(time).labels:
            return EMPTY
        left, right = self._left.at(time), self._right.at(time)
        if self.unchanged(left, right):
            return self._value
        if not right.labels:
            return EMPTY if self._op == "and" else left
        if self._op == "or":
            return self._either(left, right)
        return self._picker.vector(left.labels, left.values, self._places(left.labels, right.labels))

    def _either(self, left: Vector, right: Vector) -> Vector:
        if not left.labels:
            return right
        more = self._picker.vector(right.labels, right.values, self._places(left.labels, right.labels))
        if not more.labels:
            return left
        return Vector(self._both(left.labels, more.labels), np.concatenate([left.values, more.values]))

    def _place(self, left: Many, right: Many) -> NDArray[np.bool_]:
        """Return which series stay: of the left side, or for ``or`` of the right side."""
        other, own = (left, right) if self._op == "or" else (right, left)
        known = {self._key(labels) for labels in other}
        found = np.fromiter((self._key(labels) in known for labels in own), np.bool_, len(own))
        return found if self._op == "and" else ~found


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Which series of the many side meet which of the one side, and the labels of each result."""

    many: _Places
    one: _Places
    labels: Many
    unique: Many
    clean: bool


class MatchOp(VectorOp):
    """An operator between two vectors whose series find each other by their labels."""

    __slots__ = ("_drop", "_function", "_key", "_left", "_matching", "_node", "_pairs", "_picker", "_right")

    def __init__(self, scope: Scope, node: Binary, left: VectorOp, right: VectorOp) -> None:
        super().__init__(scope, left.sources + right.sources)
        self._node = node
        self._matching: Matching = node.matching
        self._left = left
        self._right = right
        self._function = OPERATORS[node.op]
        self._drop = _drops_name(node, scope)
        self._key = signature(self._matching.labels, keep=self._matching.on)
        self._picker = Picker()
        self._pairs: Memo[_Pairs] = Memo(self._pair)

    def compute(self, time: int) -> Vector:
        """Apply the operator to each pair; a comparison without bool keeps the pairs for which it holds."""
        left = self._left.at(time)
        if not left.labels:
            return EMPTY
        right = self._right.at(time)
        if not right.labels:
            return EMPTY
        if self.unchanged(left, right):
            return self._value
        swapped = self._matching.group == "right"
        many, one = (right, left) if swapped else (left, right)
        pairs = self._pairs(many.labels, one.labels)
        if not pairs.labels:
            return EMPTY
        many_values, one_values = many.values[pairs.many], one.values[pairs.one]
        left_values, right_values = (one_values, many_values) if swapped else (many_values, one_values)
        result: Floats = self._function(left_values, right_values)
        if self._node.op in COMPARISONS and not self._node.as_bool:
            if not pairs.clean:
                self._check([unique for unique, kept in zip(pairs.unique, result.tolist(), strict=True) if kept])
            return self._picker.vector(pairs.labels, left_values, result.astype(np.bool_))
        if not pairs.clean:
            self._check(list(pairs.unique))
        return Vector(pairs.labels, result.astype(float, copy=False))

    def _pair(self, many: Many, one: Many) -> _Pairs:
        places: dict[Labels, int] = {}
        for place, labels in enumerate(one):
            key = self._key(labels)
            if key in places:
                side = "left" if self._matching.group == "right" else "right"
                raise PromQLError(
                    f"found duplicate series for the match group {_show(key)} on the {side} hand-side of the "
                    f"operation; many-to-many matching not allowed: matching labels must be unique on one side"
                )
            places[key] = place
        found = [(at, places[key]) for at, key in enumerate(map(self._key, many)) if key in places]
        results: Many = tuple(self._result(many[at], one[other]) for at, other in found)
        unique = results if self._matching.group else tuple(self._key(many[at]) for at, _ in found)
        return _Pairs(
            np.array([at for at, _ in found], dtype=np.intp),
            np.array([other for _, other in found], dtype=np.intp),
            results,
            unique,
            clean=len(set(unique)) == len(unique),
        )

    def _result(self, many: Labels, one: Labels) -> Labels:
        labels = drop_name(many) if self._drop else many
        matching = self._matching
        if not matching.group:
            if matching.on:
                return tuple(pair for pair in labels if pair[0] in matching.labels)
            return tuple(pair for pair in labels if pair[0] not in matching.labels)
        if not matching.include:
            return labels
        values, given = dict(labels), dict(one)
        values.update((name, given.get(name, "")) for name in matching.include)
        return make_labels(values)

    def _check(self, unique: list[Labels]) -> None:
        if len(set(unique)) == len(unique):
            return
        if self._matching.group:
            raise PromQLError("multiple matches for labels: grouping labels must ensure unique matches")
        raise PromQLError("multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)")


def _show(labels: Labels) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels if name != NAME) + "}"
