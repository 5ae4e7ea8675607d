"""Findings about the host and about platforms without the usual figures."""

from __future__ import annotations

import pytest

from gpuwatch.diagnosis.context import Context
from gpuwatch.diagnosis.explanation import Unknown
from gpuwatch.diagnosis.host import oversubscribed
from gpuwatch.engines.flags import flag_facts, parse_flags
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.store import Store
from tests.unit.diagnosis.storms import START
from tests.unit.diagnosis.watch import CONFIG, ENGINE, SERVER, Watch, event, fact, flags, gpu, name, texts

GIB = 1 << 30
MIB = 1 << 20
HOST = {"host": "h"}


def after(second, low, high):
    return lambda now: float(high) if now >= second else float(low)


class TestLeak:
    def host(self, resident, available=16.0, **more):
        return {
            name("engine_process_resident_bytes", CONFIG): resident,
            name("host_memory_available_bytes", HOST): available * GIB,
            name("host_memory_total_bytes", HOST): 128.0 * GIB,
            name("engine_requests_running", ENGINE): 4.0,
            **{name(short, ENGINE): value for short, value in more.items()},
        }

    def test_a_leak_is_found_within_two_minutes_with_its_size_per_request(self):
        leak = lambda now: 20.0 * GIB + 36 * MIB * max(0, now - 150)  # noqa: E731  # from second 150 on
        live = self.host(leak)
        live[name("engine_requests_finished_total", ENGINE, reason="stop")] = lambda now: 18.0 * now
        live[name("gpu_memory_engine_bytes", gpu(0), server=SERVER)] = 70.0 * GIB
        watch = Watch().run(285, live)
        assert 150 < watch.first_seen["host_memory_leak"] <= 270
        finding = watch["host_memory_leak"]
        assert "at this rate the host is full in 8 minutes" in finding.cause  # 16 GiB at 36 MiB a second: 455 s
        told = texts(finding)
        assert "2,160 requests finished meanwhile: 2048 KiB each" in told  # 18 a second for 120 s; 36 MiB / 18
        assert "Ruled out: GPU memory: it stands still" in told

    def test_a_slow_leak_is_found_by_three_stretches(self):
        stairs = lambda now: 20.0 * GIB + 80 * MIB * sum(now >= at for at in (360, 600, 840))  # noqa: E731
        watch = Watch().run(1020, self.host(stairs), every=15)
        assert "at this rate the host is full in" in watch["host_memory_leak"].cause
        assert watch["host_memory_leak"].cause.endswith("hours.")

    def test_a_store_on_the_host_that_fills_is_none(self):
        leak = lambda now: 20.0 * GIB + 36 * MIB * now  # noqa: E731
        watch = Watch().run(200, self.host(leak, engine_kv_offload_usage_ratio=lambda now: 0.001 * now), every=5)
        assert watch.first_seen == {}


class TestShm:
    def shm(self, used, total, memory=128.0):
        return {
            name("host_shm_used_bytes", HOST): used * MIB,
            name("host_shm_total_bytes", HOST): total * MIB,
            name("host_memory_total_bytes", HOST): memory * GIB,
        }

    def test_a_container_with_64_mib_is_answered_with_one_gib_for_each_gpu(self):
        live = self.shm(63.0, 64.0)
        live |= {name("gpu_engine", gpu(i), server=SERVER, basis="process"): 1.0 for i in range(4)}
        finding = Watch().run(20, live)["host_shm_exhaustion"]
        assert flags(finding)[0] == ("--shm-size", "64 MiB", "4g")
        assert "63 MiB of 64 MiB" in texts(finding)

    def test_a_large_one_that_is_full_is_answered_with_what_lies_in_it(self):
        finding = Watch().run(20, self.shm(64_000.0, 65_536.0))["host_shm_exhaustion"]
        assert [advice.flag for advice in finding.advice] == [""]
        assert "nccl-* of killed engines" in finding.advice[0].text

    def test_the_line_of_nccl_stands_in_the_evidence_and_sets_the_size(self):
        line = "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ewjreo (size 3221225472)"
        failed = event("nccl_shm_failed", line, 10, size="3221225472")
        log = {"host": "h", "log": "/var/log/vllm.log", "server": SERVER}
        live = {**self.shm(20.0, 64.0), name("log_events_total", log, event="nccl_shm_failed"): after(10, 0, 1)}
        finding = Watch((), (failed,)).run(20, live)["host_shm_exhaustion"]
        assert line in texts(finding)
        assert flags(finding)[0][2] == "7g"  # twice 3 GiB and 20 MiB

    def refused(self, used, total):
        line = "Error while creating shared memory segment /dev/shm/nccl-abc (size 33030528)"
        failed = event("nccl_shm_failed", line, 10, size="33030528")
        log = {"host": "h", "log": "/var/log/vllm.log", "server": SERVER}
        live = {**self.shm(used, total), name("log_events_total", log, event="nccl_shm_failed"): after(10, 0, 1)}
        return Watch((), (failed,)).run(20, live)["host_shm_exhaustion"]

    def test_a_host_with_room_is_not_taken_for_the_container_that_has_none(self):
        finding = self.refused(200.0, 503.0 * 1024)
        assert flags(finding) == [("--shm-size", None, "1g")]
        assert "this host's /dev/shm, not the container's: 200 MiB of 503.0 GiB are used" in texts(finding)
        assert "That of this host has room for it" in finding.cause

    def test_a_host_without_room_for_it_is_the_cause_itself(self):
        # Twice 40 MiB that are used and 31.5 that were asked for, less than 1 GiB for the one GPU.
        assert flags(self.refused(40.0, 64.0))[0] == ("--shm-size", "64 MiB", "1g")


