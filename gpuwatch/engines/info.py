"""What an engine says about itself outside its metrics page: version, models, limits, launch settings.

Pure readers of the JSON of ``/version`` and ``/v1/models`` (vLLM, SGLang) and ``/server_info`` (SGLang; called
``/get_server_info`` in older versions). The last one contains API keys and paths: only the listed numbers are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuwatch.engines.metric import Kind

_TEXT_LIMIT = 200
_CONFIG = "gpuwatch_engine_config_"
# key of /server_info -> fact, series without prefix (empty: none)
_SGLANG_SETTINGS = (
    ("max_running_requests", "max_num_seqs", "max_num_seqs"),
    ("chunked_prefill_size", "max_num_batched_tokens", "max_num_batched_tokens"),
    ("max_prefill_tokens", "max_prefill_tokens", ""),
    ("mem_fraction_static", "memory_fraction", "memory_fraction_ratio"),
    ("tp_size", "tp", "tensor_parallel_size"),
    ("pp_size", "pp", "pipeline_parallel_size"),
    ("dp_size", "dp", "data_parallel_size"),
    ("context_length", "max_model_len", "max_model_len_tokens"),
    ("max_total_num_tokens", "kv.tokens", ""),
    ("page_size", "kv.block_size", ""),
)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is known about one server. Empty or None: not known.

    `config` holds (series name, value) of settings; `facts` holds (fact key, value) with the keys of `engines.facts`.
    """

    kind: Kind
    version: str = ""
    role: str = ""
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    config: tuple[tuple[str, float], ...] = ()
    facts: tuple[tuple[str, str | float], ...] = ()

    def setting(self, key: str) -> float | None:
        """Return a numeric fact, or None."""
        value = dict(self.facts).get(key)
        return float(value) if isinstance(value, (int, float)) else None


def read_version(info: EngineInfo, document: Any) -> EngineInfo:
    """Take the version from the JSON of ``/version``."""
    version = document.get("version") if isinstance(document, dict) else None
    return replace(info, version=_text(version) or info.version)


def read_models(info: EngineInfo, document: Any) -> EngineInfo:
    """Take model names and the longest request from the JSON of ``/v1/models``.

    LoRA adapters are listed as models with a parent; their length is the base model's.
    """
    rows = document.get("data") if isinstance(document, dict) else None
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    base = [row for row in rows if not row.get("parent")] or rows
    lengths = [int(length) for row in base if (length := _positive(row.get("max_model_len"))) is not None]
    names = tuple(name for row in base if (name := _text(row.get("id"))))
    return replace(info, models=names, max_model_len=max(lengths, default=info.max_model_len))


def read_server_info(info: EngineInfo, document: Any) -> EngineInfo:
    """Take version, role and settings from the JSON of SGLang's ``/server_info``."""
    if not isinstance(document, dict):
        return info
    settings: dict[str, float] = {}
    config: dict[str, float] = {}
    effective = _effective_running(document)
    for key, fact, name in _SGLANG_SETTINGS:
        value = effective if key == "max_running_requests" and effective is not None else document.get(key)
        number = _positive(value)
        if number is not None:
            settings[fact] = number
            if name:
                config[_CONFIG + name] = number
    if isinstance(document.get("disable_radix_cache"), bool):
        settings["prefix_caching"] = not document["disable_radix_cache"]
    mode = _text(document.get("disaggregation_mode"))
    return replace(
        info,
        version=_text(document.get("version")) or info.version,
        role=mode if mode in ("prefill", "decode") else info.role,
        max_model_len=int(settings["max_model_len"]) if "max_model_len" in settings else info.max_model_len,
        config=tuple(config.items()),
        facts=tuple(settings.items()),
    )


def _effective_running(document: dict[str, Any]) -> Any:
    """Return the limit that the scheduler computed, per data-parallel rank; newer versions report it."""
    states = document.get("internal_states")
    first = states[0] if isinstance(states, list) and states else None
    return first.get("effective_max_running_requests_per_dp") if isinstance(first, dict) else None


def _positive(value: Any) -> float | None:
    """Return a finite positive number, or None: settings use None, 0 and -1 for "not set" and "off"."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        return None
    return float(value)


def _text(value: Any) -> str:
    return value[:_TEXT_LIMIT] if isinstance(value, str) else ""
