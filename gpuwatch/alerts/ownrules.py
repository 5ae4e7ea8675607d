"""What is needed to judge the alerts of a user's own rules: which they are, and what the shipped rules ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.alerts.rulefile import AlertRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.alerts.rulefile import RuleSet

_TOLD = "gpuwatch_finding_info"


@dataclass(frozen=True, slots=True)
class OwnRules:
    """The user's alerting rules. `quoting` are those whose texts repeat what is found.

    `conditions` are the expressions of the shipped rules of each finding id, also of those that a user's rule replaces.
    """

    names: frozenset[str] = frozenset()
    quoting: frozenset[str] = frozenset()
    conditions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def own_rules(rules: RuleSet) -> OwnRules:
    """Return what is known of the user's alerting rules in `rules`."""
    own = [rule for rule in rules.alerts if not rule.shipped]
    if not own:
        return OwnRules()
    conditions: dict[str, tuple[str, ...]] = {}
    for rule in (*rules.rules, *rules.replaced):
        if isinstance(rule, AlertRule) and rule.shipped and rule.id:
            conditions[rule.id] = (*conditions.get(rule.id, ()), rule.expr)
    quoting = frozenset(rule.name for rule in own if _TOLD in rule.annotations.get("description", ""))
    return OwnRules(frozenset(rule.name for rule in own), quoting, conditions)
