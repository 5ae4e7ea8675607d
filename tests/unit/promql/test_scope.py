from __future__ import annotations

import pytest

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.promql.plan import parse
from gpuwatch.promql.scope import scoped
from gpuwatch.queries import CATALOGUE

HOST = [("host", "n1")]


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        ("gpuwatch_gpu_info", 'gpuwatch_gpu_info{host="n1"}'),
        ("gpuwatch_gpu_info{}", 'gpuwatch_gpu_info{host="n1"}'),
        ('gpuwatch_gpu_state{state!="ok"} == 1', 'gpuwatch_gpu_state{host="n1",state!="ok"} == 1'),
        ("rate(gpuwatch_a_total[1m])", 'rate(gpuwatch_a_total{host="n1"}[1m])'),
        ("sum by (gpuwatch) (gpuwatch_a offset 3s)", 'sum by (gpuwatch) (gpuwatch_a{host="n1"} offset 3s)'),
        ('f(gpuwatch_a, "x", "gpuwatch_b")', 'f(gpuwatch_a{host="n1"}, "x", "gpuwatch_b")'),
        ('ALERTS{alertname=~"Gpuwatch.*"}', 'ALERTS{host="n1",alertname=~"Gpuwatch.*"}'),
        ("up + ALERTS_FOR_STATE", 'up + ALERTS_FOR_STATE{host="n1"}'),
        ('gpuwatch_a {t="gpuwatch_b"} / gpuwatch_c', 'gpuwatch_a {host="n1",t="gpuwatch_b"} / gpuwatch_c{host="n1"}'),
    ],
)  # fmt: skip
def test_every_selector_of_ours_and_nothing_else_is_narrowed(expr, want):
    assert scoped(expr, HOST) == want


def test_values_are_quoted_and_no_matcher_changes_nothing():
    assert scoped("gpuwatch_a", [("host", 'a"\\b'), ("cluster", "")]) == 'gpuwatch_a{host="a\\"\\\\b",cluster=""}'
    assert scoped("gpuwatch_a", []) == "gpuwatch_a"


@pytest.mark.parametrize("name", CATALOGUE)
def test_each_query_of_the_catalogue_is_narrowed_in_every_selector(name):
    expr = CATALOGUE[name].expr("1m")
    narrow = scoped(expr, HOST)
    assert narrow.count('{host="n1"') == expr.count("gpuwatch_") + expr.count("ALERTS")
    parse(narrow)


def test_each_shipped_rule_is_narrowed_in_every_selector():
    for rule in load(shipped_paths()).alerts:
        narrow = scoped(rule.expr, HOST)
        assert narrow.count('{host="n1"') == rule.expr.count("gpuwatch_")
        parse(narrow)
