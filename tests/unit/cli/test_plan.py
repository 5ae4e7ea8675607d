"""``gpuwatch plan`` as it is called."""

from __future__ import annotations

import json

import pytest

from gpuwatch.cli import main
from tests.unit.ledger.models import config

GIB = 2**30


def planned(capsys, *arguments):
    code = main(["plan", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def folder(tmp_path):
    """A model of 40 layers, 8 KV heads of 128."""
    (tmp_path / "config.json").write_text(json.dumps(config(40, 8, 128, max_position_embeddings=32768)))
    return tmp_path


def test_the_documented_keys_are_there(capsys, folder):
    code, plan = planned(capsys, str(folder), "--gpus", "2", "--gpu-memory", "80")
    assert code == 0
    assert plan["schema"] == 1
    assert plan["verdict"] == "fits"
    assert [card["gpu"] for card in plan["per_gpu"]] == [0, 1]
    card = plan["per_gpu"][0]
    assert set(card["components"]) == {"weights", "kv_cache", "activations", "graphs", "context", "communication"}
    assert card["total"] == pytest.approx(sum(card["components"].values()), abs=6)
    assert card["capacity"] == 80 * GIB
    assert plan["kv"]["bytes_per_token"] == 163_840
    assert set(plan["kv"]) >= {"tokens", "max_context", "max_concurrency"}
    assert 0 < plan["error_band"] < 0.2
    assert plan["fewest_gpus"] == 1
    assert all(set(row) >= {"change", "max_context", "max_concurrency", "costs"} for row in plan["what_if"])


def test_a_request_is_judged_by_the_context_that_was_asked_for(capsys, folder):
    arguments = (str(folder), "--params", "32e9", "--kv-dtype", "fp8", "--context", "1048576", "--gpu-memory", "79.3")
    assert planned(capsys, *arguments, "--gpus", "2")[1]["verdict"] == "tight"
    assert planned(capsys, *arguments, "--gpus", "1")[1]["verdict"] == "does_not_fit"


def test_independent_cards_share_nothing(capsys, folder):
    arguments = (str(folder), "--params", "32e9", "--weights", "int4", "--context", "32768", "--gpu-memory", "24")
    assert planned(capsys, *arguments, "--gpus", "4", "--tp", "1")[1]["verdict"] == "does_not_fit"
    assert planned(capsys, *arguments, "--gpus", "4")[1]["verdict"] == "fits"


def test_what_does_not_fit_fails_a_script_that_asks_for_it(capsys, folder):
    arguments = (str(folder), "--params", "300e9", "--gpu-memory", "80")
    assert planned(capsys, *arguments)[0] == 0
    assert planned(capsys, *arguments, "--fail-on", "does_not_fit")[0] == 1


def test_two_models_share_the_cards(capsys, folder):
    one = planned(capsys, str(folder), "--gpu-memory", "141", "--context", "8192")[1]
    two = planned(capsys, str(folder), "Qwen/Qwen3-8B", "--gpu-memory", "141", "--context", "8192")[1]
    assert two["per_gpu"][0]["total"] > one["per_gpu"][0]["total"] + 15 * GIB
    assert [model["name"] for model in two["models"]] == [str(folder), "Qwen/Qwen3-8B"]


def test_a_launch_command_is_read_and_repaired(capsys):
    command = (
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-8B -tp 2 --chunked-prefill-size 8192 --max-model-len=32768 "
        "--gpu-memory-utilization 0.9"
    )
    _, plan = planned(capsys, "--from-command", command, "--gpu-memory", "24", "--engine-version", "0.32.0")
    assert plan["flags"] == [
        {
            "flag": "--chunked-prefill-size",
            "problem": "no version of vLLM has --chunked-prefill-size",
            "replacement": "--max-num-batched-tokens",
        }
    ]
    assert plan["command"] == (
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-8B -tp 2 --max-num-batched-tokens 8192 --max-model-len=32768 "
        "--gpu-memory-utilization 0.9"
    )
    assert len(plan["per_gpu"]) == 2
    assert plan["kv"]["context"] == 32768
    assert plan["models"][0]["fraction"] == 0.9


def test_sglangs_fp8_is_answered_with_a_type_that_it_takes(capsys):
    command = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --kv-cache-dtype fp8 --tp-size 1"
    _, plan = planned(capsys, "--from-command", command)
    assert plan["flags"][0]["flag"] == "--kv-cache-dtype"
    assert "--kv-cache-dtype fp8_e4m3" in plan["command"]
    assert plan["models"][0]["engine"] == "sglang"


def test_weights_come_from_the_index_of_the_files(capsys, folder):
    index = {
        "metadata": {"total_size": 20 * GIB},
        "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").write_bytes(b"")
    _, plan = planned(capsys, str(folder))
    # 8 MiB of rotations in a segment of 20, and 1 MiB each for embedding and head of 1485, taken in steps of 2
    assert plan["per_gpu"][0]["components"]["weights"] == 20 * GIB + (20 + 2) * 2**20
    assert any("1 of 2 weight files of the index are not in the folder" in note for note in plan["notes"])


def test_four_bit_kv_counts_its_scales_beside_the_exact_bytes_of_a_token(capsys, folder):
    _, plan = planned(capsys, str(folder), "--kv-dtype", "int4")
    assert plan["kv"]["bytes_per_token"] == 40_960
    assert plan["kv"]["scale_bytes_per_token"] == 2_560  # a quarter of a bit for each of 81,920 elements


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpus", "0"], "--gpus is 0; allowed: 1 to 65,536"),
        (["--context", "5000000000"], "--context is 5000000000; allowed: 1 to 1,000,000,000"),
        (["--gpu-memory", "nan"], "--gpu-memory is nan; allowed: 0.5 to 4096"),
        (["--utilization", "1.5"], "--utilization is 1.5; allowed: above 0, at most 1"),
        (["--kv-dtype", "x"], "--kv-dtype is 'x'; allowed: auto"),
        (["--weights", "q9"], "'q9' is no weight type; allowed:"),
        (["--engine-version", "new"], "--engine-version is 'new'; a version such as 0.33.0 is expected"),
        (["--tp", "4", "--gpus", "2"], "--tp 4 x --pp 1 needs 4 cards, but --gpus is 2"),
        (["--from-command", "echo hello"], "--from-command has no engine in it"),
        (["--from-command", "vllm serve 'x"], "--from-command cannot be split into words"),
    ],
)
def test_wrong_arguments_get_one_line(capsys, folder, arguments, says):
    assert main(["plan", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ("[1]", "holds a list; a config.json is an object"),
        ('{"num_hidden_layers": -1}', "num_hidden_layers is -1; allowed: 1 to 10,000"),
        ('{"num_hidden_layers": "x"}', "num_hidden_layers is 'x'; a whole number is expected"),
        ("{}", "lacks num_hidden_layers"),
    ],
)
def test_a_config_that_cannot_be_used_gets_one_line(capsys, tmp_path, text, says):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert main(["plan", str(path)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_no_model_and_an_unknown_one_get_one_line(capsys, tmp_path):
    assert main(["plan"]) == 2
    assert "no MODEL" in capsys.readouterr().err
    assert main(["plan", "who/knows"]) == 2
    assert "'who/knows' is neither a folder nor a file" in capsys.readouterr().err
    assert main(["plan", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_missing_fields_are_named_and_what_can_be_computed_is(capsys, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"architectures": ["NewForCausalLM"], "num_hidden_layers": 40, "num_key_value_heads": 8, "head_dim": 128}
        )
    )
    _, plan = planned(capsys, str(tmp_path), "--context", "1024", "--params", "8e9")
    assert plan["kv"]["bytes_per_token"] == 163_840
    assert plan["models"][0]["missing"] == ["hidden_size", "num_attention_heads", "intermediate_size", "vocab_size"]


def test_text_for_people_says_verdict_parts_and_what_was_assumed(capsys, folder):
    assert main(["plan", str(folder), "--context", "32768"]) == 0
    out = capsys.readouterr().out
    assert "verdict: tight" in out or "verdict: fits" in out
    assert "KV cache: 163,840 bytes per token" in out
    assert "cards of 80 GiB assumed (--gpu-memory)" in out
    assert max(map(len, out.splitlines()[1:])) <= 120  # the first line names the model


def test_the_text_part_of_a_model_that_sees_is_planned(capsys, tmp_path):
    text = config(40, 8, 128, max_position_embeddings=32768)
    vision = {"model_type": "siglip", "hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text, "vision_config": vision}))
    _, plan = planned(capsys, str(tmp_path))
    assert plan["kv"]["bytes_per_token"] == 163_840
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps(text))
    _, alone = planned(capsys, str(plain))
    more = plan["per_gpu"][0]["components"]["weights"] - alone["per_gpu"][0]["components"]["weights"]
    tower = 27 * (4 * 1152**2 + 2 * 1152 * 4304 + 9 * 1152 + 4304) + 1152 * 5120
    assert 2 * tower < more < 2 * tower * 1.1  # and the rest of the allocator's segments


def test_a_head_without_size_is_the_width_by_the_heads(capsys, tmp_path):
    model = config(40, 8, 0)
    del model["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(model))
    _, plan = planned(capsys, str(tmp_path), "--context", "1024")
    assert plan["kv"]["bytes_per_token"] == 2 * 40 * 8 * (5120 // 40) * 2


def test_an_unknown_quantisation_is_said_and_counted_as_16_bits(capsys, tmp_path):
    for name, more in (("a", {}), ("b", {"quantization_config": {"quant_method": "octal", "bits": 3}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config(40, 8, 128, **more)))
    plain, octal = (planned(capsys, str(tmp_path / name), "--context", "1024")[1] for name in "ab")
    assert octal["per_gpu"] == plain["per_gpu"]
    assert any("the quantisation 'octal' is not known" in note and "16-bit" in note for note in octal["notes"])


def test_a_billion_tokens_are_planned_like_any_other_number(capsys, folder):
    _, plan = planned(capsys, str(folder), "--context", "1000000000")
    assert plan["verdict"] == "does_not_fit"
    assert plan["fewest_gpus"] is None
    assert plan["kv"]["max_concurrency"] < 0.001
    assert any("beyond the 32,768" in note for note in plan["notes"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"num_hidden_layers": 1e13}', "num_hidden_layers is 10,000,000,000,000; allowed: 1 to 10,000"),
        ('{"num_hidden_layers": 2.5}', "num_hidden_layers is '2.5'; a whole number is expected"),
        ('{"num_hidden_layers": Infinity}', "num_hidden_layers is 'inf'; a whole number is expected"),
        ('{"num_hidden_layers": NaN}', "num_hidden_layers is 'nan'; a whole number is expected"),
        ('{"num_hidden_layers": true}', "num_hidden_layers is 'True'; a whole number is expected"),
        ('{"num_hidden_layers": {"a": 1}}', "a whole number is expected"),
        ("[" * 100_000, "is not JSON"),
        ("\x00\xff", "is not JSON"),
    ],
)
def test_absurd_values_get_one_line(capsys, tmp_path, text, says):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert main(["plan", str(path)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "index", ['{"weight_map": []}', '{"metadata": {"total_size": "big"}}', "{}", '{"metadata": {"total_size": -1}}']
)
def test_an_index_that_says_nothing_leaves_the_formula(capsys, folder, index):
    _, formula = planned(capsys, str(folder))
    (folder / "model.safetensors.index.json").write_text(index)
    assert planned(capsys, str(folder))[1]["per_gpu"] == formula["per_gpu"]


def test_several_cards_are_compared_as_ranks_and_as_replicas(capsys, folder):
    code, plan = planned(capsys, str(folder), "--params", "32e9", "--gpus", "4", "--context", "32768")
    assert code == 0
    assert [(way["tp"], way["replicas"]) for way in plan["spread"]] == [(1, 4), (2, 2), (4, 1)]
    assert plan["spread"][2]["max_concurrency"] == plan["kv"]["max_concurrency"]
    assert main(["plan", str(folder), "--params", "32e9", "--gpus", "4", "--context", "32768"]) == 0
    out = capsys.readouterr().out
    assert "requests of 32,768 tokens at once on 4 cards: 4 x TP1 " in out
    assert planned(capsys, str(folder))[1]["spread"] == []


def test_several_models_are_told_their_shares(capsys, folder):
    models = (str(folder), "Qwen/Qwen3-0.6B", "--params", "8e9", "--gpu-memory", "80", "--context", "8192")
    _, plan = planned(capsys, *models)
    shares = [model["fraction_needed"] for model in plan["models"]]
    assert sum(shares) < 1
    main(["plan", *models])
    out = capsys.readouterr().out
    assert f"share of Qwen/Qwen3-0.6B: --gpu-memory-utilization {shares[1]:.2f}" in out


def test_a_slice_of_a_card_is_a_replica(capsys, folder):
    arguments = (str(folder), "--memory-kind", "mig", "--gpus", "7", "--gpu-memory", "9.75", "--params", "1e9")
    _, plan = planned(capsys, *arguments, "--context", "1024")
    assert [(way["tp"], way["replicas"]) for way in plan["spread"]] == [(1, 7)]
    assert any("MIG slices have no peer-to-peer" in note for note in plan["notes"])
    assert main(["plan", *arguments, "--tp", "2"]) == 2
    assert "--tp 2 x --pp 1 with --memory-kind mig; allowed: 1" in capsys.readouterr().err


def test_memory_shared_with_the_host_leaves_room_for_it(capsys, folder):
    _, plan = planned(capsys, str(folder), "--memory-kind", "unified", "--gpu-memory", "120")
    assert any("--gpu-memory-utilization 0.93 at most" in note for note in plan["notes"])
    assert plan["models"][0]["max_num_seqs"] == 256  # no large card of its own


def test_weights_and_blocks_in_host_memory_are_counted_and_said(capsys):
    command = "vllm serve Qwen/Qwen3-8B --cpu-offload-gb 4 --kv-offloading-size 32"
    _, plan = planned(capsys, "--from-command", command, "--context", "8192")
    _, plain = planned(capsys, "Qwen/Qwen3-8B", "--context", "8192")
    weights = [card["per_gpu"][0]["components"]["weights"] for card in (plain, plan)]
    assert weights[0] - weights[1] == 4 * GIB
    notes = " ".join(plan["notes"])
    assert "4.0 GiB of weights of each rank stay in host memory" in notes
    assert "32.0 GiB of host memory keep KV blocks" in notes
    assert plan["kv"]["tokens"] > plain["kv"]["tokens"]


def test_prefill_contexts_need_cards_and_until_0_30_divide_the_cache(capsys, folder):
    def tokens(version):
        arguments = ("--gpus", "4", "--tp", "2", "--pcp", "2", "--engine-version", version, "--chunk", "2048")
        _, plan = planned(capsys, str(folder), *arguments)
        assert len(plan["per_gpu"]) == 4
        return plan["kv"]["tokens"]

    assert tokens("0.29.0") == pytest.approx(2 * tokens("0.33.0"), rel=0.01)
    assert main(["plan", str(folder), "--gpus", "2", "--tp", "2", "--pcp", "2"]) == 2
    assert "--tp 2 x --pp 1 x --pcp 2 needs 4 cards, but --gpus is 2" in capsys.readouterr().err


def test_a_plan_without_all_that_it_needs_is_unknown_and_no_success_for_a_script(capsys, tmp_path):
    lacking = {key: value for key, value in config(40, 8, 128).items() if key != "intermediate_size"}
    (tmp_path / "config.json").write_text(json.dumps(lacking))
    arguments = (str(tmp_path), "--gpu-memory", "80", "--context", "8192")
    code, plan = planned(capsys, *arguments, "--fail-on", "does_not_fit")
    assert (code, plan["verdict"], plan["fewest_gpus"]) == (1, "unknown", None)
    assert plan["models"][0]["missing"] == ["intermediate_size"]
    assert main(["plan", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "verdict: unknown: the config lacks what it takes to compute all parts" in printed
    assert "fewest cards of this size: unknown" in printed


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_model_of_states_alone_is_counted_whole_and_holds_requests_of_any_length(capsys, tmp_path, engine):
    falcon = {
        "architectures": ["FalconMambaForCausalLM"], "hidden_size": 4096, "intermediate_size": 8192,
        "num_hidden_layers": 64, "state_size": 16, "conv_kernel": 4, "time_step_rank": 256, "vocab_size": 65024,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(falcon))
    arguments = (str(tmp_path), "--engine", engine, "--context", "8192")
    _, plan = planned(capsys, *arguments, "--gpu-memory", "28")
    parts = plan["per_gpu"][0]["components"]
    assert parts["weights"] == pytest.approx(2 * 7_272_665_088, rel=0.01)
    # One state, 64 layers of 8192 x (3 + 16) elements of 16 bits, is 19 MiB; vLLM has a few and a null block.
    assert 19 * 2**20 <= parts["kv_cache"] <= 4.2 * 19 * 2**20
    assert (plan["verdict"], plan["kv"]["bytes_per_token"], plan["models"][0]["missing"]) == ("fits", 0, [])
    assert plan["kv"]["max_concurrency"] > 50
    assert planned(capsys, *arguments, "--gpu-memory", "13")[1]["verdict"] == "does_not_fit"
    main(["plan", *arguments, "--gpu-memory", "24"])
    printed = capsys.readouterr().out
    assert "states and no KV cache: with" in printed
    assert "requests of any length\n" in printed
