"""Several runs of a server in one log, and causes that are told before their look-alikes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.diagnosis.incidents import Verdict
from tests.unit.diagnosis.test_causes_told import oom

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
KILLED = (LOGS / "vllm_0_31_0_killed.log").read_text(encoding="utf-8")
KERNEL = (
    "Nov 29 15:47:26 host kernel: oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=VLLM::EngineCor,pid=32400\n"
    "Nov 29 15:47:26 host kernel: Out of memory: Killed process 32400 (VLLM::EngineCor) total-vm:900000000kB, "
    "anon-rss:80000000kB, file-rss:0kB, shmem-rss:0kB, UID:0\n"
)
DECODE = (
    "[2026-11-29 10:00:{second}] Decode batch, #running-req: 2, #token: 29000, token usage: 0.97, cuda graph: True, "
    "gen throughput (token/s): 60.00, #queue-req: {waiting}\n"
)
LEAK = (
    "[2026-11-29 10:00:20] Scheduler hit an exception: Traceback (most recent call last):\n"
    "ValueError: {words} memory leak detected! self.max_total_num_tokens=30000, available_size=900, "
    "evictable_size=28000, protected_size=0\n"
)
PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} 5.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}
vllm:num_preemptions_total{{engine="0",model_name="m"}} 30.0
"""
FINISHED = 'vllm:request_success_total{engine="0",model_name="m",finished_reason="stop"} 100.0\n'


@pytest.mark.parametrize("before", ["port_in_use", "too_long"])
def test_the_error_of_an_earlier_start_neither_hides_a_later_death_nor_explains_its_load(tmp_path, before):
    failed = (LOGS / f"vllm_0_31_0_{before}.log").read_text(encoding="utf-8")
    verdict = Verdict(tmp_path, {"server.log": failed + KILLED})
    assert verdict.ids[0] == "worker_died"
    assert {finding.id: finding.caused_by for finding in verdict.findings}["kv_preemption_storm"] is None
    assert verdict.findings[-1].severity == "warning"
    assert "A later start serves" in verdict.findings[-1].cause


def test_a_kill_of_an_engine_is_as_bad_as_its_symptom_and_stands_before_it(tmp_path):
    verdict = Verdict(tmp_path, {"server.log": KILLED, "dmesg.txt": KERNEL})
    assert verdict.ids[:2] == ["host_memory_oversubscribed", "worker_died"]
    assert verdict["worker_died"].caused_by == "host_memory_oversubscribed"
    assert verdict["host_memory_oversubscribed"].severity == "critical"
    assert "kv_preemption_storm" in verdict.ids[2:]


@pytest.mark.parametrize("waiting", [0, 9])
@pytest.mark.parametrize("words", ["token_to_kv_pool_allocator", "req_to_token_pool"])
def test_a_leak_that_sglang_found_itself_is_a_defect_of_the_engine_and_no_full_pool(tmp_path, waiting, words):
    text = DECODE.format(second="02", waiting=waiting) + DECODE.format(second="12", waiting=waiting)
    verdict = Verdict(tmp_path, {"server.log": text + LEAK.format(words=words)})
    assert verdict.ids == ["worker_died"]
    assert f"entries of {words} belong to no request" in verdict["worker_died"].cause


def test_a_leak_that_the_scheduler_survived_ended_nothing(tmp_path):
    leak = "[2026-11-29 10:00:05] KV cache pool leak detected!\n"
    text = DECODE.format(second="02", waiting=0) + leak + DECODE.format(second="12", waiting=0)
    assert "worker_died" not in Verdict(tmp_path, {"server.log": text}).ids


@pytest.mark.parametrize(
    ("waiting", "usage", "more"), [("0.0", "0.05", ""), ("7.0", "0.97", ""), ("0.0", "0.05", FINISHED)]
)
def test_a_count_since_the_start_on_one_page_is_no_storm_without_a_full_pool_and_what_finished(
    tmp_path, waiting, usage, more
):
    verdict = Verdict(tmp_path, {"page.txt": PAGE.format(waiting=waiting, usage=usage) + more})
    assert "kv_preemption_storm" not in verdict.ids
    (lacking,) = [each for each in verdict.not_enough if each.id == "kv_preemption_storm"]
    assert "30 preemptions since the start" in lacking.missing
    assert "a second page" in lacking.missing


def test_a_count_on_one_page_with_a_full_pool_and_few_finished_requests_is_a_storm(tmp_path):
    page = PAGE.format(waiting="7.0", usage="0.97") + FINISHED
    assert "kv_preemption_storm" in Verdict(tmp_path, {"page.txt": page}).ids


@pytest.mark.parametrize(("others", "own", "want"), [("3.60", "19.90", "0.82"), ("6.60", "16.90", "0.69")])
def test_memory_outside_the_share_of_the_engine_is_not_taken_from_it_for_the_others_again(tmp_path, others, own, want):
    # 2.364 of 23.64 GiB are outside the share.
    # (3.6 - 2.364 + 0.5) / 23.64 is 7.3 %, (6.6 - 2.364 + 0.5) / 23.64 is 20.03 %.
    verdict = Verdict(tmp_path, {"server.log": oom(others=others, own=own)})
    assert verdict.move("gpu_out_of_memory", "--gpu-memory-utilization")[1] == want


def test_a_start_that_failed_after_an_engine_served_does_not_explain_how_it_ran(tmp_path):
    failed = (LOGS / "vllm_0_31_0_too_long.log").read_text(encoding="utf-8")
    verdict = Verdict(tmp_path, {"server.log": KILLED + failed})
    assert {"max_model_len_exceeds_kv", "worker_died", "kv_preemption_storm"} <= set(verdict.ids)
    assert verdict["kv_preemption_storm"].caused_by is None
    assert verdict["worker_died"].caused_by is None
