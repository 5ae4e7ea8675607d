"""What an expression needs and compares, read off its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.promql.nodes import (
    COMPARISONS,
    Binary,
    Call,
    Node,
    Number,
    Selector,
    Subquery,
    Window,
    children,
    constant,
    kind,
    render,
    walk,
)
from gpuwatch.promql.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

_OF_TIME = frozenset({"timestamp", "count_over_time", "sum_over_time"})
"""Functions whose answers may differ while the values that they read do not."""
_ABSENT = frozenset({"absent", "absent_over_time"})
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
_MOST_ALTERNATIVES = 64


@dataclass(frozen=True, slots=True)
class Comparison:
    """A vector compared with a number: ``text`` is ``left op threshold``."""

    text: str
    left: Plan
    op: str
    threshold: float


@dataclass(frozen=True, slots=True)
class Reads:
    """What decides an answer: the values of the series called `names` in the last `reach` milliseconds.

    A series that has one value from its beginning on decides as if it had always had it, `begun` milliseconds after
    it began.
    """

    names: tuple[str, ...]
    reach: int
    begun: int


def reads(plan: Plan) -> Reads | None:
    """Return what the expression reads; None where its answer depends on more, or where a selector names no metric."""
    names: dict[str, None] = {}
    nodes = tuple(walk(plan.root))
    for node in nodes:
        if isinstance(node, (Selector, Subquery)) and node.at is not None:
            return None
        if isinstance(node, Call) and (node.name in _OF_TIME or (not node.args and node.name != "pi")):
            return None  # without arguments it is time(), or a part of the calendar at this time
        if isinstance(node, Selector):
            if node.name is None:
                return None
            names[node.name] = None
    # The steps of a subquery look back to the time before the series began.
    windows = (Window, Subquery)
    reach = _reach(plan.root, windows)
    return Reads(tuple(names), reach, reach if any(isinstance(node, Subquery) for node in nodes) else _reach(plan.root))


def _reach(node: Node, windows: tuple[type, ...] = ()) -> int:
    """Return the longest way back through offsets and `windows`, in milliseconds."""
    own = node.range if isinstance(node, (Window, Subquery)) and isinstance(node, windows) else 0
    if isinstance(node, (Selector, Subquery)):
        own += abs(node.offset)
    return own + max((_reach(child, windows) for child in children(node)), default=0)


def selectors(plan: Plan) -> tuple[Selector, ...]:
    """Return every selector of the expression, in the order of the text."""
    return tuple(node for node in walk(plan.root) if isinstance(node, Selector))


def requirements(plan: Plan) -> tuple[frozenset[str], ...]:
    """Return the sets of metric names that make the expression decidable; any one of them is enough.

    Arithmetic, comparisons and ``and`` need both sides, ``or`` needs either, the right side of ``unless`` and the
    argument of ``absent`` and ``absent_over_time`` need not exist. An empty set means: always decidable.
    """
    return _smallest(_requirements(plan.root))


def missing(plan: Plan, existing: Container[str]) -> frozenset[str]:
    """Return the metric names that are lacking, empty when the expression is decidable.

    Where there are alternatives, the one that lacks least is told.
    """
    lacking = [frozenset(name for name in names if name not in existing) for names in requirements(plan)]
    return min(lacking, key=lambda names: (len(names), sorted(names)), default=frozenset())


def comparisons(plan: Plan) -> tuple[Comparison, ...]:
    """Return the comparisons of a vector with a number that decide the result.

    Looked for at the top and through ``and``, ``or`` and the left side of ``unless``.
    """
    return tuple(_comparisons(plan.root))


def _requirements(node: Node) -> tuple[frozenset[str], ...]:
    if isinstance(node, Selector):
        return (frozenset({node.name} if node.name else ()),)
    if isinstance(node, Call) and node.name in _ABSENT:
        return (frozenset(),)
    if isinstance(node, Binary) and node.op == "unless":
        return _requirements(node.left)
    if isinstance(node, Binary) and node.op == "or":
        return _smallest(_requirements(node.left) + _requirements(node.right))
    needs: tuple[frozenset[str], ...] = (frozenset(),)
    for child in children(node):
        needs = _smallest(tuple(one | other for one in needs for other in _requirements(child)))
    return needs


def _smallest(sets: tuple[frozenset[str], ...]) -> tuple[frozenset[str], ...]:
    """Leave out every set that contains another one; keep the order."""
    unique = list(dict.fromkeys(sets))
    return tuple(one for one in unique if not any(other < one for other in unique))[:_MOST_ALTERNATIVES]


def _comparisons(node: Node) -> Iterator[Comparison]:
    if not isinstance(node, Binary):
        return
    if node.op in ("and", "or"):
        yield from _comparisons(node.left)
        yield from _comparisons(node.right)
    elif node.op == "unless":
        yield from _comparisons(node.left)
    elif node.op in COMPARISONS:
        left, op, right = node.left, node.op, node.right
        if kind(left) == "scalar":
            left, op, right = right, _FLIPPED[op], left
        threshold = constant(right)
        if threshold is not None and kind(left) == "vector":
            inner = Plan(render(left), left)
            text = render(Binary(op, left, Number(threshold)))
            yield Comparison(text, inner, op, threshold)
