from __future__ import annotations

import json
import os
import pwd
import resource
import subprocess
import sys
import threading
import time

import pytest
from unit.pipeline.scenario import HOST, LAUNCH, START, page, storm
from unit.pipeline.scenario import STORM as ROWS

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.alerts.state import Saved
from gpuwatch.config import ConfigError
from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.pipeline.state import StateFile, default_path

NOW = START
ALERTS = (
    Saved((("alertname", "A"), ("uuid", "GPU-1")), NOW - 60_000, NOW, NOW - 30_000),
    Saved((("alertname", "B"),), NOW - 1_000, NOW, None),
)


def save(path, alerts=ALERTS, now=NOW):
    state = StateFile(path)
    state.start()
    state.update(alerts, now)
    state.stop(5)
    return state


def test_what_is_saved_comes_back(tmp_path):
    save(tmp_path / "a" / "b" / "state.json")
    assert StateFile(tmp_path / "a" / "b" / "state.json").load(NOW + 5000) == ALERTS
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["state.json"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_missing_file_is_nothing_to_speak_of(tmp_path, caplog):
    assert StateFile(tmp_path / "no.json").load(NOW) == ()
    assert caplog.text == ""


def test_a_state_of_more_than_an_hour_ago_or_from_the_future_is_not_used(tmp_path):
    save(tmp_path / "s.json")
    state = StateFile(tmp_path / "s.json")
    assert state.load(NOW + 3_600_000) == ALERTS
    assert state.load(NOW + 3_600_001) == ()
    assert state.load(NOW - 10_000) == ALERTS[:1]  # the clock was set back: B has not begun yet


def test_a_state_of_before_the_clock_was_set_back_says_what_starts_anew(tmp_path, caplog):
    save(tmp_path / "s.json")
    assert StateFile(tmp_path / "s.json").load(NOW - 10_000) == ALERTS[:1]
    what = "the clock was set back since it was saved; 1 of its 2 findings had not begun yet and start anew"
    assert caplog.messages == [f"{tmp_path / 's.json'}: {what}"]


def test_times_are_saved_as_the_machine_tells_them(tmp_path, caplog):
    state = StateFile(tmp_path / "s.json")
    state.start()
    state.update(ALERTS, NOW, 3_600_000)  # an hour ahead of a machine whose clock was set back
    state.stop(5)
    hour = 3_600_000
    assert StateFile(tmp_path / "s.json").load(NOW - hour + 5000) == (
        Saved((("alertname", "A"), ("uuid", "GPU-1")), NOW - 60_000 - hour, NOW - hour, NOW - 30_000 - hour),
        Saved((("alertname", "B"),), NOW - 1_000 - hour, NOW - hour, None),
    )
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "damaged (JSONDecodeError)"),
        (b'{"gpuwatch_state": 1, "saved_at"', "damaged (JSONDecodeError)"),
        (b'{"gpuwatch_state": 1, "saved_at": 1, "alerts": [{"labels": 3}]}', "damaged (KeyError)"),
        (
            b'{"gpuwatch_state": 1, "saved_at": "x", "alerts": [{"fired_at": null, "labels": {}}]}',
            "damaged (ValueError)",
        ),
        (b'{"gpuwatch_state": 2}', "state of version 2, not 1"),
    ],
)
def test_a_damaged_file_is_one_line_and_is_replaced(tmp_path, caplog, content, said):
    path = tmp_path / "s.json"
    path.write_bytes(content)
    assert StateFile(path).load(NOW) == ()
    assert caplog.messages == [f"{path}: {said}; findings start anew"]
    save(path)
    assert StateFile(path).load(NOW) == ALERTS


