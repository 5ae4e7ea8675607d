"""Log lines: filtering by words, and the marks of recognised lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatch.model import LogLine

LEVEL_TONES: Mapping[str, str] = {
    "ERROR": "crit",
    "CRITICAL": "crit",
    "FATAL": "crit",
    "WARNING": "warn",
    "WARN": "warn",
    "DEBUG": "dim",
}


def matches(line: LogLine, words: Iterable[str], *, hits_only: bool = False) -> bool:
    """Return whether a line holds every word (lower case) in its text, level, event or source."""
    if hits_only and not line.event:
        return False
    haystack = f"{line.text}\n{line.level}\n{line.event}\n{line.source}".lower()
    return all(word in haystack for word in words)


def filtered(lines: Iterable[LogLine], text: str, *, hits_only: bool = False) -> list[LogLine]:
    """Return the lines that hold every word of `text`, case-insensitive; only recognised lines with `hits_only`."""
    words = text.lower().split()
    if not words and not hits_only:
        return list(lines)
    return [line for line in lines if matches(line, words, hits_only=hits_only)]


def level_tone(line: LogLine) -> str:
    """Return the colour of a line's level."""
    return LEVEL_TONES.get(line.level.upper(), "")
