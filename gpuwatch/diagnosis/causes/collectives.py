"""Ranks that wait for each other: NCCL that hangs, a group that never forms, shared memory that is full."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments, order, unmet
from gpuwatch.diagnosis.causes.view import Cause, advise, amount, from_fact, group, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, count, logged, size
from gpuwatch.diagnosis.finding import Evidence
from gpuwatch.diagnosis.xid_table import is_hardware
from gpuwatch.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Advice, Severity
    from gpuwatch.model import LogEvent

FIRST_OPERATIONS = 4
"""A collective with so small a number belongs to the forming of the group, not to serving."""
MANY_OPERATIONS = 10_000
"""No start, with its profile run and its graphs, takes so many."""
SHM = "/dev/shm"  # noqa: S108  # a mount that is spoken of, not written to
KIB = 1 << 10
DEFAULT_SHM = 64 * MIB
"""What Docker and Kubernetes give /dev/shm unless told otherwise."""
ENOUGH_SHM = "10g"
CUSTOM = "--disable-custom-all-reduce"
OWN_KERNEL = "where no GPU failed: use NCCL's own all-reduce; random stalls have ended with it"
CUSTOM_RANKS = 8
"""vLLM's own all-reduce works for up to so many ranks of one node."""


def hang(view: View) -> Iterator[Cause]:
    """Judge collectives that did not end in time, by when it was: at the first operation or while serving."""
    timeouts = view.events("nccl_timeout")
    numbered = [event for event in timeouts if number(event, "seq", "work") is not None]
    if timeouts:
        event = next((each for each in numbered if each.field("seq")), timeouts[0])
        places = [number(each, "seq", "work") or 0 for each in numbered]
        if places and min(places) <= FIRST_OPERATIONS < max(places):
            first = next(each for each in numbered if (number(each, "seq", "work") or 0) == min(places))
            yield _several_groups(first, max(numbered, key=lambda each: number(each, "seq", "work") or 0))
            return
        yield _timed_out(view, event, timeouts)
    elif view.events("rendezvous_timeout"):
        yield unreachable(view.events("rendezvous_timeout"))


def _several_groups(first: LogEvent, last: LogEvent) -> Cause:
    """Tell of time-outs of which one is of a first operation and another one is not: neither moment is ruled out."""
    few, many = number(first, "seq", "work") or 0, number(last, "seq", "work") or 0
    return Cause(
        "nccl_hang",
        Explanation(
            f"Collectives of several numbers did not end: {count(few)} on one rank, {count(many)} on another. Numbers "
            "count within a group of ranks, so a group may hang where it forms while another one works, or a rank "
            "stopped and both wait for it.",
            0.5,
            (logged(first), logged(last)),
            (
                advise("look for an Xid at that time: dmesg -T | grep -i xid"),
                advise("where do the ranks stand: py-spy dump --pid of each worker, before they are ended"),
                advise("name the group the next time", "TORCH_NCCL_TRACE_BUFFER_SIZE", None, "2000"),
            ),
        ),
        first.time,
    )


