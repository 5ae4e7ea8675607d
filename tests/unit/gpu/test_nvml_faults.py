from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwatch.clock import ManualClock, SystemClock
from gpuwatch.model import Reason, label, name_of
from gpuwatch.sources.nvml import source as nvml
from gpuwatch.sources.nvml.source import NvmlSource, Timing

UUID = "GPU-fa4e0000-0000-0000-0000-00000000000{}".format


def test_a_lost_gpu_keeps_its_identity_and_comes_back(machine, watch):
    fake = machine()
    watched = watch(fake)
    watched.until(lambda: watched.state("1") == "ok")
    fake.set(1, dev_err=15)
    watched.until(lambda: watched.state("1") == "lost")
    assert watched.value("memory_used_bytes", "1") is None
    assert watched.absent("memory_used_bytes", "1") == (Reason.LOST, "the GPU no longer answers on the bus")
    assert watched.labels("info", "1")["uuid"] == UUID(1)
    assert watched.value("unresponsive_seconds", "1") is None
    assert watched.state("0") == "ok"
    assert watched.value("busy_ratio", "0") == 0.97
    fake.set(1, dev_err=0)
    watched.until(lambda: watched.state("1") == "ok")
    assert watched.value("busy_ratio", "1") == 0.97


def test_a_gpu_lost_before_the_start_is_reported_and_named_when_it_answers(machine, watch):
    fake = machine()
    fake.set(1, dev_err=15)
    watched = watch(fake)
    watched.until(lambda: watched.state("1") == "lost")
    assert watched.labels("state", "1")["uuid"] == "index:1"
    assert watched.batch.detail == "GPU 1: no longer answers on the bus"
    assert watched.value("busy_ratio", "0") == 0.97
    fake.set(1, dev_err=0)
    watched.until(lambda: watched.state("1") == "ok")
    assert watched.labels("state", "1")["uuid"] == UUID(1)
    assert not any(label(key, "uuid").startswith("index:") for key in watched.batch.keys)
    assert watched.batch.detail == ""


@pytest.mark.parametrize(("code", "state"), [(4, "no_permission"), (15, "lost"), (16, "resetting"), (999, "failed")])
def test_gpus_that_never_said_their_uuid_are_not_taken_for_one(machine, watch, code, state):
    fake = machine(gpus=4)
    for index in (1, 2, 3):
        fake.set(index, dev_err=code)
    watched = watch(fake)
    watched.until(lambda: [watched.state(str(index)) for index in range(4)] == ["ok", state, state, state])
    states = {label(key, "uuid") for key in watched.batch.keys if name_of(key) == "gpuwatch_gpu_state"}
    assert states == {UUID(0), "index:1", "index:2", "index:3"}
    assert len(set(watched.batch.keys)) == len(watched.batch.keys)
    fake.set(2, dev_err=0)
    watched.until(lambda: watched.state("2") == "ok")
    states = {label(key, "uuid") for key in watched.batch.keys if name_of(key) == "gpuwatch_gpu_state"}
    assert states == {UUID(0), "index:1", UUID(2), "index:3"}


def test_a_gpu_that_needs_a_reset_is_resetting_and_shows_what_still_answers(machine, watch):
    fake = machine()
    watched = watch(fake)
    watched.until(lambda: watched.state("1") == "ok")
    fake.set(1, temp="!16")
    watched.until(lambda: watched.state("1") == "resetting")
    assert watched.value("memory_used_bytes", "1") == 73014444032
    assert watched.absent("temperature_celsius", "1") == (Reason.RESETTING, "GPU requires a reset")
    fake.set(1, dev_err=16)
    watched.until(lambda: watched.value("memory_used_bytes", "1") is None)
    assert watched.state("1") == "resetting"
    assert watched.state("0") == "ok"
    assert watched.batch.detail == "GPU 1: needs a reset"


def test_missing_permission_is_a_state_for_a_gpu_and_a_reason_for_a_value(machine, watch):
    fake = machine()
    fake.set(0, procs_err=4)
    fake.set(1, dev_err=4)
    watched = watch(fake)
    watched.until(lambda: watched.state("1") == "no_permission")
    assert watched.state("0") == "ok"
    assert watched.value("processes") is None
    assert watched.absent("processes") == (Reason.NO_PERMISSION, "no permission")
    assert watched.value("memory_unattributed_bytes") is None
    assert watched.value("memory_used_bytes") == 73014444032


