"""The reader of a running daemon, against the real server with snapshots of our choice."""

from __future__ import annotations

import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace

import pytest
from unit.exporter.conftest import USERS, Site
from unit.tui import scenes

from gpuwatch.clock import ManualClock
from gpuwatch.config import ConfigError
from gpuwatch.config_endpoints import EndpointConfig
from gpuwatch.model import LogLine
from gpuwatch.pipeline.attach import Attached
from gpuwatch.tui.view.status import Pulse, banner, state_text


@pytest.fixture
def site():
    made = Site()
    made.daemon.answer = scenes.storm()
    yield made
    made.server.stop()


@pytest.fixture
def attach():
    """Return a function that makes a reader that is polled by the test; all are stopped at the end."""
    made = []

    def make(url, clock=None, **options):
        made.append(Attached(EndpointConfig(url, **{"timeout": 5.0, **options}), clock or ManualClock()))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def tick(site, seconds, **changes):
    """Give the daemon a newer snapshot."""
    site.daemon.answer = replace(site.daemon.answer, time=site.daemon.answer.time + round(seconds * 1000), **changes)


def test_a_snapshot_is_the_daemons_with_the_mode_attached(site, attach):
    reader = attach(site.server.url)
    assert reader.poll() == replace(scenes.storm(), mode="attached")
    assert reader.error == ""
    assert state_text(reader.last, Pulse()) == ("●", "attached 1.0 s", "ok")


def test_the_same_tick_is_not_handed_on_twice(site, attach):
    reader = attach(site.server.url)
    assert reader.poll() is not None
    assert reader.poll() is None
    tick(site, 1)
    assert reader.poll().time == site.daemon.answer.time


def test_readings_of_rules_are_asked_for_only_while_they_are_wanted(site, attach):
    reader = attach(site.server.url)
    reader.poll()
    reader.show_rule_readings(wanted=True)
    reader.poll()
    assert [rules for _, rules, _ in site.daemon.asked] == [False, True]


def test_log_lines_are_asked_for_once_and_gathered(site, attach):
    def line(number, at):
        return LogLine("vllm.log", number, at, "INFO", f"line {number}")

    site.daemon.answer = replace(site.daemon.answer, lines=(line(1, 1000), line(2, 2000)))
    reader = attach(site.server.url)
    reader.poll()
    tick(site, 1, lines=(line(2, 2000), line(3, 2000), line(4, 3000)))
    assert [item.line for item in reader.poll().lines] == [1, 2, 3, 4]
    assert [since for _, _, since in site.daemon.asked] == [0, 2000]
    tick(site, 1, lines=(line(1, 4000),), started=site.daemon.answer.started + 5)
    assert [item.line for item in reader.poll().lines] == [1]  # the daemon was started anew


def test_the_past_is_asked_of_the_daemon(site, attach):
    reader = Attached(EndpointConfig(site.server.url, timeout=5.0), ManualClock())
    reader.start()
    try:
        site.daemon.answer = replace(scenes.calm(), time=scenes.START)
        assert reader.at(scenes.START).result(10).time == scenes.START
        assert (scenes.START, False, None) in site.daemon.asked
        site.daemon.answer = LookupError("nothing is kept of that time; the oldest is 900 s away")
        with pytest.raises(LookupError, match="nothing is kept of that time; the oldest is 900 s away"):
            reader.at(1).result(10)
    except FutureTimeoutError:
        pytest.fail("no answer")
    finally:
        reader.stop()


def test_a_daemon_that_goes_away_leaves_its_last_snapshot_with_the_reason_and_comes_back(site, attach):
    clock = ManualClock()
    reader = attach(site.server.url, clock)
    shown = reader.poll()
    site.server.stop()
    clock.advance(7)
    stale = reader.poll()
    assert (stale.time, stale.answers, stale.findings) == (shown.time, shown.answers, shown.findings)
    state = stale.sources[-1]
    assert (state.kind, state.up, state.reason, state.age) == ("attach", False, "unreachable", 7.0)
    assert state.detail.startswith("connection refused: nothing listens at 127.0.0.1:")
    glyph, words, tone = state_text(stale, Pulse())
    assert (glyph, words.startswith("stale since "), tone) == ("✗", True, "crit")
    assert banner(stale) == f"ATTACHED  ✗ {state.detail}"


def test_a_daemon_that_goes_away_between_two_ticks_leaves_an_attached_snapshot_with_all_lines(site, attach):
    line = LogLine("vllm.log", 1, 1000, "INFO", "line 1")
    site.daemon.answer = replace(site.daemon.answer, lines=(line,))
    reader = attach(site.server.url)
    reader.poll()
    site.daemon.answer = replace(site.daemon.answer, lines=())  # nothing newer, and no tick since
    assert reader.poll() is None
    site.server.stop()
    stale = reader.poll()
    assert (stale.mode, stale.lines) == ("attached", (line,))
    assert state_text(stale, Pulse())[1].startswith("stale since ")


