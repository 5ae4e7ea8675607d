"""Processes that were ended: by which signal, by whom, and because of whose limit."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import cgroup, evictions, moments
from gpuwatch.diagnosis.causes.owners import is_other, names_engine, of_engine
from gpuwatch.diagnosis.causes.view import Cause, advise, group, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged, size
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

KILLED = 137
"""128 + SIGKILL: what a shell, Docker and Kubernetes report of a process that was killed."""
_HOST = ("Out of memory", "System OOM")
"""What the kernel and the kubelet call it when a whole host has no memory left."""
# The gauge of kube-state-metrics, with its labels in any order.
_LAST_REASON = re.compile(
    r"^\s*kube_pod_(?:init_)?container_status_last_terminated_reason\{(?=(?:[^}]*,)?container=\"(?P<container>[^\"]*)\")?"
)
_LIMIT = re.compile(r"^(\d+(?:\.\d+)?) ?([KMGT]i?B?|[kmg]?)$")


def host_kills(view: View) -> Iterator[Cause]:
    """Judge kills for lack of host memory, by their killer: Ray, or the kernel for a container or the host."""
    yield from _ray(view)
    yield from evictions.evicted(view)
    killed = view.events("out_of_memory_killed")
    memcg = [event for event in killed if event.field("scope").startswith("Memory cgroup")]
    whole = [event for event in killed if event.field("scope") in _HOST]
    units = [event for event in killed if not event.field("scope") and event.field("name")]
    kubernetes = [event for event in killed if not event.field("scope") and not event.field("name")]
    constraint = {event.field("constraint") for event in view.events("oom_constraint")}
    pods = [
        event
        for event in view.events("oom_constraint", "pod_usage")
        if "kubepods" in event.field("group") or event.event == "pod_usage"
    ]
    unlimited = [event for event in kubernetes if event.field("limit") == "none"]
    if unlimited and len(unlimited) == len(kubernetes):
        yield _without_limit(view, unlimited[0])
    elif kubernetes or (memcg and (pods or any(given.kind == "kubernetes" for given in view.incident.inputs))):
        # A container that is known to be another one than the engine's explains nothing where that one was killed too.
        yield _container(view, tuple(sorted(_likeliest(view, (*kubernetes, *memcg)), key=is_other)))
    elif memcg or whole:
        yield _kernel(view, _likeliest(view, (*memcg, *whole)), constraint)
    elif units:
        yield _unit(view, _likeliest(view, units))
    else:
        yield from _said_killed(view)


def _likeliest(view: View, events: Iterable[LogEvent]) -> tuple[LogEvent, ...]:
    """Return kills, those first that are of an engine's process and near to an end."""
    ends = moments.ends(view)
    return tuple(
        sorted(
            moments.nearest(events, ends),
            key=lambda event: (not of_engine(view, event), moments.related(event, ends) is False),
        )
    )


def _ray(view: View) -> Iterator[Cause]:
    for event in moments.nearest(view.events("ray_memory_kill"), moments.ends(view))[:1]:
        figured = [each for each in view.events("ray_memory_kill") if number(each, "used")]
        told = event if number(event, "used") or not figured else figured[-1]
        used, total, own = number(told, "used"), number(told, "total"), number(told, "own")
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
                    *(logged(each) for each in dict.fromkeys((event, told))),
                    ruled_out(
                        "the kernel's OOM killer and GPU memory: Ray says that it did it, by the host's memory", event
                    ),
                ),
                (
                    # Only V0 sets memory of the host aside for swapped requests.
                    advise(
                        "more host memory, or fewer workers and less swap space on this node",
                        "--swap-space",
                        run.number("flag.swap-space"),
                        "0",
                    )
                    if run.number("kv.cpu_blocks")
                    else advise("more host memory, or fewer workers on this node"),
                    advise("on one node do without Ray", "--distributed-executor-backend", None, "mp"),
                    advise("a higher threshold only postpones it", "RAY_memory_usage_threshold", threshold, None),
                ),
            ),
            event.time,
            severity=moments.milder(event, moments.ends(view)),
            apart=moments.related(event, moments.ends(view)) is False,
        )


