from __future__ import annotations

import threading

import pytest
from unit.pipeline import scenario
from unit.pipeline.scenario import HOST, START, page

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.clock import SystemClock
from gpuwatch.pipeline.replay import Replay
from gpuwatch.recording import Header, Writer


@pytest.fixture(scope="module")
def rules():
    return load(shipped_paths())


@pytest.fixture
def recorded(tmp_path):
    """Three ticks of a storm, 50 ms apart."""
    path = tmp_path / "storm.rec"
    writer = Writer(path, Header(HOST, START, 1.0, "test"))
    for number in range(3):
        writer.write(page(0, scenario.STORM[number]))
        writer.tick(START + 50 * number)
    writer.close()
    return path


def play(path, rules, **options):
    """Return the snapshots of a replay up to the one that says that it has ended."""
    got, over = [], threading.Event()

    def take(snapshot):
        got.append(snapshot)
        if snapshot.recording.ended:
            over.set()

    player = Replay(path, rules, SystemClock(), **options)
    player.subscribe(take)
    player.start()
    ended = over.wait(10)
    player.stop()
    assert ended
    return got


def test_a_replay_says_when_it_has_ended(recorded, rules):
    got = play(recorded, rules)
    assert [snapshot.recording.ended for snapshot in got] == [False, False, False, True]
    assert got[-1].recording.error == ""
    assert got[-1].recording.position == got[-1].recording.length == 0.1
    assert got[-1].answer("kv_usage").samples == got[-2].answer("kv_usage").samples != ()


def test_a_cut_recording_says_so_at_its_end(recorded, rules):
    data = recorded.read_bytes()
    recorded.write_bytes(data[:-12])
    last = play(recorded, rules)[-1]
    assert last.recording.error == f"{recorded}: the end is missing; read up to the last complete tick"
    assert last.answer("kv_usage").samples != ()


@pytest.mark.parametrize("mode", ["replay", "demo"])
def test_a_recording_with_a_header_only_ends_at_once(tmp_path, rules, mode):
    path = tmp_path / "empty.rec"
    Writer(path, Header(HOST, START, 1.0, "test")).close()
    (only,) = play(path, rules, mode=mode, endless=mode == "demo")
    assert only.recording.error == "holds no complete tick"
    assert (only.time, only.host, only.answers) == (START, HOST, {})


def test_a_header_whose_file_is_cut_says_both(tmp_path, rules):
    path = tmp_path / "cut.rec"
    Writer(path, Header(HOST, START, 1.0, "test"))._file.close()
    (only,) = play(path, rules)
    assert only.recording.error == "holds no complete tick: the end is missing; read up to the last complete tick"
