"""The plan of an expression: frozen nodes, independent of the parser, and how they read as PromQL."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from gpuwatch.model import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuwatch.store.matchers import Matcher

At: TypeAlias = "int | Literal['start', 'end'] | None"
Kind: TypeAlias = Literal["scalar", "vector", "matrix", "string"]

COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
SET_OPERATORS = frozenset({"and", "or", "unless"})
SCALAR_FUNCTIONS = frozenset({"time", "scalar", "pi"})

_PRECEDENCE = {"or": 1, "and": 2, "unless": 2, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5, "atan2": 5, "^": 7}
_PRECEDENCE.update(dict.fromkeys(COMPARISONS, 3))
_UNARY = 6
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class Text:
    """A string: an argument of a function."""

    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """An instant selector; `offset` in milliseconds. The metric name is one of the matchers.

    `at` is the time that the modifier ``@`` names, in milliseconds, or the first or last time of the whole query.
    """

    matchers: tuple[Matcher, ...]
    offset: int = 0
    at: At = None

    @property
    def name(self) -> str | None:
        """The metric name, where it is given exactly."""
        return next((m.value for m in self.matchers if m.name == NAME and m.op == "="), None)


@dataclass(frozen=True, slots=True)
class Window:
    """A range selector: the samples of `range` milliseconds."""

    selector: Selector
    range: int


@dataclass(frozen=True, slots=True)
class Subquery:
    """An expression evaluated at steps over `range`; all in milliseconds, step 0 is the default step.

    `at` is as in `Selector`.
    """

    expr: Node
    range: int
    step: int = 0
    offset: int = 0
    at: At = None


@dataclass(frozen=True, slots=True)
class Call:
    """A function call."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregation `by` the labels, or `without` them; `param` belongs to topk, bottomk, quantile, count_values."""

    op: str
    expr: Node
    param: Node | None = None
    labels: tuple[str, ...] = ()
    without: bool = False


@dataclass(frozen=True, slots=True)
class Matching:
    """How the series of two vectors find each other; `group` names the side with many ("left", "right" or "")."""

    on: bool = False
    labels: tuple[str, ...] = ()
    group: str = ""
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    """A binary operation; `matching` matters between two vectors only."""

    op: str
    left: Node
    right: Node
    matching: Matching = Matching()
    as_bool: bool = False


@dataclass(frozen=True, slots=True)
class Negate:
    """Unary minus."""

    expr: Node


Node: TypeAlias = "Number | Text | Selector | Window | Subquery | Call | Aggregate | Binary | Negate"


def kind(node: Node) -> Kind:
    """Return the type of the value that `node` gives."""
    if isinstance(node, Negate):
        return kind(node.expr)
    if isinstance(node, Call):
        return "scalar" if node.name in SCALAR_FUNCTIONS else "vector"
    if isinstance(node, Binary):
        return "scalar" if kind(node.left) == kind(node.right) == "scalar" else "vector"
    return _KINDS.get(type(node), "vector")


_KINDS: dict[type, Kind] = {Number: "scalar", Text: "string", Window: "matrix", Subquery: "matrix"}


def children(node: Node) -> tuple[Node, ...]:
    """Return the direct parts of `node`."""
    if isinstance(node, Window):
        return (node.selector,)
    if isinstance(node, (Subquery, Negate)):
        return (node.expr,)
    if isinstance(node, Call):
        return node.args
    if isinstance(node, Aggregate):
        return (node.expr,) if node.param is None else (node.param, node.expr)
    if isinstance(node, Binary):
        return (node.left, node.right)
    return ()


def walk(node: Node) -> Iterator[Node]:
    """Yield `node` and everything in it, depth first."""
    yield node
    for child in children(node):
        yield from walk(child)


def floating(node: Node) -> bool:
    """Return whether ``@ start()`` or ``@ end()`` is somewhere in `node`."""
    return any(isinstance(part, (Selector, Subquery)) and isinstance(part.at, str) for part in walk(node))


