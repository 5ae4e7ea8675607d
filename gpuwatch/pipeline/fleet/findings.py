"""From the alerts of a Prometheus to findings: explained by the same diagnoses, or by the machine's own gpuwatch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuwatch.alerts.state import alert_labels
from gpuwatch.diagnosis.context import Context
from gpuwatch.diagnosis.explain import merged, without_parts
from gpuwatch.diagnosis.explanation import Explanation, Unknown
from gpuwatch.diagnosis.finding import SEVERITY_ORDER, Advice, Evidence, Finding
from gpuwatch.diagnosis.ranking import rank
from gpuwatch.diagnosis.registry import DIAGNOSES
from gpuwatch.model import NAME, Reason
from gpuwatch.promql.remote import RemoteError
from gpuwatch.promql.scope import Scoped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpuwatch.alerts.rulefile import AlertRule
    from gpuwatch.diagnosis.explanation import Verdict
    from gpuwatch.model import Labels
    from gpuwatch.pipeline.fleet.questions import Machine, Phrasing
    from gpuwatch.promql.remote import RemoteQuerier
    from gpuwatch.promql.values import RangeSeries, Vector

NOT_OURS = frozenset({NAME, "alertstate", "alertgroup", "job", "instance"})
"""Labels of ``ALERTS`` that belong to Prometheus, or to vmalert."""
_NOT_IDENTITY = frozenset({"alertname", "severity", "diagnosis"})

QUERIES_EACH = 200
"""Most queries for the explanation of one alert; a storm on a machine with 16 GPUs takes about 90."""
TOLD_CONFIDENCE = 0.8
"""How sure a cause is that the machine's own gpuwatch told: its own figure is not in the series."""
UNEXPLAINED_CONFIDENCE = 0.5


@dataclass(frozen=True, slots=True)
class FleetAlert:
    """One firing alert. `labels` are without those of Prometheus; `since` is when it fired, in milliseconds."""

    labels: Labels
    since: int
    machine: Machine

    def get(self, name: str) -> str:
        """Return one label, or the empty string."""
        return dict(self.labels).get(name, "")


@dataclass(slots=True)
class Said:
    """The verdict on one alert, and when it was worked out (milliseconds). None: it could not be worked out."""

    time: int
    verdict: Verdict | None


class GaveUp(Exception):  # noqa: N818  # not an error of the program: the explanation is left for later
    """An explanation was abandoned: a query failed, or there were too many; what is missing is not what is absent."""


@dataclass(slots=True)
class _Careful:
    """A querier for one explanation: the first failure ends it, because a diagnosis takes no answer for absence.

    It puts no question twice.
    """

    querier: RemoteQuerier
    left: int = QUERIES_EACH
    known: dict[tuple[str, int], Vector] = field(default_factory=dict)

    def instant(self, expr: str, time: int) -> Vector:
        if (expr, time) in self.known:
            return self.known[expr, time]
        self._count()
        try:
            found = self.known[expr, time] = self.querier.instant(expr, time)
        except RemoteError as error:
            raise GaveUp(str(error)) from None
        return found

    def range(self, expr: str, start: int, end: int, step: int) -> tuple[RangeSeries, ...]:
        self._count()
        try:
            return self.querier.range(expr, start, end, step)
        except RemoteError as error:
            raise GaveUp(str(error)) from None

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise GaveUp(f"the explanation needs more than {QUERIES_EACH} queries")


def firing(
    alerts: Iterable[Labels],
    starts: Iterable[tuple[Labels, float]],
    rules: Mapping[str, AlertRule],
    phrasing: Phrasing,
    now: int,
) -> list[FleetAlert]:
    """Return the firing alerts with their start.

    ``ALERTS_FOR_STATE`` holds when an alert became active; it fired after the rule's ``for``, where that is known.
    """
    active = {_own(labels): round(value * 1000) for labels, value in starts if math.isfinite(value)}
    found: dict[Labels, FleetAlert] = {}
    for series in alerts:
        labels = _own(series)
        rule = rules.get(dict(labels).get("alertname", ""))
        begun = active.get(labels)
        since = min(now, begun + (rule.hold if rule is not None else 0)) if begun is not None else 0
        found.setdefault(labels, FleetAlert(labels, since, phrasing.machine(dict(labels))))
    return list(found.values())


def _own(series: Labels) -> Labels:
    return tuple(pair for pair in series if pair[0] not in NOT_OURS)


def explanation(
    alert: FleetAlert, rule: AlertRule | None, phrasing: Phrasing, now: int
) -> Callable[[RemoteQuerier], Verdict]:
    """Return the question that explains one alert; it fails with the first query that fails."""

    def explain(querier: RemoteQuerier) -> Verdict:
        diagnosis = DIAGNOSES.get(alert.get("diagnosis"))
        if diagnosis is None:
            return Unknown("a diagnosis of this id")
        matchers = phrasing.matchers_of(alert.machine) if alert.machine[1] else phrasing.matchers
        narrow = Scoped(_Careful(querier), matchers)
        try:
            value = _value(alert, rule, narrow, now)
            return diagnosis.explain(Context(narrow, now).about(dict(alert.labels), alert.get("alertname"), value))
        except GaveUp as gave_up:
            raise RemoteError(Reason.FAILED, str(gave_up)) from None

    return explain


