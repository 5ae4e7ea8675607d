"""What a model's architecture tells beyond the fields of its config: defaults of its class, and if it is known.

Source: the configuration classes of ``transformers`` and the models of vLLM's ``model_executor/models/registry.py``.
"""

from __future__ import annotations

_TWO_MATRICES = (
    *("gpt2", "gptneox", "gptj", "gpt_neox", "gptbigcode", "gpt_bigcode", "opt", "bloom", "falcon", "phiforcausallm"),
    *("starcoder2", "nemotron", "mpt", "whisper"),
)
_GATED = ("nemotron-nas", "nemotron_nas", "falconh1", "falcon_h1")
_UNTIED = ("falconh1", "falcon_h1")
_TIED = ("gemma", "gpt2", "opt", "bloom", "cohere", "phi1", "falcon", "gptbigcode", "gpt_bigcode", "mpt", "whisper")
_FOUR_TIMES = ("gpt2", "falcon", "bloom", "gptj", "gptbigcode", "gpt_bigcode", "mpt")
_HALVED = ("qwenlmheadmodel",)
_BIASED = ("qwen2", "qwenlmheadmodel")
_TWO_PARTS = ("t5", "bart", "whisper", "marian", "pegasus", "seamless", "moonshine")
_ENCODERS = ("bert", "electra", "mpnet")
_OUTPUT_GATES = ("qwen3next", "qwen3_next", "qwen3_5", "qwen3_6", "qwen3_8")
_FAMILIES = """
afmoe apertus aquila arcee arctic aria aya baichuan bailing bamba bart bert blip bloom chameleon chatglm codegen
cogvlm cohere command dbrx deci deepseek dots ernie exaone falcon fuyu gemma glm gpt granite grok h2ovl hcx hunyuan
hymba idefics intern jais jamba keye kimi lfm2 llada llama llava longcat mamba marian mimo minicpm minimax ministral
mistral mixtral mllama molmo moonlight mpt nemotron nvlm olmo openelm opt orion ovis pangu pegasus persimmon phi
pixtral plamo qwen rwkv seamless seed skywork smol solar stablelm starcoder step t5 tarsier telechat teleflm
ultravox voxtral whisper xverse zamba
"""
_KNOWN = tuple(_FAMILIES.split())


def is_gated(architecture: str) -> bool:
    """Return whether the feed-forward part has a gate besides its up and its down projection."""
    return not _has(architecture, _TWO_MATRICES) or _has(architecture, _GATED)


def is_tied(architecture: str) -> bool:
    """Return whether embedding and head are one matrix where the config says nothing."""
    return _has(architecture, _TIED) and not _has(architecture, _UNTIED)


def is_four_times(architecture: str) -> bool:
    """Return whether the feed-forward width is four times the model's where the config says nothing."""
    return _has(architecture, _FOUR_TIMES)


def is_halved(architecture: str) -> bool:
    """Return whether the stated width is that of gate and up projection together (``models/qwen.py``)."""
    return _has(architecture, _HALVED)


def has_attention_bias(architecture: str) -> bool:
    """Return whether queries, keys and values have biases where the config does not say it."""
    return _has(architecture, _BIASED)


def has_two_parts(architecture: str) -> bool:
    """Return whether it is an encoder with a decoder."""
    return _has(architecture, _TWO_PARTS)


def is_encoder(architecture: str) -> bool:
    """Return whether it is an encoder alone, as those that make embeddings are."""
    return _has(architecture, _ENCODERS)


def has_output_gate(architecture: str) -> bool:
    """Return whether attention gates its output where the config does not say it (``attn_output_gate``)."""
    return _has(architecture, _OUTPUT_GATES)


def is_known(architecture: str) -> bool:
    """Return whether it belongs to a family whose shape this package computes."""
    return _has(architecture, _KNOWN)


def _has(architecture: str, parts: tuple[str, ...]) -> bool:
    lower = architecture.lower()
    return any(part in lower for part in parts)
