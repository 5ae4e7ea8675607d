from __future__ import annotations

import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from gpuwatch.model import series
from gpuwatch.promql.remote import RemoteQuerier
from gpuwatch.promql.values import PromQLError

VECTOR = {
    "resultType": "vector",
    "result": [
        {"metric": {"__name__": "up", "i": "a"}, "value": [1000, "1.5"]},
        {"metric": {"i": "b"}, "value": [1000, "+Inf"]},
        {"metric": {}, "value": [1000, "NaN"]},
    ],
}
MATRIX = {
    "resultType": "matrix",
    "result": [{"metric": {"i": "a"}, "values": [[1, "1"], [2.5, "-Inf"]]}],
}


class Server:
    """A server on the loopback interface that gives one prepared answer and keeps what it was asked."""

    def __init__(self):
        self.status, self.body, self.kind, self.delay = 200, b"", "application/json", 0.0
        self.asked, self.location = [], ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.asked.append((self.path, {key: value[0] for key, value in parse_qs(form).items()}, self.headers))
                self.send_response(outer.status)
                self.send_header("Content-Type", outer.kind)
                if outer.location:
                    self.send_header("Location", outer.location)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                for byte in range(len(outer.body) if outer.delay else 0):
                    if outer.closing.wait(outer.delay):
                        return
                    self.wfile.write(outer.body[byte : byte + 1])
                    self.wfile.flush()
                if not outer.delay:
                    self.wfile.write(outer.body)

            def log_message(self, *_):
                pass

        self.closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def answer(self, data, **more):
        self.body = json.dumps({"status": "success", "data": data, **more}).encode()

    def close(self):
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)


@pytest.fixture
def server():
    running = Server()
    yield running
    running.close()


@pytest.fixture
def querier(server):
    remote = RemoteQuerier(server.url + "/prefix/", timeout=5, headers={"Authorization": "Bearer t"})
    yield remote
    remote.close()


def test_an_instant_vector_is_read(server, querier):
    server.answer(VECTOR)
    got = dict(querier.instant("up + 1", 1_234_567).items())
    assert got[series("up", i="a")] == 1.5
    assert got[(("i", "b"),)] == math.inf
    assert math.isnan(got[()])
    path, form, headers = server.asked[0]
    assert path == "/prefix/api/v1/query"
    assert form == {"query": "up + 1", "time": "1234.567", "timeout": "5s"}
    assert headers["Authorization"] == "Bearer t"


def test_a_scalar_is_one_series_without_labels(server, querier):
    server.answer({"resultType": "scalar", "result": [1, "7"]})
    assert dict(querier.instant("7", 1000).items()) == {(): 7.0}


def test_an_empty_vector_is_no_error(server, querier):
    server.answer({"resultType": "vector", "result": []})
    assert len(querier.instant("up", 1000)) == 0


def test_a_range_is_read_with_times_in_milliseconds(server, querier):
    server.answer(MATRIX)
    (one,) = querier.range("up", 1000, 4000, 1500)
    assert (one.labels, one.times, one.values) == ((("i", "a"),), (1000, 2500), (1.0, -math.inf))
    assert server.asked[0][1] == {"query": "up", "start": "1.000", "end": "4.000", "step": "1.500", "timeout": "5s"}


