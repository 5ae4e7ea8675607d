"""What the engine remembers of each rule between ticks, and what state the rule is in after one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import is_not
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.alerts.presence import Missing, Presence, explain_missing
from gpuwatch.alerts.rulefile import AlertRule, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.alerts.state import Alert
    from gpuwatch.model import Labels

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
    """What the engine remembers of one rule between ticks. While it has no alert it rests for `rest` milliseconds."""

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
    part: int | None = None
    state: RuleState | None = None

    def due(self, time: int) -> bool:
        """Whether the rule is to be evaluated at `time` (milliseconds)."""
        if not self.rest:
            return True
        part = time // self.rest
        if self.part == part and not (self.active or self.keys or self.error):
            return False
        self.part = part
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
