"""Failures in a log that grows: the right finding within a tick, none for a restart that succeeds."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.alerts import rulefile
from gpuwatch.clock import ManualClock
from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.sources.logs.source import LogSource
from tests.unit.diagnosis.storms import START
from tests.unit.diagnosis.test_causes_memory import POOL, READY, oom, trace
from tests.unit.diagnosis.test_causes_memory import START as BEGIN

RULES = rulefile.load(rulefile.shipped_paths())
LOGS = Path(__file__).resolve().parents[3] / "tests" / "fixtures" / "logs"
NO_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
BEGIN_AGAIN = BEGIN.replace("10:00", "10:20")


class Follow:
    """A pipeline that follows one log; each second is a tick."""

    def __init__(self, folder) -> None:
        self.path = folder / "server.log"
        self.path.write_text("")
        self.clock = ManualClock(START)
        self.source = LogSource(str(self.path), "h", self.clock)
        self.pipeline = Pipeline(Settings("h"), RULES, START)
        self.findings = ()
        self.seen: set[str] = set()

    def run(self, seconds: int, text: str = "") -> Follow:
        with self.path.open("a") as file:
            file.write(text)
        for _ in range(0, seconds, 1 if seconds < 30 else 10):
            self.clock.advance(1.0 if seconds < 30 else 10.0)
            result = self.pipeline.tick(self.clock.now(), [self.source.poll()])
            assert not result.evaluation.errors
            self.findings = [finding for finding in result.findings if finding.state == "firing"]
            self.seen |= {finding.id for finding in self.findings}
        return self

    @property
    def ids(self) -> list[str]:
        return [finding.id for finding in self.findings]


@pytest.fixture
def follow(tmp_path):
    found = Follow(tmp_path)
    yield found
    found.source.close()


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (BEGIN + NO_BLOCKS, "no_kv_blocks"),
        (BEGIN + trace("load_model", "load_weights", error=oom()) + "\n", "weights_oom"),
        (BEGIN + trace("profile_run", "_dummy_sampler_run", error=oom()) + "\n", "sampler_warmup_oom"),
        (BEGIN + trace("profile_run", "get_multimodal_embeddings", error=oom()) + "\n", "mm_profiling_memory"),
        (BEGIN + POOL + trace("capture_model", error=oom()) + "\n", "cudagraph_memory"),
        (BEGIN + POOL + READY + trace("execute_model", "forward", error=oom()) + "\n", "prefill_activation_oom"),
        (BEGIN + POOL + READY + trace("execute_model", "activate_adapter", error=oom()) + "\n", "lora_memory"),
        (BEGIN + POOL + READY + trace("execute_model", "propose", error=oom()) + "\n", "spec_decode_memory"),
        (oom() + "\n", "gpu_out_of_memory"),
        (BEGIN + "ValueError: Free memory on device (3.22/4.0 GiB) on startup is less than desired GPU memory utilization (0.9, 3.6 GiB).\n", "startup_gpu_shared"),
        ("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use\n", "port_in_use"),
        ("OSError: /srv/none is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'\n", "model_not_found"),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your T4 GPU has compute capability 7.5.\n", "dtype_unsupported"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n", "driver_too_old"),
        ("vllm: error: unrecognized arguments: --chunked-prefill-size 8192\n", "flag_unknown"),
        (BEGIN + POOL + READY + "ERROR 02-01 10:05:00 [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.\n", "worker_died"),
        ("Memory on the node (IP: 192.0.2.1) was 12.49GB / 13.15GB (0.95), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 1) because it was recent\n", "ray_host_oom"),
        ("      Reason:       OOMKilled\n", "k8s_oomkilled"),
        ("Reason:  Evicted\n", "k8s_evicted"),
        ("[2026-02-01 10:00:00 TP0] Prefill out of memory. Try to lower your batch size.\n", "sglang_kv_alloc_failure"),
    ],
    ids=lambda value: value if "_" in value and " " not in value else "",
)  # fmt: skip
def test_a_failure_is_a_finding_two_seconds_after_its_line(text, want, follow):
    follow.run(3)
    assert follow.run(2, text).ids[0] == want
    (finding,) = [each for each in follow.findings if each.id == want]
    assert finding.evidence[0].source == str(follow.path)
    assert finding.evidence[0].line
    assert finding.advice


def test_a_finding_of_a_start_ends_when_a_restart_succeeds_and_not_before(follow):
    follow.run(3)
    assert follow.run(20, BEGIN + NO_BLOCKS).ids == ["no_kv_blocks"]
    assert follow.run(20, BEGIN_AGAIN + POOL).ids == ["no_kv_blocks"]
    assert follow.run(2, READY).ids == []


def test_a_restart_that_fails_again_goes_on(follow):
    follow.run(3)
    follow.run(200, BEGIN + NO_BLOCKS)
    follow.run(200, BEGIN_AGAIN + NO_BLOCKS)
    assert follow.ids == ["no_kv_blocks"]


def test_a_failure_while_serving_stays_for_five_minutes_although_the_server_goes_on(follow):
    log = BEGIN + POOL + READY
    follow.run(3, log)
    follow.run(2, trace("event_loop_normal", "forward_extend", error=oom()) + "\n")
    assert follow.ids == ["prefill_activation_oom"]
    assert follow.run(290).ids == ["prefill_activation_oom"]
    assert follow.run(10).ids == []


def test_a_healthy_start_and_what_was_there_before_raise_nothing(tmp_path):
    found = Follow(tmp_path)
    found.path.write_text(BEGIN + NO_BLOCKS)
    found.source.close()
    found.source = LogSource(str(found.path), "h", found.clock)
    found.run(5)
    found.run(5, BEGIN_AGAIN + POOL + READY)
    assert found.seen == set()
    found.source.close()


def test_one_line_that_is_judged_again_is_counted_once(follow):
    follow.run(3)
    follow.run(2, BEGIN + POOL + READY + trace("execute_model", error=oom()) + "\n")
    follow.run(
        2,
        "ERROR 02-01 10:05:00 [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -11), shutting down executor.\n",
    )
    rows = follow.pipeline.querier.instant("sum by (cause) (gpuwatch_log_causes_total) > 0", follow.clock.now())
    assert {dict(labels)["cause"]: value for labels, value in rows.items()} == {
        "prefill_activation_oom": 1.0,
        "worker_died": 1.0,
    }


def test_a_port_that_is_taken_is_not_forgotten_because_the_other_server_answers(follow):
    follow.run(3)
    log = (
        "[2026-02-01 10:00:00] server_args=ServerArgs(model_path='/srv/m', port=30000)\n"
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use\n"
    )
    follow.run(2, log)
    assert follow.run(10, "[2026-02-01 10:00:09] The server is fired up and ready to roll!\n").ids == ["port_in_use"]
    assert (
        follow.run(
            5,
            log.splitlines(keepends=True)[0].replace("10:00", "10:10")
            + "[2026-02-01 10:10:09] max_total_num_tokens=1000, max_prefill_tokens=16384, max_running_requests=16, context_len=1000\n[2026-02-01 10:10:09] The server is fired up and ready to roll!\n",
        ).ids
        == []
    )


def test_a_log_that_was_replaced_is_judged_from_its_beginning(follow):
    follow.run(3)
    follow.run(5, BEGIN + POOL + READY + "INFO x\n" * 50)
    follow.path.unlink()
    follow.path.write_text("")
    follow.run(3)
    assert follow.run(3, BEGIN + NO_BLOCKS).ids == ["no_kv_blocks"]


def test_a_failure_counts_although_its_first_two_polls_come_in_one_tick(follow):
    with follow.path.open("a") as file:
        file.write(BEGIN)
    first = follow.source.poll()
    with follow.path.open("a") as file:
        file.write(NO_BLOCKS)
    follow.clock.advance(1.0)
    follow.pipeline.tick(follow.clock.now(), [first, follow.source.poll()])
    assert follow.run(2).ids[0] == "no_kv_blocks"


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        (BEGIN + NO_BLOCKS, True),
        (BEGIN + POOL + READY, False),
        (BEGIN + NO_BLOCKS + BEGIN_AGAIN + POOL + READY, False),
        # What served and goes on is not dead because a request ran out of memory.
        (BEGIN + POOL + READY + oom() + "\n", False),
        (
            BEGIN
            + POOL
            + READY
            + "ERROR 02-01 10:05:00 [x.py:1] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n",
            True,
        ),
    ],
)
def test_a_log_whose_server_was_gone_before_it_was_read_is_known(text, dead, tmp_path):
    found = Follow(tmp_path)
    found.path.write_text(text)
    found.source.close()
    found.source = LogSource(str(found.path), "h", found.clock)
    found.run(1)
    assert found.pipeline.dead_logs == ((str(found.path),) if dead else ())
    found.run(1, BEGIN_AGAIN)
    assert found.pipeline.dead_logs == ()
    found.source.close()


FATAL = (
    "(EngineCore_DP0 pid=77) ERROR 02-01 10:05:00 [core.py:1100] EngineCore encountered a fatal error.\n"
    "(EngineCore_DP0 pid=77) ERROR 02-01 10:05:00 [core.py:1100] Traceback (most recent call last):\n"
    '(EngineCore_DP0 pid=77) ERROR 02-01 10:05:00 [core.py:1100]   File "/usr/lib/python3/vllm/v1/engine/core.py", line 1091, in run_engine_core\n'
    "(EngineCore_DP0 pid=77) ERROR 02-01 10:05:00 [core.py:1100]     engine_core.run_busy_loop()\n"
)
ODD = "(EngineCore_DP0 pid=77) ERROR 02-01 10:05:00 [core.py:1100] RuntimeError: something odd happened\n"
FOLLOWS = "(APIServer pid=70) ERROR 02-01 10:05:00 [async_llm.py:700] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"


def test_an_engine_that_dies_of_what_has_no_name_is_one_finding_that_points_to_the_line(follow):
    follow.run(3, BEGIN + POOL + READY)
    follow.run(1, FATAL)
    follow.run(6, ODD + FOLLOWS)
    (finding,) = follow.findings
    assert (finding.id, finding.severity) == ("worker_died", "critical")
    assert finding.cause.startswith("The engine ended. Why is not known here")
    assert [each.line for each in finding.evidence] == [1 + (BEGIN + POOL + READY).count("\n")]
    assert f"gpuwatch diagnose {follow.path}" in finding.advice[0].text
    # The text of an exception may hold a prompt.
    assert "something odd" not in repr(finding)
    rows = follow.pipeline.querier.instant("sum(gpuwatch_log_causes_total)", follow.clock.now())
    assert [value for _, value in rows.items()] == [1.0]


def test_an_error_of_a_library_with_which_an_engine_ends_is_quoted(follow):
    follow.run(3, BEGIN + POOL + READY)
    error = "(EngineCore_DP0 pid=77) ERROR 02-01 10:05:00 [core.py:1100] RuntimeError: CUDA error: invalid argument\n"
    follow.run(6, FATAL + error + FOLLOWS)
    (finding,) = [each for each in follow.findings if each.id == "worker_died"]
    assert "CUDA error: invalid argument" in finding.cause


def test_a_start_that_fails_for_an_unknown_reason_is_told_until_one_succeeds(follow):
    failed = "(EngineCore_DP0 pid=77) ERROR 02-01 10:00:20 [core.py:900] EngineCore failed to start.\n"
    follow.run(3)
    assert follow.run(6, BEGIN + failed + ODD).ids == ["worker_died"]
    assert follow.findings[0].cause.startswith("The engine did not start.")
    assert follow.run(5, BEGIN_AGAIN + POOL + READY).ids == []


def test_an_engine_whose_death_has_a_cause_is_not_told_of_twice(follow):
    follow.run(3, BEGIN + POOL + READY)
    follow.run(1, FATAL)
    follow.run(10, trace("execute_model", "forward", error=oom()) + "\n" + FOLLOWS)
    assert follow.seen == {"prefill_activation_oom"}


@pytest.mark.parametrize("version", ["0_10_2", "0_31_0"])
def test_a_real_start_that_fails_for_a_known_reason_has_that_reason_alone(version, follow):
    follow.run(3)
    lines = (LOGS / f"vllm_{version}_too_long.log").read_text().splitlines(keepends=True)
    for at in range(0, len(lines), 40):
        follow.run(1, "".join(lines[at : at + 40]))
    follow.run(8)
    assert follow.seen == {"max_model_len_exceeds_kv"}


def test_an_engine_that_was_asked_to_end_did_not_die(follow):
    follow.run(3, BEGIN + POOL + READY)
    asked = "INFO 02-01 10:05:00 [launcher.py:110] Shutting down FastAPI HTTP server.\n"
    follow.run(10, asked + FATAL.replace("10:05:00", "10:05:02"))
    assert follow.seen == set()


ASKED = "INFO 02-01 10:05:00 [launcher.py:110] Shutting down FastAPI HTTP server.\n"
KNOWN = trace("execute_model", "forward", error=oom()) + "\n" + FOLLOWS


def test_a_server_that_drains_for_minutes_after_it_was_asked_to_end_did_not_die(follow):
    follow.run(3, BEGIN + POOL + READY)
    follow.run(200, ASKED)
    follow.run(10, FOLLOWS)
    assert follow.seen == set()


def test_a_server_that_serves_for_hours_after_a_signal_was_not_asked_to_end_by_it(follow):
    follow.run(3, BEGIN + POOL + READY)
    follow.run(7200, ASKED)
    assert follow.run(10, FOLLOWS).ids == ["worker_died"]


def test_a_start_that_is_interrupted_did_not_fail_although_the_first_process_says_so_last(follow):
    failed = "(EngineCore_DP0 pid=77) ERROR 02-01 10:00:20 [core.py:900] EngineCore failed to start.\n"
    follow.run(3, BEGIN)
    follow.run(1, failed)
    follow.run(10, "(APIServer pid=70) KeyboardInterrupt\n")
    assert follow.seen == set()


@pytest.mark.parametrize(
    ("end", "found"),
    [(ASKED + FATAL, set()), (FATAL + KNOWN, {"prefill_activation_oom"}), (FATAL + ODD + FOLLOWS, {"worker_died"})],
)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_end_is_judged_by_the_lines_of_its_own_run_however_soon_the_next_begins(after, end, found, follow):
    follow.run(3, BEGIN + POOL + READY)
    if after:
        follow.run(after, end)
    follow.run(10, BEGIN_AGAIN if after else end + BEGIN_AGAIN)
    assert follow.seen == found


def test_two_runs_that_end_in_one_poll_are_both_told(follow):
    follow.run(3, BEGIN + POOL + READY)
    follow.run(6, FATAL + ODD + BEGIN_AGAIN + POOL + READY + (FATAL + ODD).replace("10:05", "10:25"))
    rows = follow.pipeline.querier.instant("sum(gpuwatch_log_causes_total)", follow.clock.now())
    assert [value for _, value in rows.items()] == [2.0]


def test_a_second_run_that_dies_is_told_of_again(follow):
    follow.run(3, BEGIN + POOL + READY)
    follow.run(6, FATAL + ODD)
    assert follow.ids == ["worker_died"]
    follow.run(5, BEGIN_AGAIN + POOL + READY)
    assert follow.ids == []
    assert follow.run(6, (FATAL + ODD).replace("10:05", "10:25")).ids == ["worker_died"]