def test_one_hanging_gpu_is_named_with_its_call_while_the_other_stays_fresh(machine, watch):
    fake = machine()
    watched = watch(fake)
    watched.until(lambda: watched.state("1") == "ok")
    worker = watched.source.worker_pid
    fake.fail("nvmlDeviceGetTemperature", gpu=1, delay_ms=30_000)
    watched.until(lambda: watched.state("1") == "hung")
    watched.until(lambda: "nvmlDeviceGetTemperature" in watched.absent("memory_used_bytes", "1")[1])
    assert watched.absent("memory_used_bytes", "1")[0] is Reason.HUNG
    assert watched.value("memory_used_bytes", "1") is None
    first = watched.value("unresponsive_seconds", "1")
    assert first >= watched.timing.late
    fake.set(0, util_gpu=22)
    watched.until(lambda: watched.value("busy_ratio", "0") == 0.22)
    watched.until(lambda: watched.value("unresponsive_seconds", "1") > first + 0.3)
    assert watched.value("unresponsive_seconds", "0") is None
    assert watched.host_value("gpuwatch_host_nvml_unresponsive_seconds") is None
    assert watched.source.worker_pid == worker
    begin = time.monotonic()
    watched.poll()
    assert time.monotonic() - begin < 0.2
    watched.source.close()
    assert time.monotonic() - begin < 1.0
    assert not Path(f"/proc/{worker}").exists()


def test_two_gpus_that_hang_in_different_calls_leave_the_third_fresh(machine, watch):
    fake = machine(gpus=3)
    watched = watch(fake)
    watched.until(lambda: watched.state("2") == "ok")
    fake.fail("nvmlDeviceGetClockInfo", gpu=0, delay_ms=30_000)
    fake.fail("nvmlDeviceGetMemoryInfo_v2", gpu=1, delay_ms=30_000)
    watched.until(lambda: (watched.state("0"), watched.state("1")) == ("hung", "hung"))
    fake.set(2, util_gpu=44)
    watched.until(lambda: watched.value("busy_ratio", "2") == 0.44)
    assert watched.state("2") == "ok"


def test_at_one_tick_per_second_a_hang_is_reported_within_ten_seconds():
    assert Timing().late <= 5.0
    assert Timing().interval * 2 + Timing().late <= 10.0


def test_a_gpu_that_hung_for_a_while_is_ok_again(machine, watch):
    fake = machine()
    watched = watch(fake)
    watched.until(lambda: watched.state("1") == "ok")
    fake.fail("nvmlDeviceGetTemperature", gpu=1, delay_ms=1200, times=1)
    watched.until(lambda: watched.state("1") == "hung")
    watched.until(lambda: watched.state("1") == "ok")
    assert watched.value("unresponsive_seconds", "1") is None
    assert watched.value("temperature_celsius", "1") == 66


def test_when_nothing_answers_the_worker_is_replaced_and_the_age_goes_on(machine, watch):
    fake = machine(gpus=1)
    timing = Timing(interval=0.1, missed_ticks=5, least_late=0.0, replace_after=1.0, first_delay=0.1)
    watched = watch(fake, timing=timing)
    watched.until(lambda: watched.state() == "ok")
    first = watched.source.worker_pid
    fake.fail("nvmlDeviceGetUtilizationRates", delay_ms=30_000)
    watched.until(lambda: watched.state() == "hung")
    assert watched.host_value("gpuwatch_host_nvml_unresponsive_seconds") > 0.5
    watched.until(lambda: watched.source.worker_pid not in (None, first))
    watched.until(lambda: (watched.value("unresponsive_seconds") or 0) > 1.8)
    assert watched.state() == "hung"
    assert watched.labels("info")["uuid"] == UUID(0)
    assert watched.host_value("gpuwatch_host_nvml_unresponsive_seconds") > 1.8
    fake.heal()
    watched.until(lambda: watched.state() == "ok")
    assert watched.host_value("gpuwatch_host_nvml_unresponsive_seconds") is None


