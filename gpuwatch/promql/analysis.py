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
    children,
    constant,
    kind,
    render,
    walk,
)
from gpuwatch.promql.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

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
