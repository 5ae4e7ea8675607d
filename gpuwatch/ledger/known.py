"""A few well-known models by name, so that a plan needs no download. The fields are those of their ``config.json``.

Sources: ``https://huggingface.co/<name>/blob/main/config.json``; where `seen` is set, an engine's own start-up print at
that address confirms layers, KV heads and head dimension.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

# name | layers | q heads | kv heads | head dim | hidden | intermediate | vocab | tied | context | more | seen
_ROWS = """
meta-llama/Meta-Llama-3-8B-Instruct | 32 | 32 | 8 | 128 | 4096 | 14336 | 128256 | no | 8192 | | vllm 0.4.1
meta-llama/Llama-3.1-8B-Instruct | 32 | 32 | 8 | 128 | 4096 | 14336 | 128256 | no | 131072 | | vllm 0.11.0
meta-llama/Llama-3.1-70B-Instruct | 80 | 64 | 8 | 128 | 8192 | 28672 | 128256 | no | 131072 | | vllm 0.7.0
meta-llama/Llama-3.3-70B-Instruct | 80 | 64 | 8 | 128 | 8192 | 28672 | 128256 | no | 131072 | |
meta-llama/Llama-3.1-405B-Instruct | 126 | 128 | 8 | 128 | 16384 | 53248 | 128256 | no | 131072 | |
meta-llama/Llama-3.2-1B-Instruct | 16 | 32 | 8 | 64 | 2048 | 8192 | 128256 | yes | 131072 | |
meta-llama/Llama-3.2-3B-Instruct | 28 | 24 | 8 | 128 | 3072 | 8192 | 128256 | yes | 131072 | |
Qwen/Qwen2.5-0.5B-Instruct | 24 | 14 | 2 | 64 | 896 | 4864 | 151936 | yes | 32768 | bias |
Qwen/Qwen2.5-1.5B-Instruct | 28 | 12 | 2 | 128 | 1536 | 8960 | 151936 | yes | 32768 | bias | vllm 0.9.2
Qwen/Qwen2.5-3B-Instruct | 36 | 16 | 2 | 128 | 2048 | 11008 | 151936 | yes | 32768 | bias | vllm 0.10.2
Qwen/Qwen2.5-7B-Instruct | 28 | 28 | 4 | 128 | 3584 | 18944 | 152064 | no | 32768 | bias | vllm 0.17.0
Qwen/Qwen2.5-14B-Instruct | 48 | 40 | 8 | 128 | 5120 | 13824 | 152064 | no | 32768 | bias | vllm 0.13.0
Qwen/Qwen2.5-32B-Instruct | 64 | 40 | 8 | 128 | 5120 | 27648 | 152064 | no | 32768 | bias |
Qwen/Qwen2.5-72B-Instruct | 80 | 64 | 8 | 128 | 8192 | 29568 | 152064 | no | 32768 | bias |
Qwen/Qwen3-0.6B | 28 | 16 | 8 | 128 | 1024 | 3072 | 151936 | yes | 40960 | |
Qwen/Qwen3-4B | 36 | 32 | 8 | 128 | 2560 | 9728 | 151936 | yes | 40960 | |
Qwen/Qwen3-8B | 36 | 32 | 8 | 128 | 4096 | 12288 | 151936 | no | 40960 | | vllm 0.22.1
Qwen/Qwen3-14B | 40 | 40 | 8 | 128 | 5120 | 17408 | 151936 | no | 40960 | |
Qwen/Qwen3-32B | 64 | 64 | 8 | 128 | 5120 | 25600 | 151936 | no | 40960 | | vllm 0.10.0
Qwen/Qwen3-30B-A3B | 48 | 32 | 4 | 128 | 2048 | 6144 | 151936 | no | 40960 | moe 128 8 768 | vllm 0.12.0
Qwen/Qwen3-30B-A3B-Instruct-2507 | 48 | 32 | 4 | 128 | 2048 | 6144 | 151936 | no | 262144 | moe 128 8 768 | vllm 0.10.2
Qwen/Qwen3-235B-A22B-Instruct-2507 | 94 | 64 | 4 | 128 | 4096 | 12288 | 151936 | no | 262144 | moe 128 8 1536 | vllm 0.11
Qwen/Qwen3-Coder-480B-A35B-Instruct | 62 | 96 | 8 | 128 | 6144 | 8192 | 151936 | no | 262144 | moe 160 8 2560 | sglang
mistralai/Mistral-7B-Instruct-v0.3 | 32 | 32 | 8 | 128 | 4096 | 14336 | 32768 | no | 32768 | |
mistralai/Mixtral-8x7B-Instruct-v0.1 | 32 | 32 | 8 | 128 | 4096 | 14336 | 32000 | no | 32768 | moe 8 2 14336 |
microsoft/phi-4 | 40 | 40 | 10 | 128 | 5120 | 17920 | 100352 | no | 16384 | |
google/gemma-3-1b-it | 26 | 4 | 1 | 256 | 1152 | 6912 | 262144 | yes | 32768 | sliding 512 6; gemma3 1 | vllm 0.13.0
google/gemma-3-27b-it | 62 | 32 | 16 | 128 | 5376 | 21504 | 262208 | yes | 131072 | sliding 1024 6; gemma3 8; siglip | vllm 0.11.0
openai/gpt-oss-20b | 24 | 64 | 8 | 64 | 2880 | 2880 | 201088 | no | 131072 | sliding 128 2; moe 32 4 2880; mxfp4; gptoss | vllm 0.13.0
openai/gpt-oss-120b | 36 | 64 | 8 | 64 | 2880 | 2880 | 201088 | no | 131072 | sliding 128 2; moe 128 4 2880; mxfp4; gptoss |
deepseek-ai/DeepSeek-V3 | 61 | 128 | 128 | 0 | 7168 | 18432 | 129280 | no | 163840 | mla 512 64 1536; moe 256 8 2048 3 1; fp8 |
moonshotai/Kimi-K2-Thinking | 61 | 64 | 64 | 0 | 7168 | 18432 | 163840 | no | 262144 | mla 512 64 1536; moe 384 8 2048 1 1; int4 | vllm 0.11
Qwen/Qwen3-Next-80B-A3B-Instruct | 48 | 16 | 2 | 256 | 2048 | 5120 | 151936 | no | 262144 | delta 16 32 128 4; moe 512 10 512 0 1 | sglang
"""


_TUNED = re.compile(r"-(?:instruct|it|pt|base)(?=-|$)")


@dataclass(frozen=True, slots=True)
class Known:
    """A model by name: the fields of its config, and which engine's print confirms them, if one does."""

    name: str
    config: dict[str, Any]
    seen: str

    @property
    def source(self) -> str:
        """Where its config is published."""
        return f"https://huggingface.co/{self.name}/blob/main/config.json"


