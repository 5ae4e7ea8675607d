"""Which findings are symptoms of which: the one table behind local inhibition, ranking and the Alertmanager example.

Ids are the finding ids in the label ``diagnosis`` of alerts. A cause mutes its symptoms where the `equal` labels have
the same values; alerts about GPUs carry host and uuid, alerts about engines host and server.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST = ("host",)
SERVER = ("host", "server")
ENGINE = ("host", "server", "model_name", "dp_rank")
GPU = ("host", "uuid")


@dataclass(frozen=True, slots=True)
class Inhibition:
    """While `cause` fires, `symptoms` are muted where the labels `equal` have the same values."""

    cause: str
    symptoms: tuple[str, ...]
    equal: tuple[str, ...]


_KV_SYMPTOMS = (
    "kv_pool_saturated",
    "prefix_cache_collapse",
    "queue_growth",
    "throughput_collapse",
    "head_of_line",
)

INHIBITIONS: tuple[Inhibition, ...] = (
    Inhibition("driver_unresponsive", ("gpu_lost", "tp_imbalance", "gpu_headroom_low", "prefill_memory_peak"), GPU),
    Inhibition("gpu_lost", ("gpu_headroom_low", "prefill_memory_peak"), GPU),
    Inhibition("gpu_lost", ("tp_imbalance", "tp_straggler"), HOST),
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
    Inhibition("max_model_len_exceeds_kv", ("engine_down",), SERVER),
    Inhibition("kv_preemption_storm", _KV_SYMPTOMS, ENGINE),
    Inhibition("sglang_retraction_storm", _KV_SYMPTOMS, ENGINE),
    Inhibition("kv_pool_saturated", ("queue_growth",), ENGINE),
    Inhibition("prefill_memory_peak", ("gpu_headroom_low",), GPU),
    Inhibition("allocator_fragmentation", ("gpu_headroom_low",), HOST),
)
"""The rows, nearest cause first."""
