"""One tick of the pipeline: batches in, rules evaluated, findings explained, a snapshot out."""

from __future__ import annotations

import time as _time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch import __version__
from gpuwatch.alerts.engine import RuleEngine
from gpuwatch.alerts.rulefile import AlertRule
from gpuwatch.diagnosis.context import Context, Facts
from gpuwatch.diagnosis.explain import Memory, explain
from gpuwatch.diagnosis.finding import NotEnough
from gpuwatch.model import Batch, line_of, series
from gpuwatch.pipeline.config_series import ConfigSeries
from gpuwatch.pipeline.finding_series import FindingSeries
from gpuwatch.pipeline.health import Health
from gpuwatch.pipeline.log_causes import LogCauses
from gpuwatch.pipeline.predictions import Predictions
from gpuwatch.pipeline.unjudged import FAILS
from gpuwatch.pipeline.verdicts import Verdicts
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.values import PromQLError
from gpuwatch.queries import QUERIES
from gpuwatch.snapshot import Answer, Recording, RuleView, Snapshot
from gpuwatch.sources.derived.derive import Derived
from gpuwatch.sources.derived.ledger import Ledger
from gpuwatch.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatch.alerts.engine import Evaluation
    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.alerts.rulestate import RuleState
    from gpuwatch.alerts.state import Saved
    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.model import Absence, Labels, LogEvent, LogLine
    from gpuwatch.recording import Writer
    from gpuwatch.snapshot import Mode, SourceState

