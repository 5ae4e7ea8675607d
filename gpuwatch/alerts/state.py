"""The life of alerts: Prometheus' state machine of one alerting rule, as a pure step from one tick to the next.

Source of the semantics: Prometheus ``rules/alerting.go`` (2.42), ``AlertingRule.Eval`` and ``Group.RestoreForState``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.model import NAME, Labels, label

if TYPE_CHECKING:
    from collections.abc import Mapping

AlertState: TypeAlias = Literal["pending", "firing", "resolved"]

ALERT_NAME = "alertname"
RESOLVED_RETENTION_MS = 15 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of one rule: one label set. Times are milliseconds since the epoch.

    `labels` are sorted, with ``alertname`` and without ``__name__``; they identify the alert. `value` and
    `annotations` are those of the last evaluation that returned it. `inhibited_by` names the first firing alert
    that mutes this one. `absent_since` is when its expression stopped returning it while it is kept firing. `told` is
    the value that the annotations speak of, where they are older than `value`.
    """

    name: str
    labels: Labels
    value: float
    state: AlertState
    active_at: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    fired_at: int | None = None
    resolved_at: int | None = None
    absent_since: int | None = None
    inhibited_by: str = ""
    told: float | None = None

    @property
    def told_value(self) -> float:
        """The value to show beside the annotations: the one that they were rendered with."""
        return self.value if self.told is None else self.told

    def label(self, key: str) -> str:
        """Return the value of one label, or the empty string."""
        return label(self.labels, key)


@dataclass(frozen=True, slots=True)
class Result:
    """What an expression returned for one label set, with the rule's labels and annotations rendered."""

    value: float
    annotations: Mapping[str, str] = field(default_factory=dict)
    told: float | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """The start of an alert that outlives a restart, as written at `saved_at` (milliseconds)."""

    labels: Labels
    active_at: int
    saved_at: int
    fired_at: int | None = None


def step(
    name: str,
    active: Mapping[Labels, Alert],
    results: Mapping[Labels, Result],
    time: int,
    *,
    hold: int,
    keep: int,
) -> dict[Labels, Alert]:
    """Return the alerts of rule `name` after an evaluation at `time`; nothing given is changed.

    A new label set is pending and fires in the evaluation in which it has been active for `hold` milliseconds
    (``for``). A pending alert that is not returned is dropped; a firing one is kept for less than `keep`
    milliseconds (``keep_firing_for``) and then resolved. Resolved alerts are kept for 15 minutes; one that comes
    back is a new alert.
    """
    after: dict[Labels, Alert] = {}
    for labels, alert in active.items():
        result = results.get(labels)
        if result is None:
            remaining = _absent(alert, time, keep)
            if remaining is not None:
                after[labels] = remaining
        elif alert.state != "resolved":
            after[labels] = replace(
                alert, value=result.value, annotations=result.annotations, told=result.told, absent_since=None
            )
        else:
            after[labels] = _new(name, labels, result, time)
    for labels, result in results.items():
        if labels not in active:
            after[labels] = _new(name, labels, result, time)
    for labels, alert in after.items():
        if alert.state == "pending" and time - alert.active_at >= hold:
            after[labels] = replace(alert, state="firing", fired_at=time)
    return after


def _new(name: str, labels: Labels, result: Result, time: int) -> Alert:
    return Alert(name, labels, result.value, "pending", time, result.annotations, told=result.told)


def _absent(alert: Alert, time: int, keep: int) -> Alert | None:
    """Return what becomes of an alert that the expression did not return; None: it is forgotten."""
    if alert.state == "pending":
        return None
    if alert.state == "resolved":
        assert alert.resolved_at is not None
        return None if time - alert.resolved_at > RESOLVED_RETENTION_MS else alert
    since = alert.absent_since if alert.absent_since is not None else time
    if keep > 0 and time - since < keep:
        return replace(alert, absent_since=since)
    return replace(alert, state="resolved", resolved_at=time, absent_since=None)


def restored(alert: Alert, saved: Saved, time: int, hold: int) -> Alert:
    """Return a newly active `alert` with the start that was saved before a restart.

    An alert that had been active for `hold` milliseconds fires again at once with its old times. A pending one
    continues: the time in which nobody looked does not count towards ``for``.
    """
    if saved.fired_at is not None or saved.saved_at - saved.active_at >= hold:
        fired = saved.fired_at if saved.fired_at is not None else time
        return replace(alert, active_at=saved.active_at, state="firing", fired_at=fired)
    started = saved.active_at + max(0, time - saved.saved_at)
    if time - started >= hold:
        return replace(alert, active_at=started, state="firing", fired_at=time)
    return replace(alert, active_at=started, state="pending", fired_at=None)


def alert_labels(series: Labels, rule_labels: Mapping[str, str], name: str) -> Labels:
    """Return the labels of an alert: those of the series, overridden by the rule's, and ``alertname``.

    A label that becomes empty is dropped.
    """
    merged = {key: value for key, value in series if key != NAME}
    merged.update(rule_labels)
    merged[ALERT_NAME] = name
    return tuple(sorted((key, value) for key, value in merged.items() if value != ""))
