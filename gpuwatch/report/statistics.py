"""Whether two runs differ: standard errors that know of autocorrelation, and Student's t without a further library.

A run is cut into windows, and neighbouring windows resemble each other. The standard error of a figure is therefore
that of a circular moving-block bootstrap (Politis and Romano 1992): blocks of neighbouring windows are drawn, as long
as the autocorrelation lasts. As degrees of freedom count the blocks that fit into the run, less one. Where few of them
fit, shorter blocks are drawn, and the variance is raised by as much as they are shorter: it grows at most so fast with
the length of a block, so the interval is rather too wide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

DRAWS = 1000
SEED = 20240229
ENOUGH_BLOCKS = 5
"""Blocks that are drawn at least; where fewer independent ones fit into the run, they are shorter."""
FEWEST_BLOCKS = 2.5
"""A run with fewer independent blocks of windows than this says nothing about its own spread."""
SURE_DRAWS = 0.975
"""A figure is infinite for sure where so many draws are."""
FARTHEST_SHARE = math.log(100)
WIDEST_SHARE = math.log(10)
"""Beyond a hundredfold, or bounds a factor of ten from it, a difference as a share of the first value says nothing.

Nor do bounds in the figure's unit that are farther from it than the larger value: then there are none.
"""
_SAME = 1e-9
"""Values that differ by less than this part are the same."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its standard error and degrees of freedom. `error` None: too short to say.

    An infinite figure lies above all that was measured; its error is 0 where nearly all draws of the run say so.
    """

    value: float
    error: float | None
    freedom: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a second estimate differs from a first one; `low` and `high` bound the difference with 95 % confidence.

    `relative` says that difference and bounds are shares of the first value. Both values allow it when positive, and
    where it says something: not where one is nearly nothing, nor where hardly anything bounds it.
    `p` is the chance of a difference at least as large where there is none. None: too short to say, or scattered too
    much to bound it.
    """

    difference: float
    relative: bool
    low: float | None = None
    high: float | None = None
    p: float | None = None


