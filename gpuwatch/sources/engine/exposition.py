"""Prometheus' text exposition, read fast: labels are parsed once per series, not once per scrape.

A page hardly ever changes its lines between two scrapes, only some of the numbers at their ends. The parser therefore
compares each line with the one that stood in its place before, and reads the numbers of those that differ. Only where
more than a number differs are the left sides looked at, and only the unseen ones are parsed.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4), with the quoted UTF-8 names
of Prometheus 3. Timestamps are tolerated and dropped. A line that cannot be read is counted, never fatal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import compress
from operator import ne
from typing import TYPE_CHECKING

import numpy as np

from gpuwatch.model import NAME, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpuwatch.model import Labels

_HASH = ord("#")
_HEAD = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)?[ \t]*(\{)?[ \t]*")
_QUOTED = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_PAIR = re.compile(rf"(?:([a-zA-Z_:][a-zA-Z0-9_:.]*)|{_QUOTED})[ \t]*=[ \t]*{_QUOTED}[ \t]*(,|\}})[ \t]*")
_QUOTED_NAME = re.compile(rf"{_QUOTED}[ \t]*(,|\}})[ \t]*")
_ESCAPE = re.compile(r'\\([\\n"])')
_TYPE = re.compile(rb"^[ \t]*#[ \t]+TYPE[ \t]+(\S+)[ \t]+(\S+)[ \t\r]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands on a page apart from the numbers. The same object as long as the series of the page are the same.

    `keys` holds the series in page order (a series that the page gives twice is there twice); `types` maps family
    names to their declared types and includes families that have no series yet.
    """

    keys: tuple[Labels, ...]
    types: Mapping[str, str]

    def names(self) -> frozenset[str]:
        """Return the names of all series and of all declared families."""
        return frozenset(map(name_of, self.keys)) | frozenset(self.types)


@dataclass(frozen=True, slots=True)
class Page:
    """One scrape: `values` belong to `layout.keys`; `unknown` counts the lines that could not be read."""

    layout: Layout
    values: NDArray[np.float64]
    unknown: int = 0


class ExpositionParser:
    """Reads the pages of one target. Remembers the series of the last page, and nothing of pages before it."""

    def __init__(self) -> None:
        self._layout = Layout((), {})
        self._series: dict[bytes, Labels] = {}
        self._lines: list[bytes] = []
        self._heads: list[bytes | None] = []
        self._rows: NDArray[np.intp] = np.empty(0, np.intp)
        self._values: NDArray[np.float64] = np.empty(0)

    def parse(self, body: bytes) -> Page:
        """Return the series and values of a page. Never raises: what is not exposition text is counted as unknown."""
        lines = body.split(b"\n")
        values = self._with_new_numbers(lines)
        if values is None:
            return self._parse_lines(lines, body)
        self._lines, self._values = lines, values
        return Page(self._layout, values)

    def _with_new_numbers(self, lines: list[bytes]) -> NDArray[np.float64] | None:
        """Return the values of a page that differs from the last one in numbers only; None for any other page."""
        before = self._lines
        if len(lines) != len(before):
            return None
        changed = list(compress(range(len(lines)), map(ne, lines, before)))
        cut = [lines[at].rpartition(b" ") for at in changed]
        if [part[0] for part in cut] != [self._heads[at] for at in changed]:
            return None
        values: NDArray[np.float64] = self._values.copy()
        try:
            numbers = np.fromiter(map(float, [part[2] for part in cut]), np.float64, len(cut))
        except ValueError:  # an unreadable number: the slow way finds and counts it
            return None
        values[self._rows[changed]] = numbers
        return values

    def _parse_lines(self, lines: list[bytes], body: bytes) -> Page:
        series: dict[bytes, Labels] = {}
        keys: list[Labels] = []
        values: list[float] = []
        heads: list[bytes | None] = [None] * len(lines)
        rows = np.zeros(len(lines), np.intp)
        plain = True
        unknown = 0
        for at, line in enumerate(lines):
            if not line or line[0] == _HASH:
                continue
            head, rest = _cut(line)
            labels = self._series.get(head) or series.get(head)
            if labels is None:
                labels, head, rest = _read_series(line)
            value = None if labels is None else _value(rest)
            plain = plain and value is not None and line.rpartition(b" ")[0] == head
            if labels is None or value is None:
                text = line.strip()
                unknown += bool(text) and text[0] != _HASH
                continue
            series[head] = labels
            heads[at], rows[at] = head, len(keys)
            keys.append(labels)
            values.append(value)
        layout = Layout(tuple(keys), _types(body))
        if self._layout != layout:
            self._layout = layout
        self._series, self._values = series, np.array(values, np.float64)
        self._lines, self._heads, self._rows = lines if plain else [], heads, rows
        return Page(self._layout, self._values, unknown)


def _types(body: bytes) -> dict[str, str]:
    return {
        name.decode("utf-8", "replace").strip('"'): kind.decode("utf-8", "replace")
        for name, kind in _TYPE.findall(body)
    }


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Cut a line behind its last brace, or at its first space where it has none: series and the rest."""
    end = line.rfind(b"}") + 1
    if end:
        return line[:end], line[end:]
    head, _, rest = line.partition(b" ")
    return head, rest


def _value(rest: bytes) -> float | None:
    """Read the value in ``value [timestamp]``; an exemplar behind it is ignored. None: not a value."""
    fields = rest.partition(b" # ")[0].split()
    if not 1 <= len(fields) <= 2:
        return None
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        return None
    return numbers[0]


def _read_series(line: bytes) -> tuple[Labels | None, bytes, bytes]:
    """Parse the series of a line in full: its labels (None: not a series), its text, and what follows."""
    text = line.decode("utf-8", "replace")
    head = _HEAD.match(text)
    assert head is not None  # every part of it is optional
    name, at = head[1], head.end()
    pairs: dict[str, str] = {}
    if head[2]:
        if name is None:
            quoted = _QUOTED_NAME.match(text, at)
            if quoted is None:
                return None, line, b""
            name, at = _unescape(quoted[1]), quoted.end()
            closed = quoted[2] == "}"
        else:
            closed = False
        end = _read_pairs(text, at, pairs) if not closed else at
        if end is None:
            return None, line, b""
        at = end
    if not name or NAME in pairs:
        return None, line, b""
    rest = text[at:]
    labels = tuple(sorted([(NAME, name), *((key, value) for key, value in pairs.items() if value)]))
    return labels, text[:at].rstrip().encode(), rest.encode()


def _read_pairs(text: str, at: int, pairs: dict[str, str]) -> int | None:
    """Read label pairs from `at` up to the closing brace into `pairs`; return where they end, None when malformed."""
    while not text.startswith("}", at):
        pair = _PAIR.match(text, at)
        if pair is None:
            return None
        key = pair[1] or _unescape(pair[2] or "")
        if not key or key in pairs:
            return None
        pairs[key] = _unescape(pair[3])
        at = pair.end()
        if pair[4] == "}":
            return at
    return at + 1


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text) if "\\" in text else text
