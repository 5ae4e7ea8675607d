"""All families of causes together: one finding per id, root causes first, symptoms under their causes.

Each family looks at the whole incident and says what it found, on what evidence, and what it ruled out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.alerts.inhibitions import INHIBITIONS, Inhibition
from gpuwatch.diagnosis.causes import (
    clocks,
    collectives,
    containers,
    deaths,
    drivers,
    faults,
    fitting,
    gpu_memory,
    hardware,
    heads,
    host,
    kernel_words,
    kills,
    last_words,
    later,
    launch,
    limits,
    model,
    moments,
    network,
    no_pool,
    page_stalls,
    pages,
    platform,
    pool,
    ranks,
    refusals,
    refused_values,
    sglang_pool,
    sglang_single,
    sizing,
    stalls,
    too_large,
    traffic,
    units,
    unmet,
    xids,
)
from gpuwatch.diagnosis.causes.ids import KINDS
from gpuwatch.diagnosis.causes.later import WHILE_RUNNING
from gpuwatch.diagnosis.causes.moments import ENDED
from gpuwatch.diagnosis.causes.view import Cause, View
from gpuwatch.diagnosis.finding import SEVERITY_ORDER, Finding, NotEnough
from gpuwatch.diagnosis.ranking import rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuwatch.diagnosis.causes.incident import Incident
    from gpuwatch.model import LogEvent

    Family = Callable[[View], Iterator[Cause | NotEnough]]

FAMILIES: tuple[Family, ...] = (
    xids.xids,
    hardware.lost,
    kernel_words.pcie,
    kernel_words.untold,
    faults.cuda_faults,
    gpu_memory.out_of_memory,
    gpu_memory.warmed_up,
    sizing.shared,
    no_pool.no_blocks,
    limits.too_long,
    limits.undersized,
    sizing.unbalanced,
    limits.graph_budget,
    limits.image_tokens,
    collectives.shared_memory,
    collectives.hang,
    collectives.stuck,
    stalls.standing,
    page_stalls.standing,
    stalls.unanswered,
    stalls.soft,
    collectives.interconnect,
    network.unexplained,
    kills.host_kills,
    containers.probes,
    containers.unplaced,
    units.timed_out,
    units.never_created,
    sglang_pool.leaks,
    deaths.died,
    host.host_budget,
    host.growth,
    launch.flags,
    refused_values.together,
    launch.port,
    launch.model,
    launch.types,
    drivers.driver,
    unmet.start,
    refusals.refused,
    refusals.exhausted,
    refusals.unplaced,
    refusals.transfers,
    model.rope,
    model.quantised_cache,
    model.truncated,
    heads.query_heads,
    too_large.foreseen,
    heads.kv_heads,
    pool.storms,
    sglang_pool.retractions,
    sglang_single.filled,
    pool.saturation,
    sglang_pool.saturation,
    pool.never_fits,
    traffic.head_of_line,
    traffic.cpu,
    traffic.replicas,
    traffic.queues,
    pages.disabled,
    pages.per_process,
    pages.renamed,
    pages.zero_hit,
    pages.fewer_hits,
    hardware.power_cap,
    clocks.power_held,
    clocks.slowed,
    ranks.imbalance,
    ranks.slow_rank,
    hardware.narrow_link,
    platform.wsl,
    platform.unified,
    platform.unavailable,
    platform.hidden,
)
"""Every family, in the order in which equal findings are told."""

LIVE: tuple[Family, ...] = (
    gpu_memory.out_of_memory,
    gpu_memory.warmed_up,
    sizing.shared,
    no_pool.no_blocks,
    sglang_pool.retractions,
    kills.host_kills,
    deaths.died,
    launch.flags,
    launch.port,
    launch.model,
    launch.types,
    drivers.driver,
    unmet.start,
)
"""The families that a log can speak to while it grows."""

# In the files of one incident the labels of alerts do not exist: what comes first explains what follows.
_CHAINS = (
    ("xid_hardware", "gpu_lost nccl_hang engine_stalled worker_died driver_unresponsive xid_software"),
    ("gpu_lost", "nccl_hang engine_stalled worker_died xid_software"),
    ("unified_memory", "startup_gpu_shared"),
    ("ray_host_oom", "worker_died nccl_hang engine_stalled"),
    ("k8s_oomkilled", "worker_died nccl_hang engine_stalled host_memory_oversubscribed"),
    ("k8s_evicted", "worker_died"),
    ("host_memory_oversubscribed", "worker_died nccl_hang engine_stalled"),
    ("host_memory_leak", "k8s_oomkilled worker_died"),
    ("host_shm_exhaustion", "nccl_hang worker_died engine_stalled ray_host_oom"),
    ("spec_decode_memory", "max_model_len_exceeds_kv cudagraph_memory no_kv_blocks prefill_activation_oom worker_died"),
    ("lora_memory", "cudagraph_memory max_model_len_exceeds_kv no_kv_blocks worker_died"),
    (
        "startup_gpu_shared",
        "no_kv_blocks max_model_len_exceeds_kv gpu_out_of_memory weights_oom worker_died cudagraph_memory",
    ),
    ("kv_pool_undersized", "max_model_len_exceeds_kv silent_truncation"),
    ("allocator_fragmentation", "gpu_memory_growth worker_died prefill_activation_oom"),
    ("gpu_memory_growth", "prefill_activation_oom gpu_out_of_memory"),
    ("mm_profiling_memory", "worker_died"),
    ("sampler_warmup_oom", "gpu_out_of_memory worker_died prefill_activation_oom"),
    ("cudagraph_memory", "worker_died gpu_out_of_memory"),
    ("prefill_activation_oom", "worker_died nccl_hang engine_stalled gpu_out_of_memory"),
    ("no_kv_blocks", "worker_died max_model_len_exceeds_kv"),
    ("max_model_len_exceeds_kv", "worker_died"),
    ("weights_oom", "worker_died gpu_out_of_memory"),
    ("gpu_out_of_memory", "worker_died nccl_hang engine_stalled"),
    ("flag_unknown", "worker_died flag_risky"),
    ("port_in_use", "worker_died"),
    ("model_not_found", "worker_died nccl_hang"),
    ("dtype_unsupported", "worker_died nccl_hang"),
    ("driver_too_old", "worker_died nccl_hang"),
    ("rope_context", "silent_truncation worker_died"),
    ("nccl_hang", "engine_stalled worker_died"),
    ("wsl", "worker_died"),
    ("worker_died", "engine_stalled nccl_hang"),
    ("kv_preemption_storm", "kv_pool_saturated queue_growth head_of_line"),
    ("sglang_retraction_storm", "kv_pool_saturated queue_growth false_leak sglang_kv_alloc_failure"),
    ("sglang_kv_alloc_failure", "kv_pool_saturated"),
    ("dp_imbalance", "kv_pool_saturated queue_growth"),
    ("kv_pool_saturated", "queue_growth"),
    ("head_of_line", "queue_growth"),
    ("cpu_bound", "queue_growth"),
    ("kv_head_replication", "kv_pool_saturated queue_growth head_of_line fp8_kv_accuracy"),
    ("tp_imbalance", "kv_pool_undersized"),
    ("throttling", "tp_straggler"),
)
FAILED_START = frozenset(
    {
        "cudagraph_memory",
        "driver_too_old",
        "dtype_unsupported",
        "flag_unknown",
        "lora_memory",
        "max_model_len_exceeds_kv",
        "mm_profiling_memory",
        "model_not_found",
        "no_kv_blocks",
        "port_in_use",
        "rope_context",
        "sampler_warmup_oom",
        "spec_decode_memory",
        "startup_gpu_shared",
        "weights_oom",
    }
)
"""Findings that keep an engine from starting."""
CHAINS: tuple[Inhibition, ...] = tuple(Inhibition(cause, tuple(symptoms.split()), ()) for cause, symptoms in _CHAINS)
"""Which finding explains which in one incident, nearest cause first; the table of the alerts comes after it."""


def judge(
    incident: Incident, families: Iterable[Family] = FAMILIES
) -> tuple[tuple[Finding, ...], tuple[NotEnough, ...]]:
    """Return the findings of an incident, root causes first, and what could not be told apart and what that needs.

    A finding has evidence. One id is one finding: where two families found the same, the surer one is told, at the
    higher severity of the two.
    """
    view = View(incident)
    found: dict[str, Finding] = {}
    lacking: dict[tuple[str, str], NotEnough] = {}
    apart: set[str] = set()
    for family in families:
        for said in family(view):
            if isinstance(said, NotEnough):
                lacking.setdefault((said.id, said.missing), said)
            elif said.explanation.evidence:
                finding = replace(_finding(said), advice=fitting.fitted(view, said))
                better = _better(found[finding.id], finding) if finding.id in found else finding
                if better is finding:
                    (apart.add if said.apart else apart.discard)(said.id)
                found[finding.id] = better
    ranked = _ranked(
        view, {id_: later.told(view, finding) for id_, finding in found.items()}, _rows(view, found, apart)
    )
    if not any(finding.severity == "critical" or finding.id == "wsl" for finding in found.values()):
        for said in last_words.unexplained(view):
            lacking.setdefault((said.id, said.missing), said)
    firm = {finding.id for finding in found.values() if finding.severity == "critical"}
    return ranked, tuple(each for each in lacking.values() if each.id not in firm)


def unknown_end(incident: Incident, end: LogEvent) -> Finding | None:
    """Return an engine's end as a finding where no cause of it is known here; None where one is, or it was asked to."""
    view = View(incident)
    found, _ = judge(incident)
    known = any(finding.severity == "critical" and finding.id not in WHILE_RUNNING for finding in found)
    if known or moments.asked(view, end, moments.DRAINED) is not None or moments.interrupted(view, end):
        return None
    return _finding(last_words.unknown_end(view, end))


