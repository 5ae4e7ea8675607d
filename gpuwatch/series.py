"""The vocabulary: every ``gpuwatch_*`` series, with its type, unit, labels and meaning. One line per metric.

Rules, queries, screens, the exporter and `docs/metrics.md` use these names only. Base units throughout: bytes,
seconds, ratios of 0 to 1, watts, hertz, joules, degrees Celsius. A gauge that cannot be read is absent, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]

GPU = ("host", "uuid", "gpu")
ENGINE = ("host", "server", "engine_kind", "model_name", "dp_rank")
SERVER = ("host", "server", "engine_kind")
HOST = ("host",)
LOG = ("host", "log", "server")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family as it is exported."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str


def _table(labels: tuple[str, ...], rows: str) -> list[Metric]:
    """Read rows of ``name | type | unit | extra labels | help``; the labels of the group come first."""
    metrics = []
    for row in rows.strip().splitlines():
        name, kind, unit, extra, text = (part.strip() for part in row.split("|", 4))
        assert kind in ("gauge", "counter", "histogram"), row
        metrics.append(Metric("gpuwatch_" + name, kind, unit, labels + tuple(extra.split()), text))  # type: ignore[arg-type]  # asserted above
    return metrics


_GPU_ROWS = """
gpu_info                        | gauge | | name pci_bus_id driver_version memory_kind architecture | identity of the GPU, value 1; memory_kind is dedicated, unified or mig
gpu_state                       | gauge | | state | 1 for the state the GPU is in: ok, lost, hung (a call of the driver does not return), late (no new reading, though no call hangs), resetting, no_permission, failed; 0 for the others
gpu_unresponsive_seconds        | gauge | seconds | | time since the GPU last answered a call, while it hangs
gpu_memory_total_bytes          | gauge | bytes | | memory of the card
gpu_memory_used_bytes           | gauge | bytes | | memory in use, as NVML counts it, without the driver's reserve
gpu_memory_used_low_bytes       | gauge | bytes | | lowest used memory seen at 10 Hz since the previous tick
gpu_memory_used_high_bytes      | gauge | bytes | | highest used memory seen at 10 Hz since the previous tick
gpu_memory_peak_bytes           | gauge | bytes | | highest used memory of the last 60 seconds
gpu_memory_step_bytes           | gauge | bytes | | largest rise of used memory within the last 60 seconds while every engine on the GPU answered; of steady growth, within 10 seconds
gpu_memory_transient_bytes      | gauge | bytes | | most memory that was taken and given back within the last 60 seconds, while engines served
gpu_memory_reserved_bytes       | gauge | bytes | | memory the driver keeps for itself
gpu_memory_free_bytes           | gauge | bytes | | memory that is neither used nor reserved
gpu_memory_engine_bytes         | gauge | bytes | server | memory of the processes of one engine on this GPU
gpu_memory_other_bytes          | gauge | bytes | | memory of visible processes that belong to no known engine
gpu_memory_unattributed_bytes   | gauge | bytes | | used memory that no visible process owns
gpu_processes                   | gauge | | | processes that NVML lists on the GPU
gpu_processes_hidden            | gauge | | | processes that NVML lists on the GPU and this machine's process table does not show
gpu_engine                      | gauge | | server basis | 1 where the engine uses this GPU; basis says how that is known: process, environment or config
gpu_busy_ratio                  | gauge | ratio | | share of the sample period in which a kernel ran
gpu_memory_bandwidth_busy_ratio | gauge | ratio | | share of the sample period in which memory was read or written
gpu_sm_active_ratio             | gauge | ratio | | share of time an SM had a warp, averaged over SMs (GPM, Hopper and newer)
gpu_tensor_active_ratio         | gauge | ratio | | share of time a tensor pipe was active (GPM)
gpu_dram_active_ratio           | gauge | ratio | | share of time DRAM moved data (GPM)
gpu_sm_clock_hertz              | gauge | hertz | | SM clock
gpu_sm_clock_max_hertz          | gauge | hertz | | highest SM clock of the card
gpu_memory_clock_hertz          | gauge | hertz | | memory clock
gpu_power_watts                 | gauge | watts | | power draw
gpu_power_limit_watts           | gauge | watts | | enforced power limit
gpu_power_limit_default_watts   | gauge | watts | | power limit that the card has after a reset
gpu_energy_joules_total         | counter | joules | | energy since the driver was loaded
gpu_temperature_celsius         | gauge | celsius | | GPU temperature
gpu_memory_temperature_celsius  | gauge | celsius | | HBM temperature
gpu_throttle_seconds_total      | counter | seconds | reason | time with lowered clocks: power, thermal, sync_boost, board_limit, reliability, sw_thermal, hw_thermal, power_brake
gpu_clocks_event_active         | gauge | | reason | 1 while a clocks event reason is active
gpu_pcie_link_generation        | gauge | | | PCIe generation now; falls when idle
gpu_pcie_link_generation_max    | gauge | | | highest PCIe generation of card and slot
gpu_pcie_link_width             | gauge | | | PCIe lanes now
gpu_pcie_link_width_max         | gauge | | | most PCIe lanes of card and slot
gpu_pcie_transmit_bytes_total   | counter | bytes | | bytes sent over PCIe
gpu_pcie_receive_bytes_total    | counter | bytes | | bytes received over PCIe
gpu_pcie_replays_total          | counter | | | PCIe replays
gpu_nvlink_transmit_bytes_total | counter | bytes | | bytes sent over all NVLinks
gpu_nvlink_receive_bytes_total  | counter | bytes | | bytes received over all NVLinks
gpu_ecc_errors_total            | counter | | type | ECC errors since the driver was loaded: corrected, uncorrected
gpu_row_remap_pending           | gauge | | | 1 when a row remap waits for a reset
gpu_row_remap_failed            | gauge | | | 1 when a row could not be remapped
gpu_recovery_action             | gauge | | | what the driver asks for: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset
gpu_xid_errors_total            | counter | | xid | Xid errors seen since gpuwatch started, by NVML or in the kernel log, each counted once
gpu_xid_last_time_seconds       | gauge | seconds | xid | when the Xid was last seen, seconds since the epoch
gpu_reading_absent              | gauge | | reading reason | 1 while a reading that findings rest on cannot be had: memory_used_bytes, busy_ratio, processes
"""

_ENGINE_ROWS = """
engine_kv_cache_usage_ratio              | gauge | ratio | | used part of the KV pool; cached blocks that nobody uses count as free
engine_kv_cache_blocks                   | gauge | | | KV blocks of this rank's pool, the null block included
engine_kv_cache_tokens                   | gauge | tokens | | tokens that the KV pool of this rank holds
engine_kv_block_size_tokens              | gauge | tokens | | tokens in one KV block (SGLang: page)
engine_kv_cache_free_tokens              | gauge | tokens | | free tokens in the pool, evictable cached tokens included
engine_kv_cache_evictable_tokens         | gauge | tokens | | cached tokens that nobody uses
engine_kv_cache_swa_usage_ratio          | gauge | ratio | | used part of the sliding-window pool
engine_kv_offload_usage_ratio            | gauge | ratio | | used part of the host's KV offload space
engine_kv_offload_loaded_bytes_total     | counter | bytes | | KV cache read back from the offload space (vLLM)
engine_kv_offload_stored_bytes_total     | counter | bytes | | KV cache written to the offload space (vLLM)
engine_kv_offload_loaded_tokens_total    | counter | tokens | | tokens whose KV cache was read back from the host (SGLang)
engine_requests_running                  | gauge | | | requests in the running batch
engine_requests_waiting                  | gauge | | | requests in the queue
engine_requests_waiting_by_reason        | gauge | | reason | requests in the queue: capacity, deferred
engine_requests_swapped                  | gauge | | | requests swapped to the host (vLLM V0)
engine_preemptions_total                 | counter | | | preemptions or retractions as the engine counts them; vLLM V1 counts late
engine_evictions_total                   | counter | | | running requests that left without finishing, seen from outside: a lower bound
engine_requests_finished_total           | counter | | reason | requests that ended: stop, length, abort, error, …
engine_requests_rejected_total           | counter | | reason | requests refused at admission
engine_prompt_tokens_total               | counter | tokens | | prompt tokens, cached ones included
engine_generation_tokens_total           | counter | tokens | | generated tokens
engine_prompt_tokens_computed_total      | counter | tokens | | prompt tokens that were computed
engine_prompt_tokens_cached_total        | counter | tokens | | prompt tokens found in a cache
engine_prefix_cache_queries_total        | counter | | | prefix-cache look-ups, in tokens (vLLM 0.7.3 to 0.8.5: blocks)
engine_prefix_cache_hits_total           | counter | | | prefix-cache hits, in the unit of the look-ups
engine_prefix_cache_hit_ratio            | gauge | ratio | | hit ratio as the engine reports it, where it has no counters
engine_external_prefix_cache_queries_total | counter | tokens | | look-ups in a KV connector
engine_external_prefix_cache_hits_total  | counter | tokens | | hits in a KV connector
engine_spec_decode_draft_tokens_total    | counter | tokens | | drafted tokens
engine_spec_decode_accepted_tokens_total | counter | tokens | | accepted draft tokens
engine_new_token_ratio                   | gauge | ratio | | SGLang's estimate of how much of a request's output still comes
engine_asleep                            | gauge | | | 1 while the engine sleeps
engine_time_to_first_token_seconds       | histogram | seconds | | arrival to first token
engine_inter_token_latency_seconds       | histogram | seconds | | time between two tokens
engine_time_per_output_token_seconds     | histogram | seconds | | mean time per output token of a finished request
engine_e2e_latency_seconds               | histogram | seconds | | arrival to last token
engine_queue_time_seconds                | histogram | seconds | | time in the queue
engine_prefill_time_seconds              | histogram | seconds | | first scheduled to first token
engine_decode_time_seconds               | histogram | seconds | | first to last token
engine_prompt_length_tokens              | histogram | tokens | | prompt length of finished requests
engine_generation_length_tokens          | histogram | tokens | | output length of finished requests
engine_max_tokens_asked                  | histogram | tokens | | max_tokens of finished requests
engine_iteration_tokens                  | histogram | tokens | | tokens in one engine step
engine_seconds_since_token               | gauge | seconds | | time since a token came while requests ran; 0 while idle
engine_page_frozen_seconds               | gauge | seconds | | time for which no value of the page changed while requests were open
engine_request_length_seen_tokens        | gauge | tokens | | most KV tokens held per running request in the last 5 minutes: a lower bound of the request length
engine_prefix_cache_enabled              | gauge | | | 1 when prefix caching is on, 0 when off
engine_num_gpu_blocks_override           | gauge | | | KV blocks forced by --num-gpu-blocks-override
engine_cache_config_info                 | gauge | | cache_dtype | KV cache settings, value 1
"""

_SERVER_ROWS = """
engine_info                              | gauge | | version role | version of the engine where it is known, value 1
engine_config_max_num_seqs               | gauge | | | most requests in a batch (vLLM --max-num-seqs, SGLang --max-running-requests)
engine_config_max_model_len_tokens       | gauge | tokens | | longest request that is accepted
engine_config_max_num_batched_tokens     | gauge | tokens | | token budget of one step (SGLang: chunked prefill size)
engine_config_memory_fraction_ratio      | gauge | ratio | | vLLM --gpu-memory-utilization (of total memory), SGLang --mem-fraction-static (of free memory)
engine_config_tensor_parallel_size       | gauge | | | tensor-parallel ranks
engine_config_pipeline_parallel_size     | gauge | | | pipeline-parallel ranks
engine_config_data_parallel_size         | gauge | | | data-parallel ranks
engine_config_data_parallel_size_local   | gauge | | | data-parallel ranks of this server, where a group spans several
engine_config_decode_context_parallel_size | gauge | | | decode-context-parallel ranks
engine_config_prefill_context_parallel_size | gauge | | | prefill-context-parallel ranks
engine_config_kv_heads                   | gauge | | | KV heads of the model; 1 for latent attention (MLA)
engine_config_native_context_tokens      | gauge | tokens | | longest context that the model's configuration is made for, its rope scaling included
engine_config_kv_cache_unscaled          | gauge | | | 1 where a quantised KV cache runs with scaling factors of 1.0, 0 where it needs none
engine_config_kv_transfer                | gauge | | | 1 where KV caches may come from elsewhere (a KV connector, prefill and decode apart), 0 where the launch flags name no such source
engine_config_flag_problem               | gauge | | flag problem | 1 for each launch flag that this version does not have (unknown) or has with a known trap (risky)
engine_config_kv_cache_profiled_blocks   | gauge | | | KV blocks that memory profiling found room for, before an override
engine_config_weights_bytes              | gauge | bytes | | model weights per GPU, as the engine printed them
engine_config_kv_cache_bytes             | gauge | bytes | | KV pool per GPU, as the engine printed it; under an override that share of what it found room for
engine_config_activation_peak_bytes      | gauge | bytes | | activation peak that the engine profiled
engine_config_graph_bytes                | gauge | bytes | | CUDA graph memory, as the engine printed it
engine_config_max_concurrency            | gauge | | | full-length requests that the pool holds, as the engine printed it
engine_process_cpu_seconds_total         | counter | seconds | | CPU time of the engine's processes
engine_role_cpu_seconds_total            | counter | seconds | role | CPU time of the busiest process of each role: api_server, scheduler, worker, other
engine_process_resident_bytes            | gauge | bytes | | resident memory of the engine's processes
engine_processes                         | gauge | | | processes of the engine on this machine
engine_page_processes                    | gauge | | | processes whose values the engine's page keeps apart by a label pid; 0 where it does not
"""

_LOG_ROWS = """
log_lines_total                     | counter | | | lines read
log_unreadable_lines_total          | counter | | | lines that were cut or not valid UTF-8
log_events_total                    | counter | | event | recognised lines, by event
log_causes_total                    | counter | | cause when | failures that the log tells of, by the finding that explains them; when: start, or serving after the log said that requests are taken
log_serving                         | gauge | | | 1 after the log said that the server takes requests, 0 from its next start or its end on
log_oom_requested_bytes             | gauge | bytes | | size of the allocation that failed last
log_oom_free_bytes                  | gauge | bytes | | memory free on the device at that moment
log_oom_reserved_unallocated_bytes  | gauge | bytes | | memory that torch had reserved and not handed out at that moment
"""

_HOST_ROWS = """
host_cpu_busy_ratio          | gauge | ratio | | share of all cores in use
host_cpu_cores               | gauge | | | logical cores
host_cpu_quota_cores         | gauge | | | cores that the cgroup allows
host_memory_total_bytes      | gauge | bytes | | memory of the machine
host_memory_available_bytes  | gauge | bytes | | memory that programs can still get
host_swap_total_bytes        | gauge | bytes | | swap space
host_swap_used_bytes         | gauge | bytes | | swap space in use
host_shm_total_bytes         | gauge | bytes | | size of /dev/shm
host_shm_used_bytes          | gauge | bytes | | used part of /dev/shm
host_cgroup_memory_limit_bytes | gauge | bytes | | memory limit of the cgroup
host_cgroup_memory_used_bytes  | gauge | bytes | | memory used in the cgroup
host_wsl                     | gauge | | | 1 on the Windows Subsystem for Linux, else 0
host_container               | gauge | | | 1 where this looks like the inside of a container, else 0
host_nvidia_devices          | gauge | | | NVIDIA GPUs on the PCI bus, whether the driver answers or not
host_nvml_unresponsive_seconds | gauge | seconds | | time since the NVML worker last answered, while the driver hangs
kernel_lines_total           | counter | | | lines of the kernel log read
kernel_events_total          | counter | | event | recognised lines of the kernel log: xid, gpu_lost, driver_error, out_of_memory_killed
"""

_LEDGER_GPU_ROWS = """
ledger_bytes                 | gauge | bytes | component | memory of a GPU by what it is for: weights, kv_used and kv_free (kv_pool where usage differs per rank), work (activations and CUDA graphs), rest (contexts and communication), engine (of one that does not state its parts, or states more than it holds), other (foreign processes), unexplained, reserved, free; they sum to the card
ledger_missing_bytes         | gauge | bytes | | weights and KV pool that engines state and their processes on the GPU do not hold, 0 where they do: asleep, on another card, or other processes than the engine's
ledger_growth_bytes          | gauge | bytes | | how much more memory the GPU holds than a minute after its engines began to serve, foreign processes left out
"""

_LEDGER_SERVER_ROWS = """
ledger_predicted_bytes       | gauge | bytes | component | memory that model, flags and version let one expect on each GPU: weights, kv_pool, work (activations and CUDA graphs), rest (contexts and communication)
"""

_SELF_ROWS = """
build_info                   | gauge | | version | version of gpuwatch, value 1
finding_info                 | gauge | | id severity server uuid cause flag from to advice | 1 for each active finding, with its cause and the first change to make; from and to are the values of the flag
source_up                    | gauge | | source target server | 1 when the last poll of the source worked
source_failing               | gauge | | source target server reason | 1 while the polls of the source fail, with the reason: unreachable, timeout, not_metrics, not_found, …
source_age_seconds           | gauge | seconds | source target server | time since the source last delivered
source_poll_seconds          | gauge | seconds | source target server | time the last poll took
source_failures_total        | counter | | source target server | failed polls
source_dropped_total         | counter | | source target server | series or lines left out because of a limit
tick_seconds                 | gauge | seconds | | time the last tick took
rule_failures_total          | counter | | rule | evaluations that ended in an error
alertmanager_alerts_sent_total | counter | | alertmanager | alerts that an Alertmanager took from `serve --alertmanager`
alertmanager_failures_total  | counter | | alertmanager | deliveries to an Alertmanager that failed
process_cpu_seconds_total    | counter | seconds | | CPU time of gpuwatch and its worker
process_resident_bytes       | gauge | bytes | | resident memory of gpuwatch and its worker
process_starved_ratio        | gauge | ratio | | seconds per second that threads of gpuwatch were ready to run and had no processor; over 1 where several waited at once
"""

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in [
        *_table(GPU, _GPU_ROWS),
        *_table(ENGINE, _ENGINE_ROWS),
        *_table(SERVER, _SERVER_ROWS),
        *_table(LOG, _LOG_ROWS),
        *_table(HOST, _HOST_ROWS),
        *_table(GPU, _LEDGER_GPU_ROWS),
        *_table(SERVER, _LEDGER_SERVER_ROWS),
        *_table(HOST, _SELF_ROWS),
    ]
}
"""Every exported metric family by name."""
