"""The frozen view that the screen, the exporter and the reports look at. Plain Python values, no numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.model import Labels, label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.diagnosis.finding import Finding, NotEnough
    from gpuwatch.model import Absence, Fact, LogLine

LOST_SECONDS = 120.0
"""A machine whose last values are this old is called lost, though nobody says that its series ended: two minutes, four
scrapes of 30 s or eight of 15 s."""

PARTIAL = "partial"
"""The `SourceState.reason` of a Prometheus that answers with a part only: some of what it stores is out of reach."""

Mode: TypeAlias = Literal["live", "demo", "replay", "attached", "prometheus"]
PLAYED = ("demo", "replay")
"""Modes that play a recording."""
RuleStatus: TypeAlias = Literal["ok", "pending", "firing", "not_evaluable", "error"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one catalogue query gave: its samples, or why it failed. No samples and no error means: no such data."""

    samples: tuple[tuple[Labels, float], ...] = ()
    error: str = ""

    def get(self, **want: str) -> float | None:
        """Return the value of the first series whose labels include `want`, or None."""
        for labels, value in self.samples:
            if all(label(labels, key) == wanted for key, wanted in want.items()):
                return value
        return None


@dataclass(frozen=True, slots=True)
class SourceState:
    """The health of one source. `age` is the time in seconds since it last delivered; None: never.

    `kind` is nvml, engine, log, host, kernel or prometheus; `reason` is a `model.Reason` value, `PARTIAL` or empty.
    `engine_kind` and `engine_version` are what an engine said of itself.
    """

    kind: str
    target: str
    up: bool
    reason: str = ""
    detail: str = ""
    age: float | None = None
    server: str = ""
    engine_kind: str = ""
    engine_version: str = ""

    @property
    def name(self) -> str:
        """The kind and what is read, without saying the same twice."""
        return self.kind if self.target in ("", self.kind) else f"{self.kind} {self.target}"


@dataclass(frozen=True, slots=True)
class RuleView:
    """The state of one alerting rule. `detail` says what it lacks or why it failed.

    `readings` are (comparison text, value now, threshold) of the rule's comparisons, where they have a value.
    """

    name: str
    id: str
    severity: str
    status: RuleStatus
    expr: str
    file: str
    detail: str = ""
    readings: tuple[tuple[str, float, float], ...] = ()
    firing: int = 0
    inhibited: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording in progress or being replayed. `position` and `length` are in seconds, for replays.

    `speed` says how many times faster than it was recorded a recording is played.
    `error` says why a recording stopped by itself, or why a replay came to its end early; `ended`: nothing follows.
    """

    path: str
    bytes: int = 0
    error: str = ""
    position: float = 0.0
    length: float = 0.0
    ended: bool = False
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything there is to see at one moment. `time` and `started` are milliseconds since the epoch.

    In mode prometheus `host` is the Prometheus, and the answers about GPUs and engines are those of the machine in
    `focus`: (cluster, host), None while only the fleet as a whole is looked at; the cluster is the value of the label
    `cluster_label`.

    `looked_for` explains an empty machine: (what was looked for, what was found or why not). `problems` are rule files
    that were refused and rules that fail, a line each.
    """

    time: int
    started: int
    host: str
    mode: Mode
    interval: float
    answers: Mapping[str, Answer] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    not_enough: tuple[NotEnough, ...] = ()
    rules: tuple[RuleView, ...] = ()
    sources: tuple[SourceState, ...] = ()
    absent: tuple[Absence, ...] = ()
    lines: tuple[LogLine, ...] = ()
    facts: tuple[Fact, ...] = ()
    recording: Recording | None = None
    looked_for: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    focus: tuple[str, str] | None = None
    cluster_label: str = "cluster"

    def answer(self, query: str) -> Answer:
        """Return the answer of a catalogue query; an empty one when it was not asked."""
        return self.answers.get(query, Answer())


def in_part(snapshot: Snapshot) -> str:
    """Return why the answers of a Prometheus are not complete; empty where they are."""
    return next((source.detail for source in snapshot.sources if source.up and source.reason == PARTIAL), "")


def shared_names(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """Return the machines of a fleet, (cluster, host), whose name several programs use, with the number of these.

    Their figures are added up, as if they were of one machine: two machines may have one name, or one is scraped twice.
    """
    counts = ((_machine(labels, snapshot), value) for labels, value in snapshot.answer("host_instances").samples)
    return {machine: round(value) for machine, value in counts if value >= 2}


def shared_name_text(number: int) -> str:
    """Return what is wrong with a machine whose name `number` programs use, and what to do."""
    return (
        f"{number} programs have this name and are added up: name the label that differs as cluster_label in "
        "[prometheus], or scrape each machine once"
    )


def lost_machines(snapshot: Snapshot) -> dict[tuple[str, str], float]:
    """Return the machines of a fleet, (cluster, host), that are lost, with the seconds since the last scrape of each.

    Where a scrape fails, Prometheus ends the series of its target, so that a machine which it has seen and has no
    series of any more is lost at once. Where nobody writes that end, as behind a Prometheus that itself went away, the
    last values live on, and their age tells. What a lost machine last said is no word on how it is now. In an answer
    in part a series that is absent may exist, so that only the age tells.
    """
    scraped = snapshot.answers.get("host_scraped")
    ended = scraped is not None and not scraped.error and not in_part(snapshot)
    alive = {_machine(labels, snapshot) for labels, _ in scraped.samples} if scraped is not None else set()
    silent = (
        (_machine(labels, snapshot), snapshot.time / 1000 - last)
        for labels, last in snapshot.answer("host_last_seen").samples
    )
    return {
        machine: seconds for machine, seconds in silent if seconds >= LOST_SECONDS or (ended and machine not in alive)
    }


def _machine(labels: Labels, snapshot: Snapshot) -> tuple[str, str]:
    return label(labels, snapshot.cluster_label), label(labels, "host")
