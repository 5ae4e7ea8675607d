"""What came after a start that failed, or an engine that ended: a later start that serves, in this log or another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes.moments import DAY
from gpuwatch.diagnosis.explanation import told as fact_told

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Evidence, Finding
    from gpuwatch.model import Fact

WHILE_RUNNING = frozenset(
    {"kv_preemption_storm", "sglang_retraction_storm", "sglang_kv_alloc_failure", "engine_stalled"}
)
"""Critical findings about an engine that goes on running."""

WEEK = 7 * DAY
"""A start in another log that came later than this has nothing to do with the one that failed."""


def told(view: View, finding: Finding) -> Finding:
    """Return a critical finding with the later start that serves, where there is one.

    A start that failed and was followed by one that serves is over: it becomes a warning. A log that is watched live
    is judged as it grows, and its findings end by themselves.
    """
    if finding.severity != "critical" or finding.id in WHILE_RUNNING or not view.incident.inputs:
        return finding
    seen = next((item for item in finding.evidence if item.line is not None), None)
    served = None if seen is None else _served(view, seen)
    if seen is None or served is None:
        return finding
    ready = _ready(_run(view, seen))
    failed = ready is None or (ready.line or 0) > (seen.line or 0)
    here = served.source == seen.source
    what = "a later start of this log takes requests" if here else "a later start takes requests"
    if not here and _another_model(view, seen, served):
        text = "Not ruled out: that this is over: a later start takes requests, with another model"
        return replace(finding, evidence=(*finding.evidence, fact_told(served, text))) if failed else finding
    return replace(
        finding,
        cause=f"{finding.cause} A later start serves, "
        + (f"from line {served.line} on" if here else "in another file")
        + (": this one is over." if failed else "."),
        severity="warning" if failed else finding.severity,
        evidence=(*finding.evidence, fact_told(served, what)),
    )


def _run(view: View, seen: Evidence) -> Run | None:
    runs = (run for run in view.runs if run.source == seen.source and run.start <= (seen.line or 0) < run.end)
    return next(runs, None)


def _ready(run: Run | None) -> Fact | None:
    found = run.all("ready") if run is not None else ()
    return found[0] if found else None


def _served(view: View, seen: Evidence) -> Fact | None:
    """Return the line from which the last later start serves, if it did not fail the same way.

    A start of the same log is later by its line, one of another log of that engine by its time, within a week.
    """
    run = _run(view, seen)
    if run is None:
        return None
    others = [other for other in view.runs if other.source == seen.source and other.start > run.start]
    if others:
        last = max(others, key=lambda other: other.start)
    else:
        moment = _moment(view, run, seen) if run.all("started") else 0
        logs = [other for other in view.runs if moment and other.source != seen.source and other.all("started")]
        near = (other for other in logs if moment < _began(other) <= moment + WEEK)
        apart = [other for other in near if other.sglang == run.sglang and _ready(other)]
        if not apart:
            return None
        last = max(apart, key=_began)
    again = (event for event in view.events(seen.name) if last.holds(event)) if seen.name else iter(())
    return _ready(last) if next(again, None) is None else None


def _another_model(view: View, seen: Evidence, served: Fact) -> bool:
    """Whether two starts are known to be of different models."""
    run, other = _run(view, seen), next(each for each in view.runs if served in each.facts)
    names = {run.text("model") if run is not None else "", other.text("model")} - {""}
    return len(names) > 1


def _began(run: Run) -> int:
    return next((fact.time for fact in run.facts if fact.time), 0)


def _moment(view: View, run: Run, seen: Evidence) -> int:
    """Return the time of a line, or the last one that was printed before it in its run; 0 where none was."""
    line = seen.line or 0
    times = [fact.time or 0 for fact in run.facts if (fact.line or 0) <= line]
    times += [event.time for event in view.incident.events if run.holds(event) and event.line <= line]
    return max(times, default=0)
