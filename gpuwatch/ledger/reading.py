"""A ``config.json`` read into a `Model`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatch.ledger.blocks import blocks_of
from gpuwatch.ledger.families import (
    has_attention_bias,
    has_output_gate,
    has_two_parts,
    is_encoder,
    is_four_times,
    is_gated,
    is_halved,
    is_known,
    is_tied,
)
from gpuwatch.ledger.fields import Fields, ModelConfigError
from gpuwatch.ledger.forward import attends_twice, forward_parts, parts_beside
from gpuwatch.ledger.layers import FULL, grouped, is_state_space, layer_kinds, mamba1_width, mamba2_heads
from gpuwatch.ledger.model import Model
from gpuwatch.ledger.quantisation import DTYPE_BYTES, kv_type_of, kv_type_source, quantisation_of
from gpuwatch.ledger.rotations import rotations_of
from gpuwatch.ledger.towers import stacked_levels, tower_tensors, tower_width, vision_size
from gpuwatch.ledger.unread import check_unread

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST = 10**9
"""A ``model_max_length`` above stands for no limit."""
LARGEST_FACTOR = 1024
"""No model is scaled to more times its length."""
KNOWN_SCALINGS = (
    *("default", "linear", "ntk", "dynamic", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "longrope", "su"),
    *("llama3", "mllama4", "mrope", "bailing_mrope", "proportional", "openpangu", "xdrope"),
)
"""Kinds of scaling of vLLM 0.32 and SGLang 0.5.23 (``rotary_embedding``), and older names that they replace."""


def read_model(config: Mapping[str, Any], name: str = "") -> Model:
    """Return the model that a ``config.json`` describes.

    What is needed and absent is in `Model.missing`; nothing is guessed for it.

    Raises:
        ModelConfigError: a field holds what it cannot mean.
    """
    fields = Fields.of(config)
    _check_heads(fields)
    count = _layer_count(fields)
    shared = fields.number("num_kv_shared_layers") or 0
    kinds = layer_kinds(fields, count)[: count - shared] if shared < count else []
    check_unread(fields, kinds, count)
    blocks = blocks_of(fields)
    layers = grouped(kinds, fields) if blocks is None else blocks.layers
    widths = () if blocks is None else blocks.widths
    kv_missing = tuple(fields.missing)
    hidden, heads = fields.hidden, 0 if is_state_space(fields) else fields.q_heads
    scaling, kind = _scaling(fields)
    tower, tower_known = tower_tensors(fields.outer, hidden)
    dense, experts = forward_parts(fields, count)
    architecture = fields.architecture
    if blocks is not None:
        dense, experts = len(widths), None
    inner, widths = _widths(fields, widths, dense, shared)
    return Model(
        name=name or str(fields.outer.get("_name_or_path") or ""),
        architecture=architecture,
        hidden=hidden,
        layers=layers,
        q_heads=heads,
        intermediate=inner,
        vocab=fields.need("vocab_size"),
        tied=_tied(fields),
        gated=is_gated(architecture),
        dense_layers=dense,
        experts=experts,
        dtype=_dtype(fields),
        **_stored(fields),
        **_latent(fields),
        **_lengths(fields, scaling, kind),
        tower_tensors=tower,
        tower_width=tower_width(fields.outer),
        tower_known=tower_known,
        vision=vision_size(fields.outer),
        mixer_parts=_mixer(fields, hidden),
        shared_kv_layers=shared,
        shared_attention=_shared_attention(fields, count, shared),
        embedding_per_layer=_embedding_per_layer(fields, count),
        attention_bias=bool(fields.flag("attention_bias")) or has_attention_bias(architecture),
        output_gate=_gates_output(fields),
        dense_widths=sum(widths),
        rotations=rotations_of(fields, layers, _context(fields)),
        stacked=stacked_levels(fields.outer),
        other=_other(fields, hidden)
        + (0 if blocks is None else blocks.matrices * hidden * hidden)
        + parts_beside(fields, layers, experts),
        uncounted=_uncounted(fields),
        missing=tuple(fields.missing),
        kv_missing=kv_missing,
        notes=tuple(fields.notes),
    )


def _gates_output(fields: Fields) -> bool:
    stated = fields.flag("attn_output_gate")
    return has_output_gate(fields.architecture) if stated is None else stated


def _stored(fields: Fields) -> dict[str, Any]:
    """Return how weights and KV cache are stored, by the fields of `Model`."""
    return {
        "quantisation": quantisation_of(fields.outer),
        "kv_type": kv_type_of(fields.outer),
        "kv_type_source": kv_type_source(fields.outer),
    }


def _latent(fields: Fields) -> dict[str, Any]:
    """Return the sizes of MLA's projections, by the fields of `Model`; 0 where there are none."""
    names = {
        "q_rank": "q_lora_rank",
        "mla_value": "v_head_dim",
        "mla_nope": "qk_nope_head_dim",
        "mla_rope": "qk_rope_head_dim",
    }
    return {field: fields.number(name) or 0 for field, name in names.items()}


