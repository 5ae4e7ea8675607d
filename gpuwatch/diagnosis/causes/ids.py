"""Title and severity of every finding that files can show. The severities are those of the rules with the same id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from gpuwatch.diagnosis.finding import Severity


@dataclass(frozen=True, slots=True)
class Kind:
    """One finding id: how bad it is at worst, and its title."""

    severity: Severity
    title: str


# id | severity | title
_ROWS = """
allocator_fragmentation    | critical | The allocator is fragmented
container_pid_invisible    | info     | Processes cannot be seen from inside the container
cpu_bound                  | warning  | The CPU is the limit
cudagraph_memory           | critical | CUDA graphs do not fit beside the KV pool
dp_imbalance               | warning  | Data-parallel replicas are unevenly loaded
driver_too_old             | critical | Driver, GPU and build do not belong together
driver_unresponsive        | critical | The driver does not answer
dtype_unsupported          | critical | The GPU cannot compute in the asked type
engine_stalled             | critical | Requests are open and nothing moves
false_leak                 | info     | It looks like a leak and is a cache
flag_risky                 | warning  | A launch flag has a known trap
flag_unknown               | critical | A launch flag is not known to this engine
fp8_kv_accuracy            | warning  | The KV cache is quantised without scales
gpu_lost                   | critical | A GPU is gone
gpu_memory_growth          | warning  | GPU memory only grows
gpu_out_of_memory          | critical | GPU memory ran out
head_of_line               | warning  | One long prefill holds up everybody else
host_memory_leak           | warning  | Host memory only grows
host_memory_oversubscribed | warning  | The host's memory was promised more than once
host_shm_exhaustion        | warning  | /dev/shm is too small or full
k8s_evicted                | critical | Kubernetes evicted the pod
k8s_oomkilled              | critical | The container crossed its memory limit
kv_head_replication        | warning  | Every rank keeps a copy of the KV cache
kv_pool_saturated          | info     | The KV pool is full and requests queue
kv_pool_undersized         | warning  | The KV pool is far smaller than the memory allows
kv_preemption_storm        | critical | Requests are thrown out of the KV pool and computed again
lora_memory                | critical | LoRA adapters do not fit beside the KV pool
max_model_len_exceeds_kv   | critical | One full-length request does not fit into the KV pool
metrics_disabled           | warning  | The engine's metrics are switched off
metrics_multiproc          | warning  | Every API server exports its own series
mm_profiling_memory        | critical | Multimodal inputs are larger than the profile can take
model_not_found            | critical | The model cannot be loaded
nccl_hang                  | critical | A collective operation never completes
no_kv_blocks               | critical | Nothing is left for the KV cache
nvml_na                    | info     | NVML has no value here
pcie_degraded              | warning  | A link is narrower than it should be
port_in_use                | critical | The port is taken
prefill_activation_oom     | critical | A prefill does not fit beside the KV pool
prefix_cache_collapse      | warning  | The prefix cache finds less than before
prefix_cache_zero_hit      | info     | The prefix cache never hits
prefix_metrics_wrong       | warning  | The prefix cache's metrics have another name
queue_growth               | warning  | Requests arrive faster than they are served
ray_host_oom               | critical | Ray killed a worker for lack of host memory
rope_context               | warning  | The context is longer than the model was made for
sampler_warmup_oom         | critical | The sampler's warm-up does not fit
sglang_kv_alloc_failure    | critical | SGLang's pool cannot serve a batch
sglang_retraction_storm    | critical | SGLang retracts running requests: its KV pool is full
silent_truncation          | warning  | Prompts are ignored without an error
spec_decode_memory         | critical | The draft model does not fit beside the KV pool
startup_gpu_shared         | critical | Another process holds the memory that this engine wants
throttling                 | warning  | A power or heat limit costs speed
tp_imbalance               | warning  | Memory differs between the ranks of one group
tp_straggler               | warning  | One card of the group is slower than the others
tp_pcie_slow               | warning  | The GPUs of one group talk over PCIe
unified_memory             | info     | GPU and host share one memory
weights_oom                | critical | The weights do not fit
worker_died                | critical | An engine or one of its processes ended
wsl                        | info     | This is WSL
xid_hardware               | critical | The GPU's hardware fails
xid_software               | warning  | The driver reported an error on a GPU
"""


def _table() -> dict[str, Kind]:
    table = {}
    for row in _ROWS.strip().splitlines():
        id_, severity, title = (part.strip() for part in row.split("|"))
        table[id_] = Kind(cast("Severity", severity), title)
    return table


KINDS: dict[str, Kind] = _table()
"""Every kind of finding by id."""
