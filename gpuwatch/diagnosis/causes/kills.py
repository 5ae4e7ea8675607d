"""Processes that were ended: by which signal, by whom, and because of whose limit."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import Cause, advise, group, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged, size
from gpuwatch.diagnosis.finding import Evidence, NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.model import LogEvent

ERRORS = (
    "torch_oom",
    "cuda_oom_other",
    "no_kv_blocks",
    "max_model_len_exceeds_kv",
    "free_memory_below_budget",
    "warmup_oom",
    "memory_profile_drift",
    "nccl_error",
    "nccl_timeout",
    "cuda_error",
    "ecc_error",
    "port_in_use",
    "model_not_found",
    "uva_unavailable",
    "dtype_unsupported",
    "driver_too_old",
    "gpu_unsupported",
    "rope_beyond_native",
    "load_oom",
    "nccl_shm_failed",
    "rendezvous_timeout",
)
"""Events that say why a start failed or an engine ended."""
KILLED = 137
"""128 + SIGKILL: what a shell, Docker and Kubernetes report of a process that was killed."""
_LIMIT = re.compile(r"^(\d+(?:\.\d+)?) ?([KMGT]i?B?)$")
UNIT_WORDS = ("vllm", "sglang", "llm", "inference")
"""What names a unit of systemd that runs an engine."""
ENGINE_NAMES = ("VLLM::", "vllm", "python", "sglang", "ray::")


def host_kills(view: View) -> Iterator[Cause]:
    """Judge kills for lack of host memory, by their killer: Ray, or the kernel for a container or the host."""
    yield from _ray(view)
    yield from _evicted(view)
    killed = view.events("out_of_memory_killed")
    memcg = [event for event in killed if event.field("scope").startswith("Memory cgroup")]
    whole = [event for event in killed if event.field("scope") == "Out of memory"]
    units = [event for event in killed if not event.field("scope") and event.field("name")]
    kubernetes = [event for event in killed if not event.field("scope") and not event.field("name")]
    constraint = {event.field("constraint") for event in view.events("oom_constraint")}
    pods = [
        event
        for event in view.events("oom_constraint", "pod_usage")
        if "kubepods" in event.field("group") or event.event == "pod_usage"
    ]
    if kubernetes or (memcg and (pods or any(given.kind == "kubernetes" for given in view.incident.inputs))):
        yield _container(view, (*kubernetes, *memcg))
    elif memcg or whole:
        yield _kernel(view, (*memcg, *whole), constraint)
    elif units:
        yield _unit(units[0])
    else:
        yield from _said_killed(view)


def _ray(view: View) -> Iterator[Cause]:
    for event in view.events("ray_memory_kill")[:1]:
        used, total, own = number(event, "used"), number(event, "total"), number(event, "own")
        threshold = number(event, "limit")
        run = view.run_of(event)
        cause = "Ray's memory monitor killed the worker: the host's memory was nearly full"
        if used and total:
            cause += f", {used:g} of {total:g} GB"
        if own:
            cause += f"; the worker itself held {own:g}"
        yield Cause(
            "ray_host_oom",
            Explanation(
                cause + ".",
                0.96,
                (
                    logged(event),
                    ruled_out(
                        "the kernel's OOM killer and GPU memory: Ray says that it did it, by the host's memory", event
                    ),
                ),
                (
                    advise(
                        "more host memory, or fewer workers and less swap space on this node",
                        "--swap-space",
                        run.number("flag.swap-space"),
                        "0",
                    ),
                    advise("on one node do without Ray", "--distributed-executor-backend", None, "mp"),
                    advise("a higher threshold only postpones it", "RAY_memory_usage_threshold", threshold, None),
                ),
            ),
            event.time,
        )


def _evicted(view: View) -> Iterator[Cause]:
    events = view.events("pod_evicted")
    for event in events[:1]:
        text = " ".join(each.text for each in events).lower()
        named = next((group(each, "resource") for each in events if group(each, "resource")), "")
        resource = named or ("ephemeral-storage" if "ephemeral" in text else "memory" if "memory" in text else "")
        remedy = {
            "memory": "request as much memory as the engine needs, so that the node is not overcommitted",
            "ephemeral-storage": "put models and caches on a volume; raise the limit on ephemeral-storage",
        }.get(resource, "kubectl describe pod names the resource that ran out")
        yield Cause(
            "k8s_evicted",
            Explanation(
                "Kubernetes evicted the pod" + (f": the node ran low on {resource}." if resource else "."),
                0.93,
                (
                    *(logged(each) for each in events[:2]),
                    ruled_out("the engine: the node asked for the place back", event),
                ),
                (advise(remedy),),
            ),
            event.time,
        )


def _container(view: View, events: tuple[LogEvent, ...]) -> Cause:
    event = events[0]
    loading = _loading(view)
    limits = [each for each in view.events("memory_limit", "cpu_limit") if group(each, "size", "memory")]
    held = number(events[-1], "rss")
    cause = "The container crossed its memory limit and was killed (137)"
    cause += " while the weights were loaded." if loading else "."
    evidence = [*(logged(each) for each in events[:2]), *(logged(each) for each in limits[:1]), *loading]
    evidence.append(ruled_out("GPU memory: the limit is one of host memory", event))
    return Cause(
        "k8s_oomkilled",
        Explanation(
            cause,
            0.95,
            tuple(evidence),
            (
                advise(
                    "raise the container's memory limit"
                    + (f" well above the {size(held * 1024)} that it held" if held else "")
                    + ": workers x shard, plus /dev/shm",
                    "resources.limits.memory",
                    group(limits[0], "size", "memory") if limits else None,
                    _doubled(group(limits[0], "size", "memory")) if limits else None,
                ),
                advise("or load without staging in host memory", "--load-format", None, "runai_streamer"),
            ),
        ),
        event.time,
    )


def _doubled(limit: str) -> str | None:
    """Return twice a limit: a kill tells that it is too low, and not by how much."""
    found = _LIMIT.match(limit)
    return f"{2 * float(found[1]):g}{found[2]}" if found is not None else None


def _loading(view: View) -> list[Evidence]:
    """Return what shows that the weights were being loaded when the log ended."""
    run = view.last
    if run.fact("ready") is not None or run.fact("kv.bytes") is not None:
        return []
    begun = run.fact("model") or run.fact("architecture")
    words = [event for event in view.events("container_killed") if "load" in event.text or "shard" in event.text]
    if words:
        return [logged(words[0])]
    if begun is None or run.fact("weights.bytes") is not None:
        return []
    return [Evidence("the log ends before the weights were loaded", begun.source, begun.line, begun.key)]


def _kernel(view: View, events: tuple[LogEvent, ...], constraint: set[str]) -> Cause:
    event = events[0]
    name, pid = event.field("name"), event.field("pid")
    held = number(event, "rss")
    own = any(name.startswith(part) for part in ENGINE_NAMES)
    host = event.field("scope") == "Out of memory" and "CONSTRAINT_MEMCG" not in constraint
    where = "the whole host ran out of memory" if host else "its cgroup's limit was reached"
    evidence = [logged(each) for each in (*view.events("oom_constraint")[:1], *events[:2])]
    evidence.append(ruled_out("GPU memory: the kernel kills for host memory only", event))
    cause = f"The kernel killed {name} (pid {pid}): {where}"
    cause += f"; it held {size(held * 1024)}." if held else "."
    if host and not own:
        cause += " The victim is not the engine, and need not be the one that took the memory."
    return Cause(
        "host_memory_oversubscribed",
        Explanation(
            cause,
            0.9,
            tuple(evidence),
            (
                advise(
                    "less host memory for the engine: smaller CPU offload and swap space, fewer workers while loading"
                ),
                advise(
                    "or more memory" if host else "or a higher limit of the cgroup (systemd MemoryMax, docker --memory)"
                ),
            ),
        ),
        event.time,
    )


def _unit(event: LogEvent) -> Cause:
    """Explain a unit of systemd of which the OOM killer ended a process; the kernel's log tells which limit it was."""
    unit = event.field("name")
    return Cause(
        "host_memory_oversubscribed",
        Explanation(
            f"The OOM killer ended a process of {unit}: the host's memory ran out, or the unit's limit (MemoryMax) was "
            "reached.",
            0.9,
            (logged(event), ruled_out("GPU memory: the kernel kills for host memory only", event)),
            (
                advise(f"which of the two: dmesg -T | grep -i oom; systemctl show {unit} -p MemoryMax -p MemoryPeak"),
                advise(
                    "less host memory for the engine: smaller CPU offload and swap space, fewer workers while loading"
                ),
            ),
        ),
        event.time,
    )


