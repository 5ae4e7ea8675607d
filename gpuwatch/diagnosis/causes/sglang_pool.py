"""SGLang's KV pool: retractions, allocations by page, and a pool that is full by design."""

from __future__ import annotations

import math
import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import CONSERVATIVE, SMALLEST_CHUNK
from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.course import FULL, PRESSED, Course, Point, courses, ends
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged
from gpuwatch.diagnosis.finding import NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice, Evidence
    from gpuwatch.model import LogEvent

BRIM = 0.985
"""SGLang prints the usage with two decimals; at 0.99 it is full."""


COLLAPSED = 0.33
"""Generation at this share of what it was, with no fewer requests running, is a collapse."""


FIGURES = 6
"""Lines below a failed allocation in which SGLang prints what each pool has."""
PAGE = 64
"""Tokens of a page where the log does not say it: the largest that is usual."""
SEATS = 256
"""Requests that run at a time where the log does not say it."""
_RUNNING = re.compile(r"#running-req: (\d+)")
ENOUGH = 2
"""One victim is how the scheduler finds its limit."""


def leaks(view: View) -> Iterator[Cause | NotEnough]:
    """Judge a self-check of SGLang that found pool entries missing: an error ends the scheduler, a warning does not."""
    last = [event for event in view.events("sglang_leak") if not _served_on(view, event)]
    raised = [event for event in last if not _only_warned(event)]
    if last and not raised:
        yield NotEnough(
            "sglang_kv_alloc_failure",
            "whether entries of the KV pool are lost for good: SGLang's own check warned of a leak, and a warning ends "
            f"nothing [{PurePath(last[0].source).name}:{last[0].line}]; the token usage of the idle server, twice with "
            "hours between, would tell. Newer versions of SGLang raise it as an error",
        )
    for event in raised:
        run = view.run_of(event)
        dead = [each for each in view.events("engine_dead", "worker_dead") if run.holds(each)]
        pool = event.field("pool").strip() or "the KV pool"
        yield Cause(
            "worker_died",
            Explanation(
                f"SGLang's own check of its pools failed: entries of {pool} belong to no request and are not free. "
                "That is a defect of the engine, not load: the scheduler raises it as an error and ends.",
                0.9 if dead else 0.8,
                (
                    logged(event),
                    *(logged(each) for each in dead[:1]),
                    ruled_out("a pool that is full by load: the check counts entries that nobody holds", event),
                ),
                (
                    advise("update SGLang; report the line with its figures if the newest version does it too"),
                    advise("does it happen without the tree of cached prefixes as well", "--disable-radix-cache"),
                ),
            ),
            event.time,
        )
        return


def _served_on(view: View, event: LogEvent) -> bool:
    run = view.run_of(event)
    return any(run.holds(each) and each.line > event.line for each in view.events("stats"))


def _only_warned(event: LogEvent) -> bool:
    """Whether a leak is told by Python's ``warnings.warn``; the words of SGLang before 0.4.5 are always told so."""
    return "Error: " not in event.text and ("UserWarning: " in event.text or "KV cache pool leak" in event.text)


def retractions(view: View) -> Iterator[Cause]:
    """Judge SGLang's retractions: its own lines, or a full pool after which generation collapsed."""
    said = view.events("retraction", "retraction_abort")
    victims = sum(number(event, "n") or 1 for event in said)
    decoding = [course for course in courses(view) if course.sglang]
    if victims >= ENOUGH:
        event = said[0]
        yield _retracting(
            view,
            event,
            [logged(each) for each in said[:2]] + _brim(decoding),
            0.92,
            f"{count(victims)} requests were taken out of the batch and prefilled again",
        )
        return
    for course in decoding:
        found = _collapse(course)
        if found is not None:
            before, after = found
            evidence = [logged(before.event), logged(after.event)]
            if after.window_pool is not None and after.window_pool < PRESSED:
                evidence.append(
                    ruled_out(
                        f"the sliding-window pool: it is used to {after.window_pool:.0%} only",
                        after.event,
                        after.window_pool,
                    )
                )
            evidence.append(ruled_out("heat or power: the fall begins when the pool is full", after.event))
            yield _retracting(
                view,
                before.event,
                evidence,
                0.75,
                f"generation fell from {count(before.generated or 0)} to {count(after.generated or 0)} tokens/s once "
                "it was full",
            )
            return
    for event in view.events("sglang_oom"):
        if event.field("alone"):
            continue
        yield _request_slots(view, event) if event.field("slots") else _page_allocation(view, event)
        return


def _collapse(course: Course) -> tuple[Point, Point] | None:
    """Return the last fast point with a full pool and the first slow one after it, with no fewer requests running."""
    for at, before in enumerate(course.points):
        if (before.pool or 0) < BRIM or not before.generated:
            continue
        for after in course.points[at + 1 :]:
            slow = after.generated is not None and after.generated < COLLAPSED * before.generated
            if slow and after.running >= before.running and (after.pool or 0) >= PRESSED:
                return before, after
    return None


def _brim(decoding: list[Course]) -> list[Evidence]:
    full = [point for course in decoding for point in course.points if (point.pool or 0) >= FULL]
    return [logged(full[0].event)] if full else []


