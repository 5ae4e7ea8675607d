"""The starts of each engine in a recording: when each began, when it answered, and with which flags it ran.

A start shows in the launch (another process), in the log (the line that begins a run) and on the engine's page (another
process answers); what tells of the same start comes one after the other, and counts once. A log that begins while
the engine answers, beside another one, is of the same start.

Neither the line of a log nor the words of a page tell one start from the next: a log that is emptied begins at the same
line again, one that a command prints has no line numbers, and a counter can fall from the same value twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import STARTED, Facts
from gpuwatch.pipeline.run_settings import settings_of
from gpuwatch.report.data import EngineStart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.model import Batch, Fact
    from gpuwatch.report.data import Setting, Window

_RESTARTED = "engine_restarted"
_OPENING = (STARTED, "version", "engine", "model")
"""What a log says in its first lines, of which a start can have more than one."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """What tells of a start: the launch, a log or the page, and by which process it is known (the launch only).

    `written` (milliseconds) is when a line of a log was written that was there before the log was read.
    """

    who: str
    process: str = ""
    written: int | None = None

    @property
    def kind(self) -> str:
        return self.who.partition(" ")[0]


@dataclass(slots=True)
class _Start:
    """One start in the making: who told of it (the launch, a log, the page), and what it is known by there."""

    begun: int
    told: dict[str, str] = field(default_factory=dict)
    first: int | None = None
    last: int | None = None
    flags: tuple[Setting, ...] = ()

    @property
    def logged(self) -> bool:
        """Whether a log told of it."""
        return any(who.startswith("log ") for who in self.told)


class Starts:
    """Takes in the batches of a recording, and keeps the facts of the present start of each engine."""

    def __init__(self) -> None:
        self.facts = Facts()
        self._of: dict[str, list[_Start]] = {}
        self._from: dict[tuple[str, str], str] = {}
        """Kind of the target that each fact came from, by server and key."""
        self._silent: set[str] = set()
        """Engines that do not answer now."""
        self._spoken: set[tuple[str, str]] = set()
        """Logs, by server and name, that have said more than their first lines since their last start."""

    def take(self, batch: Batch, time: int) -> None:
        """Take in one batch, which came at `time` (milliseconds)."""
        kind, _, server = batch.target.partition(":")
        for address, sign in self._signs(kind, batch, time).items():
            self._sign(address, sign, time)
        if kind == "engine" and not batch.up:
            self._silent.add(server)
        elif kind == "engine" and batch.keys:
            self._silent.discard(server)
            starts = self._of.setdefault(server, [_Start(time)])
            starts[-1].first = time if starts[-1].first is None else starts[-1].first
            starts[-1].last = time
        for fact in batch.facts:
            if self.facts.get(fact.server, fact.key) != fact:  # a part of a recording repeats what is known
                self._from[fact.server, fact.key] = kind
            if batch.target == f"log:{fact.source}" and fact.key not in _OPENING:
                self._spoken.add((fact.server, f"log {fact.source}"))
        self.facts.update(batch.facts)

    def of(self, server: str) -> tuple[EngineStart, ...]:
        """Return the starts of an engine; empty where there was one only, or none is known."""
        starts = self._of.get(server, [])
        if len(starts) < 2:
            return ()
        starts[-1].flags = self._flags(server)
        return tuple(
            EngineStart(start.begun, None if start.first is None else (start.first, start.last or 0), start.flags)
            for start in starts
        )

    def own(self, server: str, windows: Sequence[Window]) -> tuple[tuple[EngineStart, ...], bool]:
        """Return the starts that answered in `windows`, and whether the last start of all is among them."""
        starts = self.of(server)
        found = tuple(
            start
            for start in starts
            if start.served is not None
            and any(window.start <= start.served[1] and start.served[0] <= window.end for window in windows)
        )
        return found, not starts or found[-1:] == starts[-1:]

    def unanswered(self, target: str) -> bool:
        """Return whether a target is an engine that answered before its last start, and not since."""
        kind, _, server = target.partition(":")
        starts = self._of.get(server, [])
        return kind == "engine" and len(starts) > 1 and starts[-1].first is None

    def _sign(self, server: str, sign: _Sign, time: int) -> None:
        starts = self._of.setdefault(server, [])
        if not starts:
            starts.append(_Start(time))
        kind = sign.kind
        if kind == "launch" and any(start.told.get(sign.who) == sign.process for start in starts):
            return
        if self._begins(server, sign, starts):
            starts[-1].flags = self._flags(server)
            self._forget(server, ("launch", "log") if kind == "launch" else ("log",) if kind == "log" else ())
            starts.append(_Start(time))
        elif (server, sign.who) in self._spoken or (len(starts) > 1 and not (kind == "log" and starts[-1].logged)):
            self._forget(server, (kind,))
        starts[-1].told[sign.who] = sign.process
        self._spoken.discard((server, sign.who))

    def _begins(self, server: str, sign: _Sign, starts: list[_Start]) -> bool:
        """Return whether a sign is of another start than the present one."""
        start, kind = starts[-1], sign.kind
        if kind == "page":
            return sign.who in start.told or (len(starts) == 1 and start.first is not None)
        if sign.written is not None and sign.written <= start.begun:
            return False
        if sign.who in start.told:
            return kind == "launch" or start.first is not None or (server, sign.who) in self._spoken
        return server in self._silent and (start.first is not None or (kind == "log" and start.logged))

    def _forget(self, server: str, kinds: tuple[str, ...]) -> None:
        """Forget what was said of an earlier start."""
        keep = (f for f in self.facts.all() if f.server != server or self._from.get((f.server, f.key)) not in kinds)
        self.facts = Facts(tuple(keep))

    def _flags(self, server: str) -> tuple[Setting, ...]:
        return tuple(item for item in settings_of(self.facts.of(server)) if item.name.startswith("--"))

    def _signs(self, kind: str, batch: Batch, time: int) -> dict[str, _Sign]:
        """Return what tells in a batch of the newest start of each server.

        The first batch of a recording, and of each part of it, repeats what is known: of a page that restarted, with
        the time of then; of a log, beside facts of other sources.
        """
        found = {}
        repeats = kind == "log" and any(batch.target != f"log:{fact.source}" for fact in batch.facts)
        for fact in batch.facts:
            if kind == "launch" and fact.key.startswith("flag."):
                found[fact.server] = _Sign("launch", fact.source)
            elif kind == "log" and fact.key == STARTED and not (repeats and self._known(fact, batch)):
                written = None if fact.time is None else fact.time + time - batch.time
                found[fact.server] = _Sign(f"log {fact.source}", written=written)
            elif kind == "engine" and fact.key == _RESTARTED and fact.time in (None, batch.time):
                found[fact.server] = _Sign("page")
        return found

    def _known(self, fact: Fact, batch: Batch) -> bool:
        return batch.target != f"log:{fact.source}" or self.facts.get(fact.server, fact.key) == fact
