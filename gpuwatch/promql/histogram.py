"""histogram_quantile over classic histograms.

Semantics: Prometheus' promql/quantile.go. The layout of the buckets is worked out once per set of series; the counts
of all histograms with the same bounds are then interpolated together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuwatch.promql.labels import EMPTY, Floats, Many, Memo, distinct, drop_name
from gpuwatch.promql.select import VectorOp
from gpuwatch.promql.values import Vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuwatch.model import Labels
    from gpuwatch.promql.select import ScalarOp, Scope

_SMALL = 1e-12
"""Counts that differ by less than this, relative to their size, are rounding errors of a sum of rates."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Histograms with equal bounds: where each one's result goes, its buckets as (histogram, bucket) places."""

    results: NDArray[np.intp]
    bounds: Floats
    places: NDArray[np.intp]
    starts: NDArray[np.intp] | None


@dataclass(frozen=True, slots=True)
class _Layouts:
    labels: Many
    parts: tuple[_Layout, ...]


class HistogramQuantileOp(VectorOp):
    """The quantile of each histogram: linear inside the bucket that the rank falls into."""

    __slots__ = ("_exact", "_inner", "_layouts", "_quantile")

    def __init__(self, scope: Scope, q: ScalarOp, inner: VectorOp) -> None:
        super().__init__(scope, inner.sources + q.sources)
        self._inner = inner
        self._quantile = q
        self._layouts: Memo[_Layouts] = Memo(_layouts)
        self._exact = not scope.left_open

    def compute(self, time: int) -> Vector:
        """Interpolate; a histogram without observations or without an infinite bucket gives NaN."""
        vector = self._inner.at(time)
        if not vector.labels:
            return EMPTY
        layouts = self._layouts(vector.labels)
        if not layouts.labels:
            return EMPTY
        values = np.full(len(layouts.labels), np.nan)
        q = self._quantile.at(time)
        for layout in layouts.parts:
            counts = vector.values[layout.places]
            if layout.starts is not None:
                counts = np.add.reduceat(counts, layout.starts, axis=1)
            if not self._exact:
                counts = _without_small_steps(counts)
            values[layout.results] = bucket_quantile(q, layout.bounds, counts)
        return Vector(layouts.labels, values)


def bucket_quantile(q: float, bounds: Floats, counts: Floats) -> Floats:
    """Return the quantile `q` of each row of cumulative `counts` with rising upper `bounds`."""
    rows = len(counts)
    if math.isnan(q):
        return np.full(rows, np.nan)
    if not 0 <= q <= 1:
        return np.full(rows, -np.inf if q < 0 else np.inf)
    if len(bounds) < 2 or bounds[-1] != np.inf:
        return np.full(rows, np.nan)
    counts = np.asarray(np.fmax.accumulate(counts, axis=1))
    total = counts[:, -1]
    rank = q * total
    bucket = np.count_nonzero(counts[:, :-1] < rank[:, None], axis=1)
    at = np.arange(rows)
    below = np.maximum(bucket - 1, 0)
    first = bucket == 0
    low = np.where(first, 0.0, bounds[below])
    under = np.where(first, 0.0, counts[at, below])
    inside = low + (bounds[bucket] - low) * ((rank - under) / (counts[at, bucket] - under))
    if bounds[0] <= 0:
        inside = np.where(first, bounds[0], inside)
    inside = np.where(bucket == len(bounds) - 1, bounds[-2], inside)
    return np.where((total == 0) | np.isnan(total), np.nan, inside)


def _without_small_steps(counts: Floats) -> Floats:
    """Return `counts` with differences between neighbours that are only rounding errors removed."""
    step = np.diff(counts, axis=1)
    small = np.abs(step) < _SMALL * (np.abs(counts[:, 1:]) + np.abs(counts[:, :-1]))
    if not (small & (step != 0)).any():
        return counts
    cleaned: Floats = counts.copy()
    for column in range(1, counts.shape[1]):
        before, now = cleaned[:, column - 1], cleaned[:, column]
        near = np.abs(now - before) < _SMALL * (np.abs(now) + np.abs(before))
        cleaned[:, column] = np.where(near | (now < before), before, now)
    return cleaned


def _layouts(many: Many) -> _Layouts:
    """Group the buckets in `many` by histogram, and the histograms by their bounds."""
    histograms: dict[Labels, list[tuple[float, int]]] = {}
    for place, labels in enumerate(many):
        bound = _bound(labels)
        if bound is not None:
            key = tuple(pair for pair in labels if pair[0] != "le")
            histograms.setdefault(key, []).append((bound, place))
    groups: dict[tuple[float, ...], list[tuple[int, list[int]]]] = {}
    for number, buckets in enumerate(histograms.values()):
        buckets.sort()
        groups.setdefault(tuple(bound for bound, _ in buckets), []).append((number, [at for _, at in buckets]))
    parts = []
    for bounds, members in groups.items():
        unique = sorted(set(bounds))
        starts = None if len(unique) == len(bounds) else np.array([bounds.index(bound) for bound in unique])
        results = np.array([number for number, _ in members], dtype=np.intp)
        places = np.array([places for _, places in members], dtype=np.intp)
        parts.append(_Layout(results, np.array(unique), places, starts))
    return _Layouts(distinct(tuple(map(drop_name, histograms))), tuple(parts))


def _bound(labels: Labels) -> float | None:
    for name, value in labels:
        if name == "le":
            try:
                bound = float(value)
            except ValueError:
                return None
            return None if math.isnan(bound) else bound
    return None