def _container(view: View, events: tuple[LogEvent, ...]) -> Cause:
    event = events[0]
    told = _LAST_REASON.search(event.text)
    name, other = event.field("container") or (told["container"] if told is not None else ""), is_other(event)
    waits, ends = event.field("init") == "waits", moments.ends(view)
    loading = [] if other else _loading(view)
    limits = [
        each
        for each in view.events("memory_limit", "cpu_limit")
        if group(each, "size", "memory") and each.field("container") == name
    ]
    enforced = _enforced(view, event)
    limit = event.field("limit") or (group(limits[0], "size", "memory") if limits else "") or enforced
    filled, figures, _ = cgroup.filled(view, event)
    cause = f"The container{' ' + name if name else ''} crossed its memory limit"
    if event.field("scope") and not any(number(each, "code") == KILLED for each in view.events("container_exit")):
        cause += f", and the kernel killed {event.field('name')} (pid {event.field('pid')}) in it"
    else:
        cause += " and was killed (137)"
    cause += " while the weights were loaded." if loading else "."
    if told is not None:
        cause = (
            f"The last end of the container{' ' + name if name else ''} was a kill at its memory limit. When that was, "
            "the gauge does not say: it keeps its value until the container ends again."
        )
    cause += cgroup.innocent(view, event) + filled
    if waits:
        cause += " It is an init container: the engine's container is not started before it has done its work."
    elif other:
        cause += " It is not the engine's: another container of the pod is, and this end does not explain that one's."
    evidence = [*(logged(each) for each in events[:2]), *([] if other else moments.elsewhere(event, ends))]
    evidence += [*(logged(each) for each in limits[:1]), *figures, *loading]
    evidence.append(ruled_out("GPU memory: the limit is one of host memory", event))
    evidence += [] if other else moments.doubt(event, ends)
    return Cause(
        "k8s_oomkilled",
        Explanation(
            cause,
            0.95,
            tuple(evidence),
            tuple(_more_room(view, event, limit)),
        ),
        event.time,
        severity=None
        if waits
        else "info"
        if other
        else "warning"
        if told is not None and not ends
        else moments.milder(event, ends),
        apart=other or moments.related(event, ends) is False,
    )


def _without_limit(view: View, event: LogEvent) -> Cause:
    """Explain a container that has no limit of its own and was ended by the OOM killer all the same."""
    ends = moments.ends(view)
    return Cause(
        "host_memory_oversubscribed",
        Explanation(
            "The OOM killer ended a process of the container, and the container has no memory limit of its own: the "
            "whole host ran out of memory, or a limit above the container (a slice, docker's own cgroup) was reached.",
            0.85,
            (
                logged(event),
                ruled_out("a limit of the container: HostConfig.Memory is 0", event),
                ruled_out("GPU memory: the kernel kills for host memory only", event),
            ),
            (
                advise("which of the two, and who took it: dmesg -T | grep -i -A40 oom"),
                advise("less host memory for the engine: smaller CPU offload and swap space, or more memory"),
            ),
        ),
        event.time,
        severity="critical" if moments.related(event, ends) is not False else None,
        apart=moments.related(event, ends) is False,
    )


def _more_room(view: View, kill: LogEvent, limit: str) -> Iterator[Advice]:
    """Yield what to change for a container that crossed its limit, by who held how much where that is known."""
    other, held = is_other(kill), cgroup.held_by(kill)
    alien = cgroup.innocent(view, kill)
    filled, _, shared = cgroup.filled(view, kill)
    docker = kill.field("runtime") == "docker"
    yield advise(
        "raise the container's memory limit"
        + (f" well above the {size(held)} that it held" if held and not limit else "")
        + (f"; the process that was killed held {size(held)} of it" if held and limit and not alien else "")
        + ("" if other else ": workers x shard, plus /dev/shm"),
        "docker run --memory" if docker else "resources.limits.memory",
        limit or None,
        # Where the victim held next to nothing, what is needed is what the others hold: not known here.
        None if alien or filled else _doubled(limit) if limit else _above_held(view, kill),
    )
    if alien:
        yield advise(
            "who fills it: memory.stat of the cgroup (anon, file, shmem), and RSS of its processes (ps -eo "
            "pid,rss,args --sort=-rss)"
        )
    if shared:
        yield advise(
            "or put less into shared memory: a memory-backed /dev/shm, CPU offload and a KV cache on the CPU count "
            "against the limit"
        )
    if not (other or alien or shared or any(run.all("ready") for run in view.runs)):
        yield advise("or load without staging in host memory", "--load-format", None, "runai_streamer")


def _enforced(view: View, kill: LogEvent) -> str:
    """Return the limit that the kernel printed shortly before it killed, as Kubernetes and systemd write it."""
    limit = cgroup.limit_of(view, kill)
    return f"{limit / GIB:.4g}Gi" if limit else ""


def _above_held(view: View, kill: LogEvent) -> str | None:
    """Return twice what the victim held, where it is the one process of an engine that holds much: the limit was more.

    Of several workers in a container one is killed, and what the others held is not known.
    """
    held = cgroup.held_by(kill)
    alone = kill.field("name").startswith("VLLM::EngineCor") and (view.last.told_tp or 1) == 1
    if held is None or held < GIB or not alone:
        return None
    return f"{math.ceil(2 * held / GIB)}{'g' if kill.field('runtime') == 'docker' else 'Gi'}"


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
    logs = {given.path for given in view.incident.inputs if given.kind == "engine_log"}
    if begun is None or run.fact("weights.bytes") is not None or (view.incident.inputs and begun.source not in logs):
        return []
    return [Evidence("the log ends before the weights were loaded", begun.source, begun.line, begun.key)]


