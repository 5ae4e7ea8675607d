"""The shape of one row in the tables of log patterns, and how its groups become facts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.engines.sizes import bytes_of, bytes_of_gib

if TYPE_CHECKING:
    from collections.abc import Callable

Kind: TypeAlias = Literal["fact", "event", "note", "stats", "ignore"]
Value: TypeAlias = "str | float | int | bool"

_WORDS = {"enabling": True, "disabling": False, "true": True, "false": False}


def read(text: str, unit: str) -> Value | None:
    """Return the value of a matched group; None where the text holds no such value.

    `unit` is ``int`` (thousands commas allowed), ``float``, ``gib`` (a number of GiB, returned in bytes), ``size``
    (a size with its unit, returned in bytes), ``bool``, ``text``, or ``yes`` and ``no`` for lines whose mere
    presence says so.
    """
    try:
        return _READERS[unit](text)
    except ValueError:
        return None


_READERS: dict[str, Callable[[str], Value | None]] = {
    "int": lambda text: int(text.replace(",", "")),
    "float": float,
    "gib": bytes_of_gib,
    "size": bytes_of,
    "bool": lambda text: _WORDS.get(text.lower()),
    "text": str,
    "yes": lambda _: True,
    "no": lambda _: False,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One fact that a pattern gives: its key in `engines.facts`, the group it is read from, and the group's unit."""

    fact: str
    group: str
    unit: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of log line.

    `needles` are literals of which every matching line contains at least one. `versions` are the engine
    versions that print the line. `pairs` names a group that holds ``name=value`` pairs; `settings` says which: the
    launch flags (``flags``) or the engine's own configuration (``config``). `starts` marks the first line of a run.
    """

    name: str
    kind: Kind
    engine: str
    versions: str
    needles: tuple[str, ...]
    regex: str
    event: str = ""
    readings: tuple[Reading, ...] = ()
    pairs: str = ""
    settings: Literal["", "flags", "config"] = ""
    starts: bool = False

    def search(self, message: str) -> re.Match[str] | None:
        """Return the match in a message whose prefix was stripped."""
        return _compiled(self.regex).search(message)


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the rows of one engine's table; without an engine, of lines that any engine's log may have."""

    engine: str

    def fact(
        self,
        name: str,
        versions: str,
        needles: tuple[str, ...],
        regex: str,
        facts: str = "",
        *,
        pairs: str = "",
        settings: Literal["", "flags", "config"] = "",
        starts: bool = False,
    ) -> Pattern:
        """Return a row that tells facts; `facts` is read by `readings`."""
        return Pattern(
            name,
            "fact",
            self.engine,
            versions,
            needles,
            regex,
            readings=readings(facts),
            pairs=pairs,
            settings=settings,
            starts=starts,
        )

    def event(
        self, name: str, event: str, versions: str, needles: tuple[str, ...], regex: str, *, facts: str = ""
    ) -> Pattern:
        """Return a row that is an event of `engines.events`, and may tell facts as well."""
        return Pattern(name, "event", self.engine, versions, needles, regex, event=event, readings=readings(facts))

    def note(self, name: str, event: str, versions: str, needles: tuple[str, ...], regex: str) -> Pattern:
        """Return a row that is one of `engines.events.NOTES`: it says something beside other lines only."""
        return Pattern(name, "note", self.engine, versions, needles, regex, event=event)

    def stats(self, name: str, versions: str, needles: tuple[str, ...], regex: str) -> Pattern:
        """Return a row that is a periodic statistics line."""
        return Pattern(name, "stats", self.engine, versions, needles, regex)

    def ignore(self, name: str, versions: str, needles: tuple[str, ...], regex: str) -> Pattern:
        """Return a row that only looks like something."""
        return Pattern(name, "ignore", self.engine, versions, needles, regex)


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    """Compile on first use: most logs never need most patterns."""
    return re.compile(regex)


def readings(text: str) -> tuple[Reading, ...]:
    """Read ``fact=group:unit`` items separated by spaces."""
    items = []
    for item in text.split():
        fact, _, rest = item.partition("=")
        group, _, unit = rest.partition(":")
        items.append(Reading(fact, group, unit))
    return tuple(items)
