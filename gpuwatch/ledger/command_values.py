"""What the values of a launch command's flags may be: those that a plan uses, as the engines themselves check them.

Sources: ``engine/arg_utils.py`` and ``config/`` of vLLM, ``srt/server_args.py`` of SGLang.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.engines.flags import FLAGS, parse_flags
from gpuwatch.engines.sizes import MOST_RANKS, count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST = 10**9
"""Tokens, sequences and blocks: nothing that is asked for is larger."""
KV_TYPES = re.compile(
    r"auto|bf16|bfloat16|fp16|float16|int8|int4|nvfp4|fp4|mxfp4|fp8\w*|nvfp4\w*|int[48]_per_token_head|fp4_e2m1|turboquant\w*|octave\w*|ultraquant_4bit|mxfp8|fp4_mx_block16"
)
"""KV types that a plan computes, those of no engine among them."""
KV_TYPES_SHOWN = "auto, bf16, fp16, fp8, fp8_e4m3, fp8_e5m2, int8, int4, nvfp4"
_VLLM_TYPES = re.compile(
    r"auto|float16|bfloat16|fp8(_e4m3|_e5m2|_inc|_ds_mla|_per_token_head)?|int[48]_per_token_head"
    r"|nvfp4(_ds_mla|_4over6)?|(turboquant|octave)_\w+|ultraquant_4bit"
)
_SGLANG_TYPES = re.compile(r"auto|fp8|fp8_e5m2|fp8_e4m3|bf16|bfloat16|fp4_e2m1|mxfp8|nvfp4|fp4_mx_block16")
"""``fp8`` is none of SGLang's, and is repaired; which version has which is in `engines.flag_versions`."""


@dataclass(frozen=True, slots=True)
class _Allowed:
    words: str
    holds: Callable[[str], bool]


def _count(low: int, high: int, *, special: Sequence[str] = ()) -> _Allowed:
    words = f"a whole number of {low:,} to {high:,}" + "".join(f", or {word}" for word in special)

    def holds(text: str) -> bool:
        number = count_of(text)
        return text in special or (number is not None and low <= number <= high)

    return _Allowed(words, holds)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _is_block(text: str) -> bool:
    number = count_of(text)
    return number is not None and (number in (1, 8) or (0 < number <= LONGEST and number % 16 == 0))


_RANKS = _count(1, MOST_RANKS)
_MANY = _count(1, LONGEST)
_BYTES = _count(1, 10**15)
_GIBS = _Allowed("GiB, 0 or more", lambda text: 0 <= _number(text) <= 1e6)
_SHARE = _Allowed("above 0, at most 1", lambda text: 0 < _number(text) <= 1)
_VLLM_TYPE = _Allowed(
    "auto, float16, bfloat16, fp8, fp8_e4m3, fp8_e5m2, nvfp4, int8_per_token_head and others",
    lambda text: _VLLM_TYPES.fullmatch(text) is not None,
)
_SGLANG_TYPE = _Allowed(
    "auto, fp8_e4m3, fp8_e5m2, bf16, bfloat16, mxfp8, nvfp4, fp4_mx_block16",
    lambda text: _SGLANG_TYPES.fullmatch(text) is not None,
)
_ALLOWED: dict[str, dict[str, _Allowed]] = {
    "vllm": {
        "tensor-parallel-size": _RANKS,
        "pipeline-parallel-size": _RANKS,
        "data-parallel-size": _RANKS,
        "decode-context-parallel-size": _RANKS,
        "prefill-context-parallel-size": _RANKS,
        "max-model-len": _count(1, LONGEST, special=("-1", "auto")),
        "max-num-seqs": _MANY,
        "max-num-batched-tokens": _MANY,
        "block-size": _Allowed("1, 8, or a multiple of 16", _is_block),
        "num-gpu-blocks-override": _MANY,
        "kv-cache-memory-bytes": _BYTES,
        "kv-cache-dtype": _VLLM_TYPE,
        "gpu-memory-utilization": _SHARE,
        "cpu-offload-gb": _GIBS,
        "kv-offloading-size": _GIBS,
    },
    "sglang": {
        "tp-size": _RANKS,
        "pp-size": _RANKS,
        "dp-size": _RANKS,
        "dcp-size": _RANKS,
        "context-length": _MANY,
        "max-running-requests": _MANY,
        "max-total-tokens": _MANY,
        "chunked-prefill-size": _count(1, LONGEST, special=("-1",)),
        "page-size": _MANY,
        "kv-cache-dtype": _SGLANG_TYPE,
        "mem-fraction-static": _SHARE,
        "hicache-size": _GIBS,
    },
}


def check_values(engine: str, arguments: Sequence[str]) -> None:
    """Check the values that a plan uses.

    Raises:
        ValueError: one is not what the engine takes, or missing; the message says which flag, its value, and what is
            allowed.
    """
    given = parse_flags(engine, arguments)
    for name, allowed in _ALLOWED[engine].items():
        text = given.get(name)
        if text is not None and text != "None" and not allowed.holds(text):
            raise ValueError(f"--{name} is {text[:40]!r}; allowed: {allowed.words}")
    for word in arguments:
        if not word.startswith("-") or word[1:2].isdigit():
            continue
        spelling = word.partition("=")[0]
        flag = FLAGS[engine].get(spelling[2:].replace("_", "-") if spelling.startswith("--") else spelling)
        if flag is not None and flag.name not in given and flag.name in _ALLOWED[engine]:
            raise ValueError(f"--{flag.name} has no value; allowed: {_ALLOWED[engine][flag.name].words}")
