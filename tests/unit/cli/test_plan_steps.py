"""Steps and batches that ``gpuwatch plan`` repairs in a launch command: what it proposes starts."""

from __future__ import annotations

import json

import pytest

from gpuwatch.cli import main

VLLM = "vllm serve Qwen/Qwen2.5-7B-Instruct"  # declares 32,768 tokens
SGLANG = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B"


def launched(capsys, version, command):
    main(["plan", "--json", "--gpu-memory", "80", "--engine-version", version, "--from-command", command])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("version", "command", "repaired"),
    [
        (
            "0.6.3",  # which computes prompts in one step where the length is at most 32,768
            f"{VLLM} --max-num-batched-tokens 8192 --max-model-len 40000",
            f"{VLLM} --max-num-batched-tokens 32768 --max-model-len 32768",
        ),
        (
            "0.33.0",
            f"{VLLM} --max-num-seqs 1024 --max-num-batched-tokens 1000 --no-enable-chunked-prefill",
            f"{VLLM} --max-num-seqs 1024 --max-num-batched-tokens 32768 --no-enable-chunked-prefill",
        ),
        (
            "0.33.0",
            f"{VLLM} --max-num-seqs 1024 --max-num-batched-tokens 512",
            f"{VLLM} --max-num-seqs 512 --max-num-batched-tokens 512",
        ),
        (
            "0.5.3",
            f"{SGLANG} --page-size 64 --chunked-prefill-size 1000",
            f"{SGLANG} --page-size 64 --chunked-prefill-size 960",  # 15 x 64
        ),
        (
            "0.5.23",
            f"{SGLANG} --tp 8 --dp 8 --enable-dp-attention --page-size 64 --chunked-prefill-size 1500",
            f"{SGLANG} --tp 8 --dp 8 --enable-dp-attention --page-size 64 --chunked-prefill-size 1024",  # 2 x 64 each
        ),
        (
            "0.5.23",
            f"{SGLANG} --page-size 96 --chunked-prefill-size -1",
            f"{SGLANG} --page-size 96 --chunked-prefill-size 8160",  # 85 x 96
        ),
    ],
)
def test_what_is_proposed_in_place_of_a_refused_step_starts(capsys, version, command, repaired):
    assert launched(capsys, version, command)["command"] == repaired
    again = launched(capsys, version, repaired)
    assert (again["command"], again["flags"], again["serves"]) == (repaired, [], True)


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("0.7.3", f"VLLM_USE_V1=1 {VLLM} --max-num-batched-tokens 8192"),
        ("0.7.3", f"bash -c 'VLLM_USE_V1=1 {VLLM} --max-num-batched-tokens 8192'"),
        ("0.32.0", f"{VLLM} --max-num-seqs 12288 --performance-mode throughput --max-model-len 4096"),
        ("0.5.23", f"{SGLANG} --page-size 64 --chunked-prefill-size 1000 --disaggregation-mode decode"),
    ],
)
def test_steps_that_the_engine_takes_are_left(capsys, version, command):
    plan = launched(capsys, version, command)
    assert (plan["command"], plan["flags"]) == (command, [])
    assert not [note for note in plan["notes"] if " of a step" in note or "a step of" in note]


def test_whole_prompts_are_refused_of_v0_and_where_they_are_asked_for(capsys):
    refused = launched(capsys, "0.7.3", f"{VLLM} --max-num-batched-tokens 8192")
    assert refused["command"] == f"{VLLM} --max-num-batched-tokens 32768"
    later = launched(
        capsys, "0.15.0", f"VLLM_USE_V1=1 {VLLM} --max-num-batched-tokens 8192 --no-enable-chunked-prefill"
    )
    assert later["serves"] is False
