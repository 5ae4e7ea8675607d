"""The catalogue: every figure on a screen, report or dashboard is one named PromQL query.

`$__rate_interval` stands for the window of a rate: a few seconds on the local store, Grafana's variable on a
dashboard, four scrape intervals on a remote Prometheus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Scope: TypeAlias = Literal["gpu", "engine", "server", "host", "self", "board"]

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


_PREFIX: dict[Scope, str] = {
    "gpu": "gpu_",
    "engine": "engine_",
    "server": "engine_",
    "host": "host_",
    "self": "",
    "board": "",
}

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
gpu_ledger              | bytes   | gpuwatch_ledger_bytes             | memory of the GPU by what it is for
gpu_ledger_growth       | bytes   | gpuwatch_ledger_growth_bytes      | memory beyond what the GPU held a minute after its engines began to serve
gpu_ledger_missing      | bytes   | gpuwatch_ledger_missing_bytes > 0 | weights and KV pool that engines state and their processes on the GPU do not hold
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

BOUNDED = {
    "ttft_p50": (0.5, "time_to_first_token"),
    "ttft_p95": (0.95, "time_to_first_token"),
    "itl_p50": (0.5, "inter_token_latency"),
    "itl_p95": (0.95, "inter_token_latency"),
    "queue_p95": (0.95, "queue_time"),
}
"""Quantiles of the screen with their share and histogram. Within the first bucket they are no figures, but its share."""


def _at_most(name: str) -> str:
    """Return the row of the query for the end of the first bucket, which gives a value where the quantile is in it.

    Cumulative counts are least in the first bucket, and most in the last. What Prometheus gives within the first bucket
    is its end, times the part of its observations that lies below the quantile.
    """
    share, histogram = BOUNDED[name]
    rates = f"rate(@{histogram}_seconds_bucket[1m])"
    first, every = f"min without (le) ({rates})", f"{share:g} * max without (le) ({rates})"
    template = f"histogram_quantile({share:g}, {rates}) * ({first} > 0) / ({every}) and {first} >= {every}"
    return f"{name}_at_most | seconds | {template} | end of the first bucket, where all that is known of {name} is it"


_SERVER = """
engine_info             | none    | @info                             | version of each engine
max_num_seqs            | count   | @config_max_num_seqs              | most requests in a batch
max_model_len           | tokens  | @config_max_model_len_tokens      | longest request
tensor_parallel_size    | count   | @config_tensor_parallel_size      | tensor-parallel ranks
weights                 | bytes   | @config_weights_bytes             | weights per GPU
kv_cache_bytes          | bytes   | @config_kv_cache_bytes            | KV pool per GPU
activation_peak         | bytes   | @config_activation_peak_bytes     | profiled activation peak
graph_bytes             | bytes   | @config_graph_bytes               | CUDA graph memory
ledger_predicted        | bytes   | gpuwatch_ledger_predicted_bytes   | memory that model, flags and version let one expect on each GPU
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
        *_table("engine", "\n".join(map(_at_most, BOUNDED))),
        *_table("server", _SERVER),
        *_table("host", _HOST),
        *_table("self", _SELF),
    ]
}
"""The queries that every tick asks."""

_ON_ENGINE = "* on (host, uuid) group_right () @gpu_engine"
"""Spreads a figure of a GPU over the engines that use it, and gives it their address."""


def _of_cards(metric: str) -> str:
    """Return the sum of a figure over the cards of a machine; of a card that does not tell it, over its MIG devices."""
    cards, parts = f'@{metric}{{gpu!~".+:.+"}}', f'@{metric}{{gpu=~".+:.+"}}'
    of_card = 'label_replace({}, "card", "$1", "gpu", "([^:]+).*")'
    return f"sum by (host) ({cards} or ({of_card.format(parts)} unless on (host, card) {of_card.format(cards)}))"


