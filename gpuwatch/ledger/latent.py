"""What an engine keeps of layers with latent attention (MLA): the one shared entry, or keys and values of each head.

Sources: ``models/minicpm3.py`` of vLLM, whose attention is a plain one over the projected heads (SGLang's keeps the
entry); vLLM before 0.7.1, which padded each head of ``models/deepseek_v2.py`` to 256 elements (its pull request 10927
prints 5,373 blocks in 35.42 GiB for DeepSeek-V2-Lite).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatch.ledger.model import Model

LATENT_SINCE = (0, 7, 1)
"""vLLM that keeps the entry."""
PADDED_HEAD = 256
_PROJECTED = ("minicpm3",)
"""Architectures of whose layers vLLM keeps keys and values of each head, in every version."""


def differs_by_engine(model: Model) -> bool:
    """Return whether vLLM and SGLang keep different things of a model's latent layers."""
    return any(name in model.architecture.lower() for name in _PROJECTED) and _has_latent(model)


def as_kept(model: Model, engine: str, version: tuple[int, ...]) -> Model:
    """Return the model with its latent layers as the engine keeps them; `version` is () where it is not known.

    Layers of which it keeps keys and values of each head are full ones, with the `latent` width of their projections.
    """
    if engine != "vllm" or not _has_latent(model):
        return model
    if differs_by_engine(model):
        head = model.mla_nope + model.mla_rope  # values are padded to it
    elif version and version < LATENT_SINCE:
        head = PADDED_HEAD
    else:
        return model
    layers = (
        replace(group, kind="full", kv_heads=model.q_heads, head_dim=head, value_dim=head, index_bytes=0)
        if group.kind == "mla"
        else group
        for group in model.layers
    )
    return replace(model, layers=tuple(layers))


def _has_latent(model: Model) -> bool:
    return any(group.kind == "mla" for group in model.layers)
