"""Platforms on which the usual figures do not exist: say so instead of guessing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import GPU_SCOPE, HOST_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown, Verdict, count, logged, measured, size
from gpuwatch.diagnosis.finding import Advice

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.finding import Evidence

RESERVED = 0.02
"""Share of a unified memory that a proposed fraction leaves to the system."""


def unified(subject: Subject) -> Verdict:
    """Say what used and free memory mean on a GPU that shares the machine's memory."""
    if subject.now("gpu_info", GPU_SCOPE, memory_kind="unified") != 1:
        return Unknown("the kind of the GPU's memory")
    total = subject.now("host_memory_total_bytes", HOST_SCOPE)
    available = subject.now("host_memory_available_bytes", HOST_SCOPE)
    card = subject.labels.get("name", "")
    evidence = [measured(f"{card or 'the card'} has no memory of its own (memory_kind unified)", "gpu_info", 1.0)]
    advice = [Advice("make room on the machine itself: stop other programs; what counts is MemAvailable, not MemFree")]
    if total and available is not None:
        text = f"{size(available)} of {size(total)} are available to GPU and programs together"
        evidence.append(measured(text, "host_memory_available_bytes", available, "bytes"))
        most = max(0.0, available / total - RESERVED)
        text = f"an engine that starts now can have at most this share ({size(available)} are available)"
        advice.insert(0, Advice(text, "--gpu-memory-utilization", None, f"{most:.2f}"))
    return Explanation(
        f"GPU {subject.labels.get('gpu', '')} shares the memory of the machine: used and free are those of all of it, "
        "page cache and other programs included.",
        0.95,
        tuple(evidence),
        tuple(advice),
    )


def wsl(subject: Subject) -> Verdict:
    """Say what is different on the Windows Subsystem for Linux."""
    if subject.now("host_wsl", HOST_SCOPE) != 1:
        return Unknown("the release of the kernel")
    lines = subject.events("uva_unavailable", seconds=3600)
    evidence = [measured("the kernel is Microsoft's", "host_wsl", 1.0), *(logged(event) for event in lines[-1:])]
    return Explanation(
        "Linux runs under Windows here: pinned memory and unified addressing are off or limited, NVML does not tell "
        "the memory of processes, and Windows' own programs use the GPU too.",
        0.95,
        tuple(evidence),
        (
            Advice("if the engine stops with 'UVA is not available'", "VLLM_WSL2_ENABLE_PIN_MEMORY", None, "1"),
            Advice("for full speed run it on Linux itself"),
        ),
    )


def not_told(subject: Subject) -> Verdict:
    """Say which readings of a GPU do not exist, and why."""
    found = subject.context.samples(f"{subject.select('gpu_reading_absent', GPU_SCOPE)} == 1")
    lacking = {dict(labels).get("reading", ""): dict(labels).get("reason", "") for labels, _ in found}
    if not lacking:
        return Unknown("readings that the driver does not give")
    gpu = subject.labels.get("gpu", "")
    parts = _mig_devices(subject, gpu)
    evidence: list[Evidence] = [
        measured(f"{reading}: {reason.replace('_', ' ')}", "gpu_reading_absent", 1.0)
        for reading, reason in sorted(lacking.items())
    ]
    names = " and ".join(sorted(lacking))
    if parts:
        evidence.append(measured(f"it is split into {count(parts)} MIG devices", "gpu_info", float(parts)))
        cause = f"GPU {gpu} is split into MIG devices: the driver tells {names} of the parts, not of the whole card."
        advice = [Advice("look at the MIG devices (GPU 0:1 and so on); they carry memory of their own")]
    else:
        cause = f"The driver does not tell {names} of GPU {gpu}: unknown, which is neither 0 nor idle."
        advice = [Advice("judge it by power, clocks and what the engine reports")]
    if "no_permission" in lacking.values():
        advice.append(Advice("give the container the right: NVIDIA_MIG_MONITOR_DEVICES=all, or run it privileged"))
    return Explanation(cause, 0.9, tuple(evidence), tuple(advice))


def _mig_devices(subject: Subject, gpu: str) -> int:
    infos = subject.context.samples(subject.select("gpu_info", HOST_SCOPE, memory_kind="mig"))
    return sum(dict(labels).get("gpu", "").startswith(gpu + ":") for labels, _ in infos)


def processes(subject: Subject) -> Verdict:
    """Say that memory on a GPU cannot be laid to processes, and how to change that."""
    hidden = subject.now("gpu_processes_hidden", GPU_SCOPE)
    listed = subject.now("gpu_processes", GPU_SCOPE)
    used = subject.now("gpu_memory_used_bytes", GPU_SCOPE)
    if listed is None or (not hidden and listed > 0):
        return Unknown("processes that the driver lists on the GPU and that cannot be seen here")
    gpu = subject.labels.get("gpu", "")
    inside = subject.now("host_container", HOST_SCOPE) == 1
    evidence = []
    if hidden:
        text = f"{count(hidden)} of {count(listed)} processes that the driver lists are not in this process table"
        evidence.append(measured(text, "gpu_processes_hidden", hidden))
    elif used is not None:
        evidence.append(
            measured(f"{size(used)} are used and no process is listed", "gpu_memory_used_bytes", used, "bytes")
        )
    if inside:
        evidence.append(measured("this looks like the inside of a container", "host_container", 1.0))
    where = (
        "this container does not see the processes of the host" if inside else "their process ids are not visible here"
    )
    return Explanation(
        f"Whose memory it is on GPU {gpu} cannot be told: {where}. It is neither unused nor leaked.",
        0.85 if inside else 0.7,
        tuple(evidence),
        (
            Advice("run gpuwatch with the host's process ids: docker run --pid=host, or hostPID: true in Kubernetes"),
            Advice("or look from the host (nvidia-smi) before anybody resets the card or kills something"),
        ),
    )


DIAGNOSES = (
    Diagnosis("unified_memory", "info", "A GPU shares the memory of the machine", unified, GPU_SCOPE),
    Diagnosis("wsl", "info", "This is the Windows Subsystem for Linux", wsl, HOST_SCOPE),
    Diagnosis("nvml_na", "info", "The driver does not tell all figures of a GPU", not_told, GPU_SCOPE),
    Diagnosis("container_pid_invisible", "info", "Processes on a GPU cannot be seen from here", processes, GPU_SCOPE),
)
"""The findings of this family."""
