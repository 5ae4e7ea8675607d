"""The same engine launched otherwise: over other ranks, and with the pool that its card gives it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from gpuwatch.ledger.reserve import sglang_fraction
from gpuwatch.ledger.starts import most_sharing, obstacles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.need import Engine


def pool_flag(deployment: Deployment) -> str:
    """Return the flag with which the size of the pool was asked for, and its value; empty where none was."""
    return next(iter(pool_flags(deployment)), "")


def pool_flags(deployment: Deployment) -> list[str]:
    """Return all flags that say the size of the pool, each with its value, the one that counts first."""
    names = ("num-gpu-blocks-override", "kv-cache-memory-bytes", "max-total-tokens")
    values = (deployment.blocks_override, deployment.kv_bytes, deployment.max_total_tokens)
    return [f"--{name} {value:.0f}" for name, value in zip(names, values, strict=True) if value is not None]


def own_pool(engine: Engine) -> Engine:
    """Return the engine with the pool that its card gives it."""
    deployment = engine.deployment
    if not deployment.pool_asked:
        return engine
    fraction = deployment.idle_fraction or deployment.fraction
    return engine.with_deployment(kv_bytes=None, blocks_override=None, max_total_tokens=None, fraction=fraction)


def at_tp(engine: Engine, tp: int) -> Engine:
    """Return the engine over `tp` ranks, without pipeline stages and data-parallel groups."""
    groups = engine.deployment.dp_attention
    tried = engine.with_deployment(
        tp=tp, pp=1, pcp=1, dp=1, sharing_dp=1, dp_attention=groups if tp % groups == 0 else 1
    )
    dcp = engine.deployment.dcp
    shared = dcp if tp % dcp == 0 and dcp <= most_sharing(engine.model, tried.deployment) else 1
    return retuned(tried.with_deployment(dcp=shared), engine)


def retuned(changed: Engine, engine: Engine) -> Engine:
    """Return a changed engine with the fraction that SGLang would choose for it, where `engine` has its own choice."""
    before, after = engine.deployment, changed.deployment
    if before.engine != "sglang" or before.fraction_told or before.fraction != sglang_fraction(before, engine.model):
        return changed
    return changed.with_deployment(fraction=sglang_fraction(after, changed.model))


def fewer_ranks(engine: Engine) -> Iterator[Engine]:
    """Yield the engine with as many ranks as it has or fewer, the most first, wherever it starts with them."""
    before = engine.deployment
    pp = min(before.pp, engine.model.layer_count or before.pp)
    for tp in range(before.tp, 0, -1):
        tried = engine.with_deployment(tp=tp, pp=pp)
        most = min(before.dcp, most_sharing(engine.model, tried.deployment))
        sharing = (retuned(tried.with_deployment(dcp=dcp), engine) for dcp in range(most, 0, -1))
        yield from itertools.islice(filter(possible_tp, sharing), 1)


def possible_tp(engine: Engine) -> bool:
    """Return whether the engine starts with its ranks."""
    return not obstacles(engine.model, engine.deployment)