def _read(row: str) -> Known:
    name, layers, heads, kv, head, hidden, inner, vocab, tied, context, more, seen = (
        part.strip() for part in row.split("|")
    )
    config: dict[str, Any] = {
        "num_hidden_layers": int(layers),
        "num_attention_heads": int(heads),
        "num_key_value_heads": int(kv),
        "hidden_size": int(hidden),
        "intermediate_size": int(inner),
        "vocab_size": int(vocab),
        "tie_word_embeddings": tied == "yes",
        "max_position_embeddings": int(context),
        "torch_dtype": "bfloat16",
    }
    if int(head):
        config["head_dim"] = int(head)
    for extra in filter(None, (part.strip() for part in more.split(";"))):
        word, *numbers = extra.split()
        config |= _EXTRAS[word](int(layers), [int(number) for number in numbers])
    return Known(name, config, seen)


def _experts(_layers: int, numbers: list[int]) -> dict[str, Any]:
    count, chosen, width, *more = numbers
    dense, shared = (*more, 0, 0)[:2]
    return {
        "num_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": width,
        "first_k_dense_replace": dense,
        "n_shared_experts": shared,
    }


def _sliding(layers: int, numbers: list[int]) -> dict[str, Any]:
    window, every = numbers
    kinds = ["full_attention" if (at + 1) % every == 0 else "sliding_attention" for at in range(layers)]
    return {"sliding_window": window, "layer_types": kinds}


def _mla(_layers: int, numbers: list[int]) -> dict[str, Any]:
    rank, rope, query = numbers
    return {
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rope,
        "q_lora_rank": query,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }


def _delta(_layers: int, numbers: list[int]) -> dict[str, Any]:
    keys, values, head, every = numbers
    return {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "linear_key_head_dim": head,
        "linear_value_head_dim": head,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": every,
        "partial_rotary_factor": 0.25,
    }


def _gemma3(_layers: int, numbers: list[int]) -> dict[str, Any]:
    stretched = {"rope_scaling": {"rope_type": "linear", "factor": float(numbers[0])}} if numbers[0] > 1 else {}
    return {"model_type": "gemma3_text", **stretched}


def _stored(method: str) -> Any:
    return lambda _layers, _numbers: {"quantization_config": _STORED[method]}


_STORED: dict[str, dict[str, Any]] = {
    "mxfp4": {"quant_method": "mxfp4"},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "int4": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int", "symmetric": True}}},
        "ignore": ["lm_head", "embed", "self_attn", "shared_experts"],
    },
}
_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "num_hidden_layers": 27,
    "intermediate_size": 4304,
    "patch_size": 14,
    "image_size": 896,
}
_EXTRAS: dict[str, Any] = {
    "moe": _experts,
    "sliding": _sliding,
    "mla": _mla,
    "delta": _delta,
    "gemma3": _gemma3,
    "gptoss": lambda _layers, _numbers: {"architectures": ["GptOssForCausalLM"], "attention_bias": True},
    "siglip": lambda _layers, _numbers: {"vision_config": dict(_SIGLIP)},
    "bias": lambda _layers, _numbers: {"attention_bias": True},
    **{method: _stored(method) for method in _STORED},
}


@cache
def known_models() -> dict[str, Known]:
    """Return the models by lower-case name, read when they are first asked for."""
    return {known.name.lower(): known for known in map(_read, _ROWS.strip().splitlines())}


def find(name: str) -> Known | None:
    """Return a model by its name, with or without its owner; None when it is not known or not unique.

    A base model and the one that was tuned from it have the same shape: either name finds the other.
    """
    wanted = name.lower().rstrip("/")
    models = known_models()
    if wanted in models:
        return models[wanted]
    owned = [known for full, known in models.items() if wanted in (full, _last(full))]
    if not owned:
        owner = wanted.rpartition("/")[0]
        owned = [known for full, known in models.items() if _base(full) == _base(wanted) and full.startswith(owner)]
    return owned[0] if len(owned) == 1 else None


def alike(name: str) -> list[str]:
    """Return the known names that are spelt nearly so, nearest first."""
    names = {_last(known.name.lower()): known.name for known in known_models().values()}
    import difflib  # noqa: PLC0415  # only for a name that is not known

    return [names[close] for close in difflib.get_close_matches(_last(name.lower()), list(names), n=3, cutoff=0.6)]


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _base(name: str) -> str:
    """Return the name without the owner and without what tells a tuned model from the one it was made of."""
    return _TUNED.sub("", _last(name))
