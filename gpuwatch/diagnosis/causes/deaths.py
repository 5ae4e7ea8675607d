"""Workers and engines that ended: by which signal, and by whom where one is known."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import exits, moments
from gpuwatch.diagnosis.causes.collectives import ENOUGH_SHM
from gpuwatch.diagnosis.causes.exits import ERRORS
from gpuwatch.diagnosis.causes.kills import KILLED
from gpuwatch.diagnosis.causes.owners import foreign_unit, of_engine
from gpuwatch.diagnosis.causes.view import FRAMES_BEFORE, Cause, advise, group, number, ruled_out
from gpuwatch.diagnosis.explanation import Explanation, logged
from gpuwatch.diagnosis.finding import Evidence, NotEnough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Advice
    from gpuwatch.model import LogEvent

ASKING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Signals that ask a process to end, and that no fault raises."""
_BY_SIGNAL = {
    "SIGKILL": ": somebody or something killed it from outside; the log of a process cannot say who.",
    "SIGBUS": (
        ": it touched memory that has nothing behind it. With several processes in a container that is mostly a "
        "/dev/shm that is too small (64 MiB unless told otherwise), where their queues and NCCL's segments lie."
    ),
    **dict.fromkeys(ASKING, ": it was asked to end, by its parent, a supervisor or a user."),
}
SIGNALLED = 128
"""What is added to the number of the signal in the exit code of a shell, Docker and Kubernetes."""
CODE_BELOW = 3
"""Lines below the end of a process in which its exit code may stand."""
KILLERS = {
    "out_of_memory_killed": "the OOM killer for lack of memory",
    "ray_memory_kill": "Ray's monitor for lack of memory",
    "pod_evicted": "Kubernetes with its pod, which it evicted for lack of memory or disk",
}
"""Who ends a process, by the event that tells of it."""


def died(view: View) -> Iterator[Cause | NotEnough]:
    """Judge workers and engines that ended by a signal, and name the killer where one is known."""
    # What Ray says of a worker that is gone tells least.
    ended = sorted(
        view.events("worker_dead", "process_crashed", "process_killed"), key=lambda event: bool(event.field("ray"))
    )
    for event in ended:
        if _told_elsewhere(view, event) or _asked(view, event):
            continue
        if _foreign(view, event):
            yield NotEnough("worker_died", f"what {event.field('name')} runs: a unit of systemd was ended by a signal")
            continue
        code = _code(view, event)
        crash = _crash(view, event) if code is None else None
        caught = _signal(crash or event, code)
        who = group(event, "w", "r", "name") or ("a process" if event.event == "process_crashed" else "the server")
        if event.field("r"):
            who = f"rank {event.field('r')}"
        said = (event, *_code_lines(view, event), crash, *view.events("engine_dead")[:1])
        evidence = [logged(each) for each in said if each is not None]
        killer = _killer(view, event)
        if event.field("ray"):
            who = "a worker of Ray" + (f" (pid {event.field('pid')})" if event.field("pid") else "")
            if not (caught or code or killer):
                yield from _gone_from_ray(event, who)
                return
        evidence += _named(killer, event)
        cause = f"{who} ended" + (f" by {caught}" if caught else "") + _how(caught, code, killer)
        yield Cause(
            "worker_died",
            Explanation(
                cause,
                0.85 if caught or killer else 0.6,
                tuple(evidence),
                (_look(caught, killer), *_restart(view, event)),
            ),
            event.time,
        )
        if caught == "SIGKILL" and not killer:
            yield NotEnough(
                "host_memory_oversubscribed",
                "dmesg or kubectl describe: a SIGKILL from the OOM killer looks like any other",
            )
        return
    lost = _lost(view)
    asked = [event for event in _ended(view) if _asked(view, event)]
    if lost is not None:
        yield from _vanished(view, lost)
    elif asked:
        yield _on_request(view, asked[0])
    else:
        yield from _exited(view)


def _look(caught: str, killer: tuple[LogEvent, ...]) -> Advice:
    """Return where to look, or what to change, for a process that ended by a signal."""
    if killer:
        return advise("the finding about the kill says what ran short, and what to change for it")
    if caught in ("SIGKILL", *ASKING):
        return advise("who killed it: dmesg -T | grep -i -E 'oom|killed process', kubectl describe pod, ray logs")
    if caught == "SIGBUS":
        return advise(
            "is /dev/shm full or small (df -h /dev/shm in the container)? Writing to a mapped file without room behind "
            "it ends so",
            "--shm-size",
            None,
            ENOUGH_SHM,
        )
    return advise("look for an Xid at that time: dmesg -T | grep -i xid")


