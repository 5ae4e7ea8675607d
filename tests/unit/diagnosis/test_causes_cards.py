"""What is told of the cards: kernels that faulted, values that cannot be read, clocks that are held back, links."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.diagnosis.incidents import Verdict

FATAL = (
    "(EngineCore pid=77) ERROR 07-27 21:14:02 [core.py:1120] EngineCore encountered a fatal error.\n"
    "(EngineCore pid=77) ERROR 07-27 21:14:02 [core.py:1120] torch.AcceleratorError: CUDA error: an illegal memory "
    "access was encountered\n"
)
SURVIVED = (
    "(EngineCore pid=77) WARNING 07-27 21:14:02 [probe.py:11] CUDA error: an illegal memory access was encountered\n"
)
FAULT = "[Mon Jul 27 21:14:02 2026] NVRM: Xid (PCI:0000:01:00): 31, pid=77, name=VLLM::EngineCor, MMU Fault\n"
BUSY_OTHER = "[Mon Jul 27 21:14:02 2026] NVRM: Xid (PCI:0000:01:00): 31, pid=9, name=blender, MMU Fault\n"

ROW = """\
| NVIDIA-SMI 570.133.20             Driver Version: 570.133.20     CUDA Version: 12.8     |
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:18:00.0 Off |                 ERR! |
| N/A   {temp:>4}  P0           {power:>4} /  400W   |   73990MiB /  81920MiB |    {busy:>5}     Default |
"""

QUERY = """\
==============NVSMI LOG==============

Timestamp                                 : Tue Feb  3 10:00:00 2026
Attached GPUs                             : 1
GPU 00000000:0B:00.0
    Product Name                          : NVIDIA GeForce RTX 3090
    Clocks Event Reasons
        SW Power Cap                      : {capped}
        HW Slowdown                       : {hot}
            HW Thermal Slowdown           : {hot}
{busy}    Temperature
        GPU Current Temp                  : 97 C
    GPU Power Readings
        Power Draw                        : {draw:.2f} W
        Current Power Limit               : {limit:.2f} W
        Default Power Limit               : 350.00 W
    Clocks
        SM                                : {clock} MHz
    Max Clocks
        SM                                : 2100 MHz
