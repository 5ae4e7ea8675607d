"""The KV pool as vLLM lays it out: pages, groups of layers, blocks, and what one request of full length takes.

Source: vLLM's ``v1/kv_cache_interface.py``, ``v1/core/kv_cache_utils.py`` and ``config/vllm.py``
(``max_in_flight_tokens``), versions 0.9 to 0.33.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuwatch.ledger.quantisation import DTYPE_BYTES

if TYPE_CHECKING:
    from gpuwatch.ledger.model import Layers, Model

CONCURRENCY_PRINTED_SINCE = (0, 20, 1)
"""vLLM prints as tokens what it can serve at once. 0.20.0 divides blocks by groups; 0.20.2, and builds that lead to
0.20.1, do not."""


@dataclass(frozen=True, slots=True)
class KvSettings:
    """What of the launch decides about the pool. `dtype` is ``auto`` or a KV type; `version` is vLLM's, () if unknown.

    `batched_tokens` is the token budget of a step and `in_flight` the number of steps that may be under way.
    `state_dtype` is the type of recurrent states (``--mamba-ssm-cache-dtype``). `dcp` are ranks of the tensor-parallel
    group that share a context, `pcp` further ranks that do.
    """

    block_size: int = 16
    dtype: str = "auto"
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    pcp: int = 1
    max_model_len: int = 4096
    batched_tokens: int = 8192
    in_flight: int = 1
    prefix_caching: bool = True
    hybrid_manager: bool = True
    speculative_tokens: int = 0
    state_dtype: str = "auto"
    version: tuple[int, ...] = ()

    @property
    def shards(self) -> int:
        """Ranks that each keep their part of a context's tokens."""
        return self.dcp * self.pcp


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table. `block_size` is in tokens; `page` the bytes of one layer's block.

    `held` is the number of states that a request of linear layers has at most.
    """

    kind: str
    layers: int
    block_size: int
    page: int
    window: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """The pool of one rank: a block has `block_bytes`; `request_blocks` is what one full-length request takes."""

    groups: tuple[Group, ...]
    block_bytes: int
    request_blocks: int
    padding_layers: int = 0
    settings: KvSettings = field(default_factory=KvSettings)

    def blocks(self, pool: float) -> int:
        """Return how many blocks a pool of `pool` bytes has."""
        return int(pool // self.block_bytes) if self.block_bytes else 0

    def concurrency(self, blocks: int) -> float:
        """Return how many requests of full length fit."""
        return blocks / self.request_blocks if self.request_blocks else 0.0

    def tokens(self, blocks: int) -> int:
        """Return the tokens that the engine prints for `blocks` blocks.

        One group: blocks times block size. Several groups: up to 0.20.0 the blocks are divided by the number of groups,
        from 0.20.1 on it is the concurrency times the longest request, as it is here for linear layers alone.
        """
        settings = self.settings
        first = self.groups[0]
        if len(self.groups) == 1 and first.kind != "linear" and not first.window:
            newer = settings.version >= CONCURRENCY_PRINTED_SINCE
            if newer and settings.max_model_len % (first.block_size * settings.shards):
                return int(self.concurrency(blocks) * settings.max_model_len)
            return blocks * first.block_size * settings.shards
        if settings.version and settings.version < CONCURRENCY_PRINTED_SINCE:
            sizes = [group.block_size for group in self.groups if group.kind != "linear"]
            if sizes:
                return blocks // len(self.groups) * min(sizes)
        return int(self.concurrency(blocks) * settings.max_model_len)

    def bytes_per_request(self, tokens: int) -> int:
        """Return the bytes that one request of `tokens` tokens takes."""
        settings = replace(self.settings, max_model_len=tokens)
        return sum(request_blocks(group, settings) for group in self.groups) * self.block_bytes


_FOUR_BITS = ("nvfp4", "fp4", "mxfp4", "int4", "ultraquant_4bit")
_BLOCK_SCALES = {
    "nvfp4": 0.5,
    "fp4": 0.5,
    "fp4_e2m1": 0.5,
    "nvfp4_4over6": 0.5,
    "fp4_mx_block16": 0.5,
    "mxfp4": 0.25,
    "mxfp8": 0.25,
}
"""Bits for each element of floats in blocks: a scale of 8 bits for 16 elements, of MXFP4 and MXFP8 for 32."""
_CHANNEL_SCALES = {"int4": 0.25, "int8": 0.125}
"""Bits for each element of types that no engine takes by this name: a scale of 16 bits for 64 or 128 elements."""


def scale_share(dtype: str) -> float:
    """Return what scales add to a KV cache of this type, as a share of its elements' bytes."""
    bits = _BLOCK_SCALES.get(dtype, _CHANNEL_SCALES.get(dtype, 0.0))
    return bits / (8 * element_bytes(dtype, "bfloat16"))


