"""What an engine chooses by itself where the launch command says nothing, by version and card.

Sources: ``engine/arg_utils.py`` and ``config/cache.py`` of vLLM; ``srt/server_args.py`` of SGLang.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.ledger.reserve import SUMMED_SINCE, sglang_fraction
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.model import Model

NEWEST = {"vllm": (0, 33, 0), "sglang": (0, 5, 23)}
"""The newest version of each engine that is known: what a plan is for where none is named."""
OLD_FRACTION, NEW_FRACTION = 0.9, 0.92
NEW_FRACTION_SINCE = (0, 20)
STATES_CACHED_SINCE = (0, 28)
"""Prefix caching is on by default for models with linear layers, too."""
KV_TYPE_SINCE = {
    ("vllm", "modelopt kv_cache_quant_algo"): (0, 14),
    ("vllm", "modelopt kv_cache_scheme"): (0, 15),
    ("vllm", "compressed-tensors kv_cache_scheme"): (0, 15),
    ("sglang", "modelopt kv_cache_quant_algo"): (0, 5, 9),
    ("sglang", "modelopt kv_cache_scheme"): (0, 5, 23),
}
"""Versions whose ``auto`` is known to follow the KV type that a checkpoint names, by the field that names it.

Source: vLLM's pull requests 30785 and 30141, ``utils/torch_utils.py``, ``layers/attention/attention.py``; SGLang's
``configure_kv_cache_dtype`` and ``modelopt_quant.py``.
"""
NVFP4_KV_SINCE = {"vllm": (0, 32)}
"""Versions known to take NVFP4 from there, too."""
V1_SINCE = (0, 8)
"""vLLM whose default is V1; earlier ones have it where ``VLLM_USE_V1=1`` asks for it. V1 cuts prompts by itself."""
V0_CHUNKS_ABOVE = 32768
"""vLLM V0 cuts prompts into chunks only for models with a longer context."""
WHOLE_PROMPTS_AGAIN = (0, 12)
"""vLLM V1 from here on lets chunked prefill be turned off; what the versions from 0.8 on made of it is not known."""
BIG_GIB, HUGE_GIB = 70.0, 160.0


def vllm_batch(version: tuple[int, ...], capacity: float, context: int, *, unified: bool) -> tuple[int, int]:
    """Return (token budget of a step, sequences) of vLLM's API server on a card of `capacity` bytes."""
    if version < V1_SINCE:  # V0: without chunks a step takes a whole prompt
        return (max(context, 2048) if context <= V0_CHUNKS_ABOVE else 2048), 256
    big = capacity >= BIG_GIB * GIB and not unified
    if version[:3] == (0, 8, 0):
        return (8192 if big else 2048), 1024
    if version >= (0, 28) and capacity >= HUGE_GIB * GIB:
        return 16384, 1024
    return (8192, 1024) if big else (2048, 256)


def takes_whole_prompts(version: tuple[int, ...], context: int, *, asked: bool | None) -> bool:
    """Return whether vLLM computes each prompt in one step; `asked` is what was said of chunked prefill."""
    if not version or asked is True:
        return False
    if version < V1_SINCE:
        return asked is False or context <= V0_CHUNKS_ABOVE
    return asked is False and version >= WHOLE_PROMPTS_AGAIN


def kv_type_followed(engine: str, version: tuple[int, ...], model: Model) -> str:
    """Return the KV type that the checkpoint names, where the engine's ``auto`` follows it, else the empty string."""
    since = KV_TYPE_SINCE.get((engine, model.kv_type_source))
    if model.kv_type == "nvfp4":
        since = max(since, NVFP4_KV_SINCE[engine]) if since is not None and engine in NVFP4_KV_SINCE else None
    return model.kv_type if since is not None and version >= since else ""


def sglang_chunk(capacity: float, version: tuple[int, ...] = ()) -> int:
    """Return SGLang's chunked prefill size on a card of `capacity` bytes."""
    gib = capacity / GIB
    if version and version < SUMMED_SINCE:
        return 2048 if gib < 35 else 8192 if gib < 160 else 16384  # GiB, from the source
    for limit, chunk in ((35, 2048 if gib < 20 else 4096), (60, 4096), (160, 8192)):  # GiB, from the source
        if gib < limit:
            return chunk
    return 16384


def with_defaults(
    deployment: Deployment,
    model: Model,
    *,
    chunk: int | None,
    sequences: int | None,
    fraction: float | None,
    doubled: bool = False,
) -> Deployment:
    """Fill in what the command leaves to the engine; values that are given stay.

    `doubled`: vLLM takes twice its step and its batch (``--performance-mode throughput``).
    """
    if deployment.engine == "sglang":
        chunk = chunk or sglang_chunk(deployment.capacity, deployment.version)
        filled = replace(deployment, chunk=chunk, sequences=sequences or 256)
        return replace(filled, fraction=fraction or sglang_fraction(filled, model))
    linear = any(group.kind == "linear" for group in model.layers)
    if deployment.prefix_caching is None:
        deployment = replace(deployment, prefix_caching=not linear or deployment.version >= STATES_CACHED_SINCE)
    tokens, batch = vllm_batch(deployment.version, deployment.capacity, deployment.context, unified=deployment.unified)
    if doubled:
        tokens, batch = 2 * tokens, 2 * batch
    if deployment.kv_bytes is not None:  # the pool has this size, whatever share of the card is asked for
        deployment, fraction = replace(deployment, idle_fraction=fraction or 0.0), None
    default = NEW_FRACTION if deployment.version >= NEW_FRACTION_SINCE else OLD_FRACTION
    if takes_whole_prompts(deployment.version, deployment.context, asked=deployment.chunked):
        tokens = max(tokens, deployment.context)
    deployment = replace(deployment, chunk_told=chunk is not None)
    tokens = chunk or min(tokens, max(1, (sequences or batch) * deployment.context))
    return replace(deployment, chunk=tokens, sequences=sequences or min(batch, tokens), fraction=fraction or default)


def at_length(deployment: Deployment, context: int) -> Deployment:
    """Return a deployment for requests of another length, with the step that vLLM V0 chooses by it."""
    changed = replace(deployment, context=context)
    if deployment.engine != "vllm" or deployment.chunk_told or not () < deployment.version < V1_SINCE:
        return changed
    if not takes_whole_prompts(deployment.version, context, asked=deployment.chunked):
        return changed
    tokens, _ = vllm_batch(deployment.version, deployment.capacity, context, unified=deployment.unified)
    return replace(changed, chunk=max(tokens, context))
