"""Errors of NVSwitches (SXid), which join the NVLinks of a machine's GPUs, and what came of them on the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments
from gpuwatch.diagnosis.causes.view import Cause, advise, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

FOLLOWS = frozenset({"45", "74", "137", *map(str, range(144, 151)), "155"})
"""Xids that a switch brings about on the cards behind it: errors of their NVLinks, and work that was removed."""


def fatal(view: View) -> tuple[LogEvent, ...]:
    """Return the errors of switches that the driver calls fatal."""
    return tuple(event for event in view.events("nvswitch_error") if event.field("grade") == "Fatal")


def _told(events: Sequence[LogEvent]) -> str:
    """Return the numbers of some errors with their words, each number once."""
    first: dict[str, LogEvent] = {}
    for event in events:
        first.setdefault(event.field("code"), event)
    return "; ".join(f"SXid {code}, {event.field('text')}" for code, event in list(first.items())[:3])


def _where(events: Sequence[LogEvent]) -> str:
    switches = list(dict.fromkeys(event.field("pci") for event in events))
    return f"The NVSwitch at {switches[0]}" if len(switches) == 1 else f"{len(switches)} NVSwitches"


def failed(view: View, broken: Sequence[LogEvent], after: Sequence[LogEvent]) -> Cause:
    """Explain fatal errors of switches; `after` are Xids of the cards that such an error brings about."""
    ends = moments.ends(view)
    main = moments.nearest(broken, ends)[0] if ends else broken[0]
    evidence = [logged(event) for event in (main, *(each for each in broken if each is not main))[:2]]
    evidence += [logged(event) for event in after[:2]]
    if after:
        cards = len({event.field("pci") for event in after})
        which = "a GPU" if cards == 1 else f"{cards} GPUs"
        evidence.append(
            ruled_out(f"a program as the cause: the Xid of {which} comes with the switch's error", after[0])
        )
    return Cause(
        "xid_hardware",
        Explanation(
            f"{_where(broken)} reported a fatal error: {_told(broken)}. NVLink traffic over it fails, and so does "
            "what the GPUs behind it do together.",
            0.88,
            (*evidence, *moments.doubt(main, ends), *moments.elsewhere(main, ends)),
            (
                advise(
                    "drain the node and reset its GPUs and switches together (nvidia-smi --gpu-reset without -i), or "
                    "reboot"
                ),
                advise(
                    "see the links: nvidia-smi nvlink -s, nvidia-smi nvlink -e and /var/log/fabricmanager.log; if the "
                    "same link fails again, have the switch or the card at it replaced"
                ),
                advise(
                    "a GPU that was reset, or a virtual machine that ended, at that moment takes its links down too"
                ),
            ),
        ),
        main.time,
        severity=moments.milder(main, ends),
        apart=moments.related(main, ends) is False,
        title="An NVSwitch failed",
    )


def survived(view: View, events: Sequence[LogEvent], after: Sequence[LogEvent]) -> Cause:
    """Explain errors of switches that the driver calls not fatal."""
    ends = moments.ends(view)
    main = moments.nearest(events, ends)[0] if ends else events[0]
    return Cause(
        "xid_hardware",
        Explanation(
            f"{_where(events)} reported errors that are not fatal: {_told(events)}. The switch goes on; a program "
            "whose traffic met one may have failed or hang.",
            0.7,
            (
                *(logged(event) for event in (*events[:2], *after[:1])),
                ruled_out("a switch that failed: the driver calls none of its errors fatal", main, len(events)),
            ),
            (
                advise("start the program that hangs again; do the counters rise: nvidia-smi nvlink -e"),
                advise("where they do, look at /var/log/fabricmanager.log and the link's two ends"),
            ),
        ),
        main.time,
        severity="warning",
        apart=True,
        title="An NVSwitch reported errors that it survived",
    )
