"""Settings that cost capacity or accuracy: a small pool, long blocks, copied heads, stretched contexts, flags."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import HIGHEST_FRACTION
from gpuwatch.diagnosis.capacity import pool_of, typical_length
from gpuwatch.diagnosis.context import ENGINE_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import (
    Explanation,
    Unknown,
    Verdict,
    count,
    excluded,
    logged,
    measured,
    percent,
    size,
    told,
)
from gpuwatch.diagnosis.finding import Advice
from gpuwatch.diagnosis.kv_advice import blocks_override
from gpuwatch.diagnosis.room import BYTES_FLAG, cache_type, fixed_pool, memory_flag, room_of, whole_mib
from gpuwatch.engines.flag_versions import risky_flags

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

OVERRIDDEN = "GpuwatchKvPoolOverridden"
"""The rule that fires on a pool below what profiling found room for."""
KEPT_FREE = 0.05
"""Share of a card that the advice leaves free beside a larger pool."""
SMALLEST_BLOCK = 16
"""Tokens of the smallest block that all attention backends of vLLM on GPUs take."""
SMALLEST_PAGE = 1
"""Tokens of SGLang's smallest page, which is its default."""


def pool_undersized(subject: Subject) -> Verdict:
    """Explain a pool in use that is far smaller than the memory allows."""
    usage = [
        value
        for _, value in subject.context.samples(
            f"max_over_time({subject.select('engine_kv_cache_usage_ratio', SERVER_SCOPE)}[5m])"
        )
    ]
    used = f"KV usage reached {percent(max(usage))} in the last 5 minutes" if usage else ""
    evidence = [measured(used, "engine_kv_cache_usage_ratio", max(usage), "ratio")] if usage else []
    if subject.alert == OVERRIDDEN:
        return _overridden(subject, evidence)
    room = room_of(subject, "5m")
    pool = subject.config("kv_cache_bytes", "kv.bytes") or fixed_pool(subject)
    if room is None or not pool:
        return Unknown("free memory of the engine's GPUs and the bytes of its KV pool")
    evidence += [
        measured(
            f"{size(room.free)} or more are free on every GPU of the engine",
            "gpu_memory_free_bytes",
            room.free,
            "bytes",
        ),
        measured(f"the KV pool takes {size(pool)} per GPU", "engine_config_kv_cache_bytes", pool, "bytes"),
    ]
    if room.engines > 1:
        text = f"{room.engines} engines use the card: each is offered its part of what is free"
        evidence.append(measured(text, "gpu_engine", float(room.engines)))
    fraction, fixed = subject.config("memory_fraction_ratio", "memory_fraction"), fixed_pool(subject)
    if fixed is not None:
        text = f"{BYTES_FLAG} fixes the pool at {size(fixed)} per GPU"
        evidence.append(measured(text, "engine_config_kv_cache_bytes", fixed, "bytes"))
    elif fraction is not None:
        text = f"the engine was told to use {fraction:g} of the memory"
        evidence.append(measured(text, "engine_config_memory_fraction_ratio", fraction, "ratio"))
    spare = room.share(KEPT_FREE)
    gain = _gain(subject, spare, room.total)
    larger = f": it could be {1 + gain / pool:.1f} times as large" if gain > 0 else ""
    cause = f"The KV pool of {size(pool)} is in use while {room.words}{larger}."
    return Explanation(cause, 0.8, tuple(evidence), _larger_pool(subject, spare, room.total))


def _overridden(subject: Subject, evidence: list[Evidence]) -> Verdict:
    blocks, profiled = (
        subject.now("engine_kv_cache_blocks"),
        subject.config("kv_cache_profiled_blocks", "kv.blocks_profiled"),
    )
    if blocks is None or profiled is None:
        return Unknown("the blocks of the pool and those that memory profiling found room for")
    evidence = [
        measured(f"the KV pool has {count(blocks)} blocks", "engine_kv_cache_blocks", blocks),
        measured(
            f"memory profiling found room for {count(profiled)}", "engine_config_kv_cache_profiled_blocks", profiled
        ),
        *evidence,
    ]
    override = blocks_override(subject) or blocks
    return Explanation(
        f"--num-gpu-blocks-override limits the KV pool to {count(override)} blocks although there is room for "
        f"{count(profiled)} ({profiled / override:.1f} times as many), and the pool is in use.",
        0.95,
        tuple(evidence),
        (Advice("remove this flag: it is meant for tests", "--num-gpu-blocks-override", f"{override:.0f}", "(none)"),),
    )