def element_bytes(dtype: str, model_dtype: str) -> float:
    """Return the bytes of one KV element without its scales."""
    if dtype in ("auto", ""):
        return DTYPE_BYTES.get(model_dtype, 2.0)
    if dtype.startswith(_FOUR_BITS):
        return 0.5
    return DTYPE_BYTES.get(
        dtype.split("_per_", maxsplit=1)[0], 1.0 if dtype.startswith(("fp8", "int8", "mxfp8")) else 2.0
    )


def bytes_per_token(model: Model, dtype: str, tp: int = 1, dcp: int = 1) -> float:
    """Return the KV bytes that one token takes on one rank in all layers, those with windows too, with its scales."""
    return sum(group.count * _token_bytes(group, model, dtype, tp, dcp) for group in model.attention) / dcp


def whole_bytes_per_token(model: Model, dtype: str) -> float:
    """Return the KV bytes of one token for the whole model without scales: 2 x layers x KV heads x head dim x bytes."""
    return bytes_per_token(model, dtype) / (1 + scale_share(dtype))


def _token_bytes(group: Layers, model: Model, dtype: str, tp: int, dcp: int = 1) -> float:
    """Return the bytes that one layer of one rank keeps for a token that is its own.

    Heads are copied where ranks are more; ranks that share a context keep the same heads, of different tokens.
    """
    if group.kind == "mla":
        special = {"fp8_ds_mla": 656.0, "nvfp4_ds_mla": 352.0}.get(dtype)
        entry = special
        if entry is None:
            entry = group.latent * element_bytes(dtype, model.dtype) * (1 + scale_share(dtype))
        return entry + group.index_bytes
    heads = max(1, math.ceil(group.kv_heads * dcp / tp))
    width = group.head_dim + group.value_dim
    if _BLOCK_SCALES.get(dtype) == 0.5:
        return heads * (width // 2 + width // 16)
    size = heads * width * element_bytes(dtype, model.dtype) * (1 + scale_share(dtype))
    return size + heads * 8 if dtype.endswith("_per_token_head") else size


def state_bytes(group: Layers, model: Model, tp: int, speculative: int = 0, dtype: str = "auto") -> int:
    """Return the bytes of one linear layer's state for one request on one rank.

    The convolution's state has the type of the model. `dtype` is that of the recurrent state: a name, or ``auto`` for
    what the model fixes, else its own type.
    """
    total = 0.0
    for number, state in enumerate(group.states):
        elements = state.elements // tp if state.split else state.elements
        if number == 0 and speculative:  # the convolution looks back over the drafted tokens as well
            elements += elements // 3 * speculative
        each = state.bytes_each or DTYPE_BYTES.get(model.dtype, 2.0)
        recurrent = number > 0 or group.mixer == "lightning"
        total += elements * (DTYPE_BYTES.get(dtype, each) if recurrent else each)
    return math.ceil(total)


def layout(model: Model, settings: KvSettings) -> Layout:
    """Lay out the pool of one rank.

    Raises:
        ValueError: the model has no layer that keeps anything.
    """
    specs = _specs(model, settings)
    if not specs:
        raise ValueError(f"{model.name or model.architecture}: no layer keeps a KV cache or a state")
    specs = _unified(specs)
    groups, padding = _groups(specs)
    largest = max(group.layers for group in groups)
    block = max(group.page for group in groups) * largest
    return Layout(tuple(groups), block, sum(request_blocks(group, settings) for group in groups), padding, settings)


def _specs(model: Model, settings: KvSettings) -> list[Group]:
    """Return the layers of one pipeline stage by kind, with the page of one layer."""
    found = []
    stage = 1 / settings.pp
    size = settings.block_size
    linear = [group for group in model.layers if group.kind == "linear" and group.states]
    state = max(
        (state_bytes(group, model, settings.tp, settings.speculative_tokens, settings.state_dtype) for group in linear),
        default=0,
    )
    if linear and model.attention:
        each = max(_token_bytes(group, model, settings.dtype, settings.tp, settings.dcp) for group in model.attention)
        size = _aligned(size, state, each)
    for group in model.attention:
        each = _token_bytes(group, model, settings.dtype, settings.tp, settings.dcp)
        windowed = group.kind in ("sliding", "chunked") and settings.hybrid_manager
        kind = group.kind if windowed else "full"
        count = math.ceil(group.count * stage)
        found.append(Group(kind, count, size, math.ceil(size * each), group.window if windowed else 0))
    if linear:
        page = max([state, *(group.page for group in found)])
        layers = math.ceil(sum(group.count for group in linear) * stage)
        found.append(Group("linear", layers, size, page, held=_states_held(linear[0], settings)))
    if not settings.hybrid_manager and not linear:
        found = _merged(found)
    return found


def _aligned(size: int, state: int, each: float) -> int:
    """Return the block size, raised until an attention page is at least as large as a state page."""
    if not each:
        return size
    step = max(16, size)  # the smallest block of the kernels, or the one that was asked for
    return max(1, math.ceil(state / each / step)) * step


def _states_held(group: Layers, settings: KvSettings) -> int:
    """Return the most states that a request has: its own, with prefix caching one before, and those of drafts.

    Mamba-2 keeps one more at a checkpoint within a prefill, from vLLM 0.32 on (``mamba_mixer2.py``).
    """
    if not settings.prefix_caching:
        return 1 + settings.speculative_tokens
    newer = not settings.version or settings.version >= (0, 32)
    return 2 + settings.speculative_tokens + (1 if newer and group.mixer == "mamba2" else 0)


def _merged(specs: list[Group]) -> list[Group]:
    """Return layers of equal page as one kind: without the hybrid manager every layer keeps everything."""
    merged: dict[int, Group] = {}
    for spec in specs:
        known = merged.get(spec.page)
        merged[spec.page] = spec if known is None else replace(known, layers=known.layers + spec.layers)
    return list(merged.values())


def _unified(specs: list[Group]) -> list[Group]:
    """Give every kind the same page: smaller ones take more tokens, or are padded where that is not even."""
    page = max(spec.page for spec in specs)
    unified = []
    for spec in specs:
        if spec.page == page:
            unified.append(spec)
        elif spec.kind != "linear" and page % spec.page == 0:
            unified.append(replace(spec, page=page, block_size=spec.block_size * (page // spec.page)))
        else:
            unified.append(replace(spec, page=page))
    return unified


def _groups(specs: list[Group]) -> tuple[list[Group], int]:
    """Cut the kinds into groups of equal numbers of layers, as vLLM does; return them and the padded layers."""
    if len(specs) == 1:
        return specs, 0
    smallest, largest = min(spec.layers for spec in specs), max(spec.layers for spec in specs)
    size = largest if largest < 1.5 * smallest else smallest
    groups, padding = [], 0
    for spec in specs:
        parts = math.ceil(spec.layers / size)
        padding += parts * size - spec.layers
        groups += [replace(spec, layers=size)] * parts
    return groups, padding


def request_blocks(group: Group, settings: KvSettings) -> int:
    """Return the most blocks of a group that one request of full length holds."""
    length = settings.max_model_len
    under_way = settings.in_flight * settings.batched_tokens
    if group.kind == "sliding":
        held = min(group.window - 1 + under_way, length)
        return math.ceil(held / group.block_size) + 1
    if group.kind == "chunked":
        return math.ceil(min(group.window + under_way, length) / group.block_size)
    if group.kind == "linear":
        return group.held
    return math.ceil(math.ceil(length / settings.shards) / group.block_size)
