"""Functions of instant vectors, label functions, and the glue between range functions and windows."""

from __future__ import annotations

import calendar
import datetime as dt
import math
import re
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpuwatch.model import NAME
from gpuwatch.promql.labels import (
    EMPTY,
    NO_LABELS,
    Floats,
    Joiner,
    Many,
    Memo,
    Picker,
    distinct,
    make_labels,
    without_names,
)
from gpuwatch.promql.nodes import Node, Selector, Window
from gpuwatch.promql.select import SelectorOp, VectorOp
from gpuwatch.promql.values import Vector
from gpuwatch.store import compile_regex

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatch.promql.range_functions import RangeFunction
    from gpuwatch.promql.select import MatrixOp, ScalarOp, Scope, Source

Elementwise: TypeAlias = "Callable[..., Floats]"

_EXPANSION = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})", re.ASCII)


def _round(values: Floats, to: float = 1.0) -> Floats:
    inverse = 1.0 / np.float64(to)
    return np.asarray(np.floor(values * inverse + 0.5) / inverse)


def _sign(values: Floats) -> Floats:
    return np.where(np.isnan(values), values, np.sign(values))


ELEMENTWISE: dict[str, Elementwise] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "exp": np.exp,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "sgn": _sign,
    "round": _round,
    "clamp_min": np.maximum,
    "clamp_max": np.minimum,
    "clamp": lambda values, low, high: np.maximum(low, np.minimum(high, values)),
}
"""Functions of one vector and numbers that work value by value."""


def _days(moment: dt.datetime) -> int:
    return calendar.monthrange(moment.year, moment.month)[1]


CALENDAR: dict[str, Callable[[dt.datetime], int]] = {
    "minute": lambda moment: moment.minute,
    "hour": lambda moment: moment.hour,
    "day_of_week": lambda moment: moment.isoweekday() % 7,
    "day_of_month": lambda moment: moment.day,
    "day_of_year": lambda moment: moment.timetuple().tm_yday,
    "days_in_month": _days,
    "month": lambda moment: moment.month,
    "year": lambda moment: moment.year,
}
"""Functions of seconds since the epoch, in UTC."""


def _all_sources(sources: tuple[Source, ...], scalars: tuple[ScalarOp, ...]) -> tuple[Source, ...]:
    return sources + tuple(source for scalar in scalars for source in scalar.sources)


class ValuesOp(VectorOp):
    """A function of values only: the metric name goes, the other labels stay."""

    __slots__ = ("_function", "_inner", "_names", "_scalars")

    def __init__(self, scope: Scope, function: Elementwise, inner: VectorOp, scalars: tuple[ScalarOp, ...]) -> None:
        super().__init__(scope, _all_sources(inner.sources, scalars))
        self._function = function
        self._inner = inner
        self._scalars = scalars
        self._names: Memo[Many] = Memo(without_names)

    def compute(self, time: int) -> Vector:
        """Apply the function; a clamp whose bounds are the wrong way round gives nothing."""
        vector = self._inner.at(time)
        if not vector.labels:
            return EMPTY
        numbers = [scalar.at(time) for scalar in self._scalars]
        if len(numbers) == 2 and numbers[0] > numbers[1]:
            return EMPTY
        if self.unchanged(vector, *numbers):
            return self._value
        return Vector(self._names(vector.labels), self._function(vector.values, *numbers))


def calendar_function(name: str) -> Elementwise:
    """Return a function of the calendar; what is no time gives NaN."""
    part = CALENDAR[name]

    def of(second: float) -> float:
        try:
            return float(part(dt.datetime.fromtimestamp(second, dt.timezone.utc)))
        except (ValueError, OverflowError, OSError):
            return math.nan

    return lambda values: np.array([of(value) for value in values.tolist()])


class RangeOp(VectorOp):
    """A range function over all windows of a range vector.

    `make` gives the function for the evaluation time.
    """

    __slots__ = ("_joiner", "_keep_name", "_make", "_matrix", "_names", "_picker", "_scalars", "_unique")

    def __init__(
        self,
        scope: Scope,
        make: Callable[[int], RangeFunction],
        matrix: MatrixOp,
        scalars: tuple[ScalarOp, ...],
        *,
        keep_name: bool,
    ) -> None:
        super().__init__(scope, _all_sources(matrix.sources, scalars))
        self._make = make
        self._matrix = matrix
        self._scalars = scalars
        self._keep_name = keep_name
        self._picker = Picker()
        self._joiner = Joiner()
        self._names: Memo[Many] = Memo(without_names)
        self._unique: Memo[Many] = Memo(distinct)

    def compute(self, time: int) -> Vector:
        """Apply the function to each window."""
        function = self._make(time)
        numbers = [scalar.at(time) for scalar in self._scalars]
        parts = []
        for samples in self._matrix.at(time):
            values, keep = function(samples, numbers)
            labels = samples.labels if self._keep_name else self._names(samples.labels)
            vector = Vector(labels, values) if keep is None else self._picker.vector(labels, values, keep)
            if vector.labels:
                parts.append(vector)
        joined = self._joiner(parts)
        if len(parts) > 1:
            self._unique(joined.labels)
        return self.settled(joined)


