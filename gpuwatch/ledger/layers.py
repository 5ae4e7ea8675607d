"""From a model's config to the kinds of its layers: which keep everything, which a window, which a state.

The fields are those of Hugging Face configurations (``transformers`` configuration classes); the state shapes those of
vLLM's ``model_executor/layers/mamba/mamba_utils.py`` (``MambaStateShapeCalculator``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.ledger.fields import LAYER_LISTS, ModelConfigError
from gpuwatch.ledger.model import Layers, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.ledger.fields import Fields

FULL = "full"
SLIDING = "sliding"
CHUNKED = "chunked"
LINEAR = "linear"
BOTH = "both"
"""Attention and a state in one layer."""
NONE = "none"

_TYPES = {
    "full_attention": FULL,
    "attention": FULL,
    "global_attention": FULL,
    "full": FULL,
    "hybrid": BOTH,
    "sliding_attention": SLIDING,
    "sliding_window": SLIDING,
    "local_attention": SLIDING,
    "sliding": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": LINEAR,
    "mamba": LINEAR,
    "mamba2": LINEAR,
    "recurrent": LINEAR,
    "conv": LINEAR,
    "short_conv": LINEAR,
    "moe": NONE,
    "mlp": NONE,
}
_DENSE, _SPARSE = ("mlp", "-"), ("moe", "E")
"""Names of layers that are a feed-forward part alone: a plain one, and one of experts."""
_PATTERN = {"*": FULL, "M": LINEAR, "-": NONE, "E": NONE, "|": NONE}
"""Characters of ``hybrid_override_pattern`` (Nemotron-H)."""


def layer_kinds(fields: Fields, count: int) -> list[str]:
    """Return the kind of each of `count` layers, in order; unknown names of kinds are noted and taken as full."""
    stated, names = _named(fields)
    if names:
        _enough(fields, stated, len(names), count)
        letters = stated == "hybrid_override_pattern"
        return [_PATTERN.get(name, FULL) if letters else _kind_of(name, fields) for name in names[:count]]
    if is_state_space(fields):
        return [LINEAR] * count
    for known in (_crossing, _by_index, _by_period, _by_window):
        kinds = known(fields, count)
        if kinds:
            return kinds
    return [FULL] * count


def _named(fields: Fields) -> tuple[str, list[str]]:
    """Return the field that names the kind of each layer, and the names or letters; empty where there is none."""
    for stated in LAYER_LISTS:
        names = [str(name) for name in fields.listed(stated)] or list(fields.text(stated))
        if names:
            return stated, names
    return "", []


def feed_forward_layers(fields: Fields, count: int) -> tuple[int, int] | None:
    """Return how many layers are a plain feed-forward part alone, and how many one of experts (Nemotron-H).

    None where the config names no such layers: then each layer has its feed-forward part.
    """
    names = _named(fields)[1][:count]
    dense, sparse = (sum(name in kinds for name in names) for kinds in (_DENSE, _SPARSE))
    return (dense, sparse) if dense or sparse else None


def _enough(fields: Fields, name: str, length: int, count: int) -> None:
    """Check that a field names every layer; what it names beyond them (drafting layers) is passed over, with a note.

    Raises:
        ModelConfigError: it names too few.
    """
    if length < count:
        raise ModelConfigError(f"{name} names {length:,} layers; num_hidden_layers is {count:,}: as many are expected")
    if length > count:
        fields.note(f"{name} names {length:,} layers, of which the first {count:,} are counted (num_hidden_layers)")


def is_state_space(fields: Fields) -> bool:
    """Return whether the model is a Mamba without any attention: it has a state and no attention heads.

    Their layers are mixers alone, without a feed-forward part (``MambaConfig``, ``FalconMambaConfig``,
    ``Mamba2Config``).
    """
    return bool(fields.number("state_size")) and fields.number("num_attention_heads") is None


def shares_blocks(fields: Fields) -> bool:
    """Return whether several layers use the same transformer block (``num_mem_blocks`` of them, Zamba 2).

    Their layers have a mixer, and no feed-forward part of their own.
    """
    return fields.number("num_mem_blocks") is not None or "zamba2" in fields.architecture.lower()


def mamba2_heads(fields: Fields) -> tuple[int, int]:
    """Return (heads, size of one) of a Mamba-2 mixer; 0 for what the config does not say, as for every Mamba-1."""
    pure = is_state_space(fields)
    heads, head = fields.number("mamba_n_heads"), fields.number("mamba_d_head")
    return (heads or (pure and fields.number("num_heads")) or 0, head or (pure and fields.number("head_dim")) or 0)


def mamba1_width(fields: Fields) -> int:
    """Return the inner width of a Mamba-1 mixer; where the model is nothing else, the config states it."""
    inner = fields.number("intermediate_size") if fields.number("state_size") else None
    return inner or (fields.number("mamba_expand") or fields.number("expand") or 2) * fields.hidden


def _kind_of(name: object, fields: Fields) -> str:
    kind = _TYPES.get(str(name).lower())
    if kind is None:
        fields.note(f"layer type {str(name)[:40]!r} is not known and is counted as full attention")
        return FULL
    return kind


def _crossing(fields: Fields, count: int) -> list[str]:
    """Layers that look at an image and keep no text (Mllama)."""
    crossing = {str(index) for index in fields.listed("cross_attention_layers")}
    return [NONE if str(index) in crossing else FULL for index in range(count)] if crossing else []


def _by_index(fields: Fields, count: int) -> list[str]:
    """Layers with attention listed by number (Bamba, LFM2, Falcon-H1, Kimi-Linear)."""
    listed = fields.listed("attn_layer_indices") or fields.listed("full_attn_idxs")
    if listed:
        full = {int(str(index)) for index in listed}
        return [FULL if index in full else LINEAR for index in range(count)]
    linear = fields.part("linear_attn_config")
    if linear is not None and linear.listed("full_attn_layers"):
        full = {int(str(index)) - 1 for index in linear.listed("full_attn_layers")}  # counted from 1
        return [FULL if index in full else LINEAR for index in range(count)]
    windows = fields.listed("hybrid_layer_pattern")  # MiMo: 1 is a window, 0 full attention
    if windows:
        _enough(fields, "hybrid_layer_pattern", len(windows), count)
        return [SLIDING if str(kind) == "1" else FULL for kind in windows[:count]]
    kinds = fields.listed("attn_type_list")  # MiniMax: 1 is full attention, 0 linear
    if kinds:
        _enough(fields, "attn_type_list", len(kinds), count)
    return [FULL if str(kind) == "1" else LINEAR for kind in kinds[:count]]


def _by_period(fields: Fields, count: int) -> list[str]:
    every = fields.number("full_attention_interval")  # Qwen3-Next and later
    if every:
        return [FULL if (index + 1) % every == 0 else LINEAR for index in range(count)]
    every = fields.number("attn_layer_period")  # Jamba
    if every:
        offset = fields.number("attn_layer_offset") or 0
        return [FULL if index % every == offset else LINEAR for index in range(count)]
    every = fields.number("mamba_step")  # PLaMo 2
    if every and fields.flag("mamba_enabled") is not False:
        middle = every // 2 if count > every // 2 else count - 1
        return [FULL if index % every == middle else LINEAR for index in range(count)]
    chunk = fields.number("attention_chunk_size")  # Llama 4: every fourth layer sees everything
    if chunk:
        every = fields.number("no_rope_layer_interval") or 4
        return [FULL if (index + 1) % every == 0 else CHUNKED for index in range(count)]
    return []


def _by_window(fields: Fields, count: int) -> list[str]:
    window = fields.number("sliding_window")
    if not window or fields.flag("use_sliding_window") is False:
        return []
    architecture = fields.architecture.lower()
    letters = fields.text("sliding_window_pattern")  # EXAONE 4: L is a local layer, G a global one
    if letters and set(letters) <= set("LG"):
        return [SLIDING if letters[index % len(letters)] == "L" else FULL for index in range(count)]
    every = fields.number("sliding_window_pattern") or fields.number("_sliding_window_pattern")
    if every is None and "gemma2" in architecture:
        every = 2
    if every is None and "gemma3" in architecture:
        every = 6
    if every is None and "cohere2" in architecture:
        every = 4
    if every is None and "gptoss" in architecture:
        every = 2
    if every:
        return [FULL if (index + 1) % every == 0 else SLIDING for index in range(count)]
    first = fields.number("max_window_layers")
    if first is not None and "qwen" in architecture:
        return [FULL if index < first else SLIDING for index in range(count)]
    return [SLIDING] * count


def grouped(kinds: Sequence[str], fields: Fields) -> tuple[Layers, ...]:
    """Return the layers by kind, those with full attention first. Layers without memory of the past are left out."""
    counts = Counter(kinds)
    found = []
    if counts[FULL] or counts[BOTH]:
        found.append(_attention(fields, counts[FULL] + counts[BOTH], sliding=False))
    if counts[SLIDING]:
        found.append(_attention(fields, counts[SLIDING], sliding=True))
    if counts[CHUNKED]:
        one = _attention(fields, counts[CHUNKED], sliding=False)
        window = fields.number("attention_chunk_size") or 0
        found.append(
            Layers("chunked", one.count, one.kv_heads, one.head_dim, one.value_dim, window=window, latent=one.latent)
        )
    both = "falconh1" in fields.architecture.lower()  # attention and Mamba side by side in every layer
    linear = counts[LINEAR] + counts[BOTH] or (len(kinds) if both else 0)
    if linear:
        mixer, states = mixer_of(fields)
        found.append(Layers("linear", linear, states=states, mixer=mixer))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of the layers with a window: queries, keys, size of one, size of a value; 0 where they are as in others."""

    queries: int = 0
    keys: int = 0
    size: int = 0
    values: int = 0


