"""How weights are stored: what a ``quantization_config`` says, in bits of a weight and of its scales.

Sources: the configurations of AutoAWQ, GPTQ, compressed-tensors, ModelOpt, bitsandbytes and transformers' MXFP4.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.model import Quantisation
from gpuwatch.ledger.stated import stated

if TYPE_CHECKING:
    from collections.abc import Mapping

DTYPE_BYTES = {
    "float32": 4.0,
    "fp32": 4.0,
    "float16": 2.0,
    "fp16": 2.0,
    "half": 2.0,
    "bfloat16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "float8_e4m3fn": 1.0,
    "float8_e5m2": 1.0,
    "int8": 1.0,
}
"""Bytes of an element in types without scales of their own."""

_BY_NAME = {
    "int4": Quantisation("int4", 4, group=128, scale_bits=16, zero_bits=4, kept=("lm_head", "embed")),
    "awq": Quantisation("awq", 4, group=128, scale_bits=16, zero_bits=4, kept=("lm_head", "embed")),
    "gptq": Quantisation("gptq", 4, group=128, scale_bits=16, zero_bits=4, kept=("lm_head", "embed")),
    "mxfp4": Quantisation("mxfp4", 4, group=32, scale_bits=8, kept=("lm_head", "embed", "attn"), experts_only=True),
    "nvfp4": Quantisation("nvfp4", 4, group=16, scale_bits=8, kept=("lm_head", "embed")),
    "fp8": Quantisation("fp8", 8, kept=("lm_head", "embed")),
    "int8": Quantisation("int8", 8, kept=("lm_head", "embed")),
    "w8a8": Quantisation("w8a8", 8, kept=("lm_head", "embed")),
    "bnb4": Quantisation("bitsandbytes", 4, group=64, scale_bits=32, kept=("lm_head", "embed")),
}
NAMES = (*(name for name in DTYPE_BYTES if name not in _BY_NAME), *_BY_NAME)
"""What ``--weights`` takes."""


def by_name(name: str) -> Quantisation | None:
    """Return the storage that a person named, such as ``int4``; None for a plain type or a name that is not known."""
    return _BY_NAME.get(name.lower())


_PLAIN = ("lm_head", "embed")
_PART = "quantization_config"
MOST_BITS = 16
_WEIGHT_BITS = re.compile(r"W(4|8)A\d+")
MOST_WAYS = 16
LARGEST_GROUP = 2**20
"""No more weights share a scale, unless all of a channel do."""
_FLAGS = {
    **dict.fromkeys(("auto_awq", "awq_marlin", "moe_wna16", "w4afp8", "qoq", "marlin"), _BY_NAME["awq"]),
    **dict.fromkeys(("auto_gptq", "gptq_marlin"), _BY_NAME["gptq"]),
    **dict.fromkeys(("modelopt_fp4", "petit_nvfp4", "nvfp4_per_token", "nvfp4_online"), _BY_NAME["nvfp4"]),
    **dict.fromkeys(
        ("modelopt", "modelopt_fp8", "fbgemm_fp8", "ptpc_fp8", "w8a8_fp8", "fp8_per_tensor", "fp8_per_channel"),
        _BY_NAME["fp8"],
    ),
    **dict.fromkeys(("w8a8_int8", "blockwise_int8", "int8_per_channel_weight_only"), _BY_NAME["int8"]),
    "fp8_per_block": Quantisation("fp8", 8, 128 * 128, 32, kept=_PLAIN, step=128),
    "experts_int8": Quantisation("experts_int8", 8, experts_only=True),
    "gpt_oss_mxfp4": _BY_NAME["mxfp4"],
    "bitsandbytes": Quantisation("bitsandbytes", 4, 64, 32, kept=_PLAIN),
    **dict.fromkeys(("mxfp8", "modelopt_mxfp8"), Quantisation("mxfp8", 8, 32, 8, kept=_PLAIN)),
}
"""By the values of ``--quantization`` (``layers/quantization`` of both engines): weights made of a plain checkpoint."""


def of_flag(name: str) -> Quantisation | None:
    """Return how ``--quantization`` stores the weights of a plain checkpoint; None for no quantisation.

    A method whose bits are in the checkpoint (such as gguf, torchao, quark), and a name that is in no list, is not
    `known` and counts 16 bits.
    """
    word = name.lower()
    if word in ("", "none", "unquant"):
        return None
    return _FLAGS.get(word) or by_name(word) or Quantisation(word[:40], 16, known=False)


def quantisation_of(config: Mapping[str, Any]) -> Quantisation | None:
    """Return how the weights are stored; None for the model's own type. `config` is the whole ``config.json``.

    Raises:
        ModelConfigError: what it says of it cannot be meant.
    """
    found = _settings(config)
    if isinstance(found, str) and found:
        return by_name(found) or Quantisation(found[:40].lower(), 16, known=False)
    if found is not None and not isinstance(found, (str, dict)):
        raise ModelConfigError(f"{_PART} is {str(found)[:40]!r}; an object is expected")
    return _described(found) if isinstance(found, dict) else None


_KEPT = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
"""Fields that name modules which stay as they were."""


def _described(found: Mapping[str, Any]) -> Quantisation:
    method = str(found.get("quant_method") or found.get("quantization_method") or found.get("quant_algo") or "").lower()
    kept = tuple(str(name) for key in _KEPT for name in _listed(found, key))
    readers = {"compressed-tensors": _compressed, "bitsandbytes": _bitsandbytes, "modelopt": _modelopt}
    if method in readers:
        return readers[method](found, kept)
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin", "auto-round", "gptqmodel"):
        bits = _bits(found, "bits") or _bits(found, "w_bit") or 4.0
        group = max(0, int(_number(found, "group_size") or _number(found, "q_group_size") or 128))
        return Quantisation(method, bits, group, 16, bits, kept or ("lm_head", "embed"), step=group)
    if method in ("fp8", "fbgemm_fp8"):
        stated_block = _listed(found, "weight_block_size")
        if not all(isinstance(side, int) and 1 <= side <= LARGEST_GROUP for side in stated_block):
            words = f"whole numbers from 1 to {LARGEST_GROUP:,} are expected"
            raise ModelConfigError(f"{_PART}.weight_block_size is {str(list(stated_block))[:40]!r}; {words}")
        block = stated_block or (0,)
        elements, step = block[0] * block[-1], math.lcm(block[0], block[-1])
        return Quantisation("fp8", 8, elements, 32 if elements else 16, kept=kept or ("lm_head", "embed"), step=step)
    if method in ("modelslim", "ascend"):
        return _modelslim(found, method, kept)
    if method == "mxfp4":
        return Quantisation("mxfp4", 4, 32, 8, kept=kept or ("lm_head", "embed", "attn"), experts_only=True)
    return stated(method, found, kept) or Quantisation(method or "unnamed", 16, kept=kept, known=False)


def _bits(part: Mapping[str, Any], name: str) -> float | None:
    """Return the bits of a weight, None where they are not stated.

    Raises:
        ModelConfigError: no weight has so many.
    """
    stated = _number(part, name)
    if stated is not None and not 1 <= stated <= MOST_BITS:
        raise ModelConfigError(f"{_PART}.{name} is {stated:g}; allowed: 1 to {MOST_BITS}")
    return stated


def _listed(part: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """Return a list of the quantisation's settings, empty where there is none.

    Raises:
        ModelConfigError: it is something else.
    """
    value = part.get(name)
    if value is not None and not isinstance(value, (list, tuple)):
        raise ModelConfigError(f"{_PART}.{name} is {str(value)[:40]!r}; a list is expected")
    return tuple(value or ())


def _number(part: Mapping[str, Any], name: str) -> float | None:
    """Return a number of the quantisation's settings, or None; -1 stands for no groups.

    Raises:
        ModelConfigError: it is none, or none that a checkpoint has.
    """
    value = part.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1 <= value <= LARGEST_GROUP:
        quoted = ", without quotes," if isinstance(value, str) else ""
        words = f"a number up to {LARGEST_GROUP:,}{quoted} is expected"
        raise ModelConfigError(f"{_PART}.{name} is {str(value)[:40]!r}; {words}")
    return float(value)


def kv_type_of(config: Mapping[str, Any]) -> str:
    """Return the KV type that a checkpoint is made for: ``fp8``, ``nvfp4``, or empty where it names none.

    Sources: ``kv_cache_scheme`` of compressed-tensors and ModelOpt, ``kv_cache_quant_algo`` of ModelOpt.
    """
    found = _settings(config)
    if not isinstance(found, dict):
        return ""
    nested = found.get("quantization")
    inner = nested if isinstance(nested, dict) else {}
    scheme = found.get("kv_cache_scheme") or inner.get("kv_cache_scheme")
    algorithm = found.get("kv_cache_quant_algo") or inner.get("kv_cache_quant_algo")
    if isinstance(scheme, dict):
        bits = scheme.get("num_bits") if scheme.get("type") == "float" else None
        if bits == 8 and scheme.get("dynamic") and kv_type_source(config).startswith("modelopt"):  # bits
            return ""
        return {8: "fp8", 4: "nvfp4"}.get(bits, "") if isinstance(bits, int) else ""
    return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(str(algorithm).lower(), "")


def kv_type_source(config: Mapping[str, Any]) -> str:
    """Return the kind of checkpoint that names a KV type and the field it does so in, by which engines differ.

    Such as ``modelopt kv_cache_quant_algo``; empty where none is named.
    """
    found = _settings(config)
    if not isinstance(found, dict):
        return ""
    nested = found.get("quantization")
    parts = (found, nested) if isinstance(nested, dict) else (found,)
    method = str(found.get("quant_method") or "").lower()
    method = "modelopt" if method.startswith("modelopt") else method
    for field in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if any(part.get(field) for part in parts):
            return f"{method} {field}".strip()
    return ""


def _settings(config: Mapping[str, Any]) -> object:
    inner = config.get("text_config")
    places = (
        config.get("quantization_config"),
        config.get("compression_config"),
        inner.get("quantization_config") if isinstance(inner, dict) else None,
    )
    said = [place for place in places if place is not None]
    return next(filter(None, said), next(iter(said), None))


def _compressed(found: Mapping[str, Any], kept: tuple[str, ...], method: str = "compressed-tensors") -> Quantisation:
    groups = found.get("config_groups")
    parts = list(groups.values()) if isinstance(groups, dict) else []
    described = [part for part in parts if isinstance(part, dict) and isinstance(part.get("weights"), dict)]
    if not described:
        return Quantisation(method, 16, kept=kept, known=False)
    ways = [_way(part, method, kept or _PLAIN) for part in described[:MOST_WAYS]]
    first = next((way for way in ways if not way.targets), ways[0])
    return replace(first, others=tuple(way for way in ways if way.targets and way is not first))


def _way(part: Mapping[str, Any], method: str, kept: tuple[str, ...]) -> Quantisation:
    """Return one of the ways in which a checkpoint stores weights; one of all layers has no `targets`."""
    weights = part["weights"]
    bits, group = _bits(weights, "num_bits") or 8.0, int(_number(weights, "group_size") or 0)
    floats = weights.get("type") == "float"
    block = weights.get("block_structure")
    if weights.get("strategy") == "block" and isinstance(block, list) and all(isinstance(side, int) for side in block):
        group = max(0, min(LARGEST_GROUP, math.prod(block)))
    scale = 8.0 if bits == 4 and floats else 16.0  # FP4 scales are stored in 8 bits
    zero = 0.0 if weights.get("symmetric", True) else bits
    step = max(0, group) if bits == 4 and not floats else 0  # other formats are padded
    whole = weights.get("strategy") == "tensor" or bits < 8
    targets = tuple(str(name) for name in _listed(part, "targets"))
    everything = not targets or any(name in ("Linear", "FusedMoE") for name in targets)
    return Quantisation(
        method,
        bits,
        max(0, group),
        scale,
        zero,
        kept,
        step=step,
        channel_bits=0.0 if whole else 32.0,
        targets=() if everything else targets,
    )


def _modelslim(found: Mapping[str, Any], method: str, kept: tuple[str, ...]) -> Quantisation:
    """Return how msModelSlim stored weights for NPUs: an output has a scale and an offset of 32 bits each.

    Source: SGLang's ``modelslim/schemes``. The bits are those of ``quant_model_description.json`` (`ledger.files`), or
    of its ``model_quant_type``.
    """
    if isinstance(found.get("config_groups"), dict):
        stored = _compressed(found, kept, method)
        others = tuple(replace(each, channel_bits=64.0, step=0) for each in stored.others)
        return replace(stored, channel_bits=64.0, step=0, others=others)
    bits = _WEIGHT_BITS.match(str(found.get("model_quant_type") or ""))
    if bits is None:
        return Quantisation(method, 16, kept=kept, known=False)
    return Quantisation(method, float(bits[1]), kept=kept or _PLAIN, channel_bits=64.0)


def _bitsandbytes(found: Mapping[str, Any], kept: tuple[str, ...]) -> Quantisation:
    if found.get("load_in_8bit"):
        return Quantisation("bitsandbytes", 8, kept=kept or ("lm_head", "embed"))
    double = bool(found.get("bnb_4bit_use_double_quant"))
    return Quantisation("bitsandbytes", 4, 64, 8.125 if double else 32, kept=kept or ("lm_head", "embed"))


def _modelopt(found: Mapping[str, Any], kept: tuple[str, ...]) -> Quantisation:
    nested = found.get("quantization")
    inner = nested.get("quant_algo") if isinstance(nested, dict) else None
    algorithm = str(found.get("quant_algo") or inner or "").lower()
    if algorithm == "mixed_precision":
        layers = found.get("quantized_layers") or (nested.get("quantized_layers") if isinstance(nested, dict) else None)
        return _by_layer(layers, kept) if isinstance(layers, dict) else Quantisation("modelopt", 16, known=False)
    if "nvfp4" in algorithm or "fp4" in algorithm:
        return Quantisation("nvfp4", 4, 16, 8, kept=kept or ("lm_head", "embed"))
    if "fp8" in algorithm:
        return Quantisation("fp8", 8, kept=kept or ("lm_head", "embed"))
    if "awq" in algorithm or "int4" in algorithm:
        return Quantisation("awq", 4, 128, 16, kept=kept or ("lm_head", "embed"))
    return Quantisation(f"modelopt {algorithm}".strip(), 16, kept=kept, known=False)


def _by_layer(layers: Mapping[str, Any], kept: tuple[str, ...]) -> Quantisation:
    """Return how ModelOpt stored modules that it names with the algorithm of each; others stay as they were.

    Source: ``ModelOptMixedPrecisionConfig`` in vLLM's ``layers/quantization/modelopt.py``.
    """
    named: dict[str, list[str]] = {}
    for name, recipe in layers.items():
        algorithm = recipe.get("quant_algo") if isinstance(recipe, dict) else None
        named.setdefault(str(algorithm).lower(), []).append(str(name))
    ways = [replace(_modelopt({"quant_algo": each}, kept), targets=tuple(names)) for each, names in named.items()]
    if not ways or len(ways) > MOST_WAYS or not all(way.known for way in ways):
        return Quantisation("modelopt mixed_precision", 16, kept=kept, known=False)
    return replace(ways[0], others=tuple(ways[1:]))


def stored_bits(quantisation: Quantisation) -> float:
    """Return the bits that one quantised weight takes, its share of scales and zero points included."""
    if not quantisation.group:
        return quantisation.bits
    return quantisation.bits + (quantisation.scale_bits + quantisation.zero_bits) / quantisation.group
