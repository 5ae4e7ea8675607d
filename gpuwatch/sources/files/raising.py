"""Where an exception without a text was raised: the statement and the frame that stand above it in a traceback."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.engines.log_prefixes import strip_prefix
from gpuwatch.sources.files.lines import LINE, parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.engines.log_prefixes import Prefix

SILENT = (b"AssertionError", b"NotImplementedError")
"""How a line ends that names one of the exceptions that are often raised without a text."""
_FRAME = re.compile(r'^\s*File "(?:[^"]*/)?(?P<file>[^"/]+)", line (?P<line>\d+), in (?P<name>\S+)')
# Python 3.11 and newer mark the part of the statement that failed.
_MARKS = re.compile(r"^[\s~^]*$")
_BACK = 40
_MOST = 6


def raised_at(lines: Sequence[bytes], at: int) -> str:
    """Return the statement above the line `at` and its place, as ``assert a == b (pool.py:30, in take)``.

    Lines of other processes that stand between are passed over. Without a statement it is the place alone, without a
    frame the statement alone, and nothing where the lines above are no traceback.
    """
    own = _prefix(lines[at])
    code: list[str] = []
    for back in range(at - 1, max(-1, at - _BACK - 1), -1):
        prefix = _prefix(lines[back])
        if (prefix.proc, prefix.pid, prefix.ranks) != (own.proc, own.pid, own.ranks) or _MARKS.match(prefix.message):
            continue
        frame = _FRAME.match(prefix.message)
        if frame is not None:
            place = f"{frame['file']}:{frame['line']}, in {frame['name']}"
            return f"{' '.join(reversed(code))} ({place})" if code else place
        if len(code) == _MOST or not prefix.message.startswith(" "):
            break
        code.append(prefix.message.strip())
    return " ".join(reversed(code))


def _prefix(line: bytes) -> Prefix:
    return strip_prefix(parts_of(line[:LINE])[-1])
