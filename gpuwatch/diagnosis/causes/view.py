"""What a cause asks of an incident: its runs, facts, events, statistics and samples, found quickly and in order."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import STARTED
from gpuwatch.diagnosis.explanation import Explanation, count, size, told
from gpuwatch.diagnosis.finding import Advice, Evidence
from gpuwatch.engines.sizes import MOST_RANKS, bytes_of
from gpuwatch.engines.version import parse_version
from gpuwatch.model import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.diagnosis.causes.course import Course
    from gpuwatch.diagnosis.causes.incident import Incident
    from gpuwatch.diagnosis.finding import Severity
    from gpuwatch.engines.version import Version
    from gpuwatch.model import Fact, LogEvent

FRAMES_BEFORE = 400
"""Lines before an error in which the frames of its traceback are looked for; several ranks print theirs interleaved."""
ABOVE = 3
"""Lines above the first line of a run that may hold its arguments."""
_ASIDE = ("traceback_step", "exception", "stats")
_TP = re.compile(r"[._]TP(\d+)")
_RANKED = re.compile(r"\.((?:DP|PP|PCP|TP|DCP|EP)\d+(?:_\w+)?)$")


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause that was found. `severity` is set where this sighting is less, or worse, than what the id stands for.

    `apart` says that its time is known, and that no engine ended then. `title` is set where that of the id says what
    this sighting does not show.
    """

    id: str
    explanation: Explanation
    since: int = 0
    severity: Severity | None = None
    labels: tuple[tuple[str, str], ...] = ()
    apart: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one server: the lines from `start` to before `end` of one file, and what they told.

    `loose` are facts that no run owns, such as flags given on the command line: they hold where the run says nothing.
    `kind` is the engine by the shape of its lines, where no line names it; `ranks_seen` are the tensor-parallel ranks
    that wrote events of it.
    """

    source: str
    start: int
    end: int
    facts: tuple[Fact, ...]
    loose: dict[str, Fact] = field(default_factory=dict)
    kind: str = ""
    ranks_seen: tuple[int, ...] = ()

    def holds(self, event: LogEvent) -> bool:
        """Whether an event belongs to this run."""
        return event.source == self.source and self.start <= event.line < self.end

    def all(self, key: str) -> tuple[Fact, ...]:
        """Return every fact of that key in the order of the lines."""
        return tuple(fact for fact in self.facts if fact.key == key)

    def fact(self, key: str, before: int | None = None) -> Fact | None:
        """Return the newest fact of that key, of the lines before `before` where that is given."""
        found = [fact for fact in self.all(key) if before is None or (fact.line or 0) < before]
        return found[-1] if found else self.loose.get(key)

    def number(self, key: str, before: int | None = None) -> float | None:
        """Return a numeric fact."""
        fact = self.fact(key, before)
        if fact is None or isinstance(fact.value, (bool, str)) or not math.isfinite(fact.value):
            return None
        return float(fact.value)

    def text(self, key: str) -> str:
        """Return a fact as text, or the empty string."""
        fact = self.fact(key)
        return "" if fact is None else str(fact.value)

    def yes(self, key: str) -> bool:
        """Whether a fact is true."""
        fact = self.fact(key)
        return fact is not None and (fact.value is True or str(fact.value).lower() == "true")

    def ranks(self, key: str) -> dict[str, Fact]:
        """Return the newest value of each rank for a key."""
        found = {}
        for fact in self.facts:
            rank = _RANKED.search(fact.key)
            if rank is not None and fact.key[: rank.start()] == key:
                found[rank[1]] = fact
        return found

    @property
    def sglang(self) -> bool:
        """Whether the engine is SGLang."""
        return (self.kind or self.text("engine")) == "sglang"

    @property
    def version(self) -> Version | None:
        """The engine's version."""
        return parse_version(self.text("version"))

    def counted(self, key: str) -> int | None:
        """Return a fact that is a number of ranks; None where it says none, or more than there can be."""
        told = self.number(key)
        return int(told) if told is not None and 0 <= told <= MOST_RANKS else None

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks, 1 where nothing says more."""
        return self.counted("tp") or 1

    @property
    def told_tp(self) -> int | None:
        """Tensor-parallel ranks that the run told, or that its lines are of; None where nothing says how many."""
        told = self.counted("tp")
        if told is not None:
            return told
        ranks = {int(found) for fact in self.facts for found in _TP.findall(fact.key)} | set(self.ranks_seen)
        return max(ranks) + 1 if ranks and max(ranks) > 0 else None


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample with its labels as a dict."""

    path: str
    name: str
    labels: dict[str, str]
    value: float
    time: int


