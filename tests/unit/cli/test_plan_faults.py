"""What ``gpuwatch plan`` says to commands, names and configurations that are not as they should be."""

from __future__ import annotations

import json

import pytest

from gpuwatch.cli import main
from tests.unit.ledger.models import config


def planned(capsys, *arguments):
    code = main(["plan", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def command_of(text):
    return ("--from-command", text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("vllm serve Qwen3-8B -tp two", "--tensor-parallel-size is 'two'; allowed: a whole number of 1 to 65,536"),
        ("vllm serve Qwen3-8B -tp", "--tensor-parallel-size has no value"),
        ("vllm serve Qwen3-8B --gpu-memory-utilization 95%", "is '95%'; allowed: above 0, at most 1"),
        ("vllm serve Qwen3-8B --gpu-memory-utilization nan", "is 'nan'; allowed: above 0, at most 1"),
        ("vllm serve Qwen3-8B --max-num-seqs 0", "--max-num-seqs is '0'; allowed: a whole number of 1"),
        ("vllm serve Qwen3-8B --max-model-len -5", "--max-model-len is '-5'; allowed: a whole number of 1"),
        ("vllm serve Qwen3-8B --block-size=7", "--block-size is '7'; allowed: 1, 8, or a multiple of 16"),
        (
            "vllm serve Qwen3-8B --kv-cache-dtype tiny",
            "--kv-cache-dtype is 'tiny'; allowed: auto, float16, bfloat16, fp8",
        ),
        ("sglang serve --model-path Qwen3-8B --page-size x", "--page-size is 'x'; allowed: a whole number of 1"),
        ("vllm serve Qwen3-8B --cpu-offload-gb -1", "--cpu-offload-gb is '-1'; allowed: GiB, 0 or more"),
    ],
)
def test_a_value_that_the_engine_refuses_is_refused_with_what_is_allowed(capsys, arguments, says):
    assert says in refused(capsys, *command_of(arguments))


@pytest.mark.parametrize("value", ["32k", "auto", "-1"])
def test_values_that_vllm_takes_for_a_length_are_taken(capsys, value):
    assert planned(capsys, *command_of(f"vllm serve Qwen3-8B --max-model-len {value}"))[0] == 0


def test_flags_that_the_engine_does_not_know_are_named_and_repaired(capsys):
    text = (
        "vllm serve Qwen2.5-7B-Instruct --max-model-length 9 --num-scheduler-steps 8 --use-v2-block-manager "
        "--gpu-memory-utilisation 0.9 --tensor-paralel-size 2 --hf-overrides.x 3 --enable-auto-tool-choice"
    )
    _, plan = planned(capsys, *command_of(text))
    assert {fault["flag"]: fault["replacement"] for fault in plan["flags"]} == {
        "--max-model-length": "--max-model-len",
        "--num-scheduler-steps": None,
        "--use-v2-block-manager": None,
        "--gpu-memory-utilisation": "--gpu-memory-utilization",
        "--tensor-paralel-size": "--tensor-parallel-size",
    }
    assert plan["command"] == (
        "vllm serve Qwen2.5-7B-Instruct --max-model-len 9 --gpu-memory-utilization 0.9 --tensor-parallel-size 2 "
        "--hf-overrides.x 3 --enable-auto-tool-choice"
    )


def test_a_switch_that_nobody_knows_does_not_take_the_model_with_it(capsys):
    _, plan = planned(capsys, *command_of("vllm serve --not-a-flag Qwen3-8B --model Qwen3-8B"))
    assert plan["command"] == "vllm serve Qwen3-8B --model Qwen3-8B"


def test_the_image_of_vllm_is_an_engine_of_its_own_version(capsys):
    text = "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.10.2 --model Qwen3-8B --max-model-len 8192"
    _, plan = planned(capsys, *command_of(text))
    assert plan["kv"]["context"] == 8192
    assert plan["command"] == text
    assert not [note for note in plan["notes"] if "assumed (--engine-version)" in note]


def test_what_cannot_start_does_not_fit_and_the_reason_comes_first(capsys):
    code, plan = planned(capsys, "Llama-3.1-8B-Instruct", "--tp", "8", "--gpus", "8", "--dcp", "4", "--fail")
    assert (code, plan["verdict"], plan["fewest_gpus"]) == (1, "does_not_fit", 1)
    assert "vLLM demands more ranks than the 8 KV heads" in plan["notes"][0]
    assert plan["kv"]["tokens"] * 131_072 <= 8 * 80 * 2**30
    assert main(["plan", "Llama-3.1-8B-Instruct", "--tp", "3"]) == 0
    assert "verdict: does not fit: 32 query heads cannot be divided over 3 ranks" in capsys.readouterr().out


def test_more_cards_than_anybody_has_are_refused(capsys):
    assert "--gpus is 1000000000; allowed: 1 to 65,536" in refused(capsys, "Qwen3-8B", "--gpus", "1000000000")


def test_a_cache_of_unknown_size_is_no_number(capsys, tmp_path):
    lacking = {key: value for key, value in config(40, 8, 128).items() if key != "num_attention_heads"}
    del lacking["num_key_value_heads"]
    (tmp_path / "config.json").write_text(json.dumps(lacking))
    arguments = (str(tmp_path), "--gpus", "2", "--context", "4096")
    _, plan = planned(capsys, *arguments)
    sizes = ("bytes_per_token", "scale_bytes_per_token", "tokens", "max_context", "max_concurrency", "pool_bytes")
    assert [plan["kv"][size] for size in sizes] == [None] * 6
    assert plan["per_gpu"][0]["components"]["kv_cache"] is None
    assert (plan["verdict"], plan["fewest_gpus"], plan["what_if"]) == ("unknown", None, [])
    assert not [note for note in plan["notes"] if "will not start" in note]
    main(["plan", *arguments])
    out = capsys.readouterr().out
    assert "KV cache: unknown; what the pool holds: unknown" in out
    assert "2 x TP1 unknown; 1 x TP2 unknown" in out


def test_a_base_model_is_known_and_a_slip_is_answered_with_what_is_near(capsys):
    _, plan = planned(capsys, "Qwen2.5-7B")
    assert plan["kv"]["bytes_per_token"] == 57_344
    assert [note for note in plan["notes"] if note.startswith("Qwen2.5-7B has the shape of Qwen/Qwen2.5-7B-Instruct")]
    assert "nearest: Qwen/Qwen3-8B" in refused(capsys, "Qwen-3-8B")


def test_weight_files_that_cannot_be_those_of_the_shape_are_noted(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config(40, 8, 128)))  # 20.9 billion parameters
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 2**30}}))
    _, plan = planned(capsys, str(tmp_path), "--context", "4096")
    (note,) = [note for note in plan["notes"] if note.startswith("the weight files say")]
    assert "1.0 GiB" in note
    assert "GiB: one is wrong" in note


@pytest.mark.parametrize(("version", "each"), [("0.33.0", "fp8"), ("0.15.0", "fp8"), ("0.14.1", "auto")])
def test_the_cache_type_of_a_checkpoint_is_followed_where_vllm_is_known_to(capsys, tmp_path, version, each):
    stored = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config(40, 8, 128, quantization_config=stored)))
    _, plan = planned(capsys, str(tmp_path), "--context", "4096", "--engine-version", version)
    assert plan["kv"]["bytes_per_token"] == (81_920 if each == "fp8" else 163_840)
    assert f"the checkpoint names fp8 for its KV cache; {each} counted (--kv-dtype)" in plan["notes"]
