"""What an engine that runs should take, from its launch facts: the plan's arithmetic put to the live engine."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.engines.version import parse_version
from gpuwatch.ledger.beside import adapters_of, exchanges_by_deepep, loads_towers, speculation
from gpuwatch.ledger.budget import Deployment, pool_bytes
from gpuwatch.ledger.defaults import kv_type_followed, with_defaults
from gpuwatch.ledger.known import find
from gpuwatch.ledger.latent import as_kept
from gpuwatch.ledger.lengths import default_length
from gpuwatch.ledger.need import Engine, loaded, quantised
from gpuwatch.ledger.pool import pool_of
from gpuwatch.ledger.portable import from_portable
from gpuwatch.ledger.quantisation import DTYPE_BYTES
from gpuwatch.ledger.reading import read_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.ledger.model import Model

Value: TypeAlias = "str | float | int | bool"

COMPONENTS = ("weights", "kv_pool", "work", "rest")
"""What is predicted on each GPU: the components of `ledger.reconcile`, the pool as a whole."""
USED = (
    *("model", "model.config", "model.weights_bytes", "version", "quantization", "memory_fraction", "tp", "pp", "dp"),
    *("dcp", "max_model_len", "kv.block_size", "kv.blocks_override", "kv.dtype", "enforce_eager", "prefix_caching"),
    *("hybrid_kv_manager", "max_num_batched_tokens", "max_num_seqs", "flag.enable-dp-attention", "flag.kv-cache-dtype"),
    *("flag.disable-hybrid-kv-cache-manager", "flag.kv-cache-memory-bytes", "flag.max-total-tokens"),
    *("flag.async-scheduling", "flag.mamba-ssm-cache-dtype", "flag.attn-dp-size", "flag.enable-expert-parallel"),
    *("flag.speculative-algorithm", "flag.moe-a2a-backend", "flag.enable-deepep-moe", "flag.enable-multimodal"),
    *("dtype", "flag.dtype", "flag.limit-mm-per-prompt", "flag.enable-lora", "flag.max-loras", "flag.max-lora-rank"),
    "chunked_prefill",
)
"""The facts that a prediction looks at."""
_FIRST_CONTEXT = 4096
"""Length of a request where neither the launch nor the model says one; it has no part in the bytes of plain models."""


def model_of(facts: Mapping[str, Value]) -> Model | None:
    """Return the model of an engine: as its configuration was read on its machine, else by a known name; else None."""
    text, name = str(facts.get("model.config", "")), str(facts.get("model", ""))
    try:
        if text:
            return from_portable(text, name)
        known = find(name) if name else None
        return None if known is None else read_model(known.config, known.name)
    except ValueError:
        return None


def engine_of(kind: str, facts: Mapping[str, Value], capacity: float) -> Engine | None:
    """Return a running engine as the plan sees one; None where it lacks its version or a part of its model.

    Args:
        kind: ``vllm`` or ``sglang``.
        facts: By the keys of `engines.facts`, the launch flags among them. What they lack is the engine's own default.
        capacity: Memory of one of its GPUs in bytes.
    """
    model, version = model_of(facts), parse_version(str(facts.get("version", "")))
    if model is None or not model.complete or version is None or kind not in ("vllm", "sglang"):
        return None
    quantisation = str(facts.get("quantization", ""))
    dtype = str(facts.get("dtype") or facts.get("flag.dtype") or "auto").removeprefix("torch.")
    if quantisation and model.quantisation is None:
        model = quantised(model, quantisation)
    model = as_kept(model, kind, version)
    flags = {name[5:]: value for name, value in facts.items() if name.startswith("flag.")}
    places, rank = adapters_of(kind, flags)
    deployment = Deployment(
        engine=kind,
        version=version,
        capacity=capacity,
        tp=_count(facts, "tp") or 1,
        pp=_count(facts, "pp") or 1,
        dcp=_count(facts, "dcp") or 1,
        dp_attention=_groups(facts),
        sharing_dp=(_count(facts, "dp") or 1) if kind == "vllm" and model.experts is not None else 1,
        expert_parallel=facts.get("flag.enable-expert-parallel") is True,
        context=_count(facts, "max_model_len") or default_length(model, kind, version) or _FIRST_CONTEXT,
        kv_dtype=_kv_dtype(facts) or kv_type_followed(kind, version, model) or "auto",
        block_size=_count(facts, "kv.block_size") or (1 if kind == "sglang" else 16),
        eager=facts.get("enforce_eager") is True,
        prefix_caching=None if (caching := facts.get("prefix_caching")) is None else caching is True,
        chunked=chunked if isinstance(chunked := facts.get("chunked_prefill"), bool) else None,
        hybrid_manager=facts.get("hybrid_kv_manager") is not False
        and facts.get("flag.disable-hybrid-kv-cache-manager") is not True,
        blocks_override=_count(facts, "kv.blocks_override"),
        kv_bytes=_count(facts, "flag.kv-cache-memory-bytes"),
        max_total_tokens=_count(facts, "flag.max-total-tokens"),
        asynchronous=facts.get("flag.async-scheduling") is not False,
        state_dtype=str(facts.get("flag.mamba-ssm-cache-dtype", "auto")),
        towers=loads_towers(kind, version, flags, (), videos=model.sees_videos),
        adapters=places,
        adapter_rank=rank,
        speculation=speculation(flags),
        deepep=exchanges_by_deepep(flags),
        multimodal=flags.get("enable-multimodal") is True,
        paged_steps=False,  # it runs: what its steps are made of was taken
    )
    filled = with_defaults(
        deployment,
        model,
        chunk=_count(facts, "max_num_batched_tokens"),
        sequences=_count(facts, "max_num_seqs"),
        fraction=_number(facts, "memory_fraction"),
    )
    return loaded(Engine(model, filled, weights_bytes=_number(facts, "model.weights_bytes")), dtype)


def predict(engine: Engine) -> dict[str, float]:
    """Return the bytes on one GPU that the ledger expects, by `COMPONENTS`; without the pool where none is possible."""
    taken = engine.residents
    parts = {
        "weights": taken.weights,
        "work": taken.activations + taken.graphs,
        "rest": taken.context + taken.communication,
    }
    available = pool_bytes(engine.model, engine.deployment, taken)
    with suppress(ValueError):  # a model that keeps nothing has no pool
        parts["kv_pool"] = pool_of(engine.model, engine.deployment, available).bytes
    return {component: parts[component] for component in COMPONENTS if component in parts}


def measured(engine: Engine, pool: float) -> Engine:
    """Return the engine with the pool that it stated, in bytes, so that what-if rows start from what is there."""
    expected = pool_bytes(engine.model, engine.deployment, engine.residents)
    return replace(engine, uncounted=expected - pool)


def _groups(facts: Mapping[str, Value]) -> int:
    """Return SGLang's groups of DP attention."""
    inner = _count(facts, "flag.attn-dp-size") or 1
    return max(inner, _count(facts, "dp") or 1) if facts.get("flag.enable-dp-attention") is True else inner


def _number(facts: Mapping[str, Value], key: str) -> float | None:
    value = facts.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)


def _count(facts: Mapping[str, Value], key: str) -> int | None:
    number = _number(facts, key)
    return None if number is None else int(number)


def _kv_dtype(facts: Mapping[str, Value]) -> str:
    """Return the type of the KV cache as it was asked for, else as the engine named it; empty where neither is."""
    asked = facts.get("flag.kv-cache-dtype")
    if isinstance(asked, str) and asked != "auto":
        return asked
    named = str(facts.get("kv.dtype", "")).removeprefix("torch.")
    return named if named in DTYPE_BYTES else ""
