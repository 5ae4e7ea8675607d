"""From the facts about a running engine to what it should take; and a model that travels with the facts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.known import known_models
from gpuwatch.ledger.portable import LONGEST, from_portable, portable
from gpuwatch.ledger.predict import engine_of, model_of, predict
from gpuwatch.ledger.reading import read_model
from gpuwatch.units import GIB
from tests.unit.ledger.models import config
from tests.unit.ledger.receipts import RECEIPTS

FACTS = {"model": "Qwen/Qwen3-8B", "version": "0.32.0"}


def predicted(kind="vllm", gib=80, **facts):
    return predict(engine_of(kind, FACTS | facts, gib * GIB))


def test_the_parts_are_those_of_a_plan_and_the_pool_is_what_the_engine_leaves():
    found = predicted(max_model_len=8192)
    assert found["weights"] / GIB == pytest.approx(15.26, rel=0.01)
    assert found["kv_pool"] == pytest.approx(0.92 * 80 * GIB - found["weights"] - found["work"], abs=2**22)
    assert found["rest"] == GIB


@pytest.mark.parametrize(
    ("facts", "attribute", "value"),
    [
        ({"tp": 4}, "tp", 4),
        ({"memory_fraction": 0.8}, "fraction", 0.8),
        ({"max_num_batched_tokens": 4096}, "chunk", 4096),
        ({"max_num_seqs": 32}, "sequences", 32),
        ({"kv.block_size": 32}, "block_size", 32),
        ({"flag.kv-cache-dtype": "fp8"}, "kv_dtype", "fp8"),
        ({"kv.dtype": "torch.bfloat16"}, "kv_dtype", "bfloat16"),
        ({"kv.dtype": "surprise"}, "kv_dtype", "auto"),
        ({"enforce_eager": True}, "eager", True),
        ({"prefix_caching": False}, "prefix_caching", False),
        ({}, "prefix_caching", True),
        ({"hybrid_kv_manager": False}, "hybrid_manager", False),
        ({"flag.async-scheduling": False}, "asynchronous", False),
        ({"kv.blocks_override": 40}, "blocks_override", 40),
        ({"tp": 8, "dp": 4, "flag.enable-dp-attention": True}, "attention_tp", 2),
        ({"tp": 8, "flag.attn-dp-size": 4}, "attention_tp", 2),
        ({"dp": 4}, "sharing_dp", 1),  # no experts to share
        ({"model": "Qwen/Qwen3-30B-A3B", "dp": 4}, "sharing_dp", 4),
        ({"tp": "many"}, "tp", 1),
        ({"tp": float("nan")}, "tp", 1),
    ],
)  # fmt: skip
def test_facts_become_the_deployment(facts, attribute, value):
    assert getattr(engine_of("vllm", FACTS | facts, 80 * GIB).deployment, attribute) == value


@pytest.mark.parametrize(
    ("facts", "counted"),
    [
        ({}, "fp8"),
        ({"flag.kv-cache-dtype": "auto"}, "fp8"),
        ({"kv.dtype": "auto"}, "fp8"),
        ({"version": "0.13.0"}, "auto"),
        ({"flag.kv-cache-dtype": "bfloat16"}, "bfloat16"),
        ({"kv.dtype": "bfloat16"}, "bfloat16"),  # what the engine says goes before
    ],
)
def test_the_cache_type_of_the_checkpoint_is_predicted_where_the_engine_follows_it(facts, counted):
    stored = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    text = portable(config(4, 8, 128, quantization_config=stored))
    found = engine_of("vllm", {**FACTS, "model.config": text, **facts}, 80 * GIB)
    assert found.deployment.kv_dtype == counted


def test_weights_are_predicted_in_the_type_that_the_engine_names():
    half = predicted(dtype="torch.bfloat16")["weights"]
    assert predicted(dtype="torch.float32")["weights"] == pytest.approx(2 * half, rel=0.001)
    assert predicted(dtype="auto")["weights"] == half


def test_what_was_not_told_is_the_engines_default_for_the_card():
    deployment = engine_of("vllm", FACTS, 80 * GIB).deployment
    assert (deployment.fraction, deployment.chunk, deployment.sequences) == (0.92, 8192, 1024)
    assert deployment.context == 40960  # as the model declares
    assert engine_of("sglang", FACTS | {"version": "0.5.23"}, 24 * GIB).deployment.chunk == 4096


def test_the_quantisation_that_was_asked_for_counts_where_the_checkpoint_has_none():
    assert predicted(quantization="fp8")["weights"] < 0.6 * predicted()["weights"]
    assert predicted(quantization="None") == predicted()


def test_weight_files_count_before_the_formula():
    # Beside them 40,960 rotations of 128 in 16 bits are 10 MiB; embedding and head of 593.5 take 594.
    found = predicted(tp=2, **{"model.weights_bytes": 10 * GIB})["weights"]
    assert found == 5 * GIB + (10 + 2 * 0.5) * 2**20


@pytest.mark.parametrize(
    "facts",
    [
        {"version": "0.32.0"},
        {"model": "who/knows", "version": "0.32.0"},
        {"model": "Qwen/Qwen3-8B", "version": "nightly"},
        {"model": "m", "version": "0.32.0", "model.config": "{"},
        {"model": "m", "version": "0.32.0", "model.config": '{"num_hidden_layers": "x"}'},
    ],
)
def test_what_is_not_known_gives_no_engine(facts):
    assert engine_of("vllm", facts, 80 * GIB) is None


def test_an_engine_of_another_kind_gives_none():
    assert engine_of("tgi", FACTS, 80 * GIB) is None


def test_the_configuration_of_its_machine_counts_before_the_name():
    text = portable(config(2, 8, 128))
    assert len(model_of({"model": "Qwen/Qwen3-8B", "model.config": text}).layers) == 1
    assert model_of({"model": "Qwen/Qwen3-8B", "model.config": text}).layer_count == 2


def test_a_model_that_keeps_nothing_has_no_pool():
    one = engine_of("vllm", {**FACTS, "model.config": portable(config(1, 8, 128))}, 80 * GIB)
    assert "kv_pool" in predict(one)
    assert "kv_pool" not in predict(replace(one, model=replace(one.model, layers=())))


def whole(receipt):
    found = dict(receipt.data["config"])
    if "layer_types" in found:
        found["layer_types"] = [kind for kind, count in found["layer_types"] for _ in range(count)]
    return found


@pytest.mark.parametrize(
    "given",
    [*(known.config for known in known_models().values()), *map(whole, RECEIPTS)],
)
def test_a_model_is_the_same_after_the_journey(given):
    decorated = {**given, "auto_map": {"AutoConfig": "x"}, "id2label": {str(n): "y" * 50 for n in range(1000)}}
    text = portable(decorated)
    assert from_portable(text, "m") == read_model(decorated, "m")
    assert "auto_map" not in text
    assert len(text) < 4096


def test_names_of_modules_travel_once():
    stored = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}},
        "ignore": ["lm_head", *(f"model.layers.{n}.self_attn.q_proj" for n in range(500))],
    }
    text = portable(config(2, 8, 128, quantization_config=stored))
    assert json.loads(text)["quantization_config"]["ignore"] == ["lm_head", "model.layers.N.self_attn.q_proj"]
    assert from_portable(text).quantisation.group == 32


def test_a_description_that_is_too_long_does_not_travel():
    assert portable(config(2, 8, 128, layer_types=["full_attention"] * LONGEST)) == ""


def test_what_is_no_description_is_refused():
    with pytest.raises(ValueError, match="no JSON object"):
        from_portable("[1]")
    with pytest.raises(ModelConfigError):
        portable(config(-2, 8, 128))


def test_nothing_is_predicted_for_a_model_whose_config_lacks_what_is_needed():
    lacking = {key: value for key, value in config(40, 8, 128).items() if key != "vocab_size"}
    facts = {"model": "m", "version": "0.32.0", "model.config": json.dumps(lacking)}
    assert model_of(facts).missing == ("vocab_size",)
    assert engine_of("vllm", facts, 80 * GIB) is None
