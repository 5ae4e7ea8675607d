"""What saved metrics pages say about themselves and the prefix cache: missing, renamed, per process, no hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.course import Pages, courses
from gpuwatch.diagnosis.causes.view import Cause, advise, from_fact, number, ruled_out, sampled
from gpuwatch.diagnosis.explanation import Explanation, count, logged, told
from gpuwatch.diagnosis.finding import Evidence, NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Sample, View
    from gpuwatch.model import Fact, LogEvent

GOOD = 0.3
"""A hit rate worth losing."""
FELL = 0.3
"""A rate below this share of the best is a collapse, and not another mix of prompts."""
SEVERAL = 4
LARGE_BLOCK = 256
"""Blocks of so many tokens or more belong to hybrid models; a shared prefix is easily shorter."""
_SINCE_COUNTED = ("sglang:inter_token_latency_seconds", "sglang:num_requests_total", "sglang:realtime_tokens_total")
"""Metrics of SGLang that are no older than its counter of hits (0.4.4)."""
_ENGINES = ("vllm:", "vllm_", "sglang:", "sglang_", "ray_vllm")


def disabled(view: View) -> Iterator[Cause | NotEnough]:
    """Judge a page without a single series of the engine."""
    names: dict[str, Fact] = {}
    for run in view.runs:
        for fact in run.all("page.names"):
            names[fact.source] = fact
    process = view.events("metrics_process")
    for source in dict.fromkeys([*names, *(event.source for event in process)]):
        listed = str(names[source].value).split() if source in names else []
        with_engine = any(name.startswith(_ENGINES) for name in listed)
        if with_engine or any(
            sample.path == source and sample.name.startswith("gpuwatch_engine_requests") for sample in _all(view)
        ):
            continue
        if source not in names and not any(
            given.path == source and given.kind == "metrics" for given in view.incident.inputs
        ):
            continue
        seen = [event for event in process if event.source == source]
        evidence = [logged(event) for event in seen[:2]] or [told(names[source], "the page has no series of an engine")]
        if not listed and not seen:
            continue
        other = _of_another_program(view, source)
        if other:
            yield NotEnough(
                "metrics_disabled",
                f"something that shows an engine: the page has series of another program ({other}), and none of an "
                "engine",
            )
            continue
        yield Cause(
            "metrics_disabled",
            Explanation(
                "The page has the Python process's own metrics and not one of the engine: its statistics are "
                "switched off. That says nothing about traffic or the KV pool.",
                0.9,
                (
                    *evidence,
                    Evidence(
                        "Ruled out: an engine that is down or idle: the page is served, and idle engines have series "
                        "at 0",
                        source,
                    ),
                ),
                (
                    advise(
                        "leave this flag out; wrappers and the offline LLM class set it by themselves",
                        "--disable-log-stats",
                        "true",
                        "(leave it out)",
                    ),
                    advise("SGLang has no page unless it is asked for", "--enable-metrics", None, "(set)"),
                ),
            ),
        )
        return


def _of_another_program(view: View, source: str) -> str:
    """Return a series of the page that no engine has; nothing where anything shows that an engine serves the page."""
    if any(given.engine for given in view.incident.inputs) or any(run.text("engine") for run in view.runs):
        return ""
    others = [fact for run in view.runs for fact in run.all("page.others") if fact.source == source]
    return str(others[0].value).split()[0] if others else ""


def _all(view: View) -> Iterator[Sample]:
    for name in view.names("engine_requests"):
        yield from view.samples(name.removeprefix("gpuwatch_"))


def per_process(view: View) -> Iterator[Cause]:
    """Judge gauges that every API server exports for itself."""
    rows: dict[tuple[str, str, str], dict[str, LogEvent]] = {}
    for event in view.events("metric_name"):
        pid = event.field("pid")
        if pid:
            rows.setdefault((event.source, event.field("name"), event.field("engine")), {})[pid] = event
    for (_, name, engine), by_pid in rows.items():
        values = [number(event, "value") or 0.0 for event in by_pid.values()]
        if len(by_pid) < 2:
            continue
        top = max(by_pid.values(), key=lambda event: number(event, "value") or 0.0)
        yield Cause(
            "metrics_multiproc",
            Explanation(
                f"{name} appears once per API-server process ({len(by_pid)} of them) for one "
                f"engine{f' ({engine})' if engine else ''}: only one value is fresh, {max(values):g}. Mean and sum of "
                "them mean nothing.",
                0.95,
                (
                    logged(top),
                    *(logged(event) for event in list(by_pid.values())[:3] if event is not top),
                    Evidence(
                        f"Ruled out: {len(by_pid)} engines of which most are idle: all rows have the same engine label",
                        top.source,
                        top.line,
                    ),
                ),
                (
                    advise("take the maximum over pid for each engine: max without (pid)"),
                    advise("or use vLLM 0.11 on, where the gauge says which value counts"),
                ),
            ),
        )
        return


def renamed(view: View) -> Iterator[Cause]:
    """Judge a page on which the prefix cache's counters have their old name where the new ones are looked for."""
    found = _prefix_rows(view)
    for source, rows in found.items():
        old = [event for name, event in rows.items() if name.startswith("vllm:gpu_prefix_cache")]
        now = [event for name, event in rows.items() if name.startswith("vllm:prefix_cache")]
        halves = {name.rpartition("prefix_cache_")[2] for name in rows if name.startswith("vllm:prefix_cache")}
        if not old or not now or len(halves) == 2:  # hits and queries
            continue
        help_ = [event for event in view.events("metric_name") if event.source == source and event.field("now")]
        yield Cause(
            "prefix_metrics_wrong",
            Explanation(
                "The prefix cache's counters were renamed (gpu_prefix_cache_* to prefix_cache_*, "
                "gpu_cache_usage_perc to kv_cache_usage_perc): the old name stands still or is gone, and a reader "
                "that looks for it sees 0 or nothing. That is not a cache that is off.",
                0.85,
                tuple(logged(event) for event in (*old[:1], *now[:1], *help_[:1])),
                (
                    advise(
                        "read both names, and work the rate out of the counters: hits / queries",
                        "metric",
                        "vllm:gpu_prefix_cache_hits",
                        "vllm:prefix_cache_hits",
                    ),
                ),
            ),
        )
        return


