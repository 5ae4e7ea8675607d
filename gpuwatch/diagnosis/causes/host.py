"""Memory of the host that was promised more than once, and memory that only grows."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import unmet
from gpuwatch.diagnosis.causes.view import Cause, advise, amount, from_fact, group, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged, size
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.model import LogEvent

REFUSED = 0.7
"""vLLM refuses a larger share of the host for swap space (`config.py`, `verify_with_parallel_config`)."""
LEAK_POINTS = 4
"""Readings of one process's memory from which a steady rise is one."""


LEAK_GROWTH = 1.25
"""A process whose memory rose by less may be warming up."""


SLEEP_GROWTH = 1.5
"""What stays on the GPU after sleep grew by this factor."""


def host_budget(view: View) -> Iterator[Cause]:
    """Judge host memory that was promised more than once: per-rank offload, a container's limit that was not seen."""
    short = view.events("kv_host_memory_short")
    for event in [each for each in short if unmet.explained_here(each)][:1]:
        yield unmet.host_cache(event, view.run_of(event))
    for event in [each for each in short if not unmet.explained_here(each)][:1]:
        free, total, asked = (number(event, name) or 0.0 for name in ("free", "total", "req"))
        limits = [each for each in view.events("memory_limit", "cpu_limit") if group(each, "size", "memory")]
        yield Cause(
            "host_memory_oversubscribed",
            Explanation(
                f"The engine sizes its KV cache by the host's {total:g} GiB, of which {free:g} GiB can be used here: "
                f"it wants {asked:g} GiB. In a container the limit counts, not the host's memory.",
                0.85,
                (
                    logged(event),
                    *(logged(each) for each in limits[:1]),
                    ruled_out("a process that took the GPU: this is host memory", event),
                ),
                (
                    advise(
                        "set the CPU KV space below the container's limit",
                        "VLLM_CPU_KVCACHE_SPACE",
                        None,
                        max(1, int(free * 0.8)),
                    ),
                    advise("or use a version that reads the cgroup's limit"),
                ),
            ),
            event.time,
            severity="critical",  # the engine refuses to start with it
        )
    yield from _swap_space(view)
    for run in view.runs:
        fact = run.fact("kv.offload_per_rank_bytes")
        each = run.number("kv.offload_per_rank_bytes")
        if fact is not None and each and run.tp > 1:
            yield _per_rank(view, run, each)
            return


def _swap_space(view: View) -> Iterator[Cause]:
    """Judge vLLM V0's swap space, pinned host memory: above 70 % of the host's it refuses, above 40 % it warns."""
    for run in view.runs:
        swap, total = run.number("swap.bytes"), run.number("host.total_bytes")
        if not swap or not total:
            continue
        current = run.number("flag.swap-space") or swap / GIB
        yield Cause(
            "host_memory_oversubscribed",
            Explanation(
                f"The swap space for KV blocks takes {size(swap)} of the host's {size(total)}: it is set aside for "
                "every GPU and "
                "pinned.",
                0.85,
                tuple(from_fact(run, "swap.bytes", "swap space in all: {}", "bytes")),
                (
                    advise(
                        "a smaller swap space (GiB per GPU)",
                        "--swap-space",
                        current,
                        max(1, int(current * REFUSED / 2 * total / swap)),
                    ),
                ),
            ),
            severity=None if swap > REFUSED * total else "info",
        )
        return


def _per_rank(view: View, run: Run, each: float) -> Cause:
    total = each * run.tp
    ended = run.fact("ready") is None and run.fact("kv.tokens") is None
    host = max((amount(event.field("total")) or 0.0 for event in view.events("host_memory")), default=0.0)
    evidence = from_fact(run, "kv.offload_per_rank_bytes", f"{size(each)} of host memory for each rank", "bytes")
    evidence += from_fact(run, "tp", "tensor-parallel ranks: {}")
    per_rank = max(1, int((host * 0.7 if host else total / run.tp) / GIB / run.tp))
    too_much = host and total > host
    return Cause(
        "host_memory_oversubscribed",
        Explanation(
            f"Every rank takes its own {size(each)} of host memory for the KV offload: {run.tp} ranks take "
            f"{size(total)}."
            + (f" The host has {size(host)}." if host else "")
            + (" The log ends there." if ended else ""),
            0.9 if too_much else 0.75 if ended else 0.5,
            tuple(evidence),
            (
                advise(
                    "divide what the host can spare by the number of ranks",
                    "LMCACHE_MAX_LOCAL_CPU_SIZE",
                    f"{each / GIB:g}",
                    per_rank,
                ),
            ),
        ),
        severity=None if ended or too_much else "info",
    )


