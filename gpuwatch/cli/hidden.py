"""Names of machines, cards and folders replaced by others, the same everywhere: what belongs together still does."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.cli.markdown import public
from gpuwatch.engines.log_text import CUT
from gpuwatch.model import Absence, Batch, Fact, Labels, LogEvent

if TYPE_CHECKING:
    from gpuwatch.recording import Tick

_OWN = ("", "localhost", "127.0.0.1", "0.0.0.0", "::1", "::")  # noqa: S104  # compared, never listened on
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:/\s]+):(?P<port>\d{1,5})")
_UUID = re.compile(r"(?P<kind>GPU|MIG)-[0-9a-fA-F-]{20,}")
_LAUNCH = re.compile(r"non-default args|server_args|\bServerArgs\(|\bNamespace\(|\bargs: *[{(]")
# A value of several words: what somebody wrote, such as a system prompt in settings of a chat template.
_FREE = re.compile(
    r"(?P<keep>(?:['\"]\s*:|\w=)\s*)(?P<quote>['\"])(?=[^'\"\s{\[<][^'\"]*\s)(?:\\.|(?!(?P=quote))[^\\])*(?P=quote)?"
)
# A prompt that a message quotes may hold quotation marks itself: all that follows goes.
_PROMPT = re.compile(r"(?P<keep>\bprompts?:? +)['\"\u201c].*", re.DOTALL | re.IGNORECASE)
_SHORTEST = 4
"""A shorter name is not looked for inside texts: it would be found in words."""
_NAMED = frozenset({"host"})
_SERVED = frozenset({"server"})
_CARDS = frozenset({"uuid"})
_SOURCES = frozenset({"log", "target"})


def written(text: str) -> str:
    """Return flags or printed settings without values of several words; numbers, names and nested settings stay."""
    return _FREE.sub(lambda found: found["keep"] + CUT, text)


class Hidden:
    """Replaces what names a machine, a person or a card. `learn` first all there is, then ask."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}
        self._cards: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._keys: dict[int, tuple[tuple[Labels, ...], tuple[Labels, ...]]] = {}
        self._words: re.Pattern[str] | None = None

    def learn(self, tick: Tick) -> None:
        """Take note of the names in a tick."""
        for batch in tick.batches:
            self.target(batch.target)
            if id(batch.keys) not in self._keys:
                self._keys[id(batch.keys)] = (batch.keys, tuple(map(self._series, batch.keys)))
            for fact in batch.facts:
                self.server(fact.server)
            for event in batch.events:
                self.server(event.server)

    def host(self, name: str) -> str:
        """Return the name that stands for a host; the machine's own addresses stay."""
        if name.strip("[]") in _OWN:
            return name
        if name not in self._hosts:
            self._hosts[name] = f"host-{len(self._hosts) + 1}"
            self._words = None
        return self._hosts[name]

    def server(self, address: str) -> str:
        """Return what stands for ``HOST:PORT``."""
        match = _ADDRESS.fullmatch(address)
        if match is None:
            return self.name(address)
        return f"{self.host(match['host'])}:{match['port']}"

    def card(self, uuid: str) -> str:
        """Return what stands for the UUID of a GPU."""
        match = _UUID.fullmatch(uuid)
        if match is None:
            return uuid
        if uuid not in self._cards:
            self._cards[uuid] = f"{match['kind']}-{len(self._cards) + 1:08}-0000-0000-0000-000000000000"
        return self._cards[uuid]

    def name(self, text: str) -> str:
        """Return a name or path without user and machine; different ones stay different."""
        if text not in self._names:
            shown = self.text(text)
            taken = set(self._names.values())
            unique, number = shown, 2
            while unique in taken:
                unique, number = f"{shown}~{number}", number + 1
            self._names[text] = unique
        return self._names[text]

    def target(self, target: str) -> str:
        """Return the target of a batch, such as ``engine:HOST:PORT`` or ``log:PATH``."""
        kind, colon, name = target.partition(":")
        if not colon:
            return target
        return f"{kind}:{self.server(name) if _ADDRESS.fullmatch(name) else self.name(name)}"

    def text(self, text: str) -> str:
        """Return a text without names, keys, tokens and prompts."""
        known = {**self._hosts, **self._cards}
        if self._words is None:
            words = sorted((name for name in known if len(name) >= _SHORTEST), key=len, reverse=True)
            self._words = re.compile("|".join(rf"(?<![\w.-]){re.escape(word)}(?![\w-])" for word in words) or r"(?!)")
        text = self._words.sub(lambda found: known[found[0]], text)
        if _LAUNCH.search(text) is not None:
            text = written(text)
        return public(_PROMPT.sub(lambda found: found["keep"] + CUT, text))

    def tick(self, tick: Tick) -> tuple[list[Batch], list[str]]:
        """Return the batches of a tick and the targets that were given up, with other names."""
        return [self._batch(batch) for batch in tick.batches], [self.target(name) for name in tick.forgotten]

    def _batch(self, batch: Batch) -> Batch:
        held = self._keys.get(id(batch.keys))
        if held is None or held[0] is not batch.keys:
            held = self._keys[id(batch.keys)] = (batch.keys, tuple(map(self._series, batch.keys)))
        return replace(
            batch,
            target=self.target(batch.target),
            keys=held[1],
            detail=self.text(batch.detail),
            absent=tuple(Absence(self._series(a.labels), a.reason, self.text(a.detail)) for a in batch.absent),
            facts=tuple(map(self.fact, batch.facts)),
            events=tuple(map(self._event, batch.events)),
        )

    def _series(self, labels: Labels) -> Labels:
        return tuple((key, self._label(key, value)) for key, value in labels)

    def _label(self, key: str, value: str) -> str:
        if key in _NAMED:
            return self.host(value)
        if key in _SERVED:
            return self.server(value)
        if key in _CARDS:
            return self.card(value)
        if key in _SOURCES:
            return self.server(value) if _ADDRESS.fullmatch(value) else self.name(value)
        return self.name(value) if "/" in value or "@" in value else value

    def fact(self, fact: Fact) -> Fact:
        """Return a fact with other names."""
        value = fact.value
        if isinstance(value, str):
            value = self.text(written(value) if fact.key.startswith("flag.") else value)
        return replace(fact, value=value, source=self.name(fact.source), server=self.server(fact.server))

    def _event(self, event: LogEvent) -> LogEvent:
        fields = tuple((key, self.text(value)) for key, value in event.fields)
        return replace(
            event,
            text=self.text(event.text),
            source=self.name(event.source),
            server=self.server(event.server),
            fields=fields,
        )
