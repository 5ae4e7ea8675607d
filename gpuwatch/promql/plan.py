"""From the text of an expression to its plan, with everything refused that gpuwatch cannot or will not evaluate.

The parser is `promql-parser` (Rust); its syntax tree is converted at once and does not leave this module. Accepted is
what Prometheus 2.42 accepts, so that an expression that loads here loads everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpuwatch.model import NAME
from gpuwatch.promql.lexical import normalise
from gpuwatch.promql.nodes import (
    Aggregate,
    At,
    Binary,
    Call,
    Kind,
    Matching,
    Negate,
    Node,
    Number,
    Selector,
    Subquery,
    Text,
    Window,
    kind,
    render,
)
from gpuwatch.promql.values import PromQLError
from gpuwatch.store.matchers import Matcher, MatchOp
from gpuwatch.store.regex import RegexError, compile_regex

if TYPE_CHECKING:
    from datetime import timedelta

RANGE_FUNCTIONS = frozenset(
    {
        *("rate", "irate", "increase", "delta", "idelta", "deriv", "predict_linear", "changes", "resets"),
        *("sum_over_time", "avg_over_time", "min_over_time", "max_over_time", "count_over_time", "last_over_time"),
        *("present_over_time", "absent_over_time", "stddev_over_time", "stdvar_over_time", "quantile_over_time"),
    }
)
"""Functions of a range vector."""

FUNCTIONS = RANGE_FUNCTIONS | {
    *("abs", "ceil", "clamp", "clamp_max", "clamp_min", "exp", "floor", "ln", "log10", "log2", "round", "sgn", "sqrt"),
    *("absent", "histogram_quantile", "label_join", "label_replace", "pi", "scalar", "sort", "sort_desc", "vector"),
    *("day_of_month", "day_of_week", "day_of_year", "days_in_month", "hour", "minute", "month", "year"),
    *("time", "timestamp"),
}
"""Every function that may be used: float functions that are stable in Prometheus 2.42."""

AGGREGATIONS = frozenset(
    {
        *("sum", "avg", "count", "min", "max", "group", "stddev", "stdvar"),
        *("topk", "bottomk", "quantile", "count_values"),
    }
)
"""Every aggregation that may be used."""

MOST_STEPS = 11_000
"""Steps of a range query or subquery; Prometheus' own limit for the former."""

