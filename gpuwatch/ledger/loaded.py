"""What an engine prints as the memory of its weights: their bytes as PyTorch's allocator holds them on a card."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gpuwatch.ledger.allocator import held
from gpuwatch.ledger.packed import bytes_of
from gpuwatch.ledger.quantisation import DTYPE_BYTES, stored_bits
from gpuwatch.ledger.weights import (
    embedding_ranks,
    expert_padding,
    expert_share,
    rotation_bytes,
    stage_share,
    weight_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.ledger.model import Layers, Model
    from gpuwatch.ledger.weights import Loading, Split

VOCABULARY_UNIT = 64
"""vLLM and SGLang pad the vocabulary to a multiple of it."""
MOST_TENSORS = 100_000
RESERVED_COUNTS_SINCE = (0, 27)
"""vLLM takes from the budget what the card lost while loading, as SGLang does; before that what was allocated."""
WHOLE_DEVICE = (((0, 0), (0, 6, 5)), ((0, 8), (0, 9, 1)))
"""Versions of vLLM (from, up to) that charged all that the device had in use and no tensor had: the rest of segments,
and the CUDA context."""


def printed_bytes(model: Model, split: Split, loading: Loading) -> float:
    """Return what the engine prints after loading: vLLM what is allocated, SGLang what the card lost."""
    return weight_bytes(model, split, loading) + slack_bytes(model, split, loading, reserved=loading.engine == "sglang")


def taken_bytes(model: Model, split: Split, loading: Loading) -> float:
    """Return what the weights take from the engine's budget."""
    return weight_bytes(model, split, loading) + taken_slack(model, split, loading)


def charges_device(version: tuple[int, ...]) -> bool:
    """Return whether a version of vLLM charges the whole use of the device."""
    return bool(version) and any(first <= version < last for first, last in WHOLE_DEVICE)


def taken_slack(model: Model, split: Split, loading: Loading) -> float:
    """Return what the allocator adds to the weights in the engine's budget."""
    version = loading.version
    late = not version or version >= RESERVED_COUNTS_SINCE
    reserved = loading.engine == "sglang" or late or charges_device(version)
    return slack_bytes(model, split, loading, reserved=reserved)


@lru_cache(maxsize=512)
def slack_bytes(model: Model, split: Split, loading: Loading, *, reserved: bool) -> float:
    """Return what the allocator adds to the tensors: large ones in whole segments, remainders that no other fits.

    Nothing where a config names more layers than any model has.
    """
    if model.layer_count + sum(times for _, times in model.tower_tensors) > MOST_TENSORS:
        return 0.0
    found = held(rank_tensors(model, split, loading))
    return float((found.reserved if reserved else found.allocated) - found.asked)


def rank_tensors(model: Model, split: Split, loading: Loading) -> Iterator[float]:
    """Yield the bytes of the larger tensors of a rank in the order in which a model makes them."""
    plain = DTYPE_BYTES.get(model.dtype, 2.0)
    rows = -(-model.vocab // VOCABULARY_UNIT) * VOCABULARY_UNIT
    if loading.towers:
        for elements, times in model.tower_tensors:
            yield from [elements * plain / split.tp] * times
        if loading.engine == "vllm":
            yield from [2.0 * loading.chunk * model.hidden] * model.stacked
    yield rows * model.hidden * plain / embedding_ranks(split, loading)
    if model.embedding_per_layer:
        yield model.embedding_per_layer * plain / split.tp
    yield from rotation_bytes(model, loading)
    yield from _layers(model, split, loading)
    if not model.tied and split.pp == 1:
        yield rows * model.hidden * plain / split.tp


def _layers(model: Model, split: Split, loading: Loading) -> Iterator[float]:
    share = stage_share(model, split)
    groups = [group for group in model.layers for _ in range(round(group.count * share))]
    groups += list(model.attention[-1:]) * round(model.shared_kv_layers * share)
    total = len(groups)
    dense = min(total, round(model.dense_layers * share))
    sparse = round(model.experts.layers * share) if model.experts is not None else 0
    for at, group in enumerate(groups):
        yield from _attention(model, group, split)
        if at < dense:
            yield from _dense(model, split)
        if at >= total - sparse:
            yield from _experts(model, split, loading)


def _attention(model: Model, group: Layers, split: Split) -> Iterator[float]:
    """Yield the fused projection of queries, keys and values, and that of the output."""
    packed, tp = bytes_of(model), split.attention_tp
    each = packed.mixers if group.kind == "linear" else packed.attention
    parts: tuple[float, ...]
    if group.borrowed:
        parts = ()
    elif group.kind == "linear":
        parts = tuple(part / tp for part in model.mixer_parts)
    elif group.latent:
        heads = model.q_heads / tp
        parts = (
            model.hidden * (model.q_rank + group.latent),
            (model.q_rank or model.hidden) * heads * (model.mla_nope + model.mla_rope),
            (group.latent - model.mla_rope) * heads * (model.mla_nope + model.mla_value),
            model.hidden * heads * model.mla_value,
        )
    else:
        queries = model.q_heads * group.head_dim * (2 if model.output_gate else 1) / tp
        keys = max(1.0, group.kv_heads / tp) * (group.head_dim + group.value_dim)
        parts = (model.hidden * (queries + keys), model.hidden * model.q_heads * group.value_dim / tp)
    for elements in parts:
        yield from _stored(model, elements, each)


def _dense(model: Model, split: Split) -> Iterator[float]:
    width = model.dense_widths / max(1, model.dense_layers) if model.dense_widths else model.intermediate
    yield from _feed_forward(model, width / split.tp, bytes_of(model).dense)


def _experts(model: Model, split: Split, loading: Loading) -> Iterator[float]:
    if model.experts is None:
        return
    packed = bytes_of(model)
    share = expert_share(model, split) * model.experts.count * expert_padding(model, split, loading)
    narrow = model.experts.latent / model.hidden if model.experts.latent else 1.0  # what the experts see
    yield from _feed_forward(model, share * model.experts.width * narrow, packed.experts)
    yield from _feed_forward(model, model.experts.shared_width / split.tp, packed.shared)


def _feed_forward(model: Model, width: float, each: float) -> Iterator[float]:
    """Yield the fused gate and up projection, and the down projection."""
    yield from _stored(model, model.hidden * (2 if model.gated else 1) * width, each)
    yield from _stored(model, model.hidden * width, each)


def _stored(model: Model, elements: float, each: float) -> Iterator[float]:
    """Yield a matrix of `each` bytes an element; scales and zero points of a packed one are a tensor of their own."""
    quantised = model.quantisation is not None and each == stored_bits(model.quantisation) / 8
    bare = model.quantisation.bits / 8 if model.quantisation is not None and quantised else each
    yield from filter(None, (elements * bare, elements * (each - bare)))
