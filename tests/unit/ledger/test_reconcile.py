"""The division of a GPU's memory: statements, what NVML counts, and the rest."""

from __future__ import annotations

import pytest

from gpuwatch.ledger.reconcile import COMPONENTS, Card, Statement, divide, missing, missing_on

STATED = Statement(weights=16.0, kv_pool=50.0, kv_usage=0.8, activations=3.0, graphs=2.0)


def amounts(card, *engines):
    return {component: round(value, 6) for component, value in divide(card, engines).items()}


def test_an_engine_that_states_everything_is_divided_and_the_rest_is_named():
    assert amounts(Card(75.0, 0.5, 4.5, 1.0), (STATED, 73.0)) == {
        "weights": 16, "kv_used": 40, "kv_free": 10, "work": 5, "rest": 2, "other": 1, "unexplained": 1,
        "reserved": 0.5, "free": 4.5,
    }  # fmt: skip


def test_the_components_sum_to_the_card():
    parts = divide(Card(75.0, 0.5, 4.5, 1.0), [(STATED, 73.0)])
    assert sum(parts.values()) == pytest.approx(80.0)
    assert list(parts) == [component for component in COMPONENTS if component in parts]


def test_without_process_figures_the_statements_are_taken_from_the_used_memory():
    assert amounts(Card(75.0), (STATED, None)) == {
        "weights": 16, "kv_used": 40, "kv_free": 10, "work": 5, "unexplained": 4
    }  # fmt: skip


def test_an_engine_that_holds_less_than_it_states_is_not_shown_with_more_than_it_holds():
    assert amounts(Card(70.0), (STATED, 68.0)) == {
        "weights": 16, "kv_used": 40, "kv_free": 10, "work": 2, "rest": 0, "unexplained": 2
    }  # fmt: skip


def test_a_statement_that_its_processes_contradict_divides_nothing_and_names_what_is_missing():
    # The log says 15.27 of weights and 18.69 of pool, a quarter in use; the processes hold 12.
    told, card = Statement(weights=15.27, kv_pool=18.69, kv_usage=0.25), Card(12.5, 0.5, 67.0, 0.0)
    assert amounts(card, (told, 12.0)) == {"engine": 12, "other": 0, "unexplained": 0.5, "reserved": 0.5, "free": 67}
    assert missing_on(card, [(told, 12.0)]) == pytest.approx(15.27 + 18.69 - 12.0)


@pytest.mark.parametrize(("held", "lacking"), [(68.0, 0), (66.0, 0), (60.0, 0), (59.0, 7), (2.0, 64), (0.0, 66)])
def test_weights_and_pool_are_missing_where_a_tenth_of_them_is_not_held(held, lacking):
    assert missing(STATED, held) == lacking  # 16 and 50; activations and graphs come and go


def test_what_is_missing_is_known_only_of_engines_that_state_something_and_show_what_they_hold():
    card = Card(90.0)
    assert missing_on(card, [(STATED, None), (Statement(), 3.0)]) is None
    assert missing_on(Card(None), [(STATED, 10.0)]) is None
    assert missing_on(card, [(STATED, 70.0), (Statement(), 3.0)]) == 0
    assert missing_on(card, [(STATED, 6.0), (STATED, 16.0)]) == 60 + 50
    assert missing_on(Card(5.0), [(STATED, 70.0)]) == 61  # more than the whole card has in use is not believed, either


def test_a_contradicted_statement_without_process_figures_explains_nothing():
    assert amounts(Card(12.0), (STATED, None)) == {"unexplained": 12}


def test_a_pool_with_unknown_usage_is_not_split():
    assert amounts(Card(70.0, other=0.0), (Statement(weights=16.0, kv_pool=50.0), 69.0)) == {
        "weights": 16, "kv_pool": 50, "rest": 3, "other": 0, "unexplained": 1
    }  # fmt: skip


def test_an_empty_pool_is_free_and_not_absent():
    idle = Statement(weights=16.0, kv_pool=50.0, kv_usage=0.0)
    assert amounts(Card(70.0), (idle, 69.0))["kv_used"] == 0


def test_what_an_engine_leaves_unsaid_is_not_called_context_while_a_large_part_is_missing():
    assert amounts(Card(70.0), (Statement(kv_pool=50.0, kv_usage=0.5), 69.0)) == {
        "kv_used": 25, "kv_free": 25, "engine": 19, "unexplained": 1
    }  # fmt: skip


def test_an_engine_without_statements_is_one_piece():
    assert amounts(Card(70.0, other=5.0), (Statement(), 60.0)) == {"engine": 60, "other": 5, "unexplained": 5}


def test_an_engine_without_statements_and_figures_is_not_invented():
    assert amounts(Card(70.0), (Statement(), None)) == {"unexplained": 70}


def test_two_engines_on_one_gpu_add_up():
    small = Statement(weights=2.0, kv_pool=10.0, kv_usage=0.5)
    parts = amounts(Card(90.0), (STATED, 73.0), (small, 13.0))
    assert parts["weights"] == 18
    assert parts["kv_used"] == 45
    assert parts["rest"] == 2 + 1
    assert parts["unexplained"] == 4


def test_an_engine_whose_figures_are_hidden_gets_what_the_visible_ones_leave():
    small = Statement(weights=2.0, kv_pool=10.0)
    parts = amounts(Card(90.0), (small, None), (STATED, 73.0))
    assert parts["weights"] == 18
    assert parts["kv_pool"] == 10
    assert parts["unexplained"] == 90 - 73 - 12


def test_nothing_known_is_nothing_divided():
    assert amounts(Card(None, 0.5, 4.5, 1.0), (STATED, None)) == {}
    assert amounts(Card(10.0)) == {"unexplained": 10}
