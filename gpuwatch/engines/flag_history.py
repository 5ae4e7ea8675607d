"""Which flags earlier versions of vLLM and SGLang had, as far as that is known: what between two lists can be judged.

Sources: ``engine/arg_utils.py`` and ``entrypoints/openai/cli_args.py`` of vLLM 0.8.4; the argument parser of SGLang
0.4.6. A name that an earlier list and the newest one share was there in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatch.engines.version import Version

_VLLM = """
additional-config allow-credentials allowed-headers allowed-local-media-path allowed-methods allowed-origins api-key
block-size chat-template chat-template-content-format code-revision collect-detailed-traces compilation-config config
config-format cpu-offload-gb data-parallel-size disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce
disable-fastapi-docs disable-log-stats disable-sliding-window disable-uvicorn-access-log distributed-executor-backend
download-dir dtype enable-auto-tool-choice enable-chunked-prefill enable-expert-parallel enable-lora
enable-prefix-caching enable-prompt-tokens-details enable-request-id-headers enable-server-load-tracking
enable-sleep-mode enable-ssl-refresh enforce-eager fully-sharded-loras generation-config gpu-memory-utilization help
hf-config-path hf-overrides hf-token host ignore-patterns kv-cache-dtype kv-transfer-config limit-mm-per-prompt
load-format long-prefill-token-threshold lora-dtype lora-modules max-cpu-loras max-log-len max-logprobs max-lora-rank
max-loras max-model-len max-num-batched-tokens max-num-seqs max-parallel-loading-workers middleware mm-processor-kwargs
model model-impl model-loader-extra-config num-gpu-blocks-override otlp-traces-endpoint override-generation-config
pipeline-parallel-size port prefix-caching-hash-algo quantization ray-workers-use-nsight reasoning-parser response-role
return-tokens-as-token-ids revision root-path scheduler-cls scheduling-policy seed served-model-name
show-hidden-metrics-for-version skip-tokenizer-init speculative-config ssl-ca-certs ssl-cert-reqs ssl-certfile
ssl-keyfile tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision tool-call-parser tool-parser-plugin
trust-remote-code use-tqdm-on-load uvicorn-log-level worker-cls worker-extension-cls
"""
"""Of vLLM 0.8.4: those that the newest version still has."""

_SGLANG = """
allow-auto-truncate api-key attention-backend base-gpu-id chat-template chunked-prefill-size completion-template
constrained-json-whitespace-pattern context-length cpu-offload-gb cuda-graph-bs cuda-graph-max-bs data-parallel-size
debug-tensor-dump-inject debug-tensor-dump-input-file debug-tensor-dump-output-folder decode-log-interval deepep-mode
delete-ckpt-after-loading device disable-chunked-prefix-cache disable-cuda-graph disable-cuda-graph-padding
disable-custom-all-reduce disable-fast-image-processor disable-outlines-disk-cache disable-overlap-schedule
disable-radix-cache disaggregation-bootstrap-port disaggregation-ib-device disaggregation-mode
disaggregation-transfer-backend dist-init-addr dist-timeout download-dir dp-size ds-channel-config-path
ds-heavy-channel-num ds-heavy-channel-type ds-heavy-token-num ds-sparse-decode-threshold dtype enable-cache-report
enable-custom-logit-processor enable-deepep-moe enable-double-sparsity enable-dp-attention enable-ep-moe
enable-flashinfer-mla enable-flashmla enable-hierarchical-cache enable-memory-saver enable-metrics enable-mixed-chunk
enable-multimodal enable-nan-detection enable-nccl-nvls enable-p2p-check enable-tokenizer-batch-encode
enable-torch-compile ep-size expert-parallel-size file-storage-path flashinfer-mla-disable-ragged gpu-id-step
grammar-backend help hicache-ratio hicache-size hicache-write-policy host is-embedding json-model-override-args
kv-cache-dtype load-balance-method load-format log-level log-level-http log-requests log-requests-level lora-backend
lora-paths max-loras-per-batch max-prefill-tokens max-running-requests max-total-tokens mem-fraction-static model-path
moe-dense-tp-size n-share-experts-fusion nccl-init-addr nnodes node-rank num-continuous-decode-steps page-size port
quantization quantization-param-path random-seed reasoning-parser revision sampling-backend schedule-conservativeness
schedule-policy served-model-name show-time-cost skip-tokenizer-init speculative-accept-threshold-acc
speculative-accept-threshold-single speculative-algorithm speculative-draft-model-path speculative-eagle-topk
speculative-num-draft-tokens speculative-num-steps speculative-token-map stream-interval stream-output
tensor-parallel-size tokenizer-mode tokenizer-path tool-call-parser torch-compile-max-bs torchao-config tp-size
triton-attention-num-kv-splits triton-attention-reduce-in-fp32 trust-remote-code warmups watchdog-timeout
"""
"""Of SGLang 0.4.6: all."""

_VLLM_ALWAYS = """
allow-credentials allowed-headers allowed-methods allowed-origins api-key block-size chat-template
disable-custom-all-reduce disable-log-stats download-dir dtype enable-lora enforce-eager gpu-memory-utilization help
host load-format lora-modules max-lora-rank max-loras max-model-len max-num-batched-tokens max-num-seqs
max-parallel-loading-workers model pipeline-parallel-size port quantization response-role revision root-path seed
served-model-name ssl-certfile ssl-keyfile tensor-parallel-size tokenizer tokenizer-mode trust-remote-code
"""

_SGLANG_ALWAYS = """
api-key chat-template chunked-prefill-size context-length data-parallel-size disable-cuda-graph disable-radix-cache
dp-size dtype enable-mixed-chunk enable-p2p-check enable-torch-compile file-storage-path help host
json-model-override-args kv-cache-dtype load-balance-method load-format log-level log-requests max-prefill-tokens
max-running-requests max-total-tokens mem-fraction-static model-path nnodes node-rank port quantization random-seed
schedule-conservativeness schedule-policy served-model-name skip-tokenizer-init stream-interval tensor-parallel-size
tokenizer-mode tokenizer-path tp-size trust-remote-code
"""

EARLIER: dict[str, tuple[Version, frozenset[str]]] = {
    "vllm": ((0, 8, 4), frozenset(_VLLM.split())),
    "sglang": ((0, 4, 6), frozenset(_SGLANG.split())),
}
"""By engine: an earlier version, and flags that it had."""
_ALWAYS = {"vllm": frozenset(_VLLM_ALWAYS.split()), "sglang": frozenset(_SGLANG_ALWAYS.split())}
_ALL_OF = frozenset({"sglang"})
"""Engines whose earlier list has every flag of that version."""


def lasts(engine: str, version: Version, name: str) -> bool:
    """Return whether a flag of the newest version is known to have been in `version`, an earlier one."""
    since, flags = EARLIER[engine]
    return name in (flags if version >= since else _ALWAYS[engine])


def came_later(engine: str, version: Version, name: str) -> bool:
    """Return whether a flag of the newest version is known not to have been in `version` yet.

    The version of the list itself says nothing: ``0.4.6.post5`` has flags that ``0.4.6`` does not.
    """
    since, flags = EARLIER[engine]
    return engine in _ALL_OF and version < since and not any(flag.startswith(name) for flag in flags)
