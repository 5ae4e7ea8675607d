from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.model import Reason, label, name_of
from gpuwatch.series import METRICS
from gpuwatch.sources.host import EngineUsage, HostSource, busy_ratio, nvidia_devices, read_memory
from gpuwatch.sources.host_cgroup import Limits, read_limits
from gpuwatch.sources.nvml.attribution import EngineProcess


def tree(root, files):
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def values(batch):
    return {
        (name_of(key).removeprefix("gpuwatch_"), label(key, "server")): value
        for key, value in zip(batch.keys, batch.values, strict=True)
    }


def test_the_machine_is_measured(tmp_path):
    tree(tmp_path, {"dev/shm/x": ""})
    source = HostSource("h", ManualClock(), root=tmp_path)
    first = source.poll()
    deadline = time.monotonic() + 5
    while ("host_cpu_busy_ratio", "") not in (found := values(source.poll())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ("host_cpu_busy_ratio", "") not in values(first)
    assert 0 <= found["host_cpu_busy_ratio", ""] <= 1
    assert found["host_cpu_cores", ""] == os.cpu_count()
    assert found["host_memory_total_bytes", ""] == psutil.virtual_memory().total
    assert 0 < found["host_memory_available_bytes", ""] < found["host_memory_total_bytes", ""]
    assert found["host_swap_total_bytes", ""] == psutil.swap_memory().total
    statistics = os.statvfs(tmp_path)
    assert found["host_shm_total_bytes", ""] == statistics.f_blocks * statistics.f_frsize
    assert {name_of(key) for key in source.poll().keys} <= METRICS.keys()


def test_memory_is_read_from_the_kernels_file_and_from_psutil_where_that_cannot_be(tmp_path):
    good = tmp_path / "meminfo"
    good.write_text(
        "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 300 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n"
        "HugePages_Total: 0\n"
    )
    assert read_memory(str(good)) == (1000 * 1024, 300 * 1024, 50 * 1024, 30 * 1024)
    # Some containers show the host's available memory beside their own total.
    bad = tmp_path / "container"
    bad.write_text("MemTotal: 1000 kB\nMemAvailable: 3000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    for path in (bad, tmp_path / "missing"):
        assert read_memory(str(path))[0] == psutil.virtual_memory().total


def test_memory_in_use_beside_a_limit_is_read_at_every_poll(tmp_path):
    group = "sys/fs/cgroup"
    tree(tmp_path, {f"{group}/cgroup.controllers": "memory\n", f"{group}/memory.max": "1000\n"})
    source = HostSource("h", ManualClock(), root=tmp_path)
    for used in (700, 800):
        tree(tmp_path, {f"{group}/memory.current": f"{used}\n"})
        assert values(source.poll())["host_cgroup_memory_used_bytes", ""] == used


def test_a_limit_that_is_set_later_is_seen_within_ten_seconds(tmp_path):
    group = "sys/fs/cgroup"
    tree(tmp_path, {f"{group}/cgroup.controllers": "memory\n", f"{group}/memory.max": "max\n"})
    clock = ManualClock()
    source = HostSource("h", clock, root=tmp_path)
    assert ("host_cgroup_memory_limit_bytes", "") not in values(source.poll())
    tree(tmp_path, {f"{group}/memory.max": "1000\n"})
    clock.advance(10)
    assert values(source.poll())["host_cgroup_memory_limit_bytes", ""] == 1000


def test_keys_stay_the_same_object(tmp_path):
    source = HostSource("h", ManualClock(), root=tmp_path)
    keys = []
    for _ in range(3):
        keys.append(source.poll().keys)
        time.sleep(0.1)  # the kernel counts CPU time in steps of 10 ms
    assert keys[2] is keys[1]


def test_a_missing_shm_is_absent_with_the_reason(tmp_path):
    batch = HostSource("h", ManualClock(), root=tmp_path).poll()
    assert ("host_shm_total_bytes", "") not in values(batch)
    (absence,) = batch.absent
    assert absence.reason is Reason.NOT_SUPPORTED
    assert "No such file" in absence.detail


def test_busy_is_what_was_neither_idle_nor_waiting_for_io():
    # 10 s of CPU time: 2 user, 1 system, 6 idle, 1 iowait -> 3 of 10.
    assert busy_ratio([5, 5, 50, 1], [7, 6, 56, 2], [2, 3]) == pytest.approx(0.3)
    assert busy_ratio([5, 5, 50, 1], [5, 5, 50, 1], [2, 3]) is None
    # iowait may go backwards on Linux.
    assert busy_ratio([5, 5, 50, 9], [6, 5, 59, 8], [2, 3]) == pytest.approx(0.1)


def test_nvidia_devices_are_counted_by_vendor_and_class(tmp_path):
    pci = "sys/bus/pci/devices"
    devices = {
        "0000:19:00.0": ("0x10de", "0x030200"),  # H100: 3D controller
        "0000:2a:00.0": ("0x10de", "0x030000"),  # a card with a display
        "0000:2a:00.1": ("0x10de", "0x040300"),  # its audio function
        "0000:05:00.0": ("0x10de", "0x068000"),  # NVSwitch
        "0000:06:00.0": ("0x1a03", "0x030000"),  # the server's own VGA
    }
    for address, (vendor, kind) in devices.items():
        tree(tmp_path, {f"{pci}/{address}/vendor": vendor + "\n", f"{pci}/{address}/class": kind + "\n"})
    assert nvidia_devices(tmp_path) == 2
    assert values(HostSource("h", ManualClock(), root=tmp_path).poll())["host_nvidia_devices", ""] == 2


def test_a_machine_without_sysfs_does_not_count_devices(tmp_path):
    assert nvidia_devices(tmp_path) is None
    assert ("host_nvidia_devices", "") not in values(HostSource("h", ManualClock(), root=tmp_path).poll())


def test_cgroup_v2_takes_the_tightest_limit_on_the_way_up(tmp_path):
    group = "sys/fs/cgroup/kubepods.slice/pod1/c1"
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods.slice/pod1/c1\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
            f"{group}/memory.max": "max\n",
            f"{group}/memory.current": "700\n",
            f"{group}/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/kubepods.slice/pod1/memory.max": "1000\n",
            "sys/fs/cgroup/kubepods.slice/pod1/memory.current": "800\n",
            "sys/fs/cgroup/kubepods.slice/pod1/memory.stat": "anon 500\ninactive_file 120\n",
            "sys/fs/cgroup/kubepods.slice/pod1/cpu.max": "max 100000\n",
            "sys/fs/cgroup/kubepods.slice/memory.max": "5000\n",
        },
    )
    assert read_limits(tmp_path) == Limits(memory_limit=1000, memory_used=680, cpu_cores=1.5)


