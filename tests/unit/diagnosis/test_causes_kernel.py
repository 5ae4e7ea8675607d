"""What the kernel's log and nvidia-smi tell of switches, MIG instances, links, counters and times that do not meet."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from gpuwatch.diagnosis.causes import moments
from tests.unit.diagnosis.incidents import Verdict

SWITCH = "[  311.220000] nvidia-nvswitch2: SXid (PCI:0000:06:00.0): {code}, {grade}, Link 11 {text}\n"
REGISTERS = "[  311.220000] nvidia-nvswitch2: SXid (PCI:0000:06:00.0): 22013, Severity 1 Engine instance 11\n"
XID = "[  311.900000] NVRM: Xid (PCI:0000:{bus}:00): {code}, pid='<unknown>', name=<unknown>, Ch 00000010\n"
CHANGED = "[ {at}.000000] NVRM: Xid (PCI:0000:{bus}:00): 154, GPU recovery action changed from {old} to {new}\n"
NONE, RESET = "0x0 (None)", "0x1 (GPU Reset Required)"


def judged(folder: Path, **files: str) -> Verdict:
    return Verdict(folder, {f"{name}.txt": text for name, text in files.items()})


class TestSwitches:
    def test_a_fatal_error_of_a_switch_is_critical_and_explains_the_xids_of_its_cards(self, tmp_path):
        fatal = SWITCH.format(code=22013, grade="Fatal", text="Minion Link DLREQ interrupt")
        cards = "".join(XID.format(bus=bus, code=code) for bus, code in (("07", 45), ("0f", 45), ("07", 74)))
        verdict = judged(tmp_path, dmesg=fatal + REGISTERS + cards)
        finding = verdict["xid_hardware"]
        assert verdict.ids == ["xid_hardware"]
        assert (finding.severity, finding.evidence[0].line) == ("critical", 1)
        assert "The NVSwitch at PCI:0000:06:00.0" in finding.cause
        assert "SXid 22013, Link 11 Minion Link DLREQ interrupt" in finding.cause

    def test_one_that_is_not_fatal_is_a_warning(self, tmp_path):
        text = SWITCH.format(code=12028, grade="Non-fatal", text="egress non-posted PRIV error")
        finding = judged(tmp_path, dmesg=text)["xid_hardware"]
        assert finding.severity == "warning"
        assert "not fatal" in finding.cause

    def test_memory_of_a_card_that_fails_is_told_beside_a_switch(self, tmp_path):
        text = SWITCH.format(code=22013, grade="Fatal", text="x") + XID.format(bus="07", code=48)
        assert "Xid 48" in judged(tmp_path, dmesg=text)["xid_hardware"].cause


class TestRecoveries:
    def test_a_request_that_is_taken_back_is_no_fault(self, tmp_path):
        assert judged(tmp_path, dmesg=CHANGED.format(at=100, bus="41", old=RESET, new=NONE)).ids == []

    def test_a_request_is_over_once_it_is_taken_back(self, tmp_path):
        text = CHANGED.format(at=100, bus="41", old=NONE, new=RESET) + CHANGED.format(
            at=180, bus="41", old=RESET, new=NONE
        )
        assert judged(tmp_path, dmesg=text).ids == []

    @pytest.mark.parametrize("bus", ["41", "42"])
    def test_one_that_comes_after_that_or_of_another_card_stands(self, tmp_path, bus):
        text = CHANGED.format(at=100, bus="41", old=RESET, new=NONE) + CHANGED.format(
            at=180, bus=bus, old=NONE, new=RESET
        )
        finding = judged(tmp_path, dmesg=text)["xid_hardware"]
        assert finding.severity == "critical"
        assert finding.evidence[0].line == 2


class TestKernelLines:
    def test_an_xid_of_a_mig_instance_is_that_of_its_card(self, tmp_path):
        line = "NVRM: Xid (PCI:0000:0b:00 GPU-I:02): 94, pid=811, name=python3, Contained: SM (0x1)\n"
        finding = judged(tmp_path, dmesg=line)["xid_hardware"]
        assert finding.severity == "critical"
        assert "PCI:0000:0b:00 fails. Xid 94" in finding.cause

    def test_colours_of_dmesg_do_not_hide_a_message(self, tmp_path):
        red = "\x1b[32m[Tue Jan  6 08:00:00 2026] \x1b[0m\x1b[33m{}: \x1b[0m{}\n"
        text = "plain\n" + red.format("NVRM", "Xid (PCI:0000:02:00): 95, pid=5, name=python3, Uncontained")
        (quoted,) = [each for each in judged(tmp_path, dmesg=text)["xid_hardware"].evidence if each.line is not None]
        assert quoted.line == 2
        assert "NVRM: Xid" in quoted.text
        kill = red.format("Out of memory", "Killed process 812 (VLLM::EngineCor) total-vm:9kB, anon-rss:9kB")
        assert judged(tmp_path, dmesg=kill).firm != []

    @pytest.mark.parametrize(("grade", "severity"), [("Fatal", "critical"), ("Non-Fatal", "warning")])
    def test_an_error_of_a_cards_link_that_was_not_corrected_is_told(self, tmp_path, grade, severity):
        line = (
            f"[ 90.100000] nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected ({grade}), type=Data Link Layer\n"
        )
        verdict = judged(tmp_path, dmesg=line)
        assert verdict["pcie_degraded"].severity == severity
        assert "GPU at 0000:3b:00.0" in verdict["pcie_degraded"].cause
        assert "data link layer" in verdict["pcie_degraded"].cause

    @pytest.mark.parametrize("who", ["nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected", "nvme 0000:3b:00.0: x"])
    def test_one_that_was_corrected_or_is_of_another_device_is_not(self, tmp_path, who):
        assert judged(tmp_path, dmesg=f"[ 90.100000] {who}, type=Data Link Layer\n").ids == []

    def test_a_process_that_waits_in_the_kernel_is_quoted(self, tmp_path):
        line = "[ 900.100000] INFO: task {}:611 blocked for more than 122 seconds.\n"
        (said,) = judged(tmp_path, dmesg=line.format("VLLM::Worker_TP")).not_enough
        assert (said.id, "dmesg.txt:1" in said.missing) == ("engine_stalled", True)
        assert judged(tmp_path, dmesg=line.format("kworker/3:1")).not_enough == ()

    def test_an_xid_that_nobody_knows_is_quoted(self, tmp_path):
        verdict = judged(tmp_path, dmesg="NVRM: Xid (PCI:0000:0a:00): 871, pid=1, a new one\n")
        (said,) = verdict.not_enough
        assert verdict.ids == []
        assert "Xid 871" in said.missing
        assert "a new one" in said.missing


class TestOtherTimes:
    LOG = (
        "(APIServer pid=1) INFO {day} 10:00:00 [api_server.py:1896] vLLM API server version 0.11.0\n"
        "(EngineCore_DP0 pid=3) INFO {day} 10:00:10 [gpu_model_runner.py:2602] Starting to load model a/b...\n"
    )
    GONE = "[{} 10:00:{:02} 2026] NVRM: Xid (PCI:0000:01:00): 79, pid=48, name=python3, GPU has fallen off the bus.\n"

    @pytest.mark.parametrize(
        ("day", "severity", "said"),
        [
            ("Tue Mar 10", "warning", "5 days before that log begins"),
            ("Sun Mar 22", "critical", "7 days after that log ends"),
            ("Sun Mar 15", "critical", ""),
        ],
    )
    def test_an_xid_of_another_week_says_how_far_away_it_is(self, tmp_path, day, severity, said):
        verdict = judged(tmp_path, log=self.LOG.format(day="03-15"), dmesg=self.GONE.format(day, 50))
        for finding in verdict["xid_hardware"], verdict["gpu_lost"]:
            assert finding.severity == severity
            ruled_out = [each.text for each in finding.evidence if "Ruled out: this as part of" in each.text]
            assert bool(ruled_out) == bool(said)
            assert not said or said in ruled_out[0]

    @pytest.mark.parametrize(
        ("cause", "effect", "days"),
        [((2028, 3, 10), (2027, 3, 12), 2), ((2027, 2, 27), (2028, 3, 1), 2), ((2027, 3, 1), (2028, 2, 29), 0)],
    )
    def test_a_year_that_was_guessed_is_taken_off_by_the_calendar(self, cause, effect, days):
        times = [round(datetime(*day, tzinfo=timezone.utc).timestamp() * 1000) for day in (cause, effect)]
        assert moments.between(*times) == days * moments.DAY

    def test_an_old_one_does_not_hide_that_of_the_day(self, tmp_path):
        both = self.GONE.format("Tue Mar 10", 1) + self.GONE.format("Sun Mar 15", 50)
        verdict = judged(tmp_path, log=self.LOG.format(day="03-15"), dmesg=both)
        assert verdict["xid_hardware"].severity == "critical"
        assert verdict["gpu_lost"].severity == "critical"


class TestCounters:
    MIG = """\
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
|   0  NVIDIA H200                    On  |   00000000:0A:00.0 Off |                    0 |
| N/A   35C    P0            120W /  700W |   30000MiB / 143771MiB |      N/A      Default |
| MIG devices:                                                                            |
|  0    5   0   1  |            9000MiB / 17920MiB    | 16      {ecc} |  1   0    1    0    1 |
"""

    def test_errors_that_a_mig_instance_counts_are_those_of_memory_that_fails(self, tmp_path):
        finding = judged(tmp_path, smi=self.MIG.format(ecc=2))["xid_hardware"]
        assert "MIG instance 5 of GPU 0 (00000000:0A:00.0) counts 2 uncorrected ECC errors" in finding.cause
        assert judged(tmp_path, smi=self.MIG.format(ecc=0)).ids == []

    @pytest.mark.parametrize(("rows", "severity"), [((2, 2), "info"), ((2, 3), "critical")])
    def test_errors_of_a_cards_whole_life_are_a_fault_where_they_rise(self, tmp_path, rows, severity):
        text = "# gpu  sbecc  dbecc    pci\n# Idx   errs   errs   errs\n"
        text += "".join(f"    0      0      {count}      0\n" for count in rows)
        assert judged(tmp_path, dmon=text)["xid_hardware"].severity == severity

    @pytest.mark.parametrize(("errors", "severity"), [(0, "warning"), (1, "critical")])
    def test_a_row_that_waits_for_a_reset_is_a_warning_as_its_xid_is(self, tmp_path, errors, severity):
        text = (
            "==============NVSMI LOG==============\n\nAttached GPUs                             : 1\n"
            "GPU 00000000:2F:00.0\n    ECC Errors\n        Volatile\n"
            f"            DRAM Uncorrectable            : {errors}\n"
            "    Remapped Rows\n        Correctable Error                 : 2\n"
            "        Uncorrectable Error               : 0\n        Pending                           : Yes\n"
            "        Remapping Failure Occurred        : No\n"
        )
        assert judged(tmp_path, q=text)["xid_hardware"].severity == severity

    @pytest.mark.parametrize(("action", "said"), [("Reset", "asks for a reset of the GPU: GPU 0"), ("None", "")])
    def test_a_recovery_that_the_driver_asks_for_is_critical_as_it_is_live(self, tmp_path, action, said):
        text = (
            "==============NVSMI LOG==============\n\nAttached GPUs                             : 1\n"
            f"GPU 00000000:2F:00.0\n    Product Name                          : NVIDIA H100\n"
            f"    GPU Recovery Action                   : {action}\n"
        )
        verdict = judged(tmp_path, q=text)
        assert bool(verdict.ids) == bool(said)
        if said:
            assert verdict["xid_hardware"].severity == "critical"
            assert said in verdict["xid_hardware"].cause


class TestBrakes:
    HEAD = (
        "index, clocks_event_reasons.active, clocks.sm [MHz], clocks.max.sm [MHz], utilization.gpu [%], "
        "temperature.gpu\n"
    )
    BRAKED = "{gpu}, 0x0000000000000080, 510 MHz, 1980 MHz, {busy} %, 48\n"
    HOT = "{gpu}, 0x0000000000000040, 300 MHz, 1980 MHz, 99 %, 94\n"
    FREE = "{gpu}, 0x0000000000000000, 1950 MHz, 1980 MHz, 99 %, 60\n"

    def test_a_card_that_the_supply_slows_down_is_told_with_its_clock(self, tmp_path):
        finding = judged(tmp_path, smi=self.HEAD + self.BRAKED.format(gpu=0, busy=99))["throttling"]
        said = "\n".join([finding.cause, *(each.text for each in finding.evidence)])
        assert "HW power brake" in said
        assert "510 of 1,980 MHz" in said
        assert "Ruled out: heat: 48 °C" in said
        assert "power suppl" in finding.advice[0].text
        assert all(each.flag != "nvidia-smi -pl" for each in finding.advice)

    def test_an_idle_card_is_not(self, tmp_path):
        assert judged(tmp_path, smi=self.HEAD + self.BRAKED.format(gpu=0, busy=0)).ids == []

    def test_heat_of_another_card_is_told_beside_it_and_neither_is_the_measure(self, tmp_path):
        text = self.HEAD + self.BRAKED.format(gpu=0, busy=99) + self.HOT.format(gpu=1)
        verdict = judged(tmp_path, smi=text)
        assert verdict.ids == ["throttling"]
        assert "GPU 1 lowers its clocks because it is hot" in verdict["throttling"].cause
        assert "GPU 0 lowers its clock because the power supply" in verdict["throttling"].cause

    def test_a_card_beside_one_that_runs_freely_is_slower_than_it(self, tmp_path):
        text = self.HEAD + self.BRAKED.format(gpu=0, busy=99) + self.FREE.format(gpu=1)
        assert set(judged(tmp_path, smi=text).ids) == {"throttling", "tp_straggler"}

    @pytest.mark.parametrize(("idle", "ids"), [("Not Active", ["throttling"]), ("Active", [])])
    def test_without_figures_of_load_a_card_works_where_it_is_not_idle(self, tmp_path, idle, ids):
        text = (
            "==============NVSMI LOG==============\n\nAttached GPUs                             : 1\n"
            f"GPU 00000000:4F:00.0\n    Clocks Event Reasons\n        Idle                              : {idle}\n"
            "        HW Slowdown                       : Active\n"
            "            HW Thermal Slowdown           : Not Active\n"
            "            HW Power Brake Slowdown       : Active\n"
        )
        assert judged(tmp_path, q=text).ids == ids


class TestTables:
    TABLE = """\
