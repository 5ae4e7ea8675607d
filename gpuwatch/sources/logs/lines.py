"""Bytes to lines: split and bounded, with unfinished lines held back until they are complete or have waited enough."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds of one log source. Sizes in bytes, times in seconds.

    `whole_file` is read from the start when a file is opened; of a larger one only `part` at either end is.
    `per_poll` bounds the work of one poll; `line` is where a line is cut; a line without an end is taken as complete
    after `partial`; `shown` lines are handed on per poll and `text` characters of each.
    """

    whole_file: int = 8 * 2**20
    part: int = 2 * 2**20
    per_poll: int = 2**20
    line: int = 64 * 2**10
    partial: float = 2.0
    shown: int = 400
    text: int = 1000
    backlog: int = 2000
    retry: float = 60.0


@dataclass(frozen=True, slots=True)
class RawLine:
    """One line as it was read. `number` is 1-based, 0 where it is not known; `past`: it was there before we came."""

    data: bytes
    number: int
    cut: bool = False
    past: bool = False


class LineSplitter:
    """Turns pieces of bytes into lines. Holds at most `limit` bytes of an unfinished line and skips the rest of it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = b""
        self._skipping = False
        self._number = 0
        self._counting = True

    @property
    def waiting(self) -> bool:
        """Whether the start of an unfinished line is held."""
        return bool(self._held)

    def restart(self, *, counting: bool = True) -> None:
        """Forget what is held, for a new file (`counting`) or behind a gap, where numbers are not known any more."""
        self._held = b""
        self._skipping = False
        self._number = 0
        self._counting = counting

    def feed(self, data: bytes, *, past: bool = False) -> list[RawLine]:
        """Return the lines that `data` completes."""
        pieces = data.split(b"\n")
        lines = []
        for piece in pieces[:-1]:
            if self._skipping:
                self._skipping = False
                self._held = b""
                continue
            lines.append(self._line(self._held + piece, past=past))
            self._held = b""
        if self._skipping:
            return lines
        self._held += pieces[-1]
        if len(self._held) > self._limit:
            lines.append(self._line(self._held, past=past))
            self._held = b""
            self._skipping = True
        return lines

    def flush(self, *, past: bool = False) -> list[RawLine]:
        """Return the unfinished line as if it were complete."""
        if not self._held:
            return []
        held, self._held = self._held, b""
        return [self._line(held, past=past)]

    def _line(self, data: bytes, *, past: bool) -> RawLine:
        self._number += 1
        cut = len(data) > self._limit
        return RawLine(data[: self._limit] if cut else data, self._number if self._counting else 0, cut, past)