def _timed_out(view: View, event: LogEvent, timeouts: tuple[LogEvent, ...]) -> Cause:
    run = view.run_of(event)
    at = number(event, "seq", "work")
    waited = number(event, "ms")
    what = f"{group(event, 'op') or 'operation'} number {count(at)}" if at is not None else "an operation"
    after = f" after {waited / 1000:.0f} s" if waited else ""
    evidence = [logged(event), *(logged(other) for other in timeouts[1:3] if other is not event)]
    symptoms = view.events("shm_broadcast_stall", "rpc_timeout")
    evidence += [logged(each) for each in symptoms[:1]]
    early = at is not None and at <= FIRST_OPERATIONS
    advice: list[Advice]
    if early:
        cause = (
            f"The group hangs where it forms: {what} did not end{after}. Peer-to-peer transfers between the GPUs are "
            "silently broken (IOMMU, ACS or virtualisation), or the ranks do not reach each other."
        )
        advice = [
            advise("confirm: start once without peer-to-peer", "NCCL_P2P_DISABLE", None, "1"),
            advise("if that helps: switch IOMMU and ACS off for the GPUs, or keep P2P off"),
            advise(
                "run NCCL's own all_reduce_perf on these GPUs first; on several nodes set the interface",
                "NCCL_SOCKET_IFNAME",
            ),
        ]
        evidence.append(ruled_out("a bug while serving: nothing was computed before it", event, at))
    else:
        served = run.fact("ready") is not None or (at or 0) >= MANY_OPERATIONS
        served = served or any(run.holds(each) for each in view.events("stats"))
        when = " while serving" if served else ""
        cause = (
            f"A rank stopped taking part{when}: {what} did not end{after} on the others, which had worked till then."
        )
        late = order.behind(view, event)
        if late is not None:
            cause = f"{late.cause(when)} It did not end{after}."
            evidence = list(late.evidence())
            evidence += [logged(each) for each in symptoms[:1]]
        advice = [] if late is None else [advise(late.advice())]
        advice += [
            advise("look for an Xid at that time: dmesg -T | grep -i xid"),
            advise(
                "py-spy dump --pid of each worker before they are ended tells where they stand"
                if late is not None
                else "with NCCL_DEBUG=INFO and TORCH_NCCL_TRACE_BUFFER_SIZE=2000 the next time-out names the rank that "
                "was late"
            ),
        ]
        if _custom_kernel(view, run):
            cause += " Where no GPU failed, vLLM's custom all-reduce kernel is the usual suspect."
            advice.append(advise(OWN_KERNEL, CUSTOM, None, "(set)"))
        if at is not None:
            evidence.append(ruled_out(f"network or firewall at start: {count(at)} operations had worked", event, at))
    xids = [
        xid
        for xid in view.events("xid")
        if is_hardware(xid.field("code")) and moments.related(xid, (event,)) is not False
    ]
    evidence += [logged(xid) for xid in moments.nearest(xids, (event,))[:1]]
    return Cause(
        "nccl_hang", Explanation(cause, 0.85 if at is not None else 0.6, tuple(evidence), tuple(advice)), event.time
    )


def _custom_kernel(view: View, run: Run) -> bool:
    """Whether vLLM's own all-reduce may have been at work: in a log of vLLM, on one node, and not switched off."""
    vllm = run.text("engine") == "vllm" or any(
        given.path == run.source and given.engine == "vllm" for given in view.incident.inputs
    )
    nodes = max(run.number("flag.nnodes") or 1, run.number("nnodes") or 1)
    wide = (run.told_tp or 1) > CUSTOM_RANKS
    off = run.fact("custom_allreduce") is not None or run.yes("flag.disable-custom-all-reduce")
    return vllm and nodes <= 1 and not wide and not off


def unreachable(events: tuple[LogEvent, ...]) -> Cause:
    """Return the finding of a group that never formed."""
    event = next((each for each in events if group(each, "host", "at", "joined")), events[0])
    if unmet.explained_here(event):
        return unmet.absent(event)
    host = group(event, "host") or group(event, "at").rpartition(":")[0]
    port = group(event, "port") or group(event, "at").rpartition(":")[2]
    where = f"{host}:{port}" if host and port else "the head node"
    joined = group(event, "joined")
    if joined:
        cause = f"Only {joined} of {group(event, 'all')} processes joined the group before the time-out."
    else:
        cause = f"The group never formed: the meeting point {where} cannot be reached from this node."
    cause += " NCCL had not begun: this is the network or a process that was not started."
    advice = [
        advise("start the engine on every node, with the same head address and one rank each"),
        advise(
            f"try it by hand from this node: nc -vz {host or 'HEAD'} {port or 'PORT'}; open the port in the firewall"
        ),
        advise("several network cards: name the one that reaches the other node", "GLOO_SOCKET_IFNAME"),
    ]
    evidence = (
        *(logged(each) for each in events[:3]),
        ruled_out("peer-to-peer transfers and collectives: the group did not exist yet", event),
    )
    return Cause("nccl_hang", Explanation(cause, 0.88, evidence, tuple(advice)), event.time)


