"""Ends of engines: who ended what, who only says so, and what is no end at all."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import pytest

from tests.unit.diagnosis.incidents import Verdict, judge_log

VLLM = "INFO 06-01 09:00:00 [api_server.py:1289] vLLM API server version 0.9.1\n"
SGLANG = "[2026-06-01 09:00:00] server_args=ServerArgs(model_path='/srv/m', tp_size=2, port=30100)\n"
READY = "[2026-06-01 09:01:00] The server is fired up and ready to roll!\n"
BATCH = (
    "[2026-06-01 {when} TP0] Decode batch, #running-req: 3, #token: 900, token usage: 0.02, cuda graph: True, "
    "gen throughput (token/s): 210.00, #queue-req: 0\n"
)
RAY = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
    "check the logs for the dead worker. Worker IP address: 192.0.2.7 Worker PID: 5077 Worker exit type: SYSTEM_ERROR "
    "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. "
)
OLD = (
    "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. "
    "(2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\n"
)
NEW = (
    "Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force "
    "was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error.\n"
)


class TestRay:
    @pytest.mark.parametrize("guesses", [OLD, NEW])
    def test_what_ray_lists_as_possible_is_not_what_happened(self, tmp_path, guesses):
        verdict = judge_log(tmp_path, VLLM + RAY + guesses)
        finding = verdict["worker_died"]
        assert "(pid 5077)" in finding.cause
        assert "cannot tell why" in finding.cause
        assert "SIGSEGV" not in finding.cause
        assert finding.confidence <= 0.6
        assert "dmesg" in finding.advice[0].text
        assert "/tmp/ray/session_latest/logs" in finding.advice[1].text
        assert "host_memory_oversubscribed" in [each.id for each in verdict.not_enough]

    def test_the_list_alone_on_a_line_says_nothing(self, tmp_path):
        assert "worker_died" not in judge_log(tmp_path, VLLM + OLD).ids

    def test_a_signal_that_the_worker_wrote_down_itself_is_the_one(self, tmp_path):
        own = "(RayWorker pid=5077) *** SIGBUS received at time=1780304400 on cpu 3 ***\n"
        verdict = judge_log(tmp_path, VLLM + RAY + OLD + own)
        assert "SIGBUS" in verdict["worker_died"].cause
        assert verdict["worker_died"].evidence[0].line == 3
        assert "--shm-size" in [each.flag for each in verdict["worker_died"].advice]

    def test_rays_own_kill_is_named_without_a_crash(self, tmp_path):
        kill = "(raylet) node_manager.cc:3064: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: ab, IP: 192.0.2.7) over the last time period.\n"
        verdict = judge_log(tmp_path, VLLM + kill + RAY + NEW)
        assert verdict.ids[0] == "ray_host_oom"
        assert "SIGSEGV" not in verdict["worker_died"].cause
        assert "killed by Ray's monitor" in verdict["worker_died"].cause

    def test_a_signal_that_ray_was_told_of_is_named(self, tmp_path):
        told = RAY.replace(
            "Worker unexpectedly exits with a connection error code 2. End of file. ",
            "Worker exits unexpectedly by a signal. The process receives a SIGTERM.\n",
        )
        assert "SIGTERM" in judge_log(tmp_path, VLLM + told)["worker_died"].cause

    def test_an_error_of_the_run_explains_the_worker(self, tmp_path):
        error = "ERROR 06-01 09:05:00 [w.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.00 GiB is free.\n"
        assert "worker_died" not in judge_log(tmp_path, VLLM + error + RAY + OLD).ids


class TestOwnKill:
    FAILED = (
        "[2026-06-01 09:02:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.\n"
        "[2026-06-01 09:02:01] Received sigquit from a child process. It usually means the child failed.\n"
    )
    SHELL = "./run.sh: line 7: 4711 Killed                  python -m sglang.launch_server --model-path /srv/m\n"

    def test_a_launcher_that_ends_its_own_processes_is_nobody_from_outside(self, tmp_path):
        verdict = judge_log(tmp_path, SGLANG + self.FAILED + self.SHELL)
        assert "worker_died" not in verdict.ids
        (said,) = [each.missing for each in verdict.not_enough if each.id == "worker_died"]
        assert "OutOfResources: out of resource: shared memory, Required: 147456" in said
        assert "[server.log:3]" in said
        assert "shared memory in bytes than a multiprocessor" in said

    def test_the_exit_code_of_its_container_is_the_same_kill(self, tmp_path):
        verdict = judge_log(
            tmp_path,
            SGLANG + self.FAILED,
            docker="CONTAINER ID   IMAGE   STATUS\n9f   sglang   Exited (137) 2 minutes ago\n",
        )
        assert "worker_died" not in verdict.ids

    def test_a_kill_before_any_failure_is_from_outside(self, tmp_path):
        verdict = judge_log(tmp_path, SGLANG + READY + self.SHELL)
        assert "somebody or something killed it from outside" in verdict["worker_died"].cause

    def test_vllm_says_that_a_worker_failed_before_it_kills_itself(self, tmp_path):
        log = (
            "INFO 06-01 09:00:00 api_server.py:981] vLLM API server version 0.8.1\n"
            "(VllmWorker rank=1 pid=77) ERROR 06-01 09:01:00 multiproc_executor.py:374] RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)\n"
            "CRITICAL 06-01 09:01:01 core_client.py:158] Got fatal signal from worker processes, shutting down. See stack trace above for root cause issue.\n"
            "start.sh: line 3: 88 Killed                  vllm serve /srv/m\n"
        )
        verdict = judge_log(tmp_path, log)
        assert "worker_died" not in verdict.ids
        said = " ".join(each.missing for each in verdict.not_enough)
        assert "NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details) [server.log:2]" in said


class TestSoftWatchdog:
    DOG = "[2026-06-01 09:10:00] {name} soft watchdog timeout (self.watchdog_timeout=60.0, self.soft=True)\n"

    def test_batches_after_it_rule_a_stall_out(self, tmp_path):
        log = SGLANG + READY + self.DOG.format(name="DetokenizerManager") + BATCH.format(when="09:11:00")
        verdict = judge_log(tmp_path, log)
        assert verdict.firm == []
        finding = verdict["engine_stalled"]
        assert finding.severity == "info"
        assert "for 60 s" in finding.cause
        assert finding.evidence[1].line == 4

    def test_one_of_an_idle_detokenizer_is_no_stall(self, tmp_path):
        assert judge_log(tmp_path, SGLANG + READY + self.DOG.format(name="DetokenizerManager")).firm == []

    def test_one_of_the_scheduler_with_no_batch_after_it_is_a_warning(self, tmp_path):
        log = SGLANG + READY + BATCH.format(when="09:08:00") + self.DOG.format(name="Scheduler")
        assert judge_log(tmp_path, log)["engine_stalled"].severity == "warning"

    def test_a_hard_one_stays_critical(self, tmp_path):
        log = (
            SGLANG
            + READY
            + self.DOG.format(name="Scheduler").replace("soft watchdog", "watchdog").replace("True", "False")
        )
        assert judge_log(tmp_path, log)["engine_stalled"].severity == "critical"


class TestRequests:
    UP = (
        "(APIServer pid=1) INFO 06-01 09:00:00 [utils.py:299] vLLM API server version 0.19.1\n"
        "(APIServer pid=1) INFO:     Application startup complete.\n"
    )
    LONG = "(APIServer pid=1) ERROR 06-01 09:30:00 [serving_chat.py:200] vllm.exceptions.VLLMValidationError: You passed 9001 input tokens and requested 512 output tokens. However, the model's context length is only 8192 tokens.\n"

    @pytest.mark.parametrize(
        "refused",
        [
            LONG,
            "ValueError: This model's maximum context length is 8192 tokens. However, your request has 9001 input tokens.\n",
            "(APIServer pid=1) ERROR 06-01 09:30:00 [serving_chat.py:271] KeyError: 'tool'\n",
            "ERROR:    Exception in ASGI application\nTraceback (most recent call last):\njinja2.exceptions.UndefinedError: 'x' is undefined\n",
            'Traceback (most recent call last):\n  File "/opt/sglang/srt/entrypoints/openai/serving_base.py", line 90, in handle_request\nValueError: tools are missing\n',
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n",
        ],
    )
    def test_a_request_that_is_refused_ends_no_engine(self, tmp_path, refused):
        verdict = judge_log(tmp_path, self.UP + refused)
        assert verdict.ids == []
        assert verdict.not_enough == ()

    def test_a_file_of_the_model_that_cannot_be_parsed_ends_a_start(self, tmp_path):
        log = VLLM + "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"
        (said,) = [each.missing for each in judge_log(tmp_path, log).not_enough]
        assert "JSONDecodeError: Expecting value" in said

    def test_an_engine_that_ended_after_it_has_its_own_reason(self, tmp_path):
        end = (
            "(EngineCore pid=9) ERROR 06-01 09:31:00 [core.py:900] ValueError: block table is corrupt\n"
            "(EngineCore pid=9) ERROR 06-01 09:31:00 [core.py:901] EngineCore encountered a fatal error.\n"
        )
        verdict = judge_log(tmp_path, self.UP + end + self.LONG)
        (said,) = [each.missing for each in verdict.not_enough]
        assert "block table is corrupt [server.log:3]" in said

    @pytest.mark.parametrize(
        "where",
        [
            "(EngineCore pid=9) ERROR 06-01 09:31:00 [core.py:900]",
            "(APIServer pid=1) ERROR 06-01 09:31:00 [async_llm.py:7]",
        ],
    )
    def test_the_last_error_of_an_engine_is_quoted_although_it_served(self, tmp_path, where):
        log = self.UP + where + " ValueError: block table is corrupt\n"
        (said,) = [each.missing for each in judge_log(tmp_path, log).not_enough]
        assert "block table is corrupt [server.log:3]" in said


class TestPorts:
    def test_the_words_of_newer_pythons_are_read(self, tmp_path):
        line = "[2026-06-01 09:00:01] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30100): [errno 98] address already in use\n"
        assert judge_log(tmp_path, SGLANG + line).move("port_in_use", "--port") == ("30100", "30101")

    def test_a_message_queue_wants_another_port_than_the_server(self, tmp_path):
        log = SGLANG + "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:30333')\n"
        said = judge_log(tmp_path, log).said("port_in_use")
        assert "Port 30333" in said
        assert "ZeroMQ" in said
        assert "30100" not in said

    def test_an_address_of_another_machine_is_quoted_with_what_it_says(self, tmp_path):
        verdict = judge_log(tmp_path, "(APIServer pid=1) OSError: [Errno 99] Cannot assign requested address\n")
        (said,) = [each.missing for each in verdict.not_enough]
        assert "[Errno 99] Cannot assign requested address [server.log:1]" in said
        assert "--host" in said


class TestTracebacksAlone:
    def test_ray_that_knows_no_gpu_on_the_node_is_said(self, tmp_path):
        log = (
            "Traceback (most recent call last):\n"
            '  File "/opt/venv/lib/python3.11/site-packages/vllm/executor/ray_utils.py", line 292, in initialize_ray_cluster\n'
            "    raise ValueError(\n"
            "ValueError: Current node has no GPU available. current_node_resource={'CPU': 16.0, 'node:192.0.2.9': 1.0}. vLLM engine cannot start without GPU.\n"
        )
        verdict = judge_log(tmp_path, log)
        assert verdict.ids == ["driver_too_old"]
        assert "Ray knows of no GPU on the node" in verdict["driver_too_old"].cause
        assert verdict["driver_too_old"].evidence[0].line == 4

    @pytest.mark.parametrize("engine", ["vllm", "sglang"])
    def test_a_part_that_was_built_for_another_torch_is_quoted(self, tmp_path, engine):
        log = (
            "Traceback (most recent call last):\n"
            f'  File "/opt/lib/python3.12/site-packages/{engine}/platforms/cuda.py", line 18, in <module>\n'
            "    import _C\n"
            f"ImportError: /opt/lib/python3.12/site-packages/{engine}/_C.abi3.so: undefined symbol: _ZN3c104cuda9foo\n"
        )
        (said,) = [each.missing for each in judge_log(tmp_path, log).not_enough]
        assert "undefined symbol: _ZN3c104cuda9foo [server.log:4]" in said
        assert "another version of torch" in said

    def test_the_traceback_of_another_program_is_none_of_an_engine(self, tmp_path):
        log = 'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in <module>\n    main()\nImportError: libfoo.so: undefined symbol: bar\n'
        verdict = judge_log(tmp_path, log)
        assert (verdict.ids, verdict.not_enough) == ([], ())


class TestRanks:
    LINE = (
        "[rank{rank}]:[E1017 08:12:20.13{rank} ProcessGroupNCCL.cpp:607] [{group}Rank {rank}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600100 milliseconds before timing out.\n"
    )

    def log(self, places: list[int], groups: tuple[str, ...] = ("",)) -> str:
        most = max(places)
        return (
            SGLANG
            + READY
            + "".join(
                self.LINE.format(
                    rank=rank,
                    seq=seq,
                    op="ALLREDUCE" if seq < most else "_ALLGATHER_BASE",
                    group=groups[rank % len(groups)],
                )
                for rank, seq in enumerate(places)
            )
        )

    def test_the_rank_that_stands_behind_is_named_with_its_line(self, tmp_path):
        finding = judge_log(tmp_path, self.log([712, 712, 711, 712]))["nccl_hang"]
        assert "Rank 2 stands behind the others while serving: in ALLREDUCE number 711" in finding.cause
        assert "ranks 0, 1 and 3 wait in _ALLGATHER_BASE number 712" in finding.cause
        assert finding.evidence[0].line == 5
        assert finding.advice[0].text.startswith("rank 2 first")

    @pytest.mark.parametrize(
        ("places", "groups"),
        [([712, 712, 712, 712], ("",)), ([712, 712, 711, 711], ("",)), ([712, 712, 711, 712], ("PG 1 ", "PG 3 "))],
        ids=["all alike", "half of them", "two groups"],
    )
    def test_no_rank_is_named_where_the_numbers_do_not_tell(self, tmp_path, places, groups):
        finding = judge_log(tmp_path, self.log(places, groups))["nccl_hang"]
        assert finding.cause.startswith("A rank stopped taking part")


class TestDeviceAssert:
    ERROR = "ERROR 06-01 09:05:00 [engine.py:157] RuntimeError: CUDA error: device-side assert triggered\n"

    def log(self, what: str) -> str:
        line = f"../aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectLargeIndex: block: [0,0,0], thread: [24,0,0] Assertion `{what}` failed.\n"
        return VLLM + line + self.ERROR

    @pytest.mark.parametrize("what", ["srcIndex < srcSelectDimSize", "index out of bounds: 0 <= tmp13 < 131072"])
    def test_an_index_beyond_a_table_is_said_in_the_kernels_words(self, tmp_path, what):
        finding = judge_log(tmp_path, self.log(what))["xid_software"]
        assert what in finding.cause
        assert "vocabulary" in finding.cause
        assert [each.line for each in finding.evidence[:2]] == [2, 3]
        assert finding.severity == "critical"
        assert "vocab_size" in finding.advice[0].text

    def test_logits_that_are_no_numbers_have_another_remedy(self, tmp_path):
        verdict = judge_log(tmp_path, self.log("probability tensor contains either `inf`, `nan` or element < 0"))
        assert verdict.move("xid_software", "--dtype") == (None, "bfloat16")

    def test_without_the_kernels_words_the_xid_is_asked_for(self, tmp_path):
        verdict = Verdict(tmp_path, {"server.log": VLLM + self.ERROR})
        assert "dmesg -T | grep -i xid" in verdict["xid_software"].advice[0].text
