"""Findings on their way to Alertmanager, over real sockets."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuwatch.clock import SystemClock
from gpuwatch.config import ConfigError, EndpointConfig
from gpuwatch.diagnosis.finding import Advice, Evidence, Finding
from gpuwatch.exporter.alertmanager import BATCH, Notifier, notices
from gpuwatch.model import series

START = 1_700_000_000_000
STORM = {"host": "h", "server": "127.0.0.1:8000", "model_name": "tiny"}


def alert(name, severity, diagnosis, **labels):
    return tuple(sorted({"alertname": name, "severity": severity, "diagnosis": diagnosis, **labels}.items()))


STORM_ALERT = alert("GpuwatchKvPreemptionStorm", "critical", "kv_preemption_storm", **STORM)


def storm(since=START, **change):
    values = {
        "id": "kv_preemption_storm",
        "severity": "critical",
        "title": "requests are thrown out of the KV pool and computed again",
        "cause": "The pool of 5,120 tokens holds 2 requests; 16 are admitted.",
        "confidence": 0.9,
        "evidence": (Evidence("26 preemptions in 60 s"), Evidence("usage 97 %")),
        "advice": (Advice("admit what fits", "--max-num-seqs", "16", "2"), Advice("or add a card")),
        "since": since,
        "labels": STORM,
        "alerts": ((STORM_ALERT, since),),
    }
    return Finding(**{**values, **change})


class Receiver:
    """Takes posts as Alertmanager does, and answers with `status`; while `hang` is set it does not answer at all."""

    def __init__(self, status=200, body=b"", port=0):
        self.status, self.body, self.hang, self.kind = status, body, False, ""
        self.posts, self.headers = [], []
        self.arrived = threading.Condition()
        self.closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.arrived:
                    outer.posts.append((self.path, json.loads(body)))
                    outer.headers.append(self.headers)
                    outer.arrived.notify_all()
                if outer.hang:
                    outer.closing.wait(30)
                    return
                self.send_response(outer.status)
                if outer.kind:
                    self.send_header("Content-Type", outer.kind)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_):
                pass

        ThreadingHTTPServer.allow_reuse_address = True
        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def alerts(self):
        """Return every alert that was posted, in order."""
        return [item for _, post in self.posts for item in post]

    def wait(self, number):
        """Return the first `number` posts."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.posts) >= number, 60), self.posts
        return self.posts

    def close(self):
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)


class Stepped(SystemClock):
    """The machine's clock, `back` milliseconds of which were taken off."""

    back = 0

    def ahead(self):
        return self.back


@pytest.fixture
def receiver():
    running = Receiver()
    yield running
    running.close()


@pytest.fixture
def notifier_for():
    made = []

    def make(*targets, **more):
        made.append(Notifier(targets, SystemClock(), **{"pause": 0.1, **more}))
        return made[-1]

    yield make
    for notifier in made:
        notifier.close()


