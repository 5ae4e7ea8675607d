"""Thresholds of panels, read from the rules, so that a line on a dashboard is where the alert is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.dashboards.model import Level, Limit
from gpuwatch.promql.nodes import COMPARISONS, Binary, Node, constant, kind, render, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.promql.plan import Plan

_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}


class LimitError(Exception):
    """A dashboard draws the threshold of a rule that has no such comparison."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A value of a panel from which on it is coloured; `below`: the values under it are. `rule` is where it is from."""

    value: float
    colour: str
    below: bool = False
    rule: str = ""


@dataclass(frozen=True, slots=True)
class _Comparison:
    left: str
    op: str
    number: float
    relative: bool


def comparisons_of(plan: Plan) -> Iterator[_Comparison]:
    """Yield every comparison of a vector with a number, or with a number times another vector (`relative`)."""
    for node in walk(plan.root):
        if not isinstance(node, Binary) or node.op not in COMPARISONS:
            continue
        left, op, right = node.left, node.op, node.right
        if kind(left) == "scalar":
            left, op, right = right, _FLIPPED[op], left
        number, factor = constant(right), _factor(right)
        if number is not None:
            yield _Comparison(render(left), op, number, relative=False)
        elif factor is not None:
            yield _Comparison(render(left), op, factor, relative=True)


def _factor(node: Node) -> float | None:
    """Return the number of ``number * vector``."""
    if isinstance(node, Binary) and node.op == "*":
        return constant(node.left) if constant(node.left) is not None else constant(node.right)
    return None


def resolve(limits: Iterable[Limit | Level], rules: RuleSet) -> tuple[Threshold, ...]:
    """Return the thresholds in the order of their values; of several in one rule, the one that is reached first.

    Raises:
        LimitError: a shipped rule does not have the comparison. A user's own rule without it gives no threshold.
    """
    found = []
    for limit in limits:
        if isinstance(limit, Level):
            found.append(Threshold(limit.value, limit.colour))
            continue
        for rule in rules.alerts:
            if rule.name != limit.alert:
                continue
            same = [c for c in comparisons_of(rule.plan) if c.left == limit.left]
            absolute = [c for c in same if not c.relative]
            numbers = [c.number for c in absolute or same]
            below = {c.op in ("<", "<=") for c in absolute or same}
            if len(below) == 1:
                first = max(numbers) if True in below else min(numbers)
                found.append(Threshold(first * limit.scale, limit.colour, True in below, rule.name))
            elif rule.shipped:
                seen = sorted({comparison.left for comparison in comparisons_of(rule.plan)})
                raise LimitError(f"rule {rule.name} compares {', '.join(seen)} with a number, but not {limit.left}")
    return tuple(sorted(found, key=lambda threshold: threshold.value))