# A card is counted once: its MIG devices, with a colon in the label gpu, only where the card itself is not told.
_BOARD = f"""
fleet_hosts             | count   | count(count by (host) (@build_info)) | machines that gpuwatch watches
fleet_gpus              | count   | count(@gpu_info{{gpu!~".+:.+"}}) or count(@gpu_info) | GPUs that the driver lists
fleet_gpus_not_ok       | count   | count(@gpu_state{{state!="ok", gpu!~".+:.+"}} == 1) or 0 * count(@gpu_state) | GPUs that are lost, hung, or give no readings
fleet_engines           | count   | sum(@source_up{{source="engine"}}) | engines that answer
fleet_engines_silent    | count   | count(@source_up{{source="engine"}} == 0) or 0 * count(@build_info) | engines that do not answer
fleet_critical          | count   | count(@finding_info{{severity="critical"}}) or 0 * count(@build_info) | active critical findings
fleet_warnings          | count   | count(@finding_info{{severity="warning"}}) or 0 * count(@build_info) | active warnings
fleet_infos             | count   | count(@finding_info{{severity="info"}}) or 0 * count(@build_info) | active findings that are worth knowing
fleet_generation_rate   | tokens/s | sum(rate(@engine_generation_tokens_total[$__rate_interval])) | generated tokens per second of all engines
fleet_power             | watts   | sum(@gpu_power_watts)             | power draw of all GPUs
fleet_findings          | count   | count by (severity) (@finding_info) | active findings by severity
findings                | none    | 3 * @finding_info{{severity="critical"}} or 2 * @finding_info{{severity="warning"}} or @finding_info{{severity="info"}} | active findings with cause and the first change to make: 1 info, 2 warning, 3 critical
alerts                  | none    | max without (alertstate) (4 * ALERTS{{alertname=~"Gpuwatch.*", alertstate="firing", severity="critical"}} or 3 * ALERTS{{alertname=~"Gpuwatch.*", alertstate="firing", severity="warning"}} or 2 * ALERTS{{alertname=~"Gpuwatch.*", alertstate="firing", severity="info"}} or ALERTS{{alertname=~"Gpuwatch.*", alertstate="pending"}}) | alerts of the shipped rules in Prometheus: 1 pending, 2 to 4 firing, by severity
alerts_firing           | count   | count by (severity) (ALERTS{{alertname=~"Gpuwatch.*", alertstate="firing"}}) | firing alerts by severity
host_gpus               | count   | count by (host) (@gpu_info{{gpu!~".+:.+"}}) or count by (host) (@gpu_info) | GPUs of a machine
host_gpu_memory_used    | bytes   | {_of_cards("gpu_memory_used_bytes")} | memory in use on all GPUs of a machine
host_gpu_memory_total   | bytes   | {_of_cards("gpu_memory_total_bytes")} | memory of all GPUs of a machine
host_least_headroom     | ratio   | min by (host) ((@gpu_memory_free_bytes + @gpu_memory_used_bytes - @gpu_memory_peak_bytes) / (@gpu_memory_total_bytes > 0)) | part of the memory that the fullest GPU of a machine had left at its peak of the last minute
host_busiest_gpu        | ratio   | max by (host) (@gpu_busy_ratio)   | share of time a kernel ran on the busiest GPU of a machine
host_idlest_gpu         | ratio   | min by (host) (@gpu_busy_ratio)   | share of time a kernel ran on the idlest GPU of a machine
host_gpu_power          | watts   | sum by (host) (@gpu_power_watts)  | power draw of all GPUs of a machine
host_hottest_gpu        | celsius | max by (host) (@gpu_temperature_celsius) | temperature of the hottest GPU of a machine
host_throttle           | ratio   | max by (host, reason) (rate(@gpu_throttle_seconds_total[$__rate_interval])) > 0 | share of time with lowered clocks on the GPU that loses most, by reason
host_memory_free_ratio  | ratio   | @host_memory_available_bytes / (@host_memory_total_bytes > 0) | part of the machine's memory that programs can still get
host_shm_used_ratio     | ratio   | @host_shm_used_bytes / (@host_shm_total_bytes > 0) | used part of /dev/shm
gpu_states              | count   | count by (host, state) (@gpu_state{{gpu!~".+:.+"}} == 1) | GPUs of a machine by state
gpu_headroom            | ratio   | (@gpu_memory_free_bytes + @gpu_memory_used_bytes - @gpu_memory_peak_bytes) / (@gpu_memory_total_bytes > 0) | part of the memory that was left at the peak of the last minute
gpu_transient           | bytes   | @gpu_memory_transient_bytes       | most memory that was taken and given back within a minute
gpu_step                | bytes   | @gpu_memory_step_bytes            | largest rise of used memory within a minute
gpu_xid_rate            | count   | increase(@gpu_xid_errors_total[$__rate_interval]) > 0 | Xid errors, by number
engine_gpu_headroom     | ratio   | (@gpu_memory_free_bytes + @gpu_memory_used_bytes - @gpu_memory_peak_bytes) / (@gpu_memory_total_bytes > 0) {_ON_ENGINE} | part of the memory that was left on each GPU of an engine at the peak of the last minute
engine_gpu_memory       | bytes   | @gpu_memory_used_bytes {_ON_ENGINE} | memory in use on each GPU of an engine
engine_gpu_busy         | ratio   | @gpu_busy_ratio {_ON_ENGINE}      | share of time a kernel ran on each GPU of an engine
engine_gpu_power        | watts   | @gpu_power_watts {_ON_ENGINE}     | power draw of each GPU of an engine
engine_gpu_clock        | hertz   | @gpu_sm_clock_hertz {_ON_ENGINE}  | SM clock of each GPU of an engine
engine_gpu_throttle     | ratio   | (max by (host, uuid) (rate(@gpu_throttle_seconds_total[$__rate_interval])) {_ON_ENGINE}) > 0 | share of time with lowered clocks on each GPU of an engine, for the reason that holds longest
e2e_p50                 | seconds | histogram_quantile(0.5, rate(@engine_e2e_latency_seconds_bucket[$__rate_interval])) | median time from arrival to last token
e2e_p95                 | seconds | histogram_quantile(0.95, rate(@engine_e2e_latency_seconds_bucket[$__rate_interval])) | 95th percentile of the time from arrival to last token
queue_p50               | seconds | histogram_quantile(0.5, rate(@engine_queue_time_seconds_bucket[$__rate_interval])) | median time in the queue
prefill_p95             | seconds | histogram_quantile(0.95, rate(@engine_prefill_time_seconds_bucket[$__rate_interval])) | 95th percentile of the time from scheduling to first token
prompt_length_p50       | tokens  | histogram_quantile(0.5, rate(@engine_prompt_length_tokens_bucket[$__rate_interval])) | median prompt of finished requests
prompt_length_p95       | tokens  | histogram_quantile(0.95, rate(@engine_prompt_length_tokens_bucket[$__rate_interval])) | 95th percentile of the prompt length
generation_length_p95   | tokens  | histogram_quantile(0.95, rate(@engine_generation_length_tokens_bucket[$__rate_interval])) | 95th percentile of the output length
finished_by_reason      | per second | rate(@engine_requests_finished_total[$__rate_interval]) | requests that ended per second, by reason
rejected_by_reason      | per second | rate(@engine_requests_rejected_total[$__rate_interval]) > 0 | requests refused per second, by reason
prompt_computed_rate    | tokens/s | rate(@engine_prompt_tokens_computed_total[$__rate_interval]) | prompt tokens per second that were computed
prompt_cached_rate      | tokens/s | rate(@engine_prompt_tokens_cached_total[$__rate_interval]) | prompt tokens per second that came from a cache
request_length_seen     | tokens  | @engine_request_length_seen_tokens | KV tokens per running request: a lower bound of the request length
page_frozen             | seconds | @engine_page_frozen_seconds       | time for which no value of the engine's page changed while requests were open
swa_usage               | ratio   | @engine_kv_cache_swa_usage_ratio  | used part of the sliding-window pool
draft_acceptance        | ratio   | rate(@engine_spec_decode_accepted_tokens_total[$__rate_interval]) / (rate(@engine_spec_decode_draft_tokens_total[$__rate_interval]) > 0) | share of drafted tokens that were accepted
memory_fraction         | ratio   | @engine_config_memory_fraction_ratio | share of memory that the engine was told to use
max_batched_tokens      | tokens  | @engine_config_max_num_batched_tokens | token budget of one step
max_concurrency         | count   | @engine_config_max_concurrency    | full-length requests that the pool holds
ledger_weights          | bytes   | @ledger_bytes{{component="weights"}} | model weights, as the engine printed them
ledger_kv_used          | bytes   | @ledger_bytes{{component="kv_used"}} | KV pool times its usage
ledger_kv_free          | bytes   | @ledger_bytes{{component="kv_free"}} | rest of the KV pool: allocated, and free for tokens
ledger_kv_pool          | bytes   | @ledger_bytes{{component="kv_pool"}} | KV pool whose usage on this GPU is not known, because several data-parallel ranks share the address
ledger_work             | bytes   | @ledger_bytes{{component="work"}} | activation peak and CUDA graphs, as the engine printed them
ledger_rest             | bytes   | @ledger_bytes{{component="rest"}} | contexts and communication: what an engine that states weights and pool holds beyond what it states
ledger_engine           | bytes   | @ledger_bytes{{component="engine"}} | memory of an engine that does not state its weights or its pool, without what it states
ledger_other            | bytes   | @ledger_bytes{{component="other"}} | visible processes that belong to no known engine
ledger_unexplained      | bytes   | @ledger_bytes{{component="unexplained"}} | used memory that nothing else accounts for
ledger_reserved         | bytes   | @ledger_bytes{{component="reserved"}} | memory the driver keeps
ledger_free             | bytes   | @ledger_bytes{{component="free"}} | memory neither used nor reserved
log_events              | per second | rate(@log_events_total[$__rate_interval]) > 0 | recognised log lines per second, by event
log_lines               | per second | rate(@log_lines_total[$__rate_interval]) | log lines read per second
source_up               | none    | @source_up                        | 1 when the last poll of a source worked
source_age              | seconds | @source_age_seconds               | time since a source last delivered
source_failures         | per second | rate(@source_failures_total[$__rate_interval]) | failed polls per second
rule_failures           | per second | rate(@rule_failures_total[$__rate_interval]) > 0 | failed evaluations of a rule per second
build                   | none    | @build_info                       | version of gpuwatch on each machine
"""

