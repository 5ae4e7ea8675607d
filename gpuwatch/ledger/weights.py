"""Parameters and bytes of a model's weights, whole and for one rank.

The formula is the sum of the matrices: attention projections, feed-forward parts, experts, embeddings, and the norms.
What an engine prints as weights has the tables and buffers, too, that come with a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.ledger.packed import bytes_of
from gpuwatch.ledger.quantisation import DTYPE_BYTES

if TYPE_CHECKING:
    from gpuwatch.ledger.model import Layers, Model

MXFP4_INNER, MXFP4_HIDDEN = 128, 256
POSITIONS_FOLLOW_TOKENS_SINCE = (0, 32)
"""vLLM knows models whose positions never exceed the tokens, and makes their tables no longer than the context."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by part, of the whole model; `mixers` are those of linear layers, `shared` the shared experts."""

    attention: int
    mixers: int
    feed_forward: int
    shared: int
    router: int
    experts: int
    embedding: int
    head: int
    tower: int
    norms: int

    @property
    def total(self) -> int:
        """All parameters."""
        layers = self.attention + self.mixers + self.feed_forward + self.shared + self.router + self.experts
        return layers + self.embedding + self.head + self.tower + self.norms


def parameters(model: Model) -> Parameters:
    """Count the parameters of a model."""
    layers = model.layer_count
    linear = [group for group in model.layers if group.kind == "linear"]
    attention = sum(group.count * attention_of(model, group) for group in model.layers if group.kind != "linear")
    attention += model.shared_attention
    matrices = 3 if model.gated else 2
    dense = matrices * model.hidden * (model.dense_widths or model.dense_layers * model.intermediate) + model.other
    experts = shared = router = 0
    if model.experts is not None:
        one = matrices * (model.experts.latent or model.hidden) * model.experts.width
        shared = model.experts.layers * matrices * model.hidden * model.experts.shared_width
        router = model.experts.layers * model.hidden * model.experts.count
        experts = model.experts.layers * model.experts.count * one
    embedding = model.vocab * model.hidden
    return Parameters(
        attention=attention,
        mixers=sum(group.count * model.mixer for group in linear),
        feed_forward=dense,
        shared=shared,
        router=router,
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
    if group.borrowed:
        return 0
    if group.latent:
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
    width, out = model.q_heads * group.head_dim, model.q_heads * group.value_dim
    keys = group.kv_heads * (group.head_dim + group.value_dim)
    queries = width * (2 if model.output_gate else 1)
    bias = queries + keys if model.attention_bias else 0
    return model.hidden * (queries + out + keys) + bias


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


@dataclass(frozen=True, slots=True)
class Loading:
    """What decides about the buffers that come with the weights, and which parts are loaded at all.

    `chunk` is the token budget of a step. Without `towers` a model of text and images is served for text alone.
    `adapters` are the places for LoRA adapters on the card, of at most `rank` each.
    """

    engine: str = "vllm"
    version: tuple[int, ...] = ()
    chunk: int = 0
    towers: bool = True
    adapters: int = 0
    rank: int = 0


PLAIN = Loading()
"""vLLM, without buffers of a step or adapters."""


def weight_bytes(model: Model, split: Split, loading: Loading = PLAIN) -> float:
    """Return the bytes of the weights on the fullest rank.

    Tensor parallelism divides the matrices; norms, the router and, where KV heads are fewer than ranks, the K and V
    projections are copied. Pipeline stages take ``ceil(layers / pp)`` layers; the first also holds the embedding, the
    last the head. SGLang's DP attention copies the embedding to each rank (``models/qwen3_moe.py``).
    """
    count = parameters(model)
    stage = stage_share(model, split)
    plain = DTYPE_BYTES.get(model.dtype, 2.0)
    packed = bytes_of(model)
    copied = _copied_kv(model, split.attention_tp)
    attention = (count.attention / split.attention_tp + copied) * packed.attention + absorbed_bytes(model, split)
    attention += count.mixers / split.attention_tp * packed.mixers
    forward = (count.feed_forward * packed.dense + count.shared * packed.shared) / split.tp + count.router * plain
    forward += channel_bytes(model, split)
    experts = count.experts * expert_share(model, split) * packed.experts * expert_padding(model, split, loading)
    embedding = count.embedding / embedding_ranks(split, loading)
    head = count.head / split.tp
    ends = max(embedding, head) if split.pp > 1 else embedding + head
    beside = (count.tower / split.tp * plain if loading.towers else 0.0) + buffer_bytes(model, loading)
    beside += adapter_bytes(model, split, loading)
    return (attention + forward + experts) * stage + ends * plain + beside + count.norms * stage * plain


def expert_padding(model: Model, split: Split, loading: Loading) -> float:
    """Return by what vLLM's experts in MXFP4 are larger than they are stored: kernels want rounded sizes.

    Those of Marlin and TensorRT-LLM (all but Hopper's Triton kernel): 128 of the inner width, 256 of the model's.
    Source: ``mxfp4_round_up_hidden_size_and_intermediate_size`` in ``fused_moe/oracle/mxfp4.py``.
    """
    quantisation = model.quantisation
    if model.experts is None or quantisation is None or quantisation.method != "mxfp4" or loading.engine != "vllm":
        return 1.0
    width = model.experts.width / (1 if split.whole_experts else split.tp)
    hidden = model.experts.latent or model.hidden
    return -(-width // MXFP4_INNER) * MXFP4_INNER / width * -(-hidden // MXFP4_HIDDEN) * MXFP4_HIDDEN / hidden


def padding_bytes(model: Model, split: Split, loading: Loading) -> float:
    """Return by how many bytes the experts of the fullest rank are larger than they are stored."""
    stored = parameters(model).experts * expert_share(model, split) * bytes_of(model).experts
    return stored * (expert_padding(model, split, loading) - 1) * stage_share(model, split)


def triton_saving(model: Model, split: Split, loading: Loading) -> float:
    """Return by how many bytes experts in MXFP4 are smaller with Hopper's Triton kernel than `expert_padding` says.

    It needs no padding, and the scales are held twice: those of the checkpoint stay beside the kernel's
    (``_swizzle_mxfp4`` and what follows in vLLM's ``layers/quantization/mxfp4.py``).
    """
    padded = padding_bytes(model, split, loading)
    if not padded or model.quantisation is None:
        return 0.0
    scales = parameters(model).experts * expert_share(model, split) * stage_share(model, split)
    return max(0.0, padded - scales * (bytes_of(model).experts - model.quantisation.bits / 8))


def absorbed_bytes(model: Model, split: Split) -> float:
    """Return the bytes of MLA's up-projections in 16 bits, which engines make beside quantised ones.

    Source: ``split_kv_b_proj`` in vLLM's ``attention/mla_attention.py``; ``w_kc`` and ``w_vc`` in SGLang.
    """
    if model.quantisation is None or bytes_of(model).attention >= DTYPE_BYTES.get(model.dtype, 2.0):
        return 0.0
    heads = model.q_heads / split.attention_tp * (model.mla_nope + model.mla_value)
    kept = (group for group in model.layers if group.kind == "mla")
    return sum(2.0 * group.count * (group.latent - model.mla_rope) * heads for group in kept)


def channel_bytes(model: Model, split: Split) -> float:
    """Return the bytes of the scales, and offsets, that the outputs of each matrix have on the fullest rank.

    The outputs of matrices whose inputs tensor parallelism divides are not divided.
    """
    stored = model.quantisation
    if stored is None or not stored.channel_bits or stored.group:
        return 0.0
    up, total = (2 if model.gated else 1), 0.0
    for group in model.attention:
        queries = model.q_heads * group.head_dim + group.kv_heads * (group.head_dim + group.value_dim)
        total += group.count * (queries / split.attention_tp + model.hidden)
    inner = (model.dense_widths or model.dense_layers * model.intermediate) / split.tp
    total += up * inner + model.dense_layers * model.hidden
    if model.experts is not None:
        mixture, ranks = model.experts, max(split.tp, split.expert_parallel)
        cut, each = (1, expert_share(model, split)) if split.whole_experts else (ranks, 1.0)
        outputs = up * mixture.width / cut + (mixture.latent or model.hidden)
        total += mixture.layers * mixture.count * each * outputs
    return total * stored.channel_bits / 8


def stage_share(model: Model, split: Split) -> float:
    """Return the share of the layers that the fullest pipeline stage has."""
    return 1.0 if split.pp == 1 else -(-model.layer_count // split.pp) / max(1, model.layer_count)


def embedding_ranks(split: Split, loading: Loading) -> int:
    """Return among how many ranks the embedding is divided."""
    return 1 if loading.engine == "sglang" and split.attention_tp < split.tp else split.tp


def buffer_bytes(model: Model, loading: Loading) -> float:
    """Return the bytes of what each rank keeps beside its weights and prints among them.

    Tables of rotations: 16 bits in vLLM, 32 in SGLang. Towers whose output is added to several layers: a buffer for
    each, with a row for every token of a step (vLLM's ``qwen3_vl.py``).
    """
    steps = 2.0 * loading.chunk * model.hidden * model.stacked if loading.engine == "vllm" and loading.towers else 0.0
    return sum(rotation_bytes(model, loading)) + steps


def rotation_bytes(model: Model, loading: Loading = PLAIN) -> tuple[float, ...]:
    """Return the bytes of each table of rotations that a rank holds."""
    if loading.engine == "sglang":
        return tuple(4.0 * table.rows * table.width for table in model.rotations)
    early = bool(loading.version) and loading.version < POSITIONS_FOLLOW_TOKENS_SINCE
    return tuple(2.0 * table.rows * table.width * (table.early if early else table.late) for table in model.rotations)


def adapter_bytes(model: Model, split: Split, loading: Loading) -> float:
    """Return the bytes of the places for LoRA adapters on one rank.

    Each place has two matrices for every projection: rank x its inputs, and its outputs x rank, on the side that
    tensor parallelism divides a part of them (vLLM's ``lora/layers``). Places of experts are not counted.
    """
    if not loading.adapters:
        return 0.0
    tp, hidden = split.tp, model.hidden
    total = 0.0
    for group in model.attention:
        if group.latent:
            continue
        queries = model.q_heads * group.head_dim / split.attention_tp
        keys = max(1.0, group.kv_heads / split.attention_tp) * (group.head_dim + group.value_dim)
        out = model.q_heads * group.value_dim / split.attention_tp
        total += group.count * (3 * hidden + queries + keys + out + hidden)
    up = 2 if model.gated else 1
    inner = (model.dense_widths or model.dense_layers * model.intermediate) / tp
    total += up * (model.dense_layers * hidden + inner) + inner + model.dense_layers * hidden
    plain = DTYPE_BYTES.get(model.dtype, 2.0)
    return plain * loading.adapters * loading.rank * total * stage_share(model, split)


def expert_share(model: Model, split: Split) -> float:
    """Return the share of the experts that the fullest rank has."""
    ranks = max(split.tp, split.expert_parallel)
    if not split.whole_experts or model.experts is None:
        return 1 / ranks
    return -(-model.experts.count // ranks) / model.experts.count


def _copied_kv(model: Model, tp: int) -> float:
    """Return the attention parameters that a rank holds beyond its share.

    A KV head cannot be divided, and the projections into MLA's latent entry are whole on each rank.
    """
    extra = 0.0
    for group in model.attention:
        if group.latent:
            extra += group.count * model.hidden * (model.q_rank + group.latent) * (1 - 1 / tp)
            continue
        if tp <= group.kv_heads or not group.kv_heads or group.borrowed:
            continue
        one = model.hidden * (group.head_dim + group.value_dim)
        extra += group.count * (one - group.kv_heads * one / tp)
    return extra
