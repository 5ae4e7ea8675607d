from __future__ import annotations

import math
import threading
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from unit.pipeline.scenario import HOST, LAUNCH, SERVER, START, STORM, page, storm

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.alerts.state import Saved
from gpuwatch.clock import ManualClock, SystemClock
from gpuwatch.config import Config, ConfigError, EngineConfig
from gpuwatch.exporter.exposition import Exposition
from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.pipeline.daemon import Daemon
from gpuwatch.pipeline.state import StateFile

ALONE = Config(interval=0.2, host=HOST, gpus=False, kernel_log="off", discovery=False)


@pytest.fixture
def running():
    """Return a function that starts a daemon; all are stopped at the end."""
    started = []

    def start(config=ALONE, **options):
        daemon = Daemon(config, SystemClock(), **options)
        started.append(daemon)
        daemon.start()
        assert daemon.ticked.wait(20)
        return daemon

    yield start
    for daemon in started:
        daemon.stop()


def test_another_program_can_export_our_series_from_its_own_registry(running):
    daemon = running()
    registry = CollectorRegistry()
    registry.register(daemon.collector())
    page = generate_latest(registry)
    assert f'gpuwatch_build_info{{host="{HOST}",version="'.encode() in page


def test_listeners_get_the_findings_of_each_tick_and_one_that_fails_stops_no_other(running, caplog):
    daemon = Daemon(ALONE, SystemClock())
    got = []
    enough = threading.Event()

    def broken(findings, time):
        raise RuntimeError("oops")

    def working(findings, time):
        got.append((findings, time))
        if len(got) > 2:
            enough.set()

    daemon.listeners += [broken, working]
    daemon.start()
    try:
        assert enough.wait(20)
    finally:
        daemon.stop()
    times = [time for _, time in got]
    assert times == sorted(set(times))
    assert "a listener failed" in caplog.text


def test_a_snapshot_is_made_once_per_tick_and_carries_readings_only_where_asked(running):
    daemon = running()
    plain = daemon.ask_snapshot(time=None, rules=False, since=None).result(10)
    detailed = daemon.ask_snapshot(time=None, rules=True, since=None).result(10)
    assert plain.mode == "live"
    assert not any(rule.readings for rule in plain.rules)
    assert {rule.name for rule in detailed.rules} == {rule.name for rule in plain.rules}
    with pytest.raises(LookupError, match="nothing is kept of that time"):
        daemon.ask_snapshot(time=1, rules=False, since=None).result(10)
    with pytest.raises(LookupError, match=r"9999999999999 has not come yet; the newest snapshot is of \d{13}$"):
        daemon.ask_snapshot(time=9_999_999_999_999, rules=False, since=None).result(10)
    past = daemon.ask_snapshot(time=plain.time, rules=False, since=None).result(10)
    assert past.time == plain.time


def test_a_pipeline_without_a_tick_for_15_seconds_is_stuck_and_only_then():
    clock = ManualClock()
    daemon = Daemon(ALONE, clock)
    assert (daemon.ready(), daemon.trouble()) == (False, "")
    clock.advance(15)
    assert daemon.trouble() == ""
    clock.advance(1)
    assert daemon.trouble() == "the pipeline is stuck: no tick 16 s ago"
    daemon.live._tick()
    assert (daemon.ready(), daemon.trouble()) == (True, "")
    clock.set(clock.now() - 86_400_000)  # the wall clock was set back a day
    assert daemon.trouble() == ""
    clock.advance(16)
    assert daemon.trouble() == "the pipeline is stuck: the last tick 16 s ago"


def test_a_slow_interval_is_not_stuck():
    clock = ManualClock()
    daemon = Daemon(replace(ALONE, interval=60.0), clock)
    daemon.live._tick()
    clock.advance(299)
    assert daemon.trouble() == ""
    clock.advance(2)
    assert daemon.trouble() != ""


def test_a_clock_that_is_set_back_leaves_the_newest_values_on_the_page(tmp_path):
    pipeline = Pipeline(Settings(HOST), load(shipped_paths()), START)
    exposition = Exposition()
    for second in (100, 101, 30, 31):
        result = pipeline.tick(START + 1000 * second, [page(second, STORM[second % 8])])
        exposition.update(pipeline.store.columns(result.time))
    waiting = float(STORM[31 % 8][2])
    assert f'gpuwatch_engine_requests_waiting{{dp_rank="0",engine_kind="vllm",host="{HOST}"'.encode() in (
        exposition.page("text")
    )
    line = next(
        line for line in exposition.page("text").splitlines() if line.startswith(b"gpuwatch_engine_requests_waiting{")
    )
    assert line.endswith(f" {waiting}".encode())


def test_the_state_is_read_at_the_start_and_written_on_the_way(running, tmp_path):
    path = tmp_path / "state.json"
    saved = Saved((("alertname", "X"),), SystemClock().now() - 1000, SystemClock().now())
    first = StateFile(path)
    first.start()
    first.update([saved], SystemClock().now())
    first.stop(5)
    daemon = running(state=StateFile(path))
    assert saved in daemon.live.pipeline.saved(SystemClock().now())
    daemon.stop()
    assert saved in StateFile(path).load(SystemClock().now())


