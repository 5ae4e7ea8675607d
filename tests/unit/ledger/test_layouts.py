"""Configurations that spell their layers in their own way. Figures are published ones, or sums by hand of shapes."""

from __future__ import annotations

import json

import pytest

from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.defaults import kv_type_followed, with_defaults
from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.files import load
from gpuwatch.ledger.kv import KvSettings, bytes_per_token, layout, whole_bytes_per_token
from gpuwatch.ledger.model import Layers, State
from gpuwatch.ledger.need import Engine
from gpuwatch.ledger.plan import verdict_of
from gpuwatch.ledger.pool import pool_of
from gpuwatch.ledger.portable import from_portable, portable
from gpuwatch.ledger.reading import read_model
from gpuwatch.ledger.weights import parameters
from gpuwatch.units import GIB
from tests.unit.ledger.models import config, model

NANO = {
    "architectures": ["NemotronHForCausalLM"], "hidden_size": 2688, "num_attention_heads": 32, "head_dim": 128,
    "num_key_value_heads": 2, "vocab_size": 131072, "mamba_head_dim": 64, "mamba_num_heads": 64, "ssm_state_size": 128,
    "conv_kernel": 4, "n_groups": 8, "n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 1,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "intermediate_size": 1856,
    "mamba_ssm_cache_dtype": "float32", "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
NANO_LAYERS = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
WORDS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
NEWER_WORDS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}


def spelt(letters, words):
    return {"layers_block_type": [words[letter] for letter in letters]}


@pytest.mark.parametrize(
    "layers",
    [
        {"hybrid_override_pattern": NANO_LAYERS, "num_hidden_layers": 52},
        {**spelt(NANO_LAYERS, WORDS), "num_hidden_layers": 52},
        spelt(NANO_LAYERS, WORDS),  # the newer configurations leave the number out
        spelt(NANO_LAYERS, NEWER_WORDS),
    ],
)
def test_nemotron_is_the_same_model_however_its_layers_are_spelt(layers):
    found = read_model({**NANO, **layers})
    states = (State((4096 + 2 * 8 * 128) * 3), State(64 * 64 * 128, bytes_each=4.0))
    assert found.missing == ()
    assert found.layers == (Layers("full", 6, 2, 128, 128), Layers("linear", 23, states=states, mixer="mamba2"))
    assert (found.dense_layers, found.experts.layers) == (0, 23)
    assert parameters(found).total == pytest.approx(31.6e9, rel=2e-3)


def test_nemotrons_pool_is_the_one_that_vllm_prints():
    # vLLM 0.27.1 on a GB10: 96,722,663,473 bytes of FP8 cache, 24,703,795 tokens, 376.95 requests of 65,536
    settings = KvSettings(
        dtype="fp8", max_model_len=65536, batched_tokens=2048, in_flight=2, prefix_caching=False, version=(0, 27, 1)
    )
    plan = layout(read_model({**NANO, **spelt(NANO_LAYERS, WORDS)}), settings)
    blocks = plan.blocks(96_722_663_473)
    assert plan.tokens(blocks) == 24_703_795
    assert plan.concurrency(blocks) == pytest.approx(376.95, abs=0.005)


def test_latent_experts_are_those_of_a_narrower_model():
    # Nemotron 3 Ultra: 48 layers with 512 experts of 2,048 x 5,120, and two projections of 8,192 x 2,048
    ultra = read_model({
        **NANO, **spelt("ME" * 48 + "*" * 12, WORDS), "hidden_size": 8192, "num_attention_heads": 64,
        "mamba_num_heads": 256, "n_routed_experts": 512, "moe_latent_size": 2048, "moe_intermediate_size": 5120,
        "moe_shared_expert_intermediate_size": 10240,
    })  # fmt: skip
    count = parameters(ultra)
    assert count.experts == 48 * 512 * 2 * 2048 * 5120
    assert count.total == pytest.approx(550e9, rel=5e-3)


def test_a_plain_feed_forward_part_may_be_a_layer_of_its_own():
    # Nemotron-H-8B: 24 mixers, 4 attentions, 24 feed-forward parts, of 8.1 billion parameters in all
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    found = read_model({
        **NANO, "hybrid_override_pattern": pattern, "hidden_size": 4096, "num_key_value_heads": 8,
        "mamba_num_heads": 128, "intermediate_size": 21504, "n_routed_experts": None,
    })  # fmt: skip
    assert found.dense_layers == 24
    assert parameters(found).total == pytest.approx(8.1e9, rel=0.01)


