"""A worker that waits for a processor is late; only a call, an initialisation or a worker that stands still is hung."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.model import Reason, label, name_of
from gpuwatch.sources.nvml import source as nvml
from gpuwatch.sources.nvml import worker as worker_module
from gpuwatch.sources.nvml.child import Child
from gpuwatch.sources.nvml.gpus import LATE
from gpuwatch.sources.nvml.source import NvmlSource, Timing
from gpuwatch.sources.nvml.worker import STUCK_BEATS, Worker


class Scripted:
    """A worker whose messages the test writes; `waits` says whether it waits for a processor."""

    made: list[Scripted] = []  # noqa: RUF012  # emptied by `scripted`
    waits = False

    def __init__(self, *_args):
        self.inbox = []
        self.pid = len(Scripted.made) + 1
        Scripted.made.append(self)

    def read(self):
        messages, self.inbox = self.inbox, []
        return messages, False

    def wait_readable(self, _seconds):
        pass

    def kill(self):
        pass

    def close(self, _seconds=0.0):
        return True

    def gone(self):
        return True

    def starved(self):
        return Scripted.waits


class Scene:
    """A source before a scripted worker that has read its units once at time 0."""

    def __init__(self, units=("0", "1"), *, started=True):
        self.clock = ManualClock()
        self.source = NvmlSource("h", self.clock, timing=Timing(start_wait=0.0))
        self.units = units
        self.source.poll()
        if started:
            cards = [unit for unit in units if ":" not in unit]
            names = [["id", unit, {"uuid": f"GPU-{unit}", "name": "H100"}] for unit in units]
            self.say(["hello", "580.95.05", len(cards)], *names)
            self.read(*units)
            self.say(self.beat())
            self.source.poll()

    def read(self, *units):
        """Let the worker read `units` now."""
        for unit in units:
            self.say(["keys", unit, 1, ["busy_ratio"], {}])
            self.say(["tick", unit, self.clock.monotonic(), "ok", 1, [0.5], []])

    def beat(self, **stuck):
        """Return a sign of life; `stuck` names the seconds of the call that each GPU (g0, g1) hangs in."""
        return ["beat", self.clock.monotonic(), {name[1:]: ["nvmlDeviceGetX", age] for name, age in stuck.items()}]

    def say(self, *messages):
        Scripted.made[-1].inbox += messages

    def pass_seconds(self, seconds, *, beats=True, **stuck):
        """Let time pass, with a poll a second, and return the last batch."""
        batch = None
        for _ in range(seconds):
            self.clock.advance(1.0)
            if beats:
                self.say(self.beat(**stuck))
            batch = self.source.poll()
        return batch


def states(batch):
    return {
        label(key, "gpu"): label(key, "state")
        for key, value in zip(batch.keys, batch.values, strict=True)
        if name_of(key) == "gpuwatch_gpu_state" and value == 1
    }


def silences(batch):
    """Return the values of the unresponsive series by GPU, that of the host under ``host``."""
    return {
        label(key, "gpu") or "host": value
        for key, value in zip(batch.keys, batch.values, strict=True)
        if name_of(key).endswith("unresponsive_seconds")
    }


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    monkeypatch.setattr(Scripted, "made", [])
    monkeypatch.setattr(Scripted, "waits", False)
    monkeypatch.setattr(nvml, "Child", Scripted)


@pytest.mark.parametrize("named", [True, False])
def test_a_gpu_that_hangs_from_the_start_grows_older_although_the_other_answers(named):
    scene = Scene(started=False)
    ids = [["id", unit, {"uuid": f"GPU-{unit}", "name": "H100"}] for unit in (("0", "1") if named else ("0",))]
    scene.say(["hello", "580.95.05", 2], *ids)
    for second in range(1, 11):
        scene.clock.advance(1.0)
        scene.read("0")
        scene.say(scene.beat(g1=second - 0.25))
        batch = scene.source.poll()
    assert states(batch) == {"0": "ok", "1": "hung"}
    # The worker was started 10 s ago and has waited for this GPU ever since.
    assert silences(batch) == {"1": 10.0}


def test_readings_that_stay_away_while_no_call_hangs_are_late():
    scene = Scene()
    batch = scene.pass_seconds(20)
    assert states(batch) == {"0": "late", "1": "late"}
    assert silences(batch) == {}
    assert (batch.up, batch.reason) == (True, None)
    assert batch.detail == f"GPU 0: {LATE}; GPU 1: {LATE}"
    busy = [absence for absence in batch.absent if name_of(absence.labels) == "gpuwatch_gpu_busy_ratio"]
    assert [(absence.reason, absence.detail) for absence in busy] == [(Reason.TIMEOUT, LATE)] * 2
    assert not any(name_of(key) == "gpuwatch_gpu_busy_ratio" for key in batch.keys)
    assert len(Scripted.made) == 1
    scene.read("0", "1")
    assert states(scene.source.poll()) == {"0": "ok", "1": "ok"}


def test_a_silent_worker_that_waits_for_a_processor_is_late_and_is_not_replaced():
    scene = Scene()
    Scripted.waits = True
    batch = scene.pass_seconds(60, beats=False)
    assert states(batch) == {"0": "late", "1": "late"}
    assert silences(batch) == {}
    assert len(Scripted.made) == 1


def test_a_silent_worker_that_waits_for_nothing_hangs_after_three_seconds():
    scene = Scene()
    assert states(scene.pass_seconds(3, beats=False)) == {"0": "ok", "1": "ok"}
    batch = scene.pass_seconds(1, beats=False)
    assert states(batch) == {"0": "hung", "1": "hung"}
    assert silences(batch) == {"host": 4.0, "0": 4.0, "1": 4.0}
    assert (batch.reason, batch.detail) == (Reason.HUNG, "the NVIDIA driver has not answered for 4 s")
    batch = scene.pass_seconds(16, beats=False)
    assert len(Scripted.made) == 2
    assert silences(batch)["host"] == 20.0


def test_calls_that_hang_on_all_gpus_are_the_driver_that_hangs():
    scene = Scene()
    batch = scene.pass_seconds(4, g0=3.0, g1=3.0)
    assert states(batch) == {"0": "hung", "1": "hung"}
    assert silences(batch) == {"host": 4.0, "0": 4.0, "1": 4.0}
    assert batch.reason is Reason.HUNG
    # The worker that takes its place is in the same trouble before it has said so.
    scene.pass_seconds(13, g0=3.0, g1=3.0)
    assert len(Scripted.made) == 2
    scene.say(["hello", "580.95.05", 2])
    batch = scene.pass_seconds(1)
    assert silences(batch) == {"host": 18.0, "0": 18.0, "1": 18.0}


def test_one_gpu_whose_call_hangs_is_hung_while_the_other_is_only_late():
    scene = Scene()
    batch = scene.pass_seconds(6, g1=3.0)
    assert states(batch) == {"0": "late", "1": "hung"}
    assert silences(batch) == {"1": 6.0}
    assert batch.reason is None


def test_the_mig_devices_of_a_hanging_gpu_hang_with_it():
    scene = Scene(units=("0", "0:1", "1"))
    batch = scene.pass_seconds(4, g0=3.0)
    assert states(batch) == {"0": "hung", "0:1": "hung", "1": "late"}
    assert silences(batch) == {"0": 4.0, "0:1": 4.0}


def test_a_worker_that_is_slow_to_start_is_starting_until_the_initialisation_hangs():
    scene = Scene(started=False)
    Scripted.waits = True
    batch = scene.pass_seconds(8, beats=False)
    assert (batch.up, batch.reason) == (False, Reason.NEVER_SEEN)
    batch = scene.pass_seconds(4)
    assert (batch.up, batch.reason) == (False, Reason.NEVER_SEEN)
    scene.clock.advance(1.0)
    scene.say(["beat", scene.clock.monotonic(), {"": ["nvmlInit", 3.0]}])
    batch = scene.source.poll()
    assert (batch.up, batch.reason, batch.detail) == (True, Reason.HUNG, "nvmlInit has not returned for 3 s")


# -- what the worker says ---------------------------------------------------------------------------------------------


class Pipe:
    """A worker that writes into a pipe, its devices stand-ins and its clock in the test's hands."""

    def __init__(self, monkeypatch, devices=1):
        self.now = 1000.0
        self.ended = []
        self._read, write = os.pipe()
        self.worker = Worker(write, 1.0)
        self.askers = [SimpleNamespace(doing="", since=0.0, ok_at=self.now) for _ in range(devices)]
        self.worker._devices = [SimpleNamespace(label=str(i), asker=asker) for i, asker in enumerate(self.askers)]
        monkeypatch.setattr(self.worker, "give_up", lambda code, text: self.ended.append((code, text)))
        monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def beat(self, seconds=1.0):
        """Let time pass and return the calls that the sign of life names."""
        self.now += seconds
        self.worker.beat()
        return json.loads(os.read(self._read, 65536))[2]


