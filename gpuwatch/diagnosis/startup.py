"""Failures that the growing log of an engine tells of: starts that fail, memory that runs out, workers that die.

The causes are found by the functions of the post-mortem when the line comes; here they become the findings of alerts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.alerts.inhibitions import DEATHS, FAILED_STARTS
from gpuwatch.diagnosis.causes.ids import KINDS
from gpuwatch.diagnosis.context import LOG_SCOPE
from gpuwatch.diagnosis.diagnosis import Diagnosis
from gpuwatch.diagnosis.explanation import Explanation, Unknown

if TYPE_CHECKING:
    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.diagnosis import Explainer
    from gpuwatch.diagnosis.explanation import Verdict

CAUSES = (*FAILED_STARTS, *DEATHS, "sglang_kv_alloc_failure")
"""Finding ids that are counted by log."""


def explain_as(id_: str) -> Explainer:
    """Return the diagnosis of one id: what was found when the line came."""

    def explain(subject: Subject) -> Verdict:
        finding = subject.context.causes.get((subject.labels.get("log", ""), id_))
        if finding is None:
            return Unknown("the lines of the log around the failure")
        return Explanation(finding.cause, finding.confidence, finding.evidence, finding.advice)

    return explain


DIAGNOSES = tuple(Diagnosis(id_, KINDS[id_].severity, KINDS[id_].title, explain_as(id_), LOG_SCOPE) for id_ in CAUSES)
"""The findings of this family."""