def _larger_pool(subject: Subject, spare: float, total: float) -> tuple[Advice, ...]:
    """Return what enlarges the pool by `spare` bytes on a card of `total`: nothing that lowers it or has no effect."""
    capped = _cap(subject)
    if capped is not None:
        return (capped,)
    flag, now = memory_flag(subject)
    if subject.sglang:
        text = (
            "raise the share of memory for weights and pool; a pool of a few thousand tokens was measured while "
            "loading still held the memory: restart it then"
        )
        return (Advice(text, flag, now),)
    text = "let the engine use what is free, unless another program is to come onto these GPUs"
    fixed, fraction = fixed_pool(subject), subject.config("memory_fraction_ratio", "memory_fraction")
    if fixed is not None:
        return (Advice(text, flag, now, whole_mib(fixed + spare)),)
    if fraction is None:
        return (Advice("raise the share of memory that the engine may use", flag, now),)
    proposed = min(HIGHEST_FRACTION, math.floor((fraction + spare / total) * 100) / 100)
    if proposed <= fraction:
        text = (
            f"the share of {fraction:g} has no more to give: see what the engine's log says it measured at start "
            "(activation peak, memory in use before); a restart measures again"
        )
        return (Advice(text),)
    return (Advice(text, flag, now, f"{proposed:g}"),)


def _gain(subject: Subject, spare: float, total: float) -> float:
    """Return the bytes that the pool can gain of `spare`: no share of memory above the highest is proposed."""
    fraction = subject.config("memory_fraction_ratio", "memory_fraction")
    if subject.sglang or fraction is None or fixed_pool(subject) is not None or blocks_override(subject):
        return spare
    return min(spare, (HIGHEST_FRACTION - fraction) * total)


def _cap(subject: Subject) -> Advice | None:
    """Return the advice to remove the flag that caps the pool, where there is one."""
    if subject.sglang:
        cap = subject.fact("flag.max-total-tokens")
        return Advice("remove the cap on the pool", "--max-total-tokens", str(cap.value), "(none)") if cap else None
    override = blocks_override(subject)
    text = "remove this flag: the engine then takes what the memory allows"
    return Advice(text, "--num-gpu-blocks-override", f"{override:.0f}", "(none)") if override else None


def block_waste(subject: Subject) -> Verdict:
    """Explain blocks that are about as long as a whole request, so that much of each is empty."""
    block, length, pool = subject.now("engine_kv_block_size_tokens"), typical_length(subject), pool_of(subject)
    if block is None or length is None or length.basis not in ("finished", "held"):
        return Unknown("the block size and the lengths of finished requests")
    smaller = _smaller_block(subject, length.tokens)
    if smaller >= block:
        return Unknown(f"a block above {smaller} tokens, the smallest that is proposed for such requests")
    blocks = max(1, math.ceil(length.tokens / block))
    empty = block / 2 if blocks > 1 else block - length.tokens
    share = empty / (length.tokens + empty)
    evidence = [
        measured(f"one block holds {count(block)} tokens", "engine_kv_block_size_tokens", block, "tokens"),
        measured(length.text, "engine_generation_length_tokens", length.tokens, "tokens"),
    ]
    usage = subject.over("max_over_time", "engine_kv_cache_usage_ratio", "10m")
    if usage is not None:
        text = f"KV usage reached {percent(usage)} in the last 10 minutes"
        evidence.append(measured(text, "engine_kv_cache_usage_ratio", usage, "ratio"))
    held = (
        f"; {count(pool.tokens)} tokens hold {count(pool.holds(length.tokens))} such requests"
        if pool is not None
        else ""
    )
    cause = (
        f"A request of {count(length.tokens)} tokens holds whole blocks of {count(block)}: on average {count(empty)} "
        f"tokens of it ({percent(share)}) are held and empty{held}."
    )
    flag = "--page-size" if subject.sglang else "--block-size"
    text = (
        "smaller blocks, where the attention backend allows them; hybrid models raise the size themselves, to the size "
        "of one Mamba state"
    )
    return Explanation(cause, 0.75, tuple(evidence), (Advice(text, flag, f"{block:.0f}", str(smaller)),))


