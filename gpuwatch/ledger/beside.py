"""What a launch command loads beside the model: LoRA adapters, a draft model; and the towers that it leaves out.

Sources: ``config/lora.py``, ``config/multimodal.py`` and ``config/speculative.py`` of vLLM; ``srt/server_args.py`` of
SGLang.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.ledger.kv import bytes_per_token
from gpuwatch.ledger.latent import as_kept
from gpuwatch.ledger.loaded import printed_bytes
from gpuwatch.ledger.weights import Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatch.engines.log_pattern import Value
    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.model import Model

ADAPTERS, ADAPTER_RANK = 1, 16
"""vLLM's ``--max-loras`` and ``--max-lora-rank`` where they are not given."""
TOWERS_LEFT_OUT_SINCE = (0, 10)
"""vLLM loads no tower for inputs of which a request may have none."""
_DRAFT_FLAGS = ("speculative-draft-model-path", "speculative-draft-model")
_TEXT_ONLY = "language-model-only"


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft model: bytes of its weights, and its KV bytes of a token for each of the model's own."""

    weights: float = 0.0
    share: float = 0.0


def settings_in(value: object) -> Mapping[str, object]:
    """Return the settings of a flag that holds a JSON object; none where it holds something else."""
    try:
        found = json.loads(str(value))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def adapters_of(engine: str, flags: Mapping[str, Value]) -> tuple[int, int]:
    """Return (places for LoRA adapters on the card, rank of the largest) of vLLM; SGLang takes ranks from the files."""
    if engine != "vllm" or flags.get("enable-lora") is not True:
        return 0, 0
    places, rank = flags.get("max-loras"), flags.get("max-lora-rank")
    return _positive(places) or ADAPTERS, _positive(rank) or ADAPTER_RANK


def _positive(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def loads_towers(
    engine: str, version: Sequence[int], flags: Mapping[str, Value], arguments: Sequence[str], *, videos: bool
) -> bool:
    """Return whether the towers of a model are loaded: not where it is told that no request has what they encode.

    A model that takes `videos` has to be told of them, too.
    """
    if any(word.lstrip("-").replace("_", "-") == _TEXT_ONLY for word in arguments if word.startswith("--")):
        return False
    if engine != "vllm" or tuple(version) < TOWERS_LEFT_OUT_SINCE:
        return True
    limits = settings_in(flags.get("limit-mm-per-prompt"))
    needed = {"image", "video"} if videos else {"image"}
    return not (needed <= set(limits) and all(_count(limit) == 0 for limit in limits.values()))


def speculation(flags: Mapping[str, Value]) -> str:
    """Return SGLang's way of drafting; empty where it has none."""
    return str(flags.get("speculative-algorithm", ""))


def exchanges_by_deepep(flags: Mapping[str, Value]) -> bool:
    """Return whether SGLang's experts exchange tokens by DeepEP, under the name of the flag today or before 0.5."""
    return str(flags.get("moe-a2a-backend", "")) == "deepep" or flags.get("enable-deepep-moe") is True


def _count(limit: object) -> object:
    return limit.get("count") if isinstance(limit, dict) else limit


def draft_name(flags: Mapping[str, Value], arguments: Sequence[str]) -> str:
    """Return the name of the draft model that a command gives; empty where it gives none."""
    named = settings_in(flags.get("speculative-config")).get("model") or flags.get("speculative-model")
    if isinstance(named, str) and not named.startswith("["):
        return named
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name.lstrip("-").replace("_", "-") in _DRAFT_FLAGS and name.startswith("--"):
            return value if equals else next(iter(arguments[at + 1 : at + 2]), "")
    return ""


def draft_of(draft: Model, weights: float | None, model: Model, deployment: Deployment) -> Draft:
    """Return what a `draft` takes beside `model`; `weights` are the bytes of its files, None where not known."""
    held = weights if weights is not None else printed_bytes(draft, Split(), deployment.loading)
    kept = as_kept(draft, deployment.engine, deployment.version)
    own, more = (bytes_per_token(one, deployment.kv_dtype) for one in (model, kept))
    return Draft(held, more / own if own else 0.0)