_NATIVE = frozenset(
    f"histogram_{what}" for what in ("avg", "count", "fraction", "quantiles", "stddev", "stdvar", "sum")
)
_SHOWN = 200
_DEEPEST = 150
_LATEST_MS = 2**53
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MATCH_OPS: dict[str, MatchOp] = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked expression: its text as it was given, and the root of its nodes."""

    text: str
    root: Node

    @property
    def kind(self) -> Kind:
        """The type of the value: scalar, vector, matrix or string."""
        return kind(self.root)

    def __str__(self) -> str:
        """Return the expression in canonical form."""
        return render(self.root)


@lru_cache(maxsize=2048)
def parse(expr: str) -> Plan:
    """Parse and check an expression.

    Raises:
        PromQLError: It is not PromQL, has wrong types, or uses something that is not supported.
    """
    import promql_parser  # noqa: PLC0415  # the parser is loaded when the first expression is

    try:
        return Plan(expr, _Converter(promql_parser).node(promql_parser.parse(normalise(expr))))
    except (PromQLError, ValueError) as error:
        raise PromQLError(f"{_short(expr)}: {error}") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # what the Rust side raises on a bug of its own
            raise
        raise PromQLError(f"{_short(expr)}: the parser failed") from None


def _short(expr: str) -> str:
    """Return an expression for an error text: on one line and not too long."""
    text = " ".join(expr.split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _ms(value: timedelta | None) -> int:
    return round(value.total_seconds() * 1000) if value is not None else 0


def _last(value: object) -> str:
    """Return the last part of an enum's text; the parser's enums compare awkwardly otherwise."""
    return str(value).rsplit(".", 1)[-1]


class _Converter:
    """Turns the parser's tree into nodes and checks each on the way."""

    def __init__(self, module: Any) -> None:
        self._depth = 0
        self._of = {
            module.ParenExpr: lambda e: self.node(e.expr),
            module.NumberLiteral: lambda e: Number(float(e.val)),
            module.StringLiteral: lambda e: Text(e.val),
            module.UnaryExpr: self._negate,
            module.VectorSelector: self._selector,
            module.MatrixSelector: self._window,
            module.SubqueryExpr: self._subquery,
            module.Call: self._call,
            module.AggregateExpr: self._aggregate,
            module.BinaryExpr: self._binary,
        }

    def node(self, expr: Any) -> Node:
        convert = self._of.get(type(expr))
        if convert is None:
            raise PromQLError(f"{type(expr).__name__} is not supported")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise PromQLError(f"the expression has more than {_DEEPEST} levels")
        node = convert(expr)
        self._depth -= 1
        return node

    def _negate(self, expr: Any) -> Node:
        inner = self.node(expr.expr)
        return Number(-inner.value) if isinstance(inner, Number) else Negate(inner)

    def _selector(self, expr: Any) -> Selector:
        if expr.matchers.or_matchers:
            raise PromQLError("or between label matchers is not supported")
        matchers = [Matcher(NAME, "=", expr.name)] if expr.name else []
        for m in expr.matchers.matchers:
            op = _MATCH_OPS[_last(m.op)]
            _check_label(m.name)
            if op in ("=~", "!~"):
                _check_regex(m.value)
            matchers.append(Matcher(m.name, op, m.value))
        return Selector(tuple(matchers), _ms(expr.offset), _at(expr.at))

    def _window(self, expr: Any) -> Window:
        return Window(self._selector(expr.vector_selector), _ms(expr.range))

    def _subquery(self, expr: Any) -> Subquery:
        node = Subquery(self.node(expr.expr), _ms(expr.range), _ms(expr.step), _ms(expr.offset), _at(expr.at))
        if node.step and node.range // node.step > MOST_STEPS:
            raise PromQLError(f"the subquery has more than {MOST_STEPS} steps")
        return node

    def _call(self, expr: Any) -> Call:
        name = expr.func.name
        if name in _NATIVE:
            raise PromQLError(f"the function {name} is for native histograms, which gpuwatch does not read")
        if name not in FUNCTIONS:
            raise PromQLError(f"the function {name} is not supported; supported are {', '.join(sorted(FUNCTIONS))}")
        args = tuple(self.node(arg) for arg in expr.args)
        if name == "label_replace":
            _check_regex(_text(args[4]))
            _check_label(_text(args[1]))
        elif name == "label_join":
            _check_label(_text(args[1]))
            for arg in args[3:]:
                _check_label(_text(arg))
        return Call(name, args)

    def _aggregate(self, expr: Any) -> Aggregate:
        op = str(expr.op)
        if op not in AGGREGATIONS:
            raise PromQLError(f"the aggregation {op} is not supported; supported are {', '.join(sorted(AGGREGATIONS))}")
        labels: tuple[str, ...] = ()
        without = False
        if expr.modifier is not None:
            labels, without = tuple(expr.modifier.labels), _last(expr.modifier.type) == "Without"
            for name in labels:
                _check_label(name)
        param = self.node(expr.param) if expr.param is not None else None
        if op == "count_values":
            _check_label(_text(param))
        return Aggregate(op, self.node(expr.expr), param, labels, without)

    def _binary(self, expr: Any) -> Node:
        modifier = expr.modifier
        matching, as_bool = Matching(), False
        if modifier is not None:
            fill = modifier.fill_values
            if fill is not None and (fill.lhs is not None or fill.rhs is not None):
                raise PromQLError("the modifier fill is not supported")
            as_bool = modifier.return_bool
            on = modifier.matching is not None and _last(modifier.matching.type) == "Include"
            labels = tuple(modifier.matching.labels) if modifier.matching is not None else ()
            group = {"ManyToOne": "left", "OneToMany": "right"}.get(_last(modifier.card), "")
            matching = Matching(on, labels, group, tuple(modifier.group_labels or ()) if group else ())
            for name in (*matching.labels, *matching.include):
                _check_label(name)
        return Binary(str(expr.op), self.node(expr.lhs), self.node(expr.rhs), matching, as_bool)


def _at(modifier: Any) -> At:
    """Return what ``@`` names; the parser's own text of it, unlike its time, keeps the milliseconds."""
    if modifier is None:
        return None
    word = _last(modifier.type)
    if word in ("Start", "End"):
        return "start" if word == "Start" else "end"
    milliseconds = round(float(str(modifier).removeprefix("@")) * 1000)
    if milliseconds > _LATEST_MS:
        raise PromQLError("the time behind @ is out of range")
    return milliseconds


def _check_label(name: str) -> None:
    if not _LABEL.fullmatch(name):
        raise PromQLError(f"{name!r} is not a label name")


def _check_regex(pattern: str) -> None:
    try:
        compile_regex(pattern)
    except RegexError as error:
        raise PromQLError(str(error)) from None


def _text(node: Node | None) -> str:
    if not isinstance(node, Text):
        raise PromQLError("a string is expected")
    return node.value
