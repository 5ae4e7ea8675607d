"""Prediction, statement and measurement of a GPU's memory side by side, and why there is no what-if."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.tui.view.engines import Engine, engines
from gpuwatch.tui.view.gpus import Gpu, gpus
from gpuwatch.tui.view.ledger import compared, parts_of, what_if
from tests.unit.tui import scenes

STATED = {"weights": 16.0, "kv_cache_bytes": 50.0, "activation_peak": 3.0, "graph_bytes": 2.0}
PREDICTED = {"weights": 15.0, "kv_pool": 52.0, "work": 6.0, "rest": 1.0}
DIVIDED = {"weights": 16, "kv_used": 40, "kv_free": 10, "work": 5, "rest": 2, "unexplained": 1}


def engine(server="a:1", stated=STATED, predicted=PREDICTED):
    return Engine(("h", server), "h", server, "vllm", figures=stated, predicted=predicted)


def gpu(parts, *servers):
    held = tuple(("h", server, None) for server in servers or ("a:1",))
    return Gpu(("h", "u"), "h", "0", "u", "GPU", parts=parts_of(parts), engines=held)


def rows(card, *engines):
    found = compared(card, engines)
    return {kind: (row.measured, row.stated, row.predicted, row.differs) for kind, row in found.items()}


def test_the_parts_stand_side_by_side_and_the_pool_as_a_whole():
    assert rows(gpu(DIVIDED), engine()) == {
        "weights": (16, 16, 15, 1),
        "kv_pool": (50, 50, 52, -2),
        "work": (5, 5, 6, -1),
        "rest": (2, None, 1, 1),
    }


def test_without_a_prediction_only_statements_are_there():
    assert rows(gpu(DIVIDED), engine(predicted={}))["weights"] == (16, 16, None, None)
    assert "rest" not in rows(gpu(DIVIDED), engine(predicted={}))


def test_what_an_engine_holds_without_a_word_stands_beside_all_that_was_predicted_for_it():
    found = rows(gpu({"kv_pool": 50, "engine": 25}), engine(stated={"kv_cache_bytes": 50.0}))
    assert found["engine"] == (25, None, 15 + 6 + 1, 3)
    assert found["kv_pool"] == (50, 50, 52, -2)
    assert found["weights"] == (None, None, 15, None)


def test_two_engines_on_a_card_add_up_and_one_that_is_silent_leaves_the_part_open():
    shared = gpu({"weights": 18, "kv_pool": 60}, "a:1", "b:2")
    other = engine("b:2", {"weights": 2.0}, {"weights": 2.5, "kv_pool": 10.0})
    found = rows(shared, engine(), other)
    assert found["weights"] == (18, 18, 17.5, 0.5)
    assert found["kv_pool"] == (60, None, 62, -2)
    assert "rest" not in found


def test_engines_of_other_cards_do_not_count():
    assert rows(gpu(DIVIDED), engine(), engine("b:2"))["weights"] == (16, 16, 15, 1)
    assert rows(gpu({"unexplained": 70}, "c:3"), engine()) == {}


def live(snapshot):
    return what_if(snapshot, engines(snapshot)[0], gpus(snapshot))


def test_what_changes_buy_is_computed_from_the_launch_and_the_pool_that_was_stated():
    found = live(scenes.predicted())
    assert found.lacks == ""
    assert found.context == 40960  # what the model is made for, longer than the 4,096 it was launched with
    # 36 GiB hold so many requests of 40,960 tokens of 128 KiB on each of two cards
    assert found.now == pytest.approx(36 * 2**30 / (40960 * 131072), rel=0.001)
    assert found.rows[0].max_concurrency == pytest.approx(2 * found.now, rel=0.001)


@pytest.mark.parametrize(
    ("without", "lacks"),
    [
        ("model", "the model's config.json"),
        ("version", "its version"),
    ],
)
def test_what_is_lacking_is_named(without, lacks):
    facts = tuple(fact for fact in scenes.LAUNCHED if fact.key != without)
    whole = scenes.predicted()
    answers = {name: answer for name, answer in whole.answers.items() if name != "engine_info"}
    assert live(replace(whole, facts=facts, answers=answers)).lacks == lacks
