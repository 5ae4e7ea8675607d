"""How checkpoints store their weights, by configs of many forms; and what is said where they do not tell."""

from __future__ import annotations

import json

import pytest

from gpuwatch.cli import main
from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.packed import bytes_of
from gpuwatch.ledger.quantisation import stored_bits
from gpuwatch.ledger.reading import read_model
from gpuwatch.ledger.weights import parameters
from gpuwatch.units import GIB

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
ATTENTION = 80 * 2 * 8192 * (8192 + 1024)
FEED_FORWARD = 80 * 3 * 8192 * 28672
ENDS = 2 * 128256 * 8192 + 161 * 8192
"""Embedding, head and norms."""
TABLE = 8192 * 128 * 2
"""Bytes of the table of rotations."""


def read(quantisation, **more):
    return read_model({**LLAMA_70B, "quantization_config": quantisation, **more})


@pytest.fixture
def planned(capsys, tmp_path):
    def run(quantisation, *arguments, gib=80):
        (tmp_path / "config.json").write_text(json.dumps({**LLAMA_70B, "quantization_config": quantisation}))
        main(["plan", str(tmp_path), "--gpu-memory", str(gib), *arguments])
        return capsys.readouterr().out

    return run


def torchao(kind, **data):
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_version": 1, "_data": data}}}


@pytest.mark.parametrize(
    ("quantisation", "bits"),
    [
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, 4 + 32 / 64),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 8, "group_size": 64}}}, 8 + 32 / 64),
        (torchao("Int4WeightOnlyConfig", group_size=32), 4 + 32 / 32),
        (torchao("Int8DynamicActivationInt8WeightConfig"), 8),
        (torchao("Float8DynamicActivationFloat8WeightConfig"), 8),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, 4 + 32 / 128),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}}, 4 + 8 / 32),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, 8),
        ({"quant_method": "fp_quant", "forward_dtype": "mxfp4"}, 4 + 8 / 32),
        ({"quant_method": "fp_quant", "forward_dtype": "nvfp4"}, 4 + 8 / 16),
        ({"quant_method": "eetq", "weights": "int8"}, 8),
    ],
)
def test_bits_that_a_config_states_are_read(quantisation, bits):
    model = read(quantisation)
    assert model.quantisation.known
    assert stored_bits(model.quantisation) == bits
    assert bytes_of(model).attention == bytes_of(model).dense == bits / 8


