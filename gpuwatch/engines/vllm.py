"""vLLM's metrics, V0 names and V1 names up to 0.33: what each becomes, and what can be computed from one page.

Version ranges are those of the sources that were read (0.2.7 to 0.33.0); the true first version of a metric may be one
patch release earlier. Counters are given by their sample name. Names of `KNOWN` are recognised and not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.engines.metric import read_table, words

if TYPE_CHECKING:
    from gpuwatch.engines.version import Version

# upstream | target without gpuwatch_engine_ | versions | options | on what else it depends
TABLE = read_table("""
num_requests_running               | requests_running                | V0 0.2.7-0.11.0, V1 0.7.1- | |
num_requests_waiting               | requests_waiting                | V0 0.2.7-0.11.0, V1 0.7.1- | |
num_requests_waiting_by_reason     | requests_waiting_by_reason      | V1 0.20- | reason<-reason |
num_requests_swapped               | requests_swapped                | V0 0.2.7-0.8.3 | | hidden from 0.8.4 on
kv_cache_usage_perc                | kv_cache_usage_ratio            | V1 0.9.2- | |
gpu_cache_usage_perc               | kv_cache_usage_ratio            | V0 0.2.7-0.11.0, V1 0.7.1-0.10.2 | |
kv_offload_cpu_cache_usage_perc    | kv_offload_usage_ratio          | V1 0.24- | | with --kv-offloading-size
kv_offload_load_bytes_total        | kv_offload_loaded_bytes_total   | V1 0.24- | | with --kv-offloading-size
kv_offload_total_bytes_total       | kv_offload_loaded_bytes_total   | V1 0.16- | if:transfer_type=CPU_to_GPU | with --kv-offloading-size
kv_offload_store_bytes_total       | kv_offload_stored_bytes_total   | V1 0.24- | | with --kv-offloading-size
kv_offload_total_bytes_total       | kv_offload_stored_bytes_total   | V1 0.16- | if:transfer_type=GPU_to_CPU | with --kv-offloading-size
num_preemptions_total              | preemptions_total               | V0 0.4.3-0.11.0, V1 0.8.0- | |
request_success_total              | requests_finished_total         | V0 0.4.2-0.11.0, V1 0.7.2- | reason<-finished_reason |
admission_rejections_total         | requests_rejected_total         | V1 0.32- | reason<-reason |
prompt_tokens_total                | prompt_tokens_total             | V0 0.3.3-0.11.0, V1 0.7.1- | |
generation_tokens_total            | generation_tokens_total         | V0 0.3.3-0.11.0, V1 0.7.1- | |
prompt_tokens_by_source_total      | prompt_tokens_computed_total    | V1 0.16- | if:source=local_compute |
prompt_tokens_cached_total         | prompt_tokens_cached_total      | V1 0.16- | |
prefix_cache_queries_total         | prefix_cache_queries_total      | V1 0.9.2- | |
prefix_cache_hits_total            | prefix_cache_hits_total         | V1 0.9.2- | |
gpu_prefix_cache_queries_total     | prefix_cache_queries_total      | V1 0.7.3-0.10.2 | | blocks up to 0.8.5, tokens from 0.9.0
gpu_prefix_cache_hits_total        | prefix_cache_hits_total         | V1 0.7.3-0.10.2 | | blocks up to 0.8.5, tokens from 0.9.0
gpu_prefix_cache_hit_rate          | prefix_cache_hit_ratio          | V0 0.5.5-0.8.3 | | -1 where caching is off; hidden from 0.8.4 on
external_prefix_cache_queries_total | external_prefix_cache_queries_total | V1 0.11.1- | |
external_prefix_cache_hits_total   | external_prefix_cache_hits_total | V1 0.11.1- | |
spec_decode_num_draft_tokens_total | spec_decode_draft_tokens_total  | V0 0.5.3-0.9.2, V1 0.8.4- | | with speculative decoding
spec_decode_num_accepted_tokens_total | spec_decode_accepted_tokens_total | V0 0.5.3-0.9.2, V1 0.8.4- | | with speculative decoding
engine_sleep_state                 | asleep                          | V1 0.11.1- | if:sleep_state=awake not |
time_to_first_token_seconds        | time_to_first_token_seconds     | V0 0.3.3-0.11.0, V1 0.7.1- | |
inter_token_latency_seconds        | inter_token_latency_seconds     | V0 0.10.2-0.11.0, V1 0.10.2- | |
time_per_output_token_seconds      | inter_token_latency_seconds     | V0 0.3.3-0.11.0, V1 0.7.1-0.11.2 | |
request_time_per_output_token_seconds | time_per_output_token_seconds | V1 0.11.0- | |
e2e_request_latency_seconds        | e2e_latency_seconds             | V0 0.3.3-0.11.0, V1 0.7.3- | |
request_queue_time_seconds         | queue_time_seconds              | V0 0.6.4-0.11.0, V1 0.7.3- | |
time_in_queue_requests             | queue_time_seconds              | V0 0.6.4-0.8.3 | | hidden from 0.8.4 on
request_prefill_time_seconds       | prefill_time_seconds            | V0 0.6.4-0.11.0, V1 0.7.3- | |
request_decode_time_seconds        | decode_time_seconds             | V0 0.6.4-0.11.0, V1 0.7.3- | |
request_prompt_tokens              | prompt_length_tokens            | V0 0.4.2-0.11.0, V1 0.7.1- | |
request_generation_tokens          | generation_length_tokens        | V0 0.4.2-0.11.0, V1 0.7.1- | |
request_params_max_tokens          | max_tokens_asked                | V0 0.6.4-0.11.0, V1 0.8.0- | |
iteration_tokens_total             | iteration_tokens                | V0 0.6.4-0.11.0, V1 0.7.3- | |
""")

KNOWN = words("""
avg_generation_throughput_toks_per_s avg_prompt_throughput_toks_per_s cache_config cache_config_info
corrupted_requests_total cpu_cache_usage_perc cpu_prefix_cache_hit_rate estimated_flops_per_gpu_total
estimated_read_bytes_per_gpu_total estimated_write_bytes_per_gpu_total kv_block_idle_before_evict_seconds
kv_block_lifetime_seconds kv_block_reuse_gap_seconds lora_requests_info mm_cache_hits_total mm_cache_queries_total
model_execute_time_milliseconds model_forward_time_milliseconds num_requests_kv_fetch_by_stage
prompt_tokens_cached_by_source_total prompt_tokens_recomputed_total request_inference_time_seconds
request_max_num_generation_tokens request_num_preemptions request_params_best_of request_params_n
request_prefill_kv_computed_tokens sleep_mode_operation_duration_seconds sleep_mode_operations_in_flight
spec_decode_draft_acceptance_rate spec_decode_efficiency spec_decode_num_accepted_tokens_per_pos_total
spec_decode_num_drafts_total spec_decode_num_emitted_tokens_total tokens_total tool_call_parser_invocations_total
watermark_requests_total
""")
KNOWN_FAMILIES = (
    "diffusion_",
    "hf3fs_",
    "hisparse_",
    "kv_offload_",
    "mooncake_",
    "nixl_",
    "rl_weight_update_",
    "simple_kv_offload_",
    "umbp_",
    "websocket_connections_",
)

NULL_BLOCK_SINCE: Version = (0, 10, 2)
"""From here on usage is counted over the usable blocks, all but the null block (``v1/core/block_pool.py``)."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What the labels of ``vllm:cache_config_info`` say about one rank; None where they do not.

    Every attribute of vLLM's CacheConfig is a label with its Python text as the value, "None" included.
    """

    block_size: int | None = None
    blocks: int | None = None
    tokens: int | None = None
    override: int | None = None
    memory_fraction: float | None = None
    prefix_caching: bool | None = None
    dtype: str = ""


def cache_config(labels: dict[str, str], ranks: int) -> CacheConfig:
    """Read the labels of one rank's ``cache_config_info`` on a page with `ranks` engines.

    * ``num_gpu_blocks`` is the sum over all engines, repeated at each (seen on a page of 0.32 with two). Where it does
      not divide evenly the ranks differ and nobody's share is known. "None" in V1 0.8.0 to 0.8.5.
    * ``kv_cache_size_tokens`` (0.24 on) is per engine and right for hybrid models too. Before, tokens are blocks times
      block size, which is wrong for models with state layers (``mamba_block_size`` is set): unknown then.
    * ``gpu_memory_utilization`` has no effect while ``kv_cache_memory_bytes`` is set, and is left out then.
    """
    block_size = _integer(labels.get("block_size"))
    total = _integer(labels.get("num_gpu_blocks"))
    blocks = total // ranks if total is not None and ranks > 0 and total % ranks == 0 else None
    tokens = _integer(labels.get("kv_cache_size_tokens"))
    if tokens is None and blocks is not None and block_size is not None:
        tokens = None if _integer(labels.get("mamba_block_size")) is not None else blocks * block_size
    fixed = _integer(labels.get("kv_cache_memory_bytes")) is not None
    return CacheConfig(
        block_size=block_size,
        blocks=blocks,
        tokens=tokens,
        override=_integer(labels.get("num_gpu_blocks_override")),
        memory_fraction=None if fixed else _number(labels.get("gpu_memory_utilization")),
        prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
        dtype=labels.get("cache_dtype", "").replace("None", ""),
    )


def free_tokens(usage: float, config: CacheConfig, *, null_block: bool) -> float | None:
    """Return the free KV tokens of a rank at `usage` (0 to 1).

    None where the size of its pool is unknown, or `usage` is not a number.

    vLLM computes usage as 1 - free / (blocks - 1) where the null block is left out (`NULL_BLOCK_SINCE`), before as
    1 - free / blocks. Where tokens are not blocks times block size (hybrid models) the share is taken of the tokens.
    """
    if config.tokens is None or not math.isfinite(usage):
        return None
    blocks, size = config.blocks, config.block_size
    if blocks is None or size is None or blocks * size != config.tokens:
        return float(max(0, round((1.0 - usage) * config.tokens)))
    return float(max(0, round((1.0 - usage) * (blocks - 1 if null_block else blocks)) * size))


def has_null_block(version: Version | None, names: frozenset[str]) -> bool:
    """Return whether usage leaves the null block out, by version, else by the names on the page.

    Without a version: pages with `kv_cache_usage_perc` alone are 0.11 or newer, pages with only the old name 0.9.1 or
    older. Pages with both are taken as 0.10.2, the last and longest used of them; the error is at most one block.
    """
    if version is not None:
        return version >= NULL_BLOCK_SINCE
    return "kv_cache_usage_perc" in names


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
