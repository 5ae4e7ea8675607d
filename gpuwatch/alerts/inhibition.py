"""Which firing alerts are muted by their causes: Alertmanager's inhibition semantics.

Source of the semantics: Alertmanager ``inhibit/inhibit.go`` (0.25) and its configuration page. An alert that matches
the target side of a rule is muted while a firing alert matches the source side and both have the same values for
the `equal` labels, a missing label counting as an empty one. An alert that matches both sides is not muted by
alerts for which the same is true, so nothing mutes itself. A muted alert still mutes others.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.alerts.inhibitions import INHIBITIONS
from gpuwatch.alerts.placement import NOWHERE
from gpuwatch.model import Labels, label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatch.alerts.inhibitions import Inhibition
    from gpuwatch.alerts.placement import Placement
    from gpuwatch.alerts.state import Alert

Operator: TypeAlias = Literal["=", "!=", "=~", "!~"]

CAUSE_LABEL = "diagnosis"


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.ASCII)


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition on one label; a regular expression matches the whole value, a missing label is empty."""

    name: str
    operator: Operator
    value: str

    def matches(self, labels: Labels) -> bool:
        """Return whether `labels` meet the condition."""
        actual = label(labels, self.name)
        if self.operator in ("=", "!="):
            return (actual == self.value) == (self.operator == "=")
        return (_pattern(self.value).fullmatch(actual) is not None) == (self.operator == "=~")

    def __str__(self) -> str:
        """Return the matcher as Alertmanager reads it."""
        return f"{self.name}{self.operator}{json.dumps(self.value, ensure_ascii=False)}"


@dataclass(frozen=True, slots=True)
class InhibitRule:
    """One rule in Alertmanager's terms; all matchers of a side must hold.

    With `placed`, which Alertmanager does not know, both sides must be about the same engine.
    """

    source: tuple[Matcher, ...]
    target: tuple[Matcher, ...]
    equal: tuple[str, ...]
    placed: bool = False

    @property
    def source_label(self) -> tuple[str, str] | None:
        """One label that every source has with this value, where the rule asks for one."""
        return next(((item.name, item.value) for item in self.source if item.operator == "=" and item.value), None)

    def is_source(self, labels: Labels) -> bool:
        """Return whether an alert with `labels` can mute others."""
        return all(matcher.matches(labels) for matcher in self.source)

    def is_target(self, labels: Labels) -> bool:
        """Return whether an alert with `labels` can be muted."""
        return all(matcher.matches(labels) for matcher in self.target)


def from_table(table: Iterable[Inhibition]) -> tuple[InhibitRule, ...]:
    """Return the inhibition rules of a table of causes and symptoms."""
    rules = []
    for row in table:
        symptoms = "|".join(re.escape(symptom) for symptom in row.symptoms)
        rules.append(
            InhibitRule(
                (Matcher(CAUSE_LABEL, "=", row.cause),),
                (Matcher(CAUSE_LABEL, "=~", symptoms),),
                row.equal,
                row.placed,
            )
        )
    return tuple(rules)


RULES = from_table(INHIBITIONS)
"""The shipped inhibition rules."""


def asks_where(alerts: Sequence[Alert], rules: Sequence[InhibitRule] = RULES) -> bool:
    """Return whether a rule that needs to know which engine uses which GPU has a firing source among `alerts`."""
    firing = [alert.labels for alert in alerts if alert.state == "firing"]
    return any(rule.placed and any(map(rule.is_source, firing)) for rule in rules) if firing else False


def inhibit(
    alerts: Sequence[Alert], rules: Sequence[InhibitRule] = RULES, placement: Placement = NOWHERE
) -> tuple[Alert, ...]:
    """Return `alerts` with `inhibited_by` set to the name of the first firing alert that mutes each.

    Only firing alerts mute; pending ones are marked too, because they will be muted the moment they fire.
    Resolved alerts are never marked. `placement` tells which engine uses which GPU.
    """
    sources = [alert for alert in alerts if alert.state == "firing"]
    if not sources or not rules:
        return tuple(alerts)
    by_label: dict[tuple[str, str], list[Alert]] = {}
    for source in sources:
        for pair in source.labels:
            by_label.setdefault(pair, []).append(source)
    by_rule = [
        (rule, [source for source in _candidates(rule, by_label, sources) if rule.is_source(source.labels)])
        for rule in rules
    ]
    live = [(rule, found) for rule, found in by_rule if found]
    if not live:
        return tuple(alerts)
    return tuple(
        alert
        if alert.state == "resolved" or not (cause := _muted_by(alert, live, placement))
        else replace(alert, inhibited_by=cause)
        for alert in alerts
    )


def _candidates(
    rule: InhibitRule, by_label: Mapping[tuple[str, str], list[Alert]], sources: list[Alert]
) -> Sequence[Alert]:
    """Return the alerts among which the sources of `rule` are."""
    wanted = rule.source_label
    return sources if wanted is None else by_label.get(wanted, ())


def _muted_by(alert: Alert, rules: Sequence[tuple[InhibitRule, list[Alert]]], placement: Placement) -> str:
    for rule, sources in rules:
        if not rule.is_target(alert.labels):
            continue
        two_sided = rule.is_source(alert.labels)
        for source in sources:
            if any(label(source.labels, name) != label(alert.labels, name) for name in rule.equal):
                continue
            if rule.placed and not placement.shared(dict(source.labels), dict(alert.labels)):
                continue
            if two_sided and rule.is_target(source.labels):
                continue
            return source.name
    return ""


def alertmanager_yaml(rules: Sequence[InhibitRule] = RULES) -> str:
    """Return the ``inhibit_rules`` section of an Alertmanager configuration (0.22 or newer).

    A cause mutes nothing in another cluster, where a machine may have the same name. Rules that need to know where
    an engine runs are left out: by the host alone they would mute the trouble of another engine there.
    """
    rules = [rule for rule in rules if not rule.placed]
    lines = ["inhibit_rules:"] if rules else ["inhibit_rules: []"]
    for rule in rules:
        lines.append("  - source_matchers:")
        lines.extend(f"      - {_quoted(str(matcher))}" for matcher in rule.source)
        lines.append("    target_matchers:")
        lines.extend(f"      - {_quoted(str(matcher))}" for matcher in rule.target)
        lines.append(f"    equal: [{', '.join(_quoted(name) for name in rule.equal)}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return `text` as a YAML scalar in single quotes."""
    return "'" + text.replace("'", "''") + "'"
