"""Which launch flags each version of vLLM and SGLang has, and which of them are known traps.

Sources: ``engine/arg_utils.py`` of vLLM 0.2.7 to 0.33, ``srt/server_args.py`` of SGLang 0.2.15 to 0.5.23, and reports of
failures that these settings caused. A flag that is in neither table is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.engines.version import Span, parse_span, parse_version, show_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.engines.log_pattern import Value
    from gpuwatch.engines.version import Version

ProblemKind: TypeAlias = Literal["unknown", "risky"]

# flag | versions that have it (never: of the other engine, or of none) | what does the same elsewhere (~: by other values)
_VLLM_SPANS = """
api-server-count                | 0.9.1- |
calculate-kv-scales             | 0.7.0-0.27 | a checkpoint with KV scales
chunked-prefill-size            | never | --max-num-batched-tokens
cpu-offload-gb                  | 0.5.3- |
cudagraph-capture-sizes         | 0.11.1- | ~--compilation-config
data-parallel-external-lb       | 0.9.2- |
data-parallel-size              | 0.8.0- |
decode-context-parallel-size    | 0.10.2- |
disable-hybrid-kv-cache-manager | 0.9.1- |
distributed-executor-backend    | 0.4.3- | ~--worker-use-ray
enable-chunked-prefill          | 0.4.1- |
enable-expert-parallel          | 0.8.0- |
enable-mfu-metrics              | 0.14- |
enable-prefix-caching           | 0.4.1- |
enable-sleep-mode               | 0.7.0- |
hf-overrides                    | 0.6.3- | ~--rope-scaling
kv-cache-dtype                  | 0.3.3- |
kv-cache-memory-bytes           | 0.10.2- | ~--gpu-memory-utilization
kv-cache-metrics                | 0.12- |
kv-offloading-size              | 0.11.1- | ~--kv-transfer-config
kv-transfer-config              | 0.6.5- |
limit-mm-per-prompt             | 0.5.5- |
long-prefill-token-threshold    | 0.7.3- | ~--max-num-batched-tokens
max-cudagraph-capture-size      | 0.11.1- | ~--compilation-config
max-num-partial-prefills        | 0.7.3-0.26 | ~--long-prefill-token-threshold
max-num-queued-reqs             | 0.29- |
mm-processor-kwargs             | 0.6.2- |
ngram-prompt-lookup-max         | 0.5.0-0.8.2 | --speculative-config
ngram-prompt-lookup-min         | 0.5.0-0.8.2 | --speculative-config
num-gpu-blocks-override         | 0.4.1- |
num-scheduler-steps             | 0.5.5-0.10.0 |
num-speculative-tokens          | 0.4.1-0.8.2 | --speculative-config
performance-mode                | 0.17- |
preemption-mode                 | 0.5.1-0.10.2 |
prefill-context-parallel-size   | 0.12- |
rope-scaling                    | 0.4.3-0.11.0 | --hf-overrides
rope-theta                      | 0.5.0-0.11.0 | --hf-overrides
scheduler-reserve-full-isl      | 0.19- |
show-hidden-metrics-for-version | 0.8.0- |
speculative-draft-tensor-parallel-size | 0.5.0-0.8.2 | --speculative-config
speculative-max-model-len       | 0.4.1-0.8.2 | --speculative-config
speculative-model               | 0.4.1-0.8.2 | --speculative-config
speculative-model-quantization  | 0.6.0-0.8.2 | --speculative-config
swap-space                      | 0.2.7-0.17 |
async-scheduling                | 0.10.0- |
"""

_SGLANG_SPANS = """
cuda-graph-max-bs                 | 0.2.15-0.5.18 | --cuda-graph-max-bs-decode
cuda-graph-max-bs-decode          | 0.5.14- | --cuda-graph-max-bs
dcp-size                          | 0.5.16- |
enable-dp-attention               | 0.3.6- |
enable-metrics-for-all-schedulers | 0.4.10- |
page-size                         | 0.4.4- |
"""

# Flags that gpuwatch does not read, judged by their names alone
_VLLM_NAMED = """
cp-kv-cache-interleave-size     | 0.12- |
dcp-kv-cache-interleave-size    | 0.11.1- |
device-memory-utilization       | 0.31- | --gpu-memory-utilization
kv-cache-dtype-skip-layers      | 0.19- |
kv-cache-metrics-sample         | 0.12- |
kv-offloading-backend           | 0.11.1- |
mamba-block-size                | 0.11.1- |
mamba-cache-dtype               | 0.10.1- |
mamba-cache-mode                | 0.16- |
mamba-ssm-cache-dtype           | 0.10.1- |
max-long-partial-prefills       | 0.7.3-0.26 |
max-num-active-seqs             | 0.31- |
max-num-queued-tokens           | 0.29- |
prefill-schedule-interval       | 0.24- |
prefix-cache-retention-interval | 0.29- |
prefix-caching-hash-algo        | 0.8.4- |
prefix-match-unit               | 0.26- |
watermark                       | 0.24- |
"""

_SGLANG_NAMED = """
attn-cp-size                      | 0.5.9- |
collect-tokens-histogram          | 0.4.7-0.5.11 |
cuda-graph-max-bs-prefill         | 0.5.14- |
enable-kv-cache-sharding          | 0.5.22- |
"""

# flag | versions | when | what happens | what to set instead (empty: remove it)
# `when`: any, =VALUE, >NUMBER, <NUMBER, or with:FLAG (another flag is given as well)
_VLLM_TRAPS = """
swap-space | 0.11.0-0.17 | any | it has no effect: this engine computes preempted requests again and never swaps |
swap-space | 0.2.7-0.10.2 | >16 | it is taken from the host's memory once per GPU, and pinned | 4
preemption-mode | 0.8.0-0.10.2 | =swap | it has no effect: this engine computes preempted requests again and never swaps |
cpu-offload-gb | 0.5.3- | >0 | it moves weights, not KV cache, to the host: every step reads them back over PCIe |
kv-cache-dtype | 0.3.3-0.20 | =nvfp4 | this version takes no such type: it came with 0.21 | fp8
kv-cache-dtype | 0.3.3-0.8.5 | =int8_per_token_head | this version takes no such type: it came later | fp8
kv-cache-dtype | 0.3.3-0.8.5 | =int4_per_token_head | this version takes no such type: it came later | fp8
kv-cache-dtype | 0.3.3-0.8.5 | =fp8_per_token_head | this version takes no such type: it came later | fp8
kv-cache-dtype | 0.3.3-0.8.5 | =float16 | this version takes no such type: it came later | auto
kv-cache-dtype | 0.3.3-0.8.5 | =bfloat16 | this version takes no such type: it came later | auto
gpu-memory-utilization | 0.2.7- | >0.95 | CUDA contexts, communication buffers and the next peak share the few percent that are left | 0.92
gpu-memory-utilization | 0.10.2- | with:kv-cache-memory-bytes | it has no effect beside --kv-cache-memory-bytes, which fixes the pool |
scheduler-reserve-full-isl | 0.19- | =false | prompts are admitted when their first chunk fits: near a full pool their prefill is thrown away and repeated | true
"""

_SGLANG_TRAPS = """
mem-fraction-static | 0.2.15- | >0.9 | activations and CUDA graphs get less than a tenth of the memory that was free before loading | 0.88
chunked-prefill-size | 0.2.15- | =-1 | a long prompt is computed in one step: decoding stands still meanwhile, and activations take memory for all of it | 8192
enable-metrics-for-all-schedulers | 0.4.10- | =true | every tensor-parallel rank reports the same requests: a sum over the series counts them once per rank |
decode-log-interval | 0.4.4- | >100 | the gauges are refreshed every that many decode steps: what is shown is old | 40
kv-cache-dtype | 0.4.2- | =fp8 | it is no value of this flag: the type must say its format | fp8_e4m3
kv-cache-dtype | 0.2.15-0.4.1 | =fp8 | it is no value of this flag: the type must say its format | fp8_e5m2
kv-cache-dtype | 0.2.15-0.4.1 | =fp8_e4m3 | this version takes no such type: it came with 0.4.2 | fp8_e5m2
kv-cache-dtype | 0.2.15-0.5.3 | =bf16 | this version takes no such type: it came with 0.5.4 | auto
kv-cache-dtype | 0.2.15-0.5.3 | =bfloat16 | this version takes no such type: it came with 0.5.4 | auto
kv-cache-dtype | 0.4.2-0.5.4 | =fp4_e2m1 | this version takes no such type: it was there from 0.5.5 to 0.5.20 | fp8_e4m3
kv-cache-dtype | 0.5.21- | =fp4_e2m1 | this version takes no such type: it was there from 0.5.5 to 0.5.20 | nvfp4
kv-cache-dtype | 0.4.2-0.5.15 | =mxfp8 | this version takes no such type: it came with 0.5.16 | fp8_e4m3
kv-cache-dtype | 0.4.2-0.5.15 | =nvfp4 | this version takes no such type: it came with 0.5.16 | fp8_e4m3
kv-cache-dtype | 0.4.2-0.5.15 | =fp4_mx_block16 | this version takes no such type: it came with 0.5.16 | fp8_e4m3
"""

_NEVER: tuple[Span, ...] = ()
LAST_PATCH = 99
"""No minor version has had so many patch releases."""


@dataclass(frozen=True, slots=True)
class FlagProblem:
    """What is wrong with one launch flag. `proposed` is the value to set; empty: remove the flag.

    `instead` is what does the same; with `carries` it takes the value as it is.
    """

    flag: str
    kind: ProblemKind
    value: str
    text: str
    instead: str = ""
    proposed: str = ""
    carries: bool = True


@dataclass(frozen=True, slots=True)
class _Availability:
    spans: tuple[Span, ...]
    instead: str
    carries: bool


@dataclass(frozen=True, slots=True)
class _Trap:
    flag: str
    span: Span
    when: str
    text: str
    proposed: str


def _span(text: str) -> Span:
    """Read a range; a last version without a patch number stands for all its patches."""
    span = parse_span(text)
    if span.high is None or text.rpartition("-")[2].count(".") > 1:
        return span
    return Span(span.low, (span.high[0], span.high[1], LAST_PATCH))


def _read_spans(rows: str) -> dict[str, _Availability]:
    table = {}
    for row in rows.strip().splitlines():
        flag, versions, instead = (part.strip() for part in row.split("|", 2))
        spans = _NEVER if versions == "never" else (_span(versions),)
        table[flag] = _Availability(spans, instead.removeprefix("~"), carries=not instead.startswith("~"))
    return table


def _read_traps(rows: str) -> tuple[_Trap, ...]:
    table = []
    for row in rows.strip().splitlines():
        flag, versions, when, text, proposed = (part.strip() for part in row.split("|", 4))
        table.append(_Trap(flag, _span(versions), when, text, proposed))
    return tuple(table)


_SPANS = {"vllm": _read_spans(_VLLM_SPANS), "sglang": _read_spans(_SGLANG_SPANS)}
_NAMED = {"vllm": _read_spans(_VLLM_NAMED), "sglang": _read_spans(_SGLANG_NAMED)}
_FIRST = {"vllm": parse_version("0.2.7"), "sglang": parse_version("0.2.15")}
"""The first version of each engine that the tables know."""
_TRAPS = {"vllm": _read_traps(_VLLM_TRAPS), "sglang": _read_traps(_SGLANG_TRAPS)}


def _row(engine: str, flag: str) -> _Availability | None:
    return _SPANS.get(engine, {}).get(flag) or _NAMED.get(engine, {}).get(flag)


def unknown_flag(engine: str, version: str, flag: str) -> FlagProblem | None:
    """Return why `version` of `engine` does not have `flag` (without dashes), or None where it does or is not known."""
    row = _row(engine, flag)
    if row is None:
        return None
    if not row.spans:
        words = f"no version of {_TITLES[engine]} has --{flag}"
        return FlagProblem(flag, "unknown", "", words, row.instead, carries=row.carries)
    parsed = parse_version(version)
    if parsed is None or any(parsed in span for span in row.spans):
        return None
    spans = ", ".join(map(_show_span, row.spans))
    text = f"{_TITLES[engine]} {show_version(parsed)} does not have --{flag}; it exists in {spans}"
    return FlagProblem(flag, "unknown", "", text, row.instead, carries=row.carries)


def risky_flags(engine: str, version: str, flags: Mapping[str, Value]) -> tuple[FlagProblem, ...]:
    """Return the known traps among launch flags, given by name without dashes; nothing where the version is unknown."""
    parsed = parse_version(version)
    if parsed is None:
        return ()
    return tuple(
        FlagProblem(trap.flag, "risky", show(flags[trap.flag]), trap.text, "", trap.proposed)
        for trap in _TRAPS.get(engine, ())
        if trap.flag in flags and parsed in trap.span and _holds(trap.when, flags[trap.flag], flags)
    )


def always_risky(engine: str, flags: Mapping[str, Value]) -> tuple[FlagProblem, ...]:
    """Return the traps among launch flags that every version has: what holds where the version is not known."""
    first = _FIRST.get(engine)
    return tuple(
        FlagProblem(trap.flag, "risky", show(flags[trap.flag]), trap.text, "", trap.proposed)
        for trap in _TRAPS.get(engine, ())
        if trap.flag in flags
        and trap.span.low == first
        and trap.span.high is None
        and _holds(trap.when, flags[trap.flag], flags)
    )


def flag_problems(engine: str, version: str, flags: Mapping[str, Value]) -> tuple[FlagProblem, ...]:
    """Return everything that is wrong with launch flags: those that the version does not have first."""
    unknown = [unknown_flag(engine, version, flag) for flag in flags]
    return (*(problem for problem in unknown if problem is not None), *risky_flags(engine, version, flags))


def available(engine: str, version: Version | None, flag: str) -> bool:
    """Return whether `version` has `flag` for certain; False where either is not known."""
    row = _row(engine, flag)
    return row is not None and version is not None and any(version in span for span in row.spans)


def risky_above(engine: str, flag: str) -> float:
    """Return the number above which `flag` is a known trap. Raises StopIteration where the table has none."""
    return next(float(trap.when[1:]) for trap in _TRAPS[engine] if trap.flag == flag and trap.when[0] == ">")


def show(value: Value) -> str:
    """Return the value of a flag as a user types it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _show_span(span: Span) -> str:
    if span.high is None or span.high[2] != LAST_PATCH:
        return str(span)
    return f"{show_version(span.low)} to {span.high[0]}.{span.high[1]}"


def _holds(when: str, value: Value, flags: Mapping[str, Value]) -> bool:
    if when == "any":
        return True
    if when.startswith("with:"):
        return when[5:] in flags
    if when[0] == "=":
        return show(value) == when[1:]
    if isinstance(value, (bool, str)):
        return False
    return value > float(when[1:]) if when[0] == ">" else value < float(when[1:])


_TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
