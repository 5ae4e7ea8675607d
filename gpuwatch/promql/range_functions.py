"""Functions of a range vector, over all series of a window at once.

Semantics: Prometheus' promql/functions.go. Each function takes the samples of one time axis and returns a value per
series and which series have one (None: all). Range functions there add up with compensated (Kahan) sums; here the sum
is numpy's, or exact where cancellation would show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gpuwatch.store import may_have_nan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gpuwatch.promql.labels import Floats, Mask
    from gpuwatch.promql.select import Samples

Result: TypeAlias = "tuple[Floats, Mask | None]"
RangeFunction: TypeAlias = "Callable[[Samples, Sequence[float]], Result]"

_NOTHING = np.empty(0)

_CANCELLED = 2.0**-52 / 1e-11
"""A plain sum is trusted where the sum of magnitudes times this is below the sum itself."""

_ALMOST = 1.1
"""A gap to the edge of up to this many mean spacings is bridged when a rate is extrapolated."""


def extrapolated(*, counter: bool, per_second: bool, left_open: bool, window: int) -> RangeFunction:
    """Return rate, increase or delta over a `window` in milliseconds.

    The difference of the last and first sample, plus what counter resets lost, scaled up to the edges of the window.
    Prometheus 2 (not `left_open`) bounds the extrapolation of a counter by zero before it limits it to half a
    spacing, Prometheus 3 after.
    """
    seconds = window / 1000 if per_second else 1.0

    def function(samples: Samples, _: Sequence[float]) -> Result:
        parts = _dense_parts(samples) if samples.ok is None else _sparse_parts(samples, samples.ok)
        if parts is None:
            return _NOTHING, np.zeros(len(samples.data), dtype=np.bool_)
        change = parts.last - parts.first
        if parts.keep is None and not np.count_nonzero(change) and np.array_equal(parts.before, parts.after):
            return change, None
        if counter:
            fallen = parts.after < parts.before
            if np.count_nonzero(fallen):
                fallen = fallen if parts.both is None else fallen & parts.both
                change = change + np.where(fallen, parts.before, 0.0).sum(axis=1)
        to_start: float | Floats = (parts.first_time - samples.start) / 1000
        to_end = (samples.end - parts.last_time) / 1000
        covered = (parts.last_time - parts.first_time) / 1000
        spacing = covered / parts.intervals
        if left_open:
            to_start = _bridged(to_start, spacing)
        if counter:
            to_zero = covered * (parts.first / change)
            bounded = (change > 0) & (parts.first >= 0) & (to_zero < to_start)
            if np.count_nonzero(bounded):
                to_start = np.where(bounded, to_zero, to_start)
        if not left_open:
            to_start = _bridged(to_start, spacing)
        return change * ((covered + to_start + _bridged(to_end, spacing)) / covered / seconds), parts.keep

    return function


@dataclass(frozen=True, slots=True)
class _Parts:
    """First and last sample of each series with their times, neighbouring samples, and who has two samples."""

    first: Floats
    last: Floats
    first_time: Any
    last_time: Any
    intervals: Any
    before: Floats
    after: Floats
    both: Mask | None
    keep: Mask | None


def _dense_parts(samples: Samples) -> _Parts | None:
    """Return the parts where every series has every sample: times are plain numbers."""
    data, times = samples.data, samples.times
    intervals = data.shape[1] - 1
    if not intervals:
        return None
    first_time, last_time = float(times[0]), float(times[-1])
    return _Parts(
        data[:, 0], data[:, -1], first_time, last_time, intervals, data[:, :-1], data[:, 1:], both=None, keep=None
    )


def _sparse_parts(samples: Samples, ok: Mask) -> _Parts:
    """Return the parts where series differ in what they have: times are arrays."""
    data, rows = samples.data, np.arange(len(samples.data))
    begin, end, counts = _ends(ok)
    before, after, both = _pairs(samples)
    return _Parts(
        data[rows, begin],
        data[rows, end],
        samples.times[begin].astype(float),
        samples.times[end].astype(float),
        np.maximum(counts - 1, 1),
        before,
        after,
        both,
        counts >= 2,
    )


def _bridged(gap: Any, spacing: Any) -> Any:
    """Return how far to extrapolate over a gap to the edge: all of it when it is short, else half a spacing."""
    if isinstance(gap, float) and isinstance(spacing, float):
        return spacing / 2 if gap >= spacing * _ALMOST else gap
    return np.where(gap >= spacing * _ALMOST, spacing / 2, gap)


def instantaneous(*, per_second: bool) -> RangeFunction:
    """Return irate (a counter's per-second rate between the last two samples) or idelta (their difference)."""

    def function(samples: Samples, _: Sequence[float]) -> Result:
        data, times, ok = samples.data, samples.times, samples.ok
        rows = np.arange(len(data))
        keep: Mask | None = None
        if ok is None:
            if data.shape[1] < 2:
                return _NOTHING, np.zeros(len(data), dtype=np.bool_)
            last: NDArray[np.intp] = np.full(len(data), data.shape[1] - 1)
            previous = last - 1
        else:
            ends = _ends(ok)
            last, counts = ends[1], ends[2]
            keep = counts >= 2
            earlier = ok.copy()
            earlier[rows, last] = False
            previous = _ends(earlier)[1]
        before, after = data[rows, previous], data[rows, last]
        if not per_second:
            return after - before, keep
        return np.where(after < before, after, after - before) / ((times[last] - times[previous]) / 1000), keep

    return function


def sum_over_time(samples: Samples, _: Sequence[float]) -> Result:
    """Add up the samples of each series."""
    data = samples.data if samples.ok is None else np.where(samples.ok, samples.data, 0.0)
    return exact_sums(data), None


def avg_over_time(samples: Samples, _: Sequence[float]) -> Result:
    """Return the mean of each series; does not overflow where the mean is finite."""
    data, ok = samples.data, samples.ok
    counts = data.shape[1] if ok is None else ok.sum(axis=1)
    filled = data if ok is None else np.where(ok, data, 0.0)
    means = exact_sums(filled) / counts
    infinite = ~np.isfinite(means)
    if infinite.any():
        scaled = (filled / np.asarray(counts).reshape(-1, 1)).sum(axis=1)
        means = np.where(infinite & np.isfinite(filled).all(axis=1), scaled, means)
    return means, None


def exact_sums(data: Floats) -> Floats:
    """Return the sum of each row, exactly rounded where terms cancel."""
    sums: Floats = data.sum(axis=1)
    doubtful = np.abs(data).sum(axis=1) * _CANCELLED > np.abs(sums)
    if doubtful.any():
        for row in np.nonzero(doubtful & np.isfinite(sums))[0]:
            sums[row] = exact_sum(data[row], sums[row])
    return sums


def exact_sum(values: Floats, plain: float) -> float:
    """Return the sum of `values`, exactly rounded; `plain` where that overflows on the way."""
    try:
        return math.fsum(values)
    except OverflowError:
        return plain


def extreme(*, highest: bool) -> RangeFunction:
    """Return min_over_time or max_over_time; NaN counts only where there is nothing else."""
    reduce = np.fmax.reduce if highest else np.fmin.reduce

    def function(samples: Samples, _: Sequence[float]) -> Result:
        data = samples.data if samples.ok is None else np.where(samples.ok, samples.data, np.nan)
        return reduce(data, axis=1), None

    return function


def count_over_time(samples: Samples, _: Sequence[float]) -> Result:
    """Count the samples of each series."""
    if samples.ok is None:
        return np.full(len(samples.data), float(samples.data.shape[1])), None
    return samples.ok.sum(axis=1).astype(float), None


def last_over_time(samples: Samples, _: Sequence[float]) -> Result:
    """Return the newest sample of each series."""
    if samples.ok is None:
        return samples.data[:, -1].copy(), None
    return samples.data[np.arange(len(samples.data)), _ends(samples.ok)[1]], None


def present_over_time(samples: Samples, _: Sequence[float]) -> Result:
    """Return 1 for each series."""
    return np.ones(len(samples.data)), None


def changes(samples: Samples, _: Sequence[float]) -> Result:
    """Count how often the value differs from the one before."""
    before, after, both = _pairs(samples)
    differs = (after != before) & ~(np.isnan(after) & np.isnan(before))
    return (differs if both is None else differs & both).sum(axis=1).astype(float), None


def resets(samples: Samples, _: Sequence[float]) -> Result:
    """Count how often the value is lower than the one before."""
    before, after, both = _pairs(samples)
    lower = after < before
    return (lower if both is None else lower & both).sum(axis=1).astype(float), None


def deriv(samples: Samples, _: Sequence[float]) -> Result:
    """Return the slope per second of the least-squares line."""
    return _line(samples, None)[0], _two(samples)


def predictor(time: int) -> RangeFunction:
    """Return predict_linear at `time` (milliseconds): the least-squares line, `args[0]` seconds from then."""

    def function(samples: Samples, args: Sequence[float]) -> Result:
        slope, intercept = _line(samples, time)
        return slope * args[0] + intercept, _two(samples)

    return function


def deviation(*, root: bool) -> RangeFunction:
    """Return stddev_over_time or stdvar_over_time, of the whole population."""

    def function(samples: Samples, _: Sequence[float]) -> Result:
        data, ok = samples.data, samples.ok
        shifted = data - _first(samples)[:, None]
        if ok is None:
            variance = np.mean((shifted - shifted.mean(axis=1, keepdims=True)) ** 2, axis=1)
        else:
            counts = ok.sum(axis=1)
            shifted = np.where(ok, shifted, 0.0)
            centred = np.where(ok, shifted - (shifted.sum(axis=1) / counts)[:, None], 0.0)
            variance = (centred**2).sum(axis=1) / counts
        return np.sqrt(variance) if root else variance, None

    return function


def quantile_over_time(samples: Samples, args: Sequence[float]) -> Result:
    """Return the quantile `args[0]` of each series."""
    if samples.ok is None and not may_have_nan(samples.data):
        return sorted_quantile(args[0], np.sort(samples.data, axis=1)), None
    rows = list(samples.data)
    if samples.ok is not None:
        rows = [row[ok] for row, ok in zip(rows, samples.ok, strict=True)]
    return np.array([quantile(args[0], row) for row in rows]), None


def quantile(q: float, values: Floats) -> float:
    """Return the quantile `q` of at least one value; NaN sorts first."""
    nans = int(np.isnan(values).sum())
    ordered = np.roll(np.sort(values), nans)
    return float(sorted_quantile(q, ordered[None, :])[0])


def sorted_quantile(q: float, ordered: Floats) -> Floats:
    """Return the quantile `q` of each row of sorted values, linear between neighbours; outside 0 to 1 infinite."""
    if math.isnan(q):
        return np.full(len(ordered), np.nan)
    if not 0 <= q <= 1:
        return np.full(len(ordered), -np.inf if q < 0 else np.inf)
    count = ordered.shape[1]
    rank = q * (count - 1)
    lower = math.floor(rank)
    upper = min(count - 1, lower + 1)
    weight = rank - lower
    return np.asarray(ordered[:, lower] * (1 - weight) + ordered[:, upper] * weight)


def _ends(ok: Mask) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int_]]:
    """Return the places of the first and last sample of each row, and the number of samples."""
    return ok.argmax(axis=1), ok.shape[1] - 1 - ok[:, ::-1].argmax(axis=1), ok.sum(axis=1)


