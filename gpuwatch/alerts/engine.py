"""Evaluating rules, one tick at a time: alerts, recorded series, errors, and what each rule can and cannot judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpuwatch.alerts.inhibition import RULES, InhibitRule, asks_where, inhibit
from gpuwatch.alerts.ownrules import OwnRules, own_rules
from gpuwatch.alerts.placement import NOWHERE, Placement, placed
from gpuwatch.alerts.presence import Presence
from gpuwatch.alerts.rulefile import AlertRule, Rule, RuleSet
from gpuwatch.alerts.rulestate import LONGEST_REST_MS, Rendered, RuleError, RuleState, RuleStates, Task
from gpuwatch.alerts.state import Alert, Result, Saved, alert_labels, restored, step
from gpuwatch.model import NAME, Labels
from gpuwatch.promql import templates
from gpuwatch.promql.analysis import comparisons, reads
from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpuwatch.alerts.rulefile import RecordRule
    from gpuwatch.promql.values import Querier, Vector
    from gpuwatch.store import Moved

_ALERTS = "ALERTS"

MOST_SERIES = 1000
"""The most alerts or recorded series of one rule where its group sets no limit of its own."""

RESTORE_WINDOW_MS = 5 * 60 * 1000
"""How long after the first tick a saved alert may still come back with its old start: rates need time to exist."""


class External(NamedTuple):
    """What ``$externalLabels`` and ``$externalURL`` stand for in templates."""

    labels: Mapping[str, str]
    url: str


class Sink(Protocol):
    """Where the rules' own series go; the store is one."""

    def append(self, target: str, time: int, keys: tuple[Labels, ...], values: Sequence[float]) -> None:
        """Append one sample per key; keys that were in the target's previous append and are not in this one end."""
        ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outcome of one tick at `time` (milliseconds). `alerts` hold pending, firing and lately resolved ones.

    `placement` tells which engine uses which GPU, where a firing alert asks for it; `own`, which rules are the user's.
    """

    time: int
    alerts: tuple[Alert, ...] = ()
    errors: tuple[RuleError, ...] = ()
    rules: tuple[RuleState, ...] = ()
    placement: Placement = NOWHERE
    own: OwnRules = field(default_factory=OwnRules)


@dataclass(frozen=True, slots=True)
class Reading:
    """One comparison of a rule: of all series compared, the one nearest to making it true, against the threshold."""

    text: str
    operator: str
    labels: Labels
    value: float
    threshold: float


class RuleEngine:
    """Evaluates a rule set with a querier and writes ``ALERTS``, ``ALERTS_FOR_STATE`` and recorded series to a sink.

    A rule that fails keeps its alerts as they were, is counted, and does not stop the others. With
    ``statuses=False`` no rule states are worked out (rule tests do not look at them). The annotations of an alert
    that goes on are rendered anew every `refresh_ms` milliseconds; 0: at every tick, as Prometheus does. While a
    rule has no alert it is evaluated `looks` times in the time of its `for`, once in each part of the clock, whenever
    the run began; 0: at every tick. With `moved`, which tells when series of a name last changed, it also rests while
    nothing that it reads changes.
    """

    def __init__(
        self,
        rules: RuleSet,
        querier: Querier,
        sink: Sink,
        *,
        inhibit_rules: Sequence[InhibitRule] = RULES,
        external_labels: Mapping[str, str] | None = None,
        external_url: str = "",
        statuses: bool = True,
        refresh_ms: int = 0,
        looks: int = 0,
        moved: Callable[[str], Moved] | None = None,
    ) -> None:
        self.rules = rules
        self._own = own_rules(rules)
        self._refresh_ms = refresh_ms
        self._querier = querier
        self._moved = moved
        self._sink = sink
        self._inhibit_rules = tuple(inhibit_rules)
        self._external = External(dict(external_labels or {}), external_url)
        self._tasks = [
            Task(
                rule,
                f"rule:{index}:{rule.name}",
                group.limit or MOST_SERIES,
                _rest_of(rule, looks),
                reads=reads(rule.plan) if isinstance(rule, AlertRule) else None,
            )
            for index, (group, rule) in enumerate((group, rule) for group in rules.groups for rule in group.rules)
        ]
        # Rules that share an expression share its answer for as long as nothing is written in between.
        self._write_late = not any(_ALERTS in text for rule in rules.rules for text in _texts_of(rule))
        self._states = RuleStates(Presence(querier, rules.rules)) if statuses else None
        self._saved: dict[Labels, Saved] = {}
        self._restore_until: int | None = None
        self._placement = NOWHERE

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of the sink under which the series of the rules are written."""
        return tuple(task.target for task in self._tasks)

    def restore(self, saved: Iterable[Saved]) -> None:
        """Give alerts their old start back when they become active within five minutes of the first tick."""
        self._saved = {item.labels: item for item in saved}

    def take_over(self, other: RuleEngine) -> None:
        """Go on with the alerts of the rules that `other` has too: kept firing, resolved or pending as they were."""
        known = {_identity(task.rule): task for task in other._tasks}
        for task in self._tasks:
            before = known.pop(_identity(task.rule), None)
            if before is not None and isinstance(task.rule, AlertRule):
                task.active, task.rendered = before.active, before.rendered

    def saved(self, time: int) -> tuple[Saved, ...]:
        """Return the starts of all pending and firing alerts, for `restore` after a restart.

        Starts that were given to `restore` and whose alerts may still come back are among them.
        """
        active = {
            alert.labels: Saved(alert.labels, alert.active_at, time, alert.fired_at)
            for task in self._tasks
            for alert in task.active.values()
            if alert.state != "resolved"
        }
        waiting = self._saved if self._restore_until is None or time <= self._restore_until else {}
        return tuple((waiting | active).values())

    def tick(self, time: int) -> Evaluation:
        """Evaluate every rule at `time` (milliseconds), in order; a rule sees what earlier ones recorded."""
        if self._restore_until is None:
            self._restore_until = time + RESTORE_WINDOW_MS
        errors: list[RuleError] = []
        for task in self._tasks:
            if task.due(time, self._moved):
                self._evaluate(task, time, errors)
        if self._write_late:
            for task in self._tasks:
                self._write_alerts(task, time)
        alerts = tuple(alert for task in self._tasks for alert in task.active.values())
        # For as long as such a cause fires, what it took from its GPU is remembered.
        asked = asks_where(alerts, self._inhibit_rules)
        self._placement = self._placement | placed(self._querier, time) if asked else NOWHERE
        alerts = inhibit(alerts, self._inhibit_rules, self._placement)
        states = self._states.after(time, self._tasks, alerts) if self._states is not None else ()
        return Evaluation(time, alerts, tuple(errors), states, self._placement, self._own)

    def _evaluate(self, task: Task, time: int, errors: list[RuleError]) -> None:
        try:
            if isinstance(task.rule, AlertRule):
                self._alert(task, task.rule, time, errors)
            else:
                self._record(task, task.rule, time)
            task.error = ""
        except PromQLError as error:
            task.error = str(error)
            task.failures += 1
            errors.append(RuleError(task.rule.name, task.rule.file, task.rule.line, task.error))

    def readings(self, rule: Rule, time: int) -> tuple[Reading, ...]:
        """Return the present value of each comparison in `rule` against its threshold.

        Comparisons whose left side has no series, or fails, are left out.
        """
        found = []
        for comparison in comparisons(rule.plan):
            try:
                vector = self._querier.instant(comparison.left.text, time)
            except PromQLError:
                continue
            nearest = _nearest(vector, comparison.op, comparison.threshold)
            if nearest is not None:
                found.append(Reading(comparison.text, comparison.op, nearest[0], nearest[1], comparison.threshold))
        return tuple(found)

    def _alert(self, task: Task, rule: AlertRule, time: int, errors: list[RuleError]) -> None:
        vector = self._querier.instant(rule.expr, time)
        if not len(vector) and not task.active and not task.keys:
            return
        _check_limit(len(vector), task)
        results: dict[Labels, Result] = {}
        renderer = _Renderer(rule, self._querier, time, self._external, errors)
        rendered: dict[Labels, Rendered] = {}
        for source, value in vector.items():
            labels = alert_labels(source, renderer.labels(source, value), rule.name)
            if labels in results:
                raise PromQLError("several results have the same labels once the rule's labels are set")
            known = task.rendered.get(labels)
            if known is None or not 0 <= time - known.time < self._refresh_ms:
                known = renderer.annotations(source, value)
            rendered[labels] = known
            errors.extend(known.errors)
            results[labels] = Result(value, known.annotations, known.value)
        task.rendered = rendered
        before = task.active
        task.active = step(rule.name, before, results, time, hold=rule.hold, keep=rule.keep)
        self._restore(task, rule, before, time)
        _check_limit(sum(alert.state != "resolved" for alert in task.active.values()), task)
        if not self._write_late:
            self._write_alerts(task, time)

    def _restore(self, task: Task, rule: AlertRule, before: Mapping[Labels, Alert], time: int) -> None:
        if not self._saved:
            return
        if self._restore_until is None or time > self._restore_until:
            self._saved = {}
            return
        for labels, alert in task.active.items():
            if labels not in before and labels in self._saved:
                task.active[labels] = restored(alert, self._saved.pop(labels), time, rule.hold)

    def _write_alerts(self, task: Task, time: int) -> None:
        if not isinstance(task.rule, AlertRule) or task.error:
            return
        live = [alert for alert in task.active.values() if alert.state != "resolved"]
        keys: list[Labels] = []
        values: list[float] = []
        for alert in live:
            plain = dict(alert.labels)
            keys.append(_series({**plain, NAME: _ALERTS, "alertstate": alert.state}))
            values.append(1.0)
            keys.append(_series({**plain, NAME: "ALERTS_FOR_STATE"}))
            values.append(float(alert.active_at // 1000))
        self._write(task, time, tuple(keys), values)

    def _record(self, task: Task, rule: RecordRule, time: int) -> None:
        vector = self._querier.instant(rule.expr, time)
        _check_limit(len(vector), task)
        keys = task.keys
        if vector.labels is not task.source_labels:
            keys = tuple(_series({**dict(labels), NAME: rule.name, **rule.labels}) for labels in vector.labels)
            if len(set(keys)) != len(keys):
                raise PromQLError("several results have the same labels once the rule's labels are set")
        self._write(task, time, keys, vector.values.tolist())
        task.source_labels = vector.labels

    def _write(self, task: Task, time: int, keys: tuple[Labels, ...], values: Sequence[float]) -> None:
        """Append to the rule's own target; the same keys go as the same object, which lets the store skip look-ups."""
        if not keys and not task.keys:
            return
        if keys != task.keys:
            task.keys = keys
        self._sink.append(task.target, time, task.keys, values)


def _identity(rule: Rule) -> tuple[object, ...]:
    return (type(rule), rule.name, rule.expr, *sorted(rule.labels.items()))


def _rest_of(rule: Rule, looks: int) -> int:
    return min(rule.hold // looks, LONGEST_REST_MS) if looks and isinstance(rule, AlertRule) else 0


def _texts_of(rule: Rule) -> tuple[str, ...]:
    """Return the texts of a rule that may read series."""
    texts = [rule.expr, *rule.labels.values()]
    return (*texts, *rule.annotations.values()) if isinstance(rule, AlertRule) else tuple(texts)


def _series(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted((key, value) for key, value in labels.items() if value != ""))


@dataclass(frozen=True, slots=True)
class _Renderer:
    """Renders a rule's templates; one that fails becomes a text that says so, as in Prometheus, and an error."""

    rule: AlertRule
    querier: Querier
    time: int
    external: External
    errors: list[RuleError]

    def labels(self, source: Labels, value: float) -> dict[str, str]:
        texts = self.rule.labels
        return {key: self._text(f"label {key!r}", text, source, value, self.errors) for key, text in texts.items()}

    def annotations(self, source: Labels, value: float) -> Rendered:
        errors: list[RuleError] = []
        texts = {
            key: self._text(f"annotation {key!r}", text, source, value, errors)
            for key, text in self.rule.annotations.items()
        }
        return Rendered(self.time, value, texts, tuple(errors))

    def _text(self, what: str, text: str, source: Labels, value: float, errors: list[RuleError]) -> str:
        if "{{" not in text:
            return text
        try:
            template, external = templates.parse(text), self.external
            return template.render(source, value, self.querier, self.time, external.labels, external_url=external.url)
        except PromQLError as error:
            rule = self.rule
            errors.append(RuleError(rule.name, rule.file, rule.line, f"{what}: {error}", expansion=True))
            return f"<error expanding template: {error}>"


def _check_limit(count: int, task: Task) -> None:
    """Refuse more series than the rule may have; its alerts are then dropped, as in Prometheus."""
    if count > task.limit:
        task.active = {}
        raise PromQLError(f"gives {count:,} series; at most {task.limit:,} are allowed")


def _nearest(vector: Vector, operator: str, threshold: float) -> tuple[Labels, float] | None:
    """Return the series that is nearest to making the comparison true, or truest."""
    samples = [(labels, value) for labels, value in vector.items() if value == value]  # noqa: PLR0124  # NaN is not equal to itself
    if not samples:
        return None
    if operator in (">", ">="):
        return max(samples, key=lambda sample: sample[1])
    if operator in ("<", "<="):
        return min(samples, key=lambda sample: sample[1])
    if operator == "!=":
        return max(samples, key=lambda sample: abs(sample[1] - threshold))
    return min(samples, key=lambda sample: abs(sample[1] - threshold))
