"""The files of one recording: where a full part goes, and how much is kept."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_PART = re.compile(r"\.(\d{6,})$")
_SHARE = 8
"""A limit is kept in this many parts: so much of it at most is lost when the oldest one goes."""
_LEAST_BYTES, _MOST_BYTES = 64 << 10, 64 << 20
_LEAST_SECONDS, _MOST_SECONDS = 60.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a recording is kept: at most `bytes` in all its parts, and at most `seconds` back; 0: everything."""

    bytes: int = 0
    seconds: float = 0.0

    @property
    def part_bytes(self) -> int:
        """The size at which a part is full; 0: never."""
        return min(max(self.bytes // _SHARE, _LEAST_BYTES), _MOST_BYTES) if self.bytes else 0

    @property
    def part_seconds(self) -> float:
        """The age at which a part is full; 0: never."""
        return min(max(self.seconds / _SHARE, _LEAST_SECONDS), _MOST_SECONDS) if self.seconds else 0.0


def older_parts(path: str | Path) -> list[Path]:
    """Return the full parts of the recording at `path`, the oldest first."""
    whole = Path(path)
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(whole.parent):  # noqa: PTH208  # names are all that is needed
            match = _PART.search(name)
            if match is not None and name[: match.start()] == whole.name:
                found.append((int(match[1]), whole.parent / name))
    return [part for _, part in sorted(found)]


def parts_of(path: str | Path) -> list[Path]:
    """Return the files of the recording at `path` in the order in which they are read.

    The file itself comes last, and stands there even if it does not exist and nothing else does.
    """
    whole = Path(path)
    older = older_parts(whole)
    if not older:
        return [whole]
    try:
        own = whole.stat()
    except OSError:
        return older  # the recorder was killed between two parts
    # While one part is put in the place of another, both names may lead to the same file.
    return [*(part for part in older if not _same(part, own)), whole]


def next_part(path: str | Path) -> Path:
    """Return the name for the next full part."""
    older = older_parts(path)
    last = _PART.search(older[-1].name) if older else None
    number = int(last[1]) if last is not None else 0
    return Path(f"{path}.{number + 1:06}")


def remove_old(path: str | Path, keep: Keep, now: int) -> None:
    """Remove the oldest parts until the rest and one part more are within `keep`.

    Args:
        path: The recording.
        keep: How much is kept.
        now: Milliseconds since the epoch.
    """
    parts = []
    for part in older_parts(path):
        with contextlib.suppress(OSError):
            about = part.stat()
            parts.append((part, about.st_size, about.st_mtime))
    total = sum(size for _, size, _ in parts)
    for part, size, written in parts:
        too_large = keep.bytes and total + keep.part_bytes > keep.bytes
        too_old = keep.seconds and now / 1000 - written > keep.seconds
        if not too_large and not too_old:
            break
        part.unlink(missing_ok=True)
        total -= size


def remove_oldest(path: str | Path) -> bool:
    """Remove the oldest full part; return whether there was one."""
    for part in older_parts(path):
        with contextlib.suppress(OSError):
            part.unlink()
            return True
    return False


def _same(part: Path, about: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(part.stat(), about)
    return False