UNKNOWN = [
    {"quant_method": "gguf"},
    {"quant_method": "bitnet"},
    {"quant_method": "exl2", "bits": 4.0},
    {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": "four"}}},
    {"quant_method": "hqq", "quant_config": []},
    {"quant_method": "torchao", "quant_type": {"default": torchao("Int4WeightOnlyConfig"), "layer": {}}},
    torchao("UIntXWeightOnlyConfig"),
    {"quant_method": "quark", "global_quant_config": {"weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]}},
    {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": "fp4"}},
        "layer_quant_config": {"*q_proj": {}},
    },
    {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
    {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "new"}}},
    {},
]


@pytest.mark.parametrize("quantisation", UNKNOWN, ids=range(len(UNKNOWN)))
def test_weights_of_unknown_bits_do_not_fit_only_where_the_fewest_bits_do_not(planned, quantisation):
    text = planned(quantisation)  # 131.4 GiB in 16 bits; 14.5 in 1.5 beside 16-bit embeddings
    assert "verdict: unknown: in 16 bits it does not fit" in text
    assert "weights are counted as 16-bit" in text
    assert "what the pool holds: unknown" in text
    assert "fewest cards of this size: unknown" in text
    assert "weights in INT4" not in text
    assert "verdict: does not fit" in planned(quantisation, gib=12)
    assert "verdict: fits" in planned(quantisation, gib=192)


def test_figures_that_unknown_bits_decide_are_null_in_the_json(planned):
    plan = json.loads(planned({"quant_method": "gguf"}, "--json"))
    assert plan["verdict"] == "unknown"
    assert [plan[key] for key in ("serves", "fewest_gpus")] == [None, None]
    assert [plan["kv"][key] for key in ("tokens", "max_context", "max_concurrency", "pool_bytes")] == [None] * 4
    assert all(row["verdict"] != "unknown" for row in plan["what_if"])
    assert any(row["verdict"] == "fits" and row["change"].endswith("tensor parallel 1 → 2") for row in plan["what_if"])


def test_weights_whose_bytes_are_given_are_known(planned):
    assert "verdict: fits" in planned({"quant_method": "gguf"}, "--weights-bytes", "40e9")
    assert "verdict: does not fit" in planned({"quant_method": "gguf"}, "--weights-bytes", "90e9")


def test_a_quantisation_that_is_no_object_is_refused():
    with pytest.raises(ModelConfigError, match=r"quantization_config is '\[1\]'; an object is expected"):
        read([1])


def test_a_number_in_quotes_is_refused_for_its_quotes():
    with pytest.raises(ModelConfigError, match=r"bits is '4'; a number up to 1,048,576, without quotes, is expected"):
        read({"quant_method": "gptq", "bits": "4"})


def group(bits, kind, *targets, **more):
    return {"weights": {"num_bits": bits, "type": kind, **more}, "targets": list(targets)}


def compressed(*groups):
    named = {f"group_{at}": each for at, each in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": ["lm_head"]}


def test_each_group_of_a_checkpoint_counts_for_the_modules_that_it_names(planned):
    mixed = compressed(
        group(4, "int", "re:.*mlp.*", group_size=128, strategy="group"),
        group(8, "float", "re:.*self_attn.*", strategy="tensor"),
    )
    by_hand = FEED_FORWARD * (4 + 16 / 128) / 8 + ATTENTION + 2 * ENDS + TABLE
    weights = json.loads(planned(mixed, "--json"))["per_gpu"][0]["components"]["weights"]
    assert weights == pytest.approx(by_hand, rel=0.005)  # the allocator rounds what it takes
    assert weights / GIB == pytest.approx(42.4, abs=0.1)


def test_modules_that_no_group_names_stay_as_they_were():
    found = bytes_of(read(compressed(group(4, "int", "re:.*mlp.*", group_size=128, strategy="group"))))
    assert (found.attention, found.dense) == (2, (4 + 16 / 128) / 8)


def test_names_that_no_module_has_mean_all_of_them():
    found = bytes_of(read(compressed(group(4, "int", "re:.*blocks.*", group_size=128, strategy="group"))))
    assert found.attention == found.dense == (4 + 16 / 128) / 8


@pytest.mark.parametrize("name", ["gate_up_proj", "feed_forward.w1"])
def test_modules_are_known_by_the_names_of_several_kinds_of_models(name):
    found = bytes_of(read(compressed(group(8, "float", f"re:.*{name}$"))))
    named = {"gate_up_proj": 2}.get(name, 1)  # of three matrices of equal size
    assert found.attention == 2
    assert found.dense == pytest.approx((named * 1 + (3 - named) * 2) / 3)


@pytest.mark.parametrize(
    "quantisation",
    [
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
            "exclude": ["lm_head", "re:.*self_attn.*"],
        },
        {
            "quant_method": "hqq",
            "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}},
            "skip_modules": ["lm_head", "self_attn"],
        },
    ],
)
def test_modules_that_such_configs_leave_out_stay_as_they_were(quantisation):
    found = bytes_of(read(quantisation))
    assert found.attention == 2
    assert found.dense <= 1


def test_a_group_of_some_layers_counts_for_those():
    first, other = r"re:.*layers\.[0-9]\.mlp.*", "Linear"
    found = bytes_of(read(compressed(group(8, "float", other), group(4, "int", first, group_size=128))))
    assert found.attention == 1
    assert found.dense == pytest.approx((10 * (4 + 16 / 128) / 8 + 70 * 1) / 80)


def test_modelopt_names_modules_with_the_algorithm_of_each():
    names = ("gate_proj", "up_proj", "down_proj")
    four = {f"model.layers.{at}.mlp.{name}": {"quant_algo": "NVFP4"} for at in range(80) for name in names}
    eight = {f"model.layers.{at}.self_attn.o_proj": {"quant_algo": "FP8"} for at in range(40)}
    found = bytes_of(
        read({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": four | eight})
    )
    assert found.dense == (4 + 8 / 16) / 8
    # queries and the output have 64 heads, keys and values 8 each; half of the outputs are in 8 bits
    assert found.attention == pytest.approx((2 * (64 + 8 + 8) + 1.5 * 64) / (64 + 8 + 8 + 64))


def test_qwen_1_states_the_width_of_gate_and_up_projection_together():
    config = {
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "kv_channels": 128, "seq_length": 8192,
        "vocab_size": 151936, "no_bias": True, "tie_word_embeddings": False,
    }  # fmt: skip
    assert parameters(read_model(config)).total == 7_721_324_544  # Qwen-7B


def test_a_model_of_no_positions_is_refused():
    with pytest.raises(ModelConfigError, match="max_position_embeddings is 0; allowed: 1 to"):
        read_model({**LLAMA_70B, "max_position_embeddings": 0})