def bound(node: Node, start: int, end: int) -> Node:
    """Return `node` with ``@ start()`` and ``@ end()`` replaced by these times (milliseconds)."""

    def times(part: Node) -> Node:
        if isinstance(part, Window):
            return replace(part, selector=cast("Selector", times(part.selector)))
        if isinstance(part, Call):
            return replace(part, args=tuple(map(times, part.args)))
        if isinstance(part, Aggregate):
            return replace(part, expr=times(part.expr), param=None if part.param is None else times(part.param))
        if isinstance(part, Binary):
            return replace(part, left=times(part.left), right=times(part.right))
        if isinstance(part, (Subquery, Negate)):
            part = replace(part, expr=times(part.expr))
        if isinstance(part, (Selector, Subquery)) and isinstance(part.at, str):
            part = replace(part, at=start if part.at == "start" else end)
        return part

    return times(node)


def constant(node: Node) -> float | None:
    """Return the value of an expression made of numbers only, or None."""
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Negate):
        value = constant(node.expr)
        return None if value is None else -value
    if isinstance(node, Binary) and node.op in _ARITHMETIC:
        left, right = constant(node.left), constant(node.right)
        if left is None or right is None:
            return None
        try:
            return float(_ARITHMETIC[node.op](left, right))
        except (ArithmeticError, ValueError, TypeError):
            return None
    return None


_ARITHMETIC = {
    "+": float.__add__,
    "-": float.__sub__,
    "*": float.__mul__,
    "/": float.__truediv__,
    "%": math.fmod,
    "^": math.pow,
}


def duration(ms: int) -> str:
    """Return milliseconds as a PromQL duration, such as ``1h30m``."""
    if ms < 0:
        return "-" + duration(-ms)
    parts = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def render(node: Node) -> str:
    """Return `node` as PromQL."""
    return _RENDERERS[type(node)](node)


def number(value: float) -> str:
    """Return a number as PromQL writes it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def quote(text: str) -> str:
    """Return `text` as a PromQL string in double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped.replace(chr(13), chr(92) + "r")}"'


def _precedence(node: Node) -> int:
    if isinstance(node, Binary):
        return _PRECEDENCE[node.op]
    if isinstance(node, Negate) or (isinstance(node, Number) and node.value < 0):
        return _UNARY
    return _UNARY + 3


def _inside(node: Node, precedence: int) -> str:
    return render(node) if _precedence(node) >= precedence else f"({render(node)})"


def _moved(node: Selector | Subquery) -> str:
    at = f" @ {node.at / 1000:.3f}" if isinstance(node.at, int) else f" @ {node.at}()" if node.at else ""
    return at + (f" offset {duration(node.offset)}" if node.offset else "")


def _selector(node: Selector, window: str) -> str:
    name = node.name or ""
    rest = [m for m in node.matchers if not (m.name == NAME and m.op == "=")]
    inner = ", ".join(f"{m.name}{m.op}{quote(m.value)}" for m in rest)
    return name + (f"{{{inner}}}" if rest else "") + window + _moved(node)


def _aggregate(node: Aggregate) -> str:
    args = ", ".join(render(child) for child in children(node))
    word = "without" if node.without else "by"
    grouping = f" {word} ({', '.join(node.labels)}) " if node.labels or node.without else ""
    return f"{node.op}{grouping}({args})"


def _binary(node: Binary) -> str:
    own = _PRECEDENCE[node.op]
    right_binds = node.op == "^"
    left = _inside(node.left, own + right_binds)
    right = _inside(node.right, own + (not right_binds))
    how = " bool" if node.as_bool else ""
    matching = node.matching
    if matching.on or matching.labels:
        how += f" {'on' if matching.on else 'ignoring'} ({', '.join(matching.labels)})"
    if matching.group:
        how += f" group_{matching.group}" + (f" ({', '.join(matching.include)})" if matching.include else "")
    return f"{left} {node.op}{how} {right}"


def _subquery(node: Subquery) -> str:
    steps = f"[{duration(node.range)}:{duration(node.step) if node.step else ''}]"
    return _inside(node.expr, _UNARY + 2) + steps + _moved(node)


def _call(node: Call) -> str:
    return f"{node.name}({', '.join(render(arg) for arg in node.args)})"


_RENDERERS: dict[type, Callable[[Any], str]] = {
    Number: lambda node: number(node.value),
    Text: lambda node: quote(node.value),
    Selector: lambda node: _selector(node, ""),
    Window: lambda node: _selector(node.selector, f"[{duration(node.range)}]"),
    Subquery: _subquery,
    Call: _call,
    Aggregate: _aggregate,
    Binary: _binary,
    Negate: lambda node: "-" + _inside(node.expr, _UNARY + 1),
}
