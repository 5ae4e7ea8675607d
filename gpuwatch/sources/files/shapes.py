"""Which lines of a large log are worth a look: found by their shape, at several hundred megabytes a second.

A log repeats itself. With its digits and dots taken out, an access line or a statistics line is the same text each
time: a set of the texts seen is enough to pass over it. What is taken out of a line is taken out of the literals
of the patterns as well (`engines.logs.literals`), hence no line that holds a literal is passed over. Where request ids
make each line different, the letters of hexadecimal numbers are taken out in a second step.
"""

from __future__ import annotations

import re
from itertools import compress

from gpuwatch.engines.logs import literals

NUMBERS = b"0123456789.\0"
"""What is taken out of every line."""
_IDS = NUMBERS + b"abcdef"
_MOST_SHAPES = 20_000
_LONGEST = 2_000
# Below this number of new shapes in a block the second step costs more than it saves.
_MANY = 200
_PIECE = 1 << 17
# As it looks without the dots. SGLang: "Receive: obj=GenerateReqInput(", and its JSON with "event": "request.received".
_REQUEST = re.compile(
    rb".{0,160}(?:Received request |Generated response |(?:Receive|Finish): \w+="
    rb"|\"event\": ?\"request(?:received|finished))"
)


class Shapes:
    """Remembers the shapes that hold no literal. `interesting` holds those that do, as far as they were met."""

    def __init__(self) -> None:
        self.interesting: set[bytes] = set()
        self._dull: set[bytes] = set()
        self._dull_ids: set[bytes] = set()

    def of(self, text: bytes) -> list[bytes]:
        """Return the shape of each line of `text`."""
        return text.translate(None, NUMBERS).split(b"\n")

    def look(self, text: bytes) -> tuple[set[bytes], int]:
        """Return the shapes in `text` that may hold a literal, and its number of lines; `text` ends with a line."""
        unique: set[bytes] = set()
        start = lines = 0
        while start < len(text):
            # Pieces that fit into the processor's cache are read twice as fast.
            end = text.rfind(b"\n", start, start + _PIECE) + 1 or text.find(b"\n", start) + 1
            shapes = self.of(text[start:end])
            lines += len(shapes) - 1
            unique.update(shapes)
            start = end
        unique.discard(b"")
        return self.wanted(unique), lines

    def wanted(self, unique: set[bytes]) -> set[bytes]:
        """Return those of some shapes that may hold a literal."""
        fresh = unique - self._dull - self.interesting
        found = unique & self.interesting
        if fresh:
            found.update(self._sort(list(fresh)))
        return found

    def forget(self, shape: bytes) -> None:
        """Pass over this shape from now on: its lines only looked as if they held something."""
        self.interesting.discard(shape)
        self._remember(self._dull, shape)

    def _sort(self, fresh: list[bytes]) -> list[bytes]:
        """Return those that hold a literal, and remember all of them."""
        if len(fresh) >= _MANY:
            fresh = self._without_ids(fresh)
        search = literals(NUMBERS).search
        found = []
        for shape in fresh:
            # The text of a request is long, never the same, and no news.
            if _REQUEST.match(shape) is not None:
                continue
            if search(shape) is None:
                self._remember(self._dull, shape)
            else:
                self._remember(self.interesting, shape)
                found.append(shape)
        return found

    def _without_ids(self, fresh: list[bytes]) -> list[bytes]:
        """Return the shapes that hold a literal even with the letters of ids taken out."""
        bare = b"\n".join(fresh).translate(None, _IDS).split(b"\n")
        unknown = set(bare) - self._dull_ids
        search = literals(_IDS).search
        for shape in list(unknown):
            if search(shape) is None:
                unknown.discard(shape)
                self._remember(self._dull_ids, shape)
        return [*compress(fresh, map(unknown.__contains__, bare))] if unknown else []

    def _remember(self, where: set[bytes], shape: bytes) -> None:
        """Keep a shape; start anew where there are too many. Long lines are not kept: they are looked at each time."""
        if len(shape) <= _LONGEST:
            if len(where) >= _MOST_SHAPES:
                where.clear()
            where.add(shape)
