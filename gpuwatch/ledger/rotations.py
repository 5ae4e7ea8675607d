"""Tables of rotations (RoPE) that each rank keeps on its card: their rows and how wide they are.

Source: ``model_executor/layers/rotary_embedding/`` of vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.ledger.fields import Fields
    from gpuwatch.ledger.model import Layers

_SECTIONED = ("qwen2vl", "qwen2_vl", "qwen2_5_vl", "qwen2_5omni", "qwen3vl", "qwen3_vl", "glm4v")
"""Models whose positions have three parts (time, height, width), told by name where no ``mrope_section`` is there."""
_FOLLOWS_TOKENS = ("qwen3vl", "qwen3_vl", "qwen3_5")
"""Those of them whose positions never exceed the tokens, as vLLM from 0.32 on knows."""
SECTIONED = 4
"""How many times as long vLLM makes the table of positions in three parts: they follow the time of a video."""
_TWO_BASES = ("gemma3", "gemma4")
"""Models whose sliding layers rotate with a base of their own."""
_LEARNT = ("gpt2", "gptbigcode", "optfor")
_WITHOUT = ("bloom", "mpt", "mamba", "jamba", "nemotronh")


@dataclass(frozen=True, slots=True)
class Rotation:
    """One table. vLLM before 0.32 makes it `early` times as long, later `late` times; SGLang as it is."""

    rows: int
    width: int
    early: int = 1
    late: int = 1


def rotations_of(fields: Fields, layers: Sequence[Layers], context: int | None) -> tuple[Rotation, ...]:
    """Return the tables of a model of `context` positions."""
    names = f"{fields.architecture} {fields.text('model_type')}".lower()
    attention = [group for group in layers if group.kind != "linear"]
    if not context or not attention or any(name in names for name in _WITHOUT):
        return ()
    if any(name in names for name in _LEARNT):
        return (Rotation(context, fields.hidden),)
    parameters = fields.part("rope_parameters")
    scaling = fields.part("rope_scaling") or parameters
    per_kind = parameters is not None and parameters.part("full_attention") is not None
    if per_kind or fields.value("rope_local_base_freq") is not None or any(name in names for name in _TWO_BASES):
        one = parameters.part("full_attention") if parameters is not None and per_kind else scaling
        return tuple(
            Rotation(context if group.kind == "sliding" else _rows(one, context), group.head_dim) for group in attention
        )
    shares = (fields.value("partial_rotary_factor"), scaling.value("partial_rotary_factor") if scaling else None)
    share = next((value for value in shares if isinstance(value, (int, float)) and 0 < value <= 1), 1)
    width = fields.number("qk_rope_head_dim") or int(max(group.head_dim for group in attention) * share)
    tower = fields.outer.get("vision_config")
    names += f" {tower.get('model_type', '')}".lower() if isinstance(tower, dict) else ""
    parted = scaling is not None and bool(scaling.listed("mrope_section"))
    early = SECTIONED if parted or any(name in names for name in _SECTIONED) else 1
    late = 1 if any(name in names for name in _FOLLOWS_TOKENS) else early
    return (Rotation(_rows(scaling, context), width, early, late),)


def _rows(scaling: Fields | None, context: int) -> int:
    """Return the rows of a table whose model declares `context` positions."""
    if scaling is None:
        return context
    kind = scaling.text("rope_type") or scaling.text("type")
    factor, original = scaling.value("factor"), scaling.number("original_max_position_embeddings")
    times = float(factor) if isinstance(factor, (int, float)) and 1 <= factor <= 1024 else 1.0  # of any model
    if kind == "linear":
        return round(context * times)
    if kind == "yarn" and original:
        return round(original * times)
    if kind in ("longrope", "su") and original:  # a short and a long table
        return original + context
    return context
