"""Following one log file: rotation, truncation, unfinished lines, a file that is missing yet, one that is too large."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.model import Reason, SourceError
from gpuwatch.sources.logs.lines import LineSplitter, LogLimits, RawLine

if TYPE_CHECKING:
    from gpuwatch.clock import Clock

# The head is compared to notice a file that was emptied and has grown past our place again.
_HEAD = 256
# A rotated file is read to its end first; while the new one is empty, the old one is watched for this many seconds.
_ROTATION_GRACE = 2.0


class FileInput:
    """Reads new lines of a file. A file that is there at the first look is history; one that appears later is not."""

    def __init__(self, path: str, clock: Clock, limits: LogLimits) -> None:
        self._path = path
        self._clock = clock
        self._limits = limits
        self._splitter = LineSplitter(limits.line)
        self._fd: int | None = None
        self._inode = (0, 0)
        self._place = 0
        self._head = b""
        self._past_until = 0
        self._gap_at: tuple[int, int] | None = None
        self._looked = False
        self._idle_since: float | None = None
        self._replaced_at: float | None = None
        self._standing = ""
        self.note = ""

    def read(self) -> list[RawLine]:
        """Return the lines since the last call, at most about `LogLimits.per_poll` bytes of them.

        Raises:
            SourceError: the file is missing, may not be read, or is no file.
        """
        self.note = self._standing
        if self._fd is None:
            self._open()
        self._looked = True
        lines = self._restarted() + self._read_some()
        if self._at_end():
            lines += self._follow_path()
        return lines

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _open(self) -> None:
        try:
            fd = os.open(self._path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            self._looked = True
            raise SourceError(
                Reason.NOT_FOUND, f"{self._path}: no such file; it is read as soon as it appears"
            ) from None
        except PermissionError:
            self._looked = True
            raise SourceError(Reason.NO_PERMISSION, f"{self._path}: no permission to read it") from None
        except (OSError, ValueError) as error:
            self._looked = True
            raise SourceError(Reason.FAILED, f"{self._path}: {getattr(error, 'strerror', None) or error}") from None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            self._looked = True
            raise SourceError(Reason.FAILED, f"{self._path}: not a regular file; a stream is read with --log -")
        self._fd = fd
        self._inode = (status.st_dev, status.st_ino)
        self._start(status.st_size, past=not self._looked)

    def _start(self, size: int, *, past: bool) -> None:
        """Begin at the top of a file of `size` bytes."""
        self._place = 0
        self._head = b""
        self._past_until = size if past else 0
        self._gap_at = None
        self._idle_since = None
        self._standing = ""
        if past and size > self._limits.whole_file:
            self._gap_at = (self._limits.part, size - self._limits.part)
            self._standing = self.note = f"the file has {size / 2**20:.0f} MiB; only its start and end were read"
        self._splitter.restart()

    def _read_some(self) -> list[RawLine]:
        assert self._fd is not None
        lines: list[RawLine] = []
        budget = self._limits.per_poll
        while budget > 0:
            want = min(budget, 2**18)
            if self._gap_at is not None:
                want = min(want, self._gap_at[0] - self._place)
            past = self._place < self._past_until
            data = os.pread(self._fd, min(want, self._past_until - self._place) if past else want, self._place)
            if not data:
                break
            if len(self._head) < _HEAD and self._place <= len(self._head):
                self._head = (self._head[: self._place] + data)[:_HEAD]
            self._place += len(data)
            budget -= len(data)
            lines += self._splitter.feed(data, past=past)
            if self._gap_at is not None and self._place >= self._gap_at[0]:
                self._skip_gap()
        self._hold(lines)
        return lines

    def _skip_gap(self) -> None:
        """Go to the part of a large file near its end, and there to the start of a line."""
        assert self._fd is not None
        assert self._gap_at is not None
        self._place = self._gap_at[1]
        self._gap_at = None
        self._splitter.restart(counting=False)
        around = os.pread(self._fd, self._limits.line, self._place)
        self._place += around.find(b"\n") + 1

    def _hold(self, lines: list[RawLine]) -> None:
        """Give up waiting for the end of an unfinished line after a while."""
        now = self._clock.monotonic()
        if lines or not self._splitter.waiting:
            self._idle_since = None if not self._splitter.waiting else now
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= self._limits.partial:
            lines += self._splitter.flush(past=self._place <= self._past_until)
            self._idle_since = None

    def _at_end(self) -> bool:
        assert self._fd is not None
        return self._place >= os.fstat(self._fd).st_size

    def _restarted(self) -> list[RawLine]:
        """Go back to the start of a file that was emptied; return what was held of its old end."""
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        if size >= self._place and os.pread(self._fd, len(self._head), 0) == self._head:
            return []
        lines = self._splitter.flush()
        self._start(size, past=False)
        self.note = "the file was emptied and is read from its start again"
        return lines

    def _follow_path(self) -> list[RawLine]:
        """At the end of the open file: see whether its name means another file now."""
        try:
            status = Path(self._path).stat()
        except OSError:
            self.note = "the file has lost its name; what is still written to it is read"
            return []
        if (status.st_dev, status.st_ino) == self._inode:
            self._replaced_at = None
            return []
        now = self._clock.monotonic()
        if self._replaced_at is None:
            self._replaced_at = now
        # The old file may get a few more lines from a writer that has not reopened its log yet.
        if status.st_size == 0 and now - self._replaced_at < _ROTATION_GRACE:
            return []
        lines = self._splitter.flush()
        self.close()
        self._replaced_at = None
        self._open()
        self.note = "the file was replaced; the new one is read"
        return lines + self._read_some()