| NVIDIA-SMI 565.57.02              Driver Version: {driver}         CUDA Version: 12.7     |
|   0  NVIDIA GeForce RTX 4080        On  |   00000000:01:00.0  On |                  N/A |
| {fan}   38C    P8             {power} /  320W |    2534MiB /  16376MiB |      3%      Default |
| Processes:                                                                              |
|    0   N/A  N/A        41      G   {name}                                   N/A      |
"""

    def test_a_list_of_wsl_is_no_container(self, tmp_path):
        text = self.TABLE.format(driver="566.14", fan=" 0%", power=" 21W", name="/Xwayland")
        verdict = judged(tmp_path, smi=text)
        assert verdict.ids == ["wsl"]
        assert verdict["wsl"].evidence[0].line == 5

    def test_a_process_that_is_listed_without_its_memory_is_not_hidden(self, tmp_path):
        text = self.TABLE.format(driver="565.57.02", fan=" 0%", power=" 21W", name="/usr/bin/x")
        assert judged(tmp_path, smi=text).ids == []

    def test_sensors_that_cannot_be_read_are_quoted(self, tmp_path):
        text = self.TABLE.format(driver="565.57.02", fan="ERR!", power="ERR!", name="/usr/bin/x")
        verdict = judged(tmp_path, smi=text)
        (said,) = verdict.not_enough
        assert verdict.ids == []
        assert "ERR! for fan and power [smi.txt:3]" in said.missing