class AbsentOp(VectorOp):
    """absent and absent_over_time: 1 when there is nothing, with the labels that the selector asked for."""

    __slots__ = ("_labels", "_present")

    def __init__(
        self, scope: Scope, sources: tuple[Source, ...], present: Callable[[int], object], argument: Node
    ) -> None:
        super().__init__(scope, sources)
        self._present = present
        self._labels: Many = (make_labels(_wanted(argument)),)

    def compute(self, time: int) -> Vector:
        """Return 1 unless there are series."""
        return EMPTY if self._present(time) else Vector(self._labels, np.ones(1))


def _wanted(argument: Node) -> dict[str, str]:
    """Return the labels that a selector fixes to one value."""
    selector = argument.selector if isinstance(argument, Window) else argument
    wanted: dict[str, str] = {}
    seen: set[str] = set()
    for matcher in selector.matchers if isinstance(selector, Selector) else ():
        if matcher.name == NAME:
            continue
        if matcher.op == "=" and matcher.name not in seen:
            wanted[matcher.name] = matcher.value
            seen.add(matcher.name)
        else:
            wanted.pop(matcher.name, None)
    return wanted


class TimestampOp(VectorOp):
    """The times of the samples that a selector reads, in seconds."""

    __slots__ = ("_inner", "_joiner", "_names")

    def __init__(self, scope: Scope, inner: SelectorOp) -> None:
        super().__init__(scope, inner.sources)
        self._inner = inner
        self._joiner = Joiner()
        self._names: Memo[Many] = Memo(without_names)

    def compute(self, time: int) -> Vector:
        """Return the time of each series' newest sample."""
        parts = [
            Vector(self._names(vector.labels), np.full(len(vector), moment / 1000))
            for vector, moment in self._inner.parts(time)
        ]
        return self._joiner(parts)


class LabelsOp(VectorOp):
    """A function of labels only: label_replace and label_join."""

    __slots__ = ("_inner", "_memo")

    def __init__(self, scope: Scope, change: Callable[[dict[str, str]], None], inner: VectorOp) -> None:
        super().__init__(scope, inner.sources)
        self._inner = inner

        def changed(many: Many) -> Many:
            out = []
            for labels in many:
                values = dict(labels)
                change(values)
                out.append(make_labels(values))
            return distinct(tuple(out))

        self._memo: Memo[Many] = Memo(changed)

    def compute(self, time: int) -> Vector:
        """Change the labels."""
        vector = self._inner.at(time)
        return Vector(self._memo(vector.labels), vector.values) if vector.labels else EMPTY


def label_replace(target: str, replacement: str, source: str, pattern: str) -> Callable[[dict[str, str]], None]:
    """Return the change of label_replace: where `source` matches wholly, `target` becomes the expanded text."""
    compiled = compile_regex(pattern)

    def change(values: dict[str, str]) -> None:
        match = compiled.fullmatch(values.get(source, ""))
        if match is not None:
            values[target] = _EXPANSION.sub(lambda found: _group(match, found), replacement)

    return change


def _group(match: re.Match[str], found: re.Match[str]) -> str:
    if found[1]:
        return "$"
    name = found[2] or found[3]
    try:
        return match[int(name) if name.isdigit() else name] or ""
    except IndexError:
        return ""


def label_join(target: str, separator: str, *sources: str) -> Callable[[dict[str, str]], None]:
    """Return the change of label_join: `target` becomes the values of `sources`, joined."""

    def change(values: dict[str, str]) -> None:
        values[target] = separator.join(values.get(source, "") for source in sources)

    return change


class SortOp(VectorOp):
    """Series by value, NaN last."""

    __slots__ = ("_inner", "_sign")

    def __init__(self, scope: Scope, inner: VectorOp, *, descending: bool) -> None:
        super().__init__(scope, inner.sources)
        self._inner = inner
        self._sign = -1 if descending else 1

    def compute(self, time: int) -> Vector:
        """Sort the inner vector."""
        vector = self._inner.at(time)
        if len(vector) < 2:
            return vector
        order = np.argsort(self._sign * vector.values, kind="stable")
        return Vector(tuple(vector.labels[at] for at in order.tolist()), vector.values[order])


class ScalarVectorOp(VectorOp):
    """vector(): a number as a vector with one series without labels."""

    __slots__ = ("_scalar",)

    def __init__(self, scope: Scope, scalar: ScalarOp) -> None:
        super().__init__(scope, scalar.sources)
        self._scalar = scalar

    def compute(self, time: int) -> Vector:
        """Wrap the number."""
        return Vector(NO_LABELS, np.array([self._scalar.at(time)]))
