"""Kernels that faulted: what CUDA reports of it, with the end that it brought about and the state of the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments
from gpuwatch.diagnosis.causes.hardware import unread_cards
from gpuwatch.diagnosis.causes.view import Cause, advise, group
from gpuwatch.diagnosis.explanation import Explanation, logged
from gpuwatch.diagnosis.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

_FAULTS = ("illegal", "misaligned", "launch failure", "device-side assert")
_DEATHS = ("engine_dead", "worker_dead", "process_crashed")
TITLE = "A kernel on the GPU faulted"


def faults(view: View) -> tuple[LogEvent, ...]:
    """Return the errors of CUDA that are about a kernel that faulted."""
    return tuple(event for event in view.events("cuda_error") if any(word in group(event, "what") for word in _FAULTS))


def deaths(view: View, fault: LogEvent) -> tuple[LogEvent, ...]:
    """Return the ends of an engine that go with a fault: of the same run, or of its time in another file."""
    run = view.run_of(fault)
    return tuple(
        end
        for end in view.events(*_DEATHS)
        if moments.together(fault, end) is not False
        and (view.run_of(end) is run if end.source == fault.source else moments.together(fault, end))
    )


def cuda_faults(view: View) -> Iterator[Cause]:
    """Judge illegal accesses that CUDA reported, where the kernel log is not there to say more."""
    found = faults(view)
    if not found or view.events("xid"):
        return
    event = found[0]
    ended = deaths(view, event)
    cards = unread_cards(view)
    what = group(event, "what").strip()
    cause = f"A kernel faulted: {what}."
    evidence = [logged(event), *(logged(end) for end in ended[:1])]
    if cards:
        names = ", ".join(dict.fromkeys(f"GPU {gpu}" for _, gpu in cards))
        cause += f" nvidia-smi cannot read {names}: a card that failed ends kernels so, too."
        evidence.append(Evidence(f"Not ruled out: the card: the driver reads errors of {names}"))
    else:
        cause += (
            " Usually a bug of a kernel, seldom the card: the driver's Xid tells (13 or 31: software; 48, 63, 94, 95: "
            "memory)."
        )
    yield Cause(
        "xid_software",
        Explanation(
            cause,
            0.4 if cards else 0.6,
            tuple(evidence),
            (
                advise("look for the Xid of that moment: dmesg -T | grep -i xid"),
                advise("run once with CUDA_LAUNCH_BLOCKING=1; the trace then names the kernel"),
            ),
        ),
        event.time,
        severity="critical" if ended else None,
        title=TITLE,
    )
