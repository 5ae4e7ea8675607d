"""Lines that a terminal broke at its width, as they are in pastes, put together again."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from gpuwatch.engines.log_prefixes import strip_prefix
from gpuwatch.engines.logs import literals
from gpuwatch.engines.stack_log import RAISED
from gpuwatch.sources.files.lines import LINE, parts_of, recognise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.engines.logs import Match

MOST = 8
"""How many more lines a line may have been broken into."""
FIRST_LINES = 2_000
"""Lines of a file among which those are looked for whose literal itself was broken: pastes are short."""
_NARROWEST = 40
_WIDEST = 1000
_LITERAL = 60
_BRACKETS = (("{", "}"), ("(", ")"))
_LARGEST = 1 << 19
# A line of code that ends with a bracket, and an error that begins a line of its own below it.
_COMPLETE = re.compile(rb"[)\]}:]\s*$")
# A word with a sign or a number in it: words of prose may begin two parts of a line by chance.
_MARK = re.compile(rb"\S*[\d:|\[\]()<>=#]\S*\s")
_DIGITS = re.compile(rb"\d+")
_RAISES = re.compile(rb"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?:: |$)")


def broken(text: bytes) -> set[int]:
    """Return the numbers (from 0) of lines of `text` that share a literal of the tables with the line below."""
    if len(text) > _LARGEST:
        return set()
    lines, search = text.split(b"\n"), literals().search
    found = set()
    for at, (line, below) in enumerate(pairwise(lines)):
        if not _NARROWEST <= len(line) <= _WIDEST or not below or below[0] in b" \t{|+(":
            continue
        head, tail = line.rstrip(b"\r")[-_LITERAL:], below[:_LITERAL]
        seam = len(head)
        for both in _both(head, tail):
            hit = search(both)
            while hit is not None and hit.end() <= seam:
                hit = search(both, hit.start() + 1)
            if hit is not None and hit.start() < seam:
                found.add(at)
    return found


def _both(text: bytes, piece: bytes) -> tuple[bytes, ...]:
    """Return a text and its next part put together, as it was broken at a width, and at a blank that went with it."""
    if text[-1:].isspace() or piece[:1].isspace():
        return (text + piece,)
    return (text + piece, text + b" " + piece)


def part(line: bytes) -> bytes:
    """Return a line that holds no literal where it can be part of a broken one, else nothing."""
    return line if _NARROWEST <= len(line) <= _WIDEST else b""


def joined(line: bytes, below: Sequence[bytes], found: Match | None) -> tuple[bytes, Match | None]:
    """Return a line with what was broken off it, and what it says then; or as it is, where it says no more then.

    Args:
        line: The line.
        below: The lines below it.
        found: What the line says by itself.
    """
    if not _NARROWEST <= len(line) <= _WIDEST or not below or line.startswith(b"{"):
        return line, found
    best, texts = (line, found), [line.rstrip(b"\r\n")]
    for more in below:
        piece = more.rstrip(b"\r\n")
        text = texts[0]
        if len(text) > LINE or not _goes_on(piece) or (_COMPLETE.search(text) and _RAISES.match(piece)):
            break
        if _begins_alike(line, piece):
            break
        before = texts if len(texts) > 1 else texts * 2
        # All parts as they are, and all with the blanks that a page leaves out where it breaks a line.
        texts = list(dict.fromkeys((before[0] + piece, _both(before[1], piece)[-1])))
        for text, shorter in zip(texts, before, strict=False):
            at = len(strip_prefix(parts_of(shorter)[-1]).message)
            match = recognise(text)
            if match is not None and _says_more(match, best[1]) and _crosses(match, text, at):
                best = (text, match)
    return best


def _goes_on(piece: bytes) -> bool:
    """Whether a line can be the rest of the one above it: it has no beginning of its own."""
    if not piece.strip() or piece.startswith((b"  ", b"\t", b"{", b"|", b"+", b"Traceback ")):
        return False
    text = parts_of(piece)[-1]
    return strip_prefix(text).message == text


def _begins_alike(line: bytes, piece: bytes) -> bool:
    """Whether two lines begin with the same mark, numbers apart: the tag of a process, a host, a time, a list."""
    mark = _MARK.match(piece)
    return mark is not None and _DIGITS.sub(b"0", _first(line)) == _DIGITS.sub(b"0", _first(piece))


def _first(line: bytes) -> bytes:
    return line.split(maxsplit=1)[0]


def _says_more(match: Match, than: Match | None) -> bool:
    """Whether the longer text is something else than an exception that is not known, or tells more of the same."""
    if match.pattern.kind == "ignore" or match.pattern.event == RAISED:
        return False
    if than is None or than.pattern.event == RAISED or than.pattern.kind == "ignore":
        return True
    if match.pattern is not than.pattern:
        return False
    return len(match.groups) > len(than.groups) or _completed(match, than)


def _completed(match: Match, than: Match) -> bool:
    """Whether pairs that were cut off within their brackets end in the longer text."""
    pairs = match.pattern.pairs
    return bool(pairs) and _closes(match.group(pairs)) and not _closes(than.group(pairs))


def _closes(pairs: str) -> bool:
    """Whether pairs end with the bracket that was opened before the first of them."""
    return any(pairs.count(closing) > pairs.count(opening) for opening, closing in _BRACKETS)


def _crosses(match: Match, text: bytes, at: int) -> bool:
    """Whether what was recognised begins before the place at which the line was broken and ends behind it."""
    found = match.pattern.search(strip_prefix(parts_of(text)[-1]).message)
    return found is not None and found.start() < at < found.end()
