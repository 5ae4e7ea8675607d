"""Parameters and bytes of a model's weights, whole and for one rank.

The formula is the sum of the matrices: attention projections, feed-forward parts, experts, embeddings, and the norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.ledger.quantisation import DTYPE_BYTES, stored_bits

if TYPE_CHECKING:
    from gpuwatch.ledger.model import Layers, Model


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by part, of the whole model."""

    attention: int
    feed_forward: int
    experts: int
    embedding: int
    head: int
    tower: int
    norms: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.attention + self.feed_forward + self.experts + self.embedding + self.head + self.tower + self.norms


def parameters(model: Model) -> Parameters:
    """Count the parameters of a model."""
    layers = model.layer_count
    attention = sum(group.count * attention_of(model, group) for group in model.layers)
    if model.shared_kv_layers and model.attention:  # these layers project queries only
        shared = model.attention[-1]
        attention += model.shared_kv_layers * 2 * model.hidden * model.q_heads * shared.head_dim
    matrices = 3 if model.gated else 2
    dense = matrices * model.hidden * (model.dense_widths or model.dense_layers * model.intermediate) + model.other
    experts = 0
    if model.experts is not None:
        one = matrices * model.hidden * model.experts.width
        shared_width = matrices * model.hidden * model.experts.shared_width
        dense += model.experts.layers * (shared_width + model.hidden * model.experts.count)
        experts = model.experts.layers * model.experts.count * one
    embedding = model.vocab * model.hidden
    return Parameters(
        attention=attention,
        feed_forward=dense,
        experts=experts,
        embedding=embedding + model.embedding_per_layer,
        head=0 if model.tied else embedding,
        tower=model.tower,
        norms=(2 * layers + 1) * model.hidden,
    )


def attention_of(model: Model, group: Layers) -> int:
    """Count the parameters of one layer's attention or linear mixer."""
    if group.kind == "linear":
        return model.mixer
    if group.kind == "mla":
        rope, nope = model.mla_rope, model.mla_nope
        rank, heads = group.latent - rope, model.q_heads
        queries = heads * (nope + rope)
        query = model.hidden * model.q_rank + model.q_rank * queries if model.q_rank else model.hidden * queries
        return (
            query
            + model.hidden * group.latent
            + rank * heads * (nope + model.mla_value)
            + heads * model.mla_value * model.hidden
        )
    width = model.q_heads * group.head_dim
    keys = group.kv_heads * (group.head_dim + group.value_dim)
    bias = width + keys if model.attention_bias else 0
    return 2 * model.hidden * width + model.hidden * keys + bias


@dataclass(frozen=True, slots=True)
class Split:
    """How a model is spread: tensor and pipeline ranks; `attention_tp` for DP attention.

    `expert_parallel` are the ranks that divide the experts among them, where they are more than the tensor ranks.
    With `whole_experts` each has whole ones, so that the fullest rank has ``ceil(experts / ranks)``.
    """

    tp: int = 1
    pp: int = 1
    attention_tp: int = 1
    expert_parallel: int = 1
    whole_experts: bool = False


def weight_bytes(model: Model, split: Split) -> float:
    """Return the bytes of the weights on the fullest rank.

    Tensor parallelism divides the matrices; norms, the router and, where KV heads are fewer than ranks, the K and V
    projections are copied. Pipeline stages take ``ceil(layers / pp)`` layers; the first also holds the embedding, the
    last the head.
    """
    count = parameters(model)
    stage = 1.0 if split.pp == 1 else -(-model.layer_count // split.pp) / max(1, model.layer_count)
    plain = DTYPE_BYTES.get(model.dtype, 2.0)
    packed = plain if model.quantisation is None else stored_bits(model.quantisation) / 8
    experts_only = model.quantisation is not None and model.quantisation.experts_only
    dense = plain if experts_only else packed
    copied = _copied_kv(model, split.attention_tp)
    attention = (count.attention / split.attention_tp + copied) * _kept(model, "attn", dense, plain)
    forward = count.feed_forward / split.tp * dense
    experts = count.experts * _expert_share(model, split) * packed
    ends = max(count.embedding, count.head) if split.pp > 1 else count.embedding + count.head
    tower = count.tower / split.tp * plain + rope_table_bytes(model)
    return (attention + forward + experts) * stage + ends / split.tp * plain + tower + count.norms * stage * plain


def _expert_share(model: Model, split: Split) -> float:
    ranks = max(split.tp, split.expert_parallel)
    if not split.whole_experts or model.experts is None:
        return 1 / ranks
    return -(-model.experts.count // ranks) / model.experts.count


def rope_table_bytes(model: Model) -> float:
    """Return the bytes of the table of rotations that each rank holds: one row for each position, in 16 bits."""
    head = max((group.head_dim for group in model.attention), default=0) or model.mla_rope
    return 2.0 * (model.context or 0) * head


def _kept(model: Model, part: str, packed: float, plain: float) -> float:
    """Return the bytes of a weight in modules whose name contains `part`."""
    if model.quantisation is not None and any(part in name for name in model.quantisation.kept):
        return plain
    return packed


def _copied_kv(model: Model, tp: int) -> float:
    """Return the K and V parameters that a rank holds beyond its share, because a head cannot be divided."""
    extra = 0.0
    for group in model.attention:
        if group.kind == "mla" or tp <= group.kv_heads or not group.kv_heads:
            continue
        one = model.hidden * (group.head_dim + group.value_dim)
        extra += group.count * (one - group.kv_heads * one / tp)
    return extra