def test_a_hanging_initialisation_is_said_and_does_not_hold_up_poll_or_close(machine, watch):
    fake = machine()
    fake.fail("nvmlInitWithFlags", delay_ms=30_000)
    watched = watch(fake, timing=Timing(interval=0.1, missed_ticks=5, least_late=0.0, start_wait=0.2))
    batch = watched.poll()
    assert (batch.up, batch.reason) == (False, Reason.NEVER_SEEN)
    watched.until(lambda: watched.host_value("gpuwatch_host_nvml_unresponsive_seconds") is not None)
    watched.until(lambda: "nvmlInit has not returned for" in watched.batch.absent[0].detail)
    assert (watched.batch.up, watched.batch.reason) == (True, Reason.HUNG)
    assert watched.batch.detail == watched.batch.absent[0].detail
    assert watched.batch.duration < 0.3
    begin = time.monotonic()
    watched.source.close()
    assert time.monotonic() - begin < 1.0


def test_a_killed_worker_is_replaced_and_counts_go_on(machine, watch):
    fake = machine()
    watched = watch(fake)
    watched.until(lambda: watched.state("0") == "ok")
    fake.xid(0, 48)
    watched.until(lambda: watched.value("xid_errors_total", xid="48") == 1)
    first = watched.source.worker_pid
    os.kill(first, signal.SIGKILL)
    fake.set(0, util_gpu=33)
    watched.until(lambda: watched.value("busy_ratio") == 0.33)
    assert watched.source.worker_pid != first
    assert watched.value("xid_errors_total", xid="48") == 1
    assert watched.batch.up


def test_a_worker_that_keeps_dying_is_a_failed_source_with_the_reason(machine, watch):
    fake = machine(gpus=1)
    watched = watch(fake, timing=Timing(interval=0.1, missed_ticks=3, least_late=0.0, first_delay=60.0, start_wait=5.0))
    watched.until(lambda: watched.state() == "ok")
    os.kill(watched.source.worker_pid, signal.SIGKILL)
    batch = watched.until(lambda: not watched.batch.up)
    assert batch.reason is Reason.FAILED
    assert batch.detail == "the NVML worker was killed by SIGKILL"


def test_a_gpu_that_the_driver_no_longer_lists_is_lost_not_forgotten(machine, watch):
    fake = machine(gpus=2)
    watched = watch(fake)
    watched.until(lambda: watched.state("1") == "ok")
    fake.system_set(count=1)
    os.kill(watched.source.worker_pid, signal.SIGKILL)
    watched.until(lambda: watched.state("1") == "lost")
    assert watched.labels("state", "1")["uuid"] == UUID(1)
    assert watched.labels("info", "1")["name"] == "NVIDIA H100 80GB HBM3"
    watched.until(lambda: watched.state("0") == "ok")


def test_without_the_library_the_source_says_so_and_rests(tmp_path, machine, watch):
    # An unreadable library hides any real one of this machine.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    watched = watch(machine(), env={"LD_LIBRARY_PATH": str(tmp_path)})
    batch = watched.poll()
    assert (batch.up, batch.reason, batch.keys) == (False, Reason.NO_DRIVER, ())
    assert batch.detail.startswith("no NVIDIA driver: libnvidia-ml.so.1 not found")
    begin = time.monotonic()
    for _ in range(20):
        watched.poll()
        assert watched.source.worker_pid is None
    assert time.monotonic() - begin < 0.5
    assert watched.batch.detail == batch.detail


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (9, Reason.NO_DRIVER, "kernel module is not loaded"),
        (4, Reason.NO_PERMISSION, "/dev/nvidiactl"),
        (999, Reason.FAILED, "Unknown Error (nvmlInit)"),
    ],
)
def test_a_failing_initialisation_is_told_apart(machine, watch, code, reason, words):
    fake = machine()
    fake.system_set(init_err=code)
    batch = watch(fake).poll()
    assert (batch.up, batch.reason) == (False, reason)
    assert words in batch.detail


def test_a_driver_without_gpus_is_said(machine, watch):
    batch = watch(machine(gpus=0)).poll()
    assert (batch.up, batch.reason) == (False, Reason.NOT_FOUND)
    assert "the NVIDIA driver 580.95.05 lists no GPU" in batch.detail


