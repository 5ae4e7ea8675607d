"""Starts that the engine itself refused, with its own figures: free memory, the KV pool, the longest request."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves, neighbours
from gpuwatch.diagnosis.causes.view import Cause, advise, amount, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged, size
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.model import LogEvent

CONTEXT_GROWTH = 0.35
"""GiB. A shortage up to this much is what one process's context and libraries take from version to version."""
SAME = 0.03
"""Two readings of one machine's memory within this share of each other are the same figure."""


def shared(view: View) -> Iterator[Cause]:
    """Judge a start that found less free memory than it was told to use, or memory that moved while it measured."""
    for event in view.events("free_memory_below_budget")[:1]:
        yield _below_budget(view, event)
    for event in view.events("memory_profile_drift")[:1]:
        yield _drift(event)


def _below_budget(view: View, event: LogEvent) -> Cause:
    free, total = number(event, "free") or 0.0, number(event, "total") or 0.0
    wanted, fraction = number(event, "req") or 0.0, number(event, "util")
    short, held = wanted - free, total - free
    fits = max(moves.LOWEST_FRACTION, math.floor((free / total - 0.01) * 100) / 100) if total else None
    run = view.run_of(event)
    orphans = _orphans(view, event)
    unified = _system_memory(view, free)
    evidence = [logged(event), *orphans, *unified]
    advice = [advise(f"use no more than is free: {free:g} of {total:g} GiB", moves.fraction_flag(run), fraction, fits)]
    confidence = 0.95
    if orphans:
        cause = (
            f"Processes of an earlier start still hold the card: {held:.2f} of {total:g} GiB were taken when this one "
            f"started, and {short:.2f} GiB are missing. They outlived their server"
            + (", which was killed." if any("Killed" in (item.text or "") for item in orphans) else ".")
        )
        advice = [
            advise(
                "end the left-over engine processes by their pid, then start again; stop a server with SIGTERM and "
                "kill its whole process group, or they stay"
            )
        ]
        if _worked_before(view, event, fraction):
            evidence.append(
                ruled_out("a memory fraction that is too high: the same one worked in the run before", event)
            )
    elif unified:
        cause = (
            f"GPU and host share one memory, and {free:g} GiB of it were available: {short:.2f} GiB less than the "
            "engine was told to use."
        )
        advice.insert(0, advise("stop other programs on this machine: their memory is the GPU's as well"))
    elif short <= CONTEXT_GROWTH:
        cause = (
            f"Only {short * 1024:.0f} MiB are missing: {free:g} of {total:g} GiB were free, {wanted:g} GiB wanted. "
            "The contexts and libraries on the device take that much; no other tenant is needed to explain it."
        )
        confidence = 0.85
    else:
        tenants = neighbours.listed(view, event.field("gpu"), engines=True)
        evidence += neighbours.evidence(tenants)
        cause = (
            f"{held:.2f} of {total:g} GiB were in use when the engine started, so that {fraction or 0:g} of the card "
            f"({wanted:g} GiB) is not free: {short:.2f} GiB are missing."
        )
        if tenants:
            cause += f" nvidia-smi lists there{neighbours.naming(tenants)}."
        if any(tenant.name.startswith(neighbours.ENGINES) for tenant in tenants):
            cause += " That is an engine: a second server that works, or what is left of an earlier one."
            advice.append(
                advise(
                    "which of the two: ps -o pid,ppid,etime,args -p PID; end it only where its server is gone "
                    "(PPID 1), else give this engine another card"
                )
            )
        advice.append(
            advise("or free the card: nvidia-smi lists what holds it (a display, a second engine, left-overs)")
        )
    evidence.append(ruled_out("the model's size: nothing had been loaded yet", event))
    return Cause("startup_gpu_shared", Explanation(cause, confidence, tuple(evidence), tuple(advice)), event.time)