def _smaller_block(subject: Subject, tokens: float) -> int:
    """Return a power of two of which 8 or more make up a request of `tokens`, or the smallest block there is."""
    wanted = 1 << math.floor(math.log2(max(1.0, tokens / 8)))
    if wanted >= SMALLEST_BLOCK:
        return wanted
    return SMALLEST_PAGE if subject.sglang else SMALLEST_BLOCK


def head_replication(subject: Subject) -> Verdict:
    """Explain tensor-parallel ranks that hold copies of the KV cache."""
    ranks = subject.config("tensor_parallel_size", "tp")
    heads = subject.config("kv_heads", "model.kv_heads")
    if ranks is None or heads is None or heads < 1:
        return Unknown("the number of KV heads (config.json of the model) and of tensor-parallel ranks")
    split, replicas = subject.config("decode_context_parallel_size", "dcp") or 1.0, _replicas(subject)
    shared = split * replicas if subject.sglang else split
    copies = math.ceil(ranks / (heads * shared))
    evidence = [
        measured(f"{count(ranks)} tensor-parallel ranks", "engine_config_tensor_parallel_size", ranks),
        measured(
            f"the model has {count(heads)} KV head{'s' if heads > 1 else ' (or one latent for all: MLA)'}",
            "engine_config_kv_heads",
            heads,
        ),
    ]
    if split > 1:
        text = f"decode context parallelism splits the tokens over {count(split)} ranks"
        evidence.append(measured(text, "engine_config_decode_context_parallel_size", split))
    if replicas > 1:
        evidence.append(
            measured(f"{count(replicas)} data-parallel ranks", "engine_config_data_parallel_size", replicas)
        )
    fact = subject.fact("model.kv_heads")
    if fact is not None:
        evidence.append(told(fact, f"KV heads as the model's configuration has them: {fact.value}"))
    concurrency = subject.config("max_concurrency", "max_concurrency")
    if concurrency is not None:
        text = f"{concurrency:g} requests of full length fit"
        evidence.append(measured(text, "engine_config_max_concurrency", concurrency))
    cause = (
        f"{count(heads)} KV head{'s' if heads > 1 else ''} cannot be split over {count(ranks)} ranks: each token is "
        f"kept {copies} times, and ranks beyond {count(heads * shared)} add no room for KV cache."
    )
    now = f"{replicas:.0f}" if replicas > 1 else None
    if subject.sglang:
        text = "attention data parallelism: each rank keeps its own requests"
        attention = subject.fact("flag.enable-dp-attention")
        on = attention is not None and attention.value is True
        advice = [] if on else [Advice(text, "--enable-dp-attention", None, "true")]
        advice.append(Advice("as many attention replicas as make copies", "--dp-size", now, f"{replicas * copies:.0f}"))
    else:
        most = f"{split * copies:.0f}"
        groups = f"{replicas * split * copies:.0f}"
        advice = [
            Advice("split the tokens instead of copying them", "--decode-context-parallel-size", f"{split:.0f}", most),
            Advice(
                f"or {groups} data-parallel replicas of {count(heads)} ranks each (MoE: with --enable-expert-parallel)",
                "--data-parallel-size",
                now,
                groups,
            ),
        ]
    return Explanation(cause, 0.95, tuple(evidence), tuple(advice))


def _replicas(subject: Subject) -> float:
    return subject.config("data_parallel_size", "dp") or 1.0