def _gone_from_ray(event: LogEvent, who: str) -> Iterator[Cause | NotEnough]:
    """Judge a worker whose connection to Ray ended: Ray lists what that may be, and does not know which it was."""
    yield Cause(
        "worker_died",
        Explanation(
            f"{who} was gone without a word of its own. The line cannot tell why: Ray only saw the connection end, and "
            "lists the OOM killer, ray stop --force and a crash of native code as what it may have been.",
            0.6,
            (logged(event),),
            (
                advise("on the worker's node: dmesg -T | grep -i -E 'oom|killed process|segfault|xid'"),
                advise(
                    "the worker's own last words: /tmp/ray/session_latest/logs on that node (worker-*.err, raylet.out)"
                ),
            ),
        ),
        event.time,
    )
    yield NotEnough(
        "host_memory_oversubscribed",
        "dmesg of the worker's node: a kill by the OOM killer looks to Ray like any other end of a worker",
    )


def _restart(view: View, event: LogEvent) -> list[Advice]:
    # A unit that was killed has failed, whatever the engine would have returned.
    if view.run_of(event).sglang or "status=9/KILL" in event.text or " died, exit code: " in event.text:
        return []
    return [advise("vLLM exits with status 0 after this: let the supervisor restart always, not on failure only")]


def _ended(view: View) -> list[LogEvent]:
    every = view.events("worker_dead", "process_crashed", "process_killed", "engine_dead")
    return [event for event in every if event.event != "engine_dead" or "unexpectedly" in event.text]


def _asked(view: View, event: LogEvent) -> bool:
    """Whether a process ended because its server was asked to; a kill for lack of memory is another reason."""
    return moments.asked(view, event) is not None and not _killer(view, event)


def _on_request(view: View, event: LogEvent) -> Cause:
    """Explain the end of a process whose server had been asked to end."""
    asked = moments.asked(view, event)
    late = [each for each in view.events("stop_timed_out") if moments.together(each, event) is not False][:1]
    killed = _signal(event, number(event, "code")) == "SIGKILL"
    gap = moments.lag(asked, event) if asked is not None else None
    after = f" {gap / moments.SECOND:.0f} s later" if gap is not None and gap >= 0 else ""
    cause = f"The server was asked to end (Ctrl-C, SIGTERM or its supervisor), and ended{after}; nothing failed."
    advice = [advise("nothing, where somebody stopped or restarted it; else look for who did")]
    if killed:
        cause = f"The server was asked to end (Ctrl-C, SIGTERM or its supervisor) and was killed{after}"
        cause += ": the time that its unit has for that (TimeoutStopSec) was over." if late else "."
        advice += [
            advise(
                "give it the time that its open requests need",
                "TimeoutStopSec" if late else "terminationGracePeriodSeconds",
            )
        ]
    evidence = [logged(each) for each in (asked, *late, event) if each is not None]
    return Cause(
        "worker_died",
        Explanation(cause, 0.85, tuple(evidence), tuple(advice)),
        event.time,
        severity="info",
    )


def _lost(view: View) -> LogEvent | None:
    """Return the line about an engine that was gone, of a run that holds no error which says why."""
    dead = view.events("engine_dead")
    raised = {
        id(view.run_of(event)) for event in dead if "fatal error" in event.text or "hit an exception" in event.text
    }
    lost = (event for event in dead if "unexpectedly" in event.text and not _asked(view, event))
    return next((each for each in lost if id(view.run_of(each)) not in raised and not _explained(view, each)), None)


def _crash(view: View, end: LogEvent) -> LogEvent | None:
    """Return the crash that a process wrote down itself, close to the line that only says that it is gone."""
    if end.event != "worker_dead":
        return None
    near = (
        each
        for each in view.events("process_crashed")
        if each.source == end.source and abs(each.line - end.line) <= FRAMES_BEFORE
    )
    return next((each for each in near if moments.together(each, end) is not False), None)


def _told_elsewhere(view: View, event: LogEvent) -> bool:
    """Whether an end is part of another finding: a kill before a start that met what was left, an error before it."""
    run = view.run_of(event)
    later = any(other.source == run.source and other.start > run.start for other in view.runs)
    if event.event == "process_killed":
        met = later and bool(view.events("free_memory_below_budget", "port_in_use"))
        return met or (_failed_before(view, event) and not _killer(view, event))
    code = _code(view, event) or 0
    return event.event == "worker_dead" and 0 <= code < SIGNALLED and _explained(view, event)


def _failed_before(view: View, event: LogEvent) -> bool:
    """Whether the engine had failed before it was killed: the launchers of both kill what is left of it themselves.

    A process that was gone without an error may have ended by the same hand. What a container ended with has no date.
    """
    run = view.run_of(event)
    dated = event.event != "container_exit"
    failed = (end for end in view.events("engine_dead", "engine_start_failed") if "unexpectedly" not in end.text)
    return any(
        (end.line < event.line and view.run_of(end) is run and moments.together(end, event) is not False)
        if end.source == event.source
        else moments.together(end, event) or (not dated and moments.together(end, event) is None)
        for end in failed
    )