def _orphans(view: View, event: LogEvent) -> list[Evidence]:
    """Return engine processes that are still there although they belong to an earlier run than the one that failed.

    A process with an engine's name may be a second server that works: only a kill, an earlier run in the same log or a
    parent that is gone shows that it is left over.
    """
    killed = [
        other for other in view.events("process_killed") if other.source == event.source and other.line < event.line
    ]
    rows = [row for row in view.events("process_row") if row.field("name").startswith(neighbours.ENGINES)]
    held = [
        sample
        for sample in view.samples("gpu_process_memory_bytes")
        if sample.labels.get("process", "").startswith(neighbours.ENGINES)
    ]
    fatherless = [row for row in rows if _parent(view, row) == "1"]
    if not killed and not fatherless and not _earlier(view, event):
        return []
    if not rows and not held:
        return [logged(killed[-1])] if killed else []
    found = [logged(each) for each in (*killed[-1:], *(fatherless or rows)[:3])]
    return found + [
        Evidence(
            f"{sample.labels['process']} holds {size(sample.value)}",
            sample.path,
            None,
            sample.name,
            sample.value,
            "bytes",
        )
        for sample in held[:2]
    ]


def _earlier(view: View, event: LogEvent) -> list[Run]:
    """Return the runs of the same log before the one that an event belongs to."""
    run = view.run_of(event)
    return [other for other in view.runs if other.source == event.source and other.start < run.start]


def _worked_before(view: View, event: LogEvent, fraction: float | None) -> bool:
    """Whether a run before this one came up with the same share of the card."""
    return any(
        run.fact("ready") is not None and run.number("memory_fraction") in (None, fraction)
        for run in _earlier(view, event)
    )


def _parent(view: View, row: LogEvent) -> str:
    """Return the pid of the parent in a row of ps whose columns are known, or nothing."""
    for event in reversed(view.events("process_columns")):
        if event.source == row.source and event.line < row.line:
            listed = event.field("columns")
            names = listed.split(",") if listed else event.field("header").lower().split()
            fields = row.field("row").split()
            place = names.index("ppid") if "ppid" in names else -1
            return fields[place] if 0 <= place < len(fields) else ""
    return ""


def _system_memory(view: View, free: float) -> list[Evidence]:
    """Return what shows that the device's memory is the host's: the free figure is the host's available memory."""
    found = [logged(event) for event in view.events("nvml_unified")[:1]]
    for event in view.events("host_memory"):
        available = _gib(event, "available")
        if available and abs(available - free) <= SAME * free:
            text = f"the {free:g} GiB that were free are the host's available memory ({available:.1f} GiB)"
            found.append(Evidence(text, event.source, event.line, event.event, available, "GiB"))
            plain = _gib(event, "free")
            if plain and abs(plain - free) > SAME * free:
                found.append(
                    ruled_out(
                        f"page cache counted as used: MemFree is {plain:.1f} GiB, which the engine did not use",
                        event,
                        plain,
                        "GiB",
                    )
                )
    return found


def _gib(event: LogEvent, name: str) -> float | None:
    held = amount(event.field(name))
    return None if held is None else held / GIB


def _drift(event: LogEvent) -> Cause:
    before, after = number(event, "a") or 0.0, number(event, "b") or 0.0
    moved = after - before
    verb = "gave back" if moved > 0 else "took"
    return Cause(
        "startup_gpu_shared",
        Explanation(
            f"Another process {verb} {abs(moved):.2f} GiB on this device while the engine measured its own use "
            f"({before:g} GiB free before, {after:g} GiB after): the measurement is void, and the engine refuses it.",
            0.95,
            (logged(event), ruled_out("memory that ran out: more was free afterwards than before", event))
            if moved > 0
            else (logged(event),),
            (
                advise("start it again when earlier processes on the GPU have ended and memory is settled"),
                advise("start engines that share a card one after the other, each when the one before is healthy"),
            ),
        ),
        event.time,
    )


def unbalanced(view: View) -> Iterator[Cause]:
    """Judge SGLang's refusal of GPUs with unequal free memory."""
    for event in view.events("memory_unbalanced")[:1]:
        yield Cause(
            "tp_imbalance",
            Explanation(
                "The GPUs of this group have unequal free memory before anything is loaded: another process holds "
                "one of them, or the cards differ in size.",
                0.9,
                (logged(event), ruled_out("the model's size: nothing had been loaded yet", event)),
                (
                    advise("free the GPU that another process uses (nvidia-smi lists it)"),
                    advise("with different cards: size for the smallest one", "--mem-fraction-static"),
                ),
            ),
            event.time,
            severity="critical" if "Error: " in event.text else None,
        )
