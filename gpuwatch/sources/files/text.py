"""The beginning of a file: searched as it is, and decoded line by line where a reader wants lines."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from gpuwatch.engines.log_text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence


class Text:
    """UTF-8 text of a file. Lines are numbered from 1; control characters are taken out of them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def first(self, size: int) -> Text:
        """Return the beginning of the text, `size` bytes at most."""
        return self if len(self._data) <= size else Text(self._data[:size])

    def has(self, words: Sequence[str]) -> bool:
        """Return whether one of some words stands anywhere."""
        return any(word.encode() in self._data for word in words)

    def numbers(self, words: Sequence[str]) -> list[int]:
        """Return the numbers of the lines with one of some words, in order."""
        found = set()
        for word in map(str.encode, words):
            at = self._data.find(word)
            while at >= 0:
                found.add(bisect_right(self._starts, at))
                end = self._data.find(b"\n", at)
                at = self._data.find(word, end) if end >= 0 else -1
        return sorted(found)

    def line(self, number: int) -> str:
        """Return one line, marks of a quotation taken off; the empty string behind the last one."""
        return _bare(self._raw[number - 1]) if 0 < number <= len(self._raw) else ""

    @cached_property
    def lines(self) -> list[tuple[int, str]]:
        """Every line with its number."""
        return [(at, _bare(line)) for at, line in enumerate(self._raw, 1)]

    @property
    def count(self) -> int:
        """The number of lines."""
        return len(self._raw)

    @cached_property
    def _raw(self) -> list[bytes]:
        return self._data.split(b"\n")

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(line) + 1 for line in self._raw)]


def _bare(line: bytes) -> str:
    cleaned = clean(line.decode("utf-8", "replace")) if line else ""
    return cleaned.lstrip("> ") if cleaned.startswith("> ") else cleaned
