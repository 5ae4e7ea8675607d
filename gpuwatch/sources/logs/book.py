"""What one log has said so far: counters of events, facts of the present run, the lines to show. No I/O."""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpuwatch.engines.facts import FACTS
from gpuwatch.engines.log_prefixes import Prefix, strip_prefix, time_of
from gpuwatch.engines.log_text import clean, leaves_open, limit, redact
from gpuwatch.engines.logs import Match, classify, facts_of, settle
from gpuwatch.engines.sizes import bytes_of
from gpuwatch.engines.stack_log import RAISED
from gpuwatch.model import Fact, LogEvent, LogLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.engines.log_pattern import Value
    from gpuwatch.sources.logs.lines import LogLimits, RawLine

_MAX_EVENTS = 200
_FIELD = 300
# Lines of one second belong together: a time is compared with this much slack, in milliseconds.
_SLACK = 1000
# A time further ahead than this is of another time zone, and says nothing.
_AHEAD = 5000
# Lines without a head of their own that may belong to the body of a request before them.
_MOST_BODY_LINES = 500
_LOCAL = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::", "")  # noqa: S104  # read from logs, not bound to
# A run that has said no more than this has only just begun; a second first line does not begin another one.
_OPENING = {"started", "version", "engine", "model"}
# Answers to the pollers of this machine, ourselves among them: a line each second that says nothing.
_PROBES = re.compile(
    r'"(?:GET|HEAD) /(?:metrics/?|health|ping|version|v1/models|server_info|get_server_info|get_model_info)'
    r'(?:\?\S*)? HTTP/1\.\d" 200'
)


@dataclass(slots=True)
class Taken:
    """What one poll adds: `lines` at most `LogLimits.shown` of them, the newest."""

    facts: list[Fact] = field(default_factory=list)
    events: list[LogEvent] = field(default_factory=list)
    lines: deque[LogLine] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A recognised line."""

    match: Match
    prefix: Prefix
    raw: RawLine
    text: str
    time: int


class LogBook:
    """Reads lines into counters, facts, events and lines to show.

    Lines from before `since` (milliseconds since the epoch) give facts, but their events are not counted: they become
    facts ``past.EVENT``. `server` is the engine's ``host:port`` where it is known; otherwise the log's own words say.
    """

    def __init__(self, name: str, limits: LogLimits, since: int, server: str) -> None:
        self._name = name
        self._limits = limits
        self._since = since
        self._given = server
        self.server = server
        self.counts: Counter[str] = Counter()
        self.lines = 0
        self.unreadable = 0
        self.oom: dict[str, int] = {}
        self.facts: dict[str, Value] = {}
        self._run: dict[str, Value] = {}
        self._ranks: dict[str, dict[str, Value]] = {}
        self._where: dict[str, tuple[int | None, int | None]] = {}
        self._sent: dict[str, Value] = {}
        self._stamp: int | None = None
        self._stamp_text = ""
        self._zoned = False
        self._zoned_past = False
        self._before = ""
        self._body_lines = 0

    def take(self, raw_lines: Sequence[RawLine], now: int, known: Sequence[str] = ()) -> Taken:
        """Read lines that arrived at `now` (milliseconds); `known` are the names of the engines that are watched."""
        taken = Taken(lines=deque(maxlen=self._limits.shown))
        for raw in raw_lines:
            text = raw.data.decode("utf-8", "replace")
            damaged = raw.cut or ("\ufffd" in text and b"\xef\xbf\xbd" not in raw.data)
            parts = [text] if "\r" not in text else [part for part in text.split("\r") if part.strip()] or [""]
            for part in parts:
                self._line(part, raw, now, taken, damaged=damaged)
                damaged = False
        self._settle(known)
        self._report(taken)
        # The log may say whose it is behind the line that something went wrong.
        taken.events = [replace(event, server=self.server) for event in taken.events]
        # Cutting out is the dearest step, and most lines of a flood are not kept.
        taken.lines = deque(replace(line, text=self._fit(line.text)) for line in taken.lines)
        return taken

    def _line(self, text: str, raw: RawLine, now: int, taken: Taken, *, damaged: bool) -> None:
        text = clean(text)
        prefix = strip_prefix(text)
        past = self._is_past(raw, prefix, now)
        if not past:
            self.lines += 1
            self.unreadable += damaged
        if self._is_body(text, prefix):
            return
        match = classify(prefix.message)
        time = (self._stamp if past and self._stamp is not None else now) if past else now
        event = ""
        if match is not None:
            event = self._match(_Seen(match, prefix, raw, text, time), taken, past=past)
        if not event and _PROBES.search(text) is not None:
            return
        taken.lines.append(LogLine(self._name, raw.number, time, prefix.level, text, event))

    def _is_body(self, text: str, prefix: Prefix) -> bool:
        """Whether a line goes on with the body of a request that an earlier line began.

        Such a line has neither level nor engine time; what collects logs may have put its own time before it.
        """
        if _has_head(prefix) or prefix.message.startswith("Traceback (most recent call last)"):
            self._before, self._body_lines = text, 0
            return False
        if self._body_lines or (self._before and leaves_open(self._before)):
            self._body_lines += 1
            if self._body_lines <= _MOST_BODY_LINES:
                return True
        self._before, self._body_lines = text, 0
        return False

    def _fit(self, text: str) -> str:
        """Return a line as it may leave the source."""
        return limit(redact(limit(text, 4 * self._limits.text)), self._limits.text)

    def _match(self, seen: _Seen, taken: Taken, *, past: bool) -> str:
        """Enter a recognised line; return the name of its event, if it has one."""
        match, prefix, raw, time = seen.match, seen.prefix, seen.raw, seen.time
        pattern = match.pattern
        if pattern.starts and set(self._run) - _OPENING:
            self._begin()
        if pattern.starts:
            self._put("started", pattern.name, raw, time if past else None)
        for key, value in facts_of(match).items():
            self._put_ranked(key, value, "_".join(prefix.ranks), raw, time)
        if not pattern.event:
            return ""
        if pattern.kind == "note":
            # The text of an exception may hold a prompt, and events are recorded.
            if not past and pattern.event != RAISED and len(taken.events) < _MAX_EVENTS:
                taken.events.append(self._event(seen))
            return ""
        shown = limit(redact(seen.text), _FIELD)
        if past:
            self._put(f"past.{pattern.event}", shown, raw, time)
            return pattern.event
        self.counts[pattern.event] += 1 + prefix.repeat
        if pattern.event == "torch_oom":
            self.oom = oom_sizes(match) or self.oom
        if len(taken.events) < _MAX_EVENTS:
            taken.events.append(self._event(seen))
        return pattern.event

    def _event(self, seen: _Seen) -> LogEvent:
        fields = tuple((name, limit(redact(group), _FIELD)) for name, group in seen.match.groups)
        shown = limit(redact(seen.text), _FIELD)
        return LogEvent(seen.match.pattern.event, shown, self._name, seen.raw.number, seen.time, self.server, fields)

    def _is_past(self, raw: RawLine, prefix: Prefix, now: int) -> bool:
        """Whether a line was written before we came. A line without a time belongs to the one before it."""
        if prefix.absolute or raw.past:
            if prefix.time and prefix.time != self._stamp_text:
                self._stamp_text = prefix.time
                stamp = time_of(prefix.time, now)
                self._stamp = None if stamp is None or stamp > now + _AHEAD else stamp
            if prefix.absolute:
                self._zoned = True
                self._zoned_past = self._stamp is not None and self._stamp < self._since - _SLACK
        if self._zoned and not raw.past:
            return self._zoned_past
        return raw.past and (self._stamp is None or self._stamp < self._since - _SLACK)

    def _begin(self) -> None:
        """Forget an earlier run of the server."""
        self._run.clear()
        self._ranks.clear()
        self._where.clear()
        self._sent.clear()

    def _put(self, key: str, value: Value, raw: RawLine, time: int | None) -> None:
        self._run[key] = value
        self._where[key] = (raw.number or None, time)

    def _put_ranked(self, key: str, value: Value, rank: str, raw: RawLine, time: int) -> None:
        """Enter a fact; of one that each rank prints, the engine's value is the largest or smallest."""
        merge = FACTS[key].merge if key in FACTS else "last"
        if merge != "last" and rank and not isinstance(value, str):
            by_rank = self._ranks.setdefault(key, {})
            by_rank[rank] = value
            self._put(f"{key}.{rank}", value, raw, time)
            numbers = [number for number in by_rank.values() if not isinstance(number, str)]
            value = max(numbers) if merge == "max" else min(numbers)
        self._put(key, value, raw, time)

    def _settle(self, known: Sequence[str]) -> None:
        self.facts = settle(self._run)
        if self._given:
            return
        found = server_of(self.facts)
        server = match_server(found, known) if found else self.server
        if server != self.server:
            self.server = server
            self._sent.clear()

    def _report(self, taken: Taken) -> None:
        """Report facts that are new, or differ from what was reported."""
        for key, value in self.facts.items():
            if key in self._sent and self._sent[key] == value:
                continue
            self._sent[key] = value
            line, time = self._where.get(key, (None, None))
            shown = self._fit(value) if isinstance(value, str) else value
            taken.facts.append(Fact(key, shown, self._name, line, time, self.server))