def _scaling(fields: Fields) -> tuple[Fields | None, str]:
    """Return the part that says how positions are scaled, and the kind of scaling.

    Raises:
        ModelConfigError: it is no object, or of a kind that no engine has.
    """
    for name in ("rope_scaling", "rope_parameters"):
        stated = fields.value(name)
        if stated is not None and not isinstance(stated, dict):
            raise ModelConfigError(f"{name} is {str(stated)[:40]!r}; an object is expected")
    scaling = fields.part("rope_scaling") or fields.part("rope_parameters")
    kind = (scaling.text("rope_type") or scaling.text("type")) if scaling else ""
    if kind and kind not in KNOWN_SCALINGS:
        raise ModelConfigError(f"rope_type is {kind[:40]!r}; allowed: {', '.join(KNOWN_SCALINGS)}")
    return scaling, kind


def _lengths(fields: Fields, scaling: Fields | None, kind: str) -> dict[str, Any]:
    """Return what the config says about lengths, by the fields of `Model`."""
    original = "original_max_position_embeddings"
    return {
        "context": _context(fields),
        "rope_scaling": "" if kind == "default" else kind,
        "rope_factor": _factor(scaling),
        "rope_original": (scaling.number(original) or 0) if scaling is not None else 0,
        "original_context": fields.number(original) or 0,
    }


def _factor(scaling: Fields | None) -> float:
    """Return how many times as long the scaling makes a model.

    Raises:
        ModelConfigError: the factor is no number that a model has.
    """
    factor = scaling.value("factor") if scaling is not None else None
    if factor is None:
        return 1.0
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= LARGEST_FACTOR:
        raise ModelConfigError(
            f"factor of rope_scaling is {str(factor)[:40]!r}; a number above 0 and up to {LARGEST_FACTOR} is expected"
        )
    return max(1.0, float(factor))


def _dtype(fields: Fields) -> str:
    """Return the type of the weights; 16 bits where the config names none.

    Raises:
        ModelConfigError: it is no type that engines have.
    """
    for name in ("torch_dtype", "dtype"):
        stated = fields.value(name)
        if stated in (None, "", "auto"):
            continue
        word = {"float": "float32"}.get(plain := str(stated).removeprefix("torch."), plain)
        if word not in DTYPE_BYTES:
            raise ModelConfigError(f"{name} is {str(stated)[:40]!r}; allowed: {', '.join(DTYPE_BYTES)}")
        return word
    return "bfloat16"


def _layer_count(fields: Fields) -> int:
    """Return the number of layers."""
    if attends_twice(fields.architecture):
        return 2 * (fields.number("num_layers") or fields.need("num_hidden_layers"))
    return fields.need("num_hidden_layers")