@pytest.mark.parametrize("content", [b"my diary", b'{"other": 1}', b"\x00\x01", b"[]"])
def test_a_foreign_file_is_set_aside_in_one_line_and_what_is_saved_outlives_a_restart(tmp_path, caplog, content):
    path, aside = tmp_path / "s.json", tmp_path / "s.json.bad"
    path.write_bytes(content)
    state = StateFile(path)
    assert state.load(NOW) == ()
    assert caplog.messages == [f"{path}: is no state file of gpuwatch; it is kept as {aside}, findings start anew"]
    state.start()
    state.update(ALERTS, NOW)
    state.stop(20)
    assert aside.read_bytes() == content
    assert StateFile(path).load(NOW) == ALERTS


def test_a_second_foreign_file_is_left_alone_and_neither_is_written_over(tmp_path, caplog):
    path, aside = tmp_path / "s.json", tmp_path / "s.json.bad"
    path.write_text("second")
    aside.write_text("first")
    state = StateFile(path)
    assert state.load(NOW) == ()
    said = "is no state file of gpuwatch and is left alone (s.json.bad: File exists); nothing will outlive a restart"
    assert caplog.messages == [f"{path}: {said}"]
    state.start()
    state.update(ALERTS, NOW)
    state.stop(20)
    assert (path.read_text(), aside.read_text()) == ("second", "first")


def test_a_pipe_or_a_device_in_the_place_of_the_file_is_left_alone(tmp_path, caplog):
    path = tmp_path / "s.json"
    os.mkfifo(path)
    state = StateFile(path)
    assert state.load(NOW) == ()
    assert caplog.messages == [f"{path}: is no regular file and is left alone; nothing will outlive a restart"]
    state.start()
    state.update(ALERTS, NOW)
    state.stop(20)
    assert path.is_fifo()


def test_a_folder_in_the_place_of_the_file_is_one_line(tmp_path, caplog):
    assert StateFile(tmp_path).load(NOW) == ()
    save(tmp_path)
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        "Is a directory; findings start anew",
        "Is a directory; the state is not saved",
    ]


def test_it_is_written_when_something_changes_and_once_a_minute(tmp_path):
    path = tmp_path / "s.json"
    state = StateFile(path)
    state.start()
    written = []

    def update(alerts, now):
        path.unlink(missing_ok=True)
        state.update(alerts, now)
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline and not path.exists():
            time.sleep(0.005)
        written.append(path.exists())

    update(ALERTS, NOW)
    update(ALERTS, NOW + 1_000)
    update(ALERTS[:1], NOW + 2_000)
    update(ALERTS[:1], NOW + 61_999)
    update(ALERTS[:1], NOW + 62_000)
    update((), NOW + 63_000)
    update((), NOW + 200_000)
    state.stop(5)
    assert written == [True, False, True, False, True, True, False]