_FLEET = """
host_gpus_not_ok        | count   | count by (host) (@gpu_state{state!="ok", gpu!~".+:.+"} == 1) or 0 * count by (host) (@gpu_state) | GPUs of a machine that are lost, hung, or give no readings
host_engines            | count   | count by (host) (@source_up{source="engine"}) | engines of a machine
host_engines_silent     | count   | count by (host) (@source_up{source="engine"} == 0) or 0 * count by (host) (@source_up{source="engine"}) | engines of a machine that do not answer
host_sources_silent     | count   | count by (host) (@source_up == 0) or 0 * count by (host) (@source_up) | sources of a machine that fail, engines included
host_kv_highest         | ratio   | max by (host) (@engine_kv_cache_usage_ratio) | used part of the fullest KV pool of a machine
host_running            | count   | sum by (host) (@engine_requests_running) | requests in the batches of all engines of a machine
host_waiting            | count   | sum by (host) (@engine_requests_waiting) | requests in the queues of all engines of a machine
host_generation_rate    | tokens/s | sum by (host) (rate(@engine_generation_tokens_total[$__rate_interval]) and @engine_generation_tokens_total) | generated tokens per second of all engines of a machine
host_last_seen          | seconds | max by (host) (timestamp(@build_info) or max_over_time(timestamp(@build_info)[5m:5s]) or max_over_time(timestamp(@build_info)[1h:1m])) | when a machine was last scraped within the last hour, seconds since the epoch
host_scraped            | none    | max by (host) (@build_info)       | 1 for a machine whose last scrape worked; nothing for one whose did not
host_instances          | count   | count by (host) (max without (version) (@build_info)) | programs that call themselves by the name of a machine: two machines of one name, or one that is scraped twice
source_failing          | none    | @source_failing == 1              | why a source fails
"""

OVERVIEWS: dict[str, Query] = {query.name: query for query in [*_table("board", _BOARD), *_table("board", _FLEET)]}
"""Queries over many machines or that join many series: dashboards ask them, a tick does not."""

CATALOGUE: dict[str, Query] = QUERIES | OVERVIEWS
"""Every named query."""

PER_HOST = (
    "host_gpus",
    "host_gpus_not_ok",
    "host_gpu_memory_used",
    "host_gpu_memory_total",
    "host_idlest_gpu",
    "host_busiest_gpu",
    "host_gpu_power",
    "host_engines",
    "host_engines_silent",
    "host_sources_silent",
    "host_kv_highest",
    "host_running",
    "host_waiting",
    "host_generation_rate",
    "host_last_seen",
    "host_scraped",
    "host_instances",
)
"""Catalogue queries of which each machine has one value: the columns of the fleet's table."""
