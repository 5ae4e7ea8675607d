"""What is built or shared at start, or handed over while serving, and fails: the line that says why is quoted."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.cli.markdown import public
from tests.unit.diagnosis.incidents import Verdict, judge_log

ENDED = "ERROR 05-27 11:47:57 [core.py:396] EngineCore failed to start.\n"
NINJA = (
    "subprocess.CalledProcessError: Command '['ninja', '-v', '-C', '/root/.cache/flashinfer/ops']' returned non-zero "
    "exit status 127.\n"
)
ARGS = "[2025-03-26 17:10:02] server_args=ServerArgs(model_path='/data/m', tp_size={tp}, mem_fraction_static=0.85)\n"
BLOCKS = (
    "[2025-03-26 17:10:21 TP5] Scheduler hit an exception: Traceback (most recent call last):\n"
    "ValueError: Weight output_partition_size = {part} is not divisible by weight quantization block_n = 128.\n"
)
HANDED = (
    "[2025-09-17 16:23:13 TP1] Decode transfer failed for request rank=1 decode_req.req.rid='aa' "
    "decode_req.req.bootstrap_room=17 with exception KVTransferError(bootstrap_room=17): {why}\n"
)


def left_over(verdict: Verdict) -> str:
    return "\n".join(each.missing for each in verdict.not_enough)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found", "CUDA_HOME"),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "TRITON_LIBCUDA_PATH"),
        ("main.c:1:10: fatal error: Python.h: No such file or directory", "python3-dev"),
    ],
)
def test_what_is_missing_for_a_build_is_quoted_in_place_of_the_call_that_failed_over_it(tmp_path, line, hint):
    said = left_over(judge_log(tmp_path, ENDED + line + "\nninja: build stopped: subcommand failed.\n" + NINJA))
    assert line in said
    assert hint in said
    assert "returned non-zero" not in said


def test_a_build_that_failed_without_such_a_line_is_quoted_itself(tmp_path):
    assert "returned non-zero" in left_over(judge_log(tmp_path, ENDED + NINJA))


def test_graphs_that_fail_over_shared_buffers_point_to_the_custom_all_reduce(tmp_path):
    frame = '  File "/opt/sglang/srt/custom_all_reduce.py", line 307, in register_graph_buffers\n'
    dead = "[2025-08-27 11:01:41 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
    failed = "Exception: Capture cuda graph failed: invalid argument\n"
    assert "--disable-custom-all-reduce" in left_over(judge_log(tmp_path, dead + frame + failed))
    assert "--disable-custom-all-reduce" not in left_over(judge_log(tmp_path, dead + failed))


@pytest.mark.parametrize(("tp", "part", "move"), [(32, 576, ("32", "16")), (8, 192, ("8", "4")), (4, 100, ("4", None))])
def test_blocks_of_a_quantised_weight_tell_how_many_ranks_fit(tmp_path, tp, part, move):
    """18,432 rows are 9 blocks of 128 on each of 16 ranks, and 4.5 on each of 32; 400 rows are no whole blocks."""
    verdict = judge_log(tmp_path, ARGS.format(tp=tp) + BLOCKS.format(part=part))
    assert verdict.ids == ["flag_unknown"]
    assert verdict.move("flag_unknown", "--tp-size") == move


def test_cache_that_a_prefill_instance_did_not_hand_over_is_told_by_the_rank_that_knows_why(tmp_path):
    text = HANDED.format(why="Failed due to an unknown reason from another rank")
    text += HANDED.format(why="Failed to get kvcache from prefill instance, it might be dead")
    said = left_over(judge_log(tmp_path, text))
    assert "whether the prefill instance is up" in said
    assert "it might be dead" in said


class TestCommands:
    """What a command says is the same on the command line and in a file."""

    IMAGE = "docker run --gpus all vllm/vllm-openai:v0.12.0 --model x --num-scheduler-steps 8"

    def test_the_tag_of_an_image_is_the_version_of_the_engine(self, tmp_path: Path):
        given = Verdict(tmp_path, {}, self.IMAGE)
        assert given.ids == ["flag_unknown"]
        assert given["flag_unknown"].cause == Verdict(tmp_path, {"run.sh": self.IMAGE + "\n"})["flag_unknown"].cause

    @pytest.mark.parametrize(("share", "found"), [("0.97", ["flag_risky"]), ("0.9", [])])
    def test_a_trap_of_every_version_needs_no_version(self, tmp_path: Path, share, found):
        command = f"vllm serve x --gpu-memory-utilization {share}"
        assert Verdict(tmp_path, {}, command).ids == found
        assert Verdict(tmp_path, {"run.sh": command + "\n"}).ids == found

    def test_a_trap_of_some_versions_does(self, tmp_path: Path):
        assert Verdict(tmp_path, {}, "vllm serve x --swap-space 32").ids == []

    def test_a_script_that_starts_two_engines_is_judged_for_both(self, tmp_path: Path):
        script = (
            "vllm serve a/b --gpu-memory-utilization 0.98 &\n"
            "python -m sglang.launch_server --model-path c/d --mem-fraction-static 0.95 &\n"
        )
        said = Verdict(tmp_path, {"run.sh": script}).said("flag_risky")
        assert "--gpu-memory-utilization" in said
        assert "--mem-fraction-static" in said

    def test_a_model_without_its_flag_is_told_the_flag(self, tmp_path: Path):
        refused = "usage: api_server.py [-h] [--headless]\napi_server.py: error: unrecognized arguments: /data/m\n"
        verdict = Verdict(tmp_path, {"log.txt": "INFO 10-22 21:56:56 [__init__.py:216] platform cuda.\n" + refused})
        assert verdict.move("flag_unknown", "--model") == (None, "/data/m")


def test_a_watchdog_names_its_rank_and_the_stacks_that_the_log_holds(tmp_path):
    dog = "[2026-04-20 10:12:00 TP2] Watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
    dump = "[2026-04-20 10:12:00 TP2] Pyspy dump for PID 515:\nThread 515 (active): MainThread\n"
    said = judge_log(tmp_path, dog + dump).said("engine_stalled")
    assert "Rank TP2" in said
    assert "process 515 below line 2" in said
    assert "py-spy dump --pid" in judge_log(tmp_path, dog).said("engine_stalled")


def test_an_error_below_a_line_of_code_is_not_taken_for_the_rest_of_it(tmp_path):
    code = "    some_values = self.sampler.compute_the_values(of_it)\n"
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 1 has a total capacity of 22.03 "
        "GiB of which 801.12 MiB is free.\n"
    )
    verdict = judge_log(tmp_path, code + error)
    (first, *_) = verdict.findings[0].evidence
    assert first.text.startswith("torch.OutOfMemoryError")
    assert first.line == 2


def test_what_only_a_debugger_is_told_is_no_failure(tmp_path):
    line = '{{"timestamp":"2026-11-20T08:05:02Z","level":"{level}","logger":"vllm.v1","message":"ValueError: No '
    line += "available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
    line += 'engine."}}\n'
    assert judge_log(tmp_path, line.format(level="ERROR")).ids == ["no_kv_blocks"]
    assert judge_log(tmp_path, line.format(level="DEBUG")).ids == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 79, pid=7, name=mara_train, lost", "pid=7, name=<program>, lost"),
        ("NVRM: Xid (PCI:0000:01:00): 79, pid=7, name=VLLM::EngineCor, lost", "name=VLLM::EngineCor"),
        ("Out of memory: Killed process 7 (mara_train) total-vm:9kB", "process 7 (<program>)"),
        ("NVRM: GPU Board Serial Number: 1654321098765", "Serial Number: <serial>"),
        ("GPU at 0000:01:00 S/N 1234567890123", "S/N <serial>"),
    ],
)
def test_a_report_for_an_issue_names_no_program_of_others_and_no_serial_number(text, shown):
    assert shown in public(text)
