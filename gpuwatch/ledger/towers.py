"""Vision and audio towers: their tensors, from their own parts of the config.

Sources: ``qwen2_5_vl.py``, ``qwen3_vl.py``, ``siglip.py`` of vLLM's ``model_executor/models``; ``gemma4`` of
``transformers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gpuwatch.ledger.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

Tensors: TypeAlias = "tuple[tuple[int, int], ...]"
"""(elements of a tensor, how many such tensors)"""

_PARTS = ("vision_config", "audio_config", "vit_config", "visual", "speech_config")
_GATED = ("qwen2_5_vl", "qwen2_5_omni", "gemma4_vision", "pixtral")
_WITHOUT_BIASES = ("gemma4", "pixtral")
_GRID_POSITIONS = {"qwen3_vl": 2304, "qwen3_5": 2304, "qwen3_omni": 2304}
"""Rows of the position embedding where the config leaves out ``num_position_embeddings``: the default of its class."""
_SQUARE_POSITIONS = ("siglip", "clip", "intern_vit", "mllama")
_TABLES = 2
"""Gemma 4 has a table of positions for each axis."""
_CONFORMER_MATRICES = 24
"""Matrices of width x width in a layer of Gemma 4's audio tower: two feed-forward parts of 8, attention 5, convolution
3."""


def tower_tensors(config: Mapping[str, Any], hidden: int) -> tuple[Tensors, bool]:
    """Return the tensors of all towers with their projections into a model of width `hidden`; and if all are known."""
    found: list[tuple[int, int]] = []
    known = True
    for name in _PARTS:
        part = config.get(name)
        if not isinstance(part, dict):
            continue
        tensors = _tower(Fields(part), hidden)
        known = known and bool(tensors)
        found += tensors
    return tuple(found), known


def tower_width(config: Mapping[str, Any]) -> int:
    """Return the width of the widest tower; 0 where there is none, or it is not stated."""
    parts = [Fields(part) for name in _PARTS if isinstance(part := config.get(name), dict)]
    return max(map(_width, parts), default=0)


def _width(fields: Fields) -> int:
    two_widths = fields.number("depth") and fields.number("embed_dim")
    return (fields.number("embed_dim") if two_widths else fields.number("hidden_size")) or 0


def vision_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (layers, width) of the vision tower as SGLang weighs it; None where the config has none.

    It looks for ``num_hidden_layers`` and ``hidden_size`` alone (``adjust_mem_fraction_for_vlm``): a tower that names
    them otherwise counts as ViT-L. Kimi's names begin with ``vt_``, which its configuration class leaves out.
    """
    part = config.get("vision_config")
    if not isinstance(part, dict):
        return None
    fields = Fields(part)

    def number(name: str, default: int) -> int:
        found = part.get(name, part.get(f"vt_{name}"))
        return default if found is None else (fields.number(name if name in part else f"vt_{name}") or default)

    return number("num_hidden_layers", 24), number("hidden_size", 1024)  # ViT-L


def stacked_levels(config: Mapping[str, Any]) -> int:
    """Return how many levels of a tower's output are added to layers of the model (Qwen3-VL)."""
    part = config.get("vision_config")
    return len(part.get("deepstack_visual_indexes") or ()) if isinstance(part, dict) else 0


def _tower(fields: Fields, hidden: int) -> list[tuple[int, int]]:
    kind = fields.text("model_type")
    width = _width(fields)
    depth = fields.number("depth") or fields.number("num_hidden_layers") or fields.number("encoder_layers")
    depth = (depth or 0) + (fields.number("num_global_layers") or 0)  # Mllama
    if not width or not depth:
        return []
    if kind == "gemma4_audio":
        return [(width * width, depth * _CONFORMER_MATRICES), (width * hidden, 1)]
    ratio = fields.value("mlp_ratio")
    inner = fields.number("intermediate_size") or int(width * (ratio if isinstance(ratio, (int, float)) else 4))
    gated = any(name in kind for name in _GATED) or fields.text("hidden_act") == "silu"
    up = 2 if gated else 1
    found = [(3 * width * width, depth), (width * width, depth), (up * width * inner, depth), (width * inner, depth)]
    if not any(name in kind for name in _WITHOUT_BIASES):
        found += [(5 * width, depth), (up * inner + 4 * width, depth)]  # biases, and two norms with theirs
    patch = (fields.number("patch_size") or 0) ** 2 * (fields.number("temporal_patch_size") or 1)
    found += [(3 * patch * width, 1), *_positions(fields, kind, width)]
    merged = width * (fields.number("spatial_merge_size") or 1) ** 2
    out = fields.number("out_hidden_size") or hidden
    mergers = 1 + len(fields.listed("deepstack_visual_indexes"))
    if merged != width:
        found += [(merged * merged, mergers), (merged * out, mergers)]
    else:
        found.append((width * out, 1))
    return [(elements, times) for elements, times in found if elements]


def _positions(fields: Fields, kind: str, width: int) -> list[tuple[int, int]]:
    """Return the learnt embedding of positions; none where the tower rotates instead."""
    rows = fields.number("position_embedding_size")
    if rows:
        return [(_TABLES * rows * width, 1)]
    rows = fields.number("num_position_embeddings")
    if rows is None:
        rows = next((count for name, count in _GRID_POSITIONS.items() if kind.startswith(name)), None)
    size, patch = fields.number("image_size"), fields.number("patch_size")
    if rows is None and size and patch and any(kind.startswith(name) for name in _SQUARE_POSITIONS):
        rows = (size // patch) ** 2
    return [(rows * width, 1)] if rows else []
