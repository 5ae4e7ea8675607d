"""A KV pool of a given size: the tokens it holds and the longest request that fits, in vLLM and in SGLang."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.ledger.kv import bytes_per_token, layout, state_bytes

if TYPE_CHECKING:
    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.model import Model

STATE_SHARE = 0.9
"""SGLang's ``--mamba-full-memory-ratio``: bytes of the state pool for each byte of the KV pool."""
WINDOW_SHARE = 0.8
"""SGLang's ``--swa-full-tokens-ratio``: tokens of the sliding-window pool for each token of the full pool."""
LONGEST = 2**34
"""Tokens of the longest request that is looked for: a pool that holds it holds requests of any length."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A KV pool: its bytes on one GPU, the tokens it holds, and how many requests of full length fit."""

    bytes: float
    tokens: int
    concurrency: float


def pool_of(model: Model, deployment: Deployment, available: float) -> Pool:
    """Return the pool that `available` bytes make on one GPU.

    Raises:
        ValueError: the model keeps nothing.
    """
    own = own_share(deployment)
    size = _sglang if deployment.engine == "sglang" else _vllm
    pool = size(model, deployment, available * own)
    if own < 1:
        pool = replace(pool, bytes=pool.bytes / own)
    limit = deployment.max_total_tokens
    if limit is None or pool.tokens <= limit:
        return pool
    share = limit / pool.tokens
    return Pool(pool.bytes * share, limit, pool.concurrency * share)


def own_share(deployment: Deployment) -> float:
    """Return the model's part of its pool: a draft model, all on the last stage, keeps the same tokens in the rest."""
    return 1 / (1 + deployment.drafting_share * deployment.pp)


def _vllm(model: Model, deployment: Deployment, available: float) -> Pool:
    plan = layout(model, deployment.kv_settings)
    blocks = plan.blocks(max(0.0, available))
    if deployment.blocks_override is not None:
        blocks = deployment.blocks_override
    return Pool(blocks * float(plan.block_bytes), plan.tokens(blocks), plan.concurrency(blocks))


def _sglang(model: Model, deployment: Deployment, available: float) -> Pool:
    cell = sglang_cell(model, deployment)
    linear = sum(group.count for group in model.layers if group.kind == "linear" and group.states)
    pool = max(0.0, available)
    if not cell:
        states = _sglang_states(model, deployment)
        slots = int(pool // states) if states else 0
        return Pool(slots * float(states), 0, float(slots))
    if linear:
        pool /= 1 + STATE_SHARE
    tokens = int(pool // cell)
    tokens -= tokens % deployment.block_size
    return Pool(tokens * cell, tokens, tokens / deployment.context)


def _sglang_states(model: Model, deployment: Deployment) -> int:
    """Return the bytes of the states of one request on one rank."""
    linear = (group for group in model.layers if group.kind == "linear")
    return sum(group.count * state_bytes(group, model, deployment.tp) for group in linear)


def sglang_cell(model: Model, deployment: Deployment) -> float:
    """Return the bytes that a token of SGLang's pool takes on one rank, its share of a sliding-window pool included.

    Source: ``model_executor/pool_configurator.py`` of 0.5.23.
    """
    full = tuple(group for group in model.attention if group.kind != "sliding")
    windowed = tuple(group for group in model.attention if group.kind == "sliding")
    tp, dcp = deployment.attention_tp, deployment.dcp
    cell = bytes_per_token(replace(model, layers=full), deployment.kv_dtype, tp, dcp) if full else 0.0
    if windowed:
        share = WINDOW_SHARE if full else 1.0
        cell += share * bytes_per_token(replace(model, layers=windowed), deployment.kv_dtype, tp, dcp)
    return cell / deployment.pp


def request_bytes(model: Model, deployment: Deployment, tokens: int) -> float:
    """Return the bytes that one request of `tokens` tokens takes on one rank, the null block of vLLM not included."""
    own = own_share(deployment)
    if deployment.engine == "sglang":
        return sglang_cell(model, deployment) * tokens / own + _sglang_states(model, deployment)
    return layout(model, deployment.kv_settings).bytes_per_request(tokens) / own


def spare_bytes(model: Model, deployment: Deployment) -> float:
    """Return what the pool needs besides its requests: vLLM's null block."""
    if deployment.engine == "sglang":
        return 0.0
    return layout(model, deployment.kv_settings).block_bytes / own_share(deployment)


def longest_context(model: Model, deployment: Deployment, available: float) -> int:
    """Return the longest single request that `available` bytes hold, found by halving; 0 when none does.

    Models of states or sliding windows alone hold requests of any length: `LONGEST`.
    """
    if deployment.engine == "sglang":
        pool = pool_of(model, deployment, available)
        return pool.tokens if model.attention else LONGEST * (pool.concurrency >= 1)
    plan = layout(model, deployment.kv_settings)
    available *= own_share(deployment)
    if deployment.blocks_override is not None:
        available = deployment.blocks_override * float(plan.block_bytes)
    low, high = 0, LONGEST
    while low < high:
        middle = (low + high + 1) // 2
        if plan.bytes_per_request(middle) + plan.block_bytes <= available:
            low = middle
        else:
            high = middle - 1
    return low
