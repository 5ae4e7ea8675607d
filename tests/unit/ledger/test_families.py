"""Families whose configurations are spelt or built in their own way. Figures are sums by hand of published shapes."""

from __future__ import annotations

import pytest

from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.known import find
from gpuwatch.ledger.kv import whole_bytes_per_token
from gpuwatch.ledger.need import Engine
from gpuwatch.ledger.plan import verdict_of
from gpuwatch.ledger.portable import from_portable, portable
from gpuwatch.ledger.quantisation import kv_type_of, quantisation_of
from gpuwatch.ledger.reading import read_model
from gpuwatch.ledger.weights import parameters
from gpuwatch.units import GIB
from tests.unit.ledger.models import config

BLOCKS = [
    {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 2.625}},
    {"attention": {"no_op": True}, "ffn": {"ffn_mult": 5.25}},
    {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
]
SHAPES = {
    "dbrx": {
        "architectures": ["DbrxForCausalLM"], "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
        "vocab_size": 100352, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8}, "tie_word_embeddings": False,
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    },
    "bloom": {
        "architectures": ["BloomForCausalLM"], "n_embed": 4096, "n_layer": 30, "num_attention_heads": 32,
        "vocab_size": 250880, "seq_length": 2048,
    },
    "chatglm": {
        "architectures": ["ChatGLMModel"], "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 28,
        "num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128,
        "padded_vocab_size": 65024, "seq_length": 8192,
    },
    "mpt": {
        "architectures": ["MPTForCausalLM"], "d_model": 4096, "expansion_ratio": 4, "n_heads": 32, "n_layers": 32,
        "max_seq_len": 2048, "vocab_size": 50432, "attn_config": {"attn_type": "multihead_attention"},
    },
    "starcoder": {
        "architectures": ["GPTBigCodeForCausalLM"], "n_embd": 6144, "n_inner": 24576, "n_layer": 40, "n_head": 48,
        "n_positions": 8192, "vocab_size": 49152,
    },
    "falcon": {
        "architectures": ["FalconForCausalLM"], "hidden_size": 4544, "num_hidden_layers": 32, "multi_query": True,
        "num_attention_heads": 71, "num_kv_heads": 71, "new_decoder_architecture": False, "vocab_size": 65024,
    },
    "llama4": {
        "architectures": ["Llama4ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers": 48,
            "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 16,
            "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "attention_chunk_size": 8192,
            "vocab_size": 202048, "tie_word_embeddings": False,
        },
    },
    "mllama": {
        "architectures": ["MllamaForConditionalGeneration"],
        "text_config": {
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40, "num_attention_heads": 32,
            "num_key_value_heads": 8, "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38], "vocab_size": 128256,
            "tie_word_embeddings": False,
        },
    },
    "nemotron-nas": {
        "architectures": ["DeciLMForCausalLM"], "hidden_size": 8192, "intermediate_size": None, "num_hidden_layers": 3,
        "num_attention_heads": 64, "num_key_value_heads": None, "vocab_size": 128256, "tie_word_embeddings": False,
        "block_configs": BLOCKS,
    },
    "deepseek-v3.2": {
        "architectures": ["DeepseekV32ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432,
        "num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "index_head_dim": 128, "index_n_heads": 64,
        "vocab_size": 129280, "tie_word_embeddings": False,
    },
}  # fmt: skip
ATTENTION_NAS = 2 * 8192 * 8192 + 2 * 8192 * 1024


@pytest.mark.parametrize(
    ("name", "each", "count"),
    [
        ("dbrx", 40 * 2 * 8 * 128 * 2, 131_596_523_520),
        ("bloom", 30 * 2 * 4096 * 2, 7_069_016_064),
        ("chatglm", 28 * 2 * 2 * 128 * 2, 6_243_584_000),
        ("mpt", 32 * 2 * 4096 * 2, 6_649_286_656),
        ("starcoder", 40 * 2 * 128 * 2, 15_517_456_384),
        ("falcon", 32 * 2 * 64 * 2, 6_921_720_704),
        ("llama4", 48 * 2 * 8 * 128 * 2, 107_769_856_000),  # without the vision tower
        ("mllama", 32 * 2 * 8 * 128 * 2, 40 * (2 * 4096 * 5120 + 3 * 4096 * 14336) + 2 * 128256 * 4096),
        ("nemotron-nas", 2 * 8 * 128 * 2, ATTENTION_NAS + 3 * 8192 * 43008 + 8192 * 8192 + 2 * 128256 * 8192),
        ("deepseek-v3.2", 61 * (576 * 2 + 132), None),
    ],
)
def test_published_shapes_come_out_as_published(name, each, count):
    found = read_model(SHAPES[name], name)
    assert found.missing == ()
    assert whole_bytes_per_token(found, "auto") == each
    if count is not None:
        assert parameters(found).total == pytest.approx(count, rel=0.005)
    assert from_portable(portable(SHAPES[name]), name) == found


