"""Which function explains which finding id, with the title and severity that the id has everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.diagnosis import cache, gpus, kv, memory, observation
from gpuwatch.diagnosis.context import ENGINE_SCOPE, GPU_SCOPE, LOG_SCOPE, SERVER_SCOPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.explanation import Verdict
    from gpuwatch.diagnosis.finding import Severity

    Explainer: TypeAlias = Callable[[Subject], Verdict]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding id. Alerts of this id with the same `scope` labels are one finding."""

    id: str
    severity: Severity
    title: str
    explain: Explainer
    scope: tuple[str, ...]


DIAGNOSES: dict[str, Diagnosis] = {
    diagnosis.id: diagnosis
    for diagnosis in (
        Diagnosis(
            "kv_preemption_storm",
            "critical",
            "Requests are thrown out of the KV pool and computed again",
            kv.preemption_storm,
            ENGINE_SCOPE,
        ),
        Diagnosis(
            "sglang_retraction_storm",
            "critical",
            "SGLang retracts running requests: its KV pool is full",
            kv.retraction_storm,
            ENGINE_SCOPE,
        ),
        Diagnosis(
            "kv_pool_saturated", "info", "The KV pool is full and requests queue", kv.pool_saturated, ENGINE_SCOPE
        ),
        Diagnosis(
            "max_model_len_exceeds_kv",
            "critical",
            "One full-length request does not fit into the KV pool",
            kv.length_exceeds_pool,
            (*ENGINE_SCOPE, "log"),
        ),
        Diagnosis(
            "prefill_memory_peak",
            "warning",
            "A memory peak left almost nothing free",
            memory.prefill_peak,
            GPU_SCOPE,
        ),
        Diagnosis("gpu_headroom_low", "warning", "The next memory peak will not fit", memory.headroom_low, GPU_SCOPE),
        Diagnosis(
            "allocator_fragmentation",
            "critical",
            "The allocator is fragmented",
            memory.fragmentation,
            LOG_SCOPE,
        ),
        Diagnosis(
            "tp_imbalance",
            "warning",
            "Memory differs between the ranks of one engine",
            gpus.tp_imbalance,
            SERVER_SCOPE,
        ),
        Diagnosis("gpu_lost", "critical", "A GPU is gone", gpus.lost, GPU_SCOPE),
        Diagnosis(
            "driver_unresponsive",
            "critical",
            "The NVIDIA driver does not answer",
            gpus.driver_hangs,
            GPU_SCOPE,
        ),
        Diagnosis(
            "prefix_cache_collapse",
            "warning",
            "The prefix cache hits far less than before",
            cache.collapse,
            ENGINE_SCOPE,
        ),
        Diagnosis("prefix_cache_zero_hit", "info", "The prefix cache never hits", cache.zero_hit, ENGINE_SCOPE),
        Diagnosis("engine_down", "critical", "The engine does not answer", observation.engine_down, SERVER_SCOPE),
        Diagnosis(
            "engine_stalled",
            "critical",
            "Requests are open and nothing moves",
            observation.engine_stalled,
            ENGINE_SCOPE,
        ),
        Diagnosis(
            "source_degraded",
            "warning",
            "A source of measurements fails",
            observation.source_degraded,
            (*observation.SOURCE_SCOPE, "uuid"),
        ),
    )
}
"""Every diagnosis by id."""
