"""Load that is served badly although the pool is not full: one long prefill, one core, one replica, a queue."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.bounds import SMALLEST_CHUNK
from gpuwatch.diagnosis.causes import moves
from gpuwatch.diagnosis.causes.course import Course, Point, courses, ends
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, number, ruled_out, sampled
from gpuwatch.diagnosis.explanation import Explanation, count, logged
from gpuwatch.diagnosis.finding import Evidence, NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

STARVED = 0.2
"""Generation below this share of what as many requests had before, while more wait: they stand still."""
FREE_POOL = 0.7
"""Below this usage the pool is not why requests wait."""
JOINED = 5
"""So many more requests waiting within one interval of the statistics are a queue that forms."""
CORE = (85.0, 130.0)
"""A process with one busy interpreter shows about 100 % of a core in top."""
IDLE_HOST = 50.0
ALONE = 2.0
"""A replica with this many times the mean of all carries the load of the others."""
APART = 8
FEW = 4
"""A replica that runs this many times fewer requests than another one has room for those that wait there."""
SMALL_LIMIT = 8
"""A container with fewer cores than this is easily throttled by thread pools that are sized to the node."""


def head_of_line(view: View) -> Iterator[Cause]:
    """Judge decoding that stands still while one long prompt is computed and others queue behind it."""
    for course in courses(view):
        found = _starved(course)
        if not found:
            continue
        before, during = found[0]
        run = course.run
        budget = run.number("max_num_batched_tokens")
        busy = [sample for sample in view.samples("gpu_busy_ratio") if sample.value >= 0.9]
        evidence = [
            logged(before.event),
            logged(during.event),
            *from_fact(run, "max_num_batched_tokens", "token budget of a step: {}", "tokens"),
        ]
        if busy:
            text = f"Ruled out: the CPU: the GPU is busy {busy[0].value:.0%} of the time"
            evidence.append(sampled(busy[0], text, "ratio"))
        evidence += _long_prompts(view)
        evidence.append(
            ruled_out(f"a full KV pool: it is used to {during.pool or 0:.0%}", during.event, during.pool, "ratio")
        )
        longest = run.number("max_model_len")
        threshold = max(SMALLEST_CHUNK, int((longest or 51200) * 0.04))
        advice = [
            advise(
                "let long prompts take only part of each step",
                "--long-prefill-token-threshold",
                run.number("flag.long-prefill-token-threshold"),
                threshold,
            )
            if not run.sglang
            else advise(
                "smaller steps, so that decoding comes in between",
                "--chunked-prefill-size",
                budget,
                int((budget or 8192) / 2),
            ),
        ]
        if budget and budget > 2048:
            advice.append(
                advise("or smaller steps for all", moves.chunk_flag(run), int(budget), max(2048, int(budget / 4)))
            )
        advice.append(advise("or send long prompts to a pool of their own"))
        yield Cause(
            "head_of_line",
            Explanation(
                f"A long prompt takes the whole token budget of each step: {count(during.running)} running requests "
                f"got {during.generated or 0:g} tokens/s instead of {before.generated or 0:g}, and "
                f"{count(during.waiting or 0)} wait behind it"
                + (f" ({len(found)} times in this log)." if len(found) > 1 else ".")
                + " That is scheduling, not capacity.",
                0.85 if busy or len(found) > 1 else 0.7,
                tuple(evidence),
                tuple(advice),
            ),
            during.event.time,
        )
        return


def _starved(course: Course) -> list[tuple[Point, Point]]:
    """Return (a normal point, the first starved one after it) for each time that decoding stood still."""
    found = []
    normal: Point | None = None
    inside = False
    for before, point in zip((None, *course.points), course.points, strict=False):
        speed = point.generated or 0.0
        if (
            normal is not None
            and before is not None
            and point.running >= 0.8 * normal.running
            and speed < STARVED * (normal.generated or 0)
            and (point.waiting or 0) >= (normal.waiting or 0) + JOINED
            and (point.pool or 0) < FREE_POOL
        ):
            if not inside:
                found.append((normal, point))
            inside = True
        elif point.running > 0 and speed > 0 and (normal is None or (point.waiting or 0) < JOINED):
            normal, inside = point, False
    return found


def _long_prompts(view: View) -> list[Evidence]:
    """Return how many of the prompts were long, from a page's histogram."""
    buckets = [
        sample
        for sample in view.samples("engine_prompt_length_tokens_bucket")
        if sample.labels.get("le") not in ("", "+Inf")
    ]
    if not buckets:
        return []
    newest = {sample.labels["le"]: sample for sample in buckets}
    edges = sorted(newest, key=float)
    last, before = newest[edges[-1]], None
    for edge in reversed(edges[:-1]):
        if newest[edge].value < last.value:
            before = newest[edge]
            break
    if before is None or last.value - before.value > 0.1 * last.value:
        return []
    few = last.value - before.value
    return [
        sampled(
            before,
            f"{count(few)} of {count(last.value)} prompts are longer than {count(float(before.labels['le']))} tokens",
        )
    ]


