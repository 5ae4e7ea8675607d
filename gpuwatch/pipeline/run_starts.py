"""The starts of each engine in a recording: when each began, when it answered, and with which flags it ran.

A start shows in the launch (another process), in the log (the line that begins a run) and on the engine's page (another
process answers); what tells of the same start comes one after the other, and counts once. A log that begins while
the engine answers, beside another one, is of the same start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.context import STARTED, Facts
from gpuwatch.pipeline.run_settings import settings_of
from gpuwatch.report.data import EngineStart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.model import Batch, Fact
    from gpuwatch.report.data import Setting

_RESTARTED = "engine_restarted"


@dataclass(slots=True)
class _Start:
    """One start in the making: who told of it (the launch, a log, the page), and what it is known by there."""

    begun: int
    told: dict[str, str] = field(default_factory=dict)
    first: int | None = None
    last: int | None = None
    flags: tuple[Setting, ...] = ()


class Starts:
    """Takes in the batches of a recording, and keeps the facts of the present start of each engine."""

    def __init__(self) -> None:
        self.facts = Facts()
        self._of: dict[str, list[_Start]] = {}
        self._from: dict[tuple[str, str], str] = {}
        """Kind of the target that each fact came from, by server and key."""
        self._silent: set[str] = set()
        """Engines that do not answer now."""

    def take(self, batch: Batch, time: int) -> None:
        """Take in one batch, which came at `time` (milliseconds)."""
        kind, _, server = batch.target.partition(":")
        for address, (who, known_by) in _signs(kind, batch.facts).items():
            self._sign(address, who, known_by, time)
        if kind == "engine" and not batch.up:
            self._silent.add(server)
        elif kind == "engine" and batch.keys:
            self._silent.discard(server)
            starts = self._of.setdefault(server, [_Start(time)])
            starts[-1].first = time if starts[-1].first is None else starts[-1].first
            starts[-1].last = time
        for fact in batch.facts:
            self._from[fact.server, fact.key] = kind
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

    def unanswered(self, target: str) -> bool:
        """Return whether a target is an engine that answered before its last start, and not since."""
        kind, _, server = target.partition(":")
        starts = self._of.get(server, [])
        return kind == "engine" and len(starts) > 1 and starts[-1].first is None

    def _sign(self, server: str, who: str, known_by: str, time: int) -> None:
        kind = who.partition(" ")[0]
        starts = self._of.setdefault(server, [])
        if not starts:
            starts.append(_Start(time))
        if any(start.told.get(who) == known_by for start in starts):
            return
        told = starts[-1].told
        other_log = kind == "log" and server in self._silent and any(name.startswith("log ") for name in told)
        if who in told or other_log or (kind == "page" and len(starts) == 1):
            starts[-1].flags = self._flags(server)
            self._forget(server, ("launch", "log") if kind == "launch" else ("log",) if kind == "log" else ())
            starts.append(_Start(time))
        elif len(starts) > 1 and kind != "log":
            self._forget(server, (kind,))
        starts[-1].told[who] = known_by

    def _forget(self, server: str, kinds: tuple[str, ...]) -> None:
        """Forget what was said of an earlier start."""
        keep = (f for f in self.facts.all() if f.server != server or self._from.get((f.server, f.key)) not in kinds)
        self.facts = Facts(tuple(keep))

    def _flags(self, server: str) -> tuple[Setting, ...]:
        return tuple(item for item in settings_of(self.facts.of(server)) if item.name.startswith("--"))


def _signs(kind: str, facts: Iterable[Fact]) -> dict[str, tuple[str, str]]:
    """Return who tells in a batch of the newest start of each server, and by what it is known there."""
    found = {}
    for fact in facts:
        if kind == "launch" and fact.key.startswith("flag."):
            found[fact.server] = ("launch", fact.source)
        elif kind == "log" and fact.key == STARTED:
            found[fact.server] = (f"log {fact.source}", str(fact.line))
        elif kind == "engine" and fact.key == _RESTARTED:
            found[fact.server] = ("page", str(fact.value))
    return found
