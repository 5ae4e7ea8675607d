"""Rule rows: the state of each rule with its value against the threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import SEVERITY_ORDER
from gpuwatch.tui.format import number
from gpuwatch.tui.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.snapshot import RuleView, Snapshot

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


def reading_text(rule: RuleView) -> str:
    """Return the first comparison of a rule as ``value / threshold``; empty when there is no value."""
    if not rule.readings:
        return ""
    _, value, threshold = rule.readings[0]
    more = f" +{len(rule.readings) - 1}" if len(rule.readings) > 1 else ""
    return f"{number(value)} / {number(threshold)}{more}"
