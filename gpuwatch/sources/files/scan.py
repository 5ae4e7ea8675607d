"""From the text of a file to the few lines that say something: bounded in number, whatever the size of the file.

Of each kind of line the first and the last are kept, and of statistics also those with the extremes of each block.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import deque
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

from gpuwatch.engines.log_prefixes import strip_prefix
from gpuwatch.engines.log_text import clean, leaves_open
from gpuwatch.engines.logs import numeric_literals
from gpuwatch.engines.stack_log import RAISED
from gpuwatch.sources.files import raising, wrapped
from gpuwatch.sources.files.lines import BEFORE, LINE, OVERLAP, PIECE, Hit, parts_of, recognise, window
from gpuwatch.sources.files.shapes import Shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatch.engines.log_pattern import Kind, Pattern

_LEAST = 1 << 18
FIRST: dict[Kind, int] = {"event": 100, "fact": 200, "note": 400, "stats": 600}
"""How many lines of a pattern are kept from the start of a file, and as many from its end."""
_LAST_OF_BLOCK = 1
# Blocks whose extremes are those of the block before, as a share, are passed over, so many in a row.
_SAME = 0.1
_SILENT = 7
# Of more statistics lines in one block, some are passed over: hours lie between its ends then.
_LOOKED_AT = 400
# A shape whose lines never matched so often is taken for one that only looks like something.
_PATIENCE = 50
# Tables that are nothing but numbers stand in short files.
_NUMERIC_LINES = 50_000
_BACK = 500
_TRACE = 400
_MOST_FRAMES = 40
_MOST_SHAPES = 20_000
# Of a line without an end, so many pieces and its last one are read: what goes on for longer is data, not a message.
_MOST_PIECES = 8
# Of these lines it is a number that says whether they mean something.
_NUMBERED = re.compile(rb"errno|\bexit|\bcode\b|\bstatus\b|\bsignal\b", re.IGNORECASE)

# Requests waiting or running, and the use of the pool, in statistics lines of each engine.
_FIGURES = {
    "stats": re.compile(rb"Running: (\d+) reqs.*?(?:Waiting|Pending): (\d+) reqs.*? KV cache usage: ([\d.]+)%"),
    "sgl_decode": re.compile(rb"#running-req: (\d+).*?token usage: ([\d.]+).*?#queue-req: (\d+)"),
}
_HEAD = re.compile(
    rb"^(?:>+ ?)?\s{0,8}(?:\([\w.: =-]{1,80}\) )*(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\[?\d{4}-\d\d-\d\d[ T]"
    rb"|\[\d\d-\d\d \d\d:\d\d:\d\d\] "
    rb"|\[\d\d:\d\d:\d\d|\[[A-Z]{2,8}\d|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d"
    rb"|[A-Z][a-z]{2} \d{1,2}, \d{4} @|\{\"|[\w.-]+-\d+ +\| |\[pod/|\[ *\d+\.\d{6}\])"
)
# dmesg colours what stands before the first ": " of a message, and so cuts "NVRM: Xid" in two.
_COLOURED = b": \x1b[0m"
_COLOUR = re.compile(rb"\x1b\[[\d;]*m")
_TRACEBACK = b"Traceback (most recent call last)"
_FRAME = re.compile(rb"^\s*File \"")


@dataclass(slots=True)
class Group:
    """All lines of one pattern: how many there are, and which are kept."""

    pattern: Pattern
    first: int
    count: int = 0
    last: deque[Hit] = field(default_factory=deque)
    block: list[int] = field(default_factory=list)

    told: tuple[float, ...] = ()
    silent: int = 0

    @property
    def kind(self) -> Kind:
        """What lines of the pattern are."""
        return self.pattern.kind

    def news(self, figures: tuple[float, ...]) -> bool:
        """Whether the extremes of a block differ from those that were kept last, or those are long ago."""
        same = len(figures) == len(self.told) and all(
            abs(now - before) <= _SAME * max(abs(before), 1) for now, before in zip(figures, self.told, strict=True)
        )
        self.silent = self.silent + 1 if same and figures and self.silent < _SILENT else 0
        if self.silent:
            return False
        self.told = figures
        return True


@dataclass(frozen=True, slots=True)
class _Block:
    """Complete lines of a file; `start` is the number of lines before the first of them."""

    start: int
    lines: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class _Skimmed:
    """A block in which only lines of one frequent kind matter: where their literal stands, and where they end."""

    start: int
    text: bytes
    group: Group
    places: Sequence[tuple[int, int]]

    def tails(self) -> list[bytes]:
        """Return the lines from their literal on."""
        text = self.text
        return [text[at:end] for at, end in self.places]

    def hits(self, chosen: Iterable[int]) -> list[Hit]:
        """Return some of the lines, by their order, with their numbers."""
        found, number, counted = [], self.start + 1, 0
        for place, end in (self.places[order] for order in sorted(set(chosen))):
            number += self.text.count(b"\n", counted, place)
            counted = place
            begin = self.text.rfind(b"\n", 0, place) + 1
            line = window(self.text[begin:end])
            if line:
                found.append(Hit(number, line, self.group.pattern))
        return found


class Scanner:
    """Takes the blocks of a file and keeps the lines that say something."""

    def __init__(self) -> None:
        self.lines = 0
        self.groups: dict[str, Group] = {}
        self._shapes = Shapes()
        self._patterns: dict[bytes, Group] = {}
        self._misses: dict[bytes, int] = {}
        self._kept: list[Hit] = []
        self._small: list[bytes] = []
        self._small_size = 0
        self._left = b""
        self._above = b""
        self._pieces = 0
        self._block = _Block(0, ())
        self._skimmed: _Skimmed | None = None
        self._hot: list[Group] = []
        self._events: list[int] = []
        self._body = (-1, -1, False)

    def feed(self, block: bytes) -> None:
        """Read a block of text."""
        self._small.append(block)
        self._small_size += len(block)
        if self._small_size >= _LEAST:
            self._feed()

    def _feed(self) -> None:
        """Read what has come together: a pipe gives little at a time, and a line needs those above it."""
        block = self._small[0] if len(self._small) == 1 else b"".join(self._small)
        self._small, self._small_size = [], 0
        end = block.rfind(b"\n") + 1
        if end:
            self._take(b"".join((self._left, memoryview(block)[:end])))
            self._left = block[end:]
        else:
            self._left += block
        self._pieces = 0 if end else self._pieces
        if len(self._left) > PIECE:
            # A piece of a line counts when the rest of it comes.
            if self._pieces < _MOST_PIECES:
                self._take(self._left + b"\n")
                self.lines -= 1
            self._pieces += 1
            self._left = self._left[-OVERLAP:]

    def finish(self) -> list[Hit]:
        """Return the kept lines in the order of the file."""
        if self._small:
            if not b"".join(self._small).endswith(b"\n"):
                self._small.append(b"\n")
            self._feed()
        if self._left:
            self._take(self._left + b"\n")
            self._left = b""
        self._settle(most=max(FIRST.values()))
        found = {hit.number: hit for hit in self._kept}
        for group in self.groups.values():
            found.update((hit.number, hit) for hit in group.last)
        return [found[number] for number in sorted(found)]

    def _take(self, text: bytes) -> None:
        self._settle(most=_LAST_OF_BLOCK)
        if _COLOURED in text:
            text = _COLOUR.sub(b"", text)
        wanted, count = self._shapes.look(text)
        numeric = _lines_with(text, numeric_literals()) if self.lines < _NUMERIC_LINES else set()
        if self.lines < wrapped.FIRST_LINES:
            numeric = numeric | wrapped.broken(text)
        if numeric or (wanted and not self._skim(text, wanted)):
            shapes = self._shapes.of(text)
            before = self._above.split(b"\n")[-_BACK:] if self._above else []
            lines = [*before, *text.split(b"\n")]
            lines.pop()
            above = len(before)
            self._block = _Block(self.lines - above, lines)
            rows: Iterable[tuple[int, bytes]] = compress(enumerate(shapes, above), map(wanted.__contains__, shapes))
            if numeric:
                rows = sorted({*rows, *((above + at, shapes[at]) for at in numeric)})
            self._look(rows)
        self._above = text[-LINE:-1]
        self.lines += count

    def _skim(self, text: bytes, wanted: set[bytes]) -> bool:
        """Take lines of one frequent kind without looking at the others; return whether that kind is all there is."""
        groups = {group.pattern.name if (group := self._patterns.get(shape)) is not None else "" for shape in wanted}
        group = self.groups.get(next(iter(groups))) if len(groups) == 1 else None
        if group is None or group.count < group.first or len(group.pattern.needles) > 1:
            return False
        places = _places_of(text, group.pattern.needles[0].encode())
        group.count += len(places)
        self._skimmed = _Skimmed(self.lines, text, group, places)
        return True

    def _look(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Walk over the lines whose shape may hold something."""
        if len(self._patterns) > _MOST_SHAPES:
            self._patterns.clear()
            self._misses.clear()
        patterns = self._patterns
        for at, shape in rows:
            group = patterns.get(shape)
            if group is not None and group.count >= group.first:
                group.count += 1
                if not group.block:
                    self._hot.append(group)
                group.block.append(at)
            elif self._misses.get(shape, 0) <= _PATIENCE or _NUMBERED.search(shape) is not None:
                self._read(at, shape)

    def _read(self, at: int, shape: bytes) -> None:
        """Read a line of a kind that was not seen often yet."""
        line = window(self._block.lines[at]) or wrapped.part(self._block.lines[at])
        found = None
        if line:
            known = self._patterns.get(shape)
            found = recognise(line, known.pattern if known is not None else None)
            line, found = wrapped.joined(line, self._block.lines[at + 1 : at + 1 + wrapped.MOST], found)
        if found is None or found.pattern.kind == "ignore":
            misses = self._misses[shape] = self._misses.get(shape, 0) + 1
            if misses > _PATIENCE and _NUMBERED.search(shape) is None:
                self._shapes.forget(shape)
            return
        pattern = found.pattern
        group = self.groups.get(pattern.name)
        if group is None:
            limit = FIRST[pattern.kind]
            group = self.groups[pattern.name] = Group(pattern, limit, last=deque(maxlen=limit))
        hit = self._hit(at, line, pattern)
        if hit is not None:
            self._patterns[shape] = group
            group.count += 1
            (self._kept if group.count <= group.first else group.last).append(hit)
            if group.kind == "event":
                self._events.append(at)

    def _settle(self, most: int) -> None:
        """Choose among the lines of the last block those that are kept of kinds that are frequent."""
        skimmed, self._skimmed = self._skimmed, None
        if skimmed is not None:
            group, orders = skimmed.group, range(len(skimmed.places))
            chosen = set(orders[-most:])
            if group.kind == "stats":
                extremes, figures = _extremes(skimmed.tails(), orders)
                chosen.update(extremes)
            if group.kind != "stats" or group.news(figures) or most > _LAST_OF_BLOCK:
                self._keep(group, skimmed.hits(chosen))
        for group in self._hot:
            chosen = set(group.block[-most:])
            if group.kind == "stats":
                chosen.update(_extremes(self._block.lines, group.block)[0])
            elif group.kind == "note":
                chosen.update(_above(self._events, group.block))
            lines = [(at, window(self._block.lines[at])) for at in sorted(chosen)]
            hits = [self._hit(at, line, group.pattern) for at, line in lines if line]
            self._keep(group, [hit for hit in hits if hit is not None])
            group.block = []
        self._hot, self._events = [], []

    def _keep(self, group: Group, hits: Iterable[Hit]) -> None:
        (group.last if group.kind in ("event", "fact") else self._kept).extend(hits)

    # What stands above a line

    def _hit(self, at: int, line: bytes, pattern: Pattern) -> Hit | None:
        """Return the line with the time that holds for it; None where it is part of a request's text."""
        number = self._block.start + at + 1
        silent = pattern.event == RAISED and line.rstrip().endswith(raising.SILENT)
        above = raising.raised_at(self._block.lines, at) if silent else ""
        if _HEAD.match(line) is not None:
            return Hit(number, line, pattern, above=above)
        head = self._head_above(at)
        if head is None:
            return Hit(number, line, pattern, above=above)
        if self._in_body(head, at):
            return None
        prefix = strip_prefix(parts_of(self._block.lines[head][:BEFORE])[-1])
        return Hit(number, line, pattern, prefix.time, above)

    def _head_above(self, at: int) -> int | None:
        lines = self._block.lines
        for back in range(at - 1, max(-1, at - _BACK - 1), -1):
            if _HEAD.match(lines[back]) is not None:
                return back
        return None

    def _in_body(self, head: int, at: int) -> bool:
        """Whether a line goes on with the text of a request that a line above it began.

        A traceback ends such a text, and the source lines in it begin none.
        """
        start, lines = self._block.start, self._block.lines
        known, upto, is_open = self._body
        if known != start + head or not head <= upto - start <= at:
            upto, is_open = start + head, False
        for back in range(upto - start, at):
            line = lines[back]
            if _TRACEBACK in line:
                is_open = False
            elif not is_open and not (back and _FRAME.match(lines[back - 1])):
                is_open = leaves_open(clean(line[:LINE].decode("utf-8", "replace")))
        is_open = is_open and _TRACEBACK not in lines[at]
        self._body = (start + head, start + at, is_open)
        return is_open


