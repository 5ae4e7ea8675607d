"""The longest request that an engine allows for a model, and the one it takes by itself, from the model's config.

Sources: ``_get_and_verify_max_len`` in vLLM's ``config/model.py``, ``get_context_length`` in SGLang's
``utils/hf_transformers_utils.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.model import Model

YARN_DECLARED_SINCE = (0, 32)
"""vLLM takes the declared length of a YaRN model as it is; earlier ones multiplied its original one by the factor."""
SHORT_LONGROPE_SINCE = (0, 32)
"""vLLM starts a LongRoPE model with its original length where no other is asked for. Earlier versions: not known."""
_AS_DECLARED = ("", "default", "mrope", "su", "longrope", "llama3")
"""Kinds of scaling that have no part in the length."""


def allowed_length(model: Model, engine: str, version: tuple[int, ...]) -> int | None:
    """Return the longest request that the engine takes without being forced; None where the config states none."""
    declared, kind, factor = model.context, model.rope_scaling, model.rope_factor
    if declared is None:
        return None
    if "gemma3" in model.architecture.lower():  # declares its scaled length
        found = declared
    elif engine == "sglang":
        found = declared if model.rope_original or kind == "llama3" else int(declared * factor)
    elif kind == "yarn" and version < YARN_DECLARED_SINCE:
        found = int((model.rope_original or declared) * factor)
    else:
        found = declared if kind in _AS_DECLARED or "yarn" in kind else int(declared * factor)
    return found


def default_length(model: Model, engine: str, version: tuple[int, ...]) -> int | None:
    """Return the longest request that the engine takes where none is asked for; None where the config states none."""
    short = engine == "vllm" and model.rope_scaling == "longrope" and version >= SHORT_LONGROPE_SINCE
    return model.original_context if short and model.original_context else allowed_length(model, engine, version)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine does not start with the length that is asked for, and the ways out."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.remedy}"


def too_long(model: Model, deployment: Deployment) -> Refusal | None:
    """Return why the engine refuses the length that is asked for; None where it takes it."""
    allowed = allowed_length(model, deployment.engine, deployment.version)
    if allowed is None or deployment.context <= allowed or deployment.longer_allowed:
        return None
    words = f"{deployment.context:,} tokens are beyond the {allowed:,} that the model's config gives"
    if deployment.engine == "sglang":
        flag, force = "--json-model-override-args", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
    else:
        flag, force = "--hf-overrides", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    way = f"the rope scaling that it was made for, with max_position_embeddings of {deployment.context}, goes into"
    return Refusal(
        f"{words}, so the engine will not start", f"{way} {flag}; {force}=1 only forces it, and answers degrade"
    )
