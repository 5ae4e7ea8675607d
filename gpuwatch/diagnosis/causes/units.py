"""Servers that never started, or were ended, by the rules of systemd and Kubernetes and not by their own fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.owners import foreign_unit
from gpuwatch.diagnosis.causes.view import Cause, advise, group
from gpuwatch.diagnosis.explanation import Explanation, logged
from gpuwatch.diagnosis.finding import NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

_QUOTED = 160


def timed_out(view: View) -> Iterator[Cause]:
    """Judge units of an engine that systemd ended because they took too long to start."""
    every = view.events("unit_timeout")
    for event in [each for each in every if each.field("what") == "start" and not foreign_unit(each.field("name"))][:1]:
        unit = event.field("name")
        killed = [each for each in view.events("stop_timed_out") if each.field("name") == unit]
        yield Cause(
            "worker_died",
            Explanation(
                f"systemd ended {unit}: it was not ready within the time that it has to start (TimeoutStartSec)"
                + (", and did not end when asked to, so it was killed." if killed else "."),
                0.9,
                (logged(event), *(logged(each) for each in killed[:1])),
                (
                    advise(
                        "a large model takes minutes to load: give the start more time, or none to end by",
                        "TimeoutStartSec",
                        None,
                        "infinity",
                    ),
                    advise("Type=simple or exec where nothing in the server tells systemd that it is ready"),
                    advise("what it did until then: journalctl -u " + unit),
                ),
            ),
            event.time,
        )


def never_created(view: View) -> Iterator[NotEnough]:
    """Say why a pod has no engine that could be judged."""
    for event in view.events("not_admitted")[:1]:
        what, asked, free = event.field("what"), event.field("asked"), event.field("free")
        yield NotEnough(
            "gpu_lost",
            f"a pod was not admitted: it asks for {asked} {what} and {free} are available; kubectl describe node says "
            f"whether Allocatable lacks some, and the log of the device plugin why [{_place(event)}]",
        )
    for event in view.events("unschedulable"):
        what = event.field("what")
        if not what:
            continue
        id_ = "host_memory_oversubscribed" if what == "memory" else "gpu_lost"
        yield NotEnough(
            id_,
            f"a pod was not placed: {event.field('short')} of {event.field('nodes')} nodes have too little free "
            f"{what}; kubectl describe node says what is allocated [{_place(event)}]",
        )
        break
    for event in view.events("container_not_created")[:1]:
        text = group(event, "what") + event.field("why")
        shown = text if len(text) <= _QUOTED else text[: _QUOTED - 1] + "…"
        yield NotEnough(
            "worker_died", f"an engine that ran: its container was never created. {shown} [{_place(event)}]"
        )


def _place(event: LogEvent) -> str:
    return f"{event.source}:{event.line}"
