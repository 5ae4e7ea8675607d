"""Rule tests on our engine: verdicts, readable differences, refusals with file and line."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from gpuwatch.alerts.ruletest import FileResult, difference, run_file
from gpuwatch.alerts.testfile import parse_number

if TYPE_CHECKING:
    from pathlib import Path

RULES = """\
    groups:
      - name: g
        rules:
          - alert: Hot
            expr: temperature > 90
            for: 1m
            labels: {severity: warning}
            annotations: {summary: 'GPU {{ $labels.gpu }}', description: 'it is {{ $value }}'}
    """


def run(folder: Path, test: str, rules: str = RULES) -> FileResult:
    (folder / "rules.yml").write_text(dedent(rules))
    path = folder / "test.yml"
    path.write_text(dedent(test))
    return run_file(path)


HEAD = """\
    rule_files: [rules.yml]
    tests:
      - interval: 1m
        name: heat
        input_series:
          - {series: 'temperature{gpu="0"}', values: '80 95 96 97 80'}
"""


def test_everything_holds(tmp_path):
    result = run(
        tmp_path,
        HEAD
        + """\
        alert_rule_test:
          - {eval_time: 1m, alertname: Hot}
          - eval_time: 2m
            alertname: Hot
            exp_alerts:
              - exp_labels: {gpu: '0', severity: warning}
                exp_annotations: {summary: GPU 0, description: it is 96}
          - {eval_time: 4m, alertname: Hot}
        promql_expr_test:
          - {expr: temperature * 2, eval_time: 3m, exp_samples: [{labels: '{gpu="0"}', value: 194}]}
    """,
    )
    assert (result.problems, result.failures, result.checked, result.passed) == ((), (), 4, True)


def test_differences_are_readable(tmp_path):
    result = run(
        tmp_path,
        HEAD
        + """\
        alert_rule_test:
          - eval_time: 2m
            alertname: Hot
            exp_alerts:
              - exp_labels: {gpu: '0', severity: warning}
                exp_annotations: {summary: GPU 0, description: it is 97}
              - exp_labels: {gpu: '1', severity: warning}
        promql_expr_test:
          - {expr: temperature, eval_time: 1m, exp_samples: [{labels: 'temperature{gpu="0"}', value: 94}]}
    """,
    )
    first, second = (str(failure).removeprefix(f"{tmp_path}/") for failure in result.failures)
    assert first == dedent(
        """\
        test.yml:8: heat: alert Hot at 2m:
              {alertname="Hot", gpu="0", severity="warning"}
            -   description: it is 97
            +   description: it is 96
            - {alertname="Hot", gpu="1", severity="warning"}
            (- expected, + got)"""
    )
    assert second == dedent(
        """\
        test.yml:15: heat: expr temperature at 1m:
            - temperature{gpu="0"} 94.0
            + temperature{gpu="0"} 95.0
            (- expected, + got)"""
    )


@pytest.mark.parametrize(
    ("expected", "got", "lines"),
    [
        ([], [], []),
        ([["a"]], [["a"]], []),
        ([["a"], ["b"]], [["b"], ["a"]], []),
        ([["a"], ["a"]], [["a"]], ["    - a", "    (- expected, + got)"]),
        ([], [["a", "  x"]], ["    + a", "    +   x", "    (- expected, + got)"]),
        ([["a", "x", "z"]], [["a", "y", "z"]], ["      a", "    - x", "    + y", "    (- expected, + got)"]),
    ],
)
def test_difference_of_lists(expected, got, lines):
    assert difference(expected, got) == lines


def test_a_failing_rule_is_reported_with_its_place_and_time(tmp_path):
    result = run(
        tmp_path,
        HEAD + "        alert_rule_test: [{eval_time: 2m, alertname: Hot}]\n",
        "groups: [{name: g, rules: [{alert: Hot, expr: temperature, labels: {gpu: '{{ nosuch }}'}}]}]",
    )
    (problem,) = result.problems
    assert problem.file == str(tmp_path / "rules.yml")
    result = run(
        tmp_path,
        HEAD + "        alert_rule_test: [{eval_time: 2m, alertname: Hot}]\n",
        "groups: [{name: g, limit: 1, rules: [{alert: Hot, expr: temperature or vector(1)}]}]",
    )
    (failure,) = result.failures
    assert str(failure).startswith(
        f"{tmp_path}/test.yml:3: heat: at 0s: {tmp_path}/rules.yml:1: rule Hot: gives 2 series"
    )
    assert (result.checked, result.passed) == (1, False)


REFUSED = [
    ("", "test.yml: is empty"),
    ("[]", "test.yml:1: the test file must be a mapping of keys to values, not a list"),
    ("rules: []", "unknown key 'rules' in the test file; allowed are: rule_files, evaluation_interval"),
    ("rule_files: [rules.yml]\ntests: [{intervall: 1m}]", "test.yml:2: unknown key 'intervall' in a test; allowed are"),
    ("tests: [{interval: 5}]", "interval: '5' is not a duration"),
    ("tests: [{input_series: [{values: 1}]}]", "an input series must set 'series'"),
    ("tests: [{input_series: [{series: m, values: 1 two}]}]", "input series 'm': 'two' is not a value; allowed are"),
    ("tests: [{input_series: [{series: 'm{a=b}', values: 1}]}]", "input series 'm{a=b}': 'm{a=b}' is not a series"),
    ("tests: [{input_series: [{series: m, value: 1}]}]", "unknown key 'value' in an input series; allowed are: series"),
    ("tests: [{alert_rule_test: [{eval_time: 1m}]}]", "an alert_rule_test must set 'alertname'"),
    ("tests: [{alert_rule_test: [{alertname: A, eval_time: x}]}]", "eval_time: 'x' is not a duration"),
    ("tests: [{alert_rule_test: [{alertname: A, exp_alerts: 0}]}]", "exp_alerts must be a list, not the text '0'"),
    ("tests: [{alert_rule_test: [{alertname: A, exp_alerts: [{labels: {}}]}]}]", "unknown key 'labels' in an expected"),
    ("tests: [{promql_expr_test: [{eval_time: 1m}]}]", "a promql_expr_test must set 'expr'"),
    ("tests: [{promql_expr_test: [{expr: m, exp_samples: [{value: x}]}]}]", "'x' is not a number"),
    ("tests: [{promql_expr_test: [{expr: m, exp_samples: [{labels: '{', value: 1}]}]}]", "'{' is not a series"),
    ("group_eval_order: [a, a]", "group 'a' is given twice in group_eval_order"),
    ("evaluation_interval: fast", "evaluation_interval: 'fast' is not a duration"),
]


@pytest.mark.parametrize(("test", "expected"), REFUSED, ids=range(len(REFUSED)))
def test_a_wrong_file_is_refused_with_its_line(tmp_path, test, expected):
    result = run(tmp_path, test)
    (problem,) = result.problems
    assert expected in str(problem)
    assert str(problem).startswith(f"{tmp_path}/test.yml")
    assert (result.checked, result.passed) == (0, False)


def test_a_pattern_that_matches_no_rule_file_is_a_warning(tmp_path):
    result = run(tmp_path, "rule_files: ['nothing*.yml', 'rules.yml', '*ules.yml']\n")
    assert [str(warning) for warning in result.warnings] == [f"{tmp_path}/test.yml:1: no file matches 'nothing*.yml'"]
    assert result.passed


def test_samples_after_the_last_evaluation_are_not_loaded(tmp_path):
    # promtool loads samples evaluation by evaluation; at 2m30s the last one was at 2m.
    result = run(
        tmp_path,
        """\
        tests:
          - interval: 15s
            input_series: [{series: m, values: 0+1x20}]
            promql_expr_test:
              - {expr: m, eval_time: 2m30s, exp_samples: [{labels: m, value: 8}]}
        """,
    )
    assert result.failures == ()


def test_a_gap_does_not_end_a_series_and_a_stale_marker_does(tmp_path):
    result = run(
        tmp_path,
        """\
        tests:
          - interval: 1m
            input_series:
              - {series: 'm{a="gap"}', values: 1 _x9}
              - {series: 'm{a="stale"}', values: 1 stale}
              - {series: 'm{a="short"}', values: 1 2}
            promql_expr_test:
              - expr: m
                eval_time: 4m
                exp_samples: [{labels: 'm{a="gap"}', value: 1}, {labels: 'm{a="short"}', value: 2}]
              - {expr: m, eval_time: 6m, exp_samples: [{labels: 'm{a="short"}', value: 2}]}
              - {expr: m, eval_time: 7m}
        """,
    )
    assert result.failures == ()


def test_nan_is_never_what_was_expected(tmp_path):
    result = run(
        tmp_path,
        "tests: [{promql_expr_test: [{expr: vector(0) / 0, exp_samples: [{value: .nan}]}]}]",
    )
    (failure,) = result.failures
    assert failure.message.endswith("NaN is never equal to an expected value")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-2.5e3", -2500.0),
        (".inf", float("inf")),
        ("-.Inf", float("-inf")),
        ("0x10", 16.0),
        ("1_000", 1000.0),
    ],
)
def test_yaml_numbers(text, value):
    assert parse_number(text) == value
