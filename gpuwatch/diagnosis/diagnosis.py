"""One finding id: its fixed severity and title, who explains it, and what it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatch.diagnosis.context import Subject
    from gpuwatch.diagnosis.explanation import Verdict
    from gpuwatch.diagnosis.finding import Severity

    Explainer: TypeAlias = Callable[[Subject], Verdict]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding id. Alerts of this id with the same `scope` labels are one finding."""

    id: str
    severity: Severity
    title: str
    explain: Explainer
    scope: tuple[str, ...]
