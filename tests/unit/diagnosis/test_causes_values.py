"""Values of launch flags that no engine takes, and what does not go together."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.incidents import Verdict


def told(folder, flags, files=None):
    return Verdict(folder, files or {}, flags)


@pytest.mark.parametrize(
    ("flags", "flag", "move"),
    [
        ("vllm serve m --gpu-memory-utilization 85", "gpu-memory-utilization", ("85", "0.85")),
        ("vllm serve m --gpu-memory-utilization 0.9x", "gpu-memory-utilization", ("0.9x", "0.9")),
        ("vllm serve m --gpu-memory-utilization 0", "gpu-memory-utilization", ("0", "0.9")),
        ("vllm serve m --tensor-parallel-size 0", "tensor-parallel-size", ("0", "1")),
        ("vllm serve m --max-model-len -7", "max-model-len", ("-7", "(leave it out)")),
        (
            "python -m sglang.launch_server --model-path m --mem-fraction-static 1.2",
            "mem-fraction-static",
            ("1.2", "0.9"),
        ),
    ],
)
def test_a_value_outside_of_what_a_flag_can_be_is_refused(tmp_path, flags, flag, move):
    verdict = told(tmp_path, flags)
    assert verdict.firm == ["flag_unknown"]
    assert verdict["flag_unknown"].title == "A launch flag has a value that no engine takes"
    assert verdict.move("flag_unknown", f"--{flag}") == move


@pytest.mark.parametrize(
    "flags",
    [
        "vllm serve m --gpu-memory-utilization 0.9 --max-model-len auto --tensor-parallel-size 2",
        "vllm serve m --max-model-len -1 --max-num-seqs 16",
        "vllm serve m --max-model-len 16k --block-size 16",
        "--gpu-memory-utilization between 0.2 and 0.3, whichever starts",
        "python -m sglang.launch_server --model-path m --mem-fraction-static 0.8 --chunked-prefill-size -1",
    ],
)
def test_values_that_an_engine_takes_are_no_finding(tmp_path, flags):
    assert "flag_unknown" not in told(tmp_path, flags).ids


def test_ranks_and_visible_gpus_are_counted_together(tmp_path):
    verdict = told(tmp_path, "CUDA_VISIBLE_DEVICES=0,1,2 vllm serve m -tp 2 -pp 2")
    assert "4 ranks need a GPU each, and CUDA_VISIBLE_DEVICES shows the engine 3" in verdict["flag_risky"].cause
    enough = told(tmp_path, "CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve m -tp 2 -pp 2")
    elsewhere = told(tmp_path, "CUDA_VISIBLE_DEVICES=0,1 vllm serve m -tp 4 --distributed-executor-backend ray")
    assert "flag_risky" not in (*enough.ids, *elsewhere.ids)


def test_a_step_that_is_smaller_than_a_prompt_needs_prompts_that_may_be_split(tmp_path):
    flags = "vllm serve m --max-num-batched-tokens 2048 --max-model-len 4096"
    verdict = told(tmp_path, f"{flags} --no-enable-chunked-prefill")
    assert verdict.move("flag_risky", "--max-num-batched-tokens") == ("2048", "4096")
    assert "flag_risky" not in told(tmp_path, flags).ids


def test_a_command_with_the_tag_of_an_image_is_one_of_that_version(tmp_path):
    log = "INFO 06-01 09:00:00 [api_server.py:1289] vLLM API server version 0.9.1\n"
    command = "docker run vllm/vllm-openai:v0.12.0 --model m --num-scheduler-steps 8\n"
    finding = Verdict(tmp_path, {"a.log": log, "run.sh": command})["flag_unknown"]
    assert finding.evidence[0].text.startswith("vLLM 0.12.0 does not have --num-scheduler-steps")


@pytest.mark.parametrize("value", ["${SHARE:-0.9}", "$SHARE", "{{ .share }}", "<share>", '0.95"', "of the card"])
def test_what_only_stands_for_a_value_is_none(tmp_path, value):
    text = f"vllm serve m --max-num-seqs 8 --gpu-memory-utilization {value}\n"
    assert "flag_unknown" not in Verdict(tmp_path, {"run.sh": text}).ids
