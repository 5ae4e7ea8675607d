"""What a diagnosis may look at: the series at one moment, the facts about servers, and the events of the logs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuwatch.engines.version import parse_version
from gpuwatch.promql.values import PromQLError
from gpuwatch.sources.nvml.xids import pci_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.engines.version import Version
    from gpuwatch.model import Fact, Labels, LogEvent
    from gpuwatch.promql.values import Querier

ENGINE_SCOPE = ("host", "server", "model_name", "dp_rank")
SERVER_SCOPE = ("host", "server")
GPU_SCOPE = ("host", "uuid")
LOG_SCOPE = ("host", "log", "server")
HOST_SCOPE = ("host",)

STARTED = "started"
"""The fact that a server's log began a new run: what its earlier lines said no longer holds."""


class Facts:
    """The newest fact for each server and key. Only the owner of the pipeline updates it."""

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self._facts: dict[tuple[str, str], Fact] = {}
        self.update(facts)

    def update(self, facts: Iterable[Fact]) -> None:
        """Take in facts in the order in which they were read."""
        for fact in facts:
            if fact.key == STARTED and self._facts.get((fact.server, STARTED)) != fact:
                self._begin_run(fact)
            self._facts[fact.server, fact.key] = fact

    def _begin_run(self, started: Fact) -> None:
        line = started.line or 0
        gone = [
            key
            for key, fact in self._facts.items()
            if key[0] == started.server and fact.source == started.source and (fact.line or 0) < line
        ]
        for key in gone:
            del self._facts[key]

    def get(self, server: str, key: str) -> Fact | None:
        """Return the fact `key` of `server`.

        A log whose server is not known speaks for the only engine there is, and for none where there are several.
        """
        fact = self._facts.get((server, key))
        if fact is None and len({known for known, _ in self._facts if known} | {server}) == 1:
            fact = self._facts.get(("", key))
        return fact

    def of(self, server: str) -> dict[str, Fact]:
        """Return everything that is known of `server`, by key."""
        found = {key: self.get(server, key) for key in sorted({key for _, key in self._facts})}
        return {key: fact for key, fact in found.items() if fact is not None}

    def flags(self, server: str) -> dict[str, str | float | int | bool]:
        """Return the launch flags of `server` by name, without dashes."""
        names = {key.removeprefix("flag.") for _, key in self._facts if key.startswith("flag.")}
        found = {name: self.get(server, "flag." + name) for name in sorted(names)}
        return {name: fact.value for name, fact in found.items() if fact is not None}

    def all(self) -> tuple[Fact, ...]:
        """Return every fact, by server and key."""
        return tuple(self._facts[key] for key in sorted(self._facts))


@dataclass(frozen=True, slots=True)
class Context:
    """One moment: who answers PromQL, `time` in milliseconds since the epoch, facts and recent log events.

    `causes` are the newest failures that logs tell of, by log and finding id.
    """

    querier: Querier
    time: int
    facts: Facts = field(default_factory=Facts)
    events: tuple[LogEvent, ...] = ()
    causes: Mapping[tuple[str, str], Finding] = field(default_factory=dict)

    def at(self, time: int) -> Context:
        """Return the same context at another time, without the events that came later."""
        return replace(self, time=time, events=tuple(event for event in self.events if event.time <= time))

    def samples(self, expr: str) -> tuple[tuple[Labels, float], ...]:
        """Return what `expr` gives now, without NaN; nothing when it fails."""
        try:
            vector = self.querier.instant(expr, self.time)
        except PromQLError:
            return ()
        return tuple((labels, value) for labels, value in vector.items() if not math.isnan(value))

    def servers(self) -> set[str]:
        """Return every engine that is known: polled now, or told of by a log or a command."""
        polled = {dict(labels).get("server", "") for labels, _ in self.samples('gpuwatch_source_up{source="engine"}')}
        told = {fact.server for fact in self.facts.all()} | {event.server for event in self.events}
        return (polled | told) - {""}

    def about(
        self, labels: Mapping[str, str], alert: str = "", value: float = math.nan, since: int | None = None
    ) -> Subject:
        """Return the view of this moment on what `alert` with `labels` and `value`, active `since` then, is about."""
        return Subject(self, dict(labels), alert, value, since)


def selector(name: str, matchers: Mapping[str, str]) -> str:
    """Return the PromQL selector of `name` with exactly these label values; an empty one means: without the label."""
    parts = [f'{key}="{_escaped(value)}"' for key, value in matchers.items()]
    return f"{name}{{{','.join(parts)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass(frozen=True, slots=True)
