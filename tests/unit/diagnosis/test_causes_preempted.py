"""Pools that requests lose their place in: how grave it was, by what follows, and one request that fills the pool."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from tests.unit.diagnosis.incidents import judge_log

START = "INFO 03-04 08:00:00 api_server.py:339] vLLM API server version 0.6.1\n"


def preempted(time: str, n: int, mode: str = "RECOMPUTE") -> str:
    return (
        f"WARNING 03-04 {time} scheduler.py:1483] Sequence group cmpl-7 is preempted by PreemptionMode.{mode} mode because "
        f"there is not enough KV cache space. total_num_cumulative_preemption={n}\n"
    )


def stats(time: str, *, waiting: int = 0, usage: float = 35.0, swapped: int = 0, host: float = 0.0) -> str:
    return (
        f"INFO 03-04 {time} metrics.py:349] Avg prompt throughput: 80.0 tokens/s, Avg generation throughput: 900.0 tokens/s, "
        f"Running: 12 reqs, Swapped: {swapped} reqs, Pending: {waiting} reqs, GPU KV cache usage: {usage}%, CPU KV cache "
        f"usage: {host}%.\n"
    )


CALM = stats("08:20:00") + stats("08:20:05") + stats("08:20:10", usage=30.0)


class TestOnePreemption:
    """V0 prints the first preemption, and the 51st: one line alone may be one preemption."""

    @pytest.mark.parametrize("mode", ["RECOMPUTE", "SWAP"])
    def test_one_after_which_the_pool_has_room_is_told_as_a_moment_of_the_past(self, mode, tmp_path):
        before = stats("08:09:55", waiting=40, usage=88.0)
        verdict = judge_log(tmp_path, START + before + preempted("08:10:00", 1, mode) + CALM)
        assert verdict.ids == ["kv_pool_saturated"]
        finding = verdict["kv_pool_saturated"]
        assert finding.severity == "info"
        assert finding.title == "The KV pool was full for a moment"
        assert ("swapped out to the host" in finding.cause) is (mode == "SWAP")
        assert "--swap-space" not in [advice.flag for advice in finding.advice]

    def test_a_queue_right_after_it_that_is_gone_later_was_no_storm(self, tmp_path):
        log = START + preempted("08:10:00", 1) + stats("08:10:05", waiting=9, usage=98.0) + CALM
        assert judge_log(tmp_path, log).ids == ["kv_pool_saturated"]

    def test_the_last_line_of_a_log_with_a_queue_is_a_warning_that_says_so(self, tmp_path):
        log = START + stats("08:09:55", waiting=40, usage=88.0) + preempted("08:10:00", 1)
        finding = judge_log(tmp_path, log)["kv_pool_saturated"]
        assert finding.severity == "warning"
        assert "The log ends there, with requests that wait" in finding.cause

    def test_a_queue_that_stays_is_a_storm(self, tmp_path):
        log = START + preempted("08:10:00", 1) + stats("08:10:05", waiting=9, usage=98.0)
        assert judge_log(tmp_path, log)["kv_preemption_storm"].severity == "critical"


class TestStormsThatEnded:
    """What the statistics say after the last preemption decides how a storm is told."""

    def test_a_storm_that_is_over_is_a_warning_in_the_past_tense(self, tmp_path):
        log = START + preempted("08:10:00", 1) + preempted("08:10:30", 51) + CALM
        finding = judge_log(tmp_path, log)["kv_preemption_storm"]
        assert finding.severity == "warning"
        assert "was exhausted" in finding.cause
        assert "51 times." in finding.cause
        assert "70% of the pool is free" in finding.cause

    @pytest.mark.parametrize("end", ["", CALM + stats("08:20:15", waiting=3, usage=91.0)])
    def test_a_storm_that_goes_on_is_critical(self, end, tmp_path):
        log = START + preempted("08:10:00", 1) + preempted("08:10:30", 51) + end
        finding = judge_log(tmp_path, log)["kv_preemption_storm"]
        assert finding.severity == "critical"
        assert "is exhausted" in finding.cause

    @pytest.mark.parametrize(("host", "larger"), [(0.0, False), (81.0, True)])
    def test_a_swap_pool_is_enlarged_only_where_it_fills(self, host, larger, tmp_path):
        log = START + preempted("08:10:00", 1, "SWAP") + preempted("08:10:30", 51, "SWAP")
        finding = judge_log(tmp_path, log + stats("08:10:31", swapped=8, usage=97.0, host=host))["kv_preemption_storm"]
        assert finding.title == "Sequences are swapped out of the KV pool to the host"
        assert "fills up" not in finding.cause
        assert ("--swap-space" in [advice.flag for advice in finding.advice]) is larger


LIMITS = (
    "[2025-11-02 09:00:00] max_total_num_tokens={pool}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=32, context_len={context}\n"
    "[2025-11-02 09:10:00 TP0] Decode batch, #running-req: 1, #token: {pool}, token usage: 1.00, gen throughput (token/s): 33.00, #queue-req: 2\n"
)
ALONE = (
    "[2025-11-02 09:10:01 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/opt/sglang/srt/managers/schedule_batch.py", line 1627, in retract_decode\n'
    '    ), f"No space left for only one request, {{self.token_to_kv_pool_allocator.available_size()=}}"\n'
    "AssertionError: No space left for only one request{more}\n"
)
FULL = ", self.token_to_kv_pool_allocator.available_size()=0"


class TestOneRequestFillsThePoolOfSglang:
    """The scheduler's own assertion, by the size of the pool and the longest request."""

    def test_a_shorter_context_is_what_a_pool_below_it_needs(self, tmp_path):
        # 29 x 1,024 = 29,696 is the largest multiple below 30,000.
        log = LIMITS.format(pool=30000, context=65536) + ALONE.format(more=FULL)
        verdict = judge_log(tmp_path, log)
        assert verdict.firm == ["sglang_kv_alloc_failure"]
        finding = verdict["sglang_kv_alloc_failure"]
        assert verdict.move("sglang_kv_alloc_failure", "--context-length") == ("65536", "29696")
        assert (finding.evidence[0].line, finding.evidence[0].text[:14]) == (6, "AssertionError")
        assert "of 30,000 tokens" in finding.cause
        assert "worker_died" not in [lack.id for lack in verdict.not_enough]

    def test_a_pool_that_holds_the_longest_request_is_a_defect(self, tmp_path):
        log = LIMITS.format(pool=30000, context=16384) + ALONE.format(more=FULL)
        finding = judge_log(tmp_path, log)["sglang_kv_alloc_failure"]
        assert "held by nobody who runs" in finding.cause
        assert "--context-length" not in [advice.flag for advice in finding.advice]

    def test_a_window_pool_that_is_full_beside_room_in_the_other(self, tmp_path):
        more = " in SWA mode full_available_size=5120, swa_available_size=0"
        log = LIMITS.format(pool=30000, context=65536) + ALONE.format(more=more)
        finding = judge_log(tmp_path, log)["sglang_kv_alloc_failure"]
        assert "of the full pool 5,120 tokens were free" in finding.cause
        assert finding.advice[0].flag == "--swa-full-tokens-ratio"

    def test_without_the_figures_there_is_no_value(self, tmp_path):
        verdict = judge_log(tmp_path, ALONE.format(more=""))
        assert verdict.move("sglang_kv_alloc_failure", "--context-length") == (None, None)
