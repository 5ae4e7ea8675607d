"""Advice that the engine of an incident takes: no flag, and no value of one, that its version does not have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_versions import risky_flags, unknown_flag
from gpuwatch.engines.version import show_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.diagnosis.causes.view import Cause, Run, View
    from gpuwatch.diagnosis.finding import Advice

ABOUT_FLAGS = frozenset({"flag_unknown", "flag_risky"})
"""Findings about the flags that are given, which their advice names."""


def fitted(view: View, cause: Cause) -> tuple[Advice, ...]:
    """Return the advice of a cause without flags that the version does not have.

    Where nothing would be left, the change is told in words: which flag of other versions makes it.
    """
    if cause.id in ABOUT_FLAGS:
        return cause.explanation.advice
    run = _run(view, cause)
    engine = "sglang" if run.sglang else run.text("engine") or run.kind
    version = "" if run.version is None else show_version(run.version)
    advice = cause.explanation.advice
    kept = tuple(_kept(advice, engine, version))
    if kept or not advice:
        return kept
    first = advice[0]
    return (replace(first, text=f"{first.text} (other versions have {first.flag} for it)", flag="", proposed=None),)


def _kept(advice: tuple[Advice, ...], engine: str, version: str) -> Iterator[Advice]:
    for each in advice:
        name = each.flag.removeprefix("--")
        if not each.flag.startswith("--"):
            yield each
        elif unknown_flag(engine, version, name) is None or each.proposed == "(none)":
            yield replace(each, proposed=_taken(engine, version, name, each.proposed))


def _taken(engine: str, version: str, name: str, proposed: str | None) -> str | None:
    """Return a value for a flag, or what the table of traps has instead of one that the version does not take."""
    if not proposed or proposed[0].isdigit():
        return proposed
    traps = risky_flags(engine, version, {name: proposed})
    return next((trap.proposed for trap in traps if trap.value == proposed and trap.proposed), proposed)


def _run(view: View, cause: Cause) -> Run:
    """Return the run in which the evidence of a cause lies; the last one that told something where none does."""
    for item in cause.explanation.evidence:
        for run in view.runs:
            if item.line is not None and run.source == item.source and run.start <= item.line < run.end:
                return run
    return view.last
