"""Everything a view needs, computed once per snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.tui.view.status import Pulse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.history import History
    from gpuwatch.tui.view.engines import Engine
    from gpuwatch.tui.view.findings import FindingKey, Row
    from gpuwatch.tui.view.fleet import Machine
    from gpuwatch.tui.view.gpus import Gpu


@dataclass(frozen=True, slots=True)
class Quiet:
    """What the person has acknowledged, and silenced until a time in milliseconds since the epoch."""

    acknowledged: frozenset[FindingKey] = frozenset()
    silenced: Mapping[FindingKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Model:
    """The rows of one snapshot. `snapshot` is None until the first one has come; `machines` are those of a fleet."""

    history: History
    snapshot: Snapshot | None = None
    gpus: tuple[Gpu, ...] = ()
    engines: tuple[Engine, ...] = ()
    findings: tuple[Row, ...] = ()
    pulse: Pulse = field(default_factory=Pulse)
    machines: tuple[Machine, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the machine has neither a GPU nor an engine."""
        return not self.gpus and not self.engines