def autocorrelation_time(values: Sequence[float]) -> float:
    """Return over how many windows values stay alike: 1 for independent ones.

    That is 1 + 2 Σ r(lag) over the autocorrelations r, summed until the lag is five times the sum (Sokal's window).
    """
    series = np.asarray(values, dtype=np.float64)
    count = len(series)
    if count < 4 or np.ptp(series) <= _SAME * np.abs(series).max():
        return 1.0
    series = series - series.mean()
    power = float(series @ series)
    time = 1.0
    for lag in range(1, count // 2):
        time += 2 * float(series[:-lag] @ series[lag:]) / power
        if lag >= 5 * time:
            break
    return max(1.0, time)


def block_length(values: Sequence[float]) -> int:
    """Return the windows in a block of the bootstrap: n^(1/3), or three times the autocorrelation time if longer."""
    count = len(values)
    if count < 2:
        return 1
    longest = max(math.pow(count, 1 / 3), 3 * autocorrelation_time(values))
    return max(1, min(count, math.ceil(longest)))


def estimate(
    columns: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]], length: int
) -> Estimate | None:
    """Return a statistic of summed windows with its standard error, or None where it has no value.

    Args:
        columns: What each window adds to the sums, of shape (windows, sums).
        statistic: Maps sums of shape (draws, sums) to values of shape (draws,); NaN where it has none.
        length: Windows in a block.
    """
    count = len(columns)
    if count == 0:
        return None
    value = float(statistic(columns.sum(axis=0, keepdims=True))[0])
    if math.isnan(value):
        return None
    blocks = count / length
    if blocks < FEWEST_BLOCKS:
        return Estimate(value, None, 0.0)
    wanted, length = length, min(length, max(1, count // ENOUGH_BLOCKS))
    drawn_blocks = count / length
    number = math.ceil(drawn_blocks)
    generator = np.random.default_rng(SEED)
    starts = generator.integers(0, count, size=(DRAWS, number))
    wrapped = np.concatenate([np.zeros((1, columns.shape[1])), np.cumsum(np.concatenate([columns, columns]), axis=0)])
    of_block = wrapped[length : count + length] - wrapped[:count]
    drawn = statistic(of_block[starts].sum(axis=1) * (count / (number * length)))
    if math.isinf(value):
        sure = float((drawn == value).mean()) >= SURE_DRAWS
        return Estimate(value, 0.0 if sure else None, blocks - 1 if sure else 0.0)
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) < DRAWS * 0.9:
        return Estimate(value, None, 0.0)
    # A bootstrap of few blocks is too narrow by the factor of a variance that divides by n.
    error = float(drawn.std()) * math.sqrt(drawn_blocks / (drawn_blocks - 1) * wanted / length)
    return Estimate(value, error, blocks - 1)


def compare(first: Estimate, second: Estimate) -> Comparison:
    """Return how `second` differs from `first`: as a ratio on a logarithmic scale where both allow it.

    Where one of the two is infinite, so is the difference, and nothing is known about its bounds.
    """
    if math.isinf(first.value) or math.isinf(second.value):
        return Comparison(second.value - first.value, relative=False)
    if min(first.value, second.value) <= 0:
        return _held_against(first, second, relative=False)
    known = _held_against(first, second, relative=True)
    far = abs(math.log1p(known.difference)) > FARTHEST_SHARE
    wide = known.high is not None and math.log1p(known.high) - math.log1p(known.difference) > WIDEST_SHARE
    if not far and not wide:
        return known
    absolute = _held_against(first, second, relative=False)
    if absolute.high is not None and absolute.high - absolute.difference > max(first.value, second.value):
        return replace(absolute, low=None, high=None)
    return absolute


def _held_against(first: Estimate, second: Estimate, *, relative: bool) -> Comparison:
    """Return the comparison of two finite estimates, on a logarithmic scale where `relative`."""
    if relative:
        difference = math.log(second.value / first.value)
        scale = (first.value, second.value)
    else:
        difference = second.value - first.value
        scale = (1.0, 1.0)
    shown = math.expm1(difference) if relative else difference
    if first.error is None or second.error is None:
        return Comparison(shown, relative)
    parts = ((first.error / scale[0]) ** 2, (second.error / scale[1]) ** 2)
    error = math.sqrt(sum(parts))
    if error == 0:
        return Comparison(shown, relative, shown, shown, 1.0 if difference == 0 else 0.0)
    # Welch and Satterthwaite's degrees of freedom.
    freedom = sum(parts) ** 2 / sum(
        part**2 / known for part, known in zip(parts, (first.freedom, second.freedom), strict=True)
    )
    reach = t_quantile(0.975, freedom) * error
    low, high = difference - reach, difference + reach
    p = 2 * (1 - t_probability(abs(difference) / error, freedom))
    if relative:
        low, high = math.expm1(low), math.expm1(min(high, 700.0))
    return Comparison(shown, relative, low, high, p)


def holm(chances: Sequence[float]) -> tuple[float, ...]:
    """Return p-values raised for their number (Holm 1979), in the order given."""
    order = sorted(range(len(chances)), key=lambda index: chances[index])
    raised = [0.0] * len(chances)
    highest = 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - place) * chances[index]))
        raised[index] = highest
    return tuple(raised)


def t_probability(value: float, freedom: float) -> float:
    """Return the chance that Student's t with `freedom` degrees is at most `value`."""
    tail = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + value * value))
    return 1 - tail if value >= 0 else tail


def t_quantile(chance: float, freedom: float) -> float:
    """Return the value that Student's t with `freedom` degrees stays below with `chance`, 0.5 or more."""
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < chance:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, freedom) < chance else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > 1e-300 else 1e-300)
    fraction = d
    for m in range(1, 300):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            d = 1 / (d if abs(d) > 1e-300 else 1e-300)
            c = 1 + term / c
            c = c if abs(c) > 1e-300 else 1e-300
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction / a
