"""How many words each launch flag takes, as the argument parsers of vLLM and SGLang count them.

Printed by the parsers of vLLM 0.32.0 and SGLang 0.5.23; the switches of earlier versions are switches there as well,
but for those that took ``True`` and ``False`` as words (``StoreBoolean`` in vLLM 0.8.4's ``engine/arg_utils.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.engines.flag_names import COMPLETE
from gpuwatch.engines.flags import FLAGS

if TYPE_CHECKING:
    from gpuwatch.engines.version import Version

Arity: TypeAlias = Literal["none", "one", "several"]

# Switches whose names do not say so by enable- or disable-
_VLLM_SWITCHES = """
aggregate-engine-logging allow-credentials allow-deprecated-quantization async-scheduling cohere-is-reasoning-model
cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb data-parallel-multi-port-external-lb dcp-q-replicate
enforce-eager exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras grpc headless help
interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill language-model-only log-error-stack
long-prefill-token-threshold-adaptive mm-device-do-normalize mm-encoder-only numa-bind ray-workers-use-nsight
return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init
sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay tokens-only trust-remote-code
trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel use-replayssm use-tqdm-on-load
"""

_SGLANG_SWITCHES = """
abort-on-priority-when-disabled allow-auto-truncate checkpoint-engine-wait-weights-before-ready
constrained-json-disable-any-whitespace dcp-replicate-q-proj debug-cuda-graph delete-ckpt-after-loading
disaggregation-decode-enable-offload-kvcache disaggregation-decode-enable-radix-cache disaggregation-enable-kv-checksum
dllm-fdfo encoder-only enforce-disable-flashinfer-allreduce-fusion enforce-shared-experts-fusion
experts-shared-outer-loras export-metrics-to-file flashinfer-mla-disable-ragged grpc-mode help
incremental-streaming-output is-embedding language-model-only language-only log-requests lora-strict-loading
lora-use-virtual-experts mlx-enable-sampling mm-enable-dp-encoder ple-offload-embedding pre-warm-nccl
prefill-only-disable-kv-cache quantize-and-serve remote-instance-weight-loader-start-seed-via-transfer-engine
return-input-ids return-output-ids schedule-low-priority-values-first show-time-cost skip-server-warmup
skip-tokenizer-init sleep-on-idle smg-grpc-mode speculative-adaptive
speculative-dspark-align-verify-tokens-to-graph-tier speculative-enable-w4a4-mxfp4-megamoe
speculative-use-block-verification speculative-use-rejection-sampling stream-response-default-include-usage
strip-thinking-cache triton-attention-reduce-in-fp32 trust-mm-content-hashes trust-remote-code
trust-request-chat-template use-ray weight-loader-disable-mmap weight-loader-drop-cache-after-load
weight-loader-prefetch-checkpoints
"""

_VLLM_SEVERAL = """
allowed-media-domains api-key collect-detailed-traces cpu-offload-params cudagraph-capture-sizes ignore-patterns
kv-cache-dtype-skip-layers logits-processors lora-modules lora-target-modules numa-bind-cpus numa-bind-nodes
offload-params served-model-name sleep-preserve-parameter-names
"""

_SGLANG_SEVERAL = """
allowed-media-domains bucket-e2e-request-latency bucket-inter-token-latency bucket-time-to-first-token
cuda-graph-bs-decode cuda-graph-bs-prefill custom-weight-loader debug-tensor-dump-layers encoder-register-urls
encoder-urls flashinfer-autotune-skip-ops gc-threshold generation-tokens-buckets log-requests-target lora-paths
lora-target-modules numa-node prefill-delayer-forward-passes-buckets prefill-delayer-wait-seconds-buckets
prompt-tokens-buckets return-aux-hidden-state-layer-ids tokenizer-metrics-allowed-custom-labels
uvicorn-access-log-exclude-prefixes
"""

_SGLANG_OPTIONAL = """
dcp-replicate-q-proj dllm-fdfo enable-decoder-swa-bounded-replay enable-dsa-fused-indexer enable-fused-qk-norm-rope
enable-tf32-matmul enable-tp-lm-head-all-to-all experts-shared-outer-loras lora-strict-loading mm-enable-dp-encoder
ple-offload-embedding speculative-enable-w4a4-mxfp4-megamoe
"""

_SWITCHES = {"vllm": frozenset(_VLLM_SWITCHES.split()), "sglang": frozenset(_SGLANG_SWITCHES.split())}
_SEVERAL = {"vllm": frozenset(_VLLM_SEVERAL.split()), "sglang": frozenset(_SGLANG_SEVERAL.split())}
_NAMED_LIKE_SWITCHES = ("disable-access-log-for-endpoints",)
_WITHOUT_OFF = (
    "aggregate-engine-logging",
    "data-parallel-multi-port-external-lb",
    "disable-log-stats",
    "grpc",
    "headless",
    "help",
)
"""Switches of vLLM that have no ``--no-`` form."""
_WITH_OFF = frozenset(_SGLANG_OPTIONAL.split())
"""Switches of SGLang that have one."""
_OFF_SINCE = (0, 9, 0)
"""vLLM all of whose switches have a ``--no-`` form, but for `_WITHOUT_OFF`."""
_OFF_BEFORE = ("enable-prefix-caching", "use-tqdm-on-load")
"""Those that had one in 0.8.4."""
_TRUE_OR_FALSE = ("enable-chunked-prefill", "disable-chunked-mm-input")
_TRUE_OR_FALSE_TO = (0, 8, 99)


def arity(engine: str, name: str) -> Arity | None:
    """Return how many words a long flag (in full, without dashes) takes; None where that is not known."""
    if name.startswith("no-") and arity(engine, name[3:]) == "none":
        return "none"
    flag = FLAGS[engine].get(name)
    if name in _SEVERAL[engine] or (flag is not None and flag.kind == "secret"):
        return "several"
    if name not in COMPLETE[engine][1]:
        kinds: dict[str, Arity] = {"bool": "none", "int": "one", "float": "one"}
        return kinds.get(flag.kind) if flag is not None else None
    likely = name.startswith(("enable-", "disable-")) and name not in _NAMED_LIKE_SWITCHES
    return "none" if likely or name in _SWITCHES[engine] else "one"


def takes_truth(engine: str, version: Version, name: str) -> bool:
    """Return whether a switch takes ``True`` or ``False`` as a word in `version`."""
    return engine == "vllm" and name in _TRUE_OR_FALSE and version <= _TRUE_OR_FALSE_TO


def has_off(engine: str, version: Version, name: str) -> bool:
    """Return whether a switch has the form ``--no-NAME`` in `version`."""
    if engine == "sglang":
        return name in _WITH_OFF
    return name not in _WITHOUT_OFF if version >= _OFF_SINCE else name in _OFF_BEFORE
