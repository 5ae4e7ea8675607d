from __future__ import annotations

import math

import numpy as np
import pytest

from gpuwatch.report.statistics import (
    Estimate,
    autocorrelation_time,
    block_length,
    compare,
    estimate,
    holm,
    t_probability,
    t_quantile,
)


def ratio(sums):
    return sums[:, 0] / sums[:, 1]


def columns(values):
    return np.stack([np.asarray(values, dtype=float), np.ones(len(values))], axis=1)


def series(seed, count, alike, level=100.0):
    """An AR(1) course around `level` with a scatter of 15 %: neighbours correlate by `alike`."""
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=count + 50)
    values = np.zeros(count + 50)
    for index in range(1, len(values)):
        values[index] = alike * values[index - 1] + noise[index] * math.sqrt(1 - alike**2)
    return level * (1 + 0.15 * values[50:])


# Student's table: the 97.5 % quantile.
@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)]
)
def test_quantiles_of_t_are_those_of_the_table(freedom, value):
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=0.0006)
    assert t_probability(-value, freedom) == pytest.approx(0.025, abs=0.0001)


def test_t_with_one_degree_is_cauchy():
    for value in (-3.0, -0.5, 0.0, 1.0, 20.0):
        assert t_probability(value, 1) == pytest.approx(0.5 + math.atan(value) / math.pi, abs=1e-12)


def test_raised_p_values_are_those_of_holm():
    # The least is multiplied by 3, the next by 2, the last by 1, and none falls below the one before.
    assert holm([0.03, 0.01, 0.04]) == pytest.approx((0.06, 0.03, 0.06))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


def test_the_autocorrelation_time_of_a_course_is_that_of_theory():
    assert autocorrelation_time(series(1, 20_000, 0.0)) == pytest.approx(1.0, abs=0.15)
    assert autocorrelation_time(series(2, 20_000, 0.8)) == pytest.approx(1.8 / 0.2, rel=0.2)
    assert autocorrelation_time([3.0] * 10) == 1.0


def test_the_standard_error_of_independent_windows_is_sigma_by_root_n():
    values = series(3, 400, 0.0)
    known = estimate(columns(values), ratio, block_length(values))
    assert known.value == pytest.approx(values.mean())
    assert known.error == pytest.approx(values.std() / math.sqrt(400), rel=0.25)


def test_the_standard_error_grows_with_autocorrelation():
    values = series(4, 2000, 0.8)
    known = estimate(columns(values), ratio, block_length(values))
    # The variance of a mean grows by (1 + 0.8) / (1 - 0.8) = 9.
    assert known.error == pytest.approx(3 * values.std() / math.sqrt(2000), rel=0.35)


@pytest.mark.parametrize(("count", "alike"), [(60, 0.0), (200, 0.5), (200, 0.8)])
def test_of_runs_that_do_not_differ_few_seem_to(count, alike):
    seen = 0
    for number in range(60):
        pair = [series([number, which, count], count, alike) for which in (0, 1)]
        known = [estimate(columns(values), ratio, block_length(values)) for values in pair]
        p = compare(*known).p
        seen += p is not None and p < 0.05
    assert seen <= 8  # 5 % would be 3; 8 and more of 60 have a chance of 1.4 %, and the seeds are fixed


def test_of_runs_that_differ_by_a_fifth_nearly_all_show_it():
    seen = 0
    for number in range(30):
        first, second = series([number, 7], 60, 0.0), series([number, 8], 60, 0.0, level=120.0)
        known = [estimate(columns(values), ratio, block_length(values)) for values in (first, second)]
        seen += compare(*known).p < 0.05
    assert seen >= 28


def test_few_long_blocks_are_drawn_shorter_and_the_error_is_raised_by_as_much():
    values = series(5, 60, 0.6)
    long, short = (estimate(columns(values), ratio, length) for length in (20, 12))
    # 60 windows hold 3 blocks of 20; drawn are 5 of 12, of which the variance is raised by 20 / 12.
    assert long.error == pytest.approx(short.error * math.sqrt(20 / 12))
    assert (long.freedom, short.freedom) == (2.0, 4.0)
    assert estimate(columns(values), ratio, 24).error > long.error  # 2.5 blocks
    assert estimate(columns(values), ratio, 25).error is None


def test_two_minutes_of_neighbours_that_are_alike_are_seldom_too_short():
    seen = []
    for number in range(60):
        pair = [series([number, which, 6], 62, 0.6) for which in (0, 1)]
        seen.append(compare(*(estimate(columns(values), ratio, block_length(values)) for values in pair)).p)
    assert sum(p is None for p in seen) <= 2
    assert sum(p is not None and p < 0.05 for p in seen) <= 8  # as for longer runs


def test_too_few_windows_give_a_value_without_an_error():
    known = estimate(columns([100.0, 120.0, 90.0]), ratio, block_length([100.0, 120.0, 90.0]))
    assert (known.value, known.error) == (pytest.approx(310 / 3), None)
    assert compare(known, known).p is None
    assert estimate(np.zeros((0, 2)), ratio, 1) is None


def test_a_difference_is_a_share_of_the_first_value():
    known = compare(Estimate(100.0, 1.0, 30), Estimate(120.0, 1.0, 30))
    assert known.relative
    assert known.difference == pytest.approx(0.2)
    # The error of the logarithm is about √(0.01² + 0.00833²) = 0.0130; t with about 57 degrees is 2.002.
    assert known.low == pytest.approx(1.2 * math.exp(-2.002 * 0.01302) - 1, abs=0.001)
    assert known.high == pytest.approx(1.2 * math.exp(2.002 * 0.01302) - 1, abs=0.001)
    assert known.p < 0.001


def test_where_a_value_is_zero_the_difference_is_absolute():
    known = compare(Estimate(0.0, 0.0, 10), Estimate(0.5, 0.1, 10))
    assert (known.relative, known.difference) == (False, 0.5)
    assert known.low == pytest.approx(0.5 - 2.228 * 0.1, abs=0.001)


def test_where_a_share_would_say_nothing_the_difference_is_absolute():
    # From 16 µs to 235 ms: 14,686 times as much, which is no figure for a change.
    far = compare(Estimate(16e-6, 1e-6, 30), Estimate(0.235, 0.01, 30))
    assert (far.relative, far.difference) == (False, pytest.approx(0.235, abs=1e-4))
    assert far.low == pytest.approx(0.235 - 2.042 * 0.01, abs=1e-3)
    # A standard error of the whole value: 2.086 (20 degrees) of 1.41 of them are a factor of 19, or three times both.
    wide = compare(Estimate(1.0, 1.0, 10), Estimate(1.0, 1.0, 10))
    assert (wide.relative, wide.difference, wide.low, wide.high) == (False, 0.0, None, None)
    assert wide.p == pytest.approx(1.0)
    # Of a small value that scatters and a large one that does not, the difference is bounded by the large one.
    one_sided = compare(Estimate(0.01, 0.02, 10), Estimate(0.5, 0.01, 10))
    assert (one_sided.relative, one_sided.low is None) == (False, False)
    assert compare(Estimate(1.0, 0.9, 10), Estimate(1.0, 0.0, 10)).relative


def test_equal_runs_without_scatter_do_not_differ():
    known = compare(Estimate(5.0, 0.0, 10), Estimate(5.0, 0.0, 10))
    assert (known.difference, known.p) == (0.0, 1.0)