def windowed_heads(fields: Fields) -> Heads:
    """Return the heads that layers with a window have of their own (MiMo, Step 3.5)."""
    own = fields.part("attention_other_setting")
    if own is not None and _TYPES.get(own.text("attention_type")) == SLIDING:
        return Heads(*(own.number(name) or 0 for name in ("num_attention_heads", "num_key_value_heads", "head_dim")))
    names = ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim")
    return Heads(*(fields.number(name) or 0 for name in names))


def _attention(fields: Fields, count: int, *, sliding: bool) -> Layers:
    if fields.number("kv_lora_rank"):
        latent = fields.need("kv_lora_rank") + fields.need("qk_rope_head_dim")
        width = fields.number("index_head_dim") or 0  # 8-bit keys, and a 32-bit scale for each 128 of them
        return Layers("mla", count, kv_heads=1, latent=latent, index_bytes=width + -(-width // 128) * 4)
    wide = not sliding and fields.number("global_head_dim")  # Gemma 4: layers that see everything have wider heads
    head = wide or fields.head_dim
    heads = (not sliding and fields.number("num_global_key_value_heads")) or fields.kv_heads
    value = (None if wide else fields.number("v_head_dim")) or head
    window = fields.need("sliding_window") if sliding else 0
    if sliding:
        own = windowed_heads(fields)
        heads, head, value = own.keys or heads, own.size or head, own.values or own.size or value
    borrowed = shares_blocks(fields)
    if borrowed:  # Zamba 2: of twice the model's width, each layer with keys and values of its own
        heads = fields.q_heads
        head = value = fields.number("attention_head_dim") or 2 * fields.hidden // max(1, heads)
    return Layers("sliding" if sliding else "full", count, heads, head, value, window=window, borrowed=borrowed)


def mixer_of(fields: Fields) -> tuple[str, tuple[State, ...]]:
    """Return the kind of the linear layers and the state tensors of one; none, with a note, where it is not known."""
    for known in (_gated_delta, _kimi_delta, _mamba2, _mamba1, _short_conv, _lightning):
        states = known(fields)
        if states:
            return known.__name__.removeprefix("_"), states
    fields.lack("the sizes of the linear layers' state (such as mamba_d_state or linear_key_head_dim)")
    return "", ()


def _state_bytes(fields: Fields) -> float | None:
    """Return the bytes of a recurrent state's elements where the model fixes the type; Nemotron-H wants 32 bits."""
    declared = fields.text("mamba_ssm_dtype") or fields.text("mamba_ssm_cache_dtype")
    if not declared and "nemotronh" in fields.architecture.lower():
        declared = "float32"
    return {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}.get(declared)


def _gated_delta(fields: Fields) -> tuple[State, ...]:
    key, value = fields.number("linear_key_head_dim"), fields.number("linear_value_head_dim")
    if not key or not value:
        return ()
    keys, values = fields.need("linear_num_key_heads"), fields.need("linear_num_value_heads")
    kernel = fields.number("linear_conv_kernel_dim") or 4
    conv = (2 * key * keys + value * values) * (kernel - 1)
    return State(conv), State(values * value * key, bytes_each=_state_bytes(fields))


def _kimi_delta(fields: Fields) -> tuple[State, ...]:
    part = fields.part("linear_attn_config")
    if part is None or not part.number("head_dim"):
        return ()
    heads, head = part.need("num_heads"), part.need("head_dim")
    kernel = part.number("short_conv_kernel_size") or 4
    return State(3 * heads * head * (kernel - 1)), State(heads * head * head, bytes_each=4.0)


def _mamba2(fields: Fields) -> tuple[State, ...]:
    heads, head = mamba2_heads(fields)
    size = fields.number("mamba_d_state") or fields.number("ssm_state_size") or fields.number("state_size")
    if not heads or not size:
        return ()
    inner = heads * head if head else (fields.number("mamba_expand") or 2) * fields.hidden
    head = head or inner // heads
    groups = 0 if fields.number("mamba_step") else fields.number("mamba_n_groups") or 1
    kernel = fields.number("mamba_d_conv") or fields.number("conv_kernel") or 4
    conv = (inner + 2 * groups * size) * (kernel - 1)
    return State(conv), State(heads * head * size, bytes_each=_state_bytes(fields))


def _mamba1(fields: Fields) -> tuple[State, ...]:
    size = fields.number("mamba_d_state") or fields.number("state_size")
    if not size:
        return ()
    inner = mamba1_width(fields)
    kernel = fields.number("mamba_d_conv") or fields.number("conv_kernel") or 4
    return State(inner * (kernel - 1)), State(inner * size, bytes_each=_state_bytes(fields))


def _short_conv(fields: Fields) -> tuple[State, ...]:
    kernel = fields.number("conv_L_cache")  # LFM2
    return (State(fields.hidden * (kernel - 1)),) if kernel else ()


def _lightning(fields: Fields) -> tuple[State, ...]:
    if not fields.listed("attn_type_list"):  # MiniMax
        return ()
    return (State(fields.q_heads * fields.head_dim * fields.head_dim),)