def _ranked(view: View, found: dict[str, Finding], rows: list[Inhibition]) -> tuple[Finding, ...]:
    """Return the findings in order: what ended the engine, or kept it from starting, comes before how it ran.

    In the files of an incident that is over, what explains a critical finding is placed like a critical one.
    """
    ordered = [finding if finding.id in WHILE_RUNNING else replace(finding, since=0) for finding in found.values()]
    ranked = rank(ordered, rows)
    raised = _explaining(ranked) if view.incident.inputs else set()
    if raised:
        ranked = rank([replace(each, severity="critical") if each.id in raised else each for each in ordered], rows)
    return tuple(replace(each, since=found[each.id].since, severity=found[each.id].severity) for each in ranked)


def _explaining(ranked: tuple[Finding, ...]) -> set[str]:
    """Return the ids of warnings that explain a critical finding, directly or through others."""
    by_id = {finding.id: finding for finding in ranked}
    raised: set[str] = set()
    for finding in ranked:
        cause = by_id.get(finding.caused_by or "") if finding.severity == "critical" else None
        while cause is not None and cause.severity != "info":
            raised.add(cause.id)
            cause = by_id.get(cause.caused_by or "")
    return raised


def _rows(view: View, found: dict[str, Finding], apart: set[str]) -> list[Inhibition]:
    """Return which finding can explain which.

    Findings of another time, `apart`, explain no end; those of one run explain nothing of another one that served.
    """
    rows = [_near(row) if row.cause in apart else row for row in (*CHAINS, *_without_labels())]
    if not view.incident.inputs:
        return rows
    runs = {id_: _runs_of(view, finding) for id_, finding in found.items()}
    return [
        replace(
            row,
            symptoms=tuple(
                each
                for each in row.symptoms
                if each in found
                and not _strangers(view, runs[row.cause], runs[each])
                and not _of_two_logs(view, found[row.cause], found[each])
                and not _of_two_cards(found[row.cause], found[each])
            ),
        )
        for row in rows
        if row.cause in found
    ]


