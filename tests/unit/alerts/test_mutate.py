"""The tool that changes the numbers of rules: which numbers it takes, and that a change is noticed or survives."""

from __future__ import annotations

import pytest
from tools.mutate import Case, mutants, numbers, survivors

from gpuwatch.alerts import rulefile, testfile

RULES = """
groups:
  - name: g
    rules:
      - alert: Hot
        expr: celsius{gpu="80"} > 80
        for: 30s
"""
TESTS = """
rule_files: [rules.yml]
evaluation_interval: 10s
tests:
  - interval: 10s
    input_series:
      - series: 'celsius{gpu="80"}'
        values: '70x6 81x10'
    alert_rule_test:
"""
FIRES = "      - {eval_time: 2m, alertname: Hot, exp_alerts: [{exp_labels: {gpu: '80'}}]}\n"
SILENT_WHEN_COOL = "      - {eval_time: 50s, alertname: Hot, exp_alerts: []}\n"
SILENT_AT_FIRST = "      - {eval_time: 1m10s, alertname: Hot, exp_alerts: []}\n"


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        ('a{b="5",c=~"1|2"} > 3', ["3"]),
        ("rate(a1[5m:10s] offset 30s) >= 0.5", ["0.5"]),
        ("histogram_quantile(0.95, rate(a_bucket[1m])) > 2", ["2"]),
        ("a > 0 and b * 1e3 < 1073741824", ["1e3", "1073741824"]),
        ("2 ^ a_2 / .5", ["2", ".5"]),
        ("increase(a[1h30m]) == 1", ["1"]),
    ],
)
def test_matchers_windows_offsets_quantiles_names_and_zeros_are_left_alone(expr, wanted):
    assert [expr[begin:end] for begin, end in numbers(expr)] == wanted


@pytest.fixture
def tried(tmp_path):
    def run(*expectations):
        (tmp_path / "rules.yml").write_text(RULES)
        (tmp_path / "tests.yml").write_text(TESTS + "".join(expectations))
        file = testfile.read(tmp_path / "tests.yml")
        assert not file.problems
        (rule,) = rulefile.load(user=file.rule_files).alerts
        assert len(mutants(rule)) == 3
        tried, left = survivors(rule, [Case(file, file.tests[0], ())])
        assert tried == 3
        return [mutant.what.partition(" …")[0].strip() for mutant in left]

    return run


def test_a_test_that_only_fires_notices_the_doubled_threshold_only(tried):
    assert tried(FIRES) == ["expression line 1: 80 /2 = 40.0", "for: 30s = 0s"]


def test_a_silent_twin_notices_the_halved_threshold(tried):
    assert tried(FIRES, SILENT_WHEN_COOL) == ["for: 30s = 0s"]


def test_an_expectation_within_the_hold_notices_its_absence(tried):
    assert tried(FIRES, SILENT_WHEN_COOL, SILENT_AT_FIRST) == []


def test_a_rule_that_fails_its_tests_unchanged_is_refused(tried):
    with pytest.raises(SystemExit, match="Hot fails tests"):
        tried("      - {eval_time: 50s, alertname: Hot, exp_alerts: [{exp_labels: {gpu: '80'}}]}\n")
