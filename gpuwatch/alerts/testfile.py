"""Rule-test files in promtool's format (2.42): reading and checking them.

Source of the format: Prometheus ``cmd/promtool/unittest.go`` and the page "Unit testing for rules". Keys that 2.42 does
not know are refused, so that a file that passes here can be given to promtool.
"""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.alerts.notation import Point, parse_metric, parse_values
from gpuwatch.alerts.yamlfile import Problem, YamlFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from yaml.nodes import Node

    from gpuwatch.model import Labels

FILE_KEYS = ("rule_files", "evaluation_interval", "group_eval_order", "tests")
TEST_KEYS = (
    "interval",
    "input_series",
    "alert_rule_test",
    "promql_expr_test",
    "external_labels",
    "external_url",
    "name",
)
INPUT_KEYS = ("series", "values")
ALERT_TEST_KEYS = ("eval_time", "alertname", "exp_alerts")
EXPECTED_ALERT_KEYS = ("exp_labels", "exp_annotations")
EXPR_TEST_KEYS = ("expr", "eval_time", "exp_samples")
SAMPLE_KEYS = ("labels", "value")

DEFAULT_INTERVAL_MS = 60_000

_HEX = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    """A firing alert that must be there, without ``alertname``."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AlertTest:
    """All firing alerts called `alertname` at `time` (milliseconds from the start) and no others."""

    time: int
    alertname: str
    expected: tuple[ExpectedAlert, ...]
    line: int


@dataclass(frozen=True, slots=True)
class ExprTest:
    """The whole result of `expr` at `time` (milliseconds from the start)."""

    time: int
    expr: str
    expected: tuple[tuple[Labels, float], ...]
    line: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """One test: its series, one point per `interval` milliseconds from time 0, and what must come of them."""

    name: str
    interval: int
    series: Mapping[Labels, tuple[Point, ...]]
    alerts: tuple[AlertTest, ...]
    exprs: tuple[ExprTest, ...]
    external_labels: Mapping[str, str]
    external_url: str
    line: int

    @property
    def end(self) -> int:
        """The last time at which something is checked, in milliseconds from the start."""
        return max([*(test.time for test in self.alerts), *(test.time for test in self.exprs)], default=0)


@dataclass(frozen=True, slots=True)
class RuleTestFile:
    """A rule-test file; only to be run when `problems` is empty. `evaluation_interval` in milliseconds."""

    path: Path
    rule_files: tuple[Path, ...]
    evaluation_interval: int
    group_order: tuple[str, ...]
    tests: tuple[Scenario, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def read(path: Path) -> RuleTestFile:
    """Read a rule-test file; what is wrong with it is in `problems`, never raised."""
    return _Reader(path).read()


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = YamlFile(path)
        self.warnings: list[Problem] = []

    def read(self) -> RuleTestFile:
        file = self.file
        root = file.root(first=True)
        self.warnings.extend(file.warnings)
        entries = file.mapping(root, "the test file", FILE_KEYS) if root is not None else {}
        if root is None and not file.problems:
            file.refuse(None, "is empty")
        interval = file.duration(entries.get("evaluation_interval"), "evaluation_interval") or DEFAULT_INTERVAL_MS
        return RuleTestFile(
            path=self.path,
            rule_files=self._rule_files(entries.get("rule_files")),
            evaluation_interval=interval,
            group_order=self._order(entries.get("group_eval_order")),
            tests=tuple(self._test(node, interval) for node in file.items(entries.get("tests"), "tests")),
            problems=tuple(file.problems),
            warnings=tuple(self.warnings),
        )

    def _rule_files(self, node: Node | None) -> tuple[Path, ...]:
        found: list[Path] = []
        for item in self.file.items(node, "rule_files"):
            pattern = self.file.text(item, "a rule file")
            if not pattern:
                continue
            matches = sorted(glob.glob(str(self.path.parent / pattern)))  # noqa: PTH207  # the pattern may be absolute
            if not matches:
                message = f"no file matches {pattern!r}"
                self.warnings.append(Problem(str(self.path), item.start_mark.line + 1, message))
            found.extend(path for path in map(Path, matches) if path not in found)
        return tuple(found)

    def _order(self, node: Node | None) -> tuple[str, ...]:
        names: list[str] = []
        for item in self.file.items(node, "group_eval_order"):
            name = self.file.text(item, "a group name")
            if name in names:
                self.file.refuse(item, f"group {name!r} is given twice in group_eval_order")
            elif name:
                names.append(name)
        return tuple(names)

    def _test(self, node: Node, evaluation_interval: int) -> Scenario:
        file = self.file
        entries = file.mapping(node, "a test", TEST_KEYS)
        series: dict[Labels, tuple[Point, ...]] = {}
        for item in file.items(entries.get("input_series"), "input_series"):
            read = self._series(item)
            if read is not None:
                series[read[0]] = read[1]
        alerts = [self._alert_test(item) for item in file.items(entries.get("alert_rule_test"), "alert_rule_test")]
        exprs = [self._expr_test(item) for item in file.items(entries.get("promql_expr_test"), "promql_expr_test")]
        return Scenario(
            name=file.text(entries.get("name"), "name") or "",
            interval=file.duration(entries.get("interval"), "interval") or evaluation_interval,
            series=series,
            alerts=tuple(test for test in alerts if test is not None),
            exprs=tuple(test for test in exprs if test is not None),
            external_labels=file.texts(entries.get("external_labels"), "external_labels"),
            external_url=file.text(entries.get("external_url"), "external_url") or "",
            line=node.start_mark.line + 1,
        )

    def _series(self, node: Node) -> tuple[Labels, tuple[Point, ...]] | None:
        entries = self.file.mapping(node, "an input series", INPUT_KEYS)
        series = self.file.text(entries.get("series"), "series")
        values = self.file.text(entries.get("values"), "values") or ""
        if series is None:
            self.file.refuse(node, "an input series must set 'series'")
            return None
        try:
            return parse_metric(series), parse_values(values)
        except ValueError as error:
            self.file.refuse(node, f"input series {series!r}: {error}")
            return None

    def _alert_test(self, node: Node) -> AlertTest | None:
        file = self.file
        entries = file.mapping(node, "an alert_rule_test", ALERT_TEST_KEYS)
        name = file.text(entries.get("alertname"), "alertname")
        if not name:
            file.refuse(node, "an alert_rule_test must set 'alertname'")
            return None
        expected = []
        for item in file.items(entries.get("exp_alerts"), "exp_alerts"):
            alert = file.mapping(item, "an expected alert", EXPECTED_ALERT_KEYS)
            labels = file.texts(alert.get("exp_labels"), "exp_labels")
            expected.append(ExpectedAlert(labels, file.texts(alert.get("exp_annotations"), "exp_annotations")))
        time = file.duration(entries.get("eval_time"), "eval_time") or 0
        return AlertTest(time, name, tuple(expected), node.start_mark.line + 1)

    def _expr_test(self, node: Node) -> ExprTest | None:
        file = self.file
        entries = file.mapping(node, "a promql_expr_test", EXPR_TEST_KEYS)
        expr = file.text(entries.get("expr"), "expr")
        if not expr:
            file.refuse(node, "a promql_expr_test must set 'expr'")
            return None
        expected = []
        for item in file.items(entries.get("exp_samples"), "exp_samples"):
            sample = self._sample(item)
            if sample is not None:
                expected.append(sample)
        time = file.duration(entries.get("eval_time"), "eval_time") or 0
        return ExprTest(time, expr, tuple(expected), node.start_mark.line + 1)

    def _sample(self, node: Node) -> tuple[Labels, float] | None:
        entries = self.file.mapping(node, "an expected sample", SAMPLE_KEYS)
        labels = self.file.text(entries.get("labels"), "labels") or "{}"
        value = self.file.text(entries.get("value"), "value") or "0"
        try:
            return parse_metric(labels), parse_number(value)
        except ValueError as error:
            self.file.refuse(node, str(error))
            return None


def parse_number(text: str) -> float:
    """Return a YAML number, ``.inf`` and ``.nan`` included.

    Raises:
        ValueError: `text` is not a number.
    """
    plain = text.replace("_", "")
    if _HEX.fullmatch(plain):
        return float(int(plain, 16))
    try:
        return float(plain.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
