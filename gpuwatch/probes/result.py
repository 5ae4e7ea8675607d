"""What a probe returns: figures, measured points, findings, and what they mean. No prompt, no completion."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.diagnosis.finding import Advice, Finding
    from gpuwatch.probes.client import Server

Value: TypeAlias = "float | int | str | bool | None"
Figure: TypeAlias = "tuple[str, Value, str]"
"""Name, value, unit. None: not known, which is not 0."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a probe measured.

    Attributes:
        probe: Name of the probe.
        server: Who was asked.
        started: Seconds since the epoch.
        ended: Seconds since the epoch.
        complete: Whether everything was measured that was asked for.
        stopped_because: Why not, in one line; empty where it is complete.
        facts: Single figures.
        rows: Measured points: one mapping each, all with the same keys in the same order, units in the keys.
        findings: Problems with an id of the runbook.
        conclusion: Sentences that say what the figures mean.
        advice: What to change.
        drawing: Lines of text that show the points, such as a heat map; may be empty.
    """

    probe: str
    server: Server
    started: float
    complete: bool = True
    stopped_because: str = ""
    facts: tuple[Figure, ...] = ()
    rows: tuple[Mapping[str, Value], ...] = ()
    findings: tuple[Finding, ...] = ()
    conclusion: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    drawing: tuple[str, ...] = ()
    ended: float = field(default_factory=time.time, compare=False)

    def fact(self, name: str) -> Value:
        """Return the value of a figure, or None."""
        return next((value for key, value, _ in self.facts if key == name), None)