def test_cgroup_v1_knows_its_word_for_no_limit(tmp_path):
    tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpuacct,cpu:/docker/abc\n0::/\n",
            # Inside the container its own group is mounted as the root.
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1500\n",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 500\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert read_limits(tmp_path) == Limits(memory_limit=2147483648, memory_used=1000, cpu_cores=None)
    tree(
        tmp_path,
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n",
        },
    )
    assert read_limits(tmp_path) == Limits(cpu_cores=2.5)


def test_without_control_groups_there_are_no_limits(tmp_path):
    assert read_limits(tmp_path) == Limits()


def test_cpu_time_of_a_worker_that_ended_stays_in_the_engines_counter():
    code = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ninput()"
    usage = EngineUsage()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as worker:
        deadline = time.monotonic() + 60
        while (found := usage.read([worker.pid, os.getpid()]))[0] < 0.3 and time.monotonic() < deadline:
            time.sleep(0.02)
        own = usage.read([os.getpid()])
        before = usage.read([worker.pid, os.getpid()])[0]
        worker.communicate(b"\n", timeout=60)
    after, resident, count = usage.read([worker.pid, os.getpid()])
    assert found[2] == 2
    assert own[2] == 1
    assert after >= before
    assert count == 1
    assert resident == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_engines_are_labelled_with_server_and_kind(tmp_path):
    engine = EngineProcess("127.0.0.1:8000", os.getpid(), frozenset(), engine_kind="vllm")
    batch = HostSource("h", ManualClock(), lambda: (engine,), root=tmp_path).poll()
    (key,) = [key for key in batch.keys if name_of(key) == "gpuwatch_engine_processes"]
    assert dict(key) == {
        "__name__": "gpuwatch_engine_processes",
        "host": "h",
        "server": "127.0.0.1:8000",
        "engine_kind": "vllm",
    }
    assert values(batch)["engine_processes", "127.0.0.1:8000"] == 1
    assert values(batch)["engine_process_cpu_seconds_total", "127.0.0.1:8000"] > 0


def test_an_engine_whose_processes_have_ended_has_none_also_when_it_is_no_longer_found(tmp_path):
    clock, found = ManualClock(), []
    source = HostSource("h", clock, lambda: tuple(found), root=tmp_path)
    assert ("engine_processes", "s:1") not in values(source.poll())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found.append(EngineProcess("s:1", process.pid, frozenset(), engine_kind="vllm"))
        assert values(source.poll())["engine_processes", "s:1"] == 1
        process.kill()
        deadline = time.monotonic() + 10
        # Nobody has waited for it yet: it is still listed, as a zombie.
        while values(source.poll())["engine_processes", "s:1"] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert values(source.poll())["engine_processes", "s:1"] == 0
    found.clear()
    gone = source.poll()
    assert values(gone)["engine_processes", "s:1"] == 0
    assert values(gone)["engine_process_resident_bytes", "s:1"] == 0
    clock.advance(901)
    assert ("engine_processes", "s:1") not in values(source.poll())


def test_an_engine_that_is_not_found_for_a_moment_keeps_its_processes(tmp_path):
    found = [EngineProcess("s:1", os.getpid(), frozenset(), engine_kind="vllm")]
    source = HostSource("h", ManualClock(), lambda: tuple(found), root=tmp_path)
    source.poll()
    found.clear()
    assert values(source.poll())["engine_processes", "s:1"] == 1


@pytest.mark.parametrize(
    ("release", "wsl"),
    [("5.15.153.1-microsoft-standard-WSL2", 1), ("6.8.0-1015-azure", 0), (None, 0)],
)
def test_windows_subsystem_is_told_by_the_release_of_the_kernel(tmp_path, release, wsl):
    if release is not None:
        tree(tmp_path, {"proc/sys/kernel/osrelease": release + "\n"})
    assert values(HostSource("h", ManualClock(), root=tmp_path).poll())["host_wsl", ""] == wsl


def test_a_container_is_told_by_the_marks_of_its_runtime(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert values(HostSource("h", ManualClock(), root=tmp_path).poll())["host_container", ""] == 0
    tree(tmp_path, {"run/.containerenv": ""})
    assert values(HostSource("h", ManualClock(), root=tmp_path).poll())["host_container", ""] == 1
