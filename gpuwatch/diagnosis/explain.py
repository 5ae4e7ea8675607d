"""From the alerts of one tick to findings: explained, merged, ranked; and what could not be judged, and why."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuwatch.alerts.inhibitions import CLUSTER, HOST, named
from gpuwatch.diagnosis.explanation import Unknown
from gpuwatch.diagnosis.finding import SEVERITY_ORDER, Finding, NotEnough
from gpuwatch.diagnosis.own import NOT_HELD, NOT_IDENTITY, conditions_hold, firing, of_own_rule, severity_of
from gpuwatch.diagnosis.ranking import rank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.alerts.engine import Evaluation
    from gpuwatch.alerts.ownrules import OwnRules
    from gpuwatch.alerts.rulestate import RuleState
    from gpuwatch.alerts.state import Alert
    from gpuwatch.diagnosis.context import Context
    from gpuwatch.diagnosis.diagnosis import Diagnosis
    from gpuwatch.diagnosis.explanation import Verdict
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import Labels

REFRESH_MS = 2_000
"""An explanation is worked out again when it is this old: its sentences would change faster than they can be read."""

OTHERWISE = "or "
"""How a piece of advice begins that is an alternative to the one before it."""


@dataclass(slots=True)
class Memory:
    """What was said before.

    `said` is the newest explanation of each alert and the time it was worked out, by alert labels. `unjudged` is what
    no rule could judge, with the rule states and the findings (id, server) that it was worked out from.
    """

    said: dict[Labels, tuple[int, Verdict]] = field(default_factory=dict)
    unjudged: tuple[tuple[RuleState, ...], set[tuple[str, str]], dict[tuple[str, str], NotEnough]] = ((), set(), {})


def explain(
    evaluation: Evaluation, context: Context, memory: Memory | None = None
) -> tuple[tuple[Finding, ...], tuple[NotEnough, ...]]:
    """Return the findings of one tick, root causes first, and the ids that could not be judged.

    Firing alerts are explained at the time of `context`, those that are kept firing and resolved ones at the last
    moment at which their rule held.
    Pending alerts are not findings yet. A user's own rule is a finding of its own severity with its annotations as
    title and cause, and with the diagnosis that it names where a shipped rule of that id holds too. With `memory`
    explanations are reused while they are fresh, and a resolved alert keeps what was said last. An alert
    without evidence is no finding; what it lacks is told instead.
    """
    memory = memory if memory is not None else Memory()
    findings: dict[tuple[str, tuple[str, ...]], Finding] = {}
    lacking: dict[tuple[str, str], NotEnough] = {}
    current = set()
    for alert in evaluation.alerts:
        if alert.state == "pending":
            continue
        diagnosis = _diagnosis(alert.label("diagnosis"))
        if diagnosis is None:
            told = of_own_rule(alert, evaluation.own)
            findings[told.id, tuple(value for _, value in alert.labels)] = told
            continue
        current.add(alert.labels)
        verdict = _verdict(alert, diagnosis, context, memory, evaluation.own)
        labels = {key: value for key, value in alert.labels if key not in NOT_IDENTITY}
        key = (diagnosis.id, tuple(labels.get(name, "") for name in diagnosis.scope))
        if alert.name in evaluation.own.names:
            told = of_own_rule(alert, evaluation.own, diagnosis, verdict)
            told = replace(told, advice=_from_first(told.advice))
            findings[key] = merged(findings[key], told) if key in findings else told
            continue
        if isinstance(verdict, Unknown) or not verdict.evidence:
            missing = verdict.missing if isinstance(verdict, Unknown) else "evidence"
            lacking.setdefault(
                (diagnosis.id, labels.get("server", "") + missing), NotEnough(diagnosis.id, missing, labels)
            )
            continue
        finding = Finding(
            id=diagnosis.id,
            severity=severity_of(alert, diagnosis.severity),
            title=diagnosis.title,
            cause=verdict.cause,
            confidence=round(verdict.confidence, 2),
            evidence=verdict.evidence,
            advice=_from_first(verdict.advice),
            state="resolved" if alert.state == "resolved" else "firing",
            since=alert.fired_at if alert.fired_at is not None else alert.active_at,
            until=alert.resolved_at,
            labels=labels,
            alerts=firing(alert),
        )
        findings[key] = merged(findings[key], finding) if key in findings else finding
    for forgotten in memory.said.keys() - current:
        del memory.said[forgotten]
    found = {(finding.id, finding.labels.get("server", "")) for finding in findings.values()}
    if memory.unjudged[0] is not evaluation.rules or memory.unjudged[1] != found:
        memory.unjudged = (evaluation.rules, found, _unjudged(evaluation.rules, found))
    for reason, item in memory.unjudged[2].items():
        lacking.setdefault(reason, item)
    return rank(without_parts(findings.values()), placement=evaluation.placement), tuple(lacking.values())


def _from_first(advice: tuple[Advice, ...]) -> tuple[Advice, ...]:
    """Return the advice without the word that joins the first piece to one that is not there."""
    if not advice or not advice[0].text.startswith(OTHERWISE):
        return advice
    return replace(advice[0], text=advice[0].text.removeprefix(OTHERWISE)), *advice[1:]


def _diagnosis(id_: str) -> Diagnosis | None:
    """Return the diagnosis of an id; None for an id of a user's own rule."""
    from gpuwatch.diagnosis.registry import DIAGNOSES  # noqa: PLC0415  # all families; a healthy machine needs none

    return DIAGNOSES.get(id_)


