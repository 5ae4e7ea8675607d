"""Bits of a weight that quantisation configs state in forms of their own: HQQ, torchao, Quark, FP-Quant, EETQ.

Sources: the configuration classes of transformers (``utils/quantization_config.py``), torchao's ``config_to_dict``, and
vLLM's ``layers/quantization/quark``, ``fp_quant.py`` and ``torchao.py``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuwatch.ledger.model import Quantisation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLAIN = ("lm_head", "embed")
_KEPT = {"quark": "exclude", "hqq": "skip_modules"}
"""Fields that name modules which stay as they were."""
_MOST_GROUP = 2**20
_TORCHAO = (
    (re.compile(r"int4_?weight_?only(config)?"), Quantisation("torchao", 4, 128, 16, 16)),
    (
        re.compile(r"(int8|float8)_?(weight_?only|dynamic_?activation_?(int8|float8)_?weight)(config)?"),
        Quantisation("torchao", 8, channel_bits=32),
    ),
)
"""torchao's names of ways whose bits in memory are those of the name; INT4 has a scale and a zero for each group."""
_QUARK = {
    "fp4": Quantisation("quark", 4, 32, 8),
    "int4": Quantisation("quark", 4, 128, 16),
    "uint4": Quantisation("quark", 4, 128, 16, 4),
    "fp8_e4m3": Quantisation("quark", 8, channel_bits=32),
    "int8": Quantisation("quark", 8, channel_bits=32),
}


def stated(method: str, found: Mapping[str, Any], kept: tuple[str, ...]) -> Quantisation | None:
    """Return how the weights are stored by a config of one of these methods; None where it does not say."""
    reader = _READERS.get(method)
    read = reader(found) if reader is not None else None
    if read is None:
        return None
    named = found.get(_KEPT.get(method, ""))
    kept = (*kept, *map(str, named)) if isinstance(named, list) else kept
    return replace(read, kept=kept or PLAIN)


def _hqq(found: Mapping[str, Any]) -> Quantisation | None:
    """Return HQQ's: a scale and a zero point of 16 bits for each group."""
    settings = _part(_part(found, "quant_config"), "weight_quant_params")
    bits, group = _count(settings, "nbits", 8), _count(settings, "group_size", _MOST_GROUP)
    return Quantisation("hqq", bits, group, 16, 16) if bits else None


def _torchao(found: Mapping[str, Any]) -> Quantisation | None:
    way = found.get("quant_type")
    options = _part(found, "quant_type_kwargs")
    if isinstance(way, dict):
        way = way.get("default") if len(way) == 1 else None  # several: layers differ
        options = _part(way, "_data")
        way = way.get("_type") if isinstance(way, dict) else None
    name = str(way or "").lower()
    read = next((stored for names, stored in _TORCHAO if names.fullmatch(name)), None)
    group = _count(options, "group_size", _MOST_GROUP)
    return replace(read, group=group) if read is not None and read.group and group else read


def _quark(found: Mapping[str, Any]) -> Quantisation | None:
    if found.get("layer_quant_config") or found.get("layer_type_quant_config"):
        return None  # layers differ
    weight = _part(_part(found, "global_quant_config"), "weight")
    read = _QUARK.get(str(weight.get("dtype")))
    group = _count(weight, "group_size", _MOST_GROUP)
    return replace(read, group=group) if read is not None and read.group and group else read


def _fp_quant(found: Mapping[str, Any]) -> Quantisation | None:
    group = {"mxfp4": 32, "nvfp4": 16}.get(str(found.get("forward_dtype", "mxfp4")))
    return Quantisation("fp_quant", 4, group, 8) if group else None


def _eetq(found: Mapping[str, Any]) -> Quantisation | None:
    return Quantisation("eetq", 8, channel_bits=16) if found.get("weights", "int8") == "int8" else None


_READERS: dict[str, Callable[[Mapping[str, Any]], Quantisation | None]] = {
    "hqq": _hqq,
    "torchao": _torchao,
    "quark": _quark,
    "fp_quant": _fp_quant,
    "eetq": _eetq,
}


def _part(found: object, name: str) -> Mapping[str, Any]:
    part = found.get(name) if isinstance(found, dict) else None
    return part if isinstance(part, dict) else {}


def _count(found: Mapping[str, Any], name: str, most: int) -> int:
    """Return a count, 0 where there is none that a checkpoint has."""
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most else 0
