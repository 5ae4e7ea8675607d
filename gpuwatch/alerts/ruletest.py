"""Running promtool-format rule tests on this engine, with the semantics of Prometheus 2.x as promtool 2.42 has them.

As promtool does it: every group is evaluated at each evaluation interval from time 0; samples are loaded up to the
evaluation, no further; an alert test sees the alerts of the last evaluation at or before its time; a rule that fails
ends the test.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.alerts import rulefile, testfile
from gpuwatch.alerts.engine import RuleEngine
from gpuwatch.alerts.notation import Point, format_metric
from gpuwatch.alerts.rulefile import RuleSet
from gpuwatch.alerts.state import ALERT_NAME
from gpuwatch.model import NAME
from gpuwatch.promql.duration import format_duration
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.values import PromQLError
from gpuwatch.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from gpuwatch.alerts.state import Alert
    from gpuwatch.alerts.testfile import AlertTest, ExprTest, RuleTestFile, Scenario
    from gpuwatch.alerts.yamlfile import Problem
    from gpuwatch.model import Labels
    from gpuwatch.promql.values import Vector

LOOKBACK_MS = 300_000
RELATIVE_TOLERANCE = 1e-12
"""promtool compares expected samples bit by bit; two correct engines may differ in the order of a sum."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One expectation that did not hold; `line` is where the test file states it."""

    file: str
    line: int
    test: str
    message: str

    def __str__(self) -> str:
        """Return the failure for people; the message may have several lines."""
        name = f"{self.test}: " if self.test else ""
        return f"{self.file}:{self.line}: {name}{self.message}"