def test_a_full_disk_is_one_line_until_it_works_again(tmp_path):
    code = (
        "import logging, resource, sys, time\n"
        "from gpuwatch.alerts.state import Saved\n"
        "from gpuwatch.pipeline.state import StateFile\n"
        "logging.basicConfig(format='%(message)s')\n"
        "state = StateFile(sys.argv[1])\n"
        "state.start()\n"
        "def update(now):\n"
        "    state.update([Saved((('alertname', 'A'),), now, now)], now)\n"
        "    time.sleep(0.2)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))\n"
        "update(1); update(2); update(3)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "update(4)\n"
        "state.stop(5)\n"
    )
    path = tmp_path / "s.json"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == f"{path}: File too large; the state is not saved\n"
    assert json.loads(path.read_text())["alerts"][0]["active_at"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY  # of this process


def test_updates_do_not_wait_for_the_disk(tmp_path):
    os.mkfifo(tmp_path / "s.json.tmp")  # opening it for writing blocks: nobody reads
    state = StateFile(tmp_path / "s.json")
    state.start()
    begun = time.monotonic()
    for number in range(1000):
        state.update([Saved((("alertname", str(number)),), 1, 1)], number)
    assert time.monotonic() - begun < 30  # it would wait for ever
    reader = threading.Thread(target=(tmp_path / "s.json.tmp").read_bytes, daemon=True)
    reader.start()
    state.stop(5)
    reader.join(5)
    assert not reader.is_alive()


def test_where_the_state_is_kept(monkeypatch):
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/gpuwatch:/var/lib/other")
    assert str(default_path(19400)) == "/var/lib/gpuwatch/serve-19400.json"
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setenv("XDG_STATE_HOME", "/x/state")
    assert str(default_path(1)) == "/x/state/gpuwatch/serve-1.json"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/u")
    assert str(default_path(1)) == "/home/u/.local/state/gpuwatch/serve-1.json"


def test_without_a_home_the_place_must_be_given(monkeypatch):
    def nobody(_uid):
        raise KeyError("getpwuid(): uid not found")

    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(ConfigError, match="no home directory for the state file; give --state FILE, or --state off"):
        default_path(1)


# The state in a pipeline


@pytest.fixture(scope="module")
def rules():
    return load(shipped_paths())


def stormy(pipeline, ticks, shift=0):
    result = None
    for time_ms, batches in ticks:
        result = pipeline.tick(time_ms + shift, [moved(batch, shift) for batch in batches])
    return result


def moved(batch, shift):
    from dataclasses import replace  # noqa: PLC0415  # only here

    return replace(batch, time=batch.time + shift)


def started(result, id_="kv_preemption_storm"):
    return next((finding.since for finding in result.findings if finding.id == id_ and finding.state == "firing"), None)


def test_a_finding_keeps_its_start_over_a_restart(rules):
    ticks = [(START - 1, [LAUNCH]), *storm()]
    first = Pipeline(Settings(HOST), rules, START)
    before = stormy(first, ticks)
    assert started(before) is not None
    saved = first.saved(before.time)
    later = Pipeline(Settings(HOST), rules, before.time + 20_000)
    later.restore(saved)
    after = stormy(later, ticks, shift=30_000)
    assert started(after) == started(before)
    fresh = stormy(Pipeline(Settings(HOST), rules, before.time + 20_000), ticks, shift=30_000)
    assert started(fresh) == started(before) + 30_000


def test_a_start_that_has_not_come_back_yet_is_saved_again(rules):
    """A second restart soon after the first must not lose it."""
    first = Pipeline(Settings(HOST), rules, START)
    before = stormy(first, [(START - 1, [LAUNCH]), *storm()])
    second = Pipeline(Settings(HOST), rules, before.time)
    second.restore(first.saved(before.time))
    quiet = second.tick(before.time + 1000, [page(40, ROWS[0])])
    names = {dict(item.labels)["alertname"] for item in second.saved(quiet.time)}
    assert names == {dict(item.labels)["alertname"] for item in first.saved(before.time)}
    second.tick(before.time + 301_001, [page(400, ROWS[0])])
    second.tick(before.time + 302_001, [page(401, ROWS[0])])
    assert second.saved(before.time + 302_001) == ()


def test_other_rules_keep_the_start_of_alerts_they_share_and_end_the_series_of_the_rest(rules, tmp_path):
    pipeline = Pipeline(Settings(HOST), rules, START)
    before = stormy(pipeline, [(START - 1, [LAUNCH]), *storm()])
    mine = tmp_path / "mine.yml"
    mine.write_text("groups:\n- name: m\n  rules:\n  - {alert: Mine, expr: vector(1), labels: {severity: info}}\n")
    pipeline.replace_rules(load(shipped_paths(), [mine]), before.time)
    after = pipeline.tick(before.time + 1000, [page(19, ROWS[-1])])
    assert started(after) == started(before)
    assert "Mine" in {alert.name for alert in after.evaluation.alerts}
    pipeline.replace_rules(rules, after.time)
    pipeline.tick(after.time + 1000, [page(20, ROWS[-1])])
    assert len(pipeline.querier.instant('ALERTS{alertname="Mine"}', after.time + 1000)) == 0
