"""Whether an engine starts at all with the ranks that it is given: what both engines check before they load anything.

Sources: vLLM's ``config/model.py`` (``verify_with_parallel_config``) and ``config/parallel.py``;
``QKVParallelLinear`` of both engines; ``validate_fp8_block_shape`` and its counterpart for experts, and
``verify_marlin_supports_shape``, in vLLM's ``layers/quantization/utils``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.ledger.packed import feed_forward_kept

if TYPE_CHECKING:
    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.model import Model


def obstacles(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """Return why the engine will not start, a sentence each, the numbers of ranks at fault and what is allowed."""
    if deployment.mig and deployment.ranks > 1:
        return (f"{deployment.ranks} ranks over MIG slices: slices cannot form a group, so it will not start",)
    if 0 < model.layer_count < deployment.pp:
        return (f"{model.layer_count} layers over {deployment.pp} pipeline stages: one has none, so it will not start",)
    if deployment.tp % deployment.dp_attention:
        words = f"{deployment.tp} tensor-parallel ranks in {deployment.dp_attention} groups of DP attention"
        return (f"{words}: the ranks must be a multiple of them, so it will not start",)
    heads, ranks = model.q_heads, deployment.attention_tp
    if heads and heads % ranks:
        return (f"{heads} query heads cannot be divided over {ranks} ranks: it will not start",)
    uneven = sorted(
        group.kv_heads
        for group in model.attention
        if group.kind != "mla" and group.kv_heads and max(group.kv_heads, ranks) % min(group.kv_heads, ranks)
    )
    if uneven:
        return (f"{uneven[0]} KV heads can neither be divided over {ranks} ranks nor copied: it will not start",)
    shared = () if deployment.dcp == 1 else _shared_context(model, deployment)
    return shared or _uneven_groups(model, deployment)


def _uneven_groups(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """Return what forbids the ranks because they cut through groups of quantised weights that share a scale."""
    stored = model.quantisation
    if stored is None:
        return ()
    plain, experts = feed_forward_kept(model)
    packed = stored.bits >= 8 and not experts  # bits
    width = cut_width(model, deployment, stored.step, experts=packed, plain=not plain)
    if not width:
        return ()
    words = f"a feed-forward width of {width:,} over {deployment.tp} ranks is {width / deployment.tp:g} each"
    return (f"{words}, no multiple of the {stored.step} weights that share a scale: it will not start",)


def cut_width(model: Model, deployment: Deployment, step: int, *, experts: bool, plain: bool = True) -> int:
    """Return the feed-forward width that the ranks divide into parts that are no multiple of `step`; 0 where none is.

    `plain`: those beside experts count, `experts`: theirs, too. In fewer than 8 bits there are kernels for them, and
    expert parallelism cuts none.
    """
    tp, mixture = deployment.tp, model.experts
    widths = [model.intermediate] if model.dense_layers and plain else []
    if mixture is not None and experts and not deployment.expert_parallel:
        widths.append(mixture.width)
    uneven = (width for width in widths if width and (width % tp or width // tp % step)) if step and tp > 1 else ()
    return next(iter(uneven), 0)


def _shared_context(model: Model, deployment: Deployment) -> tuple[str, ...]:
    """Return what forbids decode context parallelism; SGLang shares out heads and tokens together and takes any."""
    dcp, tp = deployment.dcp, deployment.tp
    words = f"decode context parallelism over {dcp} of {tp} tensor-parallel ranks"
    if tp % dcp:
        return (f"{words}: the ranks must be a multiple of it, so it will not start",)
    most = most_sharing(model, deployment)
    if dcp <= most:
        return ()
    kv = model.kv_heads
    if _windowed(model, deployment):
        return (f"{words}: vLLM takes none with layers that have a window, so it will not start",)
    if most == 1:
        return (f"{words}: vLLM demands more ranks than the {kv} KV heads, so it will not start",)
    return (f"{words}: with {kv} KV heads at most {most} is allowed, so it will not start",)


def _windowed(model: Model, deployment: Deployment) -> bool:
    """Return whether vLLM has caches of layers with a window, which it does not divide among ranks."""
    limited = any(group.kind in ("sliding", "chunked") for group in model.attention)
    return deployment.engine == "vllm" and deployment.hybrid_manager and limited


def most_sharing(model: Model, deployment: Deployment) -> int:
    """Return the largest degree of decode context parallelism that the engine takes; 1 where it takes none.

    Ranks may share a context where they hold the same KV heads: all of them with latent attention, else the copies.
    The query heads of a KV head must be a multiple of it, too. vLLM shares none where layers have a window
    (``v1/core/kv_cache_coordinator.py``), unless without its hybrid manager they keep everything.
    """
    tp = deployment.tp
    if _windowed(model, deployment):
        return 1
    plain = [group.kv_heads for group in model.attention if group.kind != "mla"]
    if deployment.engine == "sglang" or not plain:
        return tp
    heads = max(plain)
    if not heads or tp <= heads:
        return 1
    queries = model.q_heads // heads
    return max(degree for degree in range(1, tp // heads + 1) if tp % degree == 0 and queries % degree == 0)