def test_a_call_is_named_when_three_signs_of_life_in_a_row_meet_it(monkeypatch):
    pipe = Pipe(monkeypatch)
    pipe.askers[0].doing, pipe.askers[0].since = "nvmlDeviceGetX", pipe.now
    assert [pipe.beat() for _ in range(4)] == [{}, {}, {"0": ["nvmlDeviceGetX", 3.0]}, {"0": ["nvmlDeviceGetX", 4.0]}]
    assert STUCK_BEATS == 3


def test_a_call_that_is_old_because_the_worker_stood_still_is_not_named(monkeypatch):
    pipe = Pipe(monkeypatch)
    pipe.askers[0].doing, pipe.askers[0].since = "nvmlDeviceGetX", pipe.now
    assert pipe.beat(seconds=60.0) == {}
    pipe.askers[0].doing = ""
    assert pipe.beat() == {}
    pipe.askers[0].doing = "nvmlDeviceGetX"
    assert [pipe.beat(), pipe.beat()] == [{}, {}]


def test_other_calls_that_signs_of_life_meet_are_not_one_that_hangs(monkeypatch):
    pipe = Pipe(monkeypatch)
    for _ in range(10):
        pipe.askers[0].doing, pipe.askers[0].since = "nvmlDeviceGetX", pipe.now
        assert pipe.beat() == {}