def settled(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_alert_is_sent_with_the_labels_of_the_rule_and_the_advice_of_the_finding(receiver, notifier_for):
    notifier_for(receiver.url).notify([storm()], START + 5000)
    path, (sent,) = receiver.wait(1)[0]
    assert path == "/api/v2/alerts"
    assert sent["labels"] == {
        "alertname": "GpuwatchKvPreemptionStorm",
        "severity": "critical",
        "diagnosis": "kv_preemption_storm",
        **STORM,
    }
    assert sent["annotations"] == {
        "summary": "requests are thrown out of the KV pool and computed again",
        "cause": "The pool of 5,120 tokens holds 2 requests; 16 are admitted.",
        "advice": "--max-num-seqs 16 → 2: admit what fits\nor add a card",
        "evidence": "26 preemptions in 60 s\nusage 97 %",
        "runbook_url": "docs/runbook.md#kv_preemption_storm",
    }
    assert sent["startsAt"] == "2023-11-14T22:13:20.000Z"
    assert sent["endsAt"] == "2023-11-14T22:17:25.000Z"  # 5 s later, and four minutes ahead
    assert receiver.headers[0]["Content-Type"] == "application/json"


def test_after_a_step_back_of_the_clock_alertmanager_gets_the_time_of_the_machine(receiver):
    clock = Stepped()
    notifier = Notifier([receiver.url], clock, pause=0.1)
    try:
        notifier.notify([storm()], START + 5000)
        receiver.wait(1)
        settled(lambda: notifier.deliveries[0].sent == 1)
        clock.back = 3_600_000
        notifier.notify([], START + 9000)
        settled(lambda: notifier.deliveries[0].sent == 2)
        notifier.notify([storm(since=START + 10_000)], START + 10_000)
        settled(lambda: notifier.deliveries[0].sent == 3)
    finally:
        notifier.close()
    assert [(item["startsAt"][11:], item["endsAt"][11:]) for item in receiver.alerts()] == [
        ("22:13:20.000Z", "22:17:25.000Z"),
        ("21:13:20.000Z", "21:13:29.000Z"),
        ("21:13:30.000Z", "21:17:30.000Z"),
    ]


def test_a_finding_of_two_rules_is_two_alerts_each_with_its_own_start():
    other = alert("GpuwatchKvOther", "critical", "kv_preemption_storm", **STORM)
    found = notices([storm(alerts=((STORM_ALERT, START), (other, START + 2000)))])
    assert {notice.since for notice in found.values()} == {START, START + 2000}
    assert {dict(key)["alertname"] for key in found} == {"GpuwatchKvPreemptionStorm", "GpuwatchKvOther"}


def test_external_labels_are_added_and_never_replace_a_label_of_the_alert():
    (key,) = notices([storm()], {"cluster": "eu", "host": "other"})
    assert dict(key)["cluster"] == "eu"
    assert dict(key)["host"] == "h"


def test_a_long_text_is_cut():
    (notice,) = notices([storm(cause="x" * 5000)]).values()
    assert len(notice.annotations["cause"]) == 1000
    assert notice.annotations["cause"].endswith("…")


def test_a_resolved_finding_fires_no_more_and_sends_its_end(receiver, notifier_for):
    notifier = notifier_for(receiver.url)
    notifier.notify([storm()], START)
    receiver.wait(1)
    settled(lambda: notifier.deliveries[0].sent == 1)
    notifier.notify([storm(state="resolved", until=START + 9000, alerts=())], START + 9000)
    (ended,) = receiver.wait(2)[1][1]
    assert ended["labels"]["alertname"] == "GpuwatchKvPreemptionStorm"
    assert (ended["startsAt"], ended["endsAt"]) == ("2023-11-14T22:13:20.000Z", "2023-11-14T22:13:29.000Z")


def test_an_alert_is_sent_again_after_the_resend_interval_and_not_before(receiver, notifier_for):
    notifier = notifier_for(receiver.url, resend=0.2)  # looks every 0.05 s; the ticks' own times decide what is due
    notifier.notify([storm()], START)
    settled(lambda: notifier.deliveries[0].sent == 1)
    for later in (50, 100, 199):
        notifier.notify([storm()], START + later)
    time.sleep(0.2)
    assert len(receiver.posts) == 1
    notifier.notify([storm()], START + 200)
    assert receiver.wait(2)[1][1][0]["endsAt"] == "2023-11-14T22:13:21.000Z"


def test_a_finding_that_fires_again_is_a_new_alert(receiver, notifier_for):
    notifier = notifier_for(receiver.url)
    notifier.notify([storm()], START)
    settled(lambda: notifier.deliveries[0].sent == 1)
    notifier.notify([], START + 1000)
    settled(lambda: notifier.deliveries[0].sent == 2)
    notifier.notify([storm(since=START + 2000)], START + 2000)
    settled(lambda: notifier.deliveries[0].sent == 3)
    assert [item["startsAt"][-10:] for item in receiver.alerts()] == ["13:20.000Z", "13:20.000Z", "13:22.000Z"]


def test_what_ended_before_it_could_be_sent_is_not_sent(notifier_for):
    down = Receiver(status=503)
    try:
        notifier = notifier_for(down.url)
        notifier.notify([storm()], START)
        settled(lambda: notifier.deliveries[0].failures >= 1)
        notifier.notify([], START + 1000)
        down.posts.clear()
        down.status = 200
        time.sleep(0.5)  # the pauses after the first failures are 0.1 and 0.2 s
        assert down.posts == []
    finally:
        down.close()


def test_many_alerts_go_in_batches(receiver, notifier_for):
    many = [
        storm(alerts=((alert("GpuwatchEngineDown", "critical", "engine_down", host=f"h{number}"), START),))
        for number in range(BATCH + 5)
    ]
    notifier = notifier_for(receiver.url)
    notifier.notify(many, START)
    settled(lambda: notifier.deliveries[0].sent == BATCH + 5)
    assert [len(post) for _, post in receiver.posts] == [BATCH, 5]


def test_one_that_is_down_gets_it_later_and_does_not_hold_up_the_others(receiver, notifier_for, caplog):
    gone = Receiver()
    gone.close()
    notifier = notifier_for(receiver.url, gone.url)
    notifier.notify([storm()], START)
    receiver.wait(1)
    settled(lambda: notifier.deliveries[1].error)
    assert "refused" in notifier.deliveries[1].error
    assert notifier.deliveries[0].error == ""
    back = Receiver(port=gone.port)
    try:
        back.wait(1)
        settled(lambda: notifier.deliveries[1].sent == 1)
    finally:
        back.close()
    assert notifier.deliveries[1].error == ""
    assert sum("cannot be sent" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, b"no", "HTTP 401 (give user and password_file, or token_file): no"),
        (500, b"<html>\noops</html>", "HTTP 500: <html> oops</html>"),
        (404, b"", "HTTP 404: no text"),
    ],
)
def test_a_failure_is_one_clear_line_and_is_tried_again(notifier_for, status, body, why):
    server = Receiver(status, body)
    try:
        notifier = notifier_for(server.url)
        notifier.notify([storm()], START)
        settled(lambda: notifier.deliveries[0].failures >= 1)
        assert notifier.deliveries[0].error == f"{server.url}/api/v2/alerts: {why}"
        server.status, server.body = 200, b""
        settled(lambda: notifier.deliveries[0].sent == 1)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("kind", "body", "page"),
    [
        ("text/html; charset=utf-8", b"<html>sign in</html>", "text/html"),
        ("Application/XHTML+xml", b"", "application/xhtml+xml"),
        ("", b"\n<!doctype html><title>sign in</title>", "a page"),
    ],
)
def test_a_page_for_people_is_no_delivery_and_is_counted_as_a_failure(notifier_for, kind, body, page):
    server = Receiver(200, body)
    server.kind = kind
    try:
        notifier = notifier_for(server.url)
        notifier.notify([storm()], START)
        settled(lambda: notifier.deliveries[0].failures >= 1)
        assert notifier.deliveries[0].error == (
            f"{server.url}/api/v2/alerts: HTTP 200 with {page} instead of Alertmanager's empty answer; "
            "is a login in between?"
        )
        assert notifier.deliveries[0].sent == 0
        server.kind, server.body = "", b""
        settled(lambda: notifier.deliveries[0].sent == 1)
        batch = notifier.batch("h", START)
        told = dict(zip(batch.keys, batch.values, strict=True))
        labels = {"host": "h", "alertmanager": server.url}
        assert told[series("gpuwatch_alertmanager_alerts_sent_total", **labels)] == 1
        assert told[series("gpuwatch_alertmanager_failures_total", **labels)] >= 1
    finally:
        server.close()


