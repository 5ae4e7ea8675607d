"""Prometheus' text exposition, read fast: labels are parsed once per series, not once per scrape.

A page hardly ever changes its lines between two scrapes, only the numbers at their ends. The parser therefore cuts
each line at its last space and compares the left sides with those of the page before, in one comparison. Only where
they differ are the new left sides looked at, and only the unseen ones are parsed.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4), with the quoted UTF-8 names
of Prometheus 3. Timestamps are tolerated and dropped. A line that cannot be read is counted, never fatal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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
        self._heads: list[bytes] = []
        self._series: dict[bytes, Labels] = {}

    def parse(self, body: bytes) -> Page:
        """Return the series and values of a page. Never raises: what is not exposition text is counted as unknown."""
        cut = [line.rpartition(b" ") for line in body.split(b"\n") if line and line[0] != _HASH]
        heads = [part[0] for part in cut]
        if heads == self._heads and heads:
            try:
                values = np.fromiter(map(float, [part[2] for part in cut]), np.float64, len(cut))
            except ValueError:
                pass  # an unreadable number: the slow way finds and counts it
            else:
                return Page(self._layout, values)
        return self._parse_lines(body)

    def _parse_lines(self, body: bytes) -> Page:
        series: dict[bytes, Labels] = {}
        keys: list[Labels] = []
        values: list[float] = []
        heads: list[bytes] = []
        plain = True
        unknown = 0
        for line in body.split(b"\n"):
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
            heads.append(head)
            keys.append(labels)
            values.append(value)
        self._series = series
        self._heads = heads if plain else []
        if self._layout.keys != tuple(keys):
            self._layout = Layout(tuple(keys), _types(body))
        return Page(self._layout, np.array(values, np.float64), unknown)


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
