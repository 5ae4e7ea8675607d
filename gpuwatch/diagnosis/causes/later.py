"""What came after a start that failed, or an engine that ended: a later start in the same log that serves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.explanation import told as fact_told

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import Run, View
    from gpuwatch.diagnosis.finding import Evidence, Finding
    from gpuwatch.model import Fact

WHILE_RUNNING = frozenset(
    {"kv_preemption_storm", "sglang_retraction_storm", "sglang_kv_alloc_failure", "engine_stalled"}
)
"""Critical findings about an engine that goes on running."""


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
    return replace(
        finding,
        cause=f"{finding.cause} A later start serves, from line {served.line} on"
        + (": this one is over." if failed else "."),
        severity="warning" if failed else finding.severity,
        evidence=(*finding.evidence, fact_told(served, "a later start of this log takes requests")),
    )


def _run(view: View, seen: Evidence) -> Run | None:
    runs = (run for run in view.runs if run.source == seen.source and run.start <= (seen.line or 0) < run.end)
    return next(runs, None)


def _ready(run: Run | None) -> Fact | None:
    found = run.all("ready") if run is not None else ()
    return found[0] if found else None


def _served(view: View, seen: Evidence) -> Fact | None:
    """Return the line from which the last start of a log serves, if it is a later one and did not fail the same way."""
    run = _run(view, seen)
    if run is None:
        return None
    last = max((other for other in view.runs if other.source == seen.source), key=lambda other: other.start)
    ready = _ready(last) if last.start > run.start else None
    if ready is None:
        return None
    again = (event for event in view.events(seen.name) if last.holds(event)) if seen.name else iter(())
    return ready if next(again, None) is None else None
