"""What only warns ends nothing; what ended is told with its signal, its line, and where the reason stands."""

from __future__ import annotations

import json

import pytest

from tests.unit.diagnosis.incidents import Verdict

UP = "[2026-03-04 08:00:00] The server is fired up and ready to roll!\n"
WARNED = (
    "/opt/sglang/srt/managers/scheduler.py:1326: UserWarning: {pool} memory leak detected! available_size=993, "
    "protected_size=0, self.max_total_num_tokens=1000\n  warnings.warn(msg)\n"
)
OLD = "UserWarning: Warning: available_size=993, max_total_num_token=1000\nKV cache pool leak detected!\n"
HEALTH = '[2026-03-04 08:06:00] INFO:     127.0.0.1:5000 - "GET /health HTTP/1.1" 200 OK\n'
V0 = (
    "ERROR 03-04 08:05:00 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 711 died, exit code: {code}\n"
    "INFO 03-04 08:05:00 multiproc_worker_utils.py:123] Killing local vLLM worker processes\n"
)
TOLD = "[{date} 08:05:09] Rank 0 scheduler is dead. Please check if there are relevant logs.\n"
OOM = (
    "(VllmWorkerProcess pid=711) ERROR 03-04 08:04:59 multiproc_worker_utils.py:231] torch.OutOfMemoryError: CUDA out "
    "of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.11 GiB of which 1.02 GiB is free.\n"
)
FATAL = "(EngineCore pid=4) ERROR 05-27 18:56:31 [core.py:1142] "


def judged(folder, text, name="server.log"):
    return Verdict(folder, {name: text})


def told(verdict, id_):
    (lacking,) = [each.missing for each in verdict.not_enough if each.id == id_]
    return lacking


class TestLeaks:
    @pytest.mark.parametrize(
        "text",
        [
            UP + WARNED.format(pool="token_to_kv_pool_allocator") + HEALTH,
            UP + WARNED.format(pool="req_to_token_pool"),
            UP + OLD,
        ],
    )
    def test_a_warning_of_a_leak_is_the_end_of_no_server(self, tmp_path, text):
        verdict = judged(tmp_path, text)
        assert verdict.ids == []
        assert "a warning ends nothing" in told(verdict, "sglang_kv_alloc_failure")

    def test_a_warning_that_is_then_raised_ends_the_scheduler_by_the_line_that_raises(self, tmp_path):
        raised = (
            "[2026-03-04 08:05:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
            "ValueError: token_to_kv_pool_allocator memory leak detected! available_size=993\n"
        )
        finding = judged(tmp_path, UP + WARNED.format(pool="token_to_kv_pool_allocator") + raised)["worker_died"]
        assert finding.evidence[0].line == 5


class TestWorkers:
    @pytest.mark.parametrize(("code", "name"), [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-6, "SIGABRT")])
    def test_v0s_word_about_a_dead_worker_names_the_signal(self, tmp_path, code, name):
        finding = judged(tmp_path, V0.format(code=code))["worker_died"]
        assert f"ended by {name}" in finding.cause
        assert finding.evidence[0].line == 1
        assert not any("status 0" in each.text for each in finding.advice)

    @pytest.mark.parametrize("code", [-15, -2])
    def test_workers_that_were_put_away_with_their_server_did_not_die(self, tmp_path, code):
        verdict = judged(tmp_path, V0.format(code=code))
        assert verdict.ids == []
        assert verdict.not_enough == ()

    def test_a_worker_that_ended_by_an_error_that_is_explained_is_told_once(self, tmp_path):
        verdict = judged(tmp_path, OOM + V0.format(code=1))
        assert "worker_died" not in verdict.ids
        assert verdict.firm

    @pytest.mark.parametrize("date", ["2026-03-04", "03-04"])
    def test_the_exit_code_below_a_dead_rank_counts_with_and_without_a_year(self, tmp_path, date):
        text = TOLD.format(date=date) + f"[{date} 08:05:11] Exit code: -9\n"
        finding = judged(tmp_path, text)["worker_died"]
        assert "ended by SIGKILL" in finding.cause
        assert [each.line for each in finding.evidence[:2]] == [1, 2]
        assert finding.since > 0


class TestExitCodes:
    # 128 and the number of the signal: 4, 6, 7, 8, 11.
    @pytest.mark.parametrize(
        ("code", "name"), [(132, "SIGILL"), (134, "SIGABRT"), (135, "SIGBUS"), (136, "SIGFPE"), (139, "SIGSEGV")]
    )
    def test_the_exit_code_of_a_crash_names_its_signal(self, tmp_path, code, name):
        finding = judged(tmp_path, f"pod-7[error]worker exited with exit code {code}\n")["worker_died"]
        assert f"ended by {name} ({code} is 128 + {code - 128})" in finding.cause

    @pytest.mark.parametrize("code", [0, 1, 143])
    def test_other_exit_codes_are_no_crash(self, tmp_path, code):
        assert judged(tmp_path, f"pod-7[error]worker exited with exit code {code}\n").ids == []

    def test_the_crash_of_another_program_is_no_engines(self, tmp_path):
        assert judged(tmp_path, "redis-1 exited with code 139\n").ids == []

    def test_an_error_that_is_explained_is_told_and_not_its_exit_code(self, tmp_path):
        verdict = judged(tmp_path, OOM + "vllm-1 exited with code 134\n")
        assert "worker_died" not in verdict.ids