KILL = "Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB"


class TestOversubscribed:
    def killed(self, **fields):
        seen = event(
            "out_of_memory_killed", KILL, 10, source="kernel log", pid="4711", name="VLLM::EngineCor",
            resident=str(60 * GIB), **fields,
        )  # fmt: skip
        live = {
            name("kernel_events_total", HOST, event="out_of_memory_killed"): after(10, 0, 1),
            name("host_memory_available_bytes", HOST): 40.0 * GIB,
            name("host_memory_total_bytes", HOST): 128.0 * GIB,
            name("engine_process_resident_bytes", CONFIG): 70.0 * GIB,
        }
        return Watch((), (seen,)).run(20, live)

    def test_a_kill_names_the_process_its_engine_and_that_the_host_was_full(self):
        watch = self.killed(scope="Out of memory", constraint="CONSTRAINT_NONE")
        assert watch.first_seen == {"host_memory_oversubscribed": 10}
        cause = watch["host_memory_oversubscribed"].cause
        assert "killed VLLM::EngineCor (process 4711) of 127.0.0.1:8000, which held 60.0 GiB" in cause
        assert "the whole host had run out of memory" in cause

    def test_a_kill_within_a_control_group_says_so(self):
        cause = self.killed(scope="Memory cgroup out of memory")["host_memory_oversubscribed"].cause
        assert "its control group reached its memory limit" in cause

    def test_little_memory_names_who_holds_it_and_what_is_taken_per_rank(self):
        live = {
            name("host_memory_available_bytes", HOST): 3.0 * GIB,
            name("host_memory_total_bytes", HOST): 128.0 * GIB,
            name("host_swap_used_bytes", HOST): 2.0 * GIB,
            name("engine_process_resident_bytes", CONFIG): 110.0 * GIB,
            name("engine_config_tensor_parallel_size", CONFIG): 4.0,
        }
        given = flag_facts("vllm", parse_flags("vllm", ["--cpu-offload-gb", "24"]))
        watch = Watch([fact(key, value) for key, value in given.items()]).run(20, live)
        finding = watch["host_memory_oversubscribed"]
        assert finding.cause == "Only 2.3 % of the host's memory are left."
        assert "the processes of 127.0.0.1:8000 hold 110.0 GiB" in texts(finding)
        assert flags(finding)[0][:2] == ("--cpu-offload-gb", "24")
        assert "each of 4 ranks" in finding.advice[0].text

    @pytest.mark.parametrize(("ratio", "named"), [("8", [("--hicache-ratio", "8", None)]), ("2.0", [])])
    def test_a_host_cache_is_named_where_it_is_larger_than_by_default(self, ratio, named):
        live = {
            name("host_memory_available_bytes", HOST): 3.0 * GIB,
            name("host_memory_total_bytes", HOST): 128.0 * GIB,
            name("engine_process_resident_bytes", CONFIG): 110.0 * GIB,
        }
        given = flag_facts("sglang", parse_flags("sglang", ["--hicache-ratio", ratio, "--hicache-size", "0"]))
        watch = Watch([fact(key, value) for key, value in given.items()]).run(20, live)
        assert [each for each in flags(watch["host_memory_oversubscribed"]) if each[0]] == named

    def test_a_kill_whose_line_is_not_known_says_so_and_not_how_much_memory_is_left(self):
        live = {
            name("kernel_events_total", HOST, event="out_of_memory_killed"): after(10, 0, 1),
            name("host_memory_available_bytes", HOST): 80.0 * GIB,
            name("host_memory_total_bytes", HOST): 128.0 * GIB,
        }
        finding = Watch().run(20, live)["host_memory_oversubscribed"]
        assert finding.cause == "The kernel killed a process for lack of memory; its log line is not known here."
        assert finding.confidence == 0.7
        assert "lines of the kernel's log that say so in 5 minutes: 1" in texts(finding)

    @pytest.mark.parametrize(
        ("alert", "missing"),
        [
            ("GpuwatchHostMemoryLow", "available and total memory of the host"),
            ("GpuwatchCgroupMemoryLow", "use and limit of the control group's memory"),
        ],
    )
    def test_memory_that_is_not_known_is_not_zero(self, alert, missing):
        store = Store()
        total = [name("host_memory_total_bytes", HOST), name("host_cgroup_memory_limit_bytes", HOST)]
        store.append("host", START, total, [128.0 * GIB, 100.0 * GIB])
        verdict = oversubscribed(Context(LocalQuerier(store), START).about(HOST, alert, 5.0))
        assert verdict == Unknown(missing)

    def test_a_full_control_group_is_told_by_its_own_figures(self):
        live = {
            name("host_cgroup_memory_limit_bytes", HOST): 100.0 * GIB,
            name("host_cgroup_memory_used_bytes", HOST): 98.0 * GIB,
        }
        finding = Watch().run(20, live)["host_memory_oversubscribed"]
        assert finding.cause == "The control group is at 98 % of its memory limit."


