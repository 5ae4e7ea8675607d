"""Memory of the GPU that grows: without a stop, or only until a pool, a cache or an allocator has what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import ENGINE_SCOPE, GPU_SCOPE, SERVER_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import (
    Explanation,
    Unknown,
    Verdict,
    count,
    excluded,
    logged,
    measured,
    percent,
    size,
)
from gpuwatch.diagnosis.finding import Advice

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

OWNS = 0.6
"""A part of the memory makes the growth when it grew by at least this share of it."""


@dataclass(frozen=True, slots=True)
class Rise:
    """How much something grew within `minutes`, in bytes."""

    bytes: float
    minutes: float

    @property
    def hourly(self) -> float:
        """Bytes per hour at this rate."""
        return self.bytes / self.minutes * 60


def window_of(subject: Subject) -> tuple[str, float]:
    """Return the stretch that the alert looked at, and its minutes."""
    return ("14m", 14.0) if subject.alert.endswith("Creeping") else ("2m", 2.0)


def rise_of(subject: Subject, name: str, scope: tuple[str, ...], **extra: str) -> Rise | None:
    """Return how much a gauge grew within the alert's window, by its slope."""
    window, minutes = window_of(subject)
    slope = subject.over("deriv", name, window, scope, **extra)
    return None if slope is None else Rise(slope * minutes * 60, minutes)


def growing(subject: Subject) -> Verdict:
    """Explain used memory that does not stop growing: whose it is, how fast, and when the card is full."""
    rise = rise_of(subject, "gpu_memory_used_bytes", GPU_SCOPE)
    total = subject.now("gpu_memory_total_bytes", GPU_SCOPE)
    used = subject.now("gpu_memory_used_bytes", GPU_SCOPE)
    if rise is None or rise.bytes <= 0 or total is None or used is None:
        return Unknown("used memory of the last minutes")
    gpu = subject.labels.get("gpu", "")
    evidence = [
        measured(f"used memory grew by {size(rise.bytes)} in {rise.minutes:.0f} minutes ({size(rise.hourly)} per hour)",
                 "gpu_memory_used_bytes", rise.bytes, "bytes"),
        measured(f"{size(used)} of {size(total)} are used; the card will be full in {time_left(total - used, rise)}",
                 "gpu_memory_used_bytes", used, "bytes"),
    ]  # fmt: skip
    owner, parts = _who(subject, rise)
    evidence += parts
    evidence += since_ready(subject)
    evidence += _work(subject, rise)
    if owner == "other":
        return Explanation(
            f"Another process on GPU {gpu} grows, not the engine.", 0.85, tuple(evidence),
            (Advice(f"move or stop the other process on GPU {gpu} (nvidia-smi lists it)"),),
        )  # fmt: skip
    slept = _sleeps(subject)
    evidence += slept[-2:]
    who = "The engine" if owner == "engine" else "Something"
    cause = f"{who} takes more and more memory of GPU {gpu}"
    if len(slept) > 1:
        cause += ", and keeps more after each sleep."
    else:
        cause += ": a leak, or an allocator that finds no room in what it holds; these two are not separated here."
    return Explanation(cause, 0.75 if owner == "engine" else 0.6, tuple(evidence), (
        Advice("restart the engine before the card is full, and compare with another version of it"),
        Advice("to tell a leak from a fragmented allocator: it ends with growable segments if it was the allocator",
               "PYTORCH_CUDA_ALLOC_CONF", None, "expandable_segments:True"),
    ))  # fmt: skip


def since_ready(subject: Subject) -> list[Evidence]:
    """Return how much more a GPU holds than when its engines began to serve, as the memory ledger counts it.

    The GPU is that of `subject`, or the fullest of its engine.
    """
    if subject.labels.get("uuid"):
        which, every = "the GPU", [subject.now("ledger_growth_bytes", GPU_SCOPE)]
    elif subject.server:
        placed = subject.select("gpu_engine", SERVER_SCOPE)
        found = subject.context.samples(f"gpuwatch_ledger_growth_bytes and on (host, uuid) {placed}")
        which, every = "the fullest GPU", [amount for _, amount in found]
    else:
        return []
    grown = max((amount for amount in every if amount is not None), default=None)
    if grown is None:
        return []
    changed = f"{size(abs(grown))} {'less' if grown < 0 else 'more'}"
    text = f"{which} holds {changed} than a minute after its engines began to serve"
    return [measured(text, "ledger_growth_bytes", grown, "bytes")]


def time_left(room: float, rise: Rise) -> str:
    """Return in how many minutes or hours `room` bytes are used up at the rate of `rise`."""
    hours = max(0.0, room) / rise.hourly
    return f"{hours * 60:.0f} minutes" if hours < 2 else f"{hours:.0f} hours"