ZAMBA2 = {
    "architectures": ["Zamba2ForCausalLM"], "hidden_size": 3584, "num_hidden_layers": 81, "num_attention_heads": 32,
    "num_key_value_heads": 32, "intermediate_size": 14336, "vocab_size": 32000, "mamba_d_state": 64, "mamba_d_conv": 4,
    "mamba_expand": 2, "n_mamba_heads": 112, "mamba_headdim": 64, "mamba_ngroups": 2, "num_mem_blocks": 2,
    "adapter_rank": 128, "use_shared_attention_adapter": False, "tie_word_embeddings": True,
    "layers_block_type": ["hybrid" if at % 6 == 5 and at < 78 else "mamba" for at in range(81)],
}  # fmt: skip


def test_zambas_layers_share_blocks_and_keep_keys_of_their_own():
    found = read_model(ZAMBA2)
    states = (State((7168 + 2 * 2 * 64) * 3), State(112 * 64 * 64))
    attention = Layers("full", 13, 32, 224, 224, borrowed=True)
    assert found.layers == (attention, Layers("linear", 81, states=states, mixer="mamba2"))
    assert whole_bytes_per_token(found, "auto") == 13 * 2 * 7168 * 2
    # 81 mixers, two blocks, 13 projections and adapters, one embedding
    mixer = 3584 * (2 * 7168 + 2 * 2 * 64 + 112) + 4 * (7168 + 2 * 2 * 64) + 7168 * 3584
    block = 7168 * 3 * 7168 + 7168 * 3584 + 3 * 3584 * 14336
    own = 3584 * 3584 + 3584 * 128 + 128 * 2 * 14336
    count = 81 * mixer + 2 * block + 13 * own + 32000 * 3584
    assert parameters(found).total == pytest.approx(count, rel=1e-3)  # beside norms
    assert count == pytest.approx(7.36e9, rel=2e-3)


def test_plamo_has_attention_in_the_middle_of_each_period():
    found = read_model({
        "architectures": ["Plamo2ForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 4, "hidden_size_per_head": 128, "intermediate_size": 16384, "vocab_size": 100032,
        "mamba_step": 2, "mamba_num_heads": 64, "mamba_d_state": 64, "mamba_d_conv": 4, "tie_word_embeddings": True,
    })  # fmt: skip
    states = (State(8192 * 3), State(64 * 128 * 64))
    assert found.layers == (Layers("full", 16, 4, 128, 128), Layers("linear", 16, states=states, mixer="mamba2"))
    assert found.mixer == 4096 * 16384 + 4 * 8192 + 8192 * (256 + 2 * 64) + 256 * 64 + 8192 * 4096


MIMO = config(
    48, 4, 192, architectures=["MiMoV2FlashForCausalLM"], hidden_size=4096, num_attention_heads=64, v_head_dim=128,
    swa_num_attention_heads=64, swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128, sliding_window=128,
    hybrid_layer_pattern=[0, *[1] * 4, *[0, *[1] * 5] * 7, 0], moe_layer_freq=[0, *[1] * 47], intermediate_size=16384,
    moe_intermediate_size=2048, n_routed_experts=256, num_experts_per_tok=8, vocab_size=152576,
)  # fmt: skip


def test_mimos_layers_with_a_window_have_heads_of_their_own():
    found = read_model(MIMO)
    full, windowed = Layers("full", 9, 4, 192, 128), Layers("sliding", 39, 8, 192, 128, window=128)
    assert found.layers == (full, windowed)
    # SGLang on four ranks: 300,288 tokens and a page of 64 are 8.38 GiB of keys and 5.59 of values
    share = bytes_per_token(model(39, 8, 192, v_head_dim=128), "auto", 4)
    assert bytes_per_token(found, "auto", 4) == share + 9 * (192 + 128) * 2
    assert share * 300_352 / GIB == pytest.approx(8.38 + 5.59, abs=0.01)


def test_mimos_first_layer_has_no_experts():
    found = read_model(MIMO)
    assert (found.dense_layers, found.experts.layers) == (1, 47)
    assert found.notes == ()
    assert parameters(found).total == pytest.approx(309e9, rel=2e-3)


@pytest.mark.parametrize("more", [{}, {"num_hidden_layers": 28}])
def test_longcat_attends_twice_in_each_layer(more):
    found = read_model({
        "architectures": ["LongcatFlashForCausalLM"], "hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64,
        "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "n_routed_experts": 512, "moe_topk": 12,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "vocab_size": 131072, **more,
    })  # fmt: skip
    assert found.layers == (Layers("mla", 56, 1, latent=576),)
    assert (found.dense_layers, found.experts.layers, found.experts.chosen) == (56, 28, 12)
    assert whole_bytes_per_token(found, "auto") == 56 * 576 * 2
    assert parameters(found).total == pytest.approx(560e9, rel=3e-3)


def test_letters_tell_local_layers_from_global_ones():
    found = model(30, 8, 64, architectures=["Exaone4ForCausalLM"], sliding_window=4096, sliding_window_pattern="LLLG")
    assert {group.kind: group.count for group in found.layers} == {"full": 7, "sliding": 23}
    whole = model(30, 8, 64, architectures=["Exaone4ForCausalLM"], sliding_window=None, sliding_window_pattern="LLLG")
    assert whole.layers == (Layers("full", 30, 8, 64, 64),)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"compress_ratios": [0, 0, 4, 128]}, "compress_ratios"),
        ({"compress_rates": {"compressed_sparse_attention": 4}}, "compress_rates"),
        ({"attention_patterns": ["near", "far", "near", "far"]}, "attention_patterns"),
        ({"ssm_state_size": 128, "mamba_num_heads": 64}, "ssm_state_size"),
    ],
)
def test_layers_that_are_not_understood_are_not_guessed(more, named):
    found = read_model(config(4, 1, 512, **more))
    assert not found.kv_known
    assert any(named in lacking for lacking in found.missing)
    assert verdict_of([Engine(found, Deployment("vllm", (0, 33, 0), 80 * GIB))]) == "unknown"
    assert from_portable(portable(config(4, 1, 512, **more))).missing == found.missing