class TestPlatform:
    def test_unified_memory_gives_the_share_that_fits(self):
        live = {
            name("gpu_info", gpu(0), name="NVIDIA GB10", memory_kind="unified"): 1.0,
            name("host_memory_available_bytes", HOST): 56.3 * GIB,
            name("host_memory_total_bytes", HOST): 119.56 * GIB,
        }
        finding = Watch().run(10, live)["unified_memory"]
        assert finding.severity == "info"
        assert flags(finding)[0] == ("--gpu-memory-utilization", None, "0.45")  # 0.471 less 0.02

    def test_wsl_is_said_once_with_what_does_not_work_there(self):
        finding = Watch().run(10, {name("host_wsl", HOST): 1.0})["wsl"]
        assert finding.severity == "info"
        assert flags(finding)[0] == ("VLLM_WSL2_ENABLE_PIN_MEMORY", None, "1")

    def test_a_card_in_mig_mode_points_at_its_parts(self):
        live = {
            name("gpu_state", gpu(0), state="ok"): 1.0,
            name("gpu_reading_absent", gpu(0), reading="memory_used_bytes", reason="no_permission"): 1.0,
            name("gpu_reading_absent", gpu(0), reading="busy_ratio", reason="not_supported"): 1.0,
            name("gpu_info", {"host": "h", "uuid": "MIG-1", "gpu": "0:1"}, memory_kind="mig"): 1.0,
        }
        watch = Watch().run(20, live)
        assert watch.ids == ["nvml_na"]
        finding = watch["nvml_na"]
        assert "GPU 0 is split into MIG devices" in finding.cause
        assert "memory_used_bytes: no permission" in texts(finding)
        assert "NVIDIA_MIG_MONITOR_DEVICES=all" in finding.advice[-1].text

    def test_an_unknown_reading_is_neither_zero_nor_idle(self):
        live = {
            name("gpu_state", gpu(0), state="ok"): 1.0,
            name("gpu_reading_absent", gpu(0), reading="busy_ratio", reason="not_supported"): 1.0,
        }
        assert "neither 0 nor idle" in Watch().run(20, live)["nvml_na"].cause

    @pytest.mark.parametrize(
        ("hidden", "listed", "words"),
        [(2.0, 3.0, "2 of 3 processes"), (0.0, 0.0, "7.0 GiB are used and no process is listed")],
    )
    def test_a_container_that_does_not_see_the_processes_says_that_nothing_is_leaked(self, hidden, listed, words):
        live = {
            name("gpu_processes_hidden", gpu(0)): hidden,
            name("gpu_processes", gpu(0)): listed,
            name("gpu_memory_used_bytes", gpu(0)): 7.0 * GIB,
            name("gpu_memory_total_bytes", gpu(0)): 24.0 * GIB,
            name("host_container", HOST): 1.0,
        }
        watch = Watch().run(70, live)
        assert watch.ids == ["container_pid_invisible"]
        finding = watch["container_pid_invisible"]
        assert "neither unused nor leaked" in finding.cause
        assert words in texts(finding)
        assert "--pid=host" in finding.advice[0].text
