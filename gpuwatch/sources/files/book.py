"""The kept lines of one file as facts and events, with file, line and time. No I/O."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.engines.facts import FACTS
from gpuwatch.engines.log_prefixes import strip_prefix, time_of
from gpuwatch.engines.log_text import limit, redact
from gpuwatch.engines.logs import classify, facts_of, match_with, settle
from gpuwatch.model import Fact, LogEvent
from gpuwatch.sources.files.lines import parts_of
from gpuwatch.sources.logs.book import server_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.engines.log_pattern import Value
    from gpuwatch.engines.log_prefixes import Prefix
    from gpuwatch.engines.logs import Match
    from gpuwatch.sources.files.lines import Hit

_TEXT = 400
_LONG = 16_000
_LEAD = 60
_OPENING = {"started", "version", "engine", "model"}
_WITHOUT_ZONE = re.compile(r"^(?:\d{4}-)?\d\d-\d\d \d\d:[0-5]\d:[0-5]\d$")
_CLOCK = re.compile(r"^\d\d:\d\d:\d\d$")


class FileBook:
    """Reads the lines of one file. `near` is a time (milliseconds) by which times without a year are understood."""

    def __init__(self, path: str, near: int) -> None:
        self.facts: list[Fact] = []
        self.events: list[LogEvent] = []
        self.last_time = 0
        self._path = path
        self._near = near
        self._run: dict[str, Value] = {}
        self._ranks: dict[str, dict[str, Value]] = {}
        self._where: dict[str, tuple[int, int]] = {}
        self._date = ""
        self._times: dict[str, int] = {}
        self._hours: dict[str, int | None] = {}

    @property
    def engine(self) -> str:
        """The engine that the last run is of, or nothing."""
        return str(self._run.get("engine", ""))

    @property
    def version(self) -> str:
        """The version of the engine, or nothing."""
        return str(self._run.get("version", ""))

    def read(self, hits: Iterable[Hit]) -> None:
        """Read lines in the order of the file, and end the last run."""
        for hit in hits:
            for text in parts_of(hit.data):
                prefix = strip_prefix(text)
                match = match_with(hit.pattern, prefix.message) or classify(prefix.message)
                if match is not None and match.pattern.kind != "ignore":
                    time = self._time(prefix.time or hit.time)
                    self._take(match, prefix, hit, time, text)
        self._end_run()

    def tell(self, key: str, value: Value, line: int, time: int = 0) -> None:
        """Enter a fact that was read in another way than from a line of a log."""
        if self._run.get(key) == value:
            return
        self._run[key] = value
        self._where[key] = (line, time)
        shown = limit(redact(value), _LONG) if isinstance(value, str) else value
        self.facts.append(Fact(key, shown, self._path, line or None, time or None))

    def _take(self, match: Match, prefix: Prefix, hit: Hit, time: int, text: str) -> None:
        pattern, line = match.pattern, hit.number
        if pattern.starts and set(self._run) - _OPENING:
            self._end_run()
            self._run.clear()
            self._ranks.clear()
            self._where.clear()
        if pattern.starts:
            self.tell("started", pattern.name, line, time)
        for key, value in facts_of(match).items():
            self._put_ranked(key, value, "_".join(prefix.ranks), line, time)
        name = "stats" if pattern.kind == "stats" else pattern.event
        # What only a debugger is told is no failure of the engine: the answer of a tool, or the text of a request.
        if not name or (pattern.kind == "event" and prefix.level in ("DEBUG", "TRACE")):
            return
        fields = tuple((key, group if _plain(group) else limit(redact(group), _TEXT)) for key, group in match.groups)
        if pattern.kind == "stats":
            fields += (("pattern", pattern.name),)
        if prefix.proc or prefix.ranks:
            fields += (("process", prefix.proc or "_".join(prefix.ranks)),)
        if hit.above:
            fields += (("above", limit(redact(hit.above), _TEXT)),)
        if prefix.repeat:
            fields += (("repeat", str(prefix.repeat)),)
        if text.startswith('{"'):
            text = prefix.message
        # A statistics line is numbers from its beginning to its end.
        shown = text if pattern.kind == "stats" else _around(redact(text), pattern.needles)
        self.events.append(LogEvent(name, limit(shown, _TEXT), self._path, line, time, fields=fields))

    def _put_ranked(self, key: str, value: Value, rank: str, line: int, time: int) -> None:
        """Enter a fact; of one that each rank prints, the engine's value is the largest or smallest."""
        merge = FACTS[key].merge if key in FACTS else "last"
        if merge != "last" and rank and not isinstance(value, str):
            by_rank = self._ranks.setdefault(key, {})
            by_rank[rank] = value
            self.tell(f"{key}.{rank}", value, line, time)
            numbers = [number for number in by_rank.values() if not isinstance(number, str)]
            value = max(numbers) if merge == "max" else min(numbers)
        self.tell(key, value, line, time)

    def _end_run(self) -> None:
        """Correct the facts of a run that only hold together with others, and say whose they are."""
        for key, value in settle(self._run).items():
            line, time = self._where.get(key, (0, 0))
            self.tell(key, value, line, time)
        server = server_of(self._run)
        if server:
            self.facts = [fact if fact.server else replace(fact, server=server) for fact in self.facts]
            self.events = [event if event.server else replace(event, server=server) for event in self.events]

    def _time(self, text: str) -> int:
        """Return the milliseconds of a printed time, 0 where it is none; a bare time of day is of the last date."""
        if not text:
            return 0
        known = self._times.get(text)
        if known is not None:
            return known
        stamp = self._stamp(f"{self._date} {text}" if _CLOCK.match(text) and self._date else text)
        if text[4:5] == "-":
            self._date = text[:10]
        if len(self._times) > 5000:
            self._times.clear()
        self._times[text] = stamp
        self.last_time = max(self.last_time, stamp)
        return stamp

    def _stamp(self, text: str) -> int:
        """Read a time; of one whose hour was read before, minutes and seconds are added to that."""
        if not _WITHOUT_ZONE.match(text):
            return time_of(text, self._near) or 0
        hour = text[:-5] + "00:00"
        if hour not in self._hours:
            self._hours[hour] = time_of(hour, self._near)
        begun = self._hours[hour]
        seconds = int(text[-5:-3]) * 60 + int(text[-2:])
        return 0 if begun is None else begun + seconds * 1000


def _around(text: str, needles: tuple[str, ...]) -> str:
    """Return a line, without its beginning where what was recognised stands far behind it."""
    at = min((place for needle in needles if (place := text.find(needle)) >= 0), default=0)
    return text if at < _TEXT // 2 else "…" + text[at - _LEAD :]


def _plain(text: str) -> bool:
    """Whether a text is a number, of which nothing needs to be cut out."""
    return text.isdigit() or (len(text) < 12 and text.replace(".", "", 1).isdigit())
