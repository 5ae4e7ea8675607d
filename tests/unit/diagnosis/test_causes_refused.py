"""Starts that an engine refuses in its own words, ranks that ended, and last errors that nothing here explains."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.incidents import judge_log

VLLM = "(APIServer pid=1) INFO 03-04 08:00:00 [api_server.py:1893] vLLM API server version 0.12.0\n"
SGLANG = "[2026-05-01 10:00:00 TP0] Load weight begin. avail mem=78.50 GB\n"
DECODE = (
    "[2026-05-01 {} TP0] Decode batch. #running-req: 2, #token: 900, token usage: 0.02, cuda graph: True, gen "
    "throughput (token/s): 50.00, #queue-req: 0, \n"
)
STATS = (
    "(APIServer pid=1) INFO 03-04 08:{:02}:00 [loggers.py:236] Engine 00{}: Avg prompt throughput: 9.0 tokens/s, "
    "Avg generation throughput: 9.0 tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {}%, Prefix "
    "cache hit rate: 1.0%\n"
)


def missing(verdict):
    return " ".join(each.missing for each in verdict.not_enough)


def test_a_model_with_code_of_its_own_wants_a_flag(tmp_path):
    line = "ValueError: The repository org/m contains custom code which must be executed to correctly load the model.\n"
    verdict = judge_log(tmp_path, VLLM + line)
    assert verdict.ids == ["flag_unknown"]
    assert verdict.move("flag_unknown", "--trust-remote-code") == (None, None)


@pytest.mark.parametrize(("rank", "fitting"), [(17, "32"), (64, "64"), (300, "320")])
def test_the_rank_of_an_adapter_names_the_smallest_limit_that_takes_it(tmp_path, rank, fitting):
    verdict = judge_log(tmp_path, VLLM + f"ValueError: LoRA rank {rank} is greater than max_lora_rank 16.\n")
    assert verdict.move("flag_unknown", "--max-lora-rank") == ("16", fitting)
    assert verdict["flag_unknown"].severity == "critical"


def test_an_adapter_that_a_running_server_refuses_ends_nothing(tmp_path):
    up = VLLM + "(APIServer pid=1) INFO:     Application startup complete.\n"
    verdict = judge_log(tmp_path, up + "ValueError: LoRA rank 64 is greater than max_lora_rank 16.\n")
    assert verdict["flag_unknown"].severity == "warning"


@pytest.mark.parametrize(("why", "words"), [("MetadataIncompleteBuffer", "too early"), ("HeaderTooLarge", "pointer")])
def test_a_damaged_file_of_weights(tmp_path, why, words):
    line = f"safetensors_rust.SafetensorError: Error while deserializing header: {why}\n"
    verdict = judge_log(tmp_path, VLLM + line)
    assert verdict.ids == ["model_not_found"]
    assert words in verdict["model_not_found"].cause


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: Model architectures ['NewForCausalLM'] are not supported for now.",
        "  Value error, The checkpoint has model type `new` but Transformers does not recognize this architecture.",
        "LLVM ERROR: Failed to compute parent layout for slice layout.",
        "RuntimeError: something that nobody has seen before",
    ],
)
def test_the_last_error_is_quoted_with_its_line(tmp_path, line):
    verdict = judge_log(tmp_path, VLLM + line + "\n")
    assert verdict.ids == []
    assert line.split(maxsplit=2)[2] in missing(verdict)
    assert ":2]" in missing(verdict)


def test_an_error_after_which_the_server_went_on_is_not_its_last_word(tmp_path):
    verdict = judge_log(tmp_path, VLLM + "RuntimeError: one request\n" + STATS.format(1, 0, 3, 0, 5))
    assert missing(verdict) == ""


def test_a_device_that_is_not_there_is_quoted_where_the_start_failed(tmp_path):
    lines = "torch.AcceleratorError: CUDA error: invalid device ordinal\nEngineCore failed to start.\n"
    assert "fewer GPUs than there are ranks" in missing(judge_log(tmp_path, VLLM + lines))


@pytest.mark.parametrize(
    ("error", "words"),
    [("Connection closed by peer [10.0.0.9]:41", "another rank"), ("failed to dispatch head_dim 96", "backend")],
)
def test_graphs_that_failed_for_another_reason_than_memory(tmp_path, error, words):
    said = missing(judge_log(tmp_path, SGLANG + f"Exception: Capture cuda graph failed: {error}\n"))
    assert error in said
    assert words in said


@pytest.mark.parametrize(
    "lines",
    [
        (
            "[2026-05-01 10:00:04] Rank 3 scheduler is dead. Please check if there are relevant logs.\n"
            "[2026-05-01 10:00:04] Exit code: -9\n"
        ),
        "[2026-05-01 10:00:04] Rank 3 scheduler died during initialization (exit code: -9).\n",
        "[2026-05-01 10:00:04] Child process unexpectedly failed with exitcode=9. pid=7\n",
    ],
)
def test_a_process_of_sglang_that_was_killed(tmp_path, lines):
    verdict = judge_log(tmp_path, SGLANG + lines)
    assert verdict.ids == ["worker_died"]
    assert "SIGKILL" in verdict["worker_died"].cause
    assert "vLLM" not in verdict.said("worker_died")


def test_a_child_that_only_failed_is_no_kill(tmp_path):
    line = "[2026-05-01 10:00:04] Child process unexpectedly failed with exitcode=256. pid=7\n"
    assert judge_log(tmp_path, SGLANG + line).ids == []


@pytest.mark.parametrize(("killed", "ids"), [(2, ["ray_host_oom"]), (10, ["ray_host_oom"]), (0, [])])
def test_the_summary_of_rays_monitor_counts_where_it_killed(tmp_path, killed, ids):
    line = f"(raylet) {killed} Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed\n"
    assert judge_log(tmp_path, VLLM + line).ids == ids


@pytest.mark.parametrize(
    ("beat", "later", "severity"),
    [("09:50:00", "", "critical"), ("09:59:50", "", "warning"), ("09:50:00", DECODE.format("10:01:00"), "warning")],
)
def test_a_health_check_without_an_answer(tmp_path, beat, later, severity):
    line = (
        "[2026-05-01 10:00:20] Health check failed. Server couldn't get a response from detokenizer for last 20 "
        f"seconds. tic start time: 10:00:00. last_heartbeat time: {beat}\n"
    )
    verdict = judge_log(tmp_path, DECODE.format(beat) + line + later)
    assert verdict.ids == ["engine_stalled"]
    assert verdict["engine_stalled"].severity == severity


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("Error 803: system has unsupported display driver / cuda driver combination", "803"),
        ("Error 804: forward compatibility was attempted on non supported HW", "data-centre cards only"),
    ],
)
def test_a_driver_that_does_not_go_with_the_library(tmp_path, error, words):
    verdict = judge_log(tmp_path, VLLM + f"RuntimeError: Unexpected error from cudaGetDeviceCount(). {error}\n")
    assert verdict.ids == ["driver_too_old"]
    assert words in verdict["driver_too_old"].cause


def test_a_transfer_that_was_given_up_names_the_peer_and_the_card(tmp_path):
    lines = (
        "n:3:9 [3] transport/net_ib.cc:17 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<41> with "
        "status=12 hca mlx5_3\n"
        "RuntimeError: NCCL error: remote process exited or there was a network error\n"
    )
    cause = judge_log(tmp_path, VLLM + lines)["nccl_hang"].cause
    assert "10.0.0.2" in cause
    assert "mlx5_3" in cause


def test_the_watchdogs_failure_is_a_collective_that_did_not_end(tmp_path):
    line = (
        "[rank1]:[E1] [PG ID 2 Rank 1]  failure detected by watchdog at work sequence id: 4023 PG status: last enqueued"
    )
    assert "4,023" in judge_log(tmp_path, VLLM + line + "\n")["nccl_hang"].cause


def test_one_of_two_replicas_that_holds_the_queue(tmp_path):
    lines = "".join(STATS.format(at, 0, 90, 40, 97) + STATS.format(at, 1, 3, 0, 2) for at in range(5))
    assert judge_log(tmp_path, VLLM + lines).ids[0] == "dp_imbalance"
    even = "".join(STATS.format(at, 0, 90, 40, 97) + STATS.format(at, 1, 60, 30, 97) for at in range(5))
    assert "dp_imbalance" not in judge_log(tmp_path, VLLM + even).ids


def test_a_start_that_waits_for_gpus_and_a_server_without_descriptors_are_said(tmp_path):
    wait = (
        "INFO 02-17 05:02:32 ray_utils.py:212] Waiting for creating a placement group of specs for 30 seconds. specs="
    )
    said = missing(judge_log(tmp_path, VLLM + wait + "[{'GPU': 1.0}, {'GPU': 1.0}]. Check `ray status`\n"))
    assert "2 GPUs of the Ray cluster" in said
    assert "Too many open files" in missing(judge_log(tmp_path, VLLM + "OSError: [Errno 24] Too many open files\n"))


def test_the_version_of_an_image_judges_its_flags(tmp_path):
    command = "docker run vllm/vllm-openai:v{} --model m --num-scheduler-steps 8\n"
    assert judge_log(tmp_path, command.format("0.12.0")).ids == ["flag_unknown"]
    assert judge_log(tmp_path, command.format("0.9.0")).ids == []


def test_a_card_that_fell_off_the_bus_over_three_lines_is_named(tmp_path):
    lines = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:c1:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    assert "0000:c1:00.0" in judge_log(tmp_path, lines)["gpu_lost"].cause


def test_an_unknown_error_of_nvml_speaks_of_containers(tmp_path):
    verdict = judge_log(tmp_path, "Failed to initialize NVML: Unknown Error\n")
    assert "container" in verdict.said("driver_unresponsive")