def _check_heads(fields: Fields) -> None:
    """Check the heads of attention.

    Raises:
        ModelConfigError: there are none, or those of queries cannot be shared among those of keys and values.
    """
    stated = ("num_attention_heads", "num_key_value_heads")
    if any(isinstance(fields.value(name), list) for name in stated):  # each layer has its own
        return
    queries, keys = (fields.number(name) for name in stated)
    if queries == 0:
        raise ModelConfigError("num_attention_heads is 0; allowed: 1 and more")
    if keys == 0:
        raise ModelConfigError("num_key_value_heads is 0; allowed: 1 and more")
    if queries and keys and queries % keys and not fields.number("kv_lora_rank"):
        raise ModelConfigError(f"num_key_value_heads is {keys}; allowed: a divisor of the {queries} query heads")


def _uncounted(fields: Fields) -> tuple[str, ...]:
    """Return the parts that the arithmetic does not cover, and note what is special about the architecture."""
    architecture = fields.architecture
    if architecture and not is_known(architecture):
        fields.note(f"architecture {architecture[:60]!r} is not known: computed as a plain decoder")
    if fields.listed("cross_attention_layers"):
        fields.note("the KV of images in the cross-attention layers is not counted")
    halves = fields.flag("is_encoder_decoder") is True or bool(fields.number("encoder_layers"))
    if halves or has_two_parts(architecture):
        return ("the encoder, and the weights and the cache of cross attention",)
    if is_encoder(architecture):
        return ("the head of an encoder, which keeps no KV cache: what is said of a pool does not hold for it",)
    return ()


def _other(fields: Fields, hidden: int) -> int:
    """Return parameters that other fields do not give.

    Cross-attention layers (Mllama), the indexers of sparse attention (DeepSeek), biases of experts (gpt-oss).
    """
    found = 0
    if "gptoss" in fields.architecture.lower().replace("_", ""):
        each = 2 * fields.need("intermediate_size") + hidden
        found += (fields.number("num_hidden_layers") or 0) * (fields.number("num_experts") or 0) * each
    crossing = len(fields.listed("cross_attention_layers"))
    if crossing:
        found += crossing * 2 * hidden * fields.head_dim * (fields.q_heads + fields.kv_heads)
    width, heads = fields.number("index_head_dim"), fields.number("index_n_heads")
    if width and heads:
        one = (fields.number("q_lora_rank") or hidden) * heads * width + hidden * (width + heads)
        found += (fields.number("num_hidden_layers") or 0) * one
    return found


def _tied(fields: Fields) -> bool:
    stated = fields.value("tie_word_embeddings")
    if isinstance(stated, str):
        raise ModelConfigError(f"tie_word_embeddings is {stated[:40]!r}; true or false is expected")
    tied = fields.flag("tie_word_embeddings")
    return is_tied(fields.architecture) if tied is None else tied


def _widths(fields: Fields, widths: tuple[int, ...], dense: int, shared: int) -> tuple[int, tuple[int, ...]]:
    """Return the usual width of a feed-forward part, and that of each where they differ (`widths`: where known)."""
    inner = max(widths) if widths else _intermediate(fields, fields.hidden, needed=dense > 0)
    if shared and fields.flag("use_double_wide_mlp"):  # Gemma 4: layers without a cache of their own
        return inner, (inner,) * (dense - shared) + (2 * inner,) * shared
    return inner, widths