def _foreign(view: View, event: LogEvent) -> bool:
    """Whether an end is that of a unit of systemd of which nothing says that it runs an engine."""
    if not foreign_unit(event.field("name")):
        return False
    own = [end for end in moments.ends(view) if not foreign_unit(end.field("name"))]
    return bool(own) or not any(given.engine for given in view.incident.inputs)


def _how(caught: str, code: float | None, killer: tuple[LogEvent, ...]) -> str:
    """Return the end of the sentence on how a process ended."""
    if killer:
        return f", killed by {KILLERS[killer[0].event]}."
    if caught:
        return _BY_SIGNAL.get(caught, ": a crash of native code (a kernel, a library or the driver).")
    if code:
        return f" with exit code {code:.0f}: its own error stands above this line."
    return " without a word of its own."


def _vanished(view: View, event: LogEvent) -> Iterator[Cause | NotEnough]:
    """Judge an engine process that was gone from one moment to the next, without an error of its own."""
    killer = _killer(view, event)
    who = event.field("name") or "the engine's process"
    evidence = [logged(event), *_named(killer, event)]
    evidence.append(ruled_out("an error of the engine: it printed none before it was gone", event))
    yield Cause(
        "worker_died",
        Explanation(
            f"{who} was gone without an error of its own"
            + (
                f": killed by {KILLERS[killer[0].event]}."
                if killer
                else ": it was killed from outside (SIGKILL, the OOM killer) or crashed in native code."
            ),
            0.85 if killer else 0.65,
            tuple(evidence),
            (
                advise("the finding about the kill says what ran short, and what to change for it")
                if killer
                else advise(
                    "who killed it: dmesg -T | grep -i -E 'oom|killed process|segfault|xid', kubectl describe pod"
                ),
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


def _exited(view: View) -> Iterator[Cause | NotEnough]:
    if view.events("probe_kill"):
        return
    for event in view.events("container_exit"):
        name, status = event.field("container"), number(event, "code")
        known = status in (None, 0, KILLED) or status in exits.CRASHES
        if event.field("engine") == "yes" and not known and not moments.ends(view):
            yield NotEnough(
                "worker_died", f"why the container {name} ended with {status:.0f}: kubectl logs --previous -c {name}"
            )
    for event in view.events("container_exit"):
        named = (*view.events("out_of_memory_killed"), *view.events("container_killed"))
        told = any(each.field("container") in ("", event.field("container")) for each in named)
        own = _failed_before(view, event)
        if number(event, "code") == KILLED and not (told or own) and event.field("engine") != "no":
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
    yield from exits.crashed(view)


def _code(view: View, event: LogEvent) -> float | None:
    """Return the exit code of a process, negative where a signal ended it; SGLang may print it in the next line."""
    status = number(event, "wait")
    if status is not None:
        return -float(int(status) & 0x7F)
    code = number(event, "code")
    below = _code_lines(view, event) if code is None else []
    return number(below[0], "code") if below else code


def _code_lines(view: View, event: LogEvent) -> list[LogEvent]:
    """Return the line below an end that tells its exit code."""
    if event.event != "worker_dead" or number(event, "wait", "code") is not None:
        return []
    return [
        said
        for said in view.events("exit_code")
        if said.source == event.source and event.line < said.line <= event.line + CODE_BELOW
    ][:1]


def _signal(event: LogEvent, code: float | None) -> str:
    """Return the name of the signal, or nothing."""
    if event.event == "process_killed":
        return "SIGKILL"
    named = group(event, "signal") or ("SIG" + event.field("sig") if event.field("sig") else "")
    if named:
        return named
    if event.event == "process_crashed":
        return {"Bus error": "SIGBUS", "Aborted": "SIGABRT"}.get(group(event, "what", "what3", "what4"), "SIGSEGV")
    if code is not None and (code < 0 or code > 128):
        try:
            return signal.Signals(int(-code if code < 0 else code - 128)).name
        except ValueError:
            return ""
    return ""


def _killer(view: View, end: LogEvent) -> tuple[LogEvent, ...]:
    """Return the kills that can be this end: of an engine's process, and not known to be of another time."""
    kills = view.events("out_of_memory_killed", "ray_memory_kill", "pod_evicted")
    near = [kill for kill in kills if of_engine(view, kill) and moments.together(kill, end) is not False]
    return tuple(moments.nearest(near, (end,))[:2])


def _named(killer: tuple[LogEvent, ...], end: LogEvent) -> list[Evidence]:
    """Return the kills as evidence, and whether their times cannot be compared with that of the end."""
    return [*(logged(kill) for kill in killer), *(said for kill in killer[:1] for said in moments.doubt(kill, (end,)))]


def _explained(view: View, event: LogEvent) -> bool:
    """Whether an error of the same run, and not of another time of it, says why the worker ended."""
    run = view.run_of(event)
    return any(
        other.source == event.source and view.run_of(other) is run and moments.together(other, event) is not False
        for other in view.events(*ERRORS)
    )
