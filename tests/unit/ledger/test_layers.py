"""The kinds of layers of published models and what each keeps of the past, by hand from their configurations."""

from __future__ import annotations

import pytest

from gpuwatch.ledger.kv import whole_bytes_per_token
from gpuwatch.ledger.model import Layers, State
from gpuwatch.ledger.reading import read_model
from gpuwatch.ledger.weights import parameters
from tests.unit.ledger.models import model


def layers(count, kv_heads, head_dim, **more):
    return model(count, kv_heads, head_dim, **more).layers


def test_jamba_has_attention_in_one_layer_of_eight():
    found = layers(
        32, 8, 128, hidden_size=4096, attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16, mamba_d_conv=4,
        mamba_expand=2,
    )  # fmt: skip
    states = (State(8192 * 3), State(8192 * 16))
    assert found == (
        Layers("full", 4, 8, 128, 128),
        Layers("linear", 28, states=states, mixer="mamba1"),
    )


def test_bamba_lists_its_layers_with_attention():
    found = layers(
        32, 8, 128, hidden_size=4096, attn_layer_indices=[9, 18, 27], mamba_n_heads=128, mamba_d_head="auto",
        mamba_d_state=128, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2,
    )  # fmt: skip
    states = (State((8192 + 2 * 128) * 3), State(128 * 64 * 128))
    assert found == (Layers("full", 3, 8, 128, 128), Layers("linear", 29, states=states, mixer="mamba2"))


def test_qwen3_next_has_full_attention_in_every_fourth_layer():
    found = layers(
        48, 2, 256, linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128,
        linear_value_head_dim=128, linear_conv_kernel_dim=4, full_attention_interval=4,
    )  # fmt: skip
    states = (State((2 * 16 * 128 + 32 * 128) * 3), State(32 * 128 * 128))
    assert found == (Layers("full", 12, 2, 256, 256), Layers("linear", 36, states=states, mixer="gated_delta"))


def test_minimax_marks_linear_layers_with_zero():
    found = layers(80, 8, 128, num_attention_heads=64, attn_type_list=[*[0] * 7, 1] * 10)
    states = (State(64 * 128 * 128),)  # in the model's own type
    assert found == (Layers("full", 10, 8, 128, 128), Layers("linear", 70, states=states, mixer="lightning"))


def test_nemotron_h_spells_its_layers_and_keeps_states_in_32_bits():
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    found = layers(
        52, 8, 128, architectures=["NemotronHForCausalLM"], hybrid_override_pattern=pattern, mamba_num_heads=128,
        mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4,
    )  # fmt: skip
    states = (State((8192 + 2 * 8 * 128) * 3), State(128 * 64 * 128, bytes_each=4.0))
    assert found == (Layers("full", 4, 8, 128, 128), Layers("linear", 24, states=states, mixer="mamba2"))


def test_falcon_h1_has_attention_and_a_state_in_every_layer():
    found = layers(
        44, 2, 128, architectures=["FalconH1ForCausalLM"], mamba_n_heads=24, mamba_d_head=128, mamba_d_state=256,
        mamba_n_groups=1, mamba_d_conv=4, mamba_d_ssm=3072,
    )  # fmt: skip
    states = (State((3072 + 2 * 256) * 3), State(24 * 128 * 256))
    assert found == (Layers("full", 44, 2, 128, 128), Layers("linear", 44, states=states, mixer="mamba2"))


def test_lfm2_keeps_the_last_tokens_of_a_short_convolution():
    found = layers(16, 8, 64, hidden_size=2048, full_attn_idxs=[2, 5, 8, 10, 12, 14], conv_L_cache=3)
    states = (State(2048 * 2),)
    assert found == (Layers("full", 6, 8, 64, 64), Layers("linear", 10, states=states, mixer="short_conv"))


