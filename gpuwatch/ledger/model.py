"""A model as far as memory is concerned: its layers, what each keeps of the past, and its other parts.

Sizes are elements unless a name says otherwise. Everything is for the whole model, before it is split over GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from gpuwatch.ledger.rotations import Rotation

LayerKind: TypeAlias = Literal["full", "sliding", "chunked", "mla", "linear"]


@dataclass(frozen=True, slots=True)
class State:
    """One tensor of constant size that a linear-attention or Mamba layer keeps for each request.

    `elements` is for the whole layer; `split` says whether tensor parallelism divides it. `bytes_each` is None where
    the engine stores it in the model's own type.
    """

    elements: int
    split: bool = True
    bytes_each: float | None = None


@dataclass(frozen=True, slots=True)
class Layers:
    """`count` layers that are alike in what they keep of the past.

    `window` is the sliding window or the chunk of local attention, in tokens. `latent` is the width of MLA's one
    shared entry for each token (``kv_lora_rank + qk_rope_head_dim``); layers of another kind that have one project
    through it, and keep keys and values of each head (`ledger.latent`). `states` belong to linear layers; their `mixer`
    is gated_delta, kimi_delta, mamba2, mamba1, short_conv or lightning. `index_bytes` is what a sparse attention's
    indexer keeps for each token beside the latent entry, whatever the KV type. The matrices of `borrowed` layers belong
    to blocks that several of them use, and are counted elsewhere.
    """

    kind: LayerKind
    count: int
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    window: int = 0
    latent: int = 0
    states: tuple[State, ...] = ()
    mixer: str = ""
    index_bytes: int = 0
    borrowed: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: `layers` of the model have it. Widths are those of one expert's gate and up projection.

    `latent` is the width of what the experts see, where it is not the model's own.
    """

    layers: int
    count: int
    width: int
    chosen: int = 0
    shared_width: int = 0
    latent: int = 0


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How weights are stored: `method` as the config names it, bits of a weight, and what its scales add.

    `group` is the number of weights that share a scale, 0 for one scale per channel, which takes `channel_bits` for
    each output. `kept` are names of modules that stay in the model's own type (`ledger.kept`). A rank's part of a
    feed-forward width must be a multiple of `step`. `known` is False for a method that is not in the table. Modules
    that are in the `targets` of one of the `others` are stored as it says; no `targets` are all modules, and what is in
    none stays in the model's own type.
    """

    method: str
    bits: float
    group: int = 0
    scale_bits: float = 16.0
    zero_bits: float = 0.0
    kept: tuple[str, ...] = ()
    known: bool = True
    experts_only: bool = False
    step: int = 0
    channel_bits: float = 0.0
    targets: tuple[str, ...] = ()
    others: tuple[Quantisation, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """Everything of a model's config that memory depends on.

    `missing` names the fields that are needed and absent: figures that need them are not computed; `kv_missing` are
    those of them that the KV cache needs. `context` is the length it declares, before what an engine makes of it
    (`ledger.lengths`). `uncounted` names parts that the arithmetic does not cover. `dense_widths` is the sum of the
    widths of the feed-forward parts where they differ, `other` the parameters of its layers that no other field gives.
    `kv_type` is the KV type that the checkpoint asks for, `kv_type_source` the kind of checkpoint and the field that
    names it (``modelopt kv_cache_scheme``). `rope_factor` and `rope_original` are those of its scaling,
    `original_context` the length before scaling that the config states outside of it. With `output_gate` the queries
    are projected together with as wide a gate of the attention's output. `vision` are the layers and
    the width of a vision tower as its config names them, by ViT-L's where it does not. `stacked` levels of a tower's
    output are added to layers of the model, each from a buffer for a whole step.
    """

    name: str
    architecture: str
    hidden: int
    layers: tuple[Layers, ...]
    q_heads: int
    intermediate: int
    vocab: int
    tied: bool
    gated: bool = True
    dense_layers: int = 0
    experts: Experts | None = None
    dtype: str = "bfloat16"
    quantisation: Quantisation | None = None
    q_rank: int = 0
    mla_value: int = 0
    mla_nope: int = 0
    mla_rope: int = 0
    context: int | None = None
    rope_scaling: str = ""
    rope_factor: float = 1.0
    rope_original: int = 0
    original_context: int = 0
    tower_tensors: tuple[tuple[int, int], ...] = ()
    tower_width: int = 0
    tower_known: bool = True
    vision: tuple[int, int] | None = None
    mixer_parts: tuple[int, ...] = ()
    shared_kv_layers: int = 0
    shared_attention: int = 0
    embedding_per_layer: int = 0
    attention_bias: bool = False
    output_gate: bool = False
    dense_widths: int = 0
    rotations: tuple[Rotation, ...] = ()
    stacked: int = 0
    other: int = 0
    kv_type: str = ""
    kv_type_source: str = ""
    uncounted: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    kv_missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def tower(self) -> int:
        """Parameters of all towers."""
        return sum(elements * times for elements, times in self.tower_tensors)

    @property
    def mixer(self) -> int:
        """Parameters of the mixer of one linear layer."""
        return sum(self.mixer_parts)

    @property
    def sees_videos(self) -> bool:
        """Whether positions follow the time of a video."""
        return any(table.early > 1 for table in self.rotations)

    @property
    def layer_count(self) -> int:
        """All layers of the language model, those without attention included."""
        return sum(group.count for group in self.layers) + self.shared_kv_layers

    @property
    def complete(self) -> bool:
        """Whether nothing that a verdict needs is absent or left out."""
        return not self.missing and not self.uncounted

    @property
    def kv_known(self) -> bool:
        """Whether the layers and what each keeps of the past are known."""
        return not self.kv_missing

    @property
    def attention(self) -> tuple[Layers, ...]:
        """The layers that keep keys and values."""
        return tuple(group for group in self.layers if group.kind != "linear")

    @property
    def kv_heads(self) -> int:
        """The KV heads of the first layers with attention; 1 for MLA."""
        found = next((group for group in self.attention), None)
        return 0 if found is None else max(1, found.kv_heads)