def _has_head(prefix: Prefix) -> bool:
    """Whether a line begins as the engines begin theirs: with a level, or with a time that is not of ISO or syslog."""
    return bool(prefix.level) or (prefix.time[:1].isdigit() and "T" not in prefix.time)


def oom_sizes(match: Match) -> dict[str, int]:
    """Return requested, free and reserved-but-unallocated bytes of a torch OOM, as far as the line has them.

    Up to torch 2.0 the line has reserved and allocated memory instead; the difference is what is not handed out.
    """
    sizes = {name: bytes_of(text) for name, text in match.groups}
    reserved, allocated = sizes.get("res1"), sizes.get("alloc1")
    spare = reserved - allocated if reserved is not None and allocated is not None else None
    found = {
        "requested": sizes.get("req"),
        "free": sizes.get("free", sizes.get("free1")),
        "reserved_unallocated": sizes.get("unalloc", spare),
    }
    return {name: size for name, size in found.items() if size is not None}


def server_of(facts: dict[str, Value]) -> str:
    """Return the ``host:port`` that a server's own words give, or the empty string. All addresses: 127.0.0.1."""
    url = facts.get("server.url")
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            return ""
    elif isinstance(facts.get("flag.port"), int):
        host, port = str(facts.get("flag.host", "")), int(facts["flag.port"])
    else:
        return ""
    host = "127.0.0.1" if host in _LOCAL else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def match_server(found: str, known: Sequence[str]) -> str:
    """Return the name among `known` that means the same address as `found`, else `found`.

    Two names of this machine with one port are the same server.
    """
    if found in known:
        return found
    host, _, port = found.rpartition(":")
    if host.strip("[]") in _LOCAL:
        for name in known:
            other, _, other_port = name.rpartition(":")
            if other_port == port and other.strip("[]") in _LOCAL:
                return name
    return found
