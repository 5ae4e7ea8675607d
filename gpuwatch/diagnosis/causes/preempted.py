"""Preemptions as vLLM V0 tells them: a storm, one that is over, or a pool that was full for a moment.

V0 prints the first preemption of a run and every 50th after it (``core/scheduler.py``, 0.4.3 to 0.10.2). What follows
tells how grave they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.course import FULL, PRESSED, Point, courses
from gpuwatch.diagnosis.causes.view import Cause, advise, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Advice, Evidence, Severity
    from gpuwatch.model import LogEvent

NAMES = ("preempted_v0", "swap_abort_v0")
"""The events of V0 about requests that lose their place in the pool."""
PER_LINE = 50
SLOWEST_MS = 40_000
"""A preemption every 40 s is the slowest pace that is a storm: the alert wants two in a minute."""
NEAR_MS = 300_000
CALM = 3
"""So many statistics lines at the end of a run, without a queue and with room in the pool, show that it is over."""
SWAP_FILLED = 50.0
"""From this use of the swap pool on, in percent, a larger one is worth a try."""


def judge(view: View, said: tuple[LogEvent, ...]) -> Cause:
    """Judge the preemptions of a log, at least one."""
    points = _after(view, said[-1])
    over = _is_calm(points)
    return _storm(view, said, points if over else []) if _many(view, said, over=over) else _once(view, said[0], points)


def _after(view: View, event: LogEvent) -> list[Point]:
    """Return the statistics of the run of an event that come after it."""
    return [point for point in _of_run(view, event) if point.event.line > event.line]


def _of_run(view: View, event: LogEvent) -> list[Point]:
    run = view.run_of(event)
    return [point for course in courses(view) if course.run == run for point in course.points]


def _is_calm(points: list[Point]) -> bool:
    last = points[-CALM:]
    return len(last) == CALM and not any(
        point.swapped or point.waiting or point.pool is None or point.pool >= PRESSED for point in last
    )


def _many(view: View, said: tuple[LogEvent, ...], *, over: bool) -> bool:
    """Whether preemptions are a storm.

    One line is up to 50 preemptions: a storm where requests are out of a pool that is full then, and no storm where
    the pool has room for all soon after. Between two lines are 50; without a time they count as near each other.
    """
    if any(event.event == "swap_abort_v0" for event in said):
        return True
    for event in said:
        total = number(event, "n")
        before = [other for other in said if other.source == event.source and other.line < event.line]
        near = not before or not event.time or (event.time - before[-1].time) / PER_LINE <= SLOWEST_MS
        if total is None or (total > 1 and near):
            return True
    return not over and any(
        point.swapped or ((point.waiting or 0) > 0 and (point.pool or 0) >= PRESSED)
        for point in _after(view, said[0])
        if not said[0].time or not point.event.time or point.event.time - said[0].time <= NEAR_MS
    )


def _once(view: View, event: LogEvent, after: list[Point]) -> Cause:
    """Tell of a preemption that no storm is known to have come of: the pool was full for a moment."""
    run = view.run_of(event)
    done = "swapped out to the host" if event.field("mode") == "SWAP" else "thrown out and computed again"
    before = [point for point in _of_run(view, event) if point.event.line < event.line]
    queued = not after and bool(before) and bool(before[-1].waiting)
    shown = after[-1:] or before[-1:]
    ends = (
        "The log ends there, with requests that wait: whether more followed, it does not tell."
        if queued
        else "Requests did not pile up: this is load, not a storm."
        if after
        else "No other followed in this log."
    )
    return Cause(
        "kv_pool_saturated",
        Explanation(
            f"The KV pool was full{'' if queued else ' for a moment'}: a sequence was {done}. vLLM V0 prints the first "
            f"of a run and every 50th. {ends}",
            0.7,
            (logged(event), *(logged(point.event) for point in shown)),
            tuple(moves.fitting_seats(run, None) + moves.more_pool(run)),
        ),
        event.time,
        severity="warning" if queued else "info",
        title="" if queued else "The KV pool was full for a moment",
    )


def _storm(view: View, said: tuple[LogEvent, ...], calm: list[Point]) -> Cause:
    """Tell of a storm; `calm` are the statistics after it where it is over."""
    event = max(said, key=lambda each: number(each, "n") or 0)
    run = view.run_of(event)
    aborted = [each for each in said if each.event == "swap_abort_v0"]
    swapped = aborted or [each for each in said if each.field("mode") == "SWAP"]
    points = [
        point for course in courses(view) for point in course.points if (point.pool or 0) >= FULL or point.swapped
    ]
    evidence = [*(logged(each) for each in (*aborted[:1], event)), *(logged(point.event) for point in points[:2])]
    evidence = list(dict.fromkeys(evidence))
    total = number(event, "n")
    times = "again and again" if not total else "once" if total == 1 else f"{count(total)} times"
    so_far = times if calm or not total else f"{times} so far"
    if aborted:
        cause = (
            "The KV pool is exhausted, and so is vLLM's own swap pool on the host: groups with n > 1 are swapped out, "
            "and the engine gave up."
        )
    else:
        is_, are = ("was", "were") if calm else ("is", "are")
        done = "swapped to the host" if swapped else "thrown out of it and computed again"
        cause = f"The KV pool {is_} exhausted: {'groups of ' if swapped else ''}sequences {are} {done}, {so_far}."
    advice: list[Advice] = _host_pool(view, event, evidence, told=bool(aborted)) if swapped else []
    advice = [*advice[:1], *moves.fitting_seats(run, None), *advice[1:], *moves.more_pool(run)]
    severity: Severity | None = None
    title = "Sequences are swapped out of the KV pool to the host" if swapped and not aborted else ""
    if calm and not aborted:
        evidence.append(logged(calm[-1].event))
        cause += (
            f" It is over: by the last lines nothing waits, and {1 - (calm[-1].pool or 0):.0%} of the pool is free."
        )
        severity = "warning"
        title = f"Requests were {'swapped out of' if swapped else 'thrown out of'} a full KV pool"
    evidence.append(ruled_out("CUDA running out of memory: the pool was set aside at start and does not grow", event))
    return Cause(
        "kv_preemption_storm",
        Explanation(cause, 0.95, tuple(evidence), tuple(advice)),
        event.time,
        severity=severity,
        title=title,
    )


def _host_pool(view: View, event: LogEvent, evidence: list[Evidence], *, told: bool) -> list[Advice]:
    """Return what to do about V0's swap pool, and add what rules out the system's; `told` where V0 says it is full."""
    run = view.run_of(event)
    evidence.append(
        ruled_out(
            "the operating system's memory and swap file: this is the pool of --swap-space, which vLLM sets aside",
            event,
        )
    )
    advice = [advise("send n > 1 as separate requests, which are recomputed instead of swapped")]
    used = [percent for point in _of_run(view, event) if (percent := number(point.event, "cpukv")) is not None]
    if told or not used or max(used) >= SWAP_FILLED:
        space = run.number("flag.swap-space")
        advice.append(advise("or a larger swap pool (GiB per GPU)", "--swap-space", space or 4, int((space or 4) * 4)))
    return advice