ERNIE = {
    "architectures": ["Ernie4_5_MoeForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 54, "num_attention_heads": 64, "num_key_value_heads": 8, "moe_num_experts": 64, "moe_k": 8,
    "moe_intermediate_size": 3584, "moe_layer_interval": 1, "vocab_size": 103424, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "sparse", "shared"),
    [
        ({"moe_layer_start_index": 3}, 51, 0),
        ({"moe_layer_start_index": 3, "moe_layer_end_index": 53}, 51, 0),
        ({"moe_layer_start_index": 3, "moe_layer_end_index": -1}, 51, 0),
        ({"moe_layer_start_index": 3, "moe_layer_end_index": 50}, 48, 0),
        ({"moe_layer_start_index": 3, "moe_layer_interval": 2}, 26, 0),  # the fourth, the sixth … the 54th
        ({"moe_layer_start_index": 1, "moe_num_shared_experts": 2}, 53, 2),
    ],
)
def test_ernie_has_experts_from_one_layer_to_another(fields, sparse, shared):
    hidden, width, experts = 8192, 3584, 64
    attention = 2 * hidden * (64 * 128) + 2 * hidden * (8 * 128)
    each = experts * 3 * hidden * width + hidden * experts + shared * 3 * hidden * width
    whole = 54 * attention + sparse * each + (54 - sparse) * 3 * hidden * 28672 + 2 * 103424 * hidden
    found = read_model({**ERNIE, **fields})
    assert found.experts.chosen == 8
    assert parameters(found).total == pytest.approx(whole, rel=2e-5)  # norms
    if fields == {"moe_layer_start_index": 3}:
        assert whole == pytest.approx(300e9, rel=0.002)  # as it is named


@pytest.mark.parametrize(("every", "beside"), [(1, True), (2, True), (1, False)])
def test_arctic_has_a_plain_part_of_its_own_width_beside_experts(every, beside):
    arctic = {
        "architectures": ["ArcticForCausalLM"], "hidden_size": 7168, "intermediate_size": 4864, "vocab_size": 32000,
        "num_hidden_layers": 35, "num_attention_heads": 56, "num_key_value_heads": 8, "num_local_experts": 128,
        "num_experts_per_tok": 2, "moe_layer_frequency": every, "parallel_attn_mlp_res": beside,
        "tie_word_embeddings": False,
    }  # fmt: skip
    hidden, sparse = 7168, 35 // every
    attention = 2 * hidden * hidden + 2 * hidden * 8 * 128
    each = 128 * 3 * hidden * 4864 + hidden * 128 + (3 * hidden * hidden if beside else 0)
    whole = 35 * attention + sparse * each + (35 - sparse) * 3 * hidden * 4864 + 2 * 32000 * hidden
    assert parameters(read_model(arctic)).total == pytest.approx(whole, rel=2e-5)


def test_the_indexer_has_weights_of_its_own():
    plain = {key: value for key, value in SHAPES["deepseek-v3.2"].items() if not key.startswith("index_")}
    more = parameters(read_model(SHAPES["deepseek-v3.2"])).total - parameters(read_model(plain)).total
    assert more == 61 * (1536 * 64 * 128 + 7168 * 128 + 7168 * 64)


def test_a_block_that_cannot_be_read_is_said():
    wrong = {
        **SHAPES["nemotron-nas"],
        "num_hidden_layers": 1,
        "block_configs": [{"attention": {}, "ffn": {"ffn_mult": "wide"}}],
    }
    with pytest.raises(ModelConfigError, match="ffn_mult is 'wide'"):
        read_model(wrong)


def test_an_encoder_with_a_decoder_is_not_judged():
    whisper = {
        "architectures": ["WhisperForConditionalGeneration"], "d_model": 1280, "encoder_layers": 32,
        "decoder_layers": 32, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120, "vocab_size": 51866,
    }  # fmt: skip
    found = read_model(whisper)
    assert found.uncounted
    assert verdict_of([Engine(found, Deployment("vllm", (0, 33, 0), 80 * GIB, context=448))]) == "unknown"


def test_what_is_only_taken_for_a_decoder_is_noted():
    assert read_model(config(4, 8, 128, architectures=["FooBarForCausalLM"])).notes == (
        "architecture 'FooBarForCausalLM' is not known: computed as a plain decoder",
    )
    assert read_model(config(4, 8, 128, architectures=["Qwen3ForCausalLM"])).notes == ()


def test_the_named_model_that_sees_has_its_tower():
    known = find("google/gemma-3-27b-it")
    layers = 27 * (4 * 1152 * 1152 + 2 * 1152 * 4304 + 9 * 1152 + 4304)
    found = read_model(known.config, known.name)
    assert found.tower == layers + 3 * 14 * 14 * 1152 + 64 * 64 * 1152 + 1152 * 5376
    assert parameters(found).total == pytest.approx(27_432_406_640, rel=2e-4)  # published


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct"),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"),
        ("gemma-3-27b-pt", "google/gemma-3-27b-it"),
        ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-8B"),
        ("Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B"),
        ("somebody/Qwen2.5-7B", None),
        ("Qwen2.5-7B-AWQ", None),
    ],
)
def test_a_base_model_has_the_shape_of_the_one_tuned_from_it(name, found):
    known = find(name)
    assert (known.name if known is not None else None) == found


def test_a_quantisation_named_by_a_word_is_read():
    assert quantisation_of({"quantization_config": "fp8"}).bits == 8
    assert not quantisation_of({"quantization_config": "zzz"}).known


@pytest.mark.parametrize(
    ("stored", "kv"),
    [
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, ""),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, ""),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
    ],
)
def test_the_cache_that_a_checkpoint_is_made_for(stored, kv):
    assert kv_type_of({"quantization_config": stored}) == kv


@pytest.mark.parametrize("architecture", ["BertModel", "XLMRobertaForSequenceClassification", "ModernBertModel"])
def test_an_encoder_alone_is_no_model_with_a_pool_of_tokens(architecture):
    found = read_model(config(12, 40, 128, architectures=[architecture], max_position_embeddings=512))
    assert "keeps no KV cache" in found.uncounted[0]
