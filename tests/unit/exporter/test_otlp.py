"""The export to OpenTelemetry against a real HTTP receiver that decodes the protobuf."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from unit.exporter.conftest import START, columns_of

from gpuwatch.config import ConfigError
from gpuwatch.exporter.families import Row
from gpuwatch.exporter.otlp import OtlpExport, Starts, histograms, unit
from gpuwatch.model import series
from gpuwatch.series import METRICS
from gpuwatch.store import Store

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def sdk_logger():
    """The export takes over the SDK's logger; other tests get it back."""
    yield
    sdk = logging.getLogger("opentelemetry")
    sdk.handlers.clear()
    sdk.propagate = True


class Receiver:
    """Takes what is sent to /v1/metrics."""

    def __init__(self):
        self.requests = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append((self.path, headers, ExportMetricsServiceRequest.FromString(body)))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_port}"
        threading.Thread(target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.httpd.shutdown()
    made.httpd.server_close()


@pytest.fixture
def export():
    """Return a function that makes an export; all are stopped at the end."""
    made = []

    def make(url, columns, interval=3600.0):
        made.append(OtlpExport(url, columns, interval))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_every_series_arrives_with_its_kind_unit_labels_and_value(receiver, export):
    columns = columns_of("vllm-0.32.0-storm.txt")
    assert export(receiver.url, lambda: columns).export() == ""
    path, headers, request = receiver.requests[0]
    assert (path, headers["content-type"]) == ("/v1/metrics", "application/x-protobuf")
    resource = {item.key: item.value.string_value for item in request.resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "gpuwatch"
    assert resource["host.name"] == "node"
    metrics = {metric.name: metric for metric in request.resource_metrics[0].scope_metrics[0].metrics}

    used = metrics["gpuwatch_gpu_memory_used_bytes"]
    assert (used.unit, used.gauge.data_points[0].as_double) == ("By", 79_456_894_976.0)
    labels = {item.key: item.value.string_value for item in used.gauge.data_points[0].attributes}
    assert labels == {"host": "node", "uuid": "GPU-1", "gpu": "0"}

    tokens = metrics["gpuwatch_engine_prompt_tokens_total"]
    assert (tokens.unit, tokens.sum.is_monotonic, tokens.sum.aggregation_temporality) == ("{token}", True, 2)
    assert tokens.sum.data_points[0].as_double == 7800.0  # as on the page

    point = metrics["gpuwatch_engine_time_to_first_token_seconds"].histogram.data_points[0]
    assert point.count == sum(point.bucket_counts)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert not point.HasField("min")
    assert "ALERTS" not in metrics


def test_a_counter_keeps_its_start_until_it_falls():
    starts = Starts()
    assert starts.of("a", 5.0, 100) == 100
    assert starts.of("a", 6.0, 200) == 100
    assert starts.of("a", 1.0, 300) == 200
    assert starts.of("a", 1.0, 400) == 200
    assert [starts.of("a", 2.0, 90), starts.of("a", 2.0, 500)] == [90, 90]  # the clock was set back, and again forth
    starts.keep([])
    assert starts.of("a", 9.0, 500) == 500


def test_buckets_become_counts_between_bounds():
    metric = METRICS["gpuwatch_engine_queue_time_seconds"]

    def row(part, **labels):
        return Row(metric, f"{metric.name}_{part}", tuple(sorted({"server": "s", **labels}.items())), 0)

    rows = [
        (row("bucket", le="0.5"), 1.0), (row("bucket", le="1.0"), 1.0), (row("bucket", le="+Inf"), 4.0),
        (row("count"), 4.0), (row("sum"), 12.5),
    ]  # fmt: skip
    assert histograms(rows) == [({"server": "s"}, [0.5, 1.0], [1, 0, 3], 12.5)]


def test_every_unit_of_the_vocabulary_has_its_name_in_ucum():
    assert {unit(metric) for metric in METRICS.values()} <= {"1", "By", "s", "W", "J", "Hz", "Cel", "{token}"}
    assert unit(METRICS["gpuwatch_gpu_power_watts"]) == "W"
    assert unit(METRICS["gpuwatch_engine_requests_running"]) == "1"


def test_before_the_first_tick_nothing_is_sent(receiver, export):
    assert export(receiver.url, tuple).export() == ""
    assert receiver.requests == []


def test_a_path_in_the_address_is_kept(receiver, export):
    store = Store()
    store.append("t", START, (series("gpuwatch_tick_seconds", host="n"),), [0.01])
    export(receiver.url + "/otlp/v1/metrics", lambda: store.columns(START)).export()
    assert receiver.requests[0][0] == "/otlp/v1/metrics"


def test_a_collector_that_refuses_or_is_away_is_an_error_with_its_reason(receiver, export):
    columns = columns_of()
    receiver.status = 400
    made = export(receiver.url, lambda: columns)
    assert "400" in made.export()
    receiver.status = 200
    assert made.export() == ""


def test_a_failing_export_is_reported_once_and_so_is_its_recovery(receiver, export, caplog):
    columns = columns_of()
    receiver.status = 400
    made = export(receiver.url, lambda: columns, 0.05)
    made.start()
    wait_for(lambda: len(receiver.requests) >= 4)
    receiver.status = 200
    wait_for(lambda: "works again" in caplog.text)
    assert caplog.text.count("tried again every") == 1


def test_a_collector_that_is_away_is_named_at_the_first_try_of_ten_seconds(receiver, export, caplog):
    receiver.httpd.server_close()
    made = export(receiver.url, columns_of, 0.01)
    made.start()
    wait_for(lambda: caplog.messages)
    server = receiver.url.removeprefix("http://")
    assert caplog.messages == [
        f"otlp {receiver.url}/v1/metrics: connection refused: nothing listens at {server}; tried again every 0.01 s"
    ]


def wait_for(condition):
    done = threading.Event()
    for _ in range(1000):
        if condition():
            return
        done.wait(0.02)
    pytest.fail("never happened")


def test_a_wrong_address_is_one_line():
    with pytest.raises(ConfigError, match=r"no user or password in the address; use .* OTEL_EXPORTER_OTLP_HEADERS$"):
        OtlpExport("http://u:p@x:4318", list, 15)
    with pytest.raises(ConfigError, match=r"otlp 'ftp://x': allowed: http://HOST:PORT"):
        OtlpExport("ftp://x", tuple, 15.0)


def test_without_the_extra_it_says_how_to_get_it():
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from gpuwatch.cli import main\n"
        "sys.exit(main(['serve', '--listen', '127.0.0.1:0', '--state', 'off', '--otlp', 'http://127.0.0.1:4318']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpuwatch serve: otlp needs the OpenTelemetry SDK: pip install 'gpuwatch-llm[otlp]'\n"