def _prefix_rows(view: View) -> dict[str, dict[str, LogEvent]]:
    rows: dict[str, dict[str, LogEvent]] = {}
    for event in view.events("metric_name"):
        if "prefix_cache" in event.field("name") and not event.field("now"):
            rows.setdefault(event.source, {})[event.field("name")] = event
    return rows


def zero_hit(view: View) -> Iterator[Cause]:
    """Tell of a prefix cache that is asked and never hits."""
    if any(True for _ in renamed(view)):
        return
    pages = Pages(view)
    queries, hits = pages.total("engine_prefix_cache_queries_total"), pages.total("engine_prefix_cache_hits_total")
    evidence: list[Evidence] = []
    block, where = _block(view)
    if queries and hits and _counts_hits(view) and queries[-1] > 2 * (block or 16) and hits[-1] == 0:
        evidence = pages.evidence("engine_prefix_cache_queries_total", f"{count(queries[-1])} look-ups")
        evidence += pages.evidence("engine_prefix_cache_hits_total", "not one hit")
    said = [
        event
        for event in view.events("metric_said")
        if "prefix_cache_queries" in event.field("name") and event.field("op").startswith(">")
    ]
    none = [
        event
        for event in view.events("metric_name")
        if "prefix_cache_hits" in event.field("name") and number(event, "value") == 0
    ]
    if not evidence and said and none:
        evidence = [logged(said[0]), logged(none[0])]
    if not evidence and block is not None and block >= LARGE_BLOCK:
        evidence = _logged_zero(view)
    if not evidence:
        return
    why = "the prompts share no beginning of a whole block"
    if block is not None:
        why = (
            f"only whole blocks of {count(block)} tokens are found again, and a shared prefix that is shorter can "
            "never hit"
        )
        evidence += where
    yield Cause(
        "prefix_cache_zero_hit",
        Explanation(
            f"The prefix cache is on and asked, and never hits: {why}. Prompts that differ early, a salt per request "
            "and hybrid models with blocks of 784 tokens and more look like this.",
            0.75 if block is not None else 0.6,
            (*evidence, Evidence("Ruled out: a cache that is off: it is asked")),
            (
                advise(
                    "put what differs (time, names, ids) at the end of the system prompt, and make the shared part "
                    "longer than a block" + (f" ({count(block)} tokens)" if block is not None else "")
                ),
                advise("or match in smaller units where the model allows it", "--prefix-match-unit"),
            ),
        ),
    )