class View:
    """An incident, indexed. Everything it returns is in the order in which it was read."""

    def __init__(self, incident: Incident) -> None:
        self.incident = incident
        self._events: dict[str, list[LogEvent]] = {}
        for event in incident.events:
            self._events.setdefault(event.event, []).append(event)
        self.runs = _runs(incident)
        self.courses: tuple[Course, ...] | None = None
        self._samples: dict[str, list[Sample]] = {}
        for path, labels, value, time in incident.samples:
            pairs = dict(labels)
            name = pairs.pop(NAME, "")
            self._samples.setdefault(name, []).append(Sample(path, name, pairs, value, time))

    def events(self, *names: str) -> tuple[LogEvent, ...]:
        """Return the events with one of these names."""
        if len(names) == 1:
            return tuple(self._events.get(names[0], ()))
        return tuple(event for event in self.incident.events if event.event in names)

    def samples(self, name: str, **labels: str) -> tuple[Sample, ...]:
        """Return the samples of ``gpuwatch_<name>`` whose labels include these."""
        return tuple(
            sample
            for sample in self._samples.get("gpuwatch_" + name, ())
            if all(sample.labels.get(key, "") == value for key, value in labels.items())
        )

    def names(self, prefix: str) -> set[str]:
        """Return the names of samples that begin with ``gpuwatch_<prefix>``."""
        return {name for name in self._samples if name.startswith("gpuwatch_" + prefix)}

    def run_of(self, event: LogEvent) -> Run:
        """Return the run that an event belongs to; the last one where its file has none."""
        for run in self.runs:
            if run.holds(event):
                return run
        return self.last

    @property
    def last(self) -> Run:
        """The last run that is known; a run without anything where none is."""
        return self.runs[-1]

    def frames(self, event: LogEvent) -> tuple[LogEvent, ...]:
        """Return the frames of the traceback that ends at `event`, or those that were noted down apart from it."""
        every = self._events.get("traceback_step", [])
        near = [
            frame
            for frame in every
            if frame.source == event.source and event.line - FRAMES_BEFORE <= frame.line <= event.line
        ]
        if near:
            return tuple(near)
        logs = {other.source for other in self.incident.events if other.event not in _ASIDE}
        logs |= {fact.source for fact in self.incident.facts}
        return tuple(frame for frame in every if frame.source not in logs)


def _runs(incident: Incident) -> tuple[Run, ...]:
    """Split each file's facts at their ``started`` facts; those of launch commands are loose and hold for all."""
    by_source: dict[str, list[Fact]] = {}
    for fact in incident.facts:
        by_source.setdefault(fact.source, []).append(fact)
    sources = list(dict.fromkeys([*by_source, *(event.source for event in incident.events)]))
    commands = {given.path for given in incident.inputs if given.kind in ("flags", "model_config")} | {"--flags"}
    others = {event.source for event in incident.events if _is_sglang(event)}
    named = {fact.source for fact in incident.facts if fact.key == "engine"}
    others |= {given.path for given in incident.inputs if given.engine == "sglang" and given.path not in named}
    engines = {given.path: given.engine for given in incident.inputs if given.kind == "engine_log"}
    ranks: dict[str, list[tuple[int, int]]] = {}
    for event in incident.events:
        found = _TP.search("_" + event.field("process"))
        if found is not None:
            ranks.setdefault(event.source, []).append((event.line, int(found[1])))
    runs = []
    for source in sources:
        if source in commands:
            continue
        facts = by_source.get(source, [])
        starts = sorted({fact.line or 0 for fact in facts if fact.key == STARTED})
        begins = _begins(facts, starts)
        bounds = starts if starts and begins else [0, *starts]
        for at, (start, end) in enumerate(zip(bounds, [*bounds[1:], 1 << 62], strict=True)):
            own = tuple(fact for fact in facts if start <= (fact.line or 0) < end)
            if at == 0 and begins:
                own = (*(fact for fact in facts if (fact.line or 0) < start), *own)
            if own or len(bounds) == 1:
                kind = "sglang" if source in others else ""
                engine = _text(own, "engine") or kind or engines.get(source, "")
                loose = _loose(incident, commands, engine)
                begin = start if len(bounds) > 1 else 0
                seen = {rank for line, rank in ranks.get(source, ()) if begin <= line < end}
                runs.append(Run(source, begin, end, own, loose, kind, tuple(sorted(seen))))
    # The run that a finding speaks of by default is one that told something about an engine.
    runs.sort(key=lambda run: any(fact.key in ("version", "model", STARTED) for fact in run.facts))
    if runs:
        return tuple(runs)
    told = [str(fact.value) for fact in incident.facts if fact.source in commands and fact.key == "engine"]
    engines_told = list(dict.fromkeys(told)) if len(set(told)) > 1 else [""]
    return tuple(Run("", 0, 1 << 62, (), _loose(incident, commands, engine)) for engine in engines_told)


