"""What the kernel prints of a memory cgroup when it kills in it: the limit, what fills it, and what the victim held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.view import number
from gpuwatch.diagnosis.explanation import logged, size

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Evidence
    from gpuwatch.model import LogEvent

REPORT = 2000
"""Lines of the kernel's report on a kill: the limit, the figures of the cgroup and one line for each process."""
KIB = 1 << 10
SMALL = 0.05
"""Who held less than this share of a limit did not fill it."""
MOST = 0.5


def limit_of(view: View, kill: LogEvent) -> float | None:
    """Return the bytes of the limit that the kernel printed shortly before it killed."""
    near = [each for each in _above(view, kill, "memory_limit") if each.field("kb")]
    return float(near[-1].field("kb")) * KIB if near else None


def held_by(kill: LogEvent) -> float | None:
    """Return the bytes that the victim held alone or shared: what its files take can be dropped, and does not count."""
    own = number(kill, "rss")
    return None if own is None else (own + (number(kill, "shmem") or 0.0)) * KIB


def innocent(view: View, kill: LogEvent) -> str:
    """Return the sentence about a victim that did not fill its cgroup, or nothing."""
    limit, held = limit_of(view, kill), held_by(kill)
    if limit is None or held is None or held >= SMALL * limit:
        return ""
    return f" It held {size(held)} of {size(limit)}: other processes of the cgroup filled it."


def filled(view: View, kill: LogEvent) -> tuple[str, list[Evidence], bool]:
    """Return what fills the cgroup, as a sentence and as evidence, and whether it is shared memory most of all."""
    found = {each.field("what"): each for each in _above(view, kill, "cgroup_memory")}
    shared, own = found.get("shmem"), found.get("anon")
    if shared is None or own is None:
        return "", [], False
    shares, owns = number(shared, "bytes") or 0.0, number(own, "bytes") or 0.0
    mostly = shares >= MOST * (shares + owns) > 0
    told = f"{size(shares)} of shared memory (/dev/shm, tmpfs, buffers that processes share)"
    text = f" It is filled by {told} and {size(owns)} of the processes' own." if shares + owns else ""
    return text, [logged(shared), logged(own)], mostly


def _above(view: View, kill: LogEvent, name: str) -> list[LogEvent]:
    """Return the lines of a report that stand above its last one, the kill."""
    kills = [each.line for each in view.events("out_of_memory_killed") if each.source == kill.source]
    start = max((line for line in kills if line < kill.line), default=0)
    return [
        each
        for each in view.events(name)
        if each.source == kill.source and max(start, kill.line - REPORT) <= each.line <= kill.line
    ]
