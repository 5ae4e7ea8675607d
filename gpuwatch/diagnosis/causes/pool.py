"""The KV pool while serving: storms, retractions, plain saturation, and the two that only look like a leak."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.course import FULL, PRESSED, Course, Pages, Point, courses, ends
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged
from gpuwatch.diagnosis.finding import NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

NEARLY_FULL = 0.95
PER_LINE = 50
SLOWEST_MS = 40_000
"""A preemption every 40 s is the slowest pace that is a storm: the alert wants two in a minute."""
NEAR_MS = 300_000
SHARE = 0.1
"""Preemptions below this share of the finished requests cost little."""


def storms(view: View) -> Iterator[Cause | NotEnough]:
    """Judge requests that lose their KV cache: as the log says it, as the statistics show it, as the pages count it."""
    said = view.events("preempted_v0", "swap_abort_v0")
    if said:
        yield _said(view, said) if _many(view, said) else _once(view, said[0])
        return
    for course in courses(view):
        if course.sglang:
            continue
        found = _evictions(course)
        if found:
            yield _seen(course, found)
            return
    yield from _counted(view)


def _many(view: View, said: tuple[LogEvent, ...]) -> bool:
    """Whether preemptions are a storm: vLLM V0 prints the first and every 50th of a run.

    One line is up to 50 preemptions: a storm where requests are out of a pool that is full. Between two lines are 50;
    without a time they count as near each other.
    """
    if any(event.event == "swap_abort_v0" for event in said):
        return True
    for event in said:
        total = number(event, "n")
        before = [other for other in said if other.source == event.source and other.line < event.line]
        near = not before or not event.time or (event.time - before[-1].time) / PER_LINE <= SLOWEST_MS
        if total is None or (total > 1 and near):
            return True
    run = view.run_of(said[0])
    return any(
        point.swapped or ((point.waiting or 0) > 0 and (point.pool or 0) >= PRESSED)
        for course in courses(view)
        if course.run == run
        for point in course.points
        if not said[0].time or not point.event.time or abs(point.event.time - said[0].time) <= NEAR_MS
    )


def _once(view: View, event: LogEvent) -> Cause:
    """Tell of a preemption that no storm came of: the pool was full for a moment."""
    run = view.run_of(event)
    return Cause(
        "kv_pool_saturated",
        Explanation(
            "The KV pool was full for a moment: a sequence was thrown out and computed again. vLLM V0 prints the first "
            "of a run and every 50th, and requests did not pile up: this is load, not a storm.",
            0.7,
            (logged(event),),
            tuple(_fewer(run, None) + moves.more_pool(run)),
        ),
        event.time,
        severity="info",
    )


def _said(view: View, said: tuple[LogEvent, ...]) -> Cause:
    event = max(said, key=lambda each: number(each, "n") or 0)
    run = view.run_of(event)
    aborted = [each for each in said if each.event == "swap_abort_v0"]
    swapped = aborted or [each for each in said if each.field("mode") == "SWAP"]
    total = number(event, "n")
    points = [
        point for course in courses(view) for point in course.points if (point.pool or 0) >= FULL or point.swapped
    ]
    evidence = [*(logged(each) for each in (*aborted[:1], event)), *(logged(point.event) for point in points[:2])]
    evidence = list(dict.fromkeys(evidence))
    times = f"{count(total)} times so far" if total else "again and again"
    advice: list[Advice] = []
    if swapped:
        cause = (
            f"The KV pool is exhausted: groups of sequences are swapped to the host ({times}), and its swap pool "
            "fills up."
        )
        if aborted:
            cause = (
                "The KV pool is exhausted, and so is vLLM's own swap pool on the host: groups with n > 1 are swapped "
                "out, and the engine gave up."
            )
        evidence.append(
            ruled_out(
                "the operating system's memory and swap file: this is the pool of --swap-space, which vLLM sets aside",
                event,
            )
        )
        space = run.number("flag.swap-space")
        advice.append(advise("send n > 1 as separate requests, which are recomputed instead of swapped"))
        advice += _fewer(run, None)
        advice.append(advise("or a larger swap pool (GiB per GPU)", "--swap-space", space or 4, int((space or 4) * 4)))
    else:
        cause = f"The KV pool is exhausted: sequences are thrown out of it and computed again, {times}."
        advice += _fewer(run, None)
    advice += moves.more_pool(run)
    evidence.append(ruled_out("CUDA running out of memory: the pool was set aside at start and does not grow", event))
    return Cause("kv_preemption_storm", Explanation(cause, 0.95, tuple(evidence), tuple(advice)), event.time)


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
    advice = _override(run) + _fewer(run, after.running) + moves.more_pool(run)
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
            tuple(_override(run) + _fewer(run, _running_now(pages)) + moves.more_pool(run)),
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


def _fewer(run: Run, holds: float | None) -> list[Advice]:
    concurrency = run.number("max_concurrency")
    fits = holds if holds is not None else concurrency
    current = run.number("max_num_seqs")
    if fits is not None and fits >= 1:
        return moves.fewer_seats(
            run, max(1, int(fits)), f"admit only what fits: about {count(int(fits))} requests at a time"
        )
    return [advise("admit fewer requests at a time", moves.seats_flag(run), current and int(current))]


def saturation(view: View) -> Iterator[Cause]:
    """Tell of a pool of vLLM that is full or will be, without anybody losing a cache."""
    if view.events("preempted_v0", "swap_abort_v0"):
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
        advice = _fewer(course.run, fits)
    elif (last.pool or 0) >= NEARLY_FULL and grown > 0 and (last.prompt or 0) == 0 and last.running >= first.running:
        left = 1 - (last.pool or 0)
        soon = f" in about {left / grown * seconds:.0f} s" if seconds else ""
        text = (
            f"{count(last.running)} requests fill {last.pool or 0:.1%} of the KV pool and go on growing, with no new "
            f"ones coming: it is exhausted{soon}, and then vLLM V1 throws one out and computes it again, without a "
            "line in the log."
        )
        advice = _fewer(course.run, max(1, last.running - 1))
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