def _lines_with(text: bytes, needles: Sequence[bytes]) -> set[int]:
    """Return the numbers (from 0) of the lines that hold one of some literals."""
    found = set()
    for needle in needles:
        at, line, counted = text.find(needle), 0, 0
        while at >= 0:
            line += text.count(b"\n", counted, at)
            counted = at
            found.add(line)
            end = text.find(b"\n", at)
            at = text.find(needle, end) if end >= 0 else -1
    return found


def _places_of(text: bytes, needle: bytes) -> list[tuple[int, int]]:
    """Return where a literal stands in each line that holds it, and where the line ends."""
    found = []
    find = text.find
    at = find(needle)
    while at >= 0:
        end = find(b"\n", at)
        found.append((at, end))
        at = find(needle, end)
    return found


def _above(events: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return those of `places` that stand shortly above an event that is kept: the frames of its traceback."""
    found: list[int] = []
    for event in events:
        end = bisect(places, event)
        found += places[max(bisect(places, event - _TRACE), end - _MOST_FRAMES) : end]
    return found


def _extremes(lines: Sequence[bytes], places: Sequence[int]) -> tuple[list[int], tuple[float, ...]]:
    """Return the first of some statistics lines and those with the lowest and highest figures, and these figures."""
    places = places[:: 1 + len(places) // _LOOKED_AT]
    text = b"\n".join([lines[at] for at in places])
    for regex in _FIGURES.values():
        rows = regex.findall(text)
        if len(rows) != len(places) or not rows:
            continue
        chosen, ends = [places[0]], []
        for column in zip(*rows, strict=True):
            # There are few different figures among many lines.
            figures = sorted(set(column), key=float)
            chosen += [places[column.index(figures[0])], places[column.index(figures[-1])]]
            ends += [float(figures[0]), float(figures[-1])]
        return chosen, tuple(ends)
    return [*places[:1]], ()
