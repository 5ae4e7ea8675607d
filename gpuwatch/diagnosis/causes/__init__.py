"""Causes of what went wrong, decided from the facts, events and samples of an incident by small pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.incident import Incident
    from gpuwatch.diagnosis.finding import Finding, NotEnough


def judge(incident: Incident) -> tuple[tuple[Finding, ...], tuple[NotEnough, ...]]:
    """Return the findings of an incident, root causes first, and what could not be told apart and what that needs."""
    from gpuwatch.diagnosis.causes import verdict  # noqa: PLC0415  # two dozen modules that most runs never need

    return verdict.judge(incident)