def _who(subject: Subject, rise: Rise) -> tuple[str, list[Evidence]]:
    """Return whose memory grew ("engine", "other", "hidden" or nothing), with the figures."""
    window, minutes = window_of(subject)
    engine = sum(
        slope * minutes * 60
        for _, slope in subject.context.samples(
            f"deriv({subject.select('gpu_memory_engine_bytes', GPU_SCOPE)}[{window}])"
        )
    )
    other = rise_of(subject, "gpu_memory_other_bytes", GPU_SCOPE)
    hidden = rise_of(subject, "gpu_memory_unattributed_bytes", GPU_SCOPE)
    parts = [
        ("other", "other visible processes", "gpu_memory_other_bytes", other.bytes if other else 0.0),
        ("engine", "the engine's processes", "gpu_memory_engine_bytes", engine),
        (
            "hidden",
            "memory that no visible process owns",
            "gpu_memory_unattributed_bytes",
            hidden.bytes if hidden else 0.0,
        ),
    ]
    for owner, words, name, grown in parts:
        if grown >= OWNS * rise.bytes:
            return owner, [measured(f"{words} grew by {size(grown)}", name, grown, "bytes")]
    return "", []


def _work(subject: Subject, rise: Rise) -> list[Evidence]:
    """Return the growth per finished request, where the engines on the card finished any."""
    window, _ = window_of(subject)
    done = 0.0
    for labels, _ in subject.context.samples(subject.select("gpu_engine", GPU_SCOPE)):
        engine = subject.context.about({**dict(labels)})
        done += engine.total("increase", "engine_requests_finished_total", window, SERVER_SCOPE) or 0.0
    if done < 1:
        return []
    text = f"{count(done)} requests finished meanwhile: {rise.bytes / done / 1024:.0f} KiB each"
    return [measured(text, "engine_requests_finished_total", done)]


def _sleeps(subject: Subject) -> list[Evidence]:
    placed = subject.context.samples(subject.select("gpu_engine", GPU_SCOPE))
    slept = [
        event
        for server in sorted({dict(labels).get("server", "") for labels, _ in placed} - {""})
        for event in subject.context.about({**subject.labels, "server": server}).events("sleep", seconds=900)
    ]
    return [logged(event) for event in sorted(slept, key=lambda event: event.time)]


def no_leak(subject: Subject) -> Verdict:
    """Explain what looks like a leak and is none: memory on a plateau, or a pool that is full of cache."""
    if subject.alert == "GpuwatchKvPoolFullOfCache":
        return _cache(subject)
    flat = subject.ask(
        f"max_over_time({subject.select('gpu_memory_used_bytes', GPU_SCOPE)}[5m])"
        f" - min_over_time({subject.select('gpu_memory_used_bytes', GPU_SCOPE)}[5m])"
    )
    used, total = (subject.now(name, GPU_SCOPE) for name in ("gpu_memory_used_bytes", "gpu_memory_total_bytes"))
    if flat is None or used is None or total is None:
        return Unknown("used memory of the last 15 minutes")
    rose = subject.value
    gpu = subject.labels.get("gpu", "")
    return Explanation(
        f"Used memory of GPU {gpu} rose by {size(rose)} and has stood still for five minutes of work: "
        "the allocator keeps what a peak once took, and uses it again.",
        0.8,
        (
            measured(
                f"used memory is {size(rose)} higher than ten minutes ago", "gpu_memory_used_bytes", rose, "bytes"
            ),
            excluded(f"growth that goes on: {size(flat)} in 5 minutes", "gpu_memory_used_bytes", flat, "bytes"),
            measured(f"{size(used)} of {size(total)} are used", "gpu_memory_used_bytes", used, "bytes"),
        ),
        (Advice("nothing; look at the free memory only if a peak left little of it"),),
    )


def _cache(subject: Subject) -> Verdict:
    tokens = subject.now("engine_kv_cache_tokens")
    cached = subject.now("engine_kv_cache_evictable_tokens")
    usage = subject.now("engine_kv_cache_usage_ratio")
    if not tokens or cached is None:
        return Unknown("the tokens of the KV pool, and how many of them are cache")
    evidence = [
        measured(f"{count(cached)} of {count(tokens)} tokens in the pool are cache that no request uses",
                 "engine_kv_cache_evictable_tokens", cached, "tokens"),
    ]  # fmt: skip
    if usage is not None:
        text = f"a pool that requests fill: they hold {percent(usage)} of it"
        evidence.append(excluded(text, "engine_kv_cache_usage_ratio", usage, "ratio"))
    return Explanation(
        "The KV pool looks full because finished requests stay in the prefix cache; they make room as soon as needed.",
        0.9,
        tuple(evidence),
        (Advice("nothing; judge the pool by what running requests hold, not by what is cached"),),
    )


DIAGNOSES = (
    Diagnosis("gpu_memory_growth", "warning", "GPU memory grows without a stop", growing, GPU_SCOPE),
    Diagnosis("false_leak", "info", "This is no memory leak", no_leak, (*ENGINE_SCOPE, "uuid")),
)
"""The findings of this family."""