def test_a_driver_that_is_replaced_under_us_is_picked_up_by_a_new_worker(machine, watch):
    fake = machine()
    watched = watch(fake)
    watched.until(lambda: watched.state("0") == "ok")
    fake.system_set(init_err=18)
    fake.fail("nvmlDeviceGetUtilizationRates", 18)
    batch = watched.until(lambda: not watched.batch.up)
    assert batch.reason is Reason.DRIVER_MISMATCH
    assert "differ in version" in batch.detail
    fake.heal()
    fake.system_set(init_err=0, driver_version="590.44.01")
    watched.until(lambda: watched.state("0") == "ok")
    assert watched.labels("info", "0")["driver_version"] == "590.44.01"


def test_an_outdated_pynvml_package_is_named(tmp_path, machine, watch, monkeypatch):
    package = tmp_path / "pynvml"
    package.mkdir()
    (package / "__init__.py").write_text("class NVMLError(Exception): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    batch = watch(machine()).poll()
    assert (batch.up, batch.reason) == (False, Reason.FAILED)
    assert "pip uninstall pynvml" in batch.detail


def test_close_is_final_and_may_be_called_twice(machine, watch):
    watched = watch(machine())
    watched.until(lambda: watched.state("0") == "ok")
    worker = watched.source.worker_pid
    watched.source.close()
    watched.source.close()
    assert not Path(f"/proc/{worker}").exists()
    batch = watched.poll()
    assert (batch.up, batch.detail) == (False, "closed")


def test_the_worker_ends_with_its_parent(machine):
    fake = machine()
    code = (
        "import time\n"
        "from gpuwatch.clock import SystemClock\n"
        "from gpuwatch.sources.nvml.source import NvmlSource\n"
        "source = NvmlSource('h', SystemClock())\n"
        "source.poll()\n"
        "print(source.worker_pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **fake.env()}) as parent:
        worker = Path("/proc") / parent.stdout.readline().decode().strip()
        assert worker.exists()
        parent.kill()
    deadline = time.monotonic() + 3
    while worker.exists() and "zombie" not in (worker / "status").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not worker.exists() or "zombie" in (worker / "status").read_text()


class Unkillable:
    """A worker in uninterruptible sleep: it says nothing and does not die."""

    made = 0

    def __init__(self, *_args):
        Unkillable.made += 1
        self.pid = Unkillable.made

    def read(self):
        return [], False

    def wait_readable(self, _seconds):
        pass

    def kill(self):
        pass

    def close(self, _seconds=0.0):
        return False

    def gone(self):
        return False

    def starved(self):
        return False


def test_at_most_a_few_unkillable_workers_are_started(monkeypatch):
    monkeypatch.setattr(nvml, "Child", Unkillable)
    clock = ManualClock()
    source = NvmlSource("h", clock, timing=Timing(start_wait=0.0, most_stuck=3))
    batches = []
    for _ in range(1200):
        batches.append(source.poll())
        clock.advance(1.0)
    assert Unkillable.made == 3
    assert batches[-1].up
    assert batches[-1].values[0] > 1000
    assert batches[-1].absent[0].reason is Reason.HUNG
    assert batches[-1].absent[0].detail == "3 NVML workers hang in the driver and cannot be killed; reboot"
    source.close()


def test_a_machine_without_a_driver_starts_a_worker_once_per_five_minutes(monkeypatch):
    starts = []

    class Ends(Unkillable):
        def __init__(self, *_args):
            super().__init__()
            starts.append(clock.monotonic())

        def read(self):
            return [["end", 12, "nvmlInit"]], True

        def close(self, _seconds=0.0):
            return True

    clock = ManualClock()
    monkeypatch.setattr(nvml, "Child", Ends)
    monkeypatch.setattr(nvml, "driver_traces", lambda: traces)
    traces = (0.0,)
    source = NvmlSource("h", clock)
    for second in range(700):
        if second == 650:
            traces = (1.0,)
        assert source.poll().reason is Reason.NO_DRIVER
        clock.advance(1.0)
    # At once, twice by time, and when the driver's files changed.
    assert starts == [0.0, 300.0, 600.0, 650.0]


def test_the_real_clock_is_the_one_of_the_workers_readings(machine, watch):
    watched = watch(machine(gpus=1))
    watched.until(lambda: watched.state() == "ok")
    gpu = next(iter(watched.source._gpus.values()))
    assert 0 <= SystemClock().monotonic() - gpu.answered < 2.0