LINES_KEPT = 2000
EVENTS_KEPT = 500
RATE_WINDOW = "10s"
"""Window of the catalogue's rates on the local store, which is filled about once a second."""
LOOKS = 6
"""How often a rule without an alert is evaluated in the time that it must hold before it fires."""
FAR_MS = 24 * 3_600_000
"""From here on a moment that is asked for is no slip, but another time; it is answered in milliseconds, too."""
ANNOTATIONS_MS = 10_000
"""How often the annotations of an alert that goes on are rendered anew. What is explained does not come from them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a pipeline needs to know. `interval` in seconds, `history_ms` of samples kept."""

    host: str
    mode: Mode = "live"
    interval: float = 1.0
    history_ms: int = 900_000


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick found."""

    time: int
    evaluation: Evaluation
    findings: tuple[Finding, ...]
    not_enough: tuple[NotEnough, ...]


class Pipeline:
    """Store, rules and diagnosis of one run. One thread owns it; nothing in it locks or waits."""

    def __init__(self, settings: Settings, rules: RuleSet, started: int) -> None:
        self.settings = settings
        self.rules = rules
        self.started = started
        self.store = Store(settings.history_ms, int(settings.interval * 1000))
        self.querier = LocalQuerier(self.store)
        self.facts = Facts()
        self._derived = Derived(settings.host)
        self._config = ConfigSeries(settings.host)
        self._ledger = Ledger()
        self._predictions = Predictions(settings.host)
        self._findings = FindingSeries(settings.host)
        self._health = Health(settings.host, settings.interval)
        self._log_causes = LogCauses(settings.host)
        self._own: tuple[Labels, ...] = ()
        self._failures: list[float] = []
        self._rule_states: tuple[RuleState, ...] = ()
        self._use_rules(rules)
        self._took = 0.0
        self._absent: dict[str, tuple[Absence, ...]] = {}
        self._said = Memory()
        self._past: deque[TickResult] = deque()
        self._lines: deque[LogLine] = deque(maxlen=LINES_KEPT)
        self._events: deque[LogEvent] = deque(maxlen=EVENTS_KEPT)

    def tick(self, time: int, batches: Sequence[Batch], writer: Writer | None = None) -> TickResult:
        """Take in what the sources said, evaluate every rule at `time`, and explain what fires."""
        begun = _time.perf_counter()
        for batch in batches:
            self._take(batch)
        first = writer is not None and writer.fresh
        if writer is not None:
            self._record(writer, time, batches)
        for target in self._health.newly_late(time):
            self.store.mark_stale(target, time)
            self._ledger.lose(target)
        config = self._config.batch(time, self.facts)
        for batch in (
            self._derived.update(time, batches),
            self._log_causes.update(time, batches),
            config,
            self._ledger.update(time, (*batches, config)),
            self._predictions.batch(time, batches, self.facts, self._config, self._ledger),
            self._health.batch(time, self.store.dropped_by_target),
            Batch("gpuwatch", time, self._own, (1.0, self._took, *self._failures)),
        ):
            self.store.append(batch.target, batch.time, batch.keys, batch.values)
        evaluation = self._engine.tick(time)
        if evaluation.rules is not self._rule_states:
            self._rule_states = evaluation.rules
            self._failures = _failures(evaluation.rules)
        context = Context(self.querier, time, self.facts, tuple(self._events), self._log_causes.findings)
        findings, not_enough = explain(evaluation, context, self._said)
        not_enough += tuple(NotEnough(error.rule, f"{FAILS}{error}") for error in evaluation.errors)
        told = self._findings.batch(time, findings)
        self.store.append(told.target, told.time, told.keys, told.values)
        if writer is not None:
            self._verdicts.note(writer, time, findings, not_enough, first=first)
        self._took = _time.perf_counter() - begun
        result = TickResult(time, evaluation, findings, not_enough)
        self._past.append(result)
        while self._past[0].time < time - self.settings.history_ms:
            self._past.popleft()
        return result

    def replace_rules(self, rules: RuleSet, time: int) -> None:
        """Go on with other rules at `time` (milliseconds); alerts that both sets have keep their start."""
        before = self._engine
        for target in before.targets:
            self.store.mark_stale(target, time)
        self._use_rules(rules)
        self._engine.take_over(before)
        self._engine.restore(before.saved(time))

    def _use_rules(self, rules: RuleSet) -> None:
        self.rules = rules
        self._verdicts = Verdicts(rules)
        self._engine = RuleEngine(
            rules, self.querier, self.store, refresh_ms=ANNOTATIONS_MS, looks=LOOKS, moved=self.store.moved
        )
        names = list(dict.fromkeys(rule.name for rule in rules.rules))
        host = self.settings.host
        self._own = (
            series("gpuwatch_build_info", host=host, version=__version__),
            series("gpuwatch_tick_seconds", host=host),
            *(series("gpuwatch_rule_failures_total", host=host, rule=name) for name in names),
        )
        self._failures = [0.0] * len(names)
        self._rule_states = ()

    def restore(self, saved: Iterable[Saved]) -> None:
        """Give alerts that become active within five minutes the start they had before a restart."""
        self._engine.restore(saved)

    def saved(self, time: int) -> tuple[Saved, ...]:
        """Return the starts of all alerts at `time` (milliseconds), for `restore` after a restart."""
        return self._engine.saved(time)

    def forget(self, target: str, time: int) -> None:
        """End the series of a target that is not polled any more, and its place among the sources."""
        self.store.mark_stale(target, time)
        self._health.forget(target)
        self._derived.forget(target)
        self._ledger.forget(target)
        self._config.forget(target)
        self._log_causes.forget(target)
        self._absent.pop(target, None)

    def snapshot(
        self,
        result: TickResult,
        *,
        rules: bool = False,
        recording: Recording | None = None,
        looked_for: tuple[tuple[str, str], ...] = (),
    ) -> Snapshot:
        """Return everything there is to see after the tick `result`; `rules` adds the readings of each rule."""
        return Snapshot(
            time=result.time,
            started=self.started,
            host=self.settings.host,
            mode=self.settings.mode,
            interval=self.settings.interval,
            answers=self.answers(result.time),
            findings=result.findings,
            not_enough=result.not_enough,
            rules=tuple(self._rule_view(state, result.time, rules) for state in result.evaluation.rules),
            sources=self._health.states(result.time),
            absent=self.absent,
            lines=tuple(self._lines),
            facts=self.facts.all(),
            recording=recording,
            looked_for=looked_for,
            problems=self.problems(result),
        )

    def problems(self, result: TickResult) -> tuple[str, ...]:
        """Return the rule files that were refused and the rules that failed at the tick `result`, a line each."""
        return tuple(str(problem) for problem in (*self.rules.problems, *result.evaluation.errors))

    def answers(self, time: int) -> dict[str, Answer]:
        """Answer every query of the catalogue at `time` (milliseconds)."""
        answers = {}
        for query in QUERIES.values():
            try:
                answers[query.name] = Answer(tuple(self.querier.instant(query.expr(RATE_WINDOW), time).items()))
            except PromQLError as error:
                answers[query.name] = Answer(error=str(error))
        return answers

    @property
    def dead_logs(self) -> tuple[str, ...]:
        """The logs whose server was gone already when they were first read, and has not come back."""
        return self._log_causes.dead

    @property
    def absent(self) -> tuple[Absence, ...]:
        """What the sources cannot read at present."""
        return tuple(absence for absences in self._absent.values() for absence in absences)

    def source_states(self, time: int) -> tuple[SourceState, ...]:
        """Return the health of every source at `time`."""
        return self._health.states(time)

    def at(self, time: int) -> Snapshot:
        """Return the snapshot of the last tick at or before `time` (milliseconds).

        Sources, log lines and facts are left out: they are known for the present only.

        Raises:
            LookupError: that moment is older than what is kept, or has not come yet.
        """
        result = next((past for past in reversed(self._past) if past.time <= time), None)
        if result is None or time > self._past[-1].time + 1000 * self.settings.interval:
            oldest = self._past[0].time if self._past else time
            away = abs(time - oldest)
            where = f"{away / 1000:.0f} s away" if away < FAR_MS else f"of {oldest}"
            raise LookupError(f"nothing is kept of that time; the oldest is {where}")
        whole = self.snapshot(result)
        return replace(
            whole, sources=(), absent=(), facts=(), lines=tuple(line for line in self._lines if line.time <= time)
        )

    def _record(self, writer: Writer, time: int, batches: Sequence[Batch]) -> None:
        """Write the tick; the first batch of a recording, and of a part of it, carries what is known already."""
        if writer.fresh and batches:
            known = replace(batches[0], facts=(*self.facts.all(), *batches[0].facts))
            batches = [known, *batches[1:]]
        for batch in batches:
            writer.write(batch)
        writer.tick(time)

    def _take(self, batch: Batch) -> None:
        self._health.update(batch)
        self._config.saw(batch)
        if batch.up:
            self.store.append(batch.target, batch.time, batch.keys, batch.values)
        else:
            self.store.mark_stale(batch.target, batch.time)
        self._absent[batch.target] = batch.absent
        self.facts.update(batch.facts)
        self._events.extend(batch.events)
        self._lines.extend(batch.lines or map(line_of, batch.events))  # a recording keeps the recognised lines only

    def _rule_view(self, state: RuleState, time: int, readings: bool) -> RuleView:
        rule = state.rule
        return RuleView(
            name=rule.name,
            id=rule.id if isinstance(rule, AlertRule) else "",
            severity=rule.severity if isinstance(rule, AlertRule) else "",
            status=state.status,
            expr=rule.expr,
            file=rule.file,
            detail=state.detail,
            readings=tuple((r.text, r.value, r.threshold) for r in self._engine.readings(rule, time))
            if readings
            else (),
            firing=state.firing,
            inhibited=state.inhibited,
        )


def _failures(rules: Iterable[RuleState]) -> list[float]:
    """Return the failed evaluations of each name that a rule has."""
    failures: dict[str, int] = {}
    for state in rules:
        failures[state.rule.name] = failures.get(state.rule.name, 0) + state.failures
    return list(map(float, failures.values()))