@dataclass(frozen=True, slots=True)
class FileResult:
    """The outcome of one test file. `checked` counts expectations; with `problems` nothing was run."""

    file: str
    checked: int = 0
    failures: tuple[Failure, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything held."""
        return not self.failures and not self.problems


def run_file(path: Path) -> FileResult:
    """Run one rule-test file; what is wrong with the file or its rule files is in the result, never raised."""
    tests = testfile.read(path)
    rules = rulefile.load(user=tests.rule_files)
    problems = (*tests.problems, *rules.problems)
    if problems:
        return FileResult(str(path), problems=problems, warnings=tests.warnings)
    rules = RuleSet(_ordered(rules.groups, tests.group_order))
    failures: list[Failure] = []
    checked = 0
    for test in tests.tests:
        runner = _Runner(tests, test, rules)
        failures.extend(runner.run())
        checked += len(test.alerts) + len(test.exprs)
    return FileResult(str(path), checked, tuple(failures), warnings=tests.warnings)


def _ordered(groups: Sequence[rulefile.Group], order: Sequence[str]) -> tuple[rulefile.Group, ...]:
    """Return the groups as promtool orders them: those not named in `order` count as its first."""
    place = {name: index for index, name in enumerate(order)}
    return tuple(sorted(groups, key=lambda group: place.get(group.name, 0)))


class _Runner:
    """One test: a store of its own, its input series fed as time goes on, the rules evaluated along the way."""

    def __init__(self, file: RuleTestFile, test: Scenario, rules: RuleSet) -> None:
        self._file = str(file.path)
        self._test = test
        self._every = file.evaluation_interval
        # Rules may look back further than the test is long; nothing exists before time 0.
        self._store = Store(
            retention_ms=test.end + LOOKBACK_MS + 2 * max(test.interval, self._every),
            expected_interval_ms=min(test.interval, self._every),
            max_series=1_000_000,
        )
        self._querier = LocalQuerier(self._store, semantics="2", default_step_ms=self._every)
        self._engine = RuleEngine(
            rules,
            self._querier,
            self._store,
            external_labels=test.external_labels,
            external_url=test.external_url,
            statuses=False,
        )
        self._feed = Feed(self._store, test.series, test.interval)

    def run(self) -> list[Failure]:
        failures: list[Failure] = []
        pending = sorted(self._test.alerts, key=lambda test: test.time)
        for time in range(0, self._test.end + 1, self._every):
            self._feed.until(time)
            evaluation = self._engine.tick(time)
            broken = [error for error in evaluation.errors if not error.expansion]
            if broken:
                failures.extend(
                    self._failure(self._test.line, f"at {format_duration(time)}: {error}") for error in broken
                )
                return failures
            while pending and pending[0].time < time + self._every:
                failures.extend(self._check_alerts(pending.pop(0), evaluation.alerts))
        for test in self._test.exprs:
            failures.extend(self._check_expr(test))
        return sorted(failures, key=lambda failure: failure.line)

    def _failure(self, line: int, message: str) -> Failure:
        return Failure(self._file, line, self._test.name, message)

    def _check_alerts(self, test: AlertTest, alerts: Iterable[Alert]) -> list[Failure]:
        got = [
            _show_alert(dict(alert.labels), alert.annotations)
            for alert in alerts
            if alert.name == test.alertname and alert.state == "firing"
        ]
        expected = [
            _show_alert({**item.labels, ALERT_NAME: test.alertname}, item.annotations) for item in test.expected
        ]
        lines = difference(expected, got)
        if not lines:
            return []
        head = f"alert {test.alertname} at {format_duration(test.time)}:"
        return [self._failure(test.line, "\n".join([head, *lines]))]

    def _check_expr(self, test: ExprTest) -> list[Failure]:
        head = f"expr {test.expr} at {format_duration(test.time)}:"
        try:
            vector = self._querier.instant(test.expr, test.time)
        except PromQLError as error:
            return [self._failure(test.line, f"{head} {error}")]
        if _same_samples(test.expected, vector):
            return []
        expected = [[f"{format_metric(labels)} {value!r}"] for labels, value in test.expected]
        got = [[f"{format_metric(labels)} {value!r}"] for labels, value in vector.items()]
        lines = difference(expected, got) or ["    NaN is never equal to an expected value"]
        return [self._failure(test.line, "\n".join([head, *lines]))]


def _same_samples(expected: Sequence[tuple[Labels, float]], vector: Vector) -> bool:
    got = dict(vector.items())
    wanted = dict(expected)
    if len(wanted) != len(expected) or got.keys() != wanted.keys():
        return False
    return all(math.isclose(got[labels], value, rel_tol=RELATIVE_TOLERANCE) for labels, value in wanted.items())


class Feed:
    """Appends the points of the input series to the store as time goes on.

    Series share a target only where all have samples at the same steps: a step without a sample must not end one.
    """

    def __init__(self, store: Store, series: Mapping[Labels, tuple[Point, ...]], interval: int) -> None:
        self._store = store
        self._interval = interval
        self._next = 0
        shapes: defaultdict[tuple[Point, ...], list[Labels]] = defaultdict(list)
        for labels, points in series.items():
            shapes[tuple(0.0 if isinstance(point, float) else point for point in points)].append(labels)
        self._targets = [
            (f"input:{index}", tuple(keys), shape, [series[labels] for labels in keys])
            for index, (shape, keys) in enumerate(shapes.items())
        ]
        self._steps = max((len(shape) for shape in shapes), default=0)

    def until(self, time: int) -> None:
        """Append every point up to and including `time`."""
        while self._next < self._steps and self._next * self._interval <= time:
            self._append(self._next)
            self._next += 1

    def _append(self, step: int) -> None:
        time = step * self._interval
        for target, keys, shape, series in self._targets:
            kind = shape[step] if step < len(shape) else None
            if kind == "stale":
                self._store.mark_stale(target, time)
            elif kind is not None:
                values = [point for points in series if isinstance(point := points[step], float)]
                self._store.append(target, time, keys, values)


def _show_alert(labels: Mapping[str, str], annotations: Mapping[str, str]) -> list[str]:
    """Return an alert as lines, its labels first."""
    pairs = tuple(sorted((key, value) for key, value in labels.items() if key != NAME))
    return [format_metric(pairs), *(f"  {key}: {value}" for key, value in sorted(annotations.items()))]


def difference(expected: Sequence[list[str]], got: Sequence[list[str]]) -> list[str]:
    """Return what is expected and not there (``-``) and what is there and not expected (``+``); empty if equal.

    Items whose first line agrees are shown as one item with only the other lines that differ marked.
    """
    missing, extra = _without_common(expected, got)
    lines: list[str] = []
    for item in list(missing):
        twin = next((other for other in extra if other[0] == item[0]), None)
        if twin is None:
            lines.extend(_marked("-", item))
            continue
        extra.remove(twin)
        lines.append(f"      {item[0]}")
        left, right = _without_common([[line] for line in item[1:]], [[line] for line in twin[1:]])
        lines.extend(_marked("-", [line for [line] in left]))
        lines.extend(_marked("+", [line for [line] in right]))
    for item in extra:
        lines.extend(_marked("+", item))
    if lines:
        lines.append("    (- expected, + got)")
    return lines


def _without_common(left: Sequence[list[str]], right: Sequence[list[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Return both lists without what they share, counted with multiplicity."""
    counts: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for item in right:
        counts[tuple(item)] += 1
    missing = []
    for item in left:
        if counts[tuple(item)]:
            counts[tuple(item)] -= 1
        else:
            missing.append(item)
    extra = []
    for item in right:
        if counts[tuple(item)]:
            counts[tuple(item)] -= 1
            extra.append(item)
    return missing, extra


def _marked(mark: str, lines: Iterable[str]) -> list[str]:
    return [f"    {mark} {line}" for line in lines]
