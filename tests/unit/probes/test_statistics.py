"""Intervals and tests against printed tables and values worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.probes.statistics import Share, by_a_coin, mcnemar, wilson


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        # R 4.3: prop.test(x, n, correct = FALSE)$conf.int; Newcombe, Statistics in Medicine 17 (1998), method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        # By hand: with no miss in 5 the interval begins at 5 / (5 + z²) = 5 / 8.8415.
        (5, 5, 0.5655, 1.0),
        (25, 25, 0.8668, 1.0),
    ],
)
def test_wilson_gives_the_published_intervals(hits, trials, low, high):
    assert wilson(hits, trials) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("hits", "trials"), [(0, 0), (1, 0), (-1, 4), (5, 4)])
def test_wilson_refuses_what_is_no_share(hits, trials):
    with pytest.raises(ValueError, match="trials"):
        wilson(hits, trials)


@given(st.integers(1, 500).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_wilson_holds_the_share_and_is_symmetric(case):
    hits, trials = case
    low, high = wilson(hits, trials)
    assert 0 <= low <= hits / trials <= high <= 1
    assert wilson(trials - hits, trials) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_a_share_without_a_trial_has_no_ratio():
    nothing = Share(0, 0)
    assert (nothing.ratio, nothing.low, nothing.high) == (None, None, None)
    assert str(nothing) == "not measured"


def test_shares_add_up_and_say_their_interval():
    assert Share(2, 5) + Share(3, 5) == Share(5, 10)
    assert str(Share(25, 25)) == "25 of 25 (100 %, 87 to 100 %)"
    assert str(Share(81, 263)) == "81 of 263 (31 %, 26 to 37 %)"


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        (0, 0, 1.0),
        (3, 3, 1.0),
        (5, 0, 2 / 32),  # five the same way: 2 · 0.5⁵
        (0, 6, 2 / 64),
        (8, 1, 2 * (1 + 9) / 512),
        (10, 2, 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_mcnemar_is_the_binomial_chance_of_such_a_split(first, second, p):
    assert mcnemar(first, second) == pytest.approx(p)
    assert mcnemar(second, first) == pytest.approx(p)


def test_mcnemar_refuses_negative_counts():
    with pytest.raises(ValueError, match="questions"):
        mcnemar(-1, 2)


@pytest.mark.parametrize(
    ("hits", "trials", "p"), [(4, 4, 1 / 16), (5, 5, 1 / 32), (7, 8, 9 / 256), (0, 3, 1.0), (0, 0, 1.0)]
)
def test_a_coin_has_the_binomial_chance_of_so_many_right_answers(hits, trials, p):
    assert by_a_coin(hits, trials) == p  # 7 of 8: 8 ways and 1 of 256


def test_a_coin_is_not_right_more_often_than_it_was_tossed():
    with pytest.raises(ValueError, match="4 hits of 3"):
        by_a_coin(4, 3)


def test_less_than_all_is_never_called_all():
    # 3,600 of 3,614 is 99.61 %; Wilson's interval is 99.35 to 99.77 %.
    assert str(Share(3600, 3614)) == "3600 of 3614 (>99 %, 99 to >99 %)"
    assert str(Share(0, 10)) == "0 of 10 (0 %, 0 to 28 %)"
    assert str(Share(10, 10)) == "10 of 10 (100 %, 72 to 100 %)"
