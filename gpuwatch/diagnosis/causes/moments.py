"""Whether two lines of different files can belong to one moment: what explains an end lies close before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.owners import foreign_unit
from gpuwatch.diagnosis.causes.view import number, ruled_out
from gpuwatch.diagnosis.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Severity
    from gpuwatch.model import LogEvent

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
CLOSE = 10 * MINUTE
"""What lies further before an end than this does not explain it."""
SKEW = 2 * MINUTE
"""Clocks of two machines, and buffers of two logs, may put the cause this much behind its effect."""
LONGEST_WAIT = 30 * MINUTE
"""How long a collective or a call waits at most by default, before it says that it hangs."""
ZONES = 14 * HOUR
"""No time zone is further from UTC."""
ZONE_STEP = 30 * MINUTE
"""Nearly all time zones differ by a multiple of this."""
YEARS = (365 * DAY, 366 * DAY)

ASKED = 2 * MINUTE
"""A server that was asked to end is killed after 30 s (Kubernetes) to 90 s (systemd) where it has not ended by then."""

ENDS = (
    "engine_dead",
    "worker_dead",
    "worker_stopped",
    "process_crashed",
    "process_killed",
    "nccl_timeout",
    "rpc_timeout",
    "cuda_error",
)
"""Events that tell that an engine, or a part of it, ended or no longer answers."""
ENDED = frozenset({"worker_died", "nccl_hang", "engine_stalled"})
"""Findings that such an event brings about."""


def ends(view: View) -> tuple[LogEvent, ...]:
    """Return every end that the files tell."""
    return view.events(*ENDS)


def asked(view: View, end: LogEvent) -> LogEvent | None:
    """Return the line that tells that a server was asked to end before it did: Ctrl-C, SIGTERM, a supervisor.

    The same words after the end are those of the server that puts away what is left.
    """
    run = view.run_of(end)
    for said in view.events("shutdown"):
        name = said.field("name")
        if name and foreign_unit(name) and name != end.field("name"):
            continue
        gap = lag(said, end)
        if said.source == end.source:
            if view.run_of(said) is run and said.line < end.line and (gap is None or gap <= ASKED):
                return said
        elif gap is not None and 0 <= gap <= ASKED:
            return said
    return None


def lag(cause: LogEvent, effect: LogEvent) -> int | None:
    """Return the milliseconds from one line to another, None where one of them has no date.

    A year that was guessed for a line without one may be another one: whole years are left out.
    """
    return between(cause.time, effect.time)


def between(cause: int, effect: int) -> int | None:
    """Return the milliseconds from one time to another, as `lag` does; a time of 0 is none."""
    if not cause or not effect:
        return None
    gap = effect - cause
    sign = -1 if gap < 0 else 1
    return min((gap, *(gap - sign * year for year in YEARS)), key=abs)


def together(cause: LogEvent, effect: LogEvent) -> bool | None:
    """Whether one line can explain another by their times; None where the times cannot be compared.

    Lines of two files whose times differ by hours and are otherwise the same may be written in two time zones.
    """
    gap = lag(cause, effect)
    if gap is None:
        return None
    waited = 0.0
    if effect.event in ("nccl_timeout", "rpc_timeout"):
        waited = number(effect, "ms") or LONGEST_WAIT
    return fits(gap, waited, zones=cause.source != effect.source)


def fits(gap: int, waited: float = 0.0, *, zones: bool = True) -> bool | None:
    """Whether a cause can lie so many milliseconds before its effect; None where two time zones may be the reason.

    `waited` is how long the effect waited before it showed; `zones` says that the two times are of different files.
    """
    if -SKEW <= gap <= CLOSE + waited:
        return True
    rest = abs(gap) % ZONE_STEP
    shifted = abs(gap) <= ZONES + SKEW and min(rest, ZONE_STEP - rest) <= SKEW
    return None if shifted and zones else False


def related(cause: LogEvent, effects: Iterable[LogEvent]) -> bool | None:
    """Whether a line can explain one of several by their times; None where that cannot be told, or there are none."""
    told = [together(cause, effect) for effect in effects]
    if True in told:
        return True
    return None if None in told or not told else False


def nearest(causes: Iterable[LogEvent], effects: Sequence[LogEvent]) -> list[LogEvent]:
    """Return lines in order of how near they lie to one of the effects; those without a date come last."""
    return sorted(causes, key=lambda cause: _distance(cause, effects))


def _distance(cause: LogEvent, effects: Sequence[LogEvent]) -> float:
    gaps = [abs(gap) for effect in effects if (gap := lag(cause, effect)) is not None]
    return min(gaps, default=float("inf"))


def doubt(cause: LogEvent, effects: Sequence[LogEvent]) -> list[Evidence]:
    """Return what has to be said where a line is joined with an end although their times cannot be compared."""
    if not effects or related(cause, effects) is not None:
        return []
    why = (
        "the times differ by whole or half hours: the files may be of two time zones"
        if cause.time and any(effect.time for effect in effects)
        else "one of the two lines has no date"
    )
    return [
        Evidence(f"Not ruled out: that the two have nothing to do with each other: {why}", cause.source, cause.line)
    ]


def elsewhere(cause: LogEvent, effects: Sequence[LogEvent]) -> list[Evidence]:
    """Return what says that a line explains none of the ends, where its time rules that out."""
    if related(cause, effects) is not False:
        return []
    gaps = [gap for effect in effects if (gap := lag(cause, effect)) is not None]
    gap = min(gaps, key=abs)
    side = "before" if gap > 0 else "after"
    return [ruled_out(f"this as the cause of the engine's end: it came {lasting(abs(gap))} {side} it", cause)]


def milder(cause: LogEvent, effects: Sequence[LogEvent]) -> Severity | None:
    """Return the severity of what came long before an engine ended, and so was over; None where it keeps its own."""
    if related(cause, effects) is not False:
        return None
    return "warning" if all((lag(cause, effect) or 0) > 0 for effect in effects) else None


def lasting(millis: float) -> str:
    """Return a time in words, such as ``9 days`` or ``5.8 hours``."""
    if millis >= 2 * DAY:
        return f"{millis / DAY:.0f} days"
    if millis >= 2 * HOUR:
        return f"{millis / HOUR:.1f} hours"
    return f"{millis / MINUTE:.0f} minutes"
