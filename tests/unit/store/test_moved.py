"""When series last changed, began or ended, as the store tells it to rules that rest."""

from __future__ import annotations

import numpy as np

from gpuwatch.model import series
from gpuwatch.store import Store

A, B, C = series("a_total"), series("b"), series("b", of="c")


def written(*columns: tuple[int, tuple, list[float]]) -> Store:
    store = Store()
    for time, keys, values in columns:
        store.append("target", time, keys, values)
    return store


def test_a_name_moves_when_a_value_does():
    keys = (A, B)
    store = written((1000, keys, [1, 2]), (2000, keys, [1, 2]), (3000, keys, [1, 5]), (4000, keys, [1, 5]))
    assert store.moved("a_total") == (None, 1000)
    assert store.moved("b") == (3000, 1000)
    assert store.moved("c") == (None, None)


def test_values_are_compared_bit_by_bit():
    nan = float("nan")
    store = written((1000, (A, B), [nan, 0.0]), (2000, (A, B), [nan, -0.0]))
    assert store.moved("a_total") == (None, 1000)
    assert store.moved("b") == (2000, 1000)


def test_a_series_that_begins_leaves_the_others_where_they_were():
    store = written((1000, (A, B), [1, 2]), (2000, (A, B, C), [1, 2, 3]))
    assert store.moved("a_total") == (None, 1000)
    assert store.moved("b") == (None, 2000)


def test_an_end_and_a_return_are_changes():
    store = written((1000, (A, B), [1, 2]), (2000, (A,), [1]), (3000, (A,), [1]))
    assert store.moved("b") == (2000, 1000)
    store.append("target", 4000, (A, B), [1, 2])
    assert store.moved("b") == (4000, 1000)
    store.mark_stale("target", 5000)
    assert store.moved("a_total") == (5000, 1000)


def test_columns_that_are_taken_back_count_as_changed():
    store = written((1000, (A,), [1]), (2000, (A,), [2]), (1500, (A,), [1]))
    assert store.moved("a_total").changed == 2000  # the later change of the two: columns were seen that are gone


def test_a_sample_that_comes_late_does_not_hide_a_newer_change_of_another_target():
    store, other = Store(), series("a_total", of="other")
    for time, value in ((1000, 1.0), (2000, 2.0)):
        store.append("target", time, (A,), [value])
    for time, value in ((500, 1.0), (1500, 2.0)):
        store.append("slow", time, (other,), [value])
    assert store.moved("a_total") == (2000, 1000)


def test_a_caller_may_use_its_array_again():
    values, store, keys = np.array([1.0]), Store(), (A,)
    store.append("target", 1000, keys, values)
    values[0] = 2.0
    store.append("target", 2000, keys, values)
    assert store.moved("a_total") == (2000, 1000)
