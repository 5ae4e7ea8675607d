"""Bytes of a weight by where it is in a model: packed as the checkpoint says, or as the model's own type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from gpuwatch.ledger.kept import MOST_LAYERS, share
from gpuwatch.ledger.quantisation import DTYPE_BYTES, stored_bits

if TYPE_CHECKING:
    from gpuwatch.ledger.model import Model, Quantisation


@dataclass(frozen=True, slots=True)
class Packed:
    """Bytes of a weight by where it is; `mixers` are those of linear layers, `shared` the shared experts."""

    attention: float
    mixers: float
    dense: float
    shared: float
    experts: float


FEED_FORWARD = {
    "gate_proj": ("gate_proj", "gate_up_proj", "w1"),
    "up_proj": ("up_proj", "gate_up_proj", "w3"),
    "down_proj": ("down_proj", "w2"),
}
"""The matrices of a feed-forward part, and the names that they have in models of several kinds."""


@lru_cache(maxsize=64)
def bytes_of(model: Model) -> Packed:
    """Return how many bytes a weight takes, its share of scales included; a mean where some stay as they are."""
    plain = DTYPE_BYTES.get(model.dtype, 2.0)
    stored = model.quantisation
    if stored is None:
        return Packed(plain, plain, plain, plain, plain)
    if stored.targets and not _names_any(stored, model):  # names that are not understood: all modules are meant
        stored = replace(stored, targets=())
    experts = _mean(stored, plain, model.experts.layers if model.experts else 1, _EXPERTS)
    if stored.experts_only:
        return Packed(plain, plain, plain, plain, experts)
    return Packed(
        attention=_mean(stored, plain, sum(group.count for group in model.attention), _attention(model)),
        mixers=_mean(stored, plain, sum(g.count for g in model.layers if g.kind == "linear"), _mixers(model)),
        dense=_mean(stored, plain, model.dense_layers, _DENSE),
        shared=_mean(stored, plain, model.experts.layers if model.experts else 1, _SHARED),
        experts=experts,
    )


def feed_forward_kept(model: Model) -> tuple[bool, bool]:
    """Return whether a quantised checkpoint has all plain feed-forward parts, and all experts, as they were."""
    stored = model.quantisation
    if stored is None:
        return True, True
    plain = all(share(stored.kept, names, model.dense_layers) == 1 for _, names in _DENSE)
    layers = model.experts.layers if model.experts is not None else 1
    return plain, all(share(stored.kept, names, layers) == 1 for _, names in _EXPERTS)


def _within(*parts: str) -> list[tuple[float, tuple[str, ...]]]:
    """Return the matrices of a feed-forward part, of equal size, with the names that they have within `parts`."""
    return [
        (1.0, tuple(f"{part}.{name}".lstrip(".") for part in parts for name in names))
        for names in FEED_FORWARD.values()
    ]


_DENSE = _within("mlp", "feed_forward", "")
_EXPERTS = _within(
    *("mlp.experts.0", "experts.0", "moe.experts.0", "block_sparse_moe.experts.0", "feed_forward.experts.0")
)
_SHARED = _within("mlp.shared_expert", "mlp.shared_experts")


def _names_any(stored: Quantisation, model: Model) -> bool:
    """Return whether the targets of a checkpoint's ways to store weights name a module of the model."""
    modules = [*_attention(model), *_mixers(model), *_DENSE, *_EXPERTS, *_SHARED]
    ways = (stored, *stored.others)
    return any(share(way.targets, names, MOST_LAYERS) for way in ways for _, names in modules)


def _attention(model: Model) -> list[tuple[float, tuple[str, ...]]]:
    """Return the size of each projection of attention, beside its names."""
    group = next(iter(model.attention), None)
    if group is None:
        return [(1.0, ("self_attn.q_proj",))]
    if group.latent:
        heads = model.q_heads
        return [
            (model.hidden * (model.q_rank or 1), ("self_attn.q_a_proj", "self_attn.q_proj")),
            ((model.q_rank or model.hidden) * heads * (model.mla_nope + model.mla_rope), ("self_attn.q_b_proj",)),
            (model.hidden * group.latent, ("self_attn.kv_a_proj_with_mqa",)),
            (group.latent * heads * (model.mla_nope + model.mla_value), ("self_attn.kv_b_proj",)),
            (model.hidden * heads * model.mla_value, ("self_attn.o_proj",)),
        ]
    queries = model.q_heads * group.head_dim * (2 if model.output_gate else 1)
    sizes = (
        queries,
        group.kv_heads * group.head_dim,
        group.kv_heads * group.value_dim,
        model.q_heads * group.value_dim,
    )
    fused = ("qkv_proj", "qkv_proj", "qkv_proj", "o_proj")
    matrices = zip(sizes, ("q_proj", "k_proj", "v_proj", "o_proj"), fused, strict=True)
    return [
        (size, tuple(f"{part}.{name}" for part in ("self_attn", "attn") for name in names)) for size, *names in matrices
    ]


def _mixers(model: Model) -> list[tuple[float, tuple[str, ...]]]:
    """Return the sizes of the matrices into and out of a linear mixer, beside their names; the others are never packed.

    An empty name stands for those.
    """
    if not model.mixer_parts:
        return [(1.0, ("linear_attn.in_proj",))]
    into = ("in_proj_qkvz", "in_proj_qkv", "in_proj", "qkv_proj")
    places = ("linear_attn", "mamba", "mixer", "self_attn", "conv")
    first, *between, last = model.mixer_parts if len(model.mixer_parts) > 1 else (*model.mixer_parts, 0)
    return [
        (first, tuple(f"{place}.{name}" for place in places for name in into)),
        (sum(between), ()),
        (last, tuple(f"{place}.{name}" for place in places for name in ("out_proj", "o_proj"))),
    ]


def _mean(stored: Quantisation, plain: float, layers: int, modules: list[tuple[float, tuple[str, ...]]]) -> float:
    """Return the mean bytes of a weight of modules, given as sizes and names; those without a name are not packed."""
    total = sum(size for size, _ in modules)
    found = 0.0
    for size, names in modules:
        found += size * (_bytes(stored, plain, layers, names) if names else plain)
    return found / total if total else plain


def _bytes(stored: Quantisation, plain: float, layers: int, names: tuple[str, ...]) -> float:
    """Return the mean bytes of a weight of one module in all layers, by the ways in which they are stored.

    Each way holds for the layers that its targets name, as far as none before it does; what none names stays as it is.
    """
    rest = 1.0 - share(stored.kept, names, layers)
    found = (1.0 - rest) * plain
    for way in (*stored.others, stored):
        part = min(rest, share(way.targets, names, layers)) if way.targets else rest
        found += part * stored_bits(way) / 8
        rest -= part
    return found + rest * plain
