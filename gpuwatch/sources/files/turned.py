"""Logs whose newest line comes first, as browsers of logs show and export them, turned round."""

from __future__ import annotations

import re
from itertools import pairwise

NOTE = "its newest line comes first: it was read from the end, and lines are counted from there"
"""What has to be said of the numbers of the lines then."""
_LINES = 400
_FEWEST = 3
_MOST_RISES = 0.05
_MOSTLY = 0.6
_TIME = re.compile(rb"(?<!\d)(?:\d{4}-)?\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?")
_NEAR = 200


def newest_first(text: bytes) -> bool:
    """Return whether the times at the beginning of a text fall from line to line, in most of its lines."""
    lines = [line for line in text.split(b"\n", _LINES)[:_LINES] if line.strip()]
    times = [time for line in lines if (time := _time(line))]
    if len(times) < max(_FEWEST, _MOSTLY * len(lines)):
        return False
    falls = sum(later < earlier for earlier, later in pairwise(times))
    rises = sum(later > earlier for earlier, later in pairwise(times))
    return falls >= _FEWEST and rises <= _MOST_RISES * falls


def turned(text: bytes) -> bytes:
    """Return a text with its last line first; lines without a time stay below the one that they follow."""
    entries: list[list[bytes]] = []
    for line in text.removesuffix(b"\n").split(b"\n"):
        if _time(line) or not entries:
            entries.append([])
        entries[-1].append(line)
    return b"\n".join(line for entry in reversed(entries) for line in entry) + b"\n"


def _time(line: bytes) -> bytes:
    found = _TIME.search(line, 0, _NEAR)
    return found.group() if found is not None else b""