@pytest.mark.parametrize(("kind", "body"), [("application/json", b'{"status":"success"}'), ("text/plain", b"ok")])
def test_what_stands_in_for_an_alertmanager_may_answer_a_word(notifier_for, kind, body):
    server = Receiver(200, body)
    server.kind = kind
    try:
        notifier = notifier_for(server.url)
        notifier.notify([storm()], START)
        settled(lambda: notifier.deliveries[0].sent == 1)
        assert notifier.deliveries[0].failures == 0
    finally:
        server.close()


def test_a_batch_that_is_refused_for_good_does_not_block_the_next(notifier_for):
    server = Receiver(400, b'"invalid label set"')
    try:
        notifier = notifier_for(server.url)
        notifier.notify([storm()], START)
        settled(lambda: notifier.deliveries[0].failures == 1)
        server.status = 200
        notifier.notify(
            [storm(), storm(alerts=((alert("GpuwatchGpuLost", "critical", "gpu_lost"), START),))], START + 1
        )
        assert [item["labels"]["alertname"] for item in server.wait(2)[1][1]] == ["GpuwatchGpuLost"]
    finally:
        server.close()


def test_closing_does_not_wait_for_one_that_hangs():
    server = Receiver()
    server.hang = True
    try:
        notifier = Notifier([server.url], SystemClock())
        notifier.notify([storm()], START)
        server.wait(1)
        begun = time.monotonic()
        notifier.notify([], START + 1000)
        notifier.close()
        assert time.monotonic() - begun < 15
    finally:
        server.close()


def test_a_login_comes_from_files_and_variables_and_is_read_again(receiver, notifier_for, tmp_path, monkeypatch):
    (tmp_path / "password").write_text("first\n")
    target = EndpointConfig(receiver.url, user="u", password_file=str(tmp_path / "password"))
    notifier = notifier_for(target)
    notifier.notify([storm()], START)
    receiver.wait(1)
    (tmp_path / "password").write_text("second\n")
    settled(lambda: notifier.deliveries[0].sent == 1)
    notifier.notify([], START + 1)
    receiver.wait(2)
    given = [base64.b64decode(h["Authorization"].removeprefix("Basic ")).decode() for h in receiver.headers]
    assert given == ["u:first", "u:second"]
    monkeypatch.setenv("GPUWATCH_ALERTMANAGER_TOKEN", "t")
    notifier_for(receiver.url).notify([storm()], START)
    receiver.wait(3)
    assert receiver.headers[2]["Authorization"] == "Bearer t"


def test_the_runbook_is_a_link_where_its_address_is_configured(receiver):
    notifier = Notifier([receiver.url], SystemClock(), runbook="https://wiki/gpuwatch")
    notifier.notify([storm()], START)
    receiver.wait(1)
    notifier.close()
    assert receiver.posts[0][1][0]["annotations"]["runbook_url"] == "https://wiki/gpuwatch#kv_preemption_storm"


@pytest.mark.parametrize(
    ("targets", "why"),
    [
        (["ftp://h"], "allowed: http://HOST:PORT"),
        (["http://u:p@h"], "no user or password in the address"),
        (["http://h:1", "h:1"], "named more than once"),
        ([EndpointConfig("http://h", token_file="/nonexistent/token")], "/nonexistent/token: No such file"),
        ([EndpointConfig("http://h", token_env="GPUWATCH_TEST_UNSET")], "GPUWATCH_TEST_UNSET is not set"),
        ([EndpointConfig("http://h", ca_file="/nonexistent/ca")], "/nonexistent/ca: No such file"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(targets, why):
    with pytest.raises(ConfigError, match=why.replace("(", r"\(")):
        Notifier(targets, SystemClock())
