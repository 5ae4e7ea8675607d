"""The newest values of all series as metric families, in one fixed order: that of the vocabulary."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpuwatch.model import NAME, name_of
from gpuwatch.series import METRICS
from gpuwatch.store import HOLE_BITS, STALE_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpuwatch.model import Labels
    from gpuwatch.series import Metric
    from gpuwatch.store import Column

_HISTOGRAM_PARTS = ("_bucket", "_count", "_sum")
_ORDER = {name: place for place, name in enumerate(METRICS)}
_SortKey: TypeAlias = "tuple[int, tuple[tuple[str, str], ...], int, float]"


@dataclass(frozen=True, slots=True)
class Row:
    """One series on a page: its family, full name, labels without the name, and its place among all values."""

    metric: Metric
    name: str
    labels: tuple[tuple[str, str], ...]
    place: int


def family_of(name: str) -> Metric | None:
    """Return the family of the vocabulary that the series `name` belongs to, or None."""
    metric = METRICS.get(name)
    if metric is not None:
        return metric
    base, _, part = name.rpartition("_")
    metric = METRICS.get(base)
    return metric if metric is not None and metric.kind == "histogram" and f"_{part}" in _HISTOGRAM_PARTS else None


def unit_of(metric: Metric) -> str:
    """Return the unit of a family where its name ends in it, as OpenMetrics demands; else the empty string."""
    base = metric.name.removesuffix("_total")
    return metric.unit if metric.unit and base.endswith("_" + metric.unit) else ""


class Arrangement:
    """The rows of a set of columns, worked out again only when a series comes or goes.

    Only series of the vocabulary are on a page: what rules record and alert is the business of whoever evaluates
    them. Free places, ended series and those that have not begun are left out.
    """

    def __init__(self) -> None:
        self.rows: tuple[Row, ...] = ()
        self.version = 0
        """Grows when `rows` change."""
        self._labels: list[tuple[Labels | None, ...]] = []
        self._alive: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
        self._places: NDArray[np.intp] = np.empty(0, dtype=np.intp)

    def values(self, columns: Sequence[Column]) -> NDArray[np.float64]:
        """Return the values of `rows`, in their order, after bringing `rows` up to date."""
        everything = np.concatenate([column.values for column in columns]) if columns else np.empty(0)
        bits = everything.view(np.uint64)
        alive = (bits != STALE_BITS) & (bits != HOLE_BITS)
        labels = [column.labels for column in columns]
        same = len(labels) == len(self._labels) and all(map(operator.is_, labels, self._labels))
        if not same or not np.array_equal(alive, self._alive):
            self._labels, self._alive = labels, alive
            self._arrange()
        picked: NDArray[np.float64] = everything[self._places]
        return picked

    def _arrange(self) -> None:
        rows: list[tuple[_SortKey, Row]] = []
        keys = (key for labels in self._labels for key in labels)
        for place, (key, alive) in enumerate(zip(keys, self._alive.tolist(), strict=True)):
            if key is None or not alive:
                continue
            name = name_of(key)
            metric = family_of(name)
            if metric is not None:
                labels = tuple((label, _printable(value)) for label, value in key if label != NAME)
                rows.append((_sort_key(metric, name, labels), Row(metric, name, labels, place)))
        rows.sort(key=lambda item: item[0])
        self.rows = tuple(row for _, row in rows)
        self._places = np.fromiter((row.place for row in self.rows), dtype=np.intp, count=len(self.rows))
        self.version += 1


def _printable(value: str) -> str:
    """Return a label value that UTF-8 can carry: a file name need not be text."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _sort_key(metric: Metric, name: str, labels: tuple[tuple[str, str], ...]) -> _SortKey:
    place = _ORDER[metric.name]
    if metric.kind != "histogram":
        return place, labels, 0, 0.0
    group = tuple(pair for pair in labels if pair[0] != "le")
    part = _HISTOGRAM_PARTS.index(name[len(metric.name) :])
    bound = dict(labels).get("le", "+Inf")
    try:
        number = float(bound)
    except ValueError:
        number = math.inf
    return place, group, part, number
