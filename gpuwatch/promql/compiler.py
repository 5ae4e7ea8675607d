"""From plan nodes to operators on a store. Equal nodes become one operator, so that their work is shared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np

from gpuwatch.promql import range_functions as ranges
from gpuwatch.promql.aggregate import AggregateOp, CountValuesOp, ParameterOp
from gpuwatch.promql.binary import MatchOp, NumberOp, SetOp, scalar_operator
from gpuwatch.promql.calls import (
    CALENDAR,
    ELEMENTWISE,
    AbsentOp,
    LabelsOp,
    RangeOp,
    ScalarVectorOp,
    SortOp,
    TimestampOp,
    ValuesOp,
    calendar_function,
    label_join,
    label_replace,
)
from gpuwatch.promql.histogram import HistogramQuantileOp
from gpuwatch.promql.nodes import (
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Negate,
    Node,
    Number,
    Selector,
    Subquery,
    Text,
    Window,
    kind,
    walk,
)
from gpuwatch.promql.plan import MOST_STEPS, RANGE_FUNCTIONS
from gpuwatch.promql.select import MatrixOp, ScalarOp, SelectorOp, Source, SubqueryOp, VectorOp, WindowOp
from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatch.promql.labels import Floats
    from gpuwatch.promql.range_functions import RangeFunction
    from gpuwatch.promql.select import Scope

_SIMPLE: dict[str, RangeFunction] = {
    "irate": ranges.instantaneous(per_second=True),
    "idelta": ranges.instantaneous(per_second=False),
    "deriv": ranges.deriv,
    "changes": ranges.changes,
    "resets": ranges.resets,
    "sum_over_time": ranges.sum_over_time,
    "avg_over_time": ranges.avg_over_time,
    "min_over_time": ranges.extreme(highest=False),
    "max_over_time": ranges.extreme(highest=True),
    "count_over_time": ranges.count_over_time,
    "last_over_time": ranges.last_over_time,
    "present_over_time": ranges.present_over_time,
    "stddev_over_time": ranges.deviation(root=True),
    "stdvar_over_time": ranges.deviation(root=False),
    "quantile_over_time": ranges.quantile_over_time,
}
_EXTRAPOLATED = {"rate": (True, True), "increase": (True, False), "delta": (False, False)}


def _negative(values: Floats) -> Floats:
    return -values


def _constant(values: Floats, number: float) -> Floats:
    return np.full(len(values), number)


class Compiler:
    """Makes operators for the nodes of plans and keeps them."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._vectors: dict[Node, VectorOp] = {}
        self._sources: dict[tuple[object, ...], Source] = {}

    def __len__(self) -> int:
        """Return the number of operators kept."""
        return len(self._vectors)

    def clear(self) -> None:
        """Forget every operator."""
        self._vectors.clear()
        self._sources.clear()

    def vector(self, node: Node) -> VectorOp:
        """Return the operator of a node that gives an instant vector."""
        found = self._vectors.get(node)
        if found is None:
            found = self._vectors[node] = self._make(node)
        return found

    def scalar(self, node: Node) -> ScalarOp:
        """Return the operator of a node that gives a number."""
        if isinstance(node, Number):
            value = node.value
            return ScalarOp(lambda _: value)
        if isinstance(node, Negate):
            inner = self.scalar(node.expr)
            return ScalarOp(lambda time: -inner.at(time), inner.sources)
        if isinstance(node, Binary):
            return scalar_operator(node.op, self.scalar(node.left), self.scalar(node.right))
        assert isinstance(node, Call)
        if node.name == "time":
            return ScalarOp(lambda time: time / 1000)
        if node.name == "pi":
            return ScalarOp(lambda _: math.pi)
        vector = self.vector(node.args[0])

        def only(time: int) -> float:
            value = vector.at(time)
            return float(value.values[0]) if len(value) == 1 else math.nan

        return ScalarOp(only, vector.sources)

    def matrix(self, node: Node) -> MatrixOp:
        """Return the operator of a range selector or subquery."""
        if isinstance(node, Window):
            return WindowOp(self._scope, self._source(node.selector), node)
        assert isinstance(node, Subquery)
        if node.range // (node.step or self._scope.default_step) > MOST_STEPS:
            raise PromQLError(f"the subquery has more than {MOST_STEPS} steps")
        ahead = any(
            isinstance(part, (Selector, Subquery)) and (part.offset < 0 or part.at is not None)
            for part in walk(node.expr)
        )
        return SubqueryOp(self._scope, self.vector(node.expr), node, ahead=ahead)

    def _source(self, selector: Selector) -> Source:
        found = self._sources.get(selector.matchers)
        if found is None:
            found = self._sources[selector.matchers] = Source(self._scope.store, selector)
        return found

    def _make(self, node: Node) -> VectorOp:
        if isinstance(node, Selector):
            return SelectorOp(self._scope, self._source(node), node)
        if isinstance(node, Negate):
            return ValuesOp(self._scope, _negative, self.vector(node.expr), ())
        if isinstance(node, Aggregate):
            return self._aggregate(node)
        if isinstance(node, Binary):
            return self._binary(node)
        assert isinstance(node, Call)
        return self._range(node) if node.name in RANGE_FUNCTIONS else self._call(node)

    def _aggregate(self, node: Aggregate) -> VectorOp:
        inner = self.vector(node.expr)
        if node.param is None:
            return AggregateOp(self._scope, node, inner)
        if isinstance(node.param, Text):
            return CountValuesOp(self._scope, node, inner, node.param.value)
        return ParameterOp(self._scope, node, inner, self.scalar(node.param))

    def _binary(self, node: Binary) -> VectorOp:
        if kind(node.right) == "scalar":
            return NumberOp(self._scope, node, self.vector(node.left), self.scalar(node.right), swapped=False)
        if kind(node.left) == "scalar":
            return NumberOp(self._scope, node, self.vector(node.right), self.scalar(node.left), swapped=True)
        operator = SetOp if node.op in SET_OPERATORS else MatchOp
        return operator(self._scope, node, self.vector(node.left), self.vector(node.right))

    def _range(self, node: Call) -> VectorOp:
        place = next(at for at, arg in enumerate(node.args) if kind(arg) == "matrix")
        matrix = self.matrix(node.args[place])
        scalars = tuple(self.scalar(arg) for at, arg in enumerate(node.args) if at != place)
        if node.name == "absent_over_time":
            return AbsentOp(self._scope, matrix.sources, matrix.at, node.args[0])
        make = self._range_function(node.name, matrix.range)
        return RangeOp(self._scope, make, matrix, scalars, keep_name=node.name == "last_over_time")

    def _range_function(self, name: str, window: int) -> Callable[[int], RangeFunction]:
        if name == "predict_linear":
            return ranges.predictor
        if name in _EXTRAPOLATED:
            counter, per_second = _EXTRAPOLATED[name]
            function = ranges.extrapolated(
                counter=counter, per_second=per_second, left_open=self._scope.left_open, window=window
            )
        else:
            function = _SIMPLE[name]
        return lambda _: function

    def _call(self, node: Call) -> VectorOp:
        name, args = node.name, node.args
        if name == "vector":
            return ScalarVectorOp(self._scope, self.scalar(args[0]))
        if name == "histogram_quantile":
            return HistogramQuantileOp(self._scope, self.scalar(args[0]), self.vector(args[1]))
        if name in CALENDAR:
            moment = self.vector(args[0]) if args else ScalarVectorOp(self._scope, self.scalar(Call("time", ())))
            return ValuesOp(self._scope, calendar_function(name), moment, ())
        return self._vector_call(name, self.vector(args[0]), args)

    def _vector_call(self, name: str, inner: VectorOp, args: tuple[Node, ...]) -> VectorOp:
        """Return the operator of a function whose first argument is a vector."""
        if name == "absent":
            return AbsentOp(self._scope, inner.sources, lambda time: inner.at(time).labels, args[0])
        if name == "timestamp":
            if isinstance(inner, SelectorOp):
                return TimestampOp(self._scope, inner)
            return ValuesOp(self._scope, _constant, inner, (self.scalar(Call("time", ())),))
        if name in ("sort", "sort_desc"):
            return SortOp(self._scope, inner, descending=name == "sort_desc")
        if name in ("label_replace", "label_join"):
            texts = [cast("Text", arg).value for arg in args[1:]]
            change = label_join(*texts) if name == "label_join" else label_replace(*texts)
            return LabelsOp(self._scope, change, inner)
        return ValuesOp(self._scope, ELEMENTWISE[name], inner, tuple(self.scalar(arg) for arg in args[1:]))