def _retracting(view: View, event: LogEvent, evidence: list[Evidence], confidence: float, what: str) -> Cause:
    run = view.run_of(event)
    evidence += from_fact(run, "kv.tokens", "the KV pool holds {} tokens", "tokens")
    seats = run.number("max_num_seqs")
    decoding = [
        point.running
        for course in courses(view)
        if course.sglang
        for point in course.points
        if (point.pool or 0) >= FULL
    ]
    holds = min(decoding) if decoding else None
    cap = run.fact("flag.max-total-tokens")
    advice = (
        [advise("the pool is capped by a flag: remove the cap", "--max-total-tokens", cap.value, "(none)")]
        if cap is not None
        else []
    )
    if holds and (seats is None or holds < seats):
        advice += moves.fewer_seats(
            run, max(1, int(holds)), f"admit only what fits: about {count(holds)} requests at a time"
        )
    else:
        advice.append(advise("admit fewer requests at a time", "--max-running-requests", seats and int(seats)))
    advice += [
        advise(
            "or admit more carefully",
            "--schedule-conservativeness",
            run.number("flag.schedule-conservativeness"),
            CONSERVATIVE,
        ),
        *moves.larger_share(run, "or enlarge the pool where memory is left beside it"),
    ]
    return Cause(
        "sglang_retraction_storm",
        Explanation(f"SGLang's KV pool is full: {what}.", confidence, tuple(evidence), tuple(advice)),
        event.time,
    )


def _request_slots(view: View, event: LogEvent) -> Cause:
    """Explain a batch for which the table of running requests had no row: it holds no tokens."""
    run = view.run_of(event)
    free, want = number(event, "free"), number(event, "want")
    seats = run.number("max_num_seqs")
    told = f": {count(free)} of {count(want)} rows were free" if free is not None and want is not None else ""
    before = [
        point
        for course in courses(view)
        if course.run is run
        for point in course.points
        if point.event.line < event.line and point.pool is not None
    ]
    evidence = [logged(event), *from_fact(run, "max_num_seqs", "at most {} requests run at a time", "requests")]
    used = before[-1].pool if before else None
    if used is not None and used < PRESSED:
        evidence.append(ruled_out(f"the KV pool: it is used to {used:.0%}", before[-1].event, used))
    return Cause(
        "sglang_kv_alloc_failure",
        Explanation(
            f"SGLang had no row left in its table of running requests{told}. The table has one row for each request "
            "that may run (--max-running-requests); the scheduler admitted more, or rows of ended requests "
            "were not given back, which is a defect of the engine. Memory is not what is missing.",
            0.85,
            tuple(evidence),
            (
                advise(
                    "admit fewer requests at a time, as the message says",
                    "--max-running-requests",
                    seats and int(seats),
                ),
                advise("update SGLang; report the line with its figures if the newest version does it too"),
            ),
        ),
        event.time,
    )