class Subject:
    """One engine, rank, GPU or source at one moment. Everything it returns is None where it is not known.

    `since` is when the condition of the alert began to hold, in milliseconds.
    """

    context: Context
    labels: dict[str, str]
    alert: str = ""
    value: float = math.nan
    since: int | None = None

    @property
    def server(self) -> str:
        """The ``host:port`` of the engine, or the empty string."""
        return self.labels.get("server", "")

    @property
    def sglang(self) -> bool:
        """Whether the engine is SGLang, by the label `engine_kind`, else by what was told about the server."""
        kind = self.labels.get("engine_kind", "")
        told = self.fact("engine") if not kind and self.server else None
        return (str(told.value) if told is not None else kind) == "sglang"

    @property
    def version_text(self) -> str:
        """The engine's version as its page names it, else a log or a package; the empty string where nobody does."""
        for labels, _ in self.context.samples(self.select("engine_info", SERVER_SCOPE)):
            if dict(labels).get("version"):
                return dict(labels)["version"]
        fact = self.fact("version")
        return str(fact.value) if fact is not None else ""

    @property
    def version(self) -> Version | None:
        """The engine's version, to compare; None where it is not known."""
        return parse_version(self.version_text)

    def select(self, name: str, scope: tuple[str, ...] = ENGINE_SCOPE, **extra: str) -> str:
        """Return the selector of ``gpuwatch_<name>`` for this subject; `scope` are the labels that identify it."""
        return selector("gpuwatch_" + name, {**{key: self.labels.get(key, "") for key in scope}, **extra})

    def ask(self, expr: str) -> float | None:
        """Return the value of an expression that should give one series; None for none or for several that differ."""
        values = {value for _, value in self.context.samples(expr)}
        return values.pop() if len(values) == 1 else None

    def now(self, name: str, scope: tuple[str, ...] = ENGINE_SCOPE, **extra: str) -> float | None:
        """Return the newest value of one series."""
        return self.ask(self.select(name, scope, **extra))

    def over(
        self, function: str, name: str, window: str, scope: tuple[str, ...] = ENGINE_SCOPE, **extra: str
    ) -> float | None:
        """Return a range function such as ``increase`` or ``max_over_time`` of one series."""
        return self.ask(f"{function}({self.select(name, scope, **extra)}[{window}])")

    def total(self, function: str, name: str, window: str, scope: tuple[str, ...] = ENGINE_SCOPE) -> float | None:
        """Return the sum of a range function over the series of a counter that differ in a label such as `reason`."""
        values = [value for _, value in self.context.samples(f"{function}({self.select(name, scope)}[{window}])")]
        return sum(values) if values else None

    def mean(self, histogram: str, window: str) -> float | None:
        """Return the mean observation of a histogram within `window`, or None when nothing was observed."""
        count = self.over("increase", histogram + "_count", window)
        total = self.over("increase", histogram + "_sum", window)
        return total / count if total is not None and count else None

    @property
    def alone(self) -> bool:
        """Whether no other engine is known, so that a log that names no server can only be about this one."""
        return not self.server or self.context.servers() <= {self.server}

    def fact(self, key: str) -> Fact | None:
        """Return a fact about the engine, from a log or a launch command."""
        found = self.context.facts.get(self.server, key)
        return found if found is None or found.server or self.alone else None

    def flags(self) -> dict[str, str | float | int | bool]:
        """Return the launch flags of the engine by name, without dashes."""
        names = self.context.facts.flags(self.server)
        found = {name: self.fact("flag." + name) for name in names}
        return {name: fact.value for name, fact in found.items() if fact is not None}

    def number(self, key: str) -> float | None:
        """Return a numeric fact."""
        fact = self.fact(key)
        if fact is None or isinstance(fact.value, (bool, str)):
            return None
        return float(fact.value)

    def config(self, name: str, fact: str) -> float | None:
        """Return a setting of the engine: the series ``gpuwatch_engine_config_<name>``, else the fact."""
        value = self.now("engine_config_" + name, SERVER_SCOPE)
        return value if value is not None else self.number(fact)

    def events(self, *names: str, seconds: float = 300.0) -> tuple[LogEvent, ...]:
        """Return the log events with one of `names` of the last `seconds` about this engine, oldest first.

        A line that names no server is about the only engine there is; where there are several, about those on whose
        GPU it is.
        """
        since = self.context.time - seconds * 1000
        log = self.labels.get("log", "")
        found = [
            event
            for event in self.context.events
            if event.event in names
            and since <= event.time <= self.context.time
            and (not self.server or event.server in ("", self.server))
            and (not log or log in event.source or event.source in log)
        ]
        if self.server and any(not event.server for event in found) and not self.alone:
            own = self._addresses()
            found = [event for event in found if event.server or pci_address(event.field("pci")) in own]
        return tuple(found)

    def _addresses(self) -> set[str]:
        """Return the PCI addresses of the GPUs that the engine has used lately."""
        placed = f"max_over_time({self.select('gpu_engine', SERVER_SCOPE)}[10m])"
        cards = self.context.samples(f"gpuwatch_gpu_info and on (host, uuid) {placed}")
        return {pci_address(dict(labels).get("pci_bus_id", "")) for labels, _ in cards} - {""}