def _verdict(alert: Alert, diagnosis: Diagnosis, context: Context, memory: Memory, own: OwnRules) -> Verdict:
    said = memory.said.get(alert.labels)
    # What is kept firing is explained by what was seen while its rule held: a second later the figures say otherwise.
    over = alert.resolved_at if alert.state == "resolved" else alert.absent_since
    if said is not None and (over is not None or 0 <= context.time - said[0] < REFRESH_MS):
        return said[1]
    if over is not None:
        context = context.at(over - 1)
    subject = context.about(dict(alert.labels), alert.name, alert.value, alert.active_at)
    held = alert.name not in own.names or conditions_hold(alert, diagnosis, own, context)
    verdict = diagnosis.explain(subject) if held else NOT_HELD
    memory.said[alert.labels] = (context.time, verdict)
    return verdict


def merged(one: Finding, other: Finding) -> Finding:
    """Return the finding to show of two rules that say the same: the firing one, else the surer one."""
    if (one.state == "firing") != (other.state == "firing"):
        shown = one if one.state == "firing" else other
    else:
        shown = max(one, other, key=lambda finding: finding.confidence)
        gravest = max(one, other, key=lambda finding: SEVERITY_ORDER[finding.severity])
        shown = replace(shown, severity=gravest.severity)
    alerts = (*one.alerts, *other.alerts)
    if one.state != other.state:
        return replace(shown, alerts=alerts)
    return replace(shown, since=min(one.since, other.since), alerts=alerts)


def without_parts(findings: Iterable[Finding], cluster_label: str = CLUSTER) -> list[Finding]:
    """Leave out single GPUs of a host, one of its cluster, whose whole driver hangs."""
    findings = list(findings)

    def host(finding: Finding) -> tuple[str, ...]:
        return tuple(finding.labels.get(name, "") for name in named(HOST, cluster_label))

    hosts = {
        host(finding)
        for finding in findings
        if finding.id == "driver_unresponsive" and "uuid" not in finding.labels and finding.state == "firing"
    }
    return [
        finding
        for finding in findings
        if not (
            finding.id == "driver_unresponsive"
            and "uuid" in finding.labels
            and finding.state == "firing"
            and host(finding) in hosts
        )
    ]


def _unjudged(rules: Iterable[RuleState], found: set[tuple[str, str]]) -> dict[tuple[str, str], NotEnough]:
    """Return the ids, each with its engine where it is about one, that no rule of theirs can judge, by id and reason.

    What was `found` of an engine (id, server) is judged there, and nowhere else.
    """
    lacking: dict[tuple[str, str], NotEnough] = {}
    by_id: dict[str, list[RuleState]] = {}
    for state in rules:
        id_ = getattr(state.rule, "id", "")
        if id_:
            by_id.setdefault(id_, []).append(state)
    ids = {id_ for id_, _ in found}
    for id_, states in by_id.items():
        if any(state.status == "error" or not state.missing for state in states):
            continue
        for missing in states[0].missing:
            if {(id_, ""), (id_, missing.server)} & found or (not missing.server and id_ in ids):
                continue
            if any(not {"", missing.server}.intersection(one.server for one in state.missing) for state in states):
                continue
            labels = {"server": missing.server} if missing.server else {}
            reason = missing.reason or "needs " + ", ".join(missing.metrics)
            lacking.setdefault((id_, missing.server + reason), NotEnough(id_, reason, labels))
    return lacking
