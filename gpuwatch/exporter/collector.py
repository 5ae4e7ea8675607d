"""Our series as a collector of prometheus_client, for programs that have a registry of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from gpuwatch.exporter.families import Arrangement, unit_of
from gpuwatch.series import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatch.series import Metric
    from gpuwatch.store import Column


class GpuwatchCollector(Collector):
    """Yields fresh families at each scrape; nothing is carried over, so that what has ended is not exported.

    Args:
        columns: Returns the newest values; `Exposition.columns` is one. Nothing is exported where it returns nothing.
    """

    def __init__(self, columns: Callable[[], Sequence[Column]]) -> None:
        self._columns = columns

    def describe(self) -> Iterable[Family]:
        """Return every family without samples, so that a registry sees a clash of names when we are registered."""
        return [_family(metric) for metric in METRICS.values()]

    def collect(self) -> Iterable[Family]:
        """Return the families that have a series now, in the order of the vocabulary."""
        arrangement = Arrangement()
        values = arrangement.values(self._columns()).tolist()
        families: dict[str, Family] = {}
        for row, value in zip(arrangement.rows, values, strict=True):
            family = families.get(row.metric.name)
            if family is None:
                family = families[row.metric.name] = _family(row.metric)
            family.add_sample(row.name, dict(row.labels), value)
        return families.values()


def _family(metric: Metric) -> Family:
    name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    return Family(name, metric.help, metric.kind, unit_of(metric))
