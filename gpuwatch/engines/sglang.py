"""SGLang's metrics, 0.3.6 to 0.5.23: what each becomes, and what can be computed from one page.

Two kinds of processes count. Schedulers (one per data-parallel rank that reports) own running, queue, pool and
retraction figures, with `dp_rank` where there is data parallelism. The tokenizer process owns latency and token
counters, without a rank. Children of a counter appear with their first event.

`cache_hit_rate` is used up to 0.4.3 only: from 0.4.4 to 0.5.18 each decode report set it to 0.
"""

from __future__ import annotations

from gpuwatch.engines.metric import read_table, words

# upstream | target without gpuwatch_engine_ (~: input of derived values) | versions | options | on what else it depends
TABLE = read_table("""
num_running_reqs                   | requests_running                | 0.3.6- | |
num_queue_reqs                     | requests_waiting_by_reason      | 0.3.6- | reason=capacity |
num_queue_reqs                     | ~queue                          | 0.3.6- | |
num_grammar_queue_reqs             | ~grammar_queue                  | 0.4.7- | |
num_prefill_bootstrap_queue_reqs   | ~bootstrap_queue                | 0.5.12- | | prefill server
num_prefill_prealloc_queue_reqs    | ~bootstrap_queue                | 0.4.7-0.5.10 | | prefill server
num_decode_prealloc_queue_reqs     | ~prealloc_queue                 | 0.4.7- | | decode server
num_decode_transfer_queue_reqs     | ~transfer_queue                 | 0.4.7- | | decode server
full_token_usage                   | kv_cache_usage_ratio            | 0.5.10- | |
token_usage                        | kv_cache_usage_ratio            | 0.3.6- | |
token_usage                        | ~token_usage                    | 0.3.6- | |
swa_token_usage                    | ~swa_token_usage                | 0.5.2- | |
swa_token_usage                    | kv_cache_swa_usage_ratio        | 0.5.2-0.5.17 | unless:weight_memory_usage_gb |
max_total_num_tokens_swa           | ~swa_tokens                     | 0.5.18- | | sliding-window model
max_total_num_tokens               | kv_cache_tokens                 | 0.5.6- | |
kv_available_tokens                | ~available                      | 0.5.12- | |
kv_evictable_tokens                | kv_cache_evictable_tokens       | 0.5.12- | |
page_size                          | kv_block_size_tokens            | 0.5.12- | |
num_pages                          | kv_cache_blocks                 | 0.5.12- | |
hicache_host_used_tokens           | ~host_used                      | 0.5.10- | | with --enable-hierarchical-cache
hicache_host_total_tokens          | ~host_total                     | 0.5.10- | | with --enable-hierarchical-cache
load_back_tokens_total             | kv_offload_loaded_tokens_total  | 0.5.6- | | with --enable-hierarchical-cache
num_retracted_requests_total       | preemptions_total               | 0.5.7- | zero:scheduler |
new_token_ratio                    | new_token_ratio                 | 0.5.6- | |
num_requests_total                 | requests_finished_total         | 0.4.2- | reason=finished zero:tokenizer |
num_aborted_requests_total         | requests_finished_total         | 0.4.7- | reason=abort zero:tokenizer |
prompt_tokens_total                | prompt_tokens_total             | 0.3.6- | zero:tokenizer |
generation_tokens_total            | generation_tokens_total         | 0.3.6- | zero:tokenizer |
realtime_tokens_total              | prompt_tokens_computed_total    | 0.5.7- | if:mode=prefill_compute zero:scheduler |
cached_tokens_total                | prompt_tokens_cached_total      | 0.4.4- | zero:tokenizer |
prompt_tokens_total                | prefix_cache_queries_total      | 0.4.4- | zero:tokenizer |
cached_tokens_total                | prefix_cache_hits_total         | 0.4.4- | if:cache_source=device/total/ zero:tokenizer |
cached_tokens_total                | external_prefix_cache_hits_total | 0.5.9- | if:cache_source!device/total/ zero:tokenizer |
cache_hit_rate                     | prefix_cache_hit_ratio          | 0.3.6-0.4.3 | unless:cached_tokens_total unless-label:engine_type |
context_len                        | config_max_model_len_tokens     | 0.5.12- | |
weight_memory_usage_gb             | config_weights_bytes            | 0.5.18- | gib |
kv_cache_memory_usage_gb           | config_kv_cache_bytes           | 0.5.18- | gib |
graph_memory_usage_gb              | config_graph_bytes              | 0.5.18- | gib total |
time_to_first_token_seconds        | time_to_first_token_seconds     | 0.3.6- | | with the first request
inter_token_latency_seconds        | inter_token_latency_seconds     | 0.4.4- | | with the first request
time_per_output_token_seconds      | inter_token_latency_seconds     | 0.3.6-0.4.4 | | with the first request
request_time_per_output_token_seconds | time_per_output_token_seconds | 0.5.22- | | with the first request
e2e_request_latency_seconds        | e2e_latency_seconds             | 0.3.6- | | with the first request
queue_time_seconds                 | queue_time_seconds              | 0.5.3- | | with the first request
queue_time_s                       | queue_time_seconds              | 0.5.2-0.5.2 | | with the first request
per_stage_req_latency_seconds      | prefill_time_seconds            | 0.5.3- | if:stage=prefill_forward | with the first request
per_stage_req_latency_seconds      | decode_time_seconds             | 0.5.3- | if:stage=decode_forward | with the first request
prompt_tokens_histogram            | prompt_length_tokens            | 0.4.7- | | before 0.5.12 with --collect-tokens-histogram
generation_tokens_histogram        | generation_length_tokens        | 0.4.7- | | before 0.5.12 with --collect-tokens-histogram
""")

