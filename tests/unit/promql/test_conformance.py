"""Prometheus' semantics, case by case: series, expressions and worked-out answers lie in cases/."""

from __future__ import annotations

import math

import pytest
from unit.promql.conformance import CASES

from gpuwatch.alerts.notation import parse_metric, parse_values
from gpuwatch.promql import plan
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.values import PromQLError
from gpuwatch.store import Store

RUNS = [pytest.param(case, semantics, id=f"{case.where}-{semantics}") for case in CASES for semantics in case.semantics]


def _store(case):
    store = Store(retention_ms=1_000_000, expected_interval_ms=1000)
    for number, (metric, values) in enumerate(case.series):
        keys = (parse_metric(metric),)
        for at, point in enumerate(parse_values(values)):
            if point == "stale":
                store.mark_stale(str(number), at * case.step)
            elif point is not None:
                store.append(str(number), at * case.step, keys, [point])
    return store


def _same(one, other):
    return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-12)


def test_there_are_enough_cases():
    assert len(CASES) >= 150


@pytest.mark.parametrize(("case", "semantics"), RUNS)
def test_an_expression_gives_what_prometheus_defines(case, semantics):
    querier = LocalQuerier(_store(case), semantics)
    if case.word == "fail":
        with pytest.raises(PromQLError) as caught:
            querier.instant(case.expr, case.times[0])
        assert case.lines[0] in str(caught.value)
        return
    if case.word == "range":
        start, end, step = case.times
        wanted = {
            (labels, start + at * step): value
            for labels, values in case.expected
            for at, value in enumerate(values)
            if value is not None
        }
        found = querier.range(case.expr, start, end, step)
        got = {(one.labels, at): value for one in found for at, value in zip(one.times, one.values, strict=True)}
    else:
        wanted = {labels: values[0] for labels, values in case.expected}
        got = dict(querier.instant(case.expr, case.times[0]).items())
    assert got.keys() == wanted.keys()
    assert all(_same(got[key], wanted[key]) for key in wanted), (got, wanted)
    if case.word == "ordered":
        assert list(got) == list(wanted)


@pytest.mark.parametrize("expr", sorted({case.expr for case in CASES}))
def test_an_expression_written_out_again_means_the_same(expr):
    parsed = plan.parse(expr)
    assert plan.parse(str(parsed)).root == parsed.root