def _said_killed(view: View) -> Iterator[Cause]:
    """Judge notes that say that a container was killed, without the reason in Kubernetes' own words."""
    said = view.events("container_killed")
    limits = view.events("memory_limit")
    if said and (limits or any("memory limit" in event.text for event in said)):
        yield Cause(
            "k8s_oomkilled",
            Explanation(
                "The container was killed from outside, and it has a memory limit: it crossed the limit"
                + (" while the weights were loaded." if "load" in said[0].text or "shard" in said[0].text else "."),
                0.6,
                (logged(said[0]), *(logged(each) for each in limits[:1] if each.line != said[0].line)),
                (
                    advise("confirm: kubectl describe pod says OOMKilled, memory.events counts oom_kill"),
                    advise("raise the limit: workers x shard, plus /dev/shm", "resources.limits.memory"),
                ),
            ),
            said[0].time,
        )


def died(view: View) -> Iterator[Cause | NotEnough]:
    """Judge workers and engines that ended by a signal, and name the killer where one is known."""
    for event in view.events("worker_dead", "process_crashed", "process_killed"):
        if _told_elsewhere(view, event):
            continue
        if _foreign(view, event):
            yield NotEnough("worker_died", f"what {event.field('name')} runs: a unit of systemd was ended by a signal")
            continue
        code = number(event, "code")
        caught = _signal(event, code)
        who = group(event, "w", "r", "name") or ("a process" if event.event == "process_crashed" else "the server")
        if event.field("r"):
            who = f"rank {event.field('r')}"
        evidence = [logged(event), *(logged(each) for each in view.events("engine_dead")[:1])]
        killer = _killer(view)
        evidence += [logged(each) for each in killer]
        cause = f"{who} ended" + (f" by {caught}" if caught else "") + _how(caught, code, killer)
        yield Cause(
            "worker_died",
            Explanation(
                cause,
                0.85 if caught or killer else 0.6,
                tuple(evidence),
                (
                    advise("who killed it: dmesg -T | grep -i -E 'oom|killed process', kubectl describe pod, ray logs")
                    if caught == "SIGKILL" and not killer
                    else advise("look for an Xid at that time: dmesg -T | grep -i xid"),
                    advise(
                        "vLLM exits with status 0 after this: let the supervisor restart always, not on failure only"
                    ),
                ),
            ),
            event.time,
        )
        if caught == "SIGKILL" and not killer:
            yield NotEnough(
                "host_memory_oversubscribed",
                "dmesg or kubectl describe: a SIGKILL from the OOM killer looks like any other",
            )
        return
    lost = [event for event in view.events("engine_dead") if "unexpectedly" in event.text]
    raised = [
        event for event in view.events("engine_dead") if "fatal error" in event.text or "hit an exception" in event.text
    ]
    if lost and not raised and not _explained(view, lost[0]):
        yield from _vanished(view, lost[0])
    else:
        yield from _exited(view)


