"""An HTTP server that answers as Prometheus does, from our own store and PromQL, with faults on demand."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from gpuwatch.model import series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.values import PromQLError
from gpuwatch.store import Store

RULES = {
    "groups": [
        {
            "name": "gpuwatch-kv",
            "file": "rules/kv.yml",
            "rules": [
                {
                    "name": "GpuwatchKvPreemptionStorm",
                    "type": "alerting",
                    "state": "firing",
                    "health": "ok",
                    "query": "gpuwatch_a > 1",
                    "labels": {"severity": "critical", "diagnosis": "kv_preemption_storm"},
                    "alerts": [{"state": "firing"}],
                },
                {
                    "name": "GpuwatchGpuLost",
                    "type": "alerting",
                    "state": "inactive",
                    "health": "err",
                    "lastError": "many-to-many matching not allowed",
                    "query": "gpuwatch_b",
                    "labels": {"severity": "critical", "diagnosis": "gpu_lost"},
                    "alerts": [],
                },
                {"name": "SomebodyElses", "type": "alerting", "state": "inactive", "labels": {}},
                {"name": "gpuwatch:recorded", "type": "recording", "query": "gpuwatch_c"},
            ],
        }
    ]
}


def store_of(page) -> Store:
    """Return a store with the samples of a made-up fleet, one target per machine."""
    columns = defaultdict(lambda: defaultdict(dict))
    for name, found in page.families.items():
        for labels, points in found:
            for at, value in points:
                columns[labels["instance"]][at][series(name, **labels)] = value
    store = Store(3_600_000, 15_000)
    for target, by_time in columns.items():
        for at in sorted(by_time):
            row = by_time[at]
            store.append(target, at * 1000, tuple(row), tuple(row.values()))
    return store


class _Quiet(ThreadingHTTPServer):
    """Waits for its threads at the end, and says nothing about clients that went away."""

    daemon_threads = False

    def handle_error(self, request, client_address):
        pass


class PrometheusLike:
    """Answers queries from a store. `fault` is called with each query first; it may return (status, kind, body)."""

    def __init__(self, store: Store, rules=RULES) -> None:
        self.rules = rules
        self.fault = lambda _query: None
        self.warnings = []
        self.delay = 0.0
        self.asked = []
        self.headers = []
        self.connections = []
        self.open = Counter()
        self.most_open = 0
        self.closing = threading.Event()
        self._lock = threading.Lock()
        querier = LocalQuerier(store)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            timeout = 30

            def setup(self):
                super().setup()
                outer.connections.append(self.connection)

            wbufsize = -1

            def do_GET(self):
                self._answer(urlsplit(self.path).path, {})

            def do_POST(self):
                text = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(self.path, {key: value[0] for key, value in parse_qs(text).items()})

            def _answer(self, path, form):
                query = form.get("query", path)
                with outer._lock:
                    outer.asked.append(query)
                    outer.headers.append(dict(self.headers))
                    outer.open["now"] += 1
                    outer.most_open = max(outer.most_open, outer.open["now"])
                if outer.delay:
                    outer.closing.wait(outer.delay)
                status, kind, body = outer.fault(query) or (200, "application/json", None)
                if body is None:
                    status, body = outer._data(path, form, querier)
                with outer._lock:
                    outer.open["now"] -= 1
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._http = _Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def _data(self, path, form, querier):
        if path.endswith("/rules"):
            return 200, json.dumps({"status": "success", "data": self.rules}).encode()
        try:
            with self._lock:
                vector = querier.instant(form["query"], round(float(form["time"]) * 1000))
        except PromQLError as error:
            return 400, json.dumps({"status": "error", "errorType": "bad_data", "error": str(error)}).encode()
        result = [
            {"metric": dict(labels), "value": [float(form["time"]), repr(float(value)).replace("inf", "Inf")]}
            for labels, value in vector.items()
        ]
        answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
        if self.warnings:
            answer["warnings"] = self.warnings
        return 200, json.dumps(answer).encode()

    def close(self) -> None:
        self.closing.set()
        self._http.shutdown()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._http.server_close()
        self._thread.join(5)


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
