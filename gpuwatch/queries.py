"""The catalogue: every figure on a screen, report or dashboard is one named PromQL query.

`$__rate_interval` stands for the window of a rate: a few seconds on the local store, Grafana's variable on a
dashboard, four scrape intervals on a remote Prometheus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Scope: TypeAlias = Literal["gpu", "engine", "server", "host", "self"]

WINDOW = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """One figure: its PromQL, unit, meaning, and which thing it is about."""

    name: str
    scope: Scope
    unit: str
    template: str
    meaning: str

    def expr(self, window: str) -> str:
        """Return the PromQL with `window` (such as ``10s``) as the rate window."""
        return self.template.replace(WINDOW, window)


def _table(scope: Scope, rows: str) -> list[Query]:
    """Read rows of ``name | unit | PromQL | meaning``; metric names are written without their prefix as ``@name``."""
    queries = []
    for row in rows.strip().splitlines():
        name, unit, template, meaning = (part.strip() for part in row.split(" | ", 3))
        queries.append(Query(name, scope, unit, template.replace("@", f"gpuwatch_{_PREFIX[scope]}"), meaning))
    return queries


_PREFIX: dict[Scope, str] = {"gpu": "gpu_", "engine": "engine_", "server": "engine_", "host": "host_", "self": ""}

_GPU = """
gpu_info                | none    | @info                             | name and driver of each GPU
gpu_state               | none    | @state == 1                       | the state each GPU is in
gpu_unresponsive        | seconds | @unresponsive_seconds             | time since the GPU last answered
gpu_memory_total        | bytes   | @memory_total_bytes               | memory of the card
gpu_memory_used         | bytes   | @memory_used_bytes                | memory in use
gpu_memory_free         | bytes   | @memory_free_bytes                | memory neither used nor reserved
gpu_memory_reserved     | bytes   | @memory_reserved_bytes            | memory the driver keeps
gpu_memory_peak         | bytes   | @memory_peak_bytes                | highest used memory of the last minute
gpu_memory_engine       | bytes   | @memory_engine_bytes              | memory of an engine's processes
gpu_memory_other        | bytes   | @memory_other_bytes               | memory of other visible processes
gpu_memory_unattributed | bytes   | @memory_unattributed_bytes        | used memory that no visible process owns
gpu_engine              | none    | @engine                           | which engine uses the GPU
gpu_busy                | ratio   | @busy_ratio                       | share of time a kernel ran
gpu_bandwidth_busy      | ratio   | @memory_bandwidth_busy_ratio      | share of time memory was read or written
gpu_sm_clock            | hertz   | @sm_clock_hertz                   | SM clock
gpu_power               | watts   | @power_watts                      | power draw
gpu_power_limit         | watts   | @power_limit_watts                | power limit
gpu_temperature         | celsius | @temperature_celsius              | GPU temperature
gpu_pcie_width          | none    | @pcie_link_width                  | PCIe lanes now
gpu_pcie_width_max      | none    | @pcie_link_width_max              | most PCIe lanes of card and slot
gpu_pcie_receive        | bytes/s | rate(@pcie_receive_bytes_total[$__rate_interval]) | bytes received over PCIe
gpu_pcie_transmit       | bytes/s | rate(@pcie_transmit_bytes_total[$__rate_interval]) | bytes sent over PCIe
gpu_throttle            | ratio   | rate(@throttle_seconds_total[$__rate_interval]) > 0 | share of time with lowered clocks, by reason
gpu_xid                 | count   | @xid_errors_total > 0             | Xid errors since start
"""

_ENGINE = """
kv_usage                | ratio   | @kv_cache_usage_ratio             | used part of the KV pool
kv_tokens               | tokens  | @kv_cache_tokens                  | tokens the KV pool holds
kv_free_tokens          | tokens  | @kv_cache_free_tokens             | free tokens of the KV pool
kv_blocks               | count   | @kv_cache_blocks                  | blocks of the KV pool
kv_block_size           | tokens  | @kv_block_size_tokens             | tokens in one KV block
running                 | count   | @requests_running                 | requests in the batch
waiting                 | count   | @requests_waiting                 | requests in the queue
waiting_by_reason       | count   | @requests_waiting_by_reason > 0   | why requests wait
swapped                 | count   | @requests_swapped                 | requests swapped to the host
prompt_rate             | tokens/s | rate(@prompt_tokens_total[$__rate_interval]) | prompt tokens per second
generation_rate         | tokens/s | rate(@generation_tokens_total[$__rate_interval]) | generated tokens per second
preemption_rate         | per second | rate(@preemptions_total[1m])   | preemptions per second as the engine counts them, late on vLLM V1
eviction_rate           | per second | rate(@evictions_total[1m])     | evictions per second seen from outside
finish_rate             | per second | sum by (host, server, engine_kind, model_name, dp_rank) (rate(@requests_finished_total[1m])) | finished requests per second
prefix_enabled          | none    | @prefix_cache_enabled            | 1 when prefix caching is on, 0 when off
prefix_hit_ratio        | ratio   | rate(@prefix_cache_hits_total[1m]) / (rate(@prefix_cache_queries_total[1m]) > 0) or @prefix_cache_hit_ratio >= 0 | share of prompt tokens found in the prefix cache
ttft_p50                | seconds | histogram_quantile(0.5, rate(@time_to_first_token_seconds_bucket[1m])) | median time to first token
ttft_p95                | seconds | histogram_quantile(0.95, rate(@time_to_first_token_seconds_bucket[1m])) | 95th percentile of the time to first token
itl_p50                 | seconds | histogram_quantile(0.5, rate(@inter_token_latency_seconds_bucket[1m])) | median time between tokens
itl_p95                 | seconds | histogram_quantile(0.95, rate(@inter_token_latency_seconds_bucket[1m])) | 95th percentile of the time between tokens
queue_p95               | seconds | histogram_quantile(0.95, rate(@queue_time_seconds_bucket[1m])) | 95th percentile of the time in the queue
seconds_since_token     | seconds | @seconds_since_token              | time since a token came while requests ran
asleep                  | none    | @asleep == 1                      | engines that sleep
"""

_SERVER = """
engine_info             | none    | @info                             | version of each engine
max_num_seqs            | count   | @config_max_num_seqs              | most requests in a batch
max_model_len           | tokens  | @config_max_model_len_tokens      | longest request
tensor_parallel_size    | count   | @config_tensor_parallel_size      | tensor-parallel ranks
weights                 | bytes   | @config_weights_bytes             | weights per GPU
kv_cache_bytes          | bytes   | @config_kv_cache_bytes            | KV pool per GPU
activation_peak         | bytes   | @config_activation_peak_bytes     | profiled activation peak
graph_bytes             | bytes   | @config_graph_bytes               | CUDA graph memory
engine_cpu              | cores   | rate(@process_cpu_seconds_total[$__rate_interval]) | cores the engine's processes use
engine_resident         | bytes   | @process_resident_bytes           | resident memory of the engine's processes
"""

_HOST = """
host_cpu                | ratio   | @cpu_busy_ratio                   | share of all cores in use
host_memory_total       | bytes   | @memory_total_bytes               | memory of the machine
host_memory_available   | bytes   | @memory_available_bytes           | memory that programs can still get
host_swap_used          | bytes   | @swap_used_bytes                  | swap in use
host_shm_total          | bytes   | @shm_total_bytes                  | size of /dev/shm
host_shm_used           | bytes   | @shm_used_bytes                   | used part of /dev/shm
nvml_unresponsive       | seconds | @nvml_unresponsive_seconds        | time since the NVML worker last answered
"""

_SELF = """
own_cpu                 | cores   | rate(gpuwatch_process_cpu_seconds_total[$__rate_interval]) | cores gpuwatch uses
own_resident            | bytes   | gpuwatch_process_resident_bytes   | memory of gpuwatch
own_tick                | seconds | gpuwatch_tick_seconds             | time of the last tick
"""

QUERIES: dict[str, Query] = {
    query.name: query
    for query in [
        *_table("gpu", _GPU),
        *_table("engine", _ENGINE),
        *_table("server", _SERVER),
        *_table("host", _HOST),
        *_table("self", _SELF),
    ]
}
"""Every named query."""
