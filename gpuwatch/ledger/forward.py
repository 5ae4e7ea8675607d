"""The feed-forward parts of a model: how many are plain, which layers have experts, and how wide those are.

Sources: the configuration classes of ``transformers``; ``arctic.py``, ``nemotron_h.py``, ``zamba2.py``,
``longcat_flash.py`` of vLLM's ``model_executor/models``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.layers import feed_forward_layers, is_state_space, shares_blocks, windowed_heads
from gpuwatch.ledger.model import Experts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.ledger.fields import Fields
    from gpuwatch.ledger.model import Layers

_SPARSE = (1, "sparse", "moe")
"""What a list with an entry for each layer says of one with experts; true is 1."""
_ADAPTED = 128
"""``adapter_rank`` of Zamba 2 where the config names none."""


def attends_twice(architecture: str) -> bool:
    """Return whether a layer has two attentions and two plain feed-forward parts beside its experts (LongCat-Flash)."""
    return "longcatflash" in architecture.lower().replace("_", "")


def forward_parts(fields: Fields, count: int) -> tuple[int, Experts | None]:
    """Return the number of plain feed-forward parts in `count` layers, and the experts.

    Raises:
        ModelConfigError: a token is to go to more experts than there are.
    """
    alone = feed_forward_layers(fields, count)
    experts = fields.number("num_experts")
    if not experts:
        if alone is not None:
            return alone[0], None
        return 0 if is_state_space(fields) or shares_blocks(fields) else count, None
    twice = attends_twice(fields.architecture)
    dense, sparse = (count, count // 2) if twice else alone or _with_experts(fields, count)
    width = fields.number("moe_intermediate_size") or fields.need("intermediate_size")
    shared = _shared_width(fields, width)
    chosen, latent = fields.number("num_experts_per_tok") or 0, fields.number("moe_latent_size") or 0  # Nemotron-H
    if chosen > experts:
        raise ModelConfigError(f"num_experts_per_tok is {chosen}; allowed: at most the {experts} experts")
    return dense, Experts(sparse, experts, width, chosen, shared, latent)


def _with_experts(fields: Fields, count: int) -> tuple[int, int]:
    """Return how many layers have a plain feed-forward part, and how many have experts."""
    numbers = filter(str.isdecimal, map(str.strip, fields.text("moe_layers_enum").split(",")))  # Step 3.5
    numbered = sum(int(number) < count for number in numbers)
    if numbered:
        return count - numbered, numbered
    listed = next(filter(None, map(fields.listed, ("moe_layer_freq", "is_moe_layer", "mlp_layer_types"))), None)
    dense = fields.number("first_k_dense_replace") or 0
    period = fields.number("expert_layer_period")  # Jamba
    if listed is not None:
        sparse = sum(kind in _SPARSE for kind in listed[:count])
        return count - sparse, sparse
    every = next(filter(None, map(fields.number, _STEPS)), None)
    first = fields.number("moe_layer_start_index")  # Ernie 4.5
    if first is not None:
        sparse = sum((index + 1) % (every or 1) == 0 for index in range(first, _last(fields, count) + 1))
    elif period:
        offset = fields.number("expert_layer_offset") or 0
        sparse = sum(index % period == offset for index in range(count))
    elif every and every > 1:
        sparse = sum((index + 1) % every == 0 for index in range(dense, count))
    else:
        sparse = count - dense - len(fields.listed("mlp_only_layers"))
    if fields.flag("enable_moe_block"):  # Gemma 4: experts beside a plain part in every layer
        return count, count
    return count - sparse, sparse


_STEPS = (
    *("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"),
    *("moe_layer_interval", "moe_layer_frequency"),  # Ernie 4.5, Arctic
)
"""Fields that say which layers have experts: each whose number, from 1 on, is a multiple."""


def _last(fields: Fields, count: int) -> int:
    """Return the index of the last layer that may have experts; a negative one stands for the last of all."""
    stated = fields.value("moe_layer_end_index")
    if isinstance(stated, int) and stated < 0:
        return count - 1
    last = fields.number("moe_layer_end_index")
    return count - 1 if last is None else min(last, count - 1)


def _shared_width(fields: Fields, width: int) -> int:
    """Return the width of all shared experts of a layer together."""
    several = fields.number("n_shared_experts") or 0
    each = fields.number("moe_shared_expert_intermediate_size")  # Nemotron-H
    if each is not None:
        return each * several
    shared = fields.number("shared_expert_intermediate_size")
    if shared is None and "llama4" in fields.architecture.lower():
        return width  # each of its expert layers has one shared expert, which the config does not name
    return several * width if shared is None else shared


def parts_beside(fields: Fields, layers: Sequence[Layers], experts: Experts | None) -> int:
    """Return parameters beside attention, mixers, plain parts and experts.

    Projections into the narrower model of latent experts; a feed-forward part of the model's own width beside experts
    (Arctic); what layers with a window have of queries beyond the others;
    and the blocks that several layers share: attention of twice the model's width, a gated feed-forward part, and for
    each layer a projection and adapters.
    """
    latent = 0 if experts is None else 2 * experts.layers * fields.hidden * experts.latent
    if experts is not None and fields.flag("parallel_attn_mlp_res"):
        latent += 3 * experts.layers * fields.hidden**2
    return latent + _windowed_queries(fields, layers) + _shared_blocks(fields, layers)


def _windowed_queries(fields: Fields, layers: Sequence[Layers]) -> int:
    queries = windowed_heads(fields).queries
    if not queries:
        return 0
    more = queries - fields.q_heads
    windowed = (group for group in layers if group.kind == "sliding")
    return sum(group.count * fields.hidden * more * (group.head_dim + group.value_dim) for group in windowed)


def _shared_blocks(fields: Fields, layers: Sequence[Layers]) -> int:
    hidden, borrowers = fields.hidden, sum(group.count for group in layers if group.borrowed)
    if not borrowers:
        return 0
    inner, rank = fields.number("intermediate_size") or 4 * hidden, fields.number("adapter_rank") or _ADAPTED
    blocks = fields.number("num_mem_blocks") or 1
    found = blocks * (14 * hidden * hidden + 3 * hidden * inner)  # 2 x (3 x 2) of queries, keys, values, and 2 x 1
    adapters = rank * (hidden + 2 * inner)
    if fields.flag("use_shared_attention_adapter"):
        adapters += 3 * rank * 4 * hidden
    return found + borrowers * (hidden * hidden + adapters)
