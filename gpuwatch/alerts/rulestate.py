"""What the engine remembers of each rule between ticks, and what state the rule is in after one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import is_not
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.alerts.presence import Missing, Presence, explain_missing
from gpuwatch.alerts.rulefile import AlertRule, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.alerts.state import Alert
    from gpuwatch.model import Labels
    from gpuwatch.promql.analysis import Reads
    from gpuwatch.store import Moved

LONGEST_REST_MS = 10_000
"""The longest time between two looks at a rule that has no alert."""
LATE_MS = 15_000
"""How late a sample may be written, and how long after its first one a series has the samples that a rate needs."""

Status: TypeAlias = Literal["ok", "pending", "firing", "not_evaluable", "error"]


@dataclass(frozen=True, slots=True)
class RuleError:
    """Why a rule failed at this tick; with `expansion`, why the template of one of its labels or annotations did."""

    rule: str
    file: str
    line: int
    message: str
    expansion: bool = False

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.file}:{self.line}: rule {self.rule}: {self.message}"


@dataclass(frozen=True, slots=True)
class RuleState:
    """The state of one rule after a tick.

    `missing` lists what the rule cannot judge, and for which server; `detail` says the same, or the error, in one
    line. `failures` counts the evaluations that ended in an error since the start.
    """

    rule: Rule
    status: Status
    detail: str = ""
    missing: tuple[Missing, ...] = ()
    pending: int = 0
    firing: int = 0
    inhibited: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Rendered:
    """The annotations of one alert as they were rendered at `time` with `value`, and what failed in them."""

    time: int
    value: float
    annotations: dict[str, str]
    errors: tuple[RuleError, ...]


@dataclass(slots=True)
class Task:
    """What the engine remembers of one rule between ticks.

    While it has no alert it rests for `rest` milliseconds, and for up to `LONGEST_REST_MS` while nothing that it
    `reads` changes.
    """

    rule: Rule
    target: str
    limit: int
    rest: int = 0
    active: dict[Labels, Alert] = field(default_factory=dict)
    rendered: dict[Labels, Rendered] = field(default_factory=dict)
    error: str = ""
    failures: int = 0
    keys: tuple[Labels, ...] = ()
    source_labels: tuple[Labels, ...] = ()
    reads: Reads | None = None
    part: int | None = None
    looked: int | None = None
    state: RuleState | None = None

    def due(self, time: int, moved: Callable[[str], Moved] | None = None) -> bool:
        """Whether the rule is to be evaluated at `time` (milliseconds); `moved` tells when series last changed."""
        quiet = not (self.active or self.keys or self.error)
        if quiet and moved is not None and self.reads is not None and self._stands_still(time, self.reads, moved):
            return False
        if self.rest:
            part = time // self.rest
            if quiet and self.part == part:
                return False
            self.part = part
        self.looked = time
        return True

    def _stands_still(self, time: int, reads: Reads, moved: Callable[[str], Moved]) -> bool:
        """Whether the last answer, which was none, still holds: all that it read had been the same for long."""
        if self.looked is None or not 0 <= time - self.looked < LONGEST_REST_MS:
            return False
        settled = self.looked - LATE_MS
        for name in reads.names:
            changed, begun = moved(name)
            if (changed is not None and changed >= settled - reads.reach) or (
                begun is not None and begun >= settled - reads.begun
            ):
                return False
        return True


class RuleStates:
    """Knows the state of every rule; `presence` tells what each lacks."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._told: tuple[RuleState, ...] = ()
        self._quiet = False

    def after(self, time: int, tasks: Sequence[Task], alerts: Sequence[Alert]) -> tuple[RuleState, ...]:
        """Return the state of every rule; the same object for as long as nothing in it changes."""
        changed = self._presence.refresh(time)
        quiet = not any(task.active or task.error for task in tasks)
        if quiet and self._quiet and not changed:
            return self._told
        self._quiet = quiet
        inhibited = {alert.labels for alert in alerts if alert.inhibited_by and alert.state == "firing"}
        states = tuple([self._state(task, inhibited) for task in tasks])
        if len(states) != len(self._told) or any(map(is_not, states, self._told)):
            self._told = states
        return self._told

    def _state(self, task: Task, inhibited: set[Labels]) -> RuleState:
        rule, known = task.rule, task.state
        missing = self._presence.missing(rule) if isinstance(rule, AlertRule) else ()
        if (
            known is not None
            and not task.active
            and known.status in ("ok", "not_evaluable")
            and known.missing is missing
            and known.failures == task.failures
        ):
            return known
        states = Counter(alert.state for alert in task.active.values())
        status: Status
        if task.error:
            status = "error"
        elif states["firing"]:
            status = "firing"
        elif states["pending"]:
            status = "pending"
        else:
            status = "not_evaluable" if missing else "ok"
        state = RuleState(
            rule=rule,
            status=status,
            detail=task.error or explain_missing(missing),
            missing=missing,
            pending=states["pending"],
            firing=states["firing"],
            inhibited=len(inhibited.intersection(task.active)) if inhibited else 0,
            failures=task.failures,
        )
        if state != known:
            task.state = known = state
        return known
