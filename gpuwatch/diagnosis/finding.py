"""What gpuwatch tells a person: a finding with its evidence and advice. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from gpuwatch.model import Labels

Severity: TypeAlias = Literal["info", "warning", "critical"]
State: TypeAlias = Literal["pending", "firing", "resolved"]

SEVERITY_ORDER: dict[str, int] = {"info": 0, "warning": 1, "critical": 2}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation that supports a finding: a number with its window, or a line of a file.

    `name` is the series or fact, `value` and `unit` its reading ("bytes", "tokens", "ratio", "seconds", …);
    `text` is the sentence a person reads; `line` is 1-based in `source`.
    """

    text: str
    source: str = ""
    line: int | None = None
    name: str = ""
    value: float | str | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """One change to make. `flag` goes from `current` (None: unknown) to `proposed`, as the user would type them."""

    text: str
    flag: str = ""
    current: str | None = None
    proposed: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """An alert or log event with its explanation. `since` is in milliseconds since the epoch.

    `alerts` are the labels and the start of each firing alert that this finding stands for, as Prometheus would send
    them to Alertmanager; they are no part of what the finding says.
    """

    id: str
    severity: Severity
    title: str
    cause: str
    confidence: float
    evidence: tuple[Evidence, ...]
    advice: tuple[Advice, ...] = ()
    caused_by: str | None = None
    state: State = "firing"
    since: int = 0
    until: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    alerts: tuple[tuple[Labels, int], ...] = field(default=(), compare=False, repr=False)

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What makes this finding the same one as a moment ago."""
        return self.id, tuple(sorted(self.labels.items()))


@dataclass(frozen=True, slots=True)
class NotEnough:
    """A finding id that could not be judged, and what it would need. `labels` say for which engine or GPU."""

    id: str
    missing: str
    labels: dict[str, str] = field(default_factory=dict)
