"""Values that the argument parsers of vLLM and SGLang refuse, with what they were meant to be.

Sources: the parsers of vLLM 0.32.0 and SGLang 0.5.23 and 0.4.6; ``engine/arg_utils.py`` of vLLM 0.8.4.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_names import NEAR, in_full
from gpuwatch.engines.flag_versions import unknown_flag
from gpuwatch.engines.flags import FLAGS
from gpuwatch.engines.sizes import count_of
from gpuwatch.engines.version import parse_version, show_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.engines.version import Version

_TYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
_MEANT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_LASTING_TYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4")
"""KV types that vLLM 0.8.4 had, and one whose first version is known (`engines.flag_versions`)."""
_RANKS = (8, 16, 32, 64, 128, 256)
"""Ranks of adapters that every version of vLLM takes."""
_MORE_RANKS = (1, 320, 512)
_PAIRS = re.compile(r"[a-z_]+=\d+(?:,[a-z_]+=\d+)*")
_SGLANG_METHODS = """
auto-round auto-round-int8 awq awq_marlin bitsandbytes compressed-tensors fp8 gguf gptq gptq_marlin humming mlx_q4
mlx_q8 modelopt modelopt_fp4 modelopt_fp8 modelopt_mixed modelslim moe_wna16 mxfp4 mxfp8 mxfp_w4a8 nvfp4_online
petit_nvfp4 quark quark_int4fp8_moe quark_mxfp4 unquant w4afp8 w8a8_fp8 w8a8_int8
"""
"""``--quantization`` of SGLang 0.5.23."""

_DIGITS = re.compile(r"\s*[-+]?\d+\s*")
_SUFFIXED = {
    "vllm": ("max-model-len", "max-num-batched-tokens", "kv-cache-memory-bytes", "max-num-queued-reqs"),
    "sglang": ("context-length", "max-total-tokens", "max-prefill-tokens"),
}
"""Counts that take suffixes in the newest version; all others are plain digits in every version."""
_PLAIN_TO = {"vllm": ((0, 8, 4), ("max-num-batched-tokens",)), "sglang": ((0, 4, 6), _SUFFIXED["sglang"])}
"""The version up to which those are plain digits as well."""
_SGLANG_SUFFIX = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<ten>[kMGT])|(?P<whole>\d+)(?P<two>[KMGT]i)")
_TEN = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_TWO = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def refused_value(engine: str, version: Version, name: str, value: str) -> tuple[str, str] | None:
    """Return why a version refuses the value of a flag, and the value that was meant; None where it takes it.

    Raises:
        ValueError: it is none of a list that is known, and says nothing that was meant.
    """
    if name == "dtype" and value not in _TYPES:
        meant = _MEANT.get(value.lower(), value.lower() if value.lower() in _TYPES else "auto")
        return f"it takes {', '.join(_TYPES)}, not {value[:40]!r}", meant
    if engine == "vllm" and name == "max-lora-rank":
        return _rank(value)
    first, last = NEAR[engine]
    near = version >= first
    if engine == "vllm" and near and name == "limit-mm-per-prompt" and _PAIRS.fullmatch(value):
        pairs = (pair.split("=") for pair in value.split(","))
        return "it takes JSON", json.dumps({key: int(count) for key, count in pairs})
    listed = near and version <= last
    if engine == "sglang" and listed and name == "quantization" and value not in _SGLANG_METHODS.split():
        raise ValueError(f"--quantization is {value[:40]!r}; allowed: {', '.join(_SGLANG_METHODS.split())}")
    return _count(engine, version, name, value)


def is_undated_type(engine: str, version: str, kv_type: str) -> bool:
    """Return whether vLLM's KV type is one that the newest version has, and nobody knows since when."""
    parsed = parse_version(version)
    old = parsed is not None and parsed < NEAR[engine][0]
    return engine == "vllm" and old and kv_type not in _LASTING_TYPES


def in_digits(engine: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with SGLang's own suffixes (``1M`` is 1,000,000, ``1Ki`` 1,024) as plain digits.

    Source: ``human_readable_int`` in ``srt/utils/common.py``.
    """
    words, before = [], ""
    for word in arguments:
        spelling, equals, value = word.partition("=")
        name = (spelling if equals else before).removeprefix("--").replace("_", "-")
        if engine == "sglang" and in_full(engine, name) in _SUFFIXED["sglang"]:
            words.append(f"{spelling}={_sglang_count(value)}" if equals else _sglang_count(word))
        else:
            words.append(word)
        before = word if word.startswith("--") and not equals else ""
    return words


def _sglang_count(text: str) -> str:
    found = _SGLANG_SUFFIX.fullmatch(text)
    if found is None:
        return text
    if found["two"]:
        return str(int(found["whole"]) * _TWO[found["two"]])
    return str(int(Decimal(found["number"]) * _TEN[found["ten"]]))


def _rank(value: str) -> tuple[str, str] | None:
    number = count_of(value)
    if number is None or number in _RANKS or number in _MORE_RANKS:
        return None
    larger = next((rank for rank in (*_RANKS, *_MORE_RANKS) if rank >= number), None)
    allowed = ", ".join(map(str, sorted((*_RANKS, *_MORE_RANKS))))
    if larger is None:
        raise ValueError(f"--max-lora-rank is {number}; allowed: {allowed}")
    return f"it takes {allowed}, not {number}", str(larger)


def _count(engine: str, version: Version, name: str, value: str) -> tuple[str, str] | None:
    """Return what is wrong with the suffix of a count, and the count in digits."""
    flag = FLAGS[engine].get(name)
    number = count_of(value)
    if flag is None or flag.kind != "int" or number is None or _DIGITS.fullmatch(value):
        return None
    if unknown_flag(engine, show_version(version), name) is not None:
        return None  # which is what is wrong
    last, names = _PLAIN_TO[engine]
    if name not in _SUFFIXED[engine] or (version <= last and name in names):
        return f"it takes a number in plain digits, not {value[:40]!r}", str(number)
    if engine == "sglang" and version >= NEAR[engine][0] and not _SGLANG_SUFFIX.fullmatch(value):
        return f"it takes a number, or one with k, M or Ki, Mi, not {value[:40]!r}", str(number)
    return None