def _told_elsewhere(view: View, event: LogEvent) -> bool:
    """Whether an end is part of another finding: a kill before a start that met what was left, an error before it."""
    run = view.run_of(event)
    later = any(other.source == run.source and other.start > run.start for other in view.runs)
    if event.event == "process_killed":
        return later and bool(view.events("free_memory_below_budget", "port_in_use"))
    return event.event == "worker_dead" and number(event, "code") is None and _explained(view, event)


def _foreign(view: View, event: LogEvent) -> bool:
    """Whether an end is that of a unit of systemd of which nothing says that it runs an engine."""
    name = event.field("name")
    if not name.endswith((".service", ".scope")) or any(word in name.lower() for word in UNIT_WORDS):
        return False
    return not any(given.engine for given in view.incident.inputs)


def _how(caught: str, code: float | None, killer: tuple[LogEvent, ...]) -> str:
    """Return the end of the sentence on how a process ended."""
    if killer:
        return f", killed for lack of memory ({killer[0].event})."
    if caught == "SIGKILL":
        return ": somebody or something killed it from outside; the log of a process cannot say who."
    if caught:
        return ": a crash of native code (a kernel, a library or the driver)."
    if code:
        return f" with exit code {code:.0f}: its own error stands above this line."
    return " without a word of its own."