def _runs_of(view: View, finding: Finding) -> set[tuple[str, int]]:
    """Return the runs, by file and first line, in which the evidence of a finding lies."""
    lines = [(item.source, item.line) for item in finding.evidence if item.line is not None]
    return {
        (run.source, run.start)
        for run in view.runs
        for source, line in lines
        if run.source == source and run.start <= line < run.end
    }


def _strangers(view: View, cause: set[tuple[str, int]], symptom: set[tuple[str, int]]) -> bool:
    """Whether two findings lie in different runs of one file, and the symptom in one that took requests.

    Starts that fail one after the other may fail for the same reason in two ways.
    """
    served = {(run.source, run.start) for run in view.runs if run.all("ready")}
    return bool({source for source, _ in cause} & {source for source, _ in symptom & served}) and not cause & symptom


def _of_two_logs(view: View, cause: Finding, symptom: Finding) -> bool:
    """Whether two findings are of two engine logs, and cannot be one incident.

    A start that failed explains nothing of a server that served; an end has its cause shortly before it.
    """
    logs = {given.path for given in view.incident.inputs if given.kind == "engine_log"}
    ours, theirs = ({item.source for item in each.evidence if item.line is not None} for each in (cause, symptom))
    if not ours or not ours <= logs or ours & theirs or not theirs & logs:
        return False
    served = {run.source for run in view.runs if run.all("ready")}
    if cause.id in FAILED_START and not ours & served and theirs & served:
        return True
    gap = moments.between(cause.since, symptom.since)
    waited = moments.LONGEST_WAIT if symptom.id != "worker_died" else 0
    return symptom.id in ENDED and gap is not None and moments.fits(gap, waited) is False


def _of_two_cards(cause: Finding, symptom: Finding) -> bool:
    """Whether two findings are each about one card, and not the same."""
    cards = {cause.labels.get("gpu"), symptom.labels.get("gpu")}
    return None not in cards and len(cards) > 1


def _near(row: Inhibition) -> Inhibition:
    return replace(row, symptoms=tuple(symptom for symptom in row.symptoms if symptom not in ENDED))


def _finding(cause: Cause) -> Finding:
    kind = KINDS[cause.id]
    explanation = cause.explanation
    return Finding(
        id=cause.id,
        severity=cause.severity or kind.severity,
        title=cause.title or kind.title,
        cause=explanation.cause,
        confidence=round(explanation.confidence, 2),
        evidence=explanation.evidence,
        advice=explanation.advice,
        since=cause.since,
        labels=dict(cause.labels),
    )


def _better(one: Finding, other: Finding) -> Finding:
    severity = SEVERITY_ORDER[one.severity] - SEVERITY_ORDER[other.severity]
    if severity:
        return one if severity > 0 else other
    return one if one.confidence >= other.confidence else other


def _without_labels() -> tuple[Inhibition, ...]:
    return tuple(Inhibition(row.cause, row.symptoms, ()) for row in INHIBITIONS)