def _first(samples: Samples) -> Floats:
    if samples.ok is None:
        return np.asarray(samples.data[:, 0])
    return np.asarray(samples.data[np.arange(len(samples.data)), samples.ok.argmax(axis=1)])


def _two(samples: Samples) -> Mask | None:
    if samples.ok is not None:
        return np.asarray(samples.ok.sum(axis=1) >= 2)
    return None if samples.data.shape[1] >= 2 else np.zeros(len(samples.data), dtype=np.bool_)


def _pairs(samples: Samples) -> tuple[Floats, Floats, Mask | None]:
    """Return each sample but the last and the one after it, and where both exist (None: everywhere)."""
    if samples.ok is None:
        return samples.data[:, :-1], samples.data[:, 1:], None
    place = np.maximum.accumulate(np.where(samples.ok, np.arange(samples.ok.shape[1]), 0), axis=1)
    filled = samples.data[np.arange(len(samples.data))[:, None], place]
    seen = np.logical_or.accumulate(samples.ok, axis=1)
    return filled[:, :-1], filled[:, 1:], seen[:, :-1]


def _line(samples: Samples, origin: int | None) -> tuple[Floats, Floats]:
    """Return slope per second and value at `origin` (None: the first sample) of the least-squares line.

    Values are taken relative to the first one, which makes a constant series exactly flat; a constant infinite one
    has no line.
    """
    data, times, ok = samples.data, samples.times, samples.ok
    level = _first(samples)
    if ok is None:
        weight = np.ones((1, data.shape[1]))
        start = times[0]
    else:
        weight = ok.astype(float)
        start = times[ok.argmax(axis=1)][:, None]
    y = (data - level[:, None]) if ok is None else np.where(ok, data - level[:, None], 0.0)
    x = weight * ((times - (start if origin is None else origin)) / 1000)
    count = weight.sum(axis=1)
    mean_x, mean_y = x.sum(axis=1) / count, y.sum(axis=1) / count
    from_mean = weight * (x - mean_x[:, None])
    slope = (from_mean * y).sum(axis=1) / (from_mean**2).sum(axis=1)
    return slope, level + (mean_y - slope * mean_x)
