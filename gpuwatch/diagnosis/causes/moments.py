"""Whether two lines of different files can belong to one moment: what explains an end lies close before it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.owners import foreign_unit
from gpuwatch.diagnosis.causes.view import number, ruled_out
from gpuwatch.diagnosis.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
HALF_YEAR = 183 * DAY

ASKED = 2 * MINUTE
"""A server that was asked to end is killed after 30 s (Kubernetes) to 90 s (systemd) where it has not ended by then."""
DRAINED = HOUR
"""A server that was asked to end, and drains, serves its open requests this long where its supervisor lets it."""

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


def asked(view: View, end: LogEvent, within: int = ASKED) -> LogEvent | None:
    """Return the line that tells that a server was asked to end before it did: Ctrl-C, SIGTERM, a supervisor.

    It came at most `within` milliseconds before the end. The same words after the end are those of the server that
    puts away what is left.
    """
    run = view.run_of(end)
    for said in view.events("shutdown"):
        name = said.field("name")
        if name and foreign_unit(name) and name != end.field("name"):
            continue
        gap = lag(said, end)
        if said.source == end.source:
            if view.run_of(said) is run and said.line < end.line and (gap is None or gap <= within):
                return said
        elif gap is not None and 0 <= gap <= within:
            return said
    return None


def interrupted(view: View, end: LogEvent) -> bool:
    """Return whether Ctrl-C ended a server. It reaches all processes at once, and the first may tell of it last."""
    run = view.run_of(end)
    return any(run.holds(said) and "KeyboardInterrupt" in said.text for said in view.events("shutdown"))


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
    if abs(gap) <= HALF_YEAR:
        return gap
    moved = _a_year_on(effect, -1 if gap > 0 else 1)
    return min((gap, moved - cause), key=abs)


def _a_year_on(millis: int, years: int) -> int:
    """Return the same day and time of another year; of 29 February the next day."""
    moment = datetime.fromtimestamp(millis // 1000, timezone.utc)
    if (moment.month, moment.day) == (2, 29):
        moment = moment.replace(month=3, day=1)
    moved = moment.replace(year=moment.year + years)
    return int(moved.timestamp()) * 1000 + millis % 1000


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


def logged_times(view: View) -> dict[str, tuple[int, int]]:
    """Return the first and the last time of each engine's log; nothing where an end is told, by which all is judged."""
    logs = {given.path for given in view.incident.inputs if given.kind == "engine_log"}
    times: dict[str, list[int]] = {}
    if not ends(view):
        events = ((event.source, event.time) for event in view.incident.events)
        facts = ((fact.source, fact.time) for fact in view.incident.facts)
        for source, time in (*events, *facts):
            if source in logs and time:
                times.setdefault(source, []).append(time)
    return {source: (min(seen), max(seen)) for source, seen in times.items()}


def far(event: LogEvent, times: Mapping[str, tuple[int, int]]) -> int:
    """Return the milliseconds from a line to the next of some logs, where that lies more than a day away; else 0.

    It is negative where the log ends before the line. `times` are those of `logged_times`.
    """
    if not event.time or event.source in times:
        return 0
    gaps = []
    for first_time, last_time in times.values():
        first, last = between(event.time, first_time) or 0, between(event.time, last_time) or 0
        gaps.append(first if first > 0 else min(0, last))
    gap = min(gaps, key=abs, default=0)
    return gap if abs(gap) > DAY else 0


def another_time(event: LogEvent, far: int) -> list[Evidence]:
    """Return what says that a line is of another time than the engine's log, by the distance of `far`."""
    if not far:
        return []
    told = (
        f"this as part of what the engine's log tells: it came {lasting(far)} before that log begins"
        if far > 0
        else f"this as part of what the engine's log tells: it came {lasting(-far)} after that log ends"
    )
    return [ruled_out(told, event)]


def lasting(millis: float) -> str:
    """Return a time in words, such as ``9 days`` or ``5.8 hours``."""
    if millis >= 2 * DAY:
        return f"{millis / DAY:.0f} days"
    if millis >= 2 * HOUR:
        return f"{millis / HOUR:.1f} hours"
    return f"{millis / MINUTE:.0f} minutes"