class TestRanks:
    def test_a_rank_that_loaded_points_at_the_others(self, tmp_path):
        text = (
            "[2026-03-04 08:05:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
            "ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish "
            "loading. It is likely due to unexpected failures (e.g., OOM) or a slow node.\n"
        )
        missing = told(judged(tmp_path, text), "worker_died")
        assert "log lines of the other ranks" in missing
        assert "none that is known" not in missing

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            (
                (
                    "[rank5]:[E421 08:05:00.426633564 ProcessGroupGloo.cpp:143] Rank 5 successfully reached "
                    "monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank "
                    "0 logs for faulty rank.\n"
                ),
                "rank 5 came to a barrier at which rank 0 failed or was gone",
            ),
            (
                "[Rank 0]: Ranks 2, 6 failed to pass monitoredBarrier in 300000 ms\n",
                "ranks 2, 6 did not come to a barrier",
            ),
            ("[Rank 0]: Rank 3 failed to pass monitoredBarrier in 300000 ms\n", "rank 3 did not come to a barrier"),
        ],
    )
    def test_the_rank_that_a_barrier_names_is_named(self, tmp_path, line, words):
        text = line + "[2026-03-04 08:05:00 TP5] Scheduler hit an exception: Traceback (most recent call last):\n"
        assert words in told(judged(tmp_path, text), "worker_died")


class TestQuotes:
    @pytest.mark.parametrize(
        ("above", "said"),
        [
            (
                ['  File "/opt/vllm/pool.py", line 30, in take', "    assert free > 0, name", "           ^^^^^^^^"],
                "AssertionError, raised at: assert free > 0, name (pool.py:30, in take)",
            ),
            (['  File "/opt/vllm/pool.py", line 30, in take'], "AssertionError, raised at: pool.py:30, in take"),
            (["    assert free > 0"], "AssertionError, raised at: assert free > 0 ["),
            (["Traceback (most recent call last):"], "AssertionError ["),
        ],
    )
    def test_an_error_without_a_text_is_quoted_with_the_statement_that_raised_it(self, tmp_path, above, said):
        lines = ["EngineCore encountered a fatal error.", *above, "AssertionError"]
        text = "".join(f"{FATAL}{line}\n" for line in lines)
        missing = told(judged(tmp_path, text), "worker_died")
        assert said in missing
        assert f"server.log:{len(lines)}]" in missing

    def test_the_statement_of_another_process_is_not_taken(self, tmp_path):
        other = '(EngineCore pid=5) ERROR 05-27 18:56:31 [core.py:1142]   File "/opt/vllm/else.py", line 9, in run\n'
        text = (
            f"{FATAL}EngineCore encountered a fatal error.\n"
            f'{FATAL}  File "/opt/vllm/pool.py", line 30, in take\n{other}{FATAL}AssertionError\n'
        )
        assert "raised at: pool.py:30, in take" in told(judged(tmp_path, text), "worker_died")

    def test_the_call_that_failed_is_part_of_the_quote(self, tmp_path):
        text = (
            f"{FATAL}EngineCore encountered a fatal error.\n{FATAL}RuntimeError: CUDA error: "
            "CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`\n"
        )
        missing = told(judged(tmp_path, text), "worker_died")
        assert "when calling `cublasCreate(handle)` [server.log:2]" in missing
        assert "cuBLAS could not make its handle" in missing


class TestKubernetes:
    # 50,331,648 kB are 48 GiB; the limit was no less, and twice as much is 96.
    KILL = "Memory cgroup out of memory: Killed process 51 ({name}) total-vm:90000000kB, anon-rss:{rss}kB, file-rss:0kB"

    def event(self, name="VLLM::EngineCor", rss=50_331_648):
        message = self.KILL.format(name=name, rss=rss)
        fields = {"reason": "OOMKilling", "message": message, "involvedObject": {"kind": "Node", "name": "n"}}
        return json.dumps({"apiVersion": "v1", "kind": "Event", **fields}, separators=(",", ":")) + "\n"

    def test_an_event_in_one_line_of_json_is_about_a_containers_limit(self, tmp_path):
        verdict = judged(tmp_path, self.event(), "events.json")
        assert verdict.firm == ["k8s_oomkilled"]
        assert verdict.move("k8s_oomkilled", "resources.limits.memory") == (None, "96Gi")

    @pytest.mark.parametrize(("name", "rss"), [("VLLM::Worker_TP", 50_331_648), ("VLLM::EngineCor", 300_000)])
    def test_no_limit_is_named_where_the_victim_need_not_hold_most_of_it(self, tmp_path, name, rss):
        verdict = judged(tmp_path, self.event(name, rss), "events.json")
        assert verdict.move("k8s_oomkilled", "resources.limits.memory") == (None, None)
