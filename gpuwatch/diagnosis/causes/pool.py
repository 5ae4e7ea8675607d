"""The KV pool while serving: storms, retractions, plain saturation, and the two that only look like a leak."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves, preempted
from gpuwatch.diagnosis.causes.course import PRESSED, Course, Pages, Point, courses, ends
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged
from gpuwatch.diagnosis.finding import NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice

NEARLY_FULL = 0.95
SHARE = 0.1
"""Preemptions below this share of the finished requests cost little."""


def storms(view: View) -> Iterator[Cause | NotEnough]:
    """Judge requests that lose their KV cache: as the log says it, as the statistics show it, as the pages count it."""
    said = view.events(*preempted.NAMES)
    if said:
        yield preempted.judge(view, said)
        return
    for course in courses(view):
        if course.sglang:
            continue
        found = _evictions(course)
        if found:
            yield _seen(course, found)
            return
    yield from _counted(view)


def _evictions(course: Course) -> list[tuple[Point, Point]]:
    """Return the pairs of lines between which requests went from the batch back into the queue.

    Running requests fell, the queue grew by exactly as many, nothing was prefilled and the pool stayed well used:
    requests that finish leave the engine, and their room would have gone to one that waits.
    """
    found = []
    for before, after in pairwise(course.points):
        fell = before.running - after.running
        grew = (after.waiting or 0) + after.swapped - (before.waiting or 0) - before.swapped
        if fell < 1 or grew != fell or fell < SHARE * before.running:
            continue
        if (after.prompt or 0) == 0 and min(before.pool or 0, after.pool or 0) >= PRESSED:
            found.append((before, after))
    return found


def _seen(course: Course, found: list[tuple[Point, Point]]) -> Cause:
    before, after = found[0]
    run = course.run
    most = max(point.open for point in course.points)
    thrown = sum(first.running - second.running for first, second in found)
    evidence = [
        logged(before.event),
        logged(after.event),
        *from_fact(run, "kv.tokens", "the KV pool holds {} tokens", "tokens"),
        *from_fact(run, "kv.blocks_override", "the pool was limited to {} blocks"),
        *from_fact(run, "kv.blocks_profiled", "memory profiling found room for {} blocks"),
        *from_fact(run, "max_num_seqs", "up to {} requests are admitted"),
    ]
    evidence.append(
        ruled_out(
            "clients that went away and requests that ended: the number of open requests stayed the same",
            after.event,
            after.open,
        )
    )
    evidence.append(ruled_out("plain saturation: requests left the batch without having finished", after.event))
    advice = _override(run) + moves.fitting_seats(run, after.running) + moves.more_pool(run)
    return Cause(
        "kv_preemption_storm",
        Explanation(
            f"The KV pool holds about {count(after.running)} of the {count(most)} requests that are open: running "
            f"ones lose their cache, go back to the queue and are computed again ({count(thrown)} were seen to). vLLM "
            "V1 prints no line for it.",
            min(0.9, 0.7 + 0.1 * len(found)),
            tuple(evidence),
            tuple(advice),
        ),
        before.event.time,
    )


def _counted(view: View) -> Iterator[Cause | NotEnough]:
    pages = Pages(view)
    rise = pages.rise("engine_preemptions_total")
    evicted = _page_evictions(pages)
    totals = pages.total("engine_preemptions_total")
    finished = pages.total("engine_requests_finished_total")
    kinds = {sample.labels.get("engine_kind") for sample in view.samples("engine_requests_running")}
    sglang = "sglang" in kinds
    done = (
        (pages.rise("engine_requests_finished_total") or 0.0)
        if rise is not None
        else (finished[-1] if finished else 0.0)
    )
    counted = rise if rise is not None else (totals[-1] if totals else 0.0)
    worst = max(counted, evicted)
    if worst < 2 or worst <= SHARE * done:
        return
    run = view.last
    usage = [sample.value for sample in view.samples("engine_kv_cache_usage_ratio")]
    id_ = "sglang_retraction_storm" if sglang else "kv_preemption_storm"
    waiting = [sample.value for sample in view.samples("engine_requests_waiting")]
    idle = bool(usage) and max(usage) < PRESSED and not any(waiting)
    if rise is None and not evicted and (not finished or idle):
        yield NotEnough(
            id_, f"whether the {count(counted)} preemptions since the start go on: a second page, a minute later"
        )
        return
    evidence = pages.evidence("engine_preemptions_total", f"the engine counted {count(counted)} preemptions")
    if evicted:
        evidence += pages.evidence(
            "engine_requests_running",
            f"running requests fell by {count(evicted)} without finishing while the queue grew",
        )
    if usage:
        evidence += pages.evidence("engine_kv_cache_usage_ratio", f"the KV pool was used to {max(usage):.0%}", "ratio")
    evidence += pages.evidence("engine_requests_finished_total", f"{count(done)} requests finished in that time")
    yield Cause(
        id_,
        Explanation(
            f"The KV pool is exhausted: {count(worst)} requests lost their cache while {count(done)} finished; their "
            "work is done again.",
            0.85 if rise or evicted >= 3 else 0.65,
            tuple(evidence),
            tuple(_override(run) + moves.fitting_seats(run, _running_now(pages)) + moves.more_pool(run)),
        ),
    )


def _page_evictions(pages: Pages) -> float:
    """Return how many requests went from the batch back into the queue from page to page: a lower bound."""
    running, waiting = pages.total("engine_requests_running"), pages.total("engine_requests_waiting")
    finished = pages.total("engine_requests_finished_total") or [0.0] * len(running)
    if not (len(running) == len(waiting) == len(finished)):
        return 0.0
    evicted = 0.0
    for at in range(1, len(running)):
        left = running[at - 1] - running[at] - max(0.0, finished[at] - finished[at - 1])
        grew = waiting[at] - waiting[at - 1]
        evicted += max(0.0, min(left, grew))
    return evicted


def _running_now(pages: Pages) -> float | None:
    values = pages.total("engine_requests_running")
    return values[-1] if values else None


def _override(run: Run) -> list[Advice]:
    forced, profiled = run.number("kv.blocks_override"), run.number("kv.blocks_profiled")
    if forced is None or (profiled is not None and profiled <= forced):
        return []
    text = "the pool is limited by this flag: remove it" + (
        f"; profiling found room for {count(profiled)} blocks" if profiled else ""
    )
    return [advise(text, "--num-gpu-blocks-override", int(forced), int(profiled) if profiled else "(none)")]


def saturation(view: View) -> Iterator[Cause]:
    """Tell of a pool of vLLM that is full or will be, without anybody losing a cache."""
    if view.events(*preempted.NAMES):
        return
    for course in courses(view):
        if not course.points or course.sglang or _evictions(course):
            continue
        found = _full(course)
        if found is not None:
            yield found
            return


def _full(course: Course) -> Cause | None:
    busy = [point for point in course.points if point.running > 0 and point.pool is not None]
    if not busy:
        return None
    queueing = [point for point in busy if (point.waiting or 0) > 0 and (point.pool or 0) >= PRESSED + 0.15]
    run, last = course.run, busy[-1]
    if len(queueing) >= max(2, len(busy) / 2):
        usage = statistics.mean(point.pool or 0 for point in queueing)
        return Cause(
            "kv_pool_saturated",
            Explanation(
                f"The KV pool is used to {usage:.0%} and requests wait for room. No request was seen to lose its "
                "cache: this is load, not a storm.",
                0.8,
                tuple(ends(queueing)),
                tuple(_override(run) + moves.more_pool(run)),
            ),
            queueing[0].event.time,
            severity="info",
        )
    return _will_be_full(course, busy, last)


def _will_be_full(course: Course, busy: list[Point], last: Point) -> Cause | None:
    """Tell that the requests in the engine need more than the pool, from how it filled up till now."""
    first = busy[0]
    grown = (last.pool or 0) - (first.pool or 0)
    seconds = course.seconds(first, last)
    each = (last.pool or 0) / last.running
    demand = each * last.open
    if (last.waiting or 0) > 0 and demand > 1 and grown > 0 and (last.pool or 0) >= 0.5:
        fits = int(1 / each)
        text = (
            f"{count(last.running)} requests hold {last.pool or 0:.0%} of the KV pool; the {count(last.open)} that "
            f"are open need {demand:.1f} times what it has. About {fits} fit: admitted beyond that, they are thrown "
            "out and computed again."
        )
        advice = moves.fitting_seats(course.run, fits)
    elif (last.pool or 0) >= NEARLY_FULL and grown > 0 and (last.prompt or 0) == 0 and last.running >= first.running:
        left = 1 - (last.pool or 0)
        soon = f" in about {left / grown * seconds:.0f} s" if seconds else ""
        text = (
            f"{count(last.running)} requests fill {last.pool or 0:.1%} of the KV pool and go on growing, with no new "
            f"ones coming: it is exhausted{soon}, and then vLLM V1 throws one out and computes it again, without a "
            "line in the log."
        )
        advice = moves.fitting_seats(course.run, max(1, last.running - 1))
    else:
        return None
    return Cause(
        "kv_pool_saturated",
        Explanation(
            text,
            0.7,
            (*ends([first, last]), ruled_out("a leak: the pool was set aside at start", last.event)),
            tuple(advice + moves.more_pool(course.run)),
        ),
        first.event.time,
        severity="info",
    )


def never_fits(view: View) -> Iterator[Cause]:
    """Judge requests that the pool can never hold."""
    for event in view.events("request_never_fits")[:1]:
        run = view.run_of(event)
        yield Cause(
            "max_model_len_exceeds_kv",
            Explanation(
                "A request was given up: the whole KV pool cannot hold it.",
                0.85,
                (
                    logged(event),
                    *from_fact(run, "kv.blocks", "the pool has {} blocks"),
                    *from_fact(run, "max_model_len", "requests of up to {} tokens are accepted"),
                ),
                (*moves.shorter(run, None, "accept no more than fits into the pool"), *moves.more_pool(run)),
            ),
            event.time,
        )
