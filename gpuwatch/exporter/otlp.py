"""The same series as OTLP metrics to an OpenTelemetry collector, every few seconds (extra ``otlp``).

The SDK's data model is filled directly: our series already are cumulative sums, gauges and histograms, and the SDK's
asynchronous instruments have no histogram. Names are kept, so that a collector that writes to a Prometheus gives the
names that a scrape would. Headers, certificates and compression come from the standard ``OTEL_EXPORTER_OTLP_*``
variables.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpuwatch import __version__
from gpuwatch.config import ConfigError
from gpuwatch.config_endpoints import OTLP_LOGIN, endpoint_url
from gpuwatch.exporter.families import Arrangement
from gpuwatch.sources.engine.http import explain_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatch.exporter.families import Row
    from gpuwatch.series import Metric
    from gpuwatch.store import Column

log = logging.getLogger(__name__)

SIGNAL_PATH = "/v1/metrics"
TIMEOUT_SECONDS = 10.0
UNITS = {
    "bytes": "By",
    "seconds": "s",
    "ratio": "1",
    "watts": "W",
    "joules": "J",
    "hertz": "Hz",
    "celsius": "Cel",
    "tokens": "{token}",
}
"""Our units in UCUM, the notation of OpenTelemetry."""


class OtlpExport:
    """Sends the newest values every `interval` seconds, in a thread of its own. A failure is reported once.

    Args:
        url: Address of the collector; ``/v1/metrics`` is added where it has no path.
        columns: Returns the newest values.
        interval: Seconds between two exports.

    Raises:
        ConfigError: The address is wrong, or the extra is not installed.
    """

    def __init__(self, url: str, columns: Callable[[], Sequence[Column]], interval: float) -> None:
        address = endpoint_url(url, "otlp", OTLP_LOGIN)
        self.url = address if urlsplit(address).path else address + SIGNAL_PATH
        self._columns = columns
        self._interval = interval
        self._said = _Said(self._failed, self.url)
        self._failing = ""
        try:
            from gpuwatch.exporter.otlp_model import Exporter, Model  # noqa: PLC0415  # imports the SDK
        except ImportError:
            raise ConfigError("otlp needs the OpenTelemetry SDK: pip install 'gpuwatch-llm[otlp]'") from None
        self._model = Model()
        self._exporter = Exporter(endpoint=self.url, timeout=TIMEOUT_SECONDS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        sdk = logging.getLogger("opentelemetry")
        sdk.addHandler(self._said)
        sdk.propagate = False

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a request under way is given up."""
        self._stop.set()
        self._exporter.shutdown()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def export(self) -> str:
        """Send the newest values once; return why that failed, or the empty string."""
        columns = self._columns()
        if not columns:
            return ""
        self._said.reason = ""
        try:
            sent = self._exporter.send(self._model.metrics(columns, time.time_ns()))
        except Exception as error:  # noqa: BLE001  # whatever the SDK raises, the daemon goes on
            return f"{type(error).__name__}: {error}"
        return "" if sent else self._said.reason or "the export failed"

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            failure = self.export()
            if failure:
                self._failed(failure)
            elif self._failing:
                log.error("otlp %s: works again", self.url)
                self._failing = ""

    def _failed(self, reason: str) -> None:
        """Report the first of several failures; called at the first try of an export already."""
        if not self._failing and not self._stop.is_set():
            log.error("otlp %s: %s; tried again every %g s", self.url, " ".join(reason.split()), self._interval)
            self._failing = reason


class _Said(logging.Handler):
    """Keeps the SDK's first word on an export, which says why it failed; the later ones say how often it was tried.

    Args:
        tell: Told the reason at once: the SDK may try for ten seconds more.
        url: Where the export goes.
    """

    def __init__(self, tell: Callable[[str], object], url: str) -> None:
        super().__init__()
        self.reason = ""
        self._tell = tell
        self._url = url

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message; an exception in it is put into words."""
        if self.reason or record.levelno < logging.WARNING:
            return
        errors = [item for item in record.args or () if isinstance(item, Exception)]
        self.reason = str(explain_failure(errors[0], self._url, TIMEOUT_SECONDS)) if errors else record.getMessage()
        self._tell(self.reason)


class Starts:
    """When each cumulative series began, as far as it was seen: a value that falls is a new beginning.

    A clock that was set back pulls the beginning back with it: in OpenTelemetry's model no point is before its start.
    """

    def __init__(self) -> None:
        self._seen: dict[object, tuple[int, float, int]] = {}

    def of(self, key: object, value: float, now: int) -> int:
        """Return the start of `key` (nanoseconds since the epoch) at the time `now` with the value `value`."""
        start, before, at = self._seen.get(key, (now, value, now))
        if value < before:
            start = at
        start = min(start, now)
        self._seen[key] = (start, value, now)
        return start

    def keep(self, keys: Iterable[object]) -> None:
        """Forget every other key."""
        self._seen = {key: self._seen[key] for key in keys if key in self._seen}


def by_family(rows: Sequence[Row], values: Sequence[float]) -> list[tuple[Metric, list[tuple[Row, float]]]]:
    """Return the rows of each family, in order."""
    families: list[tuple[Metric, list[tuple[Row, float]]]] = []
    for row, value in zip(rows, values, strict=True):
        if not families or families[-1][0] is not row.metric:
            families.append((row.metric, []))
        families[-1][1].append((row, value))
    return families


def histograms(rows: Sequence[tuple[Row, float]]) -> list[tuple[dict[str, str], list[float], list[int], float]]:
    """Return (labels, upper bounds, counts per bucket with the last above all bounds, sum) of each histogram."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for row, value in rows:
        labels = tuple(pair for pair in row.labels if pair[0] != "le")
        group = groups.setdefault(labels, {"buckets": [], "count": math.nan, "sum": math.nan})
        part = row.name[len(row.metric.name) + 1 :]
        if part == "bucket":
            group["buckets"].append((float(dict(row.labels).get("le", "inf")), value))
        else:
            group[part] = value
    found = []
    for labels, group in groups.items():
        buckets = sorted(group["buckets"])
        total = next((value for bound, value in buckets if math.isinf(bound)), group["count"])
        cumulative = [*(value for bound, value in buckets if not math.isinf(bound)), total]
        if not all(map(math.isfinite, cumulative)):
            continue
        counts = [round(value - before) for before, value in zip([0.0, *cumulative], cumulative, strict=False)]
        if min(counts) >= 0:
            bounds = [bound for bound, _ in buckets if not math.isinf(bound)]
            found.append((dict(labels), bounds, counts, group["sum"]))
    return found


def unit(metric: Metric) -> str:
    """Return the unit of a family in UCUM; a family without one counts things."""
    return UNITS.get(metric.unit, "1")


class Rows:
    """The arrangement of the newest columns with their values."""

    def __init__(self) -> None:
        self._arrangement = Arrangement()

    def of(self, columns: Sequence[Column]) -> tuple[tuple[Row, ...], list[float]]:
        """Return rows and values."""
        values = self._arrangement.values(columns).tolist()
        return self._arrangement.rows, values


SCOPE = ("gpuwatch", __version__)