def growth(view: View) -> Iterator[Cause]:
    """Judge memory that only grows: of a process on the host, or on the GPU from one sleep to the next."""
    yield from _sleep_growth(view)
    for name, readings in _resident(view).items():
        values = [value for _, value in readings]
        if len(values) < LEAK_POINTS or values[-1] < LEAK_GROWTH * values[0]:
            continue
        if any(later < earlier * 0.99 for earlier, later in pairwise(values)):
            continue
        evidence = [
            logged(readings[0][0]),
            logged(readings[len(readings) // 2][0]),
            logged(readings[-1][0]),
        ]
        steps = [later - earlier for earlier, later in pairwise(values)]
        even = max(steps) < 2 * (sum(steps) / len(steps))
        yield Cause(
            "host_memory_leak",
            Explanation(
                f"The memory of {name} grows without end: {size(values[0])} at first, {size(values[-1])} after "
                f"{len(values)} readings" + (", by the same amount each time." if even else "."),
                0.85 if even else 0.65,
                tuple(evidence),
                (
                    advise(
                        "use a newer build of the engine: growth with the number of requests is a known kind of bug"
                    ),
                    advise(
                        "until then restart before the limit is reached, and alert on the process's resident memory"
                    ),
                ),
            ),
            readings[0][0].time,
        )
        return


def _resident(view: View) -> dict[str, list[tuple[LogEvent, float]]]:
    """Return the readings of resident memory by process, where the columns say which one it is."""
    found: dict[str, list[tuple[LogEvent, float]]] = {}
    columns: dict[str, list[str]] = {}
    for event in view.events("process_columns", "process_row", "pod_usage"):
        if event.event == "process_columns":
            names = (
                event.field("columns").split(",") if event.field("columns") else event.field("header").lower().split()
            )
            columns[event.source] = [name.strip("%") for name in names]
        elif event.event == "process_row":
            fields, names = event.field("row").split(), columns.get(event.source, [])
            place = names.index("rss") if "rss" in names else -1
            if 0 <= place < len(fields) and fields[place].isdigit():
                found.setdefault(event.field("name"), []).append((event, float(fields[place]) * 1024))
        else:
            key = f"{event.field('pod')}/{event.field('container')}"
            held = amount(event.field("memory"))
            if held is not None:
                found.setdefault(key, []).append((event, held))
    return dict(sorted(found.items(), key=lambda item: "::" not in item[0]))


def _sleep_growth(view: View) -> Iterator[Cause]:
    sleeps = [event for event in view.events("sleep") if number(event, "used") is not None]
    used = [number(event, "used") or 0.0 for event in sleeps]
    if len(used) < 3 or used[-1] < SLEEP_GROWTH * used[0] or used[-1] - used[0] < 2 or used != sorted(used):
        return
    yield Cause(
        "gpu_memory_growth",
        Explanation(
            f"The engine keeps more GPU memory after each sleep: {used[0]:g} GiB after the first, {used[-1]:g} GiB "
            f"after number {len(used)}. Whoever runs out of memory later is only the victim.",
            0.88,
            tuple(logged(event) for event in (sleeps[0], sleeps[len(sleeps) // 2], sleeps[-1])),
            (
                advise("use an engine version without this growth; watch the 'still in use' figure after each sleep"),
                advise("until then restart the engine every few cycles, or shard the trainer further"),
            ),
        ),
        sleeps[0].time,
    )