def test_kimi_linear_counts_its_layers_from_one_and_has_latent_attention():
    found = layers(
        27, 32, 72, kv_lora_rank=512, qk_rope_head_dim=64,
        linear_attn_config={
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    )  # fmt: skip
    states = (State(3 * 32 * 128 * 3), State(32 * 128 * 128, bytes_each=4.0))
    assert found == (Layers("mla", 7, 1, latent=576), Layers("linear", 20, states=states, mixer="kimi_delta"))


def attention(found):
    return {group.kind: (group.count, group.window) for group in found}


@pytest.mark.parametrize(
    ("count", "more", "expected"),
    [
        (42, {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 4096}, {"full": 21, "sliding": 21}),
        (62, {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 1024}, {"full": 10, "sliding": 52}),
        (62, {"sliding_window": 1024, "sliding_window_pattern": 6}, {"full": 10, "sliding": 52}),
        (40, {"architectures": ["Cohere2ForCausalLM"], "sliding_window": 4096}, {"full": 10, "sliding": 30}),
        (36, {"architectures": ["GptOssForCausalLM"], "sliding_window": 128}, {"full": 18, "sliding": 18}),
        (32, {"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, {"sliding": 32}),
        (32, {"architectures": ["MistralForCausalLM"], "sliding_window": None}, {"full": 32}),
        (28, {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 131072, "max_window_layers": 28,
              "use_sliding_window": False}, {"full": 28}),
        (28, {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096, "max_window_layers": 21,
              "use_sliding_window": True}, {"full": 21, "sliding": 7}),
        (48, {"architectures": ["Llama4ForCausalLM"], "attention_chunk_size": 8192}, {"full": 12, "chunked": 36}),
    ],
)  # fmt: skip
def test_windows_and_chunks_are_where_the_model_has_them(count, more, expected):
    found = attention(layers(count, 8, 128, **more))
    assert {kind: number for kind, (number, _) in found.items()} == expected
    for kind, (_, window) in found.items():
        assert window == {"sliding": more.get("sliding_window"), "chunked": 8192}.get(kind, 0)


def test_gemma_4_has_wider_and_fewer_heads_where_it_sees_everything():
    found = layers(
        30, 8, 256, sliding_window=1024, global_head_dim=512, num_global_key_value_heads=2,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5,
    )  # fmt: skip
    assert found == (Layers("full", 5, 2, 512, 512), Layers("sliding", 25, 8, 256, 256, window=1024))


def test_layers_that_share_the_cache_of_others_keep_nothing():
    shared = model(35, 2, 256, num_kv_shared_layers=15)
    assert shared.layers == (Layers("full", 20, 2, 256, 256),)
    assert whole_bytes_per_token(shared, "auto") == 20 * 2 * (256 + 256) * 2


def test_layers_of_an_unknown_kind_are_counted_whole_and_said():
    found = model(3, 8, 128, layer_types=["full_attention", "quantum_attention", "mlp"])
    assert found.layers == (Layers("full", 2, 8, 128, 128),)
    assert "'quantum_attention' is not known" in found.notes[0]


def test_linear_layers_without_sizes_are_named_as_missing():
    found = model(4, 8, 128, layer_types=["full_attention", "mamba", "mamba", "mamba"])
    assert found.layers[1] == Layers("linear", 3)
    assert any("state" in name for name in found.missing)


FALCON_MAMBA = {
    "architectures": ["FalconMambaForCausalLM"], "hidden_size": 4096, "intermediate_size": 8192,
    "num_hidden_layers": 64, "state_size": 16, "conv_kernel": 4, "expand": 16, "time_step_rank": 256,
    "vocab_size": 65024, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
CODESTRAL_MAMBA = {
    "architectures": ["Mamba2ForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 128,
    "num_heads": 128, "head_dim": 64, "n_groups": 8, "conv_kernel": 4, "expand": 2, "vocab_size": 32768,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "states", "mixer", "published"),
    [
        (FALCON_MAMBA, (State(8192 * 3), State(8192 * 16)), "mamba1", 7_272_665_088),
        (CODESTRAL_MAMBA, (State((8192 + 2 * 8 * 128) * 3), State(128 * 64 * 128)), "mamba2", 7_285_403_648),
    ],
)
def test_a_mamba_without_attention_heads_is_mixers_and_nothing_else(config, states, mixer, published):
    found = read_model(config)
    assert found.missing == ()
    assert found.layers == (Layers("linear", 64, states=states, mixer=mixer),)
    assert (found.dense_layers, found.q_heads) == (0, 0)
    assert parameters(found).total == pytest.approx(published, rel=1e-3)
    assert parameters(found).feed_forward == 0