def test_a_stuck_initialisation_is_named_and_one_that_has_not_begun_is_not(monkeypatch):
    pipe = Pipe(monkeypatch, devices=0)
    assert [pipe.beat() for _ in range(5)] == [{}] * 5
    pipe.worker._init_since = pipe.now
    assert [pipe.beat() for _ in range(3)] == [{}, {}, {"": ["nvmlInit", 3.0]}]


def test_a_worker_that_was_frozen_does_not_say_that_no_gpu_answers(monkeypatch):
    pipe = Pipe(monkeypatch, devices=2)
    pipe.beat(seconds=600.0)
    pipe.beat()
    assert pipe.ended == []
    pipe.askers[0].ok_at = pipe.now
    for _ in range(5):
        pipe.beat()
    assert pipe.ended == []


def test_gpus_of_which_none_answers_for_half_a_minute_end_the_worker(monkeypatch):
    pipe = Pipe(monkeypatch, devices=2)
    for _ in range(32):
        pipe.beat()
    assert pipe.ended == []
    pipe.beat()
    assert pipe.ended == [(15, "no GPU answers any more")]


# -- real processes ---------------------------------------------------------------------------------------------------


def _until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _of(process):
    child = Child.__new__(Child)
    child.pid = process.pid
    return child


def test_a_process_that_could_run_waits_for_a_processor_and_a_sleeping_or_stopped_one_does_not():
    code = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            _until(_of(process).starved)
            process.send_signal(signal.SIGSTOP)
            _until(lambda: not _of(process).starved())
        finally:
            process.kill()
    assert not _of(process).starved()


def test_a_worker_that_is_stopped_is_hung(machine, watch, monkeypatch):
    monkeypatch.setattr(nvml, "Child", Child)
    timing = Timing(interval=0.1, missed_ticks=6, least_late=0.0, replace_after=60.0, start_wait=5.0)
    watched = watch(machine(), timing=timing)
    watched.until(lambda: watched.state("1") == "ok")
    os.kill(watched.source.worker_pid, signal.SIGSTOP)
    watched.until(lambda: watched.state("1") == "hung")
    assert watched.state("0") == "hung"
    assert watched.batch.reason is Reason.HUNG
    assert watched.host_value("gpuwatch_host_nvml_unresponsive_seconds") > timing.late
    os.kill(watched.source.worker_pid, signal.SIGCONT)
    watched.until(lambda: (watched.state("0"), watched.state("1")) == ("ok", "ok"))
    assert watched.value("unresponsive_seconds", "1") is None