def _begins(facts: list[Fact], starts: list[int]) -> bool:
    """Whether nothing but the arguments of the first run, printed right above its first line, comes before it."""
    before = [fact for fact in facts if not starts or (fact.line or 0) < starts[0]]
    return all(
        starts and starts[0] - (fact.line or 0) <= ABOVE and fact.key not in ("ready", "weights.bytes", "kv.tokens")
        for fact in before
    )


def _loose(incident: Incident, commands: set[str], engine: str) -> dict[str, Fact]:
    """Return the facts of launch commands that can be about a run of an engine: those of another engine are not."""
    facts = [fact for fact in incident.facts if fact.source in commands]
    started = [fact for fact in facts if fact.key == "engine"]
    return {fact.key: fact for fact in facts if not engine or _starts(fact, started, engine) == engine}


def _starts(fact: Fact, started: list[Fact], default: str) -> str:
    """Return the engine of the command that a fact is of: one script may start several engines, one after another."""
    own = [each for each in started if each.source == fact.source]
    above = [each for each in own if (each.line or 0) <= (fact.line or 0)]
    return str((above or own)[-1].value) if own else default


def _text(facts: Iterable[Fact], key: str) -> str:
    return next((str(fact.value) for fact in facts if fact.key == key), "")


def _is_sglang(event: LogEvent) -> bool:
    return event.event.startswith(("sglang_", "retraction")) or event.field("pattern").startswith("sgl_")


def ruled_out(text: str, event: LogEvent | None = None, value: float | str | None = None, unit: str = "") -> Evidence:
    """Return what was looked at and ruled out, with the line and the number that rule it out."""
    return Evidence(
        "Ruled out: " + text,
        event.source if event is not None else "",
        event.line if event is not None else None,
        event.event if event is not None else "",
        value,
        unit,
    )


def from_fact(run: Run, key: str, text: str, unit: str = "", before: int | None = None) -> list[Evidence]:
    """Return a fact as evidence, or nothing where it is not known. `text` may hold ``{}`` for its value."""
    fact = run.fact(key, before)
    if fact is None:
        return []
    value = fact.value
    shown: object = value
    if unit and not isinstance(value, (str, bool)):
        shown = size(value) if unit == "bytes" else count(value)
    return [told(fact, text.format(shown), unit)]


def sampled(sample: Sample, text: str, unit: str = "") -> Evidence:
    """Return a sample as evidence."""
    return Evidence(text, sample.path, None, sample.name, sample.value, unit)


def advise(text: str, flag: str = "", current: object = None, proposed: object = None) -> Advice:
    """Return one change; numbers are written as the user would type them."""
    return Advice(text, flag, _typed(current), _typed(proposed))


def _typed(value: object) -> str | None:
    if value is None or value == "":
        return None
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)


def group(event: LogEvent, *names: str) -> str:
    """Return the first group of that name that took part."""
    return next((event.field(name) for name in names if event.field(name)), "")


def number(event: LogEvent, *names: str) -> float | None:
    """Return the first group of that name that is a number."""
    text = group(event, *names).rstrip(".,")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def sizes(event: LogEvent, *names: str) -> int | None:
    """Return the first group of that name as bytes."""
    return bytes_of(group(event, *names))


_AMOUNT = re.compile(r"^\s*(\d+(?:[.,]\d+)?) ?([kKMGTgmt]?)i?B?\s*$")
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def amount(text: str, plain: int = 1) -> float | None:
    """Return the bytes in a size as host tools print it: ``56Gi``, ``59063644 kB``, ``64M``; binary units throughout.

    A number without a unit counts `plain` bytes each.
    """
    found = _AMOUNT.match(text)
    if found is None:
        return None
    return float(found[1].replace(",", ".")) * _UNITS.get(found[2].lower(), plain)


def first(events: Iterable[LogEvent]) -> LogEvent | None:
    """Return the first event, or None."""
    return next(iter(events), None)
