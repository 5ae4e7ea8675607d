from __future__ import annotations

import pytest

from gpuwatch.alerts.rulefile import load
from gpuwatch.dashboards.limits import LimitError, Threshold, comparisons_of, resolve
from gpuwatch.dashboards.model import Level, Limit
from gpuwatch.dashboards.panels import steps
from gpuwatch.promql.plan import parse

RULES = """groups:
- name: g
  rules:
  - alert: Full
    expr: gpuwatch_engine_kv_cache_usage_ratio > 0.9 and gpuwatch_engine_requests_waiting > 3
  - alert: Low
    expr: gpuwatch_host_memory_available_bytes < 0.05 * gpuwatch_host_memory_total_bytes
  - alert: Turned
    expr: 60 <= gpuwatch_engine_page_frozen_seconds
  - alert: Often
    expr: |
      increase(gpuwatch_engine_evictions_total[1m]) > 3
      and increase(gpuwatch_engine_evictions_total[1m]) > 0.5 * gpuwatch_engine_requests_running
  - alert: Twice
    expr: |
      gpuwatch_gpu_power_watts > 500 or (gpuwatch_gpu_power_watts > 300 and gpuwatch_gpu_busy_ratio < 0.2)
      or gpuwatch_gpu_busy_ratio < 0.1
"""


@pytest.fixture
def rules(tmp_path):
    (tmp_path / "rules.yml").write_text(RULES)
    return load([tmp_path / "rules.yml"])


def test_a_threshold_is_the_number_of_the_rule(rules):
    limit = Limit("Full", "gpuwatch_engine_kv_cache_usage_ratio", "yellow")
    assert resolve([limit], rules) == (Threshold(0.9, "yellow", rule="Full"),)


def test_a_share_of_another_series_is_a_threshold_of_a_ratio(rules):
    limit = Limit("Low", "gpuwatch_host_memory_available_bytes")
    assert resolve([limit], rules) == (Threshold(0.05, "red", below=True, rule="Low"),)


def test_a_number_on_the_left_is_turned_round(rules):
    assert resolve([Limit("Turned", "gpuwatch_engine_page_frozen_seconds")], rules) == (
        Threshold(60.0, "red", rule="Turned"),
    )


def test_a_number_goes_before_a_share_and_may_be_scaled_to_a_rate(rules):
    limit = Limit("Often", "increase(gpuwatch_engine_evictions_total[1m])", "red", 1 / 60)
    assert resolve([limit], rules) == (Threshold(pytest.approx(0.05), "red", rule="Often"),)


def test_of_several_numbers_in_one_rule_the_one_that_is_reached_first_is_the_threshold(rules):
    assert resolve([Limit("Twice", "gpuwatch_gpu_power_watts")], rules) == (Threshold(300.0, "red", rule="Twice"),)
    low = resolve([Limit("Twice", "gpuwatch_gpu_busy_ratio")], rules)
    assert low == (Threshold(0.2, "red", below=True, rule="Twice"),)


def test_levels_without_a_rule_are_sorted_in_between(rules):
    limits = [Level(5, "red"), Limit("Full", "gpuwatch_engine_requests_waiting", "yellow")]
    assert [threshold.value for threshold in resolve(limits, rules)] == [3, 5]


def test_a_shipped_rule_without_the_comparison_is_an_error_that_says_what_it_has(rules):
    with pytest.raises(LimitError, match=r"rule Low compares gpuwatch_host_memory_available_bytes .* not x"):
        resolve([Limit("Low", "x")], rules)


def test_an_own_rule_without_the_comparison_gives_no_threshold(tmp_path, rules):
    (tmp_path / "own.yml").write_text("groups: [{name: own, rules: [{alert: Low, expr: vector(1) > 2}]}]")
    both = load([tmp_path / "rules.yml"], [tmp_path / "own.yml"])
    assert resolve([Limit("Low", "gpuwatch_host_memory_available_bytes")], both) == ()


def test_a_rule_that_is_not_in_use_gives_no_threshold(rules):
    assert resolve([Limit("Gone", "x")], rules) == ()


def test_two_vectors_are_no_threshold():
    assert list(comparisons_of(parse("gpuwatch_gpu_power_watts > gpuwatch_gpu_power_limit_watts"))) == []


def test_low_values_have_the_colour_of_the_lowest_limit_first():
    found = steps([Threshold(0.02, "red", below=True), Threshold(0.1, "yellow", below=True)])
    assert found["steps"] == [
        {"color": "red", "value": None},
        {"color": "yellow", "value": 0.02},
        {"color": "green", "value": 0.1},
    ]