def rope_context(subject: Subject) -> Verdict:
    """Explain a context beyond what the model's positions are made for."""
    limit = subject.config("max_model_len_tokens", "max_model_len")
    native = subject.config("native_context_tokens", "model.context")
    if limit is None or native is None:
        return Unknown("the longest accepted request and the context of the model's configuration")
    evidence = [
        measured(f"requests of up to {count(limit)} tokens are accepted", "engine_config_max_model_len_tokens", limit),
        measured(
            f"the model is made for {count(native)}, scaling included", "engine_config_native_context_tokens", native
        ),
    ]
    fact = subject.fact("model.context")
    if fact is not None:
        evidence.append(told(fact, f"context of the model's configuration: {fact.value}"))
    evidence += [logged(line) for line in subject.events("rope_beyond_native", "rope_key_unknown", seconds=900)[-2:]]
    factor = math.ceil(limit / native)
    flag = "--context-length" if subject.sglang else "--max-model-len"
    scaling = "--json-model-override-args" if subject.sglang else "--hf-overrides"
    cause = (
        f"Positions beyond {count(native)} were never trained and are not scaled: answers that need them turn to "
        f"nonsense, without an error. The limit of {count(limit)} was forced by an environment variable."
    )
    advice = (
        Advice("accept no more than the model is made for", flag, f"{limit:.0f}", f"{native:.0f}"),
        Advice(
            "or scale the positions, if the model's authors say how (YaRN)",
            scaling,
            None,
            f'{{"rope_scaling": {{"rope_type": "yarn", "factor": {factor}.0, '
            f'"original_max_position_embeddings": {native:.0f}}}}}',
        ),
    )
    return Explanation(cause, 0.85, tuple(evidence), advice)


def kv_accuracy(subject: Subject) -> Verdict:
    """Explain a quantised KV cache without scaling factors."""
    fact = subject.fact("kv.unscaled")
    kind = cache_type(subject)
    stored = f"stored as {kind}" if kind else "quantised"
    lines = subject.events("kv_scale_one", seconds=900)
    if subject.now("engine_config_kv_cache_unscaled", SERVER_SCOPE) != 1 and fact is None and not lines:
        return Unknown("what the engine's log says of the scaling factors of its KV cache")
    evidence = [measured(f"the KV cache is {stored}", "engine_config_kv_cache_unscaled", 1.0)]
    evidence += [logged(line) for line in lines[-1:]]
    if fact is not None and not lines:
        evidence.append(told(fact, "the engine's log says that it runs with scaling factors of 1.0"))
    cause = (
        f"The KV cache is {stored} with scaling factors of 1.0: keys and values outside its range are cut off. "
        "Small models, the Qwen family and work that needs exact recall suffer most; some models hardly do."
    )
    advice = (
        Advice("use a checkpoint with KV scales"),
        Advice("or keep the KV cache in the model's own type, at twice the memory", "--kv-cache-dtype", kind, "auto"),
        Advice("measure it: the same questions with both types (gpuwatch probe digits)"),
    )
    return Explanation(cause, 0.7, tuple(evidence), advice)


def flag_risky(subject: Subject) -> Verdict:
    """Explain a launch flag with a known trap."""
    name = subject.labels.get("flag", "")
    engine = "sglang" if subject.sglang else "vllm"
    found = next((p for p in risky_flags(engine, subject.version_text, _flags(subject)) if p.flag == name), None)
    if found is None:
        return Unknown(f"the value of --{name} and the engine's version")
    fact = subject.fact(f"flag.{name}")
    evidence = [told(fact, f"--{name} {found.value}")] if fact is not None else []
    evidence.append(excluded("another version: the trap is known in this one", "engine_config_flag_problem", 1.0))
    text = f"set it to {found.proposed}" if found.proposed else "remove it"
    advice = (Advice(text, f"--{name}", found.value, found.proposed or "(none)"),)
    return Explanation(f"--{name} {found.value}: {found.text}.", 0.8, tuple(evidence), advice)


def _flags(subject: Subject) -> dict[str, str | float | int | bool]:
    return subject.flags()


DIAGNOSES = (
    Diagnosis(
        "kv_pool_undersized",
        "warning",
        "The KV pool is in use and far smaller than the memory allows",
        pool_undersized,
        SERVER_SCOPE,
    ),
    Diagnosis("kv_block_waste", "warning", "KV blocks are mostly empty", block_waste, ENGINE_SCOPE),
    Diagnosis("kv_head_replication", "warning", "The KV cache is copied on every rank", head_replication, SERVER_SCOPE),
    Diagnosis(
        "rope_context", "warning", "The context is longer than the model was made for", rope_context, SERVER_SCOPE
    ),
    Diagnosis("fp8_kv_accuracy", "warning", "The quantised KV cache has no scaling factors", kv_accuracy, SERVER_SCOPE),
    Diagnosis("flag_risky", "warning", "A launch flag has a known trap", flag_risky, (*SERVER_SCOPE, "flag")),
)
"""The findings of this family."""