def test_the_servers_own_message_is_kept_on_one_line(server, querier):
    server.status = 400
    server.body = json.dumps({"status": "error", "errorType": "bad_data", "error": "parse\n error"}).encode()
    with pytest.raises(PromQLError, match=r"api/v1/query: parse error$"):
        querier.instant("up +", 1000)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            (200, "text/html; charset=utf-8", b"<html>log in</html>"),
            "HTTP 200 with text/html; charset=utf-8 instead of",
        ),
        ((400, "text/plain", b"Client sent an HTTP request to an HTTPS server."), "instead of JSON; is it https://?"),
        ((502, "text/plain", b"bad gateway"), "HTTP 502 with text/plain instead of JSON"),
        (
            (401, "text/plain", b""),
            "HTTP 401 (give user and password_file, or token_file, in [prometheus]",
        ),
        ((403, "application/json", b'{"status": "error", "error": "no"}'), "HTTP 403 (give user and password_file"),
        (
            (200, "application/json", b"[" * 100_000),
            "HTTP 200 with JSON that is damaged or was cut short (100,000 bytes)",
        ),
        (
            (200, "application/json", b'{"status": "succ'),
            "HTTP 200 with JSON that is damaged or was cut short (16 bytes)",
        ),
        ((200, "application/json", b" \n"), "HTTP 200 with an empty answer instead of JSON"),
        ((200, "application/json", b"[1]"), "without a Prometheus answer"),
        ((500, "application/json", b"{}"), "HTTP 500 without a Prometheus answer"),
        ((200, "application/json", b'{"status": "success"}'), "unexpected shape (no data)"),
        ((200, "application/json", b'{"status": "success", "data": null}'), "unexpected shape (no data)"),
        ((200, "application/json", b'{"status": "success", "data": 7}'), "has an unexpected shape"),
        ((200, "application/json", b'{"status": "success", "data": {"resultType": "matrix"}}'), "a matrix"),
        (
            (200, "application/json", json.dumps({"status": "success", "data": {**VECTOR, "result": [{}]}}).encode()),
            "unexpected shape (no 'metric')",
        ),
    ],
)
def test_an_answer_that_is_none_is_one_clear_line(server, querier, answer, why):
    server.status, server.kind, server.body = answer
    with pytest.raises(PromQLError) as caught:
        querier.instant("up", 1000)
    assert why in str(caught.value)
    assert server.url in str(caught.value) or "not a vector" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Error" not in str(caught.value)


def test_a_login_that_is_asked_for_after_a_redirect_is_that_of_the_host_that_asks(server, querier):
    other = Server()
    other.status = 401
    server.status, server.location = 307, other.url + "/login"
    with pytest.raises(PromQLError) as caught:
        querier.instant("up", 1000)
    assert str(caught.value).startswith(f"{other.url}/login: HTTP 401 (give user")
    other.close()


def test_a_partial_answer_is_an_error(server, querier):
    server.answer(VECTOR, warnings=["remote read of store-2 failed"])
    with pytest.raises(PromQLError, match="not complete: remote read of store-2 failed"):
        querier.instant("up", 1000)
    server.answer(VECTOR, isPartial=True)
    with pytest.raises(PromQLError, match="not complete"):
        querier.instant("up", 1000)


def test_a_partial_answer_can_be_had_with_the_reason(server, querier):
    server.answer(VECTOR)
    assert querier.instant_in_part("up", 1000)[1] == ""
    server.answer(VECTOR, warnings=["remote read of store-2 failed"])
    vector, missing = querier.instant_in_part("up", 1000)
    assert len(vector) == 3
    assert missing.endswith("the answer is not complete: remote read of store-2 failed")


def test_a_remark_about_the_query_itself_is_no_error(server, querier):
    server.answer(VECTOR, warnings=["PromQL info: metric might not be a counter"], infos=["more"])
    assert len(querier.instant("up", 1000)) == 3


def test_nobody_listens(server):
    server.close()
    remote = RemoteQuerier(server.url, timeout=5)
    with pytest.raises(PromQLError) as caught:
        remote.instant("up", 1000)
    remote.close()
    assert "refused" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("delay", [0.05, 30.0])
def test_a_slow_answer_ends_at_the_deadline(server, delay):
    server.answer(VECTOR)
    server.delay = delay  # seconds between two bytes
    remote = RemoteQuerier(server.url, timeout=0.3)
    begin = time.monotonic()
    with pytest.raises(PromQLError, match=r"within 0\.3 s"):
        remote.instant("up", 1000)
    assert time.monotonic() - begin < 3
    server.closing.set()
    remote.close()