@pytest.mark.parametrize(
    "more",
    [
        {"attention_patterns": ["near"] * 4},
        {"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]},
        {"rope_theta_per_layer_type": [1, 2, 3, 4]},
        {"layer_types": ["full_attention"] * 4, "mamba_d_state": 128},
    ],
)
def test_lists_about_something_else_are_no_obstacle(more):
    assert read_model(config(4, 8, 128, **more)).missing == ()


MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
EIGHT = {"type": "float", "num_bits": 8, "dynamic": False}


@pytest.mark.parametrize(
    ("stored", "engine", "version", "followed"),
    [
        (MODELOPT, "vllm", (0, 13, 0), ""),
        (MODELOPT, "vllm", (0, 14, 0), "fp8"),
        (MODELOPT, "sglang", (0, 5, 8), ""),
        (MODELOPT, "sglang", (0, 5, 9), "fp8"),
        ({**MODELOPT, "kv_cache_quant_algo": "NVFP4"}, "vllm", (0, 31, 0), ""),
        ({**MODELOPT, "kv_cache_quant_algo": "NVFP4"}, "vllm", (0, 32, 0), "nvfp4"),
        ({**MODELOPT, "kv_cache_quant_algo": "NVFP4"}, "sglang", (0, 5, 23), ""),
        ({"quant_method": "modelopt_fp4", "kv_cache_scheme": EIGHT}, "vllm", (0, 15, 1), "fp8"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {**EIGHT, "dynamic": True}}, "vllm", (0, 32, 0), ""),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": EIGHT}, "vllm", (0, 14, 1), ""),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": EIGHT}, "vllm", (0, 15, 0), "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": EIGHT}, "sglang", (0, 5, 23), ""),
        ({"quant_method": "fp8", "kv_cache_scheme": EIGHT}, "vllm", (0, 32, 0), ""),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": None}, "vllm", (0, 32, 0), ""),
    ],
)
def test_the_cache_type_of_a_checkpoint_is_followed_by_the_engines_that_do(stored, engine, version, followed):
    assert kv_type_followed(engine, version, model(4, 8, 128, quantization_config=stored)) == followed


def test_a_quantisation_stated_beside_the_config_is_that_of_the_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config(40, 8, 128)))
    stated = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": stated}))
    for path in (tmp_path, tmp_path / "config.json"):
        found, _ = load(str(path))
        assert (found.quantisation.bits, found.quantisation.group, found.quantisation.kept) == (4, 16, ("lm_head",))
        assert (found.kv_type, found.kv_type_source) == ("fp8", "modelopt kv_cache_quant_algo")
    own = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(config(40, 8, 128, quantization_config=own)))
    assert load(str(tmp_path))[0].quantisation.bits == 8  # what the config says itself goes before
    (tmp_path / "config.json").write_text(json.dumps(config(40, 8, 128)))
    beside.write_text("{}")
    with pytest.raises(ModelConfigError, match=r"hf_quant_config.json has no object 'quantization'"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0; allowed: 1 and more"),
        ({"torch_dtype": "int7"}, "torch_dtype is 'int7'; allowed: float32"),
        ({"torch_dtype": None, "dtype": 16}, "dtype is '16'; allowed: float32"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'; an object is expected"),
        ({"rope_scaling": {"type": "yarn", "factor": "x"}}, "factor of rope_scaling is 'x'; a number above 0"),
        ({"rope_scaling": {"type": "yarn", "factor": -2}}, "factor of rope_scaling is '-2'; a number above 0"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": True}}, "factor of rope_scaling is 'True'; a number"),
        (
            {"quantization_config": {"quant_method": "awq", "bits": "four"}},
            "quantization_config.bits is 'four'; a number",
        ),
        ({"quantization_config": {"quant_method": "gptq", "group_size": "x"}}, "quantization_config.group_size is 'x'"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": 128}},
            "quantization_config.weight_block_size is '128'; a list is expected",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": ["a", "b"]}},
            "quantization_config.weight_block_size is",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "ignored_layers": 5}},
            "quantization_config.ignored_layers is '5'",
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"a": {"weights": {"num_bits": "x"}}},
                }
            },
            "quantization_config.num_bits is 'x'; a number",
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 0}}, "quantization_config.bits is 0; allowed: 1 to"),
        ({"quantization_config": {"quant_method": "awq", "w_bit": 64}}, "quantization_config.w_bit is 64; allowed"),
        ({"num_local_experts": 8, "num_experts_per_tok": 16}, "num_experts_per_tok is 16; allowed: at most the 8"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 0]}},
            "quantization_config.weight_block_size is '[0, 0]'; whole numbers from 1 to",
        ),
        ({"text_config": 5}, "text_config is '5'; an object is expected"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'; true or false is expected"),
    ],
)
def test_a_field_that_cannot_be_meant_is_refused_by_its_name(more, said):
    with pytest.raises(ModelConfigError) as caught:
        read_model(config(4, 8, 128, **more))
    assert said in str(caught.value)


