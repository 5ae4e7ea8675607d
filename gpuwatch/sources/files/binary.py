"""Whether bytes are those of a text. Standard library only, and little of it: every follower of a log asks."""

from __future__ import annotations

import re

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive"),
    (b"%PDF-", "a PDF"),
    (b"\x7fELF", "a program"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"SQLite format 3\0", "a database"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
)
_TAR = (257, b"ustar")
_HOLE = re.compile(rb"\x00{8,}")
_CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b\b"))
_MOST_CONTROL = 0.02


def binary_reason(head: bytes) -> str:
    """Return why these bytes are no text, or nothing. Runs of zero bytes are what a crash leaves in a log."""
    for magic, what in _MAGIC:
        if head.startswith(magic):
            return f"is {what}, not text"
    if head[_TAR[0] : _TAR[0] + len(_TAR[1])] == _TAR[1]:
        return "is a tar archive; unpack it and name the files"
    solid = _HOLE.sub(b"", head)
    control = len(solid) - len(solid.translate(None, _CONTROL))
    if solid and control > _MOST_CONTROL * len(solid):
        return "is binary data, not text"
    return ""
