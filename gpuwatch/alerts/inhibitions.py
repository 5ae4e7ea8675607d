"""Which findings are symptoms of which: the one table behind local inhibition, ranking and the Alertmanager example.

Ids are the finding ids in the label ``diagnosis`` of alerts. A cause mutes its symptoms where the `equal` labels have
the same values; alerts about GPUs carry host and uuid, alerts about engines host and server. What merely warns mutes
nothing critical, and an engine that is down is muted by what is known of this very engine or of a GPU that it used,
never by its host.
A row with `placed` ties a GPU to the engines that used it: labels alone do not tell which, so Alertmanager, which sees
nothing else, is not given these rows.
"""

from __future__ import annotations

from dataclasses import dataclass

CLUSTER = "cluster"
"""The external label that tells clusters apart that one Prometheus knows: machines in two may have one name."""
HOST = (CLUSTER, "host")
SERVER = (*HOST, "server")
REPLICAS = (*SERVER, "model_name")
ENGINE = (*REPLICAS, "dp_rank")
GPU = (*HOST, "uuid")
LOG = (*HOST, "log")


@dataclass(frozen=True, slots=True)
class Inhibition:
    """While `cause` fires, `symptoms` are muted where the labels `equal` have the same values.

    With `placed` both must also be about the same engine, one of them by the GPU that it uses.
    """

    cause: str
    symptoms: tuple[str, ...]
    equal: tuple[str, ...]
    placed: bool = False


def named(equal: tuple[str, ...], cluster_label: str) -> tuple[str, ...]:
    """Return labels of the table where the one of clusters is called `cluster_label`."""
    return tuple(cluster_label if name == CLUSTER else name for name in equal)


_KV_SYMPTOMS = (
    "kv_pool_saturated",
    "prefix_cache_collapse",
    "queue_growth",
    "throughput_collapse",
    "head_of_line",
    "kv_block_waste",
    "context_growth",
)

_SLOWER = ("throughput_collapse", "queue_growth")
_BROKEN = ("xid_hardware", "gpu_lost", "driver_unresponsive")
"""Faults of a GPU, or of the driver that all GPUs of a host share, that no engine on it survives unharmed."""

FAILED_STARTS = (
    "no_kv_blocks",
    "cudagraph_memory",
    "sampler_warmup_oom",
    "mm_profiling_memory",
    "weights_oom",
    "startup_gpu_shared",
    "port_in_use",
    "model_not_found",
    "dtype_unsupported",
    "driver_too_old",
    "flag_unknown",
)
"""Failures of a start: the server does not take requests after them."""
DEATHS = (
    "worker_died",
    "prefill_activation_oom",
    "lora_memory",
    "spec_decode_memory",
    "gpu_out_of_memory",
    "ray_host_oom",
    "k8s_oomkilled",
    "k8s_evicted",
)

INHIBITIONS: tuple[Inhibition, ...] = (
    Inhibition("driver_unresponsive", ("gpu_lost", "tp_imbalance", "gpu_headroom_low", "prefill_memory_peak"), GPU),
    Inhibition("gpu_lost", ("gpu_headroom_low", "prefill_memory_peak"), GPU),
    Inhibition(
        "xid_hardware",
        ("gpu_lost", "driver_unresponsive", "xid_software", "throttling", "pcie_degraded", "tp_straggler"),
        GPU,
    ),
    Inhibition("throttling", ("tp_straggler",), GPU),
    Inhibition("pcie_degraded", ("tp_straggler",), GPU),
    Inhibition("gpu_memory_growth", ("gpu_headroom_low", "prefill_memory_peak"), GPU),
    Inhibition("gpu_lost", ("tp_imbalance", "tp_straggler"), HOST, placed=True),
    *(Inhibition(cause, ("nccl_hang", "engine_stalled"), HOST, placed=True) for cause in _BROKEN),
    Inhibition("tp_straggler", _SLOWER, SERVER),
    Inhibition("tp_pcie_slow", _SLOWER, SERVER),
    Inhibition("nccl_hang", ("engine_stalled", *_SLOWER, "tp_imbalance"), SERVER),
    Inhibition("gpu_memory_growth", ("tp_imbalance",), HOST, placed=True),
    Inhibition("host_memory_leak", ("host_memory_oversubscribed",), HOST),
    Inhibition("unified_memory", ("nvml_na",), GPU),
    Inhibition(
        "engine_down",
        (
            "engine_stalled",
            "source_degraded",
            "kv_preemption_storm",
            "sglang_retraction_storm",
            "tp_imbalance",
            *_KV_SYMPTOMS,
        ),
        SERVER,
    ),
    *(
        Inhibition(failure, ("engine_down",), SERVER)
        for failure in ("max_model_len_exceeds_kv", *FAILED_STARTS, *DEATHS)
    ),
    *(Inhibition(failure, ("worker_died",), LOG) for failure in (*FAILED_STARTS, *DEATHS[1:])),
    *(Inhibition(cause, ("worker_died", "engine_down"), HOST, placed=True) for cause in _BROKEN),
    Inhibition("startup_gpu_shared", ("no_kv_blocks", "max_model_len_exceeds_kv"), LOG),
    Inhibition("spec_decode_memory", ("max_model_len_exceeds_kv", "no_kv_blocks"), LOG),
    Inhibition("k8s_oomkilled", ("host_memory_oversubscribed",), HOST),
    Inhibition("kv_preemption_storm", _KV_SYMPTOMS, ENGINE),
    Inhibition("sglang_retraction_storm", _KV_SYMPTOMS, ENGINE),
    Inhibition("engine_stalled", ("throughput_collapse", "queue_growth", "head_of_line"), SERVER),
    Inhibition("metrics_disabled", ("source_degraded",), SERVER),
    Inhibition("metrics_multiproc", ("throughput_collapse", "prefix_cache_collapse", "context_growth"), SERVER),
    Inhibition("cpu_bound", ("throughput_collapse", "queue_growth"), SERVER),
    Inhibition("head_of_line", ("throughput_collapse", "queue_growth"), ENGINE),
    Inhibition("kv_pool_undersized", ("kv_pool_saturated",), SERVER),
    Inhibition("kv_head_replication", ("kv_pool_saturated",), SERVER),
    Inhibition("kv_pool_saturated", ("queue_growth",), ENGINE),
    Inhibition("context_growth", ("throughput_collapse", "queue_growth"), ENGINE),
    Inhibition("prefix_cache_collapse", ("context_growth",), ENGINE),
    Inhibition("dp_labels", ("dp_imbalance",), SERVER),
    Inhibition("dp_imbalance", ("queue_growth",), REPLICAS),
    Inhibition("prefill_memory_peak", ("gpu_headroom_low",), GPU),
    Inhibition("allocator_fragmentation", ("gpu_headroom_low",), HOST, placed=True),
    *(Inhibition(cause, _SLOWER, HOST, placed=True) for cause in (*_BROKEN, "throttling")),
)
"""The rows, nearest cause first."""
