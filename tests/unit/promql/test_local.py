from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.model import series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.plan import parse
from gpuwatch.promql.values import PromQLError
from gpuwatch.queries import CATALOGUE
from gpuwatch.store import Store

KEYS = tuple(series(name, i=i) for name in ("a_total", "b") for i in ("1", "2", "3"))
EXPRESSIONS = [
    "b",
    "b > 5",
    "rate(a_total[10s])",
    "increase(a_total[7s] offset 3s)",
    "sum by (i) (b)",
    "topk(1, b)",
    "b and a_total > 3",
    "b + on (i) a_total",
    "b > scalar(sum(a_total))",
    "max_over_time(rate(a_total[4s])[10s:2s])",
    "sum_over_time((b offset -2s)[6s:2s])",
    "avg_over_time(b[10s])",
    "absent(b)",
    "count({__name__=~'a.*|b'})",
    "timestamp(b)",
    "changes(b[10s]) + resets(b[10s])",
    "deriv(b[10s])",
    "label_replace(b, 'j', '$1', 'i', '(.)')",
    "count_values('v', b)",
]


def answer(querier, expr, time):
    try:
        return {labels: repr(value) for labels, value in querier.instant(expr, time).items()}
    except PromQLError as error:
        return str(error)


moves = st.lists(
    st.tuples(
        st.sampled_from(["s", "t"]),
        st.integers(-2, 5),
        st.one_of(st.none(), st.lists(st.sampled_from(KEYS), max_size=6, unique=True).map(tuple)),
        st.integers(0, 9),
        st.integers(-4, 2),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(moves, st.booleans())
def test_what_is_remembered_never_shows(steps, short):
    """A querier that has seen everything answers as one that has just been made."""
    store = Store(retention_ms=12_000 if short else 1_000_000, expected_interval_ms=2000 if short else 10_000)
    # What has left a short ring may rightly be remembered as a step of a subquery.
    exprs = [expr for expr in EXPRESSIONS if not short or ":2s]" not in expr]
    old = LocalQuerier(store)
    now = 100_000
    for target, step, keys, value, back in steps:
        now += step * 700
        if keys is None:
            store.mark_stale(target, now)
        else:
            store.append(target, now, keys, [float(value + at) for at in range(len(keys))])
        fresh = LocalQuerier(store)
        for expr in exprs:
            for time in (now, now + back * 1000):
                assert answer(old, expr, time) == answer(fresh, expr, time), (expr, time)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=15), st.integers(1, 14), st.integers(0, 5))
def test_a_late_neighbour_changes_no_function_of_a_full_series(values, late, beyond):
    """Windows where every cell is a sample and windows with holes are computed in different ways."""
    alone, beside = Store(), Store()
    key, neighbour = series("x", i="1"), series("x", i="2")
    for at, value in enumerate(values):
        alone.append("t", at * 1000, (key,), [float(value)])
        keys = (key, neighbour) if at >= late else (key,)
        beside.append("t", at * 1000, keys, [float(value), 1.0][: len(keys)])
    now = (len(values) - 1 + beyond) * 1000
    functions = [
        *("rate", "increase", "delta", "irate", "idelta", "changes", "resets", "deriv"),
        *("sum_over_time", "avg_over_time", "min_over_time", "max_over_time", "count_over_time", "last_over_time"),
        *("stddev_over_time", "stdvar_over_time", "present_over_time"),
    ]
    exprs = [f"{function}(x[11s])" for function in functions]
    exprs += ["quantile_over_time(0.3, x[11s])", "predict_linear(x[11s], 60)"]
    for semantics in ("3", "2"):
        for expr in exprs:
            want = [value for labels, value in LocalQuerier(alone, semantics).instant(expr, now).items()]
            got = [
                value
                for labels, value in LocalQuerier(beside, semantics).instant(expr, now).items()
                if ("i", "1") in labels
            ]
            assert len(got) == len(want)
            assert all(
                math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9) for one, other in zip(got, want, strict=True)
            )


def test_a_sample_that_comes_after_an_evaluation_at_the_same_time_counts():
    store = Store()
    querier = LocalQuerier(store)
    key = series("x")
    store.append("t", 1000, (key,), [1])
    assert dict(querier.instant("x", 1000).items()) == {key: 1.0}
    store.append("t", 1000, (key,), [2])
    assert dict(querier.instant("x", 1000).items()) == {key: 2.0}
    store.append("u", 1000, (series("x", i="1"),), [3])
    assert len(querier.instant("x", 1000)) == 2


def test_an_answer_does_not_change_when_the_store_goes_on():
    store = Store(retention_ms=3000, expected_interval_ms=1000)
    querier = LocalQuerier(store)
    key = series("x")
    keys = (key,)
    store.append("t", 1000, keys, [1])
    first = querier.instant("x", 1000)
    latest = querier.instant("last_over_time(x[5s])", 1000)
    for second in range(2, 9):
        store.append("t", second * 1000, keys, [second])
    assert first.values.tolist() == [1.0]
    assert latest.values.tolist() == [1.0]