def shared_memory(view: View) -> Iterator[Cause]:
    """Judge segments that could not be made in /dev/shm, and a /dev/shm that is known to be small."""
    failed = view.events("nccl_shm_failed") or tuple(
        event for event in view.events("shm_too_small") if not event.field("bytes")
    )
    small = [
        event
        for event in view.events("shm_size")
        if (amount(event.field("size"), KIB) or DEFAULT_SHM * 2) <= DEFAULT_SHM * 1.01
    ]
    default = view.events("shm_default")
    ray = view.events("shm_too_small")
    if failed:
        event = next((each for each in failed if each.field("size")), failed[0])
        yield _no_segment(view, event, [*small, *default, *ray])
    elif default or ray or (small and _used(small[-1]) >= 0.9):
        event = (*default, *ray, *small)[0]
        said = f" ({size(number(event, 'bytes') or DEFAULT_SHM)})" if event.event == "shm_too_small" else " (64 MiB)"
        yield Cause(
            "host_shm_exhaustion",
            Explanation(
                f"{SHM} has the container runtime's default size{said}: engines with several processes need more for "
                "their message queues and NCCL.",
                0.75,
                tuple(logged(each) for each in (event, *small)[:3]),
                _enlarge(),
            ),
            event.time,
        )
    for event in small:
        if not failed and not default and not ray and _used(event) < 0.9:
            yield Cause(
                "host_shm_exhaustion",
                Explanation(
                    f"{SHM} has the container runtime's default of 64 MiB. That is too little for tensor parallelism.",
                    0.5,
                    (logged(event),),
                    _enlarge(),
                ),
                event.time,
                severity="info",
            )


def _no_segment(view: View, event: LogEvent, sized: list[LogEvent]) -> Cause:
    wanted = number(event, "size")
    near = [each for each in view.events("nccl_shm_failed") if each.source == event.source]
    full = any("No space left" in each.text for each in (event, *near))
    need = f"a segment of {size(wanted)}" if wanted else "its segment"
    who = "NCCL" if event.event == "nccl_shm_failed" else "A process of the engine"
    cause = f"{who} could not make {need} in /dev/shm: it is too small, full or not writable in this container."
    sizes = [each for each in view.events("shm_size") if amount(each.field("size"), KIB)]
    there = amount(sizes[-1].field("size"), KIB) if sizes else None
    advice = list(_enlarge(there))
    if full:
        held = f" ({_used(sizes[-1]):.0%} of its {size(there)} are used)" if there and _used(sizes[-1]) else ""
        cause = (
            f"{SHM} is full{held}, and {who} could not make {need}. Segments of runs that crashed stay there as long "
            "as the volume does."
        )
        advice.insert(
            0,
            advise(
                "see what fills it and whose it is (ls -lS /dev/shm, lsof), and delete what earlier runs left when no "
                "engine runs: nccl-*, psm_*, sgl_shm_*, torch_*; or make the pod anew"
            ),
        )
    evidence = [logged(event), *(logged(each) for each in dict.fromkeys([*sizes[-1:], *sized[:2]]))]
    evidence += [logged(each) for each in view.events("nccl_error")[:1]]
    died = [each for each in view.events("engine_dead", "worker_dead") if each.source == event.source]
    evidence += [logged(each) for each in died[:1]]
    evidence.append(ruled_out("the network and NCCL's version: the failed call is a local file", event))
    if full:
        evidence.append(ruled_out("the disk and GPU memory: /dev/shm is host memory", event))
    severity: Severity | None = "critical" if died else None
    explanation = Explanation(cause, 0.95, tuple(evidence), tuple(advice))
    return Cause("host_shm_exhaustion", explanation, event.time, severity=severity)


def _enlarge(there: float | None = None) -> tuple[Advice, ...]:
    """Return how to have more shared memory than `there` is, in bytes."""
    enough = f"{math.ceil(2 * there / GIB)}g" if there and there * 2 > (amount(ENOUGH_SHM) or 0) else ENOUGH_SHM
    current = f"{there / GIB:.0f}g" if there and there >= GIB else None
    return (
        advise("give the container more shared memory, or the host's (--ipc=host)", "--shm-size", current, enough),
        advise(
            "in Kubernetes: mount an emptyDir with medium Memory at /dev/shm; it counts against the pod's memory limit"
        ),
    )


def _used(event: LogEvent) -> float:
    return (number(event, "share") or 0.0) / 100


