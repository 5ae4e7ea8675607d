"""Many questions to one Prometheus, and patience with what fails."""

from __future__ import annotations

import json
import socket
import time

import pytest

from gpuwatch.model import Reason
from gpuwatch.pipeline.fleet.asking import Asker
from gpuwatch.promql.remote import RemoteError, RemoteQuerier
from gpuwatch.promql.values import PromQLError
from tests.unit.fleet.conftest import NOW


@pytest.fixture
def asker_of():
    made = []

    def make(url, timeout=5.0, threads=6):
        made.append(Asker(lambda: RemoteQuerier(url, timeout), threads))
        return made[-1]

    yield make
    for asker in made:
        asker.close()


def questions(*exprs):
    return {expr: (lambda querier, expr=expr: querier.instant(expr, NOW * 1000)) for expr in exprs}


def test_every_question_gets_its_own_answer_and_few_are_under_way_at_once(server, asker_of):
    server.delay = 0.02
    exprs = [f"vector({number})" for number in range(30)]
    asked = asker_of(server.url, threads=4).ask(questions(*exprs), 10)
    assert {key: vector.values.tolist() for key, vector in asked.found.items()} == {
        f"vector({number})": [float(number)] for number in range(30)
    }
    assert asked.failed == {}
    assert asked.down is None
    assert server.most_open <= 4


def test_a_query_that_is_refused_does_not_spoil_the_others(server, asker_of):
    asked = asker_of(server.url).ask(questions("vector(1)", "rate(", "vector(2)"), 10)
    assert set(asked.found) == {"vector(1)", "vector(2)"}
    assert asked.failed["rate("].reason is Reason.FAILED
    assert asked.down is None


def test_a_query_that_keeps_failing_rests_for_longer_and_longer(server, asker_of):
    asker = asker_of(server.url)
    tried = []
    for number in range(12):
        before = server.asked.count("rate(")
        asked = asker.ask(questions("vector(1)", "rate("), 10)
        assert "rate(" in asked.failed  # its reason is told all the time
        if server.asked.count("rate(") > before:
            tried.append(number)
    assert tried == [0, 2, 5, 10]  # after one failure it rests for one round, then for two, for four


def test_a_query_that_works_again_is_asked_every_time(server, asker_of):
    asker = asker_of(server.url)
    server.fault = lambda query: (503, "text/plain", b"busy") if query == "vector(2)" else None
    asker.ask(questions("vector(1)", "vector(2)"), 10)
    server.fault = lambda _query: None
    rounds = [asker.ask(questions("vector(1)", "vector(2)"), 10) for _ in range(3)]
    assert ["vector(2)" in asked.found for asked in rounds] == [False, True, True]


def test_nobody_listens_is_known_after_one_try(asker_of):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        begun = time.monotonic()
        asked = asker_of(url).ask(questions(*(f"vector({n})" for n in range(60))), 10)
    assert time.monotonic() - begun < 10
    assert asked.down is not None
    assert asked.down.reason is Reason.UNREACHABLE
    assert "refused" in asked.down.text
    assert len(asked.failed) == 60


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((401, "text/plain", b"no"), Reason.UNAUTHORIZED),
        ((403, "application/json", b"{}"), Reason.UNAUTHORIZED),
        ((200, "text/html", b"<html>log in</html>"), Reason.NOT_METRICS),
        ((404, "text/html", b"<html>nginx</html>"), Reason.NOT_FOUND),
        ((503, "text/plain", b"starting"), Reason.FAILED),
    ],
)
def test_a_server_that_answers_nothing_is_down_for_the_reason_it_gave(server, asker_of, answer, reason):
    server.fault = lambda _query: answer
    asked = asker_of(server.url).ask(questions(*(f"vector({n})" for n in range(10))), 10)
    assert asked.found == {}
    assert asked.down is not None
    assert asked.down.reason is reason


def test_a_server_that_hangs_costs_one_time_limit_and_not_one_per_query(server, asker_of):
    server.delay = 30
    begun = time.monotonic()
    asked = asker_of(server.url, timeout=0.3).ask(questions(*(f"vector({n})" for n in range(40))), 0.6)
    assert time.monotonic() - begun < 8  # 40 queries of 0.3 s would be 12
    assert asked.down is not None
    assert asked.down.reason is Reason.TIMEOUT


def test_one_slow_query_misses_the_deadline_alone(server, asker_of):
    server.fault = lambda query: server.closing.wait(30) and None if query == "vector(9)" else None
    begun = time.monotonic()
    asked = asker_of(server.url, timeout=0.4).ask(questions("vector(1)", "vector(9)"), 0.4)
    assert time.monotonic() - begun < 15
    assert set(asked.found) == {"vector(1)"}
    assert asked.failed["vector(9)"].reason is Reason.TIMEOUT
    assert "within 0.4 s" in asked.failed["vector(9)"].text


def test_a_partial_answer_is_no_answer(server, asker_of):
    server.warnings = ["store-2 is unavailable"]
    asked = asker_of(server.url).ask(questions("vector(1)"), 10)
    assert "not complete: store-2 is unavailable" in asked.failed["vector(1)"].text


def test_a_mistake_of_our_own_is_a_failure_and_ends_no_thread(server, asker_of):
    def broken(_querier):
        raise ZeroDivisionError

    asker = asker_of(server.url, threads=1)
    assert "ZeroDivisionError" in asker.ask({"x": broken}, 5).failed["x"].text
    assert set(asker.ask(questions("vector(1)"), 5).found) == {"vector(1)"}


def test_the_servers_own_time_limit_is_a_time_out(server):
    body = json.dumps({"status": "error", "errorType": "timeout", "error": "query timed out"}).encode()
    server.fault = lambda _query: (503, "application/json", body)
    querier = RemoteQuerier(server.url)
    with pytest.raises(RemoteError) as caught:
        querier.instant("vector(1)", NOW * 1000)
    querier.close()
    assert caught.value.reason is Reason.TIMEOUT
    assert isinstance(caught.value, PromQLError)