def cpu(view: View) -> Iterator[Cause | NotEnough]:
    """Judge a CPU that is the limit: one interpreter per process at its core's end, or a container with few cores."""
    rows = [event for event in view.events("process_busy") if _python(event.field("name"))]
    hot = [event for event in rows if CORE[0] <= (number(event, "cpu") or 0) <= CORE[1]]
    idle = [event for event in view.events("cpu_idle") if (number(event, "idle") or 0) >= IDLE_HOST]
    busy = [sample for sample in view.samples("gpu_busy_ratio") if sample.value >= 0.9]
    limits = [event for event in view.events("cpu_limit") if _cores(event) is not None]
    if hot and idle and not busy:
        yield _one_core(view, hot, idle)
        return
    for event in limits:
        cores = _cores(event) or 0
        threads = [each for each in view.events("omp_threads") if (number(each, "n") or 0) > cores]
        if cores > SMALL_LIMIT or busy:
            continue
        set_ = view.events("omp_threads")
        if set_ and not threads:
            continue
        yield Cause(
            "cpu_bound",
            Explanation(
                f"The container may use {cores:g} cores. PyTorch sizes its thread pools to the node's cores: work on "
                "the CPU (sampling with penalties, tokenising) is then throttled by the quota while the GPU waits.",
                0.45,
                (logged(event), *(logged(each) for each in threads[:1])),
                (
                    advise(
                        "as many threads as the container has cores, or one",
                        "OMP_NUM_THREADS",
                        _field(threads, "n"),
                        max(1, int(cores)),
                    ),
                ),
            ),
            event.time,
            severity="info",
        )
        if any(course.points for course in courses(view)) or view.names("engine_"):
            yield NotEnough(
                "cpu_bound",
                "the GPU's busy share and the CPU use of the engine's processes at the same time (nvidia-smi, top)",
            )
        return


def _field(events: list[LogEvent], name: str) -> str | None:
    """Return a field of the first event, or None."""
    return events[0].field(name) if events else None


def _one_core(view: View, hot: list[LogEvent], idle: list[LogEvent]) -> Cause:
    threads = view.events("omp_threads")
    points = [point for course in courses(view) for point in course.points if point.running > 0]
    evidence = [*(logged(event) for event in hot[:3]), logged(idle[-1]), *(logged(event) for event in threads[:1])]
    if points:
        usage = max(point.pool or 0 for point in points)
        evidence.append(
            ruled_out(f"a full KV pool: it is used to {usage:.0%} at most", points[-1].event, usage, "ratio")
        )
    if threads:
        evidence.append(ruled_out("too few threads: more were allowed, and each process uses one core", threads[0]))
    return Cause(
        "cpu_bound",
        Explanation(
            f"{len(hot)} Python process{'es' if len(hot) > 1 else ''} at the end of one core each, while "
            f"{number(idle[-1], 'idle') or 0:.0f} % of the machine is idle: one interpreter runs one thread at a "
            "time. More threads cannot help.",
            0.85,
            tuple(evidence),
            (
                advise("a CPU with a faster single core, and less work per step: a newer engine (V1), CUDA graphs on"),
                advise("several API servers take the HTTP work off the engine", "--api-server-count", None, 4),
                advise("asynchronous scheduling", "--async-scheduling", None, "(set)"),
            ),
        ),
        hot[0].time,
    )


def _python(name: str) -> bool:
    return name.startswith(("python", "VLLM::", "vllm", "sglang", "ray::"))


def _cores(event: LogEvent) -> float | None:
    text = event.field("cpu") or event.field("cpu2")
    found = re.fullmatch(r"(\d+)(m?)", text)
    if found is None:
        return None
    return float(found[1]) / (1000 if found[2] else 1)


