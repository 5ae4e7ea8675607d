"""What Kubernetes did to a container or pod beside killing it for memory: probes that failed, pods without a node."""

from __future__ import annotations

import math
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged
from gpuwatch.diagnosis.finding import NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

LONGER = 3
"""So many times as long as a start was seen to need is what a start-up probe should wait: caches are cold sometimes."""
PERIOD = 10
"""Seconds between two tries of a probe unless told otherwise (Kubernetes)."""


def probes(view: View) -> Iterator[Cause]:
    """Judge a container that was ended because a probe failed, by what the probe met."""
    for event in view.events("probe_kill")[:1]:
        failed = [each for each in view.events("probe_failed") if each.source == event.source]
        settings = [each for each in view.events("probe_setting") if each.source == event.source]
        probe = event.field("probe")
        setting = next((each for each in settings if each.field("probe").lower() == probe), None)
        lived, times = _lived(view, event)
        why = failed[0].field("why") if failed else ""
        met, advice = _met(why, lived, setting)
        lasted = f" {count(lived)} s after its start" if lived else ""
        evidence = [logged(event), *(logged(each) for each in failed[:1]), *(logged(each) for each in times)]
        if setting is not None:
            evidence.append(logged(setting))
        code = view.events("container_exit")
        evidence += [logged(each) for each in code[:1]]
        evidence.append(ruled_out("the OOM killer: Kubernetes says that it ended the container itself", event))
        yield Cause(
            "worker_died",
            Explanation(
                f"Kubernetes ended the container {event.field('name')}{lasted}: its {probe} probe failed, as {met}.",
                0.9,
                tuple(evidence),
                tuple(advice),
            ),
            event.time,
        )


def _met(why: str, lived: float | None, setting: LogEvent | None) -> tuple[str, list[Advice]]:
    """Return what the probe met, and what to change for it."""
    if "statuscode: 503" in why:
        return (
            "the server answered 503, which is how an engine says itself that it has failed",
            [advise("look for the engine's own error: kubectl logs --previous")],
        )
    if "Timeout" in why or "deadline exceeded" in why:
        timeout = number(setting, "timeout") if setting is not None else None
        proposed = max(10, int(10 * timeout)) if timeout else 10
        return (
            "the server listens and did not answer in time",
            [
                advise(
                    "give it more time to answer",
                    "livenessProbe.timeoutSeconds",
                    timeout,
                    proposed,
                ),
                advise("does the engine hang: kubectl logs --previous, py-spy dump"),
            ],
        )
    what = "nothing listened yet, as while the weights are loaded" if "refused" in why else "the server did not answer"
    return what, [_startup(lived, setting), advise("did the start itself fail: kubectl logs --previous")]


def _startup(lived: float | None, setting: LogEvent | None) -> Advice:
    """Return the advice to give the start its own probe, as long as the start that was seen needs."""
    period = (number(setting, "period") if setting is not None else None) or PERIOD
    tries = math.ceil(LONGER * lived / period) if lived else None
    text = "give the start a probe of its own, which holds the liveness probe off until the server answers"
    if lived:
        text += f": {count(lived)} s were too short; so many tries every {period:g} s are {LONGER} times as long"
    return advise(text, "startupProbe.failureThreshold", None, tries)


def _lived(view: View, event: LogEvent) -> tuple[float | None, list[LogEvent]]:
    """Return the seconds from the start to the end of the container that was ended, and the lines that say it."""
    start: LogEvent | None = None
    found: tuple[float | None, list[LogEvent]] = (None, [])
    for each in view.events("container_time"):
        if each.source != event.source:
            continue
        if each.field("what") == "Started":
            start = each
        elif start is not None:
            seconds = (_date(each) - _date(start)) / 1000
            if seconds > 0:
                found = (seconds, [start, each])
    return found


def _date(event: LogEvent) -> float:
    return parsedate_to_datetime(event.field("date")).timestamp() * 1000


def unplaced(view: View) -> Iterator[NotEnough]:
    """Say what would tell why a pod found no node with free GPUs."""
    for event in [each for each in view.events("unschedulable") if not each.field("what")][:1]:
        nodes, short = event.field("nodes"), event.field("short")
        yield NotEnough(
            "gpu_lost",
            f"a pod was not placed: {short} of {nodes} nodes have too few free nvidia.com/gpu; kubectl describe node "
            "says whether other pods hold them or Allocatable lacks some",
        )