def _vanished(view: View, event: LogEvent) -> Iterator[Cause | NotEnough]:
    """Judge an engine process that was gone from one moment to the next, without an error of its own."""
    killer = _killer(view)
    who = event.field("name") or "the engine's process"
    evidence = [logged(event), *(logged(each) for each in killer)]
    evidence.append(ruled_out("an error of the engine: it printed none before it was gone", event))
    yield Cause(
        "worker_died",
        Explanation(
            f"{who} was gone without an error of its own"
            + (
                f": killed for lack of memory ({killer[0].event})."
                if killer
                else ": it was killed from outside (SIGKILL, the OOM killer) or crashed in native code."
            ),
            0.85 if killer else 0.65,
            tuple(evidence),
            (
                advise("who killed it: dmesg -T | grep -i -E 'oom|killed process|segfault|xid', kubectl describe pod"),
                advise("vLLM exits with status 0 after this: let the supervisor restart always, not on failure only"),
            ),
        ),
        event.time,
    )
    if not killer:
        yield NotEnough(
            "host_memory_oversubscribed",
            "dmesg or kubectl describe: a SIGKILL from the OOM killer looks like any other",
        )


def _exited(view: View) -> Iterator[Cause]:
    if view.events("probe_kill"):
        return
    for event in view.events("container_exit"):
        if number(event, "code") == KILLED and not view.events("out_of_memory_killed", "container_killed"):
            yield Cause(
                "worker_died",
                Explanation(
                    "The container was killed from outside (137 is 128 + SIGKILL). OOMKilled is not said.",
                    0.6,
                    (logged(event),),
                    (advise("who killed it: kubectl describe pod, docker inspect, dmesg -T | grep -i oom"),),
                ),
                event.time,
            )
            return


def _signal(event: LogEvent, code: float | None) -> str:
    """Return the name of the signal, or nothing."""
    if event.event == "process_killed":
        return "SIGKILL"
    named = group(event, "signal") or ("SIG" + event.field("sig") if event.field("sig") else "")
    if named:
        return named
    if event.event == "process_crashed":
        return {"Bus error": "SIGBUS", "Aborted": "SIGABRT"}.get(group(event, "what", "what3"), "SIGSEGV")
    if code is not None and (code < 0 or code > 128):
        try:
            return signal.Signals(int(-code if code < 0 else code - 128)).name
        except ValueError:
            return ""
    return ""


def _killer(view: View) -> tuple[LogEvent, ...]:
    return view.events("out_of_memory_killed", "ray_memory_kill", "pod_evicted")[:2]


def _explained(view: View, event: LogEvent) -> bool:
    """Whether an error before the line says why the worker ended."""
    return any(other.source == event.source for other in view.events(*ERRORS))