def _counts_hits(view: View) -> bool:
    """Whether a counter of hits that reads 0 says so: SGLang's is not on the page before the first hit, or at all.

    It came with 0.4.4; a hit rate above 0 shows hits, whatever is not counted.
    """
    for run in view.runs:
        for fact in run.all("page.names"):
            names = str(fact.value).split()
            if any(name.startswith("sglang") for name in names) and "sglang:cached_tokens_total" not in names:
                newer = any(name in _SINCE_COUNTED for name in names)
                rates = view.samples("engine_prefix_cache_hit_ratio")
                if not newer or any(rate.value > 0 for rate in rates):
                    return False
    return True


def _block(view: View) -> tuple[float | None, list[Evidence]]:
    for run in view.runs:
        size = run.number("kv.block_size")
        if size is not None:
            return size, from_fact(run, "kv.block_size", "a block has {} tokens", "tokens")
    sample = next(iter(view.samples("engine_kv_block_size_tokens")), None)
    return (
        (sample.value, [sampled(sample, f"a block has {count(sample.value)} tokens", "tokens")])
        if sample is not None
        else (None, [])
    )


def _logged_zero(view: View) -> list[Evidence]:
    """Return the last statistics line of a log that never shows a hit although prompts were computed."""
    points = [point for course in courses(view) for point in course.points if point.hit is not None]
    if (
        len(points) < 2
        or any(point.hit for point in points)
        or not any(point.prompt for course in courses(view) for point in course.points)
    ):
        return []
    return [logged(points[-1].event), ruled_out("too little traffic: prompts were computed", points[-1].event)]


def fewer_hits(view: View) -> Iterator[Cause]:
    """Judge a prefix cache whose hit rate fell while prompts went on coming."""
    for course in courses(view):
        points = [point for point in course.points if point.hit is not None and point.running > 0]
        if len(points) < SEVERAL:
            continue
        best = max(points, key=lambda point: point.hit or 0)
        last = points[-1]
        later = points[points.index(best) + 1 :]
        if (best.hit or 0) < GOOD or (last.hit or 0) > FELL * (best.hit or 0) or not any(each.prompt for each in later):
            continue
        resets = [
            event for event in view.events("prefix_cache_reset") if best.event.line < event.line < last.event.line
        ]
        why = " The cache was emptied in between." if resets else ""
        yield Cause(
            "prefix_cache_collapse",
            Explanation(
                f"The prefix cache found {best.hit:.0%} of the tokens and now {last.hit:.0%}: prompts begin "
                "differently, or what "
                f"they share was evicted.{why}",
                0.75 if resets else 0.6,
                (logged(best.event), *(logged(event) for event in resets[:1]), logged(last.event)),
                (
                    advise("what changed in the prompts at that time: a date, a name or tools near the beginning?"),
                    advise("if the pool is full: more room for it, fewer requests at a time", "--max-num-seqs"),
                ),
            ),
            last.event.time,
        )
        return