"""
BUSY = "    Utilization\n        Gpu                               : 100 %\n"


def judged(folder: Path, **files: str) -> Verdict:
    return Verdict(folder, {f"{name}.txt": text for name, text in files.items()})


def query(*, capped: bool = False, hot: bool = False, busy: str = BUSY, draw=199.0, limit=200.0, clock=795) -> str:
    words = {True: "Active", False: "Not Active"}
    return QUERY.format(capped=words[capped], hot=words[hot], busy=busy, draw=draw, limit=limit, clock=clock)


class TestKernels:
    def test_a_fault_that_ended_the_engine_is_critical_and_speaks_of_no_driver(self, tmp_path):
        finding = judged(tmp_path, log=FATAL)["xid_software"]
        assert finding.severity == "critical"
        assert "driver reported" not in finding.title
        assert "fatal error" in " ".join(each.text for each in finding.evidence)

    def test_a_fault_after_which_the_engine_goes_on_stays_a_warning(self, tmp_path):
        assert judged(tmp_path, log=SURVIVED)["xid_software"].severity == "warning"

    def test_the_drivers_line_is_joined_with_the_error_and_the_end_that_it_brought(self, tmp_path):
        verdict = judged(tmp_path, dmesg=FAULT, log=FATAL)
        assert verdict["xid_software"].severity == "critical"
        assert "Xid 31" in verdict.said("xid_software")
        assert "illegal memory access" in verdict.said("xid_software")
        assert "fatal error" in verdict.said("xid_software")

    def test_the_drivers_line_about_another_program_is_not(self, tmp_path):
        finding = judged(tmp_path, dmesg=BUSY_OTHER, log=FATAL)["xid_software"]
        assert finding.severity == "warning"
        assert "illegal memory access" not in " ".join(each.text for each in finding.evidence)

    def test_a_fault_beside_a_card_that_cannot_be_read_does_not_clear_the_card(self, tmp_path):
        verdict = judged(tmp_path, log=FATAL, smi=ROW.format(temp="ERR!", power="ERR!", busy="ERR!"))
        assert verdict.ids == ["gpu_lost", "xid_software"]
        assert verdict["xid_software"].caused_by == "gpu_lost"
        assert "seldom the card" not in verdict.said("xid_software")


class TestReadings:
    def test_a_card_that_tells_its_memory_and_nothing_else_is_reported(self, tmp_path):
        finding = judged(tmp_path, smi=ROW.format(temp="ERR!", power="ERR!", busy="ERR!"))["gpu_lost"]
        assert "cannot read GPU 0" in finding.cause
        assert finding.title == "The driver cannot read a GPU"

    def test_sensors_alone_that_fail_are_not(self, tmp_path):
        assert judged(tmp_path, smi=ROW.format(temp="ERR!", power="ERR!", busy="12%")).ids == []

    def test_error_counts_in_a_query_without_a_column_of_load_or_memory_are_read(self, tmp_path):
        csv = (
            "index, name, ecc.errors.uncorrected.volatile.total, remapped_rows.uncorrectable, remapped_rows.pending\n"
            "0, NVIDIA A100-SXM4-80GB, 0, 0, No\n5, NVIDIA A100-SXM4-80GB, 12, 2, Yes\n"
        )
        verdict = judged(tmp_path, smi=csv)
        assert verdict.ids == ["xid_hardware"]
        assert verdict["xid_hardware"].labels == {"gpu": "5"}
        assert "12 uncorrected" in verdict.said("xid_hardware")


class TestClocks:
    def test_a_lowered_power_limit_that_halves_the_clock_is_told_with_both_limits(self, tmp_path):
        finding = judged(tmp_path, smi=query(capped=True))["throttling"]
        assert (finding.advice[0].current, finding.advice[0].proposed) == ("200", "350")
        assert "795 of 2,100 MHz" in " ".join(each.text for each in finding.evidence)

    @pytest.mark.parametrize(
        ("limit", "clock", "found"), [(200, 1700, []), (350, 1400, []), (350, 1200, ["throttling"])]
    )
    def test_a_card_at_its_limit_with_most_of_its_clock_is_healthy(self, tmp_path, limit, clock, found):
        assert judged(tmp_path, smi=query(capped=True, draw=limit - 1, limit=limit, clock=clock)).ids == found

    def test_an_idle_card_is_not_held_back(self, tmp_path):
        idle = BUSY.replace("100 %", "3 %")
        assert judged(tmp_path, smi=query(capped=True, busy=idle)).ids == []

    @pytest.mark.parametrize(("draw", "found"), [(348.0, ["throttling"]), (60.0, [])])
    def test_heat_counts_without_a_figure_of_load_where_the_card_draws_the_power_of_work(self, tmp_path, draw, found):
        assert judged(tmp_path, smi=query(hot=True, busy="", draw=draw, limit=350.0, clock=345)).ids == found

    def test_the_share_of_time_that_dmon_prints_is_told_and_no_cost_is_claimed(self, tmp_path):
        row = "    0    230     61      -    100     55   9501    795     {}      0\n"
        rows = "".join(row.format(96 + at) for at in range(3))
        head = "# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk  pviol  tviol\n"
        units = "# Idx      W      C      C      %      %    MHz    MHz      %   bool\n"
        finding = judged(tmp_path, smi=head + units + rows)["throttling"]
        assert finding.severity == "info"
        assert "96% of the time" in " ".join(each.text for each in finding.evidence)
        calm = judged(tmp_path, smi=head + units + rows.replace("     9", "     1"))
        assert calm.ids == []


REPORT = """\
[Tue Feb  3 08:22:43 2026] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
[Tue Feb  3 08:22:43 2026] memory: usage 41943040kB, limit 41943040kB, failcnt 9
[Tue Feb  3 08:22:43 2026] Memory cgroup stats for /kubepods.slice/pod7:
[Tue Feb  3 08:22:43 2026] anon 10737418240
[Tue Feb  3 08:22:43 2026] shmem {shmem}
[Tue Feb  3 08:22:43 2026] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/kubepods.slice/pod7,\
task_memcg=/kubepods.slice/pod7/c1,task={name},pid=41,uid=0
[Tue Feb  3 08:22:43 2026] Memory cgroup out of memory: Killed process 41 ({name}) total-vm:9kB, \
anon-rss:{anon}kB, file-rss:77744kB, shmem-rss:{own}kB, UID:0 pgtables:234kB oom_score_adj:0
"""


class TestCgroup:
    """40 GiB are 41,943,040 kB; 30 GiB of shared memory are 32,212,254,720 bytes."""

    def test_shared_memory_that_fills_a_container_is_named_with_what_the_victim_held(self, tmp_path):
        text = REPORT.format(shmem=32212254720, name="VLLM::Worker_TP", anon=4 << 20, own=2 << 20)
        verdict = judged(tmp_path, dmesg=text)
        assert verdict.ids == ["k8s_oomkilled"]
        assert "30.0 GiB of shared memory" in verdict["k8s_oomkilled"].cause
        assert "held 6.0 GiB" in verdict.said("k8s_oomkilled")
        assert "137" not in verdict.said("k8s_oomkilled")
        assert verdict.move("k8s_oomkilled", "resources.limits.memory") == ("40Gi", None)

    def test_a_small_victim_is_not_taken_for_who_filled_the_container(self, tmp_path):
        text = REPORT.format(shmem=0, name="ray::IDLE", anon=38000, own=0)
        verdict = judged(tmp_path, dmesg=text)
        assert "37 MiB of 40.0 GiB" in verdict["k8s_oomkilled"].cause
        assert "--load-format" not in verdict.said("k8s_oomkilled")

    def test_the_death_that_a_kill_brought_names_the_killer_in_words_and_asks_for_no_xid(self, tmp_path):
        log = (
            "(EngineCore_DP0 pid=3900) ERROR 02-03 08:22:44 [multiproc_executor.py:154] Worker proc VllmWorker-1 died "
            "unexpectedly, shutting down executor.\n"
        )
        text = REPORT.format(shmem=0, name="VLLM::Worker_TP", anon=20 << 20, own=0)
        died = judged(tmp_path, dmesg=text, log=log)["worker_died"]
        assert "OOM killer" in died.cause
        assert "_" not in died.cause
        assert not any("xid" in each.text for each in died.advice)


NVLINK = "[ 9812.551000] NVRM: Xid (PCI:0018:01:00): {code}, RLW_RXPIPE {how} XC0 i0 Link 13 (0x0409a0c2 0x00000008)\n"
PAGE_FAULT = "[14328.198504] NVRM: Xid (PCI:0000:{bus}:00): 31, pid=133, name=python3, Ch 00000010, MMU Fault\n"
HALTED = "[14370.687545] NVRM: Xid (PCI:0000:0a:00): {code}, pid='<unknown>', name=<unknown>, 2023b230 20238a3a\n"


class TestXids:
    @pytest.mark.parametrize(("how", "severity"), [("Nonfatal", "warning"), ("Fatal", "critical")])
    def test_an_error_of_a_link_that_the_driver_calls_not_fatal_is_a_warning(self, tmp_path, how, severity):
        finding = judged(tmp_path, dmesg=NVLINK.format(code=145, how=how))["xid_hardware"]
        assert finding.severity == severity
        assert ("survived" in finding.title) == (how == "Nonfatal")
        assert any("replaced" in each.text for each in finding.advice) == (how == "Fatal")

    def test_a_fatal_error_beside_one_that_is_not_stays_critical(self, tmp_path):
        both = NVLINK.format(code=145, how="Nonfatal") + NVLINK.format(code=149, how="Fatal")
        finding = judged(tmp_path, dmesg=both)["xid_hardware"]
        assert finding.severity == "critical"
        assert "Xid 149" in finding.cause

    def test_a_fault_of_a_program_before_the_cards_processor_stopped_is_told_and_leaves_doubt(self, tmp_path):
        finding = judged(tmp_path, dmesg=PAGE_FAULT.format(bus="0a") + HALTED.format(code=62))["xid_hardware"]
        assert "Xid 31" in finding.cause
        assert finding.confidence < 0.8

    @pytest.mark.parametrize(("bus", "code"), [("0b", 62), ("0a", 48)])
    def test_one_on_another_card_or_before_memory_that_fails_is_not(self, tmp_path, bus, code):
        finding = judged(tmp_path, dmesg=PAGE_FAULT.format(bus=bus) + HALTED.format(code=code))["xid_hardware"]
        assert "Xid 31" not in finding.cause
        assert finding.confidence > 0.9


class TestDrivers:
    ERROR = (
        "(EngineCore_DP0 pid=9) ERROR 11-02 10:14:00 [core.py:7] torch.AcceleratorError: CUDA error: no kernel image "
        "is available for execution on the device\n"
    )
    LOADED = (
        "(EngineCore_DP0 pid=9) INFO 11-02 10:12:00 [gpu_model_runner.py:3500] Model loading took 61.03 GiB memory and "
        "20.1 seconds\n"
    )

    def test_weights_that_were_loaded_before_it_failed_are_not_denied(self, tmp_path):
        said = judged(tmp_path, log=self.LOADED + self.ERROR).said("driver_too_old")
        assert "61.0 GiB" in said
        assert "nothing" not in said

    def test_without_a_word_of_loading_nothing_is_said_of_it(self, tmp_path):
        said = judged(tmp_path, log=self.ERROR).said("driver_too_old")
        assert "code that is missing" in said
        assert "loaded" not in said
