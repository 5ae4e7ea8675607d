"""What-if rows keep their word: a command that is changed as a row says is planned as the row promised."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest

from gpuwatch.cli import main

FRACTIONS = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}
WEIGHTS = {"weights in FP8 or INT8": "fp8", "weights in INT4 (AWQ, GPTQ)": "int4"}
RANKS = {
    ("tensor", "vllm"): "--tensor-parallel-size",
    ("tensor", "sglang"): "--tp-size",
    ("pipeline", "vllm"): "--pipeline-parallel-size",
    ("pipeline", "sglang"): "--pp-size",
}
LENGTHS = re.compile("--(max-model-len|context-length) ")

LAUNCHES = [
    "vllm serve Qwen/Qwen3-8B --gpu-memory 20",
    "vllm serve Qwen/Qwen3-4B --max-num-batched-tokens 2048 --gpu-memory 12 --engine-version 0.19.0",
    (
        "vllm serve deepseek-ai/DeepSeek-V3 --tensor-parallel-size 8 --gpu-memory-utilization 0.5"
        " --max-model-len 131072 --max-num-seqs 64 --kv-cache-memory-bytes 1073741824"
        " --gpu-memory 141 --engine-version 0.27.1"
    ),
    (
        "vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 4 --kv-cache-memory-bytes 1073741824"
        " --num-gpu-blocks-override 50000 --gpu-memory 141 --engine-version 0.30.0"
    ),
    (
        "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --gpu-memory-utilization 0.97 --max-num-seqs 1000"
        " --gpu-memory 24 --engine-version 0.8.5"
    ),
    (
        "vllm serve Qwen/Qwen3-30B-A3B-Instruct-2507 --tensor-parallel-size 2 --max-num-seqs 1000 --gpu-memory 48"
        " --engine-version 0.27.1"
    ),
    "vllm serve google/gemma-3-27b-it --tensor-parallel-size 4 --gpu-memory 16 --engine-version 0.33.0",
    (
        "vllm serve Qwen/Qwen2.5-72B-Instruct --tensor-parallel-size 2 --max-model-len 32768"
        " --kv-cache-memory-bytes 20G --gpu-memory 24 --engine-version 0.30.0"
    ),
    "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 200000 --gpu-memory 80",
    "vllm serve meta-llama/Meta-Llama-3-8B-Instruct --max-model-len 20000 --gpu-memory 141 --engine-version 0.6.3",
    (
        "python -m sglang.launch_server --model-path qwen/qwen2.5-72b-instruct --tp-size 8 --max-total-tokens 10000000"
        " --gpu-memory 24"
    ),
    (
        "python -m sglang.launch_server --model-path google/gemma-3-27b-it --tp-size 8 --max-total-tokens 10000000"
        " --gpu-memory 12"
    ),
    (
        "python -m sglang.launch_server --model-path qwen/qwen2.5-14b-instruct --tp-size 2 --context-length 32768"
        " --max-running-requests 64 --gpu-memory 12 --engine-version 0.5.15"
    ),
    (
        "python -m sglang.launch_server --model-path meta-llama/llama-3.1-8b-instruct --tp-size 1"
        " --mem-fraction-static 0.8 --max-running-requests 256 --gpu-memory 24 --engine-version 0.4.6"
    ),
]
"""Launch commands, with arguments of ``gpuwatch plan`` behind them."""


def planned(capsys, command, arguments):
    main(["plan", "--json", "--from-command", command, *arguments])
    return json.loads(capsys.readouterr().out)


def told(command, flag, value=None):
    """Return the command with a flag set to a value, or without it."""
    kept = re.sub(rf" {flag} \S+", "", command)
    return kept if value is None else f"{kept} {flag} {value}"


def changed(command, arguments, change):
    """Return command and arguments with what a row says done to them; None for what no engine offers."""
    engine = "sglang" if "sglang" in command else "vllm"
    leaving = False
    for part in re.split(r" and |, (?!GPTQ)", change):
        leaving = leaving or part.startswith("without ")
        if part in WEIGHTS:
            arguments = [*arguments, "--weights", WEIGHTS[part]]
        elif found := re.fullmatch(r"(\S+) parallel \d+ → (\d+)", part):
            command = told(command, RANKS[found[1], engine], found[2])
        elif found := re.fullmatch(r"(--\S+) \S+ → (\S+)", part):
            command = told(command, found[1], found[2])
        elif leaving:
            command = told(command, part.removeprefix("without ").split()[0])
        else:
            return None
    return command, arguments


@pytest.mark.parametrize("launch", LAUNCHES, ids=range(len(LAUNCHES)))
def test_a_command_changed_as_a_row_says_is_planned_as_the_row_promised(capsys, launch):
    command, *options = re.split(" (?=--gpu-memory |--engine-version )", launch)
    arguments = [word for option in options for word in option.split()]
    rows = planned(capsys, command, arguments)["what_if"]
    assert rows
    for row in rows:
        other = changed(command, arguments, row["change"])
        if other is None:
            continue
        plan = planned(capsys, *other)
        close = partial(pytest.approx, rel=5e-3, abs=0.01)
        assert (plan["verdict"], plan["serves"]) == (row["verdict"], row["serves"]), row["change"]
        assert plan["kv"]["max_concurrency"] == close(row["max_concurrency"]), row["change"]
        longest = plan["kv"]["max_context"]
        if LENGTHS.match(row["change"]):
            assert row["max_context"] <= longest
        else:
            assert longest == close(row["max_context"]), row["change"]


@pytest.mark.parametrize(
    ("launch", "gib", "length"),
    [
        ("vllm serve Qwen/Qwen3-8B", 20, 8192),  # its pool holds 8,496 tokens
        ("vllm serve Qwen/Qwen3-8B --max-model-len 131072", 80, 40960),  # what the model declares
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --context-length 131072", 80, 40960),
    ],
)
def test_the_longest_request_that_serves_is_proposed(capsys, launch, gib, length):
    plan = planned(capsys, launch, ["--gpu-memory", str(gib)])
    assert plan["serves"] is False
    found = [row for row in plan["what_if"] if LENGTHS.match(row["change"])]
    assert [int(row["change"].split()[-1]) for row in found] == [length]
    assert all(row["serves"] and row["max_concurrency"] >= 1 for row in found)


def test_a_tight_length_is_proposed_beside_a_much_shorter_one_that_fits(capsys):
    plan = planned(
        capsys, "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2", ["--gpu-memory", "12"]
    )
    pool = plan["kv"]["max_context"]
    found = {row["verdict"]: row for row in plan["what_if"] if LENGTHS.match(row["change"])}
    lengths = {verdict: int(row["change"].split()[-1]) for verdict, row in found.items()}
    assert set(lengths) == {"fits", "tight"}
    assert lengths["tight"] == pool // 1024 * 1024 > 1.25 * lengths["fits"]


def test_a_size_of_the_pool_that_the_card_cannot_hold_serves_nothing(capsys):
    launch = "vllm serve Qwen/Qwen2.5-72B-Instruct -tp 2 --max-model-len 8192 --num-gpu-blocks-override 2000"
    plan = planned(capsys, launch, ["--gpu-memory", "12"])  # weights alone are 68 GiB on each card
    assert plan["kv"]["max_concurrency"] > 1
    assert (plan["verdict"], plan["serves"]) == ("does_not_fit", False)


def shown(capsys, *arguments):
    main(["plan", *arguments])
    return capsys.readouterr().out


QWEN_30B = ("Qwen/Qwen3-30B-A3B-Instruct-2507", "--tp", "2", "--gpu-memory", "48", "--max-num-seqs", "1000",
            "--engine-version", "0.27.1")  # fmt: skip


def test_the_verdict_in_words_does_not_contradict_the_pool_below_it(capsys):
    text = shown(capsys, *QWEN_30B, "--utilization", "0.95")
    assert "or 0.8 requests of 262,144" in text
    (verdict,) = [line for line in text.splitlines() if line.startswith("verdict")]
    assert verdict.startswith("verdict: tight: with --gpu-memory-utilization 0.95 the pool lacks a little for")
    assert "holds it" not in verdict


def test_a_fraction_that_may_do_is_not_said_to_be_never_enough(capsys):
    text = shown(capsys, *QWEN_30B)
    assert "so the engine will not start: --gpu-memory-utilization 0.95 may be enough" in text
    assert "no fraction is enough" not in text


def test_a_row_that_fits_and_will_not_start_says_so(capsys):
    text = shown(capsys, "Qwen/Qwen3-32B", "--gpu-memory", "46")
    assert "fits the card and will not start: longest request 32,288, 0.7 of full length" in text


def test_the_step_of_vllm_v0_follows_the_length_that_is_proposed(capsys):
    launch = "vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1 --tensor-parallel-size 8 --max-model-len 131072"
    plan = planned(capsys, launch, ["--gpu-memory", "48", "--engine-version", "0.6.3"])
    (row,) = [row for row in plan["what_if"] if LENGTHS.match(row["change"])]
    assert row["change"] == "--max-model-len 131072 → 32768"  # a step of 2,048 tokens would hold no prompt of it
    assert row["serves"]