def test_a_reload_that_fails_changes_nothing(running, tmp_path):
    daemon = running()
    broken = tmp_path / "broken.yml"
    broken.write_text("groups: [{name: a, rules: [{alert: A, expr: 'sum('}]}]")
    with pytest.raises(ConfigError, match=r"broken\.yml:1: "):
        daemon.reload(replace(ALONE, rules=(str(broken),)))
    twice = (EngineConfig("http://127.0.0.1:1"), EngineConfig("http://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="is named more than once"):
        daemon.reload(replace(ALONE, engines=twice))
    assert daemon.config == ALONE
    assert daemon.live.config.engines == ()


class Stepped(SystemClock):
    """The machine's clock, which was set back by `back` milliseconds."""

    back = 0

    def ahead(self):
        return self.back


def test_a_clock_that_is_set_back_is_said_once_and_the_state_is_saved_in_the_machines_time(tmp_path, caplog):
    clock = Stepped()
    own = tmp_path / "own.yml"
    own.write_text("groups: [{name: own, rules: [{alert: First, expr: vector(1)}]}]")
    path = tmp_path / "state.json"
    daemon = Daemon(replace(ALONE, rules=(str(own),)), clock, StateFile(path))
    ticks, many = [], threading.Event()

    def tell(findings, time):
        ticks.append(time)
        clock.back = 0 if len(ticks) < 2 else 3_600_000 if len(ticks) < 8 else 7_200_000
        if len(ticks) == 12:
            many.set()

    daemon.listeners.append(tell)
    daemon.start()
    try:
        assert many.wait(60)
    finally:
        daemon.stop()
    said = [message for message in caplog.messages if "was set back" in message]
    assert [message.partition("without a step, ")[2].partition(" s ahead")[0] for message in said] == ["3600", "7200"]
    (saved,) = StateFile(path).load(ticks[-1] - 7_200_000)
    assert saved.active_at == ticks[0] - 7_200_000


def test_a_rule_file_in_the_home_is_found_at_the_start_and_at_a_reload(running, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = replace(ALONE, rules=("~/own.yml",))
    own = tmp_path / "own.yml"
    own.write_text("groups: [{name: own, rules: [{alert: First, expr: vector(1)}]}]")
    daemon = running(config)
    assert "First" in {rule.name for rule in daemon.live.pipeline.rules.alerts}
    own.write_text("groups: [{name: own, rules: [{alert: Second, expr: vector(1)}]}]")
    daemon.reload(config)
    assert "Second" in {rule.name for rule in daemon.live.pipeline.rules.alerts}


@pytest.fixture
def busy(running):
    """A daemon whose pipeline does something else until it is released."""
    begun, release = threading.Event(), threading.Event()

    def work():
        begun.set()
        release.wait(60)

    daemon = running()
    daemon.live.questions.put(work)
    assert begun.wait(20)
    yield daemon, release
    release.set()


def test_a_reload_that_came_too_late_is_not_applied_afterwards(busy, monkeypatch):
    daemon, release = busy
    monkeypatch.setattr("gpuwatch.pipeline.daemon.RELOAD_SECONDS", 0.05)
    engines = (EngineConfig("http://127.0.0.1:1"),)
    with pytest.raises(ConfigError, match=r"did not take it within 0\.05 s"):
        daemon.reload(replace(ALONE, engines=engines))
    release.set()
    daemon.live.questions.put(lambda: None).result(20)
    assert daemon.config.engines == daemon.live.config.engines == ()


def test_a_reload_says_what_needs_a_new_start_and_keeps_running_with_the_old_value(running):
    daemon = running()
    changed = daemon.reload(replace(ALONE, interval=5.0, host="other", rules=()))
    assert set(changed) == {"interval", "host"}
    assert (daemon.config.interval, daemon.config.host) == (0.2, HOST)


def test_an_engine_that_is_named_no_more_leaves_nothing_behind(running):
    config = replace(ALONE, engines=(EngineConfig("http://127.0.0.1:1"),), find_engines=False)
    daemon = running(config)

    def pages_until(wanted):
        for _ in range(200):
            text = daemon.exposition.page("text")
            if (b'server="127.0.0.1:1"' in text) == wanted:
                return True
            threading.Event().wait(0.05)
        return False

    assert pages_until(wanted=True)
    assert daemon.reload(ALONE) == ()
    assert pages_until(wanted=False)
    snapshot = daemon.ask_snapshot(time=None, rules=False, since=None).result(10)
    assert "engine" not in {state.kind for state in snapshot.sources}


def test_a_target_that_is_forgotten_takes_its_derived_series_with_it():
    pipeline = Pipeline(Settings(HOST), load(shipped_paths()), START)
    result = None
    for time, batches in [(START - 1, [LAUNCH]), *storm()]:
        result = pipeline.tick(time, batches)
    pipeline.forget(f"engine:{SERVER}", result.time)
    after = pipeline.tick(result.time + 1000, [])
    left = {
        dict(key)["__name__"]
        for column in pipeline.store.columns(after.time)
        for key, value in zip(column.labels, column.values.tolist(), strict=True)
        if key
        and dict(key).get("server") == SERVER
        and not math.isnan(value)
        and column.target in ("derived", "config", "sources")
    }
    assert left == set()