def test_heads_of_no_elements_are_refused():
    with pytest.raises(ModelConfigError, match="head_dim is 0; allowed: 1 to"):
        read_model(config(4, 8, 0))


@pytest.mark.parametrize(
    ("more", "dtype"),
    [
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"torch_dtype": None, "dtype": "float32"}, "float32"),
        ({"torch_dtype": "float"}, "float32"),
        ({"torch_dtype": "auto"}, "bfloat16"),
        ({"torch_dtype": None}, "bfloat16"),
    ],
)
def test_the_type_of_the_weights(more, dtype):
    assert read_model(config(4, 8, 128, **more)).dtype == dtype


STEP = {
    "architectures": ["Step3p5ForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 45, "vocab_size": 128896,
    "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128, "intermediate_size": 11264,
    "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
    "moe_layers_enum": ",".join(map(str, range(3, 45))), "sliding_window": 512, "tie_word_embeddings": False,
    "layer_types": ["full_attention" if at % 4 == 0 else "sliding_attention" for at in range(48)],
    "attention_other_setting": {
        "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8,
        "head_dim": 128,
    },
}  # fmt: skip


def test_steps_layers_with_a_window_have_more_queries():
    found = read_model(STEP)
    full, windowed = Layers("full", 12, 8, 128, 128), Layers("sliding", 33, 8, 128, 128, window=512)
    assert found.layers == (full, windowed)
    assert (found.dense_layers, found.experts.layers, found.experts.shared_width) == (3, 42, 1280)
    assert found.other == 33 * 2 * 4096 * 32 * 128
    assert parameters(found).total == pytest.approx(196.9e9, rel=1e-3)


QWEN = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
        "head_dim": 256, "intermediate_size": 17408, "vocab_size": 248320, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "dtype": "bfloat16",
    },
}  # fmt: skip


def test_vllm_0_26_keeps_one_state_of_a_request_by_default():
    # vLLM 0.26.0 on an L40S: 9.75 GiB are 155,600 tokens, and 1.19 requests of 131,072
    qwen = read_model(QWEN)
    asked = Deployment("vllm", (0, 26, 0), 44.39 * GIB, context=131072, kv_bytes=int(9.75 * GIB))
    deployment = with_defaults(asked, qwen, chunk=None, sequences=16, fraction=0.9)
    pool = pool_of(qwen, deployment, 9.75 * GIB)
    assert pool.tokens == 155_600
    assert pool.concurrency == pytest.approx(1.19, abs=0.005)


def test_vllm_0_15_keeps_the_cache_in_the_type_of_the_checkpoint():
    # GLM-4.7-NVFP4 with vLLM 0.15.1 on four cards: 31.99 GiB of each are 729,248 tokens
    stored = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": EIGHT}
    glm = model(92, 8, 128, num_attention_heads=96, quantization_config=stored)
    kept = kv_type_followed("vllm", (0, 15, 1), glm)
    plan = layout(glm, KvSettings(dtype=kept, tp=4, max_model_len=202752, version=(0, 15, 1)))
    assert plan.tokens(plan.blocks(31.99 * GIB)) == pytest.approx(729_248, abs=0.005 * GIB / (92 * 2 * 256))


@pytest.mark.parametrize("given", [{**NANO, **spelt(NANO_LAYERS, WORDS)}, ZAMBA2, MIMO, STEP, QWEN])
def test_such_a_model_is_the_same_after_the_journey(given):
    assert from_portable(portable(given)) == read_model(given)
