"""Bits of quantised weights, parameters of towers, and what is copied when a model is spread: by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.need import Engine, bytes_per_parameter, loaded, quantised, with_weights
from gpuwatch.ledger.notes import notes_of
from gpuwatch.ledger.packed import bytes_of
from gpuwatch.ledger.quantisation import quantisation_of, stored_bits
from gpuwatch.ledger.reading import read_model
from gpuwatch.ledger.towers import tower_tensors
from gpuwatch.ledger.weights import (
    Split,
    attention_of,
    channel_bytes,
    parameters,
    rotation_bytes,
    weight_bytes,
)
from tests.unit.ledger.models import model

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
INT4 = {"num_bits": 4, "group_size": 32, "type": "int", "symmetric": True}


def compressed(**weights):
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("stored", "bits"),
    [
        (AWQ, 4 + (16 + 4) / 128),  # a 16-bit scale and a 4-bit zero point for each 128 weights
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, 8 + (16 + 8) / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4),  # one scale a channel
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "fbgemm_fp8"}, 8),
        ({"quant_method": "mxfp4"}, 4 + 8 / 32),
        (compressed(**INT4), 4 + 16 / 32),
        (compressed(**{**INT4, "symmetric": False}), 4 + (16 + 4) / 32),
        (compressed(num_bits=8, type="int", symmetric=True), 8),
        (compressed(num_bits=4, type="float", group_size=16), 4 + 8 / 16),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4 + 8 / 16),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, 8),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4 + 32 / 64),
        ({"quant_method": "bitsandbytes", "bnb_4bit_use_double_quant": True}, 4 + 8.125 / 64),
    ],
)  # fmt: skip
def test_bits_of_a_weight_with_its_scales(stored, bits):
    found = quantisation_of({"quantization_config": stored})
    assert found.known
    assert stored_bits(found) == pytest.approx(bits)


def test_a_quantisation_within_the_text_part_counts():
    assert quantisation_of({"text_config": {"quantization_config": AWQ}}).method == "awq"
    assert quantisation_of({"hidden_size": 1}) is None


@pytest.mark.parametrize(
    "stored", [{"quant_method": "octal"}, {}, {"quant_method": "compressed-tensors"}, {"quant_method": "modelopt"}]
)
def test_an_unknown_quantisation_is_counted_as_16_bits_and_says_so(stored):
    found = quantisation_of({"quantization_config": stored or {"bits": 3}})
    assert not found.known
    assert stored_bits(found) == 16


def test_what_stays_in_16_bits_is_read_from_the_config():
    found = quantisation_of({"quantization_config": {**AWQ, "modules_to_not_convert": ["visual", "mlp.gate"]}})
    assert found.kept == ("visual", "mlp.gate")


@pytest.mark.parametrize(
    ("kept", "share_of_attention", "share_of_feed_forward"),
    [
        (["lm_head"], 0, 0),
        (["visual", "model.visual.blocks.0.attn.qkv", "vision_tower.encoder.layers.0.self_attn.q_proj"], 0, 0),
        (["self_attn"], 1, 0),
        (["model.layers.*.self_attn", "model.layers.*.mlp.router"], 1, 0),
        (["model.layers.1.self_attn"], 1 / 4, 0),
        ([f"model.language_model.layers.{at}.mlp.down_proj" for at in range(4)], 0, 1 / 3),
        (["model.layers.N.mlp.down_proj"], 0, 1 / 3),  # as a recording has it
        (["re:.*self_attn.*", "re:.*mlp\\.(gate|up)_proj$"], 1, 2 / 3),
        (["re:(.*a+)+$", "re:(", "*" * 400], 0, 0),
        (["model.layers.0"], 1 / 4, 1 / 4),
        (["model.layers.0."], 1 / 4, 1 / 4),  # a part of names
        (["mlp.gate", "gate_proj_of_another"], 0, 0),
    ],
)
def test_what_stays_in_16_bits_is_told_module_by_module(kept, share_of_attention, share_of_feed_forward):
    awq = model(4, 4, 16, hidden_size=64, num_attention_heads=4, intermediate_size=128, quantization_config={
        **AWQ, "modules_to_not_convert": kept,
    })  # fmt: skip
    packed, found = 4 + 20 / 128, bytes_of(awq)
    for share, each in ((share_of_attention, found.attention), (share_of_feed_forward, found.dense)):
        assert each * 8 == pytest.approx(16 * share + packed * (1 - share))


def test_modules_of_one_checkpoint_may_be_stored_in_several_ways():
    # 4 bits with a scale for each 32 in the experts, 8 bits elsewhere, the plain feed-forward parts as they were
    found = quantisation_of({"quantization_config": {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head", "re:.*mlp\\.(gate|up|down)_proj$"],
        "config_groups": {
            "group_0": {"targets": ["re:.*experts.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}},
            "group_1": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
        },
    }})  # fmt: skip
    moe = model(4, 4, 16, hidden_size=64, num_experts=8, moe_intermediate_size=32, num_experts_per_tok=2)
    stored = bytes_of(replace(moe, quantisation=found))
    assert (stored.attention, stored.experts, stored.dense) == (1, 4.5 / 8, 2)


def test_scales_of_outputs_are_not_divided_where_the_inputs_are():
    whole = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}}
    small = model(2, 4, 16, hidden_size=64, num_attention_heads=4, intermediate_size=128, quantization_config=whole)
    # each layer on a rank: half of Q, K and V, all of O; half of gate and up, all of down
    assert channel_bytes(small, Split(tp=2, attention_tp=2)) == 2 * 4 * (3 * 32 + 64 + 128 + 64)


def test_routers_are_whole_on_each_rank_and_in_16_bits():
    moe = {"hidden_size": 64, "num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    two, four = (weight_bytes(model(2, 4, 16, **moe), Split(tp=tp, attention_tp=tp)) for tp in (2, 4))
    rest = 2 * two - 4 * four  # what is not divided, beyond the norms
    assert -rest / 2 == pytest.approx(2 * (2 * 8 * 64 + 5 * 64))


def test_weights_of_a_small_model_are_the_sum_of_its_matrices():
    small = model(2, 4, 16, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100)
    # each layer: Q, K, V, O of 64 x 64, three of 64 x 128, two norms; a norm, and the embedding twice
    expected = 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64 + 2 * 100 * 64
    assert parameters(small).total == expected
    assert weight_bytes(small, Split()) == 2 * expected


def test_quantised_layers_keep_embeddings_wide():
    awq = model(
        2, 4, 16, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100, quantization_config=AWQ
    )
    matrices, rest = 2 * (4 * 64 * 64 + 3 * 64 * 128), (2 * 2 + 1) * 64 + 2 * 100 * 64
    assert weight_bytes(awq, Split()) == pytest.approx(matrices * 4.15625 / 8 + 2 * rest)


def test_a_head_that_cannot_be_divided_is_copied():
    one_head = model(2, 1, 16, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100)
    keys = 64 * 2 * 16
    rank = 2 * ((2 * 64 * 64 + 3 * 64 * 128) / 4 + keys + 2 * 64) + 64 + 2 * 100 * 64 / 4
    assert weight_bytes(one_head, Split(tp=4, attention_tp=4)) == pytest.approx(2 * rank)


@pytest.mark.parametrize(
    ("more", "linear", "mixer"),
    [
        (  # MiniMax-M1: queries, keys, values, gate and output of 64 x 128, by 6,144
            {"hidden_size": 6144, "num_attention_heads": 64, "attn_type_list": [0, 0, 0, 1]}, 3, 5 * 6144 * 8192,
        ),
        (  # LFM2: three projections and the output, and a kernel of 3
            {"hidden_size": 2048, "conv_L_cache": 3, "layer_types": [*["conv"] * 3, "full_attention"]}, 3,
            4 * 2048**2 + 3 * 2048,
        ),
        (  # Kimi-Linear: four projections, two gates of low rank, one number a head, three kernels of 4
            {
                "hidden_size": 2304,
                "linear_attn_config": {
                    "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4, "full_attn_layers": [4],
                },
            }, 3, 4 * 2304 * 4096 + 2 * (2304 + 4096) * 128 + 2304 * 32 + 3 * 4 * 4096,
        ),
    ],
)  # fmt: skip
def test_mixers_of_linear_layers_by_hand(more, linear, mixer):
    of = model(4, 8, 128, **more)
    assert of.mixer == mixer
    assert [group.count for group in of.layers if group.kind == "linear"] == [linear]
    counted = parameters(of)
    assert counted.attention == of.hidden * 128 * (2 * of.q_heads + 2 * 8)
    assert counted.mixers == linear * mixer


def test_the_feed_forward_part_of_lfm2_is_two_thirds_of_what_is_declared():
    stated = {"intermediate_size": 12288, "block_auto_adjust_ff_dim": True, "block_multiple_of": 256}
    assert model(4, 8, 128, **stated, block_ffn_dim_multiplier=1.0).intermediate == 8192
    assert model(4, 8, 128, **stated, block_ffn_dim_multiplier=1.01).intermediate == 8448  # 8,273 in steps of 256
    assert model(4, 8, 128, **{**stated, "block_auto_adjust_ff_dim": False}).intermediate == 12288


def test_pipeline_stages_hold_their_layers_and_one_embedding():
    deep = model(5, 4, 16, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100)
    layer = 4 * 64 * 64 + 3 * 64 * 128
    assert weight_bytes(deep, Split(pp=2)) == pytest.approx(2 * (layer * 3 + (11 * 64) * 3 / 5 + 100 * 64))


def test_experts_shared_experts_and_their_router_are_counted():
    moe = model(
        4, 4, 16, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100, n_routed_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1, first_k_dense_replace=1,
    )  # fmt: skip
    counted = parameters(moe)
    assert counted.experts == 3 * 8 * 3 * 64 * 32
    assert counted.feed_forward == 3 * 64 * 128
    assert (counted.shared, counted.router) == (3 * 3 * 64 * 32, 3 * 8 * 64)


def test_the_table_of_rotations_has_a_row_for_each_position():
    # printed by vLLM: Llama-3.1-8B is 0.031 GiB above its matrices
    assert rotation_bytes(model(32, 8, 128, max_position_embeddings=131072)) == (2**25,)


def test_the_tower_of_qwen25_vl_by_hand():
    vision = {
        "model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "intermediate_size": 3420,
        "out_hidden_size": 3584, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2,
    }  # fmt: skip
    biases = 5 * 1280 + 2 * 3420 + 4 * 1280  # with two norms
    layers = 32 * (4 * 1280**2 + 3 * 1280 * 3420 + biases)
    patches, merger = 3 * 14**2 * 2 * 1280, 5120**2 + 5120 * 3584
    tensors, known = tower_tensors({"vision_config": vision}, 3584)
    assert (count(tensors), known) == (layers + patches + merger, True)
    assert count(tensors) == pytest.approx(676_550_144, rel=2e-4)  # published: 8,292,166,656 less the language model


def test_the_tower_of_siglip_by_hand():
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304,
        "patch_size": 14, "image_size": 896,
    }  # fmt: skip
    layers = 27 * (4 * 1152 * 1152 + 2 * 1152 * 4304 + 9 * 1152 + 4304)
    positions = 64 * 64 * 1152
    tensors, known = tower_tensors({"vision_config": vision}, 5376)
    assert (count(tensors), known) == (layers + 3 * 14**2 * 1152 + positions + 1152 * 5376, True)


def test_towers_add_up_and_one_without_sizes_is_said():
    audio = {"hidden_size": 10, "encoder_layers": 2, "intermediate_size": 20}
    one = 2 * (4 * 10**2 + 2 * 10 * 20 + 9 * 10 + 20) + 10 * 64
    tensors, known = tower_tensors({"audio_config": audio, "vision_config": {"depth": 3}}, 64)
    assert (count(tensors), known) == (one, False)
    assert tower_tensors({}, 64) == ((), True)


def count(tensors):
    return sum(elements * times for elements, times in tensors)


def test_four_bit_parameters_take_more_than_half_a_byte():
    assert bytes_per_parameter(with_weights(model(2, 4, 16), "int4")) == 0.56
    assert bytes_per_parameter(with_weights(model(2, 4, 16), "fp8")) == 1
    assert bytes_per_parameter(with_weights(model(2, 4, 16), "fp32")) == 4
    with pytest.raises(ValueError, match="'q5' is no weight type; allowed: float32"):
        with_weights(model(2, 4, 16), "q5")


@pytest.mark.parametrize(
    ("flag", "bits"),
    [
        ("fp8", 8), ("fbgemm_fp8", 8), ("ptpc_fp8", 8), ("fp8_per_block", 8 + 32 / 128**2), ("mxfp8", 8.25),
        ("awq_marlin", 4 + 20 / 128), ("auto_gptq", 4 + 20 / 128), ("bitsandbytes", 4.5), ("modelopt_fp4", 4.5),
        ("petit_nvfp4", 4.5), ("mxfp4", 4.25), ("experts_int8", 8), ("int8_per_channel_weight_only", 8),
    ],
)  # fmt: skip
def test_a_quantisation_flag_says_how_many_bits_a_weight_takes(flag, bits):
    stored = quantised(model(2, 4, 16), flag).quantisation
    assert stored.known
    assert stored_bits(stored) == pytest.approx(bits)


@pytest.mark.parametrize("flag", ["gguf", "torchao", "quark", "experts_int8_turbo"])
def test_a_quantisation_flag_without_bits_counts_16_and_is_said_to(flag):
    found = quantised(model(2, 4, 16), flag)
    assert (found.quantisation.bits, found.quantisation.known) == (16, False)
    deployment = Deployment("vllm", (0, 33, 0), 80 * 2**30, context=64)
    notes = notes_of(Engine(found, deployment))
    assert any(f"'{flag}' is not known, or its bits are only in the checkpoint" in note for note in notes)
    assert quantised(model(2, 4, 16), "none").quantisation is None


@pytest.mark.parametrize(
    ("stored", "dtype", "loads", "whole"),
    [
        ("float32", "auto", "bfloat16", 2e9),
        ("float32", "float", "float32", 4e9),
        ("float16", "auto", "float16", 4e9),
        ("bfloat16", "half", "float16", 4e9),
        ("bfloat16", "float32", "float32", 8e9),
    ],
)
def test_weights_are_counted_in_the_type_that_the_engine_loads_them_in(stored, dtype, loads, whole):
    engine = Engine(model(2, 4, 16, torch_dtype=stored), Deployment("vllm", (0, 33, 0), 2**36), weights_bytes=4e9)
    found = loaded(engine, dtype)
    assert (found.model.dtype, found.weights_bytes) == (loads, whole)


def test_bytes_of_quantised_files_do_not_follow_the_type():
    packed = model(2, 4, 16, torch_dtype="float32", quantization_config=AWQ)
    found = loaded(Engine(packed, Deployment("vllm", (0, 33, 0), 2**36), weights_bytes=4e9), "auto")
    assert (found.model.dtype, found.weights_bytes) == ("bfloat16", 4e9)


def test_whole_experts_are_rounded_up_and_cut_ones_are_not():
    moe = model(2, 4, 16, num_experts=10, moe_intermediate_size=64, num_experts_per_tok=2)
    one = 3 * 5120 * 64 * 2  # bytes
    cut, whole = (weight_bytes(moe, Split(expert_parallel=4, whole_experts=each)) for each in (False, True))
    alone = weight_bytes(moe, Split())
    assert alone - cut == pytest.approx(2 * (10 - 2.5) * one)
    assert alone - whole == pytest.approx(2 * (10 - 3) * one)  # three, three, two, two


@pytest.mark.parametrize(
    ("architecture", "stated", "gate"),
    [
        ("Qwen3NextForCausalLM", None, 2),
        ("Qwen3_5ForConditionalGeneration", None, 2),
        ("Qwen3_5ForConditionalGeneration", False, 1),
        ("Qwen3ForCausalLM", None, 1),
        ("Qwen3ForCausalLM", True, 2),
    ],
)
def test_a_gate_of_the_output_is_as_wide_as_the_queries(architecture, stated, gate):
    config = {
        "architectures": [architecture], "num_hidden_layers": 1, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "vocab_size": 1000,
        **({} if stated is None else {"attn_output_gate": stated}),
    }  # fmt: skip
    model = read_model(config)
    queries, keys_and_values, output = 2048 * 16 * 256, 2048 * 2 * 2 * 256, 16 * 256 * 2048
    assert attention_of(model, model.layers[0]) == gate * queries + keys_and_values + output