def test_a_daemon_that_was_never_there_is_an_empty_snapshot_with_the_reason(attach):
    reader = attach("http://127.0.0.1:1")
    snapshot = reader.poll()
    assert reader.last is None
    assert (snapshot.mode, snapshot.answers, snapshot.findings) == ("attached", {}, ())
    assert snapshot.looked_for == (("http://127.0.0.1:1", "connection refused: nothing listens at 127.0.0.1:1"),)
    assert state_text(snapshot, Pulse())[1] == "not connected"


def test_a_daemon_that_is_stuck_says_so_itself(site, attach):
    reader = attach(site.server.url)
    reader.poll()
    site.daemon.said = "the pipeline is stuck: the last tick 60 s ago"
    assert reader.poll().sources[-1].detail == f"{site.server.url}: the pipeline is stuck: the last tick 60 s ago"
    site.daemon.said = ""
    assert reader.poll().sources == site.daemon.answer.sources  # shown again although no tick came meanwhile


ALICE = {"user": "alice", "password_env": "PW"}


@pytest.mark.parametrize(
    ("login", "works"),
    [
        (({}, {}), False),
        ((ALICE, {"PW": "secret"}), True),
        ((ALICE, {"PW": "wrong"}), False),
        (({}, {"GPUWATCH_ATTACH_USER": "alice", "GPUWATCH_ATTACH_PASSWORD": "secret"}), True),
        (({}, {"GPUWATCH_ATTACH_TOKEN": "secret"}), False),
    ],
)
def test_logging_in(tmp_path, attach, monkeypatch, login, works):
    options, env = login
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users: {{alice: {USERS['alice']}}}\n")
    site = Site(web_config=str(web))
    site.daemon.answer = scenes.calm()
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    try:
        reader = attach(site.server.url, **options)
        reader.poll()
        want = (
            f"{site.server.url}: not logged in (HTTP 401); give GPUWATCH_ATTACH_USER and GPUWATCH_ATTACH_PASSWORD, "
            "or [attach] in the configuration"
        )
        assert reader.error == ("" if works else want)
    finally:
        site.server.stop()


def test_a_secret_that_is_named_and_missing_is_an_error_at_once(attach):
    with pytest.raises(ConfigError, match="the variable NOT_THERE_X is not set"):
        attach("http://127.0.0.1:1", token_env="NOT_THERE_X")


def test_tls_with_an_authority_of_ones_own(tls_folder, tmp_path, attach):
    web = tmp_path / "web.yml"
    web.write_text(f"tls_server_config: {{cert_file: {tls_folder}/server.pem, key_file: {tls_folder}/server.key}}\n")
    site = Site(web_config=str(web))
    site.daemon.answer = scenes.calm()
    try:
        reader = attach(site.server.url, ca_file=f"{tls_folder}/server.pem")
        assert reader.poll() is not None
        assert reader.error == ""
        stranger = attach(site.server.url)
        stranger.poll()
        assert "the certificate of" in stranger.error
        assert "is not trusted" in stranger.error
    finally:
        site.server.stop()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, "text/html", b"<html>a proxy</html>"), "the answer is not JSON"),
        (
            (200, "application/json", b'{"schema": 7, "gpuwatch": "9.0"}'),
            "gpuwatch 9.0 answers with snapshots of schema",
        ),
        ((404, "text/html", b"<h1>Not Found</h1>"), "is no `gpuwatch serve`: there is no /api/v1/snapshot (HTTP 404)"),
        (
            (404, "text/plain; charset=utf-8", b"404 page not found\n"),
            "is no `gpuwatch serve`: there is no /api/v1/snapshot (HTTP 404: 404 page not found)",
        ),
        ((404, "application/json", b'{"error": "nothing is kept of that time"}'), ": nothing is kept of that time"),
        ((502, "text/html", b"<h1>Bad Gateway</h1>"), "HTTP 502"),
        ((503, "application/json", b'{"error": "nothing was\\nread yet"}'), "nothing was read yet"),
    ],
)
def test_whatever_else_answers_is_said_in_one_line(attach, raw_answer, answer, said):
    reader = attach(raw_answer(*answer))
    snapshot = reader.poll()
    assert said in reader.error
    assert "\n" not in reader.error
    assert snapshot.sources[-1].detail == reader.error


def test_it_reads_at_the_daemons_interval_and_stops_at_once(site):
    site.daemon.answer = replace(scenes.calm(), interval=0.5)
    from gpuwatch.clock import SystemClock  # noqa: PLC0415  # real time only here

    reader = Attached(EndpointConfig(site.server.url, timeout=5.0), SystemClock())
    seen = []
    reader.subscribe(seen.append)
    reader.start()
    deadline = time.monotonic() + 20
    while len(seen) < 2 and time.monotonic() < deadline:
        tick(site, 1)
        time.sleep(0.05)
    assert len(seen) >= 2
    begun = time.monotonic()
    reader.stop()
    assert time.monotonic() - begun < 4.5


def test_the_password_is_in_no_error_and_no_snapshot(site, attach, monkeypatch):
    monkeypatch.setenv("PW", "hunter2")
    reader = attach(site.server.url, user="alice", password_env="PW")
    site.server.stop()
    assert "hunter2" not in repr(reader.poll()) + reader.error
