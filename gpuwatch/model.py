"""The data that flows through gpuwatch: labelled samples, facts, log events, and absence with a reason.

Standard library only: the NVML worker process imports this module and nothing else of the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""A series: sorted (name, value) pairs including ``__name__``; pairs with an empty value are left out."""

NAME = "__name__"


def series(name: str, /, **labels: str) -> Labels:
    """Return the labels of the series `name` with `labels`; empty label values are dropped, as Prometheus does."""
    return tuple(sorted([(NAME, name), *((k, v) for k, v in labels.items() if v != "")]))


def name_of(labels: Labels) -> str:
    """Return the metric name in `labels`, or the empty string."""
    for key, value in labels:
        if key == NAME:
            return value
    return ""


def label(labels: Labels, key: str) -> str:
    """Return the value of one label, or the empty string (Prometheus' meaning of a missing label)."""
    for name, value in labels:
        if name == key:
            return value
    return ""


class Reason(str, Enum):
    """Why a value is absent. Absent is never 0, NaN or -1."""

    NEVER_SEEN = "never_seen"
    NOT_SUPPORTED = "not_supported"
    NO_PERMISSION = "no_permission"
    LOST = "lost"
    HUNG = "hung"
    RESETTING = "resetting"
    NO_DRIVER = "no_driver"
    DRIVER_MISMATCH = "driver_mismatch"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    NOT_METRICS = "not_metrics"
    TOO_LARGE = "too_large"
    NOT_FOUND = "not_found"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Absence:
    """One series (or, with only a name, one family) that a source could not read, and why."""

    labels: Labels
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing learnt about a server or machine, with where it was read.

    `source` is a path, URL or command; `line` is 1-based; `time` is in milliseconds since the epoch.
    `server` is the engine's ``host:port`` or empty.
    """

    key: str
    value: str | float | int | bool
    source: str
    line: int | None = None
    time: int | None = None
    server: str = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log as data for the screen; `event` is set when the line was recognised.

    Control characters are already removed from `text`, and request bodies are cut out.
    """

    source: str
    line: int
    time: int
    level: str
    text: str
    event: str = ""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A recognised log line that matters: `event` is a name of `engines.events`, `fields` its parsed groups."""

    event: str
    text: str
    source: str
    line: int
    time: int
    server: str = ""
    fields: tuple[tuple[str, str], ...] = ()

    def field(self, name: str) -> str:
        """Return one parsed group, or the empty string."""
        return dict(self.fields).get(name, "")


def line_of(event: LogEvent) -> LogLine:
    """Return the line of an event, for the screen; how grave it was called is not known any more."""
    return LogLine(event.source, event.line, event.time, "", event.text, event.event)


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything one target said in one poll.

    `keys` and `values` have the same length; a source passes the *same* `keys` object while its set of series
    is unchanged, which lets the store append without any look-up. A batch is complete: a series that was in the
    target's previous batch and is not in this one has vanished. With ``up=False`` the poll failed: `reason` and
    `detail` say why, and all series of the target end at `time` (milliseconds since the epoch). `dropped` counts the
    series or lines that were left out because of a limit since the target's previous batch.
    """

    target: str
    time: int
    keys: tuple[Labels, ...] = ()
    values: Sequence[float] = ()
    up: bool = True
    reason: Reason | None = None
    detail: str = ""
    duration: float = 0.0
    absent: tuple[Absence, ...] = ()
    facts: tuple[Fact, ...] = ()
    events: tuple[LogEvent, ...] = ()
    lines: tuple[LogLine, ...] = ()
    dropped: int = 0


class SourceError(Exception):
    """A source cannot deliver: `reason` for programs, the message for people."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
