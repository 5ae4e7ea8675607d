"""Memory of the host: engines that leak it, /dev/shm, and what happens when it runs out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import HOST_SCOPE, SERVER_SCOPE
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
from gpuwatch.diagnosis.growth import Rise, rise_of, time_left, window_of
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence
    from gpuwatch.model import LogEvent

SHM_PER_RANK = 1 * GIB
"""What is proposed for /dev/shm per GPU: NCCL takes up to some hundred MiB for each, the engine's queues the rest."""
MORE_SHM = (
    "give the container more (docker run; or --ipc=host; in Kubernetes an emptyDir with medium Memory at /dev/shm)"
)
SMALL_SHM = 0.25
"""A /dev/shm below this share of the machine's memory was given to a container; the kernel's default is half."""
PER_RANK = ("cpu-offload-gb", "swap-space", "hicache-size", "hicache-ratio")
"""Flags that take host memory for each rank or GPU."""
HICACHE_RATIO = 2.0
"""SGLang's default: host memory for cached keys and values, by the size of the pool on the GPU (server_args.py)."""
KILLED = "GpuwatchProcessKilledForMemory"
"""The rule about the kernel's line; it holds where memory is free again."""


def leak(subject: Subject) -> Verdict:
    """Explain host memory of an engine's processes that does not stop growing."""
    rise = rise_of(subject, "engine_process_resident_bytes", SERVER_SCOPE)
    resident = subject.now("engine_process_resident_bytes", SERVER_SCOPE)
    available = subject.now("host_memory_available_bytes", HOST_SCOPE)
    if rise is None or rise.bytes <= 0 or resident is None or available is None:
        return Unknown("resident memory of the engine's processes and available memory of the host")
    evidence = [
        measured(f"its processes grew by {size(rise.bytes)} in {rise.minutes:.0f} min, {size(rise.hourly)} per hour",
                 "engine_process_resident_bytes", rise.bytes, "bytes"),
        measured(f"they hold {size(resident)}; {size(available)} of the host are left",
                 "host_memory_available_bytes", available, "bytes"),
        *_per_request(subject, rise), *_not_the_cards(subject),
    ]  # fmt: skip
    left = time_left(available, rise)
    return Explanation(
        f"The processes of {subject.server} take more and more host memory; at this rate the host is full in {left}.",
        0.75,
        tuple(evidence),
        (
            Advice(
                "restart the engine before that, and put a memory limit on it so that it and nothing else is killed"
            ),
            Advice("compare with another version of the engine; growth per request is the engine's, not the clients'"),
        ),
    )


def _per_request(subject: Subject, rise: Rise) -> list[Evidence]:
    window, _ = window_of(subject)
    done = subject.total("increase", "engine_requests_finished_total", window, SERVER_SCOPE)
    if not done or done < 1:
        return []
    text = f"{count(done)} requests finished meanwhile: {rise.bytes / done / 1024:.0f} KiB each"
    return [measured(text, "engine_requests_finished_total", done)]


def _not_the_cards(subject: Subject) -> list[Evidence]:
    """Say that GPU memory stands still, where it does."""
    window, minutes = window_of(subject)
    slopes = subject.context.samples(f"deriv({subject.select('gpu_memory_engine_bytes', SERVER_SCOPE)}[{window}])")
    if not slopes:
        return []
    grown = max(slope for _, slope in slopes) * minutes * 60
    if grown > 0.002 * GIB * minutes:
        return [
            measured(
                f"GPU memory of the engine grew as well, by {size(grown)}", "gpu_memory_engine_bytes", grown, "bytes"
            )
        ]
    return [excluded("GPU memory: it stands still", "gpu_memory_engine_bytes", grown, "bytes")]


def shm(subject: Subject) -> Verdict:
    """Explain a /dev/shm that is full or too small."""
    total = subject.now("host_shm_total_bytes", HOST_SCOPE)
    used = subject.now("host_shm_used_bytes", HOST_SCOPE)
    lines = subject.events("nccl_shm_failed", "shm_too_small", seconds=600)
    if not lines and (total is None or used is None):
        return Unknown("size and use of /dev/shm, or the line of a program that could not get any of it")
    evidence = [logged(event) for event in lines[-2:]]
    peak = subject.over("max_over_time", "host_shm_used_bytes", "10m", HOST_SCOPE)
    ranks = _gpus(subject)
    if lines and total is not None and used is not None:
        wanted = _shm_wanted(lines, 0.0, ranks)
        if max(used, peak or 0.0) + wanted * GIB <= total:
            return _shm_of_a_container(evidence, used, total, wanted)
    if total is not None and used is not None:
        text = f"{size(used)} of {size(total)} in /dev/shm are used"
        evidence.append(measured(text, "host_shm_used_bytes", used, "bytes"))
    wanted = _shm_wanted(lines, used or 0.0, ranks)
    full = total is not None and used is not None and used > 0.9 * total
    advice = [Advice(MORE_SHM, "--shm-size", size(total) if total else None, f"{wanted}g")]
    if full:
        stale = Advice("remove segments that no process uses any more (ls -la /dev/shm; nccl-* of killed engines)")
        memory = subject.now("host_memory_total_bytes", HOST_SCOPE)
        big = total is not None and memory is not None and total > SMALL_SHM * memory
        advice = [stale] if big else [*advice, stale]
    cause = (
        "Shared memory (/dev/shm) is full"
        if full
        else "Shared memory (/dev/shm) is too small for what a program wanted"
    )
    if lines:
        cause += ", and a program failed to get a segment of it"
    return Explanation(f"{cause}.", 0.9 if lines else 0.8, tuple(evidence), tuple(advice))


