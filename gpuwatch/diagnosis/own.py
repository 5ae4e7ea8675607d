"""Findings of a user's own rules: they say what the rule says, and a diagnosis only where its own conditions hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.explanation import Unknown
from gpuwatch.diagnosis.finding import SEVERITY_ORDER, Evidence, Finding
from gpuwatch.promql.goformat import general

if TYPE_CHECKING:
    from gpuwatch.alerts.ownrules import OwnRules
    from gpuwatch.alerts.state import Alert
    from gpuwatch.diagnosis.context import Context
    from gpuwatch.diagnosis.diagnosis import Diagnosis
    from gpuwatch.diagnosis.explanation import Verdict
    from gpuwatch.diagnosis.finding import Advice, Severity
    from gpuwatch.model import Labels

NOT_IDENTITY = frozenset({"alertname", "severity", "diagnosis"})
"""Labels of an alert that are no part of what it is about."""
NOT_HELD = Unknown("the conditions of the shipped rule")
"""The verdict where a user's rule fires and the shipped rules of its id do not hold."""
_QUOTE = " Cause: "


def conditions_hold(alert: Alert, diagnosis: Diagnosis, own: OwnRules, context: Context) -> bool:
    """Whether a shipped rule of the id holds for what the alert is about; also where there is none to ask."""
    conditions = own.conditions.get(diagnosis.id, ())
    about = {key: alert.label(key) for key in diagnosis.scope if alert.label(key)}
    return not conditions or any(
        all(dict(labels).get(key, value) == value for key, value in about.items())
        for condition in conditions
        for labels, _ in context.samples(condition)
    )


def severity_of(alert: Alert, otherwise: Severity) -> Severity:
    """Return the severity that the rule gives its alert, where it is one that findings have."""
    severity = alert.label("severity")
    return severity if severity in SEVERITY_ORDER else otherwise  # type: ignore[return-value]  # just checked


def of_own_rule(
    alert: Alert, own: OwnRules, diagnosis: Diagnosis | None = None, verdict: Verdict | None = None
) -> Finding:
    """Return the finding of a user's rule: in its own words, with the explanation where there is one."""
    summary, description = alert.annotations.get("summary", ""), alert.annotations.get("description", "")
    if alert.name in own.quoting:
        description = description.partition(_QUOTE)[0]
    text = f"{alert.name} fires at {general(alert.told_value, 6)}"
    fires = Evidence(text, "rule", name=alert.name, value=alert.told_value)
    explained = verdict is not None and not isinstance(verdict, Unknown) and bool(verdict.evidence)
    title, confidence = summary or alert.name, 0.5
    evidence: tuple[Evidence, ...] = (fires,)
    advice: tuple[Advice, ...] = ()
    cause = description or f"The rule {alert.name} fires."
    if diagnosis is not None and explained:
        assert verdict is not None and not isinstance(verdict, Unknown)  # noqa: PT018  # both are `explained`
        title, cause, confidence, advice = summary or diagnosis.title, verdict.cause, verdict.confidence, verdict.advice
        said = Evidence(description, "rule", name=alert.name, value=alert.told_value)
        evidence = (said, *verdict.evidence) if description else (*verdict.evidence, fires)
    elif diagnosis is not None:
        cause += f" It cannot be explained as {diagnosis.id}: {_why(verdict)}."
    return Finding(
        id=alert.label("diagnosis") or alert.name,
        severity=severity_of(alert, diagnosis.severity if diagnosis is not None else "warning"),
        title=title,
        cause=cause,
        confidence=round(confidence, 2),
        evidence=evidence,
        advice=advice,
        state="resolved" if alert.state == "resolved" else "firing",
        since=alert.fired_at if alert.fired_at is not None else alert.active_at,
        until=alert.resolved_at,
        labels={key: value for key, value in alert.labels if key not in NOT_IDENTITY},
        alerts=firing(alert),
    )


def _why(verdict: Verdict | None) -> str:
    if verdict is NOT_HELD:
        return "what the shipped rule asks for does not hold"
    return f"this lacks {verdict.missing}" if isinstance(verdict, Unknown) else "this lacks evidence"


def firing(alert: Alert) -> tuple[tuple[Labels, int], ...]:
    """Return the labels and start of a firing alert."""
    started = alert.fired_at if alert.fired_at is not None else alert.active_at
    return ((alert.labels, started),) if alert.state == "firing" else ()