def _page_allocation(view: View, event: LogEvent) -> Cause:
    run = view.run_of(event)
    if (counted := _counted(view, event)) is not None:
        return counted
    phase = event.field("phase").lower() or "a batch"
    page = run.number("kv.block_size")
    return Cause(
        "sglang_kv_alloc_failure",
        Explanation(
            f"The KV pool could not serve {phase}: pages of it are missing although single tokens may look free. A "
            "request takes whole pages, and another pool (sliding window, Mamba, request slots) may be the one that "
            "is full.",
            0.85,
            (
                logged(event),
                *from_fact(run, "kv.tokens", "the KV pool holds {} tokens", "tokens"),
                *from_fact(run, "kv.block_size", "a page has {} tokens", "tokens"),
            ),
            (
                advise("admit fewer requests at a time", "--max-running-requests", run.number("max_num_seqs")),
                advise("smaller pages waste less", "--page-size", int(page), max(1, int(page) // 4))
                if page and page > 1
                else advise("enlarge the pool", "--mem-fraction-static", run.number("memory_fraction")),
            ),
        ),
        event.time,
    )


def _counted(view: View, event: LogEvent) -> Cause | None:
    """Explain an allocation that failed by the figures of each pool that the engine prints below it; None without."""
    near = [
        each
        for each in view.events("pool_wanted", "pool_available")
        if each.source == event.source and 0 <= each.line - event.line <= FIGURES
    ]
    wanted = next((number(each, "n") for each in near if each.event == "pool_wanted"), None)
    pools = [each for each in near if each.event == "pool_available"]
    if wanted is None or not pools:
        return None
    run = view.run_of(event)
    # States of Mamba are counted by request, tokens of the other pools by token.
    short = [each for each in pools if (number(each, "n") or 0) < (1 if each.field("pool") == "mamba" else wanted)]
    # Every running request may need a page of its own, of which single tokens say nothing.
    pages = (run.number("kv.block_size") or PAGE) * (run.number("max_num_seqs") or SEATS)
    tokens = [number(each, "n") or 0 for each in pools if each.field("pool") != "mamba"]
    if not short and any(left < wanted + pages for left in tokens):
        return None
    said = ", ".join(f"{count(number(each, 'n') or 0)} {_unit(each)}" for each in pools)
    evidence = (logged(event), *(logged(each) for each in pools))
    phase = event.field("phase").lower() or "a batch"
    update = advise("update SGLang; report these lines if the newest version fails with room as well")
    if not short:
        cached = sum(number(each, "evict") or 0 for each in pools) > sum(number(each, "free") or 0 for each in pools)
        held = ", most of it entries of the cache that were to be given up for it" if cached else ""
        cause = (
            f"SGLang could not allocate {count(wanted)} tokens for {phase} although its own figures have room: {said}"
            f"{held}. That is a defect of the engine, not load, and a larger pool does not change it."
        )
        again = advise("does it happen without the tree of cached prefixes as well", "--disable-radix-cache")
        advice: tuple[Advice, ...] = (update, again)
    else:
        which = " and ".join(_unit(each) for each in short)
        cause = (
            f"SGLang could not allocate {count(wanted)} tokens for {phase}: what is short are {which} ({said} were "
            "left, those that can be given up included)."
        )
        seats = run.number("max_num_seqs")
        running = _running_before(view, event)
        base = min((each for each in (seats, running) if each), default=None)
        fewer = max(1, int(base) // 2) if base else None
        text = "admit fewer requests at a time" + (f": {count(running)} ran" if running else "")
        advice = (
            advise(text, "--max-running-requests", seats and int(seats), fewer),
            *_smaller_prefill(run, event, wanted, min(tokens, default=0)),
            *moves.larger_share(run, "or enlarge the pool where memory is left beside it"),
        )
    return Cause("sglang_kv_alloc_failure", Explanation(cause, 0.88, evidence, advice), event.time)


def _running_before(view: View, event: LogEvent) -> float:
    """Return the requests that ran by the last statistics line before an event, 0 where none tells."""
    run = view.run_of(event)
    before = [each for each in view.events("stats") if run.holds(each) and each.line < event.line]
    told = (number(each, "run") or _running(each.field("rest")) for each in reversed(before))
    return next((running for running in told if running), 0.0)


def _running(rest: str) -> float:
    """Return the requests that run, from the end of a line about a prefill."""
    found = _RUNNING.search(rest)
    return float(found[1]) if found else 0.0


def _smaller_prefill(run: Run, event: LogEvent, wanted: float, left: float) -> list[Advice]:
    """Return the advice to prefill in chunks for which there were tokens, where one of `wanted` found too few."""
    fits = 1 << int(math.log2(left)) if left >= SMALLEST_CHUNK else 0
    if event.field("phase") != "Prefill" or not SMALLEST_CHUNK <= fits < wanted:
        return []
    chunk = run.number("max_num_batched_tokens")
    why = f"or prefill in smaller chunks: {count(left)} tokens were left"
    return [advise(why, "--chunked-prefill-size", chunk and int(chunk), fits)]


def _unit(event: LogEvent) -> str:
    """Return what a pool holds, for a sentence."""
    pool = event.field("pool")
    return "Mamba states" if pool == "mamba" else f"{pool} tokens".strip()


def _retained(view: View, course: Course) -> Cause | None:
    full = [point for point in course.points if (point.pool or 0) >= FULL]
    leaked = any(course.run.holds(event) for event in view.events("sglang_leak"))
    if leaked or len(full) < max(1, len(course.points) / 2):
        return None
    victims = [event for event in view.events("retraction", "retraction_abort") if course.run.holds(event)]
    waits = any((point.waiting or 0) > 0 for point in full)
    if victims or waits:
        retracted = sum(number(event, "n") or 1 for event in victims)
        what = f"{count(retracted)} request{' was' if retracted == 1 else 's were'} taken out of the batch"
        said = " and ".join([*(["requests wait"] if waits else []), *([what] if victims else [])])
        return Cause(
            "kv_pool_saturated",
            Explanation(
                f"SGLang's KV pool is used to {full[-1].pool or 0:.0%}: {said}"
                + ("." if victims else "; none was retracted.")
                + " This is load, not a leak.",
                0.7,
                (*ends(full), *(logged(event) for event in victims[:1])),
                tuple(moves.more_pool(course.run)),
            ),
            full[0].event.time,
            severity="info",
        )
    return Cause(
        "false_leak",
        Explanation(
            f"A pool that is used to {full[-1].pool or 0:.0%} is how SGLang works: the cache of finished requests "
            "stays in the radix tree and is given up when room is needed. No request waits or was retracted.",
            0.75,
            tuple(ends(full)),
            (
                advise(
                    "confirm: POST /flush_cache, or start once with --disable-radix-cache, and see what running "
                    "requests need"
                ),
            ),
        ),
        full[0].event.time,
    )


def saturation(view: View) -> Iterator[Cause]:
    """Tell of a pool of SGLang that is full: with a queue it is load, without one the cache of finished requests."""
    if sum(number(event, "n") or 1 for event in view.events("retraction", "retraction_abort")) >= ENOUGH:
        return
    for course in courses(view):
        if not course.points or not course.sglang or _collapse(course):
            continue
        found = _retained(view, course)
        if found is not None:
            yield found
            return