def _shm_of_a_container(evidence: list[Evidence], used: float, total: float, wanted: int) -> Explanation:
    """Explain a program that gets no shared memory although the /dev/shm that is seen here has plenty.

    Its own size cannot be seen from here, so that no present value is given.
    """
    text = f"this host's /dev/shm, not the container's: {size(used)} of {size(total)} are used"
    evidence.append(excluded(text, "host_shm_used_bytes", used, "bytes"))
    return Explanation(
        "Shared memory (/dev/shm) is too small for what a program wanted, and a program failed to get a segment of it. "
        "That of this host has room for it: the program has another one, as in a container.",
        0.8,
        tuple(evidence),
        (Advice(MORE_SHM, "--shm-size", None, f"{wanted}g"),),
    )


def _gpus(subject: Subject) -> int:
    placed = subject.context.samples(subject.select("gpu_engine", HOST_SCOPE))
    return max(1, len({dict(labels).get("uuid", "") for labels, _ in placed}))


def _shm_wanted(lines: tuple[LogEvent, ...], used: float, ranks: int) -> int:
    """Return the GiB to give: one per GPU, and twice what is used and was asked for."""
    asked = max((int(event.field("size")) for event in lines if event.field("size").isdigit()), default=0)
    return max(math.ceil(ranks * SHM_PER_RANK / GIB), math.ceil(2 * (used + asked) / GIB))


def oversubscribed(subject: Subject) -> Verdict:
    """Explain host memory that runs out: what is left, who holds it, whom the kernel killed."""
    kills = tuple(event for event in subject.events("out_of_memory_killed", seconds=600) if event.field("pid"))
    total, available, swap = (
        subject.now(name, HOST_SCOPE)
        for name in ("host_memory_total_bytes", "host_memory_available_bytes", "host_swap_used_bytes")
    )
    limit = subject.now("host_cgroup_memory_limit_bytes", HOST_SCOPE)
    inside = subject.now("host_cgroup_memory_used_bytes", HOST_SCOPE)
    evidence = [logged(event) for event in kills[-2:]]
    if total is not None and available is not None:
        text = f"{size(available)} of {size(total)} of the host's memory are available"
        evidence.append(measured(text, "host_memory_available_bytes", available, "bytes"))
    if limit is not None and inside is not None:
        text = f"{size(inside)} of the control group's limit of {size(limit)} are used"
        evidence.append(measured(text, "host_cgroup_memory_used_bytes", inside, "bytes"))
    if swap:
        evidence.append(measured(f"{size(swap)} are swapped out", "host_swap_used_bytes", swap, "bytes"))
    holders = _holders(subject)
    evidence += [
        measured(f"the processes of {server} hold {size(held)}", "engine_process_resident_bytes", held, "bytes")
        for server, held in holders
    ]
    if kills:
        cause, confidence = _killed(kills[-1]), 0.9
    elif subject.alert == KILLED:
        cause, confidence = "The kernel killed a process for lack of memory; its log line is not known here.", 0.7
        lines = f"lines of the kernel's log that say so in 5 minutes: {count(max(1.0, subject.value))}"
        evidence.insert(0, measured(lines, "kernel_events_total", subject.value))
    elif subject.alert == "GpuwatchCgroupMemoryLow":
        if not limit or inside is None:
            return Unknown("use and limit of the control group's memory")
        cause, confidence = f"The control group is at {percent(inside / limit)} of its memory limit.", 0.8
    else:
        if not total or available is None:
            return Unknown("available and total memory of the host")
        cause, confidence = f"Only {percent(available / total)} of the host's memory are left.", 0.8
    return Explanation(cause, confidence, tuple(evidence), _relief(subject, [server for server, _ in holders]))


def _killed(event: LogEvent) -> str:
    name, pid = event.field("name") or "a process", event.field("pid")
    who = f"{name} (process {pid})" + (f" of {event.server}" if event.server else "")
    resident = event.field("resident")
    held = f", which held {size(float(resident))}" if resident.isdigit() else ""
    grouped = "cgroup" in event.field("scope") or "MEMCG" in event.field("constraint")
    why = "its control group reached its memory limit" if grouped else "the whole host had run out of memory"
    return f"The kernel killed {who}{held}, because {why}."


def _holders(subject: Subject) -> list[tuple[str, float]]:
    """Return (engine, resident bytes), the largest first."""
    found = subject.context.samples(subject.select("engine_process_resident_bytes", HOST_SCOPE))
    return sorted(((dict(labels).get("server", ""), held) for labels, held in found), key=lambda item: -item[1])


def _relief(subject: Subject, servers: list[str]) -> tuple[Advice, ...]:
    """Return what to lower: flags that take host memory per rank first."""
    advice = []
    for server in servers:
        engine = subject.context.about({**subject.labels, "server": server})
        ranks = engine.config("tensor_parallel_size", "tp") or 1.0
        for name in PER_RANK:
            taken = engine.number("flag." + name)
            if taken and not (name == "hicache-ratio" and taken <= HICACHE_RATIO):
                text = f"{server} takes this for each of {count(ranks)} ranks; lower it"
                advice.append(Advice(text, "--" + name, f"{taken:g}", None))
    advice.append(Advice("give the host or the control group more memory, or run fewer engines and workers on it"))
    advice.append(Advice("leave room for /dev/shm, which counts as memory of the host and of the control group"))
    return tuple(advice)


DIAGNOSES = (
    Diagnosis("host_memory_leak", "warning", "Host memory of an engine grows without a stop", leak, SERVER_SCOPE),
    Diagnosis("host_shm_exhaustion", "warning", "Shared memory (/dev/shm) is full or too small", shm, HOST_SCOPE),
    Diagnosis("host_memory_oversubscribed", "warning", "The host runs out of memory", oversubscribed, HOST_SCOPE),
)
"""The findings of this family."""
