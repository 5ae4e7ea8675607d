"""Lines of several files belong together by time, process, container and start, and not by standing in one incident."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.diagnosis.causes.moments import lasting, together
from gpuwatch.model import LogEvent
from tests.unit.diagnosis.incidents import Verdict

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
KILLED = (LOGS / "vllm_0_31_0_killed.log").read_text()
"""Its engine is gone on the 29th of November at 15:47:27."""
TOO_LONG = (LOGS / "vllm_0_31_0_too_long.log").read_text()
HEALTHY = (LOGS / "vllm_0_31_0_healthy.log").read_text()
REFUSED = (LOGS / "vllm_0_31_0_port_in_use.log").read_text()
HOURS = 3_600_000
KILL = (
    "{when} host kernel: Out of memory: Killed process {pid} ({name}) total-vm:9000000kB, anon-rss:8000000kB, "
    "file-rss:0kB, shmem-rss:0kB, UID:0\n"
)
XID = "{when} host kernel: NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, {text}\n"


def judged(folder: Path, **files: str) -> Verdict:
    return Verdict(folder, {f"{name}.txt": text for name, text in files.items()})


def kill(when: str, name: str = "VLLM::EngineCor", pid: int = 32400) -> str:
    return KILL.format(when=when, name=name, pid=pid)


def bus(when: str) -> str:
    return XID.format(when=when, code=79, text="GPU has fallen off the bus.")


class TestTime:
    def test_a_fault_of_the_card_days_before_an_end_is_told_and_explains_nothing(self, tmp_path):
        verdict = judged(tmp_path, dmesg=bus("Nov 20 10:00:00"), log=KILLED)
        assert verdict.ids[0] == "worker_died"
        assert verdict["worker_died"].caused_by is None
        assert (verdict["xid_hardware"].severity, verdict["gpu_lost"].severity) == ("warning", "warning")
        assert "9 days before" in verdict.said("xid_hardware")
        assert "exited unexpectedly" not in verdict.said("xid_hardware")

    def test_a_fault_of_the_card_seconds_before_an_end_explains_it(self, tmp_path):
        verdict = judged(tmp_path, dmesg=bus("Nov 20 10:00:00") + bus("Nov 29 15:47:20"), log=KILLED)
        assert verdict["xid_hardware"].severity == "critical"
        assert verdict["worker_died"].caused_by == "xid_hardware"
        assert verdict["gpu_lost"].caused_by == "xid_hardware"
        assert "exited unexpectedly" in verdict.said("xid_hardware")

    def test_a_fault_of_the_card_after_an_end_stays_critical_and_does_not_explain_it(self, tmp_path):
        verdict = judged(tmp_path, dmesg=bus("Nov 29 21:20:00"), log=KILLED)
        assert verdict["xid_hardware"].severity == "critical"
        assert verdict["worker_died"].caused_by is None
        assert "5.5 hours after" in verdict.said("xid_hardware")

    def test_another_program_that_was_killed_hours_before_did_not_end_the_engine(self, tmp_path):
        verdict = judged(tmp_path, dmesg=kill("Nov 29 10:00:00", "chrome"), log=KILLED)
        assert verdict["worker_died"].caused_by is None
        assert "lack of memory" not in verdict["worker_died"].cause
        assert verdict["host_memory_oversubscribed"].severity == "info"
        assert [each.id for each in verdict.not_enough] == ["host_memory_oversubscribed"]

    def test_another_program_that_was_killed_is_never_the_end_of_the_engine(self, tmp_path):
        verdict = judged(tmp_path, dmesg=kill("Nov 29 15:47:26", "chrome"), log=KILLED)
        assert "lack of memory" not in verdict["worker_died"].cause

    def test_of_several_kills_the_one_of_the_engine_near_its_end_is_named(self, tmp_path):
        kills = kill("Nov 28 10:00:00", "chrome", 1234) + kill("Nov 29 15:47:26") + kill("Nov 29 15:47:27", "chrome", 7)
        verdict = judged(tmp_path, dmesg=kills, log=KILLED)
        assert "VLLM::EngineCor (pid 32400)" in verdict["host_memory_oversubscribed"].cause
        assert "not the engine" not in verdict["host_memory_oversubscribed"].cause
        assert verdict["worker_died"].caused_by == "host_memory_oversubscribed"
        assert "lack of memory" in verdict["worker_died"].cause
        assert "1234" not in verdict.said("worker_died")

    @pytest.mark.parametrize(
        ("when", "why"),
        [("[12345.678901]", "no date"), ("Nov 29 16:47:26", "time zones"), ("Nov 29 10:17:26", "time zones")],
    )
    def test_what_cannot_be_compared_is_joined_and_said_to_be_doubtful(self, tmp_path, when, why):
        line = kill(when).replace("host kernel: ", "") if when.startswith("[") else kill(when)
        verdict = judged(tmp_path, dmesg=line, log=KILLED)
        assert "lack of memory" in verdict["worker_died"].cause
        assert "Not ruled out" in verdict.said("worker_died")
        assert why in verdict.said("worker_died")

    @pytest.mark.parametrize(
        ("gap", "effect", "want"),
        [
            (0, "engine_dead", True),
            (9 * 60_000, "engine_dead", True),
            (17 * 60_000, "engine_dead", False),
            (17 * 60_000, "nccl_timeout", True),
            (-60_000, "engine_dead", True),
            (-17 * 60_000, "engine_dead", False),
            (5 * HOURS, "engine_dead", None),
            (-8 * HOURS, "engine_dead", None),
            (5 * HOURS + 17 * 60_000, "engine_dead", False),
            (20 * HOURS, "engine_dead", False),
            (365 * 24 * HOURS + 5000, "engine_dead", True),
            (-365 * 24 * HOURS + 5000, "engine_dead", True),
            (-366 * 24 * HOURS + 5000, "engine_dead", False),
        ],
    )
    def test_a_cause_lies_shortly_before_its_effect_whatever_year_was_guessed(self, gap, effect, want):
        start = 1_790_000_000_000
        assert together(LogEvent("xid", "", "a", 1, start), LogEvent(effect, "", "b", 1, start + gap)) is want

    def test_lines_of_one_file_are_of_one_clock(self):
        start = 1_790_000_000_000
        assert together(LogEvent("xid", "", "a", 1, start), LogEvent("x", "", "a", 2, start + 5 * HOURS)) is False
        assert together(LogEvent("xid", "", "a", 1, 0), LogEvent("x", "", "a", 2, start)) is None

    def test_times_are_told_in_the_unit_that_fits(self):
        assert [lasting(value) for value in (25 * 60_000, 5.79 * HOURS, 216 * HOURS)] == [
            "25 minutes", "5.8 hours", "9 days",
        ]  # fmt: skip


class TestRepairs:
    def test_memory_that_a_card_took_out_of_use_is_no_fault_of_a_program(self, tmp_path):
        text = XID.format(when="Nov 20 10:00:00", code=63, text="Row Remapper: New row marked for remapping")
        said = judged(tmp_path, dmesg=text).said("xid_software")
        assert "memory out of use" in said
        assert "reset" in said
        for wrong in ("failing memory", "not the card's memory", "update the driver"):
            assert wrong not in said

    def test_a_program_that_failed_beside_a_repair_does_not_rule_the_memory_out(self, tmp_path):
        text = XID.format(when="Nov 29 10:00:00", code=13, text="name=python, Graphics SM Warp Exception")
        text += XID.format(when="Nov 29 10:00:01", code=63, text="Row Remapper")
        said = judged(tmp_path, dmesg=text).said("xid_software")
        assert "Xid 13" in said
        assert "Xid 63" in said
        assert "Ruled out" not in said


POD = """\
Name:         web-0
Namespace:    shop
Containers:
  {first}:
    Image:          {image}
    Last State:     Terminated
      Reason:       {reason}
      Exit Code:    137
    Limits:
      memory:  64Mi
    Requests:
      memory:  32Mi
  vllm:
    Image:          vllm/vllm-openai:v0.31.0
    Last State:     Terminated
      Reason:       {own}
      Exit Code:    {code}
    Limits:
      memory:  64Gi
      nvidia.com/gpu: 1