def _kernel(view: View, events: tuple[LogEvent, ...], constraint: set[str]) -> Cause:
    event = events[0]
    name, pid = event.field("name"), event.field("pid")
    held = cgroup.held_by(event)
    own, ends = of_engine(view, event), moments.ends(view)
    limit = _enforced(view, event)
    host = event.field("scope") in _HOST and "CONSTRAINT_MEMCG" not in constraint
    where = "the whole host ran out of memory" if host else "its cgroup's limit was reached"
    limits = [each for each in view.events("oom_constraint") if each.field("pid") in ("", pid)]
    others = [each for each in events[1:] if moments.together(each, event) is not False]
    evidence = [logged(each) for each in (*limits[:1], event, *others[:1])]
    evidence.append(ruled_out("GPU memory: the kernel kills for host memory only", event))
    evidence += [*moments.doubt(event, ends), *moments.elsewhere(event, ends)]
    apart = moments.related(event, ends) is False or not (host or own)
    cause = f"The kernel killed {name} (pid {pid}): {where}"
    cause += f"; it held {size(held)}." if held else "."
    filled, figures, _ = cgroup.filled(view, event) if not host else ("", [], False)
    cause += filled
    if host and not own:
        cause += " The victim is not the engine, and need not be the one that took the memory."
    elif not own:
        cause += " It is not the engine: only what shares its cgroup was short of memory."
    evidence += figures
    return Cause(
        "host_memory_oversubscribed",
        Explanation(
            cause,
            0.9,
            tuple(evidence),
            (
                advise(
                    "less host memory for the engine: smaller CPU offload and swap space, fewer workers while loading"
                    if host or own
                    else "less memory for that program"
                ),
                advise("or more memory")
                if host
                else advise(
                    "or a higher limit of the cgroup (systemd MemoryMax, docker --memory, resources.limits.memory of a "
                    "pod)",
                    "memory.max" if limit else "",
                    limit or None,
                    _doubled(limit),
                ),
            ),
        ),
        event.time,
        # An engine that is killed ends: what it served fails.
        severity="info" if apart and not own else "critical" if own and not apart and _ended(view, event) else None,
        apart=apart,
        title="" if host else "A process reached the memory limit of its cgroup",
    )


def _ended(view: View, event: LogEvent) -> bool:
    """Whether a kill ended an engine: by the name of its process, or because an end goes with it."""
    return names_engine(event) or bool(moments.related(event, moments.ends(view)))


def _unit(view: View, events: tuple[LogEvent, ...]) -> Cause:
    """Explain a unit of systemd of which the OOM killer ended a process; the kernel's log tells which limit it was."""
    event, ends = events[0], moments.ends(view)
    unit = event.field("name")
    apart = moments.related(event, ends) is False
    own = of_engine(view, event)
    failed = any("Failed with result" in each.text and each.field("name") == unit for each in events)
    oomd = [each for each in view.events("oomd_kill") if each.field("name") == unit][:1]
    cause = (
        f"The OOM killer ended a process of {unit}: the host's memory ran out, or the unit's limit (MemoryMax) was "
        "reached."
    )
    which = advise(f"which of the two: dmesg -T | grep -i oom; systemctl show {unit} -p MemoryMax -p MemoryPeak")
    for told in oomd:
        cause = f"systemd-oomd ended {unit}, and not the kernel: memory or swap of the host was nearly used up."
        which = advise("who takes the memory: systemd-cgtop -m; oomctl says what systemd-oomd watches")
        if told.field("share"):
            cause = (
                f"systemd-oomd ended {unit}, and not the kernel: tasks of {told.field('slice')} waited for memory for "
                f"{told.field('share')} % of the time, over the limit of {told.field('limit')} %."
            )
    return Cause(
        "host_memory_oversubscribed",
        Explanation(
            cause,
            0.9,
            (
                *(logged(told) for told in oomd),
                logged(event),
                ruled_out("GPU memory: the kernel kills for host memory only", event),
                *moments.doubt(event, ends),
                *moments.elsewhere(event, ends),
            ),
            (
                which,
                advise(
                    "less host memory for the engine: smaller CPU offload and swap space, fewer workers while loading"
                ),
            ),
        ),
        event.time,
        severity="info" if apart and not own else "critical" if failed and own and not apart else None,
        apart=apart,
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