def test_equal_parts_of_different_expressions_are_evaluated_once_while_nothing_is_written(monkeypatch):
    store = Store()
    for second in range(20):
        store.append("t", second * 1000, (series("a_total"), series("b")), [second, 1])
    querier = LocalQuerier(store)
    querier.instant("rate(a_total[10s]) > 0", 19_000)
    operator = querier._compiler.vector(parse("rate(a_total[10s])").root)
    monkeypatch.setattr(type(operator), "compute", None)
    assert dict(querier.instant("sum(rate(a_total[10s]))", 19_000).items()) == {(): 1.0}
    monkeypatch.undo()
    store.append("t", 19_000, (series("a_total"), series("b")), [28, 1])
    assert dict(querier.instant("sum(rate(a_total[10s]))", 19_000).items()) == {(): 2.0}


def test_labels_stay_the_same_object_while_the_series_do():
    store = Store()
    keys = (series("b", i="1"), series("b", i="2"))
    querier = LocalQuerier(store)
    seen = []
    for second in range(5):
        store.append("t", second * 1000, keys, [second, 1])
        if second == 3:
            store.append("u", second * 1000, (series("other"),), [1])
        seen.append(querier.instant("sum by (i) (b)", second * 1000).labels)
    assert all(labels is seen[0] for labels in seen)


def test_a_plan_may_be_given_in_place_of_its_text():
    store = Store()
    store.append("t", 0, (series("x"),), [4])
    querier = LocalQuerier(store)
    assert dict(querier.instant(parse("x * 2"), 0).items()) == {(): 8.0}
    assert querier.range(parse("x"), 0, 0, 1000)[0].values == (4.0,)


@pytest.mark.parametrize(("expr", "why"), [("x[1m]", "a range vector"), ('"x"', "a string"), ("x +", "invalid")])
def test_what_is_no_vector_is_refused(expr, why):
    with pytest.raises(PromQLError, match=why):
        LocalQuerier(Store()).instant(expr, 0)


def test_a_range_query_has_limits():
    querier = LocalQuerier(Store())
    with pytest.raises(PromQLError, match="must be positive"):
        querier.range("x", 0, 1000, 0)
    with pytest.raises(PromQLError, match="more than 11000 steps"):
        querier.range("x", 0, 11_000_000, 1000)
    assert querier.range("x", 1000, 0, 1000) == ()


def test_a_range_query_has_values_only_where_there_are_some():
    store = Store()
    store.append("t", 10_000, (series("x", i="1"),), [1])
    store.append("t", 20_000, (series("x", i="2"),), [2])
    found = {one.labels: (one.times, one.values) for one in LocalQuerier(store).range("x", 0, 30_000, 10_000)}
    assert found == {
        series("x", i="1"): ((10_000,), (1.0,)),
        series("x", i="2"): ((20_000, 30_000), (2.0, 2.0)),
    }


def test_a_subquery_by_default_step_may_be_too_long():
    with pytest.raises(PromQLError, match="more than 11000 steps"):
        LocalQuerier(Store(), default_step_ms=1).instant("max_over_time(x[1m:])", 0)


def test_many_different_expressions_do_not_pile_up():
    querier = LocalQuerier(Store())
    for number in range(2500):
        querier.instant(f"x > {number}", 0)
    assert len(querier._prepared) <= 2000
    assert len(querier._compiler) <= 2001


def test_every_query_of_the_catalogue_is_accepted():
    querier = LocalQuerier(Store())
    for query in CATALOGUE.values():
        assert len(querier.instant(query.expr("10s"), 0)) == 0


@pytest.mark.parametrize(
    ("first", "second", "bound"),
    [
        (40.0, 40.0, 0.3),  # all 40 within the first bucket: its end is all that is known
        (38.0, 40.0, 0.3),  # 38 of 40 are 95 %
        (37.0, 40.0, None),
        (0.0, 40.0, None),
        (0.0, 0.0, None),
    ],
)
def test_the_end_of_the_first_bucket_is_told_where_a_quantile_lies_in_it(first, second, bound):
    store = Store()
    keys = tuple(
        series("gpuwatch_engine_queue_time_seconds_bucket", le=le, server="s") for le in ("0.3", "1.0", "+Inf")
    )
    for second_at in range(61):
        values = [each * second_at for each in (first, second, second)]
        store.append("t", second_at * 1000, keys, values)
    found = LocalQuerier(store).instant(CATALOGUE["queue_p95_at_most"].template, 60_000)
    assert dict(found.items()) == ({} if bound is None else {(("server", "s"),): pytest.approx(bound)})


def test_memory_of_a_machine_is_that_of_its_cards_and_of_the_mig_devices_of_cards_that_do_not_tell():
    keys = tuple(
        series("gpuwatch_gpu_memory_used_bytes", host="h", gpu=gpu, uuid=f"u{gpu}")
        for gpu in ("0", "1", "1:0", "2:0", "2:1", "12:0")
    )
    store = Store()
    store.append("t", 0, keys, [1.0, 10.0, 5.0, 100.0, 200.0, 1000.0])  # cards 2 and 12 may not be read
    found = LocalQuerier(store).instant(CATALOGUE["host_gpu_memory_used"].template, 0)
    assert dict(found.items()) == {(("host", "h"),): 1311.0}
