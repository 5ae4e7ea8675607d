"""Configurations of small models, each kind of layer that vLLM pools in a way of its own among them."""

from __future__ import annotations

from typing import Any

BASE = {
    "vocab_size": 1024,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def model(architecture: str, model_type: str, layers: int, **more: Any) -> dict[str, Any]:
    return {
        **BASE,
        "architectures": [architecture],
        "model_type": model_type,
        "num_hidden_layers": layers,
        **more,
    }


def llama(layers: int, kv_heads: int, head_dim: int, **more: Any) -> dict[str, Any]:
    return model("LlamaForCausalLM", "llama", layers, num_key_value_heads=kv_heads, head_dim=head_dim, **more)


def every(period: int, layers: int, seldom: str, often: str) -> list[str]:
    return [seldom if (index + 1) % period == 0 else often for index in range(layers)]


MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 128,
}

GEMMA3 = model(
    "Gemma3ForCausalLM", "gemma3_text", 13, head_dim=64, sliding_window=512, query_pre_attn_scalar=64,
    hidden_activation="gelu_pytorch_tanh", rope_local_base_freq=10000.0,
    layer_types=every(6, 13, "full_attention", "sliding_attention"),
)  # fmt: skip
GPT_OSS = model(
    "GptOssForCausalLM", "gpt_oss", 6, head_dim=64, sliding_window=128, num_local_experts=4, num_experts_per_tok=2,
    attention_bias=True, swiglu_limit=7.0, layer_types=every(2, 6, "full_attention", "sliding_attention"),
)  # fmt: skip
COHERE2 = model(
    "Cohere2ForCausalLM", "cohere2", 9, head_dim=32, sliding_window=1024, sliding_window_pattern=4, logit_scale=0.25,
    layer_norm_eps=1e-5,
)  # fmt: skip
LLAMA4 = model(
    "Llama4ForCausalLM", "llama4_text", 8, head_dim=32, attention_chunk_size=1024, intermediate_size_mlp=512,
    no_rope_layers=[0 if (index + 1) % 4 == 0 else 1 for index in range(8)], num_local_experts=4,
    num_experts_per_tok=1, interleave_moe_layer_step=1, use_qk_norm=True,
)  # fmt: skip
QWEN3_NEXT = model(
    "Qwen3NextForCausalLM", "qwen3_next", 8, head_dim=64, linear_num_key_heads=4, linear_num_value_heads=8,
    linear_key_head_dim=64, linear_value_head_dim=64, linear_conv_kernel_dim=4, full_attention_interval=4,
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64,
    decoder_sparse_step=1, norm_topk_prob=True, mlp_only_layers=[], partial_rotary_factor=0.25,
)  # fmt: skip
JAMBA = model(
    "JambaForCausalLM", "jamba", 8, attn_layer_period=4, attn_layer_offset=2, expert_layer_period=2,
    expert_layer_offset=1, num_experts=4, num_experts_per_tok=2, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
    mamba_dt_rank=16, use_mamba_kernels=False,
)  # fmt: skip
FALCON_H1 = model("FalconH1ForCausalLM", "falcon_h1", 6, head_dim=64, mamba_d_ssm=512, **MAMBA2)
LFM2 = model(
    "Lfm2ForCausalLM", "lfm2", 8, conv_L_cache=3, conv_bias=False, conv_dim=256, conv_dim_out=256, block_dim=256,
    block_ff_dim=512, block_auto_adjust_ff_dim=False, block_ffn_dim_multiplier=1.0, block_multiple_of=64,
    block_norm_eps=1e-5, norm_eps=1e-5, full_attn_idxs=[2, 5],
    layer_types=["full_attention" if index in (2, 5) else "conv" for index in range(8)],
)  # fmt: skip
NEMOTRON_H = model(
    "NemotronHForCausalLM", "nemotron_h", 9, head_dim=64, attention_head_dim=64, hybrid_override_pattern="M-M*-M-M*",
    mamba_num_heads=8, mamba_head_dim=64, n_groups=2, ssm_state_size=64, conv_kernel=4, expand=2, chunk_size=128,
    mlp_hidden_act="relu2", layer_norm_epsilon=1e-5,
)  # fmt: skip
GRANITE_H = model(
    "GraniteMoeHybridForCausalLM", "granitemoehybrid", 8, shared_intermediate_size=512, num_local_experts=0,
    num_experts_per_tok=0, attention_multiplier=0.1, embedding_multiplier=1.0, logits_scaling=1.0,
    residual_multiplier=1.0, position_embedding_type="nope", **MAMBA2,
    layer_types=["mamba", "mamba", "attention", "mamba", "mamba", "mamba", "attention", "mamba"],
)  # fmt: skip
DEEPSEEK = model(
    "DeepseekV2ForCausalLM", "deepseek_v2", 4, num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=64,
    q_lora_rank=None, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=4,
    n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=64, first_k_dense_replace=1, moe_layer_freq=1,
    n_group=1, topk_group=1, topk_method="greedy", scoring_func="softmax", norm_topk_prob=False,
    routed_scaling_factor=1.0,
)  # fmt: skip
