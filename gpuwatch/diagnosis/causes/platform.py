"""Platforms where the usual figures do not exist: unified memory, MIG in a container, WSL, hidden processes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, amount, number, sampled
from gpuwatch.diagnosis.explanation import Explanation, logged, size
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import Fact, LogEvent

OWNERLESS = 500 * MIB
"""A card without a visible process may have this much in use: display, driver, persistence."""
SAME = 0.03
ABSENT = ("[N/A]", "[Not Supported]", "[Insufficient Permissions]")


def wsl(view: View) -> Iterator[Cause]:
    """Tell of WSL, where pinned host memory is limited or off."""
    failed = view.events("uva_unavailable")
    noticed = [run.fact("platform.wsl") for run in view.runs if run.yes("platform.wsl")]
    kernel = view.events("wsl_kernel")
    if failed:
        yield Cause(
            "wsl",
            Explanation(
                "The new model runner needs unified addressing, that is pinned host memory, which is off on WSL2 "
                "unless it is asked for. The start fails on that and not on memory or the driver.",
                0.85,
                (logged(failed[0]), *(logged(event) for event in view.events("engine_start_failed")[:1])),
                (
                    advise("allow pinned memory", "VLLM_WSL2_ENABLE_PIN_MEMORY", None, "1"),
                    advise("or use the old model runner", "VLLM_USE_V2_MODEL_RUNNER", None, "0"),
                ),
            ),
            failed[0].time,
        )
    elif noticed and noticed[0] is not None:
        fact = noticed[0]
        yield Cause(
            "wsl",
            Explanation(
                "This is WSL: host memory is not pinned, and copies between host and GPU are slower. A limit of the "
                "platform, not a mistake in the configuration.",
                0.9,
                (Evidence("the engine noticed WSL", fact.source, fact.line, fact.key),),
                (advise("run on native Linux where copies matter; else leave it"),),
            ),
            fact.time or 0,
        )
    elif (display := _display(view)) is not None:
        yield Cause(
            "wsl",
            Explanation(
                "nvidia-smi lists WSL's display server, and its own version beside that of a driver of Windows: memory "
                "per process is not told there, and pinned host memory is limited.",
                0.85,
                (Evidence("/Xwayland is among the processes", display.source, display.line, display.key),),
                (advise("run on native Linux where copies between host and GPU matter; else leave it"),),
            ),
            display.time or 0,
        )
    elif kernel:
        yield Cause(
            "wsl",
            Explanation(
                "The kernel is that of WSL: pinned host memory is limited, and nvidia-smi does not show everything.",
                0.9,
                (logged(kernel[0]),),
                (advise("run on native Linux where copies between host and GPU matter; else leave it"),),
            ),
            kernel[0].time,
        )


def _display(view: View) -> Fact | None:
    """Return the display server of WSL in a list of nvidia-smi whose driver is one of Windows, such as 560.94."""
    windows = {
        fact.source
        for fact in view.incident.facts
        if fact.key == "driver.version" and re.fullmatch(r"\d{3}\.\d{2}", str(fact.value))
    }
    shown = (fact for fact in view.incident.facts if fact.key == "nvidia_smi.display" and fact.source in windows)
    return next((fact for fact in shown if str(fact.value).endswith("Xwayland")), None)


def unified(view: View) -> Iterator[Cause]:
    """Tell of GPUs that share the host's memory, which NVML's totals do not describe."""
    named = view.events("nvml_unified")
    short = view.events("free_memory_below_budget")
    available = [event for event in view.events("host_memory") if event.field("available")]
    same = [
        event
        for event in available
        for refused in short
        if (free := number(refused, "free"))
        and abs((amount(event.field("available")) or 0.0) / GIB - free) <= SAME * free
    ]
    if same or (named and short):
        evidence = (*(logged(event) for event in short[:1]), *(logged(event) for event in (*same, *named)[:2]))
        yield Cause(
            "unified_memory",
            Explanation(
                "The GPU uses the host's memory: what counts as free is the host's available memory, and other "
                "programs on the machine take from it. Memory that the page cache holds is not missing.",
                0.88,
                evidence,
                (
                    advise("stop other programs on the machine"),
                    advise(
                        "or use a smaller share",
                        "--gpu-memory-utilization",
                        number(short[0], "util") if short else None,
                        _fitting(short),
                    ),
                ),
            ),
            short[0].time,
        )
    elif named and not view.events("nvml_unavailable"):
        yield Cause("unified_memory", _shared_memory(named), named[0].time)


def _fitting(short: tuple[LogEvent, ...]) -> float | None:
    if not short:
        return None
    free, total = number(short[0], "free") or 0.0, number(short[0], "total") or 0.0
    return int((free / total - 0.01) * 100) / 100 if total else None


def _shared_memory(named: tuple[LogEvent, ...]) -> Explanation:
    return Explanation(
        "This GPU has no memory of its own: it uses the host's. NVML has no totals for it; figures per process exist.",
        0.9,
        (logged(named[0]),),
        (advise("read MemTotal and MemAvailable for the totals, and NVML's figures per process"),),
    )


def unavailable(view: View) -> Iterator[Cause]:
    """Tell of values that NVML does not give, and why: no memory of its own, MIG, missing permission."""
    rows = [event for event in view.events("nvml_unavailable") if _memory_missing(view, event)]
    if not rows:
        return
    event = rows[0]
    named = view.events("nvml_unified")
    denied = "Insufficient Permissions" in event.text or "NoPermission" in event.text
    if denied:
        cause = (
            "NVML does not say what the GPU's memory holds: in a container with a MIG slice the parent card may not "
            "be asked, and a MIG parent has no utilisation. The values are unknown, not zero."
        )
        advice = advise("ask the MIG device by its UUID (nvidia-smi -L), or torch.cuda.mem_get_info in the process")
    else:
        cause = "The GPU's memory totals do not exist here" + (
            ": it shares the host's memory. Unknown is not zero; figures per process exist."
            if named
            else ": an integrated GPU or a MIG parent has none. Unknown is not zero."
        )
        advice = advise("read MemTotal and MemAvailable for the totals, and NVML's figures per process")
    yield Cause(
        "nvml_na",
        Explanation(
            cause, 0.92 if denied or named else 0.7, (logged(event), *(logged(each) for each in named[:1])), (advice,)
        ),
        event.time,
    )


def _memory_missing(view: View, event: LogEvent) -> bool:
    """Whether it is a column about memory or utilisation that has no value; fans and ECC often have none."""
    if "NVMLError" in event.text or event.text.strip() in ABSENT:
        return True
    headers = [each for each in view.events("nvml_columns") if each.source == event.source and each.line < event.line]
    if not headers:
        return "[Insufficient Permissions]" in event.text
    names = [name.strip() for name in headers[-1].field("columns").split(",")]
    cells = [cell.strip() for cell in event.field("row").split(",")]
    return any(
        cell in ABSENT and name.startswith(("memory.", "utilization.gpu"))
        for name, cell in zip(names, cells, strict=False)
    )


def hidden(view: View) -> Iterator[Cause]:
    """Tell of processes that cannot be seen from inside a container."""
    unmatched = view.events("pid_not_found")
    if unmatched:
        yield Cause(
            "container_pid_invisible",
            Explanation(
                "The program did not find itself among the processes that NVML lists: NVML knows the host's process "
                "ids, the container has its own. A match that fails is unknown, not 0 bytes; a size that is worked "
                "out from it is wrong.",
                0.8,
                (logged(unmatched[0]),),
                (advise("share the host's process ids with the container", "--pid", None, "host"),),
            ),
            unmatched[0].time,
        )
        return
    for listed in view.events("gpu_processes_listed"):
        if any(each.path == listed.source for each in view.samples("gpu_process_memory_bytes")):
            continue
        if any(
            fact.key == "nvidia_smi.processes" and fact.source == listed.source and fact.value
            for fact in view.incident.facts
        ):
            continue
        used = [
            each
            for each in view.samples("gpu_memory_used_bytes")
            if each.path == listed.source and each.value > OWNERLESS
        ]
        if not used:
            continue
        yield Cause(
            "container_pid_invisible",
            Explanation(
                f"{size(used[0].value)} are in use and no process is listed: from inside a container the driver's "
                "process ids cannot be matched. That is no leak.",
                0.8,
                (
                    sampled(used[0], f"{size(used[0].value)} in use on GPU {used[0].labels.get('gpu', '')}", "bytes"),
                    logged(listed),
                ),
                (
                    advise("look from the host, or share its process ids with the container", "--pid", None, "host"),
                    advise("in Kubernetes: hostPID: true for the one who looks"),
                ),
            ),
        )
        return