KNOWN = words("""
avg_request_queue_latency cache_config_info decode_sum_seq_lens engine_load_weights_time engine_startup_time
evicted_tokens_total eviction_duration_seconds forward_execution_seconds_total func_latency_seconds fwd_occupancy
gen_throughput get_loads_duration_seconds gpu_execution_seconds_total is_cuda_graph cuda_graph_passes_total kv_used_tokens
load_back_duration_seconds mamba_usage max_running_requests_under_SLO num_bootstrap_failed_reqs_total
num_paused_reqs num_prefill_infight_queue_reqs num_prefill_inflight_queue_reqs
num_prefill_retries_total num_retracted_input_tokens_total num_retracted_output_tokens_total num_retracted_reqs
num_retractions num_so_requests_total num_streaming_sessions num_transfer_failed_reqs_total num_unique_running_routing_keys
num_used_tokens pending_prealloc_token_usage prefill_effective_tokens_total process_cpu_seconds_total
startup_available_gpu_memory_gb startup_cuda_graph_time_seconds startup_time_seconds streaming_session_held_tokens
total_retracted_reqs uncached_prompt_tokens_histogram utilization weight_load_duration_seconds http_requests_active
http_requests_total http_responses_total
""")
KNOWN_FAMILIES = (
    "backup",
    "dp_attention_",
    "dp_cooperation_",
    "eplb_",
    "estimated_",
    "grammar_",
    "hicache_",
    "kv_transfer_",
    "lora_pool_",
    "mamba_",
    "num_grammar_",
    "prefetch",
    "prefill_delayer_",
    "routing_key_",
    "scheduler_",
    "spec_",
    "swa_",
)


def precise_usage(available: float, evictable: float, total: float) -> float:
    """Return the used part of the pool, 1 - (available + evictable) / total.

    SGLang's own `token_usage` is this rounded to two decimals, and the highest of all pools of a hybrid model.
    """
    return max(0.0, 1.0 - (available + evictable) / total) if total > 0 else float("nan")


def free_from_usage(usage: float, total: float) -> float:
    """Return the free tokens of a pool of `total` tokens, evictable ones included, from a usage of two decimals."""
    return max(0.0, (1.0 - usage) * total)


def share(used: float, total: float) -> float:
    """Return used / total, NaN (absent) for an empty pool."""
    return used / total if total > 0 else float("nan")