def _value(alert: FleetAlert, rule: AlertRule | None, querier: Scoped, now: int) -> float:
    """Return the value of the rule's expression for this alert, now or when it fired; NaN where there is none."""
    if rule is None:
        return math.nan
    plain = {key: value for key, value in rule.labels.items() if "{{" not in value}
    for time in dict.fromkeys((now, alert.since or now)):
        for labels, value in querier.instant(rule.expr, time).items():
            if _own(alert_labels(labels, plain, rule.name)) == alert.labels:
                return value
    return math.nan


@dataclass(slots=True)
class Teller:
    """Turns alerts into findings and remembers what was worked out about each."""

    phrasing: Phrasing
    rules: Mapping[str, AlertRule]
    said: dict[Labels, Said] = field(default_factory=dict)

    def due(self, alerts: Sequence[FleetAlert], focus: Machine | None, now: int, refresh: int) -> list[FleetAlert]:
        """Return the alerts to explain next: of the machine in focus first, then the gravest; `refresh` in ms."""
        waiting = [
            alert
            for alert in alerts
            if alert.get("diagnosis") in DIAGNOSES
            and (alert.labels not in self.said or now - self.said[alert.labels].time >= refresh)
        ]
        return sorted(
            waiting,
            key=lambda alert: (
                alert.machine != focus,
                alert.labels in self.said,
                -SEVERITY_ORDER.get(alert.get("severity"), 0),
                alert.since,
            ),
        )

    def forget(self, alerts: Iterable[FleetAlert]) -> None:
        """Drop what was said about alerts that fire no more."""
        live = {alert.labels for alert in alerts}
        for labels in self.said.keys() - live:
            del self.said[labels]

    def findings(self, alerts: Iterable[FleetAlert], infos: Iterable[Labels]) -> tuple[Finding, ...]:
        """Return the findings of `alerts`, root causes first; `infos` are the series of ``gpuwatch_finding_info``."""
        told = _Told(infos, self.phrasing)
        findings: dict[tuple[str, ...], Finding] = {}
        for alert in alerts:
            finding = self._finding(alert, told.about(alert))
            diagnosis = DIAGNOSES.get(finding.id)
            scope = diagnosis.scope if diagnosis is not None else tuple(sorted(finding.labels))
            key = (finding.id, alert.machine[0], *(finding.labels.get(name, "") for name in scope))
            findings[key] = merged(findings[key], finding) if key in findings else finding
        cluster = self.phrasing.cluster_label
        return rank(without_parts(findings.values(), cluster), cluster_label=cluster)

    def _finding(self, alert: FleetAlert, info: Mapping[str, str] | None) -> Finding:
        name, id_ = alert.get("alertname"), alert.get("diagnosis") or alert.get("alertname")
        diagnosis = DIAGNOSES.get(id_)
        severity = alert.get("severity")
        finding = Finding(
            id=id_,
            severity=severity if severity in SEVERITY_ORDER else "warning",  # type: ignore[arg-type]  # just checked
            title=diagnosis.title if diagnosis is not None else name,
            cause=f"The rule {name} fires in Prometheus; why is not worked out yet.",
            confidence=UNEXPLAINED_CONFIDENCE,
            evidence=(Evidence(f"{name} fires in Prometheus", "ALERTS", name=name, value=1.0),),
            since=alert.since,
            labels={key: value for key, value in alert.labels if key not in _NOT_IDENTITY},
            alerts=((alert.labels, alert.since),),
        )
        said = self.said.get(alert.labels)
        verdict = said.verdict if said is not None else None
        if isinstance(verdict, Explanation) and verdict.evidence:
            finding = replace(
                finding,
                cause=verdict.cause,
                confidence=round(verdict.confidence, 2),
                evidence=(*verdict.evidence, *finding.evidence),
                advice=verdict.advice,
            )
        if info is not None and info.get("cause"):
            return replace(
                finding,
                cause=info["cause"],
                advice=_with_told(finding.advice, info),
                confidence=max(finding.confidence, TOLD_CONFIDENCE),
            )
        if isinstance(verdict, Unknown):
            return replace(
                finding, cause=f"The rule {name} fires in Prometheus. To say why, this lacks {verdict.missing}."
            )
        return finding


def _with_told(own: tuple[Advice, ...], info: Mapping[str, str]) -> tuple[Advice, ...]:
    """Return the advice of the machine's own gpuwatch, which tells one change of several.

    The others are added where our explanation comes to the same change: then both speak of the same cause.
    """
    text, flag = info.get("advice", ""), info.get("flag", "")
    if not (text or flag):
        return own
    told = Advice(text, flag, info.get("from") or None, info.get("to") or None)
    same = [one for one in own if flag and (one.flag, one.proposed) == (told.flag, told.proposed)]
    return tuple(told if one is same[0] else one for one in own) if same else (told,)


class _Told:
    """What the machines' own gpuwatch says of its findings, by id and place."""

    def __init__(self, infos: Iterable[Labels], phrasing: Phrasing) -> None:
        self._by_place: dict[tuple[str, ...], dict[str, str]] = {}
        for series in infos:
            labels = dict(series)
            place = (labels.get("id", ""), *phrasing.machine(labels), labels.get("server", ""), labels.get("uuid", ""))
            self._by_place[place] = labels

    def about(self, alert: FleetAlert) -> dict[str, str] | None:
        """Return the labels of the info on one alert."""
        place = (alert.get("diagnosis"), *alert.machine, alert.get("server"), alert.get("uuid"))
        return self._by_place.get(place)
