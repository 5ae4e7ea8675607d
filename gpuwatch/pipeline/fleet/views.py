"""What a Prometheus says of its rules and our sources, as the snapshot shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatch.model import label
from gpuwatch.snapshot import RuleView, SourceState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatch.pipeline.fleet.asking import Failure
    from gpuwatch.snapshot import Answer, RuleStatus

PREFIX = "Gpuwatch"
_STATES: dict[str, RuleStatus] = {"inactive": "ok", "pending": "pending", "firing": "firing"}
_NAMED = 3
"""Figures that are named when several are missing."""


def rule_views(data: Any) -> tuple[RuleView, ...]:
    """Return our alerting rules out of the answer of ``/api/v1/rules``; what has another shape is left out."""
    groups = data.get("groups") if isinstance(data, dict) else None
    rules = [
        (group, rule)
        for group in groups or ()
        if isinstance(group, dict)
        for rule in group.get("rules") or ()
        if isinstance(rule, dict) and str(rule.get("name", "")).startswith(PREFIX) and "labels" in rule
    ]
    return tuple(_view(group, rule) for group, rule in rules if rule.get("type", "alerting") == "alerting")


def _view(group: dict[str, Any], rule: dict[str, Any]) -> RuleView:
    labels = rule["labels"] if isinstance(rule["labels"], dict) else {}
    failed = rule.get("health") == "err"
    alerts = [alert for alert in rule.get("alerts") or () if isinstance(alert, dict)]
    return RuleView(
        name=str(rule["name"]),
        id=str(labels.get("diagnosis", "")),
        severity=str(labels.get("severity", "")),
        status="error" if failed else _STATES.get(str(rule.get("state")), "not_evaluable"),
        expr=str(rule.get("query", "")),
        file=str(group.get("file", "")),
        detail=str(rule.get("lastError", "")) if failed else "",
        firing=sum(alert.get("state") == "firing" for alert in alerts),
    )


def source_states(answers: Mapping[str, Answer]) -> tuple[SourceState, ...]:
    """Return the sources of the machine in focus, out of ``gpuwatch_source_*``."""
    if "source_up" not in answers:
        return ()
    ages = {_source(labels): value for labels, value in answers["source_age"].samples}
    reasons = {_source(labels): label(labels, "reason") for labels, _ in answers["source_failing"].samples}
    states = []
    for labels, value in answers["source_up"].samples:
        kind, target, server = key = _source(labels)
        reason = "" if value else reasons.get(key, "failed")
        states.append(SourceState(kind, target, bool(value), reason, "", ages.get(key), server))
    return tuple(states)


def _source(labels: tuple[tuple[str, str], ...]) -> tuple[str, str, str]:
    return label(labels, "source"), label(labels, "target"), label(labels, "server")


def failures_text(failed: Iterable[tuple[str, Failure]]) -> str:
    """Return which figures are missing and why, in one line; empty when none is."""
    by_text: dict[str, list[str]] = {}
    for name, failure in failed:
        by_text.setdefault(failure.text, []).append(name)
    parts = []
    for text, names in by_text.items():
        shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        parts.append(f"{shown}: {text}")
    return "; ".join(parts)
