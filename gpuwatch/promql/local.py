"""PromQL over the store of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from gpuwatch.promql.compiler import Compiler
from gpuwatch.promql.labels import NO_LABELS
from gpuwatch.promql.nodes import bound, floating
from gpuwatch.promql.plan import MOST_STEPS, Plan, parse
from gpuwatch.promql.select import ScalarOp, Scope, VectorOp
from gpuwatch.promql.values import PromQLError, RangeSeries, Vector

if TYPE_CHECKING:
    from gpuwatch.model import Labels
    from gpuwatch.store import Store

_MOST_PLANS = 2000


class LocalQuerier:
    """Answers PromQL from a `Store`; implements `gpuwatch.promql.values.Querier`.

    Args:
        store: Where the samples are.
        semantics: "3" evaluates as Prometheus 3 does, "2" as Prometheus 2.42: closed windows and the older
            extrapolation of counters.
        default_step_ms: The step of a subquery that names none; Prometheus uses its evaluation interval.
    """

    def __init__(self, store: Store, semantics: Literal["3", "2"] = "3", *, default_step_ms: int = 60_000) -> None:
        self.store = store
        self._scope = Scope(store, semantics == "3", default_step_ms)
        self._compiler = Compiler(self._scope)
        self._prepared: dict[str | Plan, VectorOp | ScalarOp] = {}

    def instant(self, expr: str | Plan, time: int) -> Vector:
        """Evaluate `expr` at `time` (milliseconds). A scalar comes as one series without labels.

        Raises:
            PromQLError: `expr` is refused, has no vector or scalar as its value, or fails on the present samples.
        """
        operator = self._operator(expr, time, time)
        with np.errstate(all="ignore"):
            return _evaluate(operator, time)

    def range(self, expr: str | Plan, start: int, end: int, step: int) -> tuple[RangeSeries, ...]:
        """Evaluate `expr` at start, start + step, … up to `end` (milliseconds).

        Raises:
            PromQLError: As for `instant`; also when the step is not positive or there are more than 11,000 steps.
        """
        if step <= 0:
            raise PromQLError("the step of a range query must be positive")
        if (end - start) // step >= MOST_STEPS:
            raise PromQLError(f"the range query has more than {MOST_STEPS} steps")
        operator = self._operator(expr, start, end)
        series: dict[Labels, tuple[list[int], list[float]]] = {}
        with np.errstate(all="ignore"):
            for time in range(start, end + 1, step):
                for labels, value in _evaluate(operator, time).items():
                    times, values = series.setdefault(labels, ([], []))
                    times.append(time)
                    values.append(value)
        return tuple(RangeSeries(labels, tuple(times), tuple(values)) for labels, (times, values) in series.items())

    def _operator(self, expr: str | Plan, start: int, end: int) -> VectorOp | ScalarOp:
        operator = self._prepared.get(expr)
        if operator is None:
            plan = parse(expr) if isinstance(expr, str) else expr
            if floating(plan.root):  # what it means changes with every query, so nothing of it is kept
                return _prepare(Plan(plan.text, bound(plan.root, start, end)), Compiler(self._scope))
            if len(self._prepared) >= _MOST_PLANS:
                self._prepared.clear()
                self._compiler.clear()
            operator = self._prepared[expr] = _prepare(plan, self._compiler)
        return operator


def _prepare(plan: Plan, compiler: Compiler) -> VectorOp | ScalarOp:
    if plan.kind in ("matrix", "string"):
        what = "a range vector" if plan.kind == "matrix" else "a string"
        raise PromQLError(f"{plan.text.strip()}: {what} is not a value that can be shown")
    try:
        return compiler.scalar(plan.root) if plan.kind == "scalar" else compiler.vector(plan.root)
    except PromQLError as error:
        raise PromQLError(f"{plan.text.strip()}: {error}") from None


def _evaluate(operator: VectorOp | ScalarOp, time: int) -> Vector:
    if isinstance(operator, ScalarOp):
        return Vector(NO_LABELS, np.array([operator.at(time)]))
    return operator.at(time)
