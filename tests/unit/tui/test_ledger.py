"""The division of a GPU's memory: statements, what NVML counts, and the rest."""

from __future__ import annotations

import pytest

from gpuwatch.tui.view.ledger import Statement, divide

STATED = Statement(weights=16.0, kv_pool=50.0, kv_usage=0.8, activations=3.0, graphs=2.0)


def amounts(parts):
    return {part.kind: round(part.bytes, 6) for part in parts}


def test_an_engine_that_states_everything_is_divided_and_the_rest_is_named():
    parts = amounts(divide(75.0, 0.5, 1.0, [(STATED, 73.0)]))
    assert parts == {
        "weights": 16, "kv_used": 40, "kv_free": 10, "work": 5, "rest": 2, "other": 1, "unexplained": 1, "reserved": 0.5
    }  # fmt: skip


def test_parts_of_the_used_memory_sum_to_it():
    parts = divide(75.0, 0.5, 1.0, [(STATED, 73.0)])
    assert sum(part.bytes for part in parts if part.kind != "reserved") == pytest.approx(75.0)


def test_without_process_figures_the_statements_are_taken_from_the_used_memory():
    parts = amounts(divide(75.0, None, None, [(STATED, None)]))
    assert parts == {"weights": 16, "kv_used": 40, "kv_free": 10, "work": 5, "unexplained": 4}


def test_an_engine_that_holds_less_than_it_states_is_not_shown_with_more_than_it_holds():
    parts = amounts(divide(70.0, 0.0, 0.0, [(STATED, 68.0)]))
    assert parts == {"weights": 16, "kv_used": 40, "kv_free": 10, "work": 2, "unexplained": 2}


def test_a_pool_with_unknown_usage_is_not_split():
    statement = Statement(weights=16.0, kv_pool=50.0)
    assert amounts(divide(70.0, 0.0, 0.0, [(statement, 69.0)])) == {
        "weights": 16, "kv_pool": 50, "rest": 3, "unexplained": 1
    }  # fmt: skip


def test_an_engine_without_statements_is_one_piece():
    assert amounts(divide(70.0, 0.0, 5.0, [(Statement(), 60.0)])) == {"engine": 60, "other": 5, "unexplained": 5}


def test_two_engines_on_one_gpu_add_up():
    small = Statement(weights=2.0, kv_pool=10.0, kv_usage=0.5)
    parts = amounts(divide(90.0, 0.0, 0.0, [(STATED, 73.0), (small, 13.0)]))
    assert parts["weights"] == 18
    assert parts["kv_used"] == 45
    assert parts["unexplained"] == 4


def test_nothing_known_is_nothing_divided():
    assert divide(None, None, None, [(STATED, None)]) == ()
    assert amounts(divide(10.0, None, None, [])) == {"unexplained": 10}
