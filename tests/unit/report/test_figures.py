from __future__ import annotations

import math

import pytest
from unit.report.runs import START, window

from gpuwatch.report.data import Histogram, Window
from gpuwatch.report.figures import added_seconds, at_most, for_plot, levels, mean, merged, quantile, rate, told

INF = math.inf


@pytest.mark.parametrize(
    ("share", "bounds", "counts", "value"),
    [
        (0.5, (1.0, 2.0, INF), (10, 20, 20), 1.0),  # the tenth of twenty is the last one of the first bucket
        (0.75, (1.0, 2.0, INF), (10, 20, 20), 1.5),  # half way through the second bucket
        (0.25, (1.0, 2.0, INF), (10, 20, 20), 0.5),  # the first bucket starts at 0
        (0.95, (1.0, 2.0, INF), (10, 20, 40), INF),  # in the last bucket nothing is known but that it is above 2
        (0.5, (1.0, 2.0, 4.0, INF), (0, 0, 8, 8), 3.0),  # empty buckets below hold nothing
        (0.5, (1.0, INF), (0, 0), None),
    ],
)
def test_a_quantile_is_that_of_prometheus(share, bounds, counts, value):
    assert quantile(share, Histogram(bounds, counts)) == value


@pytest.mark.parametrize(
    ("share", "counts", "bound"),
    [
        (0.95, (40, 40, 40), 0.3),  # all in the first bucket: it says no more than its end
        (0.95, (38, 40, 40), 0.3),  # 38 of 40 are 95 %
        (0.95, (37, 40, 40), None),
        (0.5, (0, 0, 0), None),
    ],
)
def test_a_quantile_in_the_first_bucket_is_known_to_be_no_higher_than_its_end(share, counts, bound):
    histogram = Histogram((0.3, 0.5, INF), counts)
    assert at_most(share, histogram) == bound
    assert (told(share, histogram) is None) == (bound is not None or not counts[-1])
    assert at_most(share, Histogram((INF,), (4,))) is None


def test_a_mean_of_nothing_is_unknown():
    assert mean(Histogram((1.0, INF), (0, 0), 0.0)) is None
    assert mean(Histogram((1.0, INF), (2, 4), 3.0)) == 0.75


def test_joined_windows_add_up_and_weigh_by_time():
    first = Window(START, START + 1000, 2.0, None, None, {"finished": 3.0}, {})
    second = Window(START + 1000, START + 4000, 6.0, 1.0, None, {"finished": 5.0}, {})
    both = merged([first, second])
    assert (both.start, both.end, both.running, both.waiting, both.kv_usage) == (START, START + 4000, 5.0, 1.0, None)
    assert both.counted == {"finished": 8.0}
    assert rate(both, "finished") == 2.0
    assert rate(both, "preemptions") is None
    assert merged([]) is None


def test_points_of_a_plot_are_at_least_ten_seconds_and_at_most_about_120():
    short = for_plot([window(number, seconds=2) for number in range(20)])
    assert {point.seconds for point in short} == {10}
    long = for_plot([window(number, seconds=5) for number in range(720)])
    assert 100 <= len(long) <= 125
    assert added_seconds(long) == 3600


def test_levels_are_powers_of_two_and_rates_belong_to_their_own_time():
    windows = [
        window(number, running=running, rate=100.0 * running) for number, running in enumerate((1, 3, 4, 8, 0, 1))
    ]
    found = levels(windows)
    assert [(level.text, level.seconds) for level in found] == [("1", 10), ("3-4", 10), ("5-8", 5)]
    assert [level.rate("generation_tokens") for level in found] == [100, 350, 800]
    assert [level.running for level in found] == [1, 3.5, 8]


def test_a_level_that_hardly_lasted_is_left_out():
    assert levels([window(0, running=4, seconds=2)]) == ()
