"""Rule rows: the state of each rule with its value against the threshold."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import SEVERITY_ORDER
from gpuwatch.tui.text import clean
from gpuwatch.units import number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuwatch.snapshot import RuleView, Snapshot

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}

STATUSES: Mapping[str, tuple[str, str, str]] = {
    "firing": ("●", "firing", "crit"),
    "pending": ("…", "pending", "warn"),
    "error": ("✗", "error", "crit"),
    "not_evaluable": ("?", "cannot evaluate", "warn"),
    "ok": ("✓", "quiet", "ok"),
}
"""Status: (glyph, words, tone), in the order of the list."""


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule of the list."""

    name: str
    severity: str
    glyph: str
    status: str
    tone: str
    reading: str
    detail: str
    rule: RuleView


def rules(snapshot: Snapshot) -> tuple[RuleRow, ...]:
    """Return the rules of a snapshot: firing first, then those that lack something, the quiet ones last."""
    order = list(STATUSES)
    rows = []
    for rule in sorted(
        snapshot.rules, key=lambda r: (order.index(r.status), -SEVERITY_ORDER.get(r.severity, 0), r.name)
    ):
        glyph, words, tone = STATUSES[rule.status]
        if rule.status == "firing" and rule.severity != "critical":
            tone = "warn" if rule.severity == "warning" else "info"
        if rule.firing > 1:
            words = f"{words} ({rule.firing})"
        detail = clean(rule.detail)
        if rule.inhibited:
            quiet = f"{rule.inhibited} held back by a cause"
            detail = f"{detail}; {quiet}" if detail else quiet
        rows.append(
            RuleRow(clean(rule.name), clean(rule.severity), glyph, words, tone, reading_text(rule), detail, rule)
        )
    return tuple(rows)


def holds(text: str, value: float, threshold: float) -> bool:
    """Say whether a comparison is true; `text` ends with its operator and threshold."""
    words = text.split()
    compare = _OPERATORS.get(words[-2]) if len(words) > 1 else None
    return compare is not None and compare(value, threshold)


def reading_text(rule: RuleView) -> str:
    """Return the comparison that decides as ``value / threshold``, and how many of all hold; empty without values.

    Of a rule that is quiet that is the first comparison that does not hold, of the others the first that does.
    """
    if not rule.readings:
        return ""
    held = [holds(*reading) for reading in rule.readings]
    wanted = rule.status in ("firing", "pending")
    decides = held.index(wanted) if wanted in held else 0
    _, value, threshold = rule.readings[decides]
    many = f", {sum(held)} of {len(held)}" if len(held) > 1 else ""
    return f"{number(value)} / {number(threshold)}{many}"


def verdict(rule: RuleView) -> str:
    """Return what the comparisons of a rule say together; empty where there is nothing to add."""
    if not rule.readings or rule.status not in ("ok", "pending", "firing"):
        return ""
    held = sum(holds(*reading) for reading in rule.readings)
    if held < len(rule.readings) or rule.status != "ok":
        return f"{held} of {len(rule.readings)} comparisons with a number hold"
    return "every comparison with a number holds, but not all conditions of the rule for one and the same series"