def replicas(view: View) -> Iterator[Cause]:
    """Judge data-parallel replicas of which one carries the load."""
    ranks = {}
    for sample in view.samples("engine_requests_running"):
        if sample.labels.get("dp_rank"):
            ranks[sample.labels["dp_rank"]] = sample
    if len(ranks) < 2:
        yield from _replicas_logged(view)
        return
    values = {rank: sample.value for rank, sample in ranks.items()}
    queued = {sample.labels.get("dp_rank", ""): sample.value for sample in view.samples("engine_requests_waiting")}
    if not (_uneven(values) or _queues_alone({rank: (value, queued.get(rank)) for rank, value in values.items()})):
        return
    most = max(values, key=lambda rank: values[rank])
    waiting = view.samples("engine_requests_waiting", dp_rank=most)
    yield _imbalance(
        values,
        most,
        [
            sampled(sample, f"replica {rank}: {count(sample.value)} running")
            for rank, sample in sorted(ranks.items())[:8]
        ]
        + [sampled(sample, f"replica {most}: {count(sample.value)} waiting") for sample in waiting[-1:]],
        0,
    )


def _uneven(values: dict[str, float]) -> bool:
    mean = statistics.mean(values.values())
    return max(values.values()) >= ALONE * mean and max(values.values()) - min(values.values()) >= APART


def _queues_alone(loads: dict[str, tuple[float, float | None]]) -> bool:
    """Whether requests queue at one replica while every other one runs a small share of what that one does.

    `loads` are running and waiting requests by replica.
    """
    most = max(loads, key=lambda rank: loads[rank][0])
    runs, waits = loads[most]
    return (waits or 0) >= APART and all(
        not waiting and running * FEW <= runs for rank, (running, waiting) in loads.items() if rank != most
    )


def _replicas_logged(view: View) -> Iterator[Cause]:
    by_source: dict[str, dict[str, Point]] = {}
    for course in courses(view):
        if course.engine and course.points:
            by_source.setdefault(course.points[-1].event.source, {})[course.engine] = course.points[-1]
    for points in by_source.values():
        values = {engine: point.running for engine, point in points.items()}
        loads = {engine: (point.running, point.waiting) for engine, point in points.items()}
        if len(values) > 1 and (_uneven(values) or _queues_alone(loads)):
            most = max(values, key=lambda engine: values[engine])
            yield _imbalance(
                values, most, [logged(point.event) for point in points.values()][:6], points[most].event.time
            )
            return


def _imbalance(values: dict[str, float], most: str, evidence: list[Evidence], since: int) -> Cause:
    idle = sum(value == 0 for value in values.values())
    mean = statistics.mean(values.values())
    return Cause(
        "dp_imbalance",
        Explanation(
            f"Replica {most} runs {count(values[most])} of {count(sum(values.values()))} requests"
            + (f", {idle} run none" if idle else "")
            + f"; the mean of {mean:.1f} says nothing. The balancer acts on "
            "counts that are old, or one client sticks to one replica. The idle ones are not broken: they report.",
            0.85,
            tuple(evidence),
            (
                advise("use a version that publishes its counts before each step"),
                advise("or balance from outside: one port per replica", "--data-parallel-external-lb", None, "(set)"),
            ),
        ),
        since,
    )


def queues(view: View) -> Iterator[Cause]:
    """Judge a queue that only grows, where neither a full pool nor one long prompt explains it."""
    for course in courses(view):
        points = [point for point in course.points if point.waiting is not None]
        rising = _rising(points)
        if rising is None or _starved(course):
            continue
        first, last = rising
        if (last.pool or 0) >= 0.85:
            continue
        seconds = course.seconds(first, last)
        speed = f" by {((last.waiting or 0) - (first.waiting or 0)) / seconds:.1f} requests a second" if seconds else ""
        yield Cause(
            "queue_growth",
            Explanation(
                f"More requests come than are served: the queue grew from {count(first.waiting or 0)} to "
                f"{count(last.waiting or 0)}{speed} while {count(last.running)} run.",
                0.75,
                (
                    *ends([first, last]),
                    *from_fact(course.run, "max_num_seqs", "up to {} requests are admitted"),
                    ruled_out(f"a full KV pool: it is used to {last.pool or 0:.0%}", last.event, last.pool, "ratio"),
                ),
                (
                    advise(
                        "add replicas, or admit more at a time where the GPU has room",
                        moves.seats_flag(course.run),
                        course.run.number("max_num_seqs"),
                    ),
                    advise("or refuse early, so that clients turn elsewhere", "--max-num-queued-reqs"),
                ),
            ),
            first.event.time,
        )
        return


def _rising(points: list[Point]) -> tuple[Point, Point] | None:
    """Return the ends of a stretch of five or more points over which the queue grew each time, to twice what runs."""
    start = 0
    for at in range(1, len(points) + 1):
        if at < len(points) and (points[at].waiting or 0) > (points[at - 1].waiting or 0):
            continue
        first, last = points[start], points[at - 1]
        if at - start >= 5 and (last.waiting or 0) >= 2 * max(1.0, last.running) and (last.waiting or 0) >= 10:
            return first, last
        start = at
    return None
