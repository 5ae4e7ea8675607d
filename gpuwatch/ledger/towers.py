"""Vision and audio towers: their parameters, from their own parts of the config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatch.ledger.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARTS = ("vision_config", "audio_config", "vit_config", "visual", "speech_config")


def tower_parameters(config: Mapping[str, Any], hidden: int) -> tuple[int, bool]:
    """Return the parameters of all towers with their projections into a model of width `hidden`; and if all are known.

    A transformer layer has four attention matrices and two or three of the feed-forward part.
    """
    total, known = 0, True
    for name in _PARTS:
        part = config.get(name)
        if not isinstance(part, dict):
            continue
        fields = Fields(part)
        width = fields.number("embed_dim") if "depth" in part and "embed_dim" in part else fields.number("hidden_size")
        depth = fields.number("depth") or fields.number("num_hidden_layers") or fields.number("encoder_layers")
        depth = (depth or 0) + (fields.number("num_global_layers") or 0)  # Mllama
        if not width or not depth:
            known = False
            continue
        inner = fields.number("intermediate_size") or int(width * float(part.get("mlp_ratio") or 4))
        gated = "qwen2_5_vl" in str(part.get("model_type", "")) or part.get("hidden_act") == "silu"
        layer = 4 * width * width + (3 if gated else 2) * width * inner
        patch = (fields.number("patch_size") or 0) ** 2 * (fields.number("temporal_patch_size") or 1)
        merged = width * (fields.number("spatial_merge_size") or 1) ** 2
        out = fields.number("out_hidden_size") or hidden
        projection = merged * merged + merged * out if merged != width else width * out
        total += depth * layer + 3 * patch * width + projection
        stacked = len(part.get("deepstack_visual_indexes") or ())
        total += stacked * (merged * merged + merged * out)
    return total, known
