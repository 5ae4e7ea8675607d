"""One line of a file that is worth reading, and what it says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.engines.log_prefixes import strip_prefix
from gpuwatch.engines.log_text import clean
from gpuwatch.engines.logs import classify, match_with, prefilter

if TYPE_CHECKING:
    from gpuwatch.engines.log_pattern import Pattern
    from gpuwatch.engines.logs import Match

LINE = 64 << 10
"""Longest line that is read; of a longer one, what stands around its first literal."""
BEFORE = 2 << 10
"""Bytes before its first literal that are kept of a longer line."""
PIECE = 1 << 20
"""Without a line end within this many bytes, a piece counts as a line."""
OVERLAP = 256
"""Bytes that such pieces have in common."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A line to read, and the pattern that it is likely to match.

    `time` is the time text of the nearest line above that has one, where this one has none. `above` is the statement
    that raised an exception without a text.
    """

    number: int
    data: bytes
    pattern: Pattern
    time: str = ""
    above: str = ""


def recognise(line: bytes, likely: Pattern | None = None) -> Match | None:
    """Return what a line says; `likely` is tried first. Of several parts, one that says something by itself counts."""
    best: Match | None = None
    for part in parts_of(line):
        message = strip_prefix(part).message
        found = match_with(likely, message) if likely is not None else None
        found = found or classify(message)
        if found is not None and (best is None or _WEIGHT[found.pattern.kind] > _WEIGHT[best.pattern.kind]):
            best = found
    return best


_WEIGHT = {"ignore": 0, "note": 1, "stats": 2, "fact": 2, "event": 3}


def parts_of(line: bytes) -> list[str]:
    """Return a line as text: progress that overwrote itself as several parts, quotation marks of a paste taken off.

    A record of JSON that holds a traceback, or a message of several lines, is one part per line of these.
    """
    text = line.replace(b"\0", b"").decode("utf-8", "replace")
    if text.startswith('{"') and _SEVERAL.search(text) is not None:
        return [clean(part) for part in _record(text)]
    parts = [text] if "\r" not in text else [part for part in text.split("\r") if part.strip()] or [""]
    return [_bare(clean(part)) for part in parts]


# A line end within a member of a record; the one that ends a message is none.
_SEVERAL = re.compile(r"\\n(?!\")")
_TRACES = ("exc_info", "exc_text", "exception", "stack_trace", "stacktrace", "traceback", "stack", "error.stack_trace")
_MESSAGES = ("message", "log", "MESSAGE", "msg", "textPayload", "line")
_MOST_PARTS = 400


def _record(text: str) -> list[str]:
    """Return a record once per line of its message and its traceback, each with that line as its message."""
    try:
        record = json.loads(text)
    except ValueError:
        return [text]
    key = next((key for key in _MESSAGES if isinstance(record.get(key), str)), "")
    if not key:
        return [text]
    inner = [each for each in record.values() if isinstance(each, dict)]
    traces = [each[name] for each in (record, *inner) for name in _TRACES if isinstance(each.get(name), str)]
    lines = [line for told in (record[key], *traces) for line in told.splitlines() if line.strip()]
    if len(lines) < 2:
        return [text]
    rest = {name: value for name, value in record.items() if name not in _TRACES and not isinstance(value, dict)}
    return [json.dumps({**rest, key: line}, ensure_ascii=False) for line in lines[-_MOST_PARTS:]]


_QUOTED = re.compile(r"^(?:> ?)+|^(?:\s*[-*] )?`|^ {1,12}(?=[(\[{A-Z])")


def _bare(text: str) -> str:
    if text[:1] in (">", "`", " ", "-", "*"):
        text = _QUOTED.sub("", text, count=1)
        return text.rstrip("`")
    return text


def window(line: bytes) -> bytes:
    """Return a line, or of a very long one the part around its first literal; nothing where it holds none."""
    bare = line.replace(b"\0", b"")
    if len(bare) <= LINE:
        return bare if prefilter().search(bare.decode("utf-8", "replace")) is not None else b""
    for start in range(0, len(bare), PIECE):
        piece = bare[start : start + PIECE + OVERLAP].decode("utf-8", "replace")
        found = prefilter().search(piece)
        if found is not None:
            begin = max(0, found.start() - BEFORE)
            return piece[begin : begin + LINE // 4].encode() if start or begin else bare[: LINE // 4]
    return b""
