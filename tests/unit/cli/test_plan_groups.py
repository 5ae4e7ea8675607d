"""Data-parallel groups and several models on the same cards in ``gpuwatch plan``: cards, weights, pools."""

from __future__ import annotations

import json

import pytest

from gpuwatch.cli import main
from tests.unit.cli.test_plan_command import LLAMA, planned, weights_of

GIB = 2**30


@pytest.fixture
def llama(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def commanded(capsys, command, *arguments):
    return planned(capsys, "--from-command", command, *arguments)[1]


@pytest.mark.parametrize(
    ("command", "cards", "pools"),
    [
        ("vllm serve {} -tp 2 -dp 4", 8, 4),
        ("vllm serve {} -tp 2 -pp 2 --data-parallel-size 2", 8, 2),
        ("python -m sglang.launch_server --model-path {} --tp 2 --dp 2", 4, 2),
        ("python -m sglang.launch_server --model-path {} --tp 2 --dp 2 --enable-dp-attention", 2, 2),
        ("python -m sglang.launch_server --model-path {} --tp 4 --attn-dp-size 2", 4, 2),
    ],
)
def test_data_parallel_groups_need_cards_of_their_own_and_have_a_pool_each(capsys, llama, command, cards, pools):
    plan = commanded(capsys, command.format(llama))
    assert (len(plan["per_gpu"]), plan["kv"]["pools"], plan["models"][0]["dp"]) == (cards, pools, pools)
    served = pools * plan["kv"]["tokens"] / plan["kv"]["context"]
    assert plan["kv"]["max_concurrency"] == pytest.approx(served, rel=0.001)


def test_dense_groups_are_copies_of_one_another(capsys, llama):
    one, four = (commanded(capsys, f"vllm serve {llama} -tp 2 -dp {dp}") for dp in (1, 4))
    assert four["per_gpu"][0] == one["per_gpu"][0]
    assert four["kv"]["max_concurrency"] == pytest.approx(4 * one["kv"]["max_concurrency"], rel=1e-4)


def test_too_few_cards_for_the_groups_are_refused(capsys, llama):
    assert main(["plan", "--from-command", f"vllm serve {llama} -tp 2 -dp 4", "--gpus", "4"]) == 2
    assert "--tp 2 x --pp 1 x --dp 4 needs 8 cards, but --gpus is 4" in capsys.readouterr().err


def test_cards_that_are_given_are_divided_among_the_groups(capsys, llama):
    plan = commanded(capsys, f"vllm serve {llama} -dp 4", "--gpus", 8)
    assert (plan["models"][0]["tp"], len(plan["per_gpu"])) == (2, 8)


@pytest.mark.parametrize("flag", ["", "--enable-expert-parallel"])
def test_groups_of_vllm_divide_the_experts_and_copy_the_rest(capsys, flag):
    command = f"vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1 -tp 2 -dp 2 {flag}"
    plan = commanded(capsys, command)
    experts = 32 * 8 * 3 * 4096 * 14336 / 4  # two of eight on each card, or a quarter of each
    attention = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024) / 2
    rest = 32 * 4096 * 8 + 2 * 32_000 * 4096 / 2 + 65 * 4096 + 32_768 * 128
    # 8 MiB of rotations in a segment of 20, and half of the embedding and of the head, 125 MiB, in steps of 2
    assert weights_of(plan) == pytest.approx(2 * (experts + attention + rest) + (12 + 2) * 2**20)
    assert any("they divide the experts among them and copy everything else" in note for note in plan["notes"])


def test_groups_of_sglang_keep_all_experts(capsys):
    alone, two = (
        commanded(capsys, f"sglang serve --model-path mistralai/Mixtral-8x7B-Instruct-v0.1 --tp 2 --dp {dp}")
        for dp in (1, 2)
    )
    assert weights_of(two) == weights_of(alone)


def test_eight_groups_of_one_card_serve_a_model_that_one_card_does_not_hold(capsys):
    command = "vllm serve deepseek-ai/DeepSeek-V3 -dp 8 --enable-expert-parallel --max-model-len 8192"
    plan = commanded(capsys, command, "--gpu-memory", 141)
    eight = 1 + 4 / 128**2  # bytes, with a scale of 32 bits for 128 x 128 weights
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    one = 3 * 7168 * 2048  # an expert; each of 58 layers has 256, a shared one and a router
    packed = 61 * attention + 58 * (256 / 8 + 1) * one + 3 * 3 * 7168 * 18_432
    plain = 2 * 129_280 * 7168 + 58 * 7168 * 256 + 123 * 7168 + 163_840 * 64
    absorbed = 61 * 512 * 128 * 256 * 2  # the up-projections of the latent entry once more, in 16 bits
    assert weights_of(plan) == pytest.approx(eight * packed + 2 * plain + absorbed, rel=0.0015)
    assert (len(plan["per_gpu"]), plan["verdict"]) == (8, "fits")
    ways = {(way["tp"], way["replicas"]): way for way in plan["spread"]}
    assert ways[1, 8]["experts_shared"]
    assert ways[1, 8]["max_concurrency"] == plan["kv"]["max_concurrency"] > ways[8, 1]["max_concurrency"]


def test_groups_within_the_ranks_are_compared_with_all_that_they_hold(capsys, llama):
    command = f"sglang serve --model-path {llama} --tp 2 --dp 2 --enable-dp-attention --context-length 8192"
    plan = commanded(capsys, command)
    ways = {way["tp"]: way["max_concurrency"] for way in plan["spread"]}
    assert ways[2] == plan["kv"]["max_concurrency"] > ways[1]


def test_ranks_that_are_no_multiple_of_the_groups_do_not_start(capsys, llama):
    plan = commanded(capsys, f"sglang serve --model-path {llama} --tp 2 --dp 4 --enable-dp-attention")
    assert plan["verdict"] == "does_not_fit"
    assert "2 tensor-parallel ranks in 4 groups of DP attention" in plan["notes"][0]


def test_changes_beside_another_model_say_whose_they_are_and_take_nothing_from_it(capsys, llama):
    asked = (llama, "Qwen/Qwen3-8B", "--gpu-memory", 48, "--context", 8192)
    plan = planned(capsys, *asked)[1]
    owners = {row["change"].split(": ")[0] for row in plan["what_if"]}
    assert owners == {str(llama), "Qwen/Qwen3-8B"}
    assert not [row for row in plan["what_if"] if "--gpu-memory-utilization" in row["change"]]
    assert any("one engine takes all of the cards, and the next will not start" in note for note in plan["notes"])


def test_the_same_model_twice_is_told_apart(capsys, llama):
    plan = planned(capsys, llama, llama, "--gpu-memory", 48, "--context", 8192)[1]
    assert {row["change"].split(": ")[0] for row in plan["what_if"]} == {f"{llama} (1)", f"{llama} (2)"}


def test_shares_that_are_more_than_the_cards_do_not_start(capsys, llama):
    asked = (llama, llama, "--gpu-memory", 48, "--context", 8192, "--fail", "--utilization")
    code, plan = planned(capsys, *asked, 0.92)
    assert (code, plan["verdict"]) == (1, "does_not_fit")
    assert any("shares of 1.84 in all of the same cards" in note for note in plan["notes"])
    code, plan = planned(capsys, *asked, 0.45)  # each has 0.45 of 48 GiB, of which 16.7 are not for KV
    assert (code, plan["verdict"]) == (0, "fits")
    pool = 0.45 * 48 * GIB - 16_094_076_928 - 38.6 * 256 * 128_256 - 512 * 2**20
    assert plan["kv"]["tokens"] == 16 * int(pool // (16 * 131_072))