def stuck(view: View) -> Iterator[Cause]:
    """Judge workers that no longer answer although no collective timed out."""
    if view.events("nccl_timeout"):
        return
    calls, stalls, dogs = (view.events(name) for name in ("rpc_timeout", "shm_broadcast_stall", "sglang_watchdog"))
    if not calls and not dogs and len(stalls) < 2:
        return
    event = (*calls, *dogs, *stalls)[0]
    run = view.run_of(event)
    ready = run.fact("ready")
    if event.event == "shm_broadcast_stall" and ready is not None and (ready.line or 0) > event.line:
        return
    what = f"the call {event.field('m')}" if event.field("m") else "a step"
    named = list(dict.fromkeys(each.field("process") for each in dogs))
    who = f"Rank {named[0]}" if event.event == "sglang_watchdog" and len(named) == 1 and named[0] else "A worker"
    dumps = [each for each in view.events("stack_dump") if run.holds(each)][:1]
    yield Cause(
        "engine_stalled",
        Explanation(
            f"{who} does not answer: {what} did not end in time. "
            + (
                "Whether it waits for a GPU, for another rank or compiles, its stacks tell, which the log holds."
                if dumps
                else "The log does not say whether it waits for a GPU, for another rank or compiles."
            ),
            0.6,
            tuple(logged(each) for each in (*calls[:1], *dogs[:1], *dumps, *stalls[-2:])),
            (
                advise("look for an Xid at that time: dmesg -T | grep -i xid"),
                advise(f"read the stacks of process {dumps[0].field('pid')} below line {dumps[0].line}")
                if dumps
                else advise("where does it stand: py-spy dump --pid of each worker"),
            ),
        ),
        event.time,
    )


def interconnect(view: View) -> Iterator[Cause]:
    """Judge tensor parallelism over PCIe: vLLM says that it does without its own all-reduce, topology says why."""
    for run in view.runs:
        why = run.fact("custom_allreduce.why")
        slow = why is not None and any(part in str(why.value) for part in ("PCIe-only", "P2P", "NVLink"))
        links = [
            event for event in view.events("gpu_topology") if {"SYS", "PHB", "NODE"} & set(event.field("links").split())
        ]
        nvlink = any("NV" in event.field("links") for event in view.events("gpu_topology"))
        if not (slow or (links and run.tp > 1)) or nvlink:
            continue
        evidence = (
            [Evidence(f"custom all-reduce is off: {why.value}", why.source, why.line, why.key)]
            if why is not None
            else []
        )
        evidence += [logged(event) for event in links[:2]]
        waiting, waits = _waiting(view)
        evidence += waits
        alone = _single(view)
        evidence += alone
        evidence += from_fact(run, "tp", "tensor-parallel ranks: {}")
        ranks = run.tp if run.tp > 1 else None
        yield Cause(
            "tp_pcie_slow",
            Explanation(
                "The GPUs of one group talk over PCIe: each layer's all-reduce crosses it, and decoding waits for it."
                + (f" The GPUs are busy {waiting:.0%} of the time only." if waiting is not None else "")
                + " The message about the custom all-reduce is harmless; it only tells why.",
                0.85 if waits or links else 0.6,
                tuple(evidence),
                (
                    advise(
                        "run replicas of fewer ranks each, where the model fits",
                        "--tensor-parallel-size",
                        ranks,
                        None if ranks is None else ranks // 2,
                    ),
                    advise("or pipeline parallelism, which sends far less", "--pipeline-parallel-size", None, ranks),
                    advise("or GPUs with NVLink"),
                ),
            ),
            (why.time or 0) if why is not None else 0,
            severity=None if waits else "info",
        )
        return


def _waiting(view: View) -> tuple[float | None, list[Evidence]]:
    """Return the busy share of GPUs that run together and are all about half idle."""
    by_time: dict[int, dict[str, float]] = {}
    for sample in view.samples("gpu_busy_ratio"):
        by_time.setdefault(sample.time // 5000, {})[sample.labels.get("gpu", "")] = sample.value
    shared = [values for values in by_time.values() if len(values) > 1 and min(values.values()) > 0.2]
    together = [value for values in shared for value in values.values()]
    if not together or max(together) >= 0.75:
        return None, []
    mean = sum(together) / len(together)
    sample = view.samples("gpu_busy_ratio")[-1]
    return mean, [
        Evidence(
            f"the GPUs of the group are busy {mean:.0%} of the time", sample.path, None, sample.name, mean, "ratio"
        )
    ]


def _single(view: View) -> list[Evidence]:
    """Return what one GPU alone did, where the same log has both."""
    busy = [sample for sample in view.samples("gpu_busy_ratio") if sample.value >= 0.9]
    if not busy or len({run.tp for run in view.runs}) < 2:
        return []
    return [
        Evidence(
            f"one GPU alone was busy {busy[0].value:.0%} of the time",
            busy[0].path,
            None,
            busy[0].name,
            busy[0].value,
            "ratio",
        )
    ]