"""


class TestContainers:
    def test_a_container_that_is_not_the_engine_is_named_and_at_most_information(self, tmp_path):
        pod = POD.format(first="nginx", image="nginx:1.25", reason="OOMKilled", own="Error", code=1)
        verdict = judged(tmp_path, pod=pod)
        assert verdict["k8s_oomkilled"].severity == "info"
        assert "container nginx" in verdict["k8s_oomkilled"].cause
        assert verdict.move("k8s_oomkilled", "resources.limits.memory") == ("64Mi", "128Mi")
        assert [each.missing for each in verdict.not_enough] == [
            "why the container vllm ended with 1: kubectl logs --previous -c vllm"
        ]

    def test_of_two_containers_that_were_killed_the_engine_is_told_with_its_own_limit(self, tmp_path):
        pod = POD.format(first="nginx", image="nginx:1.25", reason="OOMKilled", own="OOMKilled", code=137)
        verdict = judged(tmp_path, pod=pod)
        assert verdict["k8s_oomkilled"].severity == "critical"
        assert "container vllm" in verdict["k8s_oomkilled"].cause
        assert verdict.move("k8s_oomkilled", "resources.limits.memory") == ("64Gi", "128Gi")

    def test_a_container_beside_the_engine_that_was_killed_does_not_end_the_engine(self, tmp_path):
        pod = POD.format(first="nginx", image="nginx:1.25", reason="OOMKilled", own="Error", code=1)
        verdict = judged(tmp_path, pod=pod, log=KILLED)
        assert verdict["worker_died"].caused_by is None
        assert "lack of memory" not in verdict["worker_died"].cause


class TestLaterStart:
    def test_a_start_that_failed_before_one_that_serves_is_over_and_says_from_where_on(self, tmp_path):
        verdict = judged(tmp_path, log=REFUSED + HEALTHY)
        finding = verdict["port_in_use"]
        line = next(at for at, text in enumerate((REFUSED + HEALTHY).splitlines(), 1) if "startup complete" in text)
        assert finding.severity == "warning"
        assert f"A later start serves, from line {line} on" in finding.cause

    def test_a_start_that_fails_the_same_way_again_is_not_over(self, tmp_path):
        finding = judged(tmp_path, log=REFUSED + HEALTHY + REFUSED)["port_in_use"]
        assert finding.severity == "critical"
        assert "later start" not in finding.cause

    def test_an_engine_that_died_while_it_served_stays_critical_after_a_restart(self, tmp_path):
        finding = judged(tmp_path, log=KILLED + HEALTHY)["worker_died"]
        assert finding.severity == "critical"
        assert "A later start serves" in finding.cause

    def test_a_start_of_another_log_that_serves_later_ends_a_failure_of_the_same_model(self, tmp_path):
        served = HEALTHY.replace("tiny", "tiny-long").replace("11-29 15:", "11-29 16:")
        finding = judged(tmp_path, a=TOO_LONG, b=served)["max_model_len_exceeds_kv"]
        assert finding.severity == "warning"
        assert "A later start serves, in another file: this one is over." in finding.cause

    def test_a_start_of_another_log_weeks_later_has_nothing_to_do_with_a_failure(self, tmp_path):
        # From 29 November on: 6 days later is near, 16 days later is not.
        later = HEALTHY.replace("tiny", "tiny-long")
        near, far = later.replace("11-29 15:", "12-05 15:"), later.replace("11-29 15:", "12-15 15:")
        assert judged(tmp_path, a=TOO_LONG, b=near)["max_model_len_exceeds_kv"].severity == "warning"
        verdict = judged(tmp_path, a=TOO_LONG, b=far)
        assert verdict["max_model_len_exceeds_kv"].severity == "critical"
        assert "later start" not in verdict.said("max_model_len_exceeds_kv")

    def test_a_start_of_another_model_in_another_log_is_not_ruled_out_to_be_the_same_server(self, tmp_path):
        verdict = judged(tmp_path, a=TOO_LONG, b=HEALTHY.replace("11-29 15:", "11-29 16:"))
        assert verdict["max_model_len_exceeds_kv"].severity == "critical"
        assert "Not ruled out: that this is over" in verdict.said("max_model_len_exceeds_kv")

    def test_an_earlier_start_of_another_log_ends_nothing(self, tmp_path):
        verdict = judged(tmp_path, a=TOO_LONG, b=HEALTHY.replace("tiny", "tiny-long").replace("11-29 15:", "11-29 14:"))
        assert verdict["max_model_len_exceeds_kv"].severity == "critical"
        assert "later start" not in verdict.said("max_model_len_exceeds_kv")

    def test_a_fault_of_the_hardware_is_not_over_because_a_server_starts_again(self, tmp_path):
        verdict = judged(tmp_path, dmesg=bus("Nov 29 14:47:20"), b=HEALTHY)
        assert verdict["xid_hardware"].severity == "critical"


class TestTwoLogs:
    """KILLED served, and died at 15:47:27."""

    @pytest.mark.parametrize("name", ["port_in_use", "too_long"])
    def test_a_start_that_failed_in_another_log_explains_no_death_of_a_server_that_served(self, tmp_path, name):
        failed = (LOGS / f"vllm_0_31_0_{name}.log").read_text()
        assert judged(tmp_path, a=failed, b=KILLED)["worker_died"].caused_by is None

    OOM = (
        "(APIServer pid=8) INFO 11-29 15:30:50 [api_server.py:1896] vLLM API server version 0.31.0\n"
        "(APIServer pid=8) INFO:     Application startup complete.\n"
        "(EngineCore pid=9) ERROR 11-29 {when} [core.py:710] torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 3.00 GiB. GPU 0 has a total capacity of 79.00 GiB of which 1.00 GiB is free.\n"
    )

    @pytest.mark.parametrize(
        ("when", "cause"), [("15:47:20", "gpu_out_of_memory"), ("15:52:20", None), ("12:10:20", None)]
    )
    def test_an_error_of_another_log_explains_a_death_shortly_after_it(self, tmp_path, when, cause):
        verdict = judged(tmp_path, a=self.OOM.format(when=when), b=KILLED)
        (memory,) = [each for each in verdict.ids if each in ("gpu_out_of_memory", "prefill_activation_oom")]
        assert verdict["worker_died"].caused_by == (cause and memory)
