"""Engines that stand still while requests run, as their statistics tell it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.course import courses, ends
from gpuwatch.diagnosis.causes.view import Cause, advise, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged
from gpuwatch.diagnosis.finding import NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.course import Course, Point
    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

LEAST_POINTS = 3
LEAST_SECONDS = 60.0
"""One long prefill counts no token before it is done, and takes up to some ten seconds."""
_TIME = re.compile(r"^(\d\d):(\d\d):(\d\d)$")
_DAY = 86_400
APART = 120.0
"""Between lines further apart than this others may have been left out."""


def standing(view: View) -> Iterator[Cause | NotEnough]:
    """Judge statistics with running requests, no token read or written, and a pool that neither fills nor empties."""
    found = [(course, points) for course in courses(view) if (points := _longest(course))]
    if not found:
        return
    course, points = max(found, key=lambda pair: pair[0].seconds(pair[1][0], pair[1][-1]))
    first, last = points[0], points[-1]
    over = course.points[-1] is not last
    waiting = f" and {count(last.waiting)} wait" if last.waiting else ""
    pool = f"{last.pool:.1%}" if last.pool is not None else "the same share"
    yield Cause(
        "engine_stalled",
        Explanation(
            f"The engine stood still for {count(course.seconds(first, last))} s: {count(last.running)} requests "
            f"run{waiting}, not one token was read or written, and the KV pool stays at {pool}."
            + (" It went on afterwards." if over else ""),
            0.75,
            (
                *ends(points),
                ruled_out("a prefill in chunks, however long: it fills the pool", last.event),
            ),
            (
                advise("where does it stand: py-spy dump --pid of the engine core and each worker, before a restart"),
                advise("look for an Xid at that time: dmesg -T | grep -i xid"),
            ),
        ),
        first.event.time,
        severity="warning" if over else None,
    )
    if course.run.tp > 1 and not view.events("nccl_timeout"):
        yield NotEnough(
            "nccl_hang",
            "nvidia-smi of that time: ranks that wait for each other are busy at little power, a rank that has not "
            "come is idle",
        )


def unanswered(view: View) -> Iterator[Cause]:
    """Judge health checks that SGLang's server could not answer: its own processes had not said a word for so long."""
    events = view.events("health_unanswered")
    if not events:
        return
    event = max(events, key=_silence)
    silent = _silence(event)
    last = [each for each in view.events("stats") if each.source == event.source]
    over = any(each.line > event.line for each in last)
    since = f"; its last sign of life was {count(silent)} s old" if silent else ""
    yield Cause(
        "engine_stalled",
        Explanation(
            f"The scheduler or the detokenizer did not answer a health check within {event.field('s')} s{since}."
            + (" It went on afterwards." if over else ""),
            0.8 if silent >= LEAST_SECONDS else 0.6,
            (logged(event), *(logged(each) for each in last[-1:] if not over)),
            (
                advise("where does it stand: py-spy dump --pid of sglang::scheduler and sglang::detokenizer"),
                advise("look for an Xid at that time: dmesg -T | grep -i xid"),
                advise("a long prefill alone answers late as well: compare with --chunked-prefill-size"),
            ),
        ),
        event.time,
        severity="warning" if over or silent < LEAST_SECONDS else None,
    )


def soft(view: View) -> Iterator[Cause]:
    """Judge soft watchdogs of SGLang, which end nothing: batches after one show that the engine goes on."""
    events = [event for event in view.events("soft_watchdog") if not view.events("sglang_watchdog")]
    if not events:
        return
    event = events[-1]
    scheduler = next((each for each in reversed(events) if each.field("name") == "Scheduler"), None)
    run = view.run_of(event)
    after = [each for each in view.events("stats") if run.holds(each) and each.line > event.line]
    stands = scheduler is not None and not after
    event = scheduler if stands and scheduler is not None else event
    name = event.field("name")
    silent = number(event, "s") or 0.0
    cause = f"{name}'s soft watchdog had no sign of life for {silent:g} s. It only reports and ends nothing"
    if after:
        cause += "; batches went on after it, so the engine does not stand still."
    elif stands:
        cause += ": a step did not end in that time, and the log shows no batch after it."
    else:
        cause += ", and it does so without requests as well."
    yield Cause(
        "engine_stalled",
        Explanation(
            cause,
            0.5,
            (logged(event), *([ruled_out("an engine that stands still: it served on", after[0])] if after else [])),
            (
                advise("nothing, while requests are answered")
                if not stands
                else advise("where does it stand: py-spy dump --pid of sglang::scheduler"),
            ),
        ),
        event.time,
        severity="warning" if stands else "info",
        title="A soft watchdog reported" if not stands else "",
    )


def _silence(event: LogEvent) -> float:
    """Return the seconds from the last sign of life to the health check; 0 where the line does not tell."""
    beat, asked = _TIME.match(event.field("beat")), _TIME.match(event.field("asked"))
    if beat is None or asked is None:
        return 0.0
    hours, minutes, seconds = (int(now) - int(then) for now, then in zip(asked.groups(), beat.groups(), strict=True))
    return float((hours * 3600 + minutes * 60 + seconds) % _DAY)


def _longest(course: Course) -> list[Point]:
    """Return the longest stretch of points at which an engine stood still; nothing where none lasted."""
    stretches: list[list[Point]] = []
    before: Point | None = None
    for point in course.points:
        still = point.running > 0 and point.prompt == 0 and point.generated == 0
        if still and before is not None and _same(course, before, point):
            stretches[-1].append(point)
        elif still:
            stretches.append([point])
        before = point if still else None
    lasting = [each for each in stretches if len(each) >= LEAST_POINTS]
    best = max(lasting, key=lambda each: course.seconds(each[0], each[-1]), default=[])
    return best if best and course.seconds(best[0], best[-1]) >= LEAST_SECONDS else []


def _same(course: Course, one: Point, other: Point) -> bool:
    return (one.running, one.pool) == (other.running, other.pool) and course.seconds(one, other) <= APART
