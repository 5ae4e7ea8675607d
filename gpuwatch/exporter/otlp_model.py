"""Our families in the data model of the OpenTelemetry SDK. Imports the SDK, so only `otlp` imports this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gpuwatch.exporter.otlp import SCOPE, Rows, Starts, by_family, histograms, unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.exporter.families import Row
    from gpuwatch.series import Metric
    from gpuwatch.store import Column

_CUMULATIVE = AggregationTemporality.CUMULATIVE


class Exporter:
    """The SDK's exporter over HTTP with protobuf."""

    def __init__(self, endpoint: str, timeout: float) -> None:
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=timeout)

    def send(self, data: MetricsData) -> bool:
        """Send once, with the SDK's retries; return whether it was taken."""
        return self._exporter.export(data) is MetricExportResult.SUCCESS

    def shutdown(self) -> None:
        """End a request under way."""
        self._exporter.shutdown(timeout_millis=0)


class Model:
    """Turns columns into `MetricsData`; remembers when each cumulative series began."""

    def __init__(self) -> None:
        self._rows = Rows()
        self._starts = Starts()

    def metrics(self, columns: Sequence[Column], now: int) -> MetricsData:
        """Return everything at `now` (nanoseconds since the epoch), one resource per value of the label ``host``."""
        rows, values = self._rows.of(columns)
        hosts: dict[str, list[SdkMetric]] = {}
        seen: list[object] = []
        for metric, members in by_family(rows, values):
            by_host: dict[str, list[tuple[Row, float]]] = {}
            for row, value in members:
                by_host.setdefault(dict(row.labels).get("host", ""), []).append((row, value))
            for host, own in by_host.items():
                data = self._data(metric, own, now, seen)
                hosts.setdefault(host, []).append(SdkMetric(metric.name, metric.help, unit(metric), data))
        self._starts.keep(seen)
        return MetricsData([_resource(host, metrics) for host, metrics in hosts.items()])

    def _data(
        self, metric: Metric, rows: Sequence[tuple[Row, float]], now: int, seen: list[object]
    ) -> Gauge | Sum | Histogram:
        if metric.kind == "gauge":
            return Gauge([NumberDataPoint(_attributes(row), 0, now, value) for row, value in rows])
        if metric.kind == "counter":
            points = []
            for row, value in rows:
                key = (metric.name, row.labels)
                seen.append(key)
                points.append(NumberDataPoint(_attributes(row), self._starts.of(key, value, now), now, value))
            return Sum(points, _CUMULATIVE, is_monotonic=True)
        found = []
        for labels, bounds, counts, total in histograms(rows):
            key = (metric.name, tuple(labels.items()))
            seen.append(key)
            start = self._starts.of(key, float(sum(counts)), now)
            unknown: Any = None  # our histograms do not know their extremes; the format has them optional
            found.append(
                HistogramDataPoint(labels, start, now, sum(counts), total, counts, bounds, min=unknown, max=unknown)
            )
        return Histogram(found, _CUMULATIVE)


def _attributes(row: Row) -> dict[str, str]:
    return dict(row.labels)


def _resource(host: str, metrics: list[SdkMetric]) -> ResourceMetrics:
    resource = Resource({"service.name": SCOPE[0], "service.version": SCOPE[1], "host.name": host})
    return ResourceMetrics(resource, [ScopeMetrics(InstrumentationScope(*SCOPE), metrics, "")], "")