def _intermediate(fields: Fields, hidden: int, *, needed: bool) -> int:
    value = fields.number("intermediate_size_mlp") or fields.number("intermediate_size")  # the former: Llama 4
    times = fields.value("expansion_ratio")
    if value is None and isinstance(times, (int, float)) and 0 < times <= 1000:  # of any model
        return round(times * hidden)
    if value is None and is_four_times(fields.architecture):
        return 4 * hidden
    if value is not None and fields.flag("block_auto_adjust_ff_dim"):  # LFM2
        times, unit = fields.value("block_ffn_dim_multiplier"), fields.number("block_multiple_of") or 256
        factor = times if isinstance(times, (int, float)) and 0 < times <= 1000 else 1.0  # of any model
        return -(-int(factor * int(2 * value / 3)) // unit) * unit
    if value is not None and is_halved(fields.architecture):
        return value // 2
    return value if value is not None else (fields.need("intermediate_size") if needed else 0)


def _context(fields: Fields) -> int | None:
    longest = fields.value("model_max_length")  # goes before in both engines (Command R)
    if isinstance(longest, int) and 0 < longest <= LONGEST:
        return longest
    return fields.number("max_position_embeddings")


def _shared_attention(fields: Fields, count: int, shared: int) -> int:
    """Return the parameters of attention in layers that use the cache of others: queries and output only."""
    if not 0 < shared < count:
        return 0
    kinds = layer_kinds(fields, count)[count - shared :]
    widths = (fields.number("global_head_dim") if kind == FULL else None for kind in kinds)
    return sum(2 * fields.hidden * fields.q_heads * (width or fields.head_dim) for width in widths)


def _mixer(fields: Fields, hidden: int) -> tuple[int, ...]:
    """Return the parameters of each matrix of a linear layer's mixer, norms and biases left out.

    Empty where its kind is not known.
    """
    key, value = fields.number("linear_key_head_dim"), fields.number("linear_value_head_dim")
    if key and value:
        keys = key * (fields.number("linear_num_key_heads") or 0)
        value_heads = fields.number("linear_num_value_heads") or 0
        values = value * value_heads
        kernel = fields.number("linear_conv_kernel_dim") or 4
        inner = (hidden * 2 * (keys + values), hidden * 2 * value_heads, kernel * (2 * keys + values))
        return (*inner, values * hidden)
    size = fields.number("mamba_d_state") or fields.number("ssm_state_size") or fields.number("state_size")
    if not size:
        return _other_mixer(fields, hidden)
    heads, head = mamba2_heads(fields)
    if fields.number("mamba_step"):  # PLaMo 2: the step's rank has a least size
        wide, low = heads * head, max(64, hidden // 16)
        kernel = fields.number("mamba_d_conv") or 4
        return 2 * hidden * wide, kernel * wide, wide * (low + 2 * size), low * heads, wide * hidden
    inner_width = heads * head if heads and head else mamba1_width(fields)
    out = inner_width * hidden
    kernel = fields.number("mamba_d_conv") or fields.number("conv_kernel") or 4
    if heads:
        groups = fields.number("mamba_n_groups") or 1
        mixed = inner_width + 2 * groups * size
        return hidden * (inner_width + mixed + heads), kernel * mixed, out
    low = fields.number("mamba_dt_rank") or fields.number("time_step_rank") or -(-hidden // 16)
    step = (inner_width * (low + 2 * size), low * inner_width, inner_width * size)
    return 2 * hidden * inner_width, kernel * inner_width, *step, out


def _other_mixer(fields: Fields, hidden: int) -> tuple[int, ...]:
    """Return the parameters of the mixers of Kimi-Linear, LFM2 and MiniMax; empty for what is none of them.

    Source: ``gdn/kimi_gdn_linear_attn.py``, ``short_conv.py`` and ``linear/minimax_linear_attn.py`` in vLLM's
    ``layers/mamba``.
    """
    kimi = fields.part("linear_attn_config")
    if kimi is not None and kimi.number("head_dim"):
        head, heads = kimi.need("head_dim"), kimi.need("num_heads")
        wide, kernel = heads * head, kimi.number("short_conv_kernel_size") or 4
        low = 2 * head * (hidden + wide)  # the gates of forgetting and of the output
        return 3 * hidden * wide, low + hidden * heads, 3 * kernel * wide, wide * hidden
    kernel = fields.number("conv_L_cache") or 0
    if kernel:
        return 3 * hidden * hidden, kernel * hidden, hidden * hidden
    if fields.listed("attn_type_list"):
        wide = fields.q_heads * fields.head_dim
        return 3 * hidden * wide, hidden * wide, wide * hidden
    return ()


def _embedding_per_layer(fields: Fields, count: int) -> int:
    """Return the parameters of the per-layer embeddings of Gemma 3n and 4: one table, and its projections."""
    width = fields.number("hidden_size_per_layer_input")
    if not width:
        return 0
    vocab = fields.number("vocab_size_per_layer_input") or fields.number("vocab_size") or 0
    hidden = fields.number("hidden_size") or 0
    return count * width * (vocab + hidden) + count * 2 * hidden * width
