"""Where the kernel's log is read: /dev/kmsg, or journalctl where that may not be read."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.engines.log_prefixes import strip_prefix, time_of
from gpuwatch.model import Reason, SourceError
from gpuwatch.sources.logs.commands import CommandInput, LogCommand
from gpuwatch.sources.logs.lines import LogLimits

if TYPE_CHECKING:
    from gpuwatch.clock import Clock

KMSG = "/dev/kmsg"
RECORDS_PER_POLL = 5000
_RECORD_BYTES = 8192
"""The longest record of /dev/kmsg (CONSOLE_EXT_LOG_MAX of kernel/printk)."""
_HEAD = re.compile(rb"^(?P<priority>\d+),(?P<sequence>\d+),(?P<micros>\d+),[^;]*;(?P<text>.*)$", re.DOTALL)
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_SLACK_MS = 1000
_BLIND = ("insufficient permissions", "not seeing messages", "no journal files")
"""What journalctl says when it goes on running without showing anything."""


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One message of the kernel. `time` in milliseconds since the epoch, None for now; `past`: older than our start."""

    text: str
    time: int | None = None
    past: bool = False


def parse_record(data: bytes) -> tuple[int, str] | None:
    """Return (microseconds since boot, message) of one record of /dev/kmsg; None for a continuation or nonsense.

    Source of the form: Documentation/ABI/testing/dev-kmsg of the kernel. Lines that begin with a space are the
    record's dictionary; bytes that are not printable come as a backslash, ``x`` and two digits.
    """
    found = _HEAD.match(data)
    if found is None:
        return None
    text = found["text"].decode("utf-8", "replace")
    return int(found["micros"]), _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), text)


class KmsgInput:
    """Reads /dev/kmsg without waiting. What is in it when it is opened is past.

    Args:
        clock: gives the times; a record's own time is counted from boot.
        path: the device; a file or a pipe with the same records will do.
    """

    note = ""

    def __init__(self, clock: Clock, path: str = KMSG) -> None:
        self._clock = clock
        self._path = path
        self._fd: int | None = None
        self._past = True
        self._rest = b""
        self._lost = False

    def read(self) -> list[KernelLine]:
        """Return the lines since the last call.

        Raises:
            SourceError: the device cannot be opened or read.
        """
        try:
            if self._fd is None:
                self._open()
            return self._records()
        except OSError as error:
            self.close()
            raise self._why(error) from None

    def close(self) -> None:
        """Close the device; the next read opens it again and goes on with what is new."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not self._past:
            with contextlib.suppress(OSError):
                os.lseek(self._fd, 0, os.SEEK_END)

    def _records(self) -> list[KernelLine]:
        assert self._fd is not None
        lines: list[KernelLine] = []
        self._lost = False
        for _ in range(RECORDS_PER_POLL):
            try:
                data = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                self._past = False
                break
            except BrokenPipeError:
                # Records were overwritten before they were read; the next read goes on with the oldest there is.
                self._lost = True
                continue
            if not data:
                self._past = False
                break
            lines += self._split(data)
        self.note = "records were overwritten before they could be read" if self._lost else ""
        return lines

    def _split(self, data: bytes) -> list[KernelLine]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = []
        for item in whole:
            record = parse_record(item)
            if record is not None:
                micros, text = record
                time = None
                if self._past:
                    age = max(0.0, self._clock.monotonic() - micros / 1e6)
                    time = self._clock.now() - int(age * 1000)
                lines.append(KernelLine(text, time, self._past))
        return lines

    def _why(self, error: OSError) -> SourceError:
        if isinstance(error, PermissionError):
            text = "may not be read (kernel.dmesg_restrict): run as root or with CAP_SYSLOG"
            return SourceError(Reason.NO_PERMISSION, f"{self._path} {text}")
        reason = Reason.NOT_FOUND if isinstance(error, FileNotFoundError) else Reason.FAILED
        return SourceError(reason, f"{self._path}: {error.strerror or error}")


class JournalInput:
    """Follows the kernel's messages in the journal; `since` (milliseconds) parts the past from the present."""

    def __init__(self, clock: Clock, since: int, limits: LogLimits | None = None) -> None:
        self._clock = clock
        self._since = since
        limits = limits or LogLimits()
        arguments = ("-k", "-o", "short-iso-precise", "-f", "-n", str(limits.backlog), "--no-pager")
        self._command = CommandInput(LogCommand("journalctl", arguments, "the kernel's journal"), clock, limits)
        self.note = ""

    def read(self) -> list[KernelLine]:
        """Return the lines since the last call.

        Raises:
            SourceError: journalctl is missing, has ended, or runs without seeing the kernel's messages.
        """
        lines = self._command.read()
        words = self._command.note
        if not lines and any(blind in words.lower() for blind in _BLIND):
            raise SourceError(Reason.NO_PERMISSION, f"journalctl -k shows nothing: {words}")
        self.note = words
        ahead = self._clock.ahead()
        found = []
        for line in lines:
            prefix = strip_prefix(line.data.decode("utf-8", "replace"))
            time = time_of(prefix.time, self._clock.now() - ahead) if prefix.time else None
            time = None if time is None else time + ahead  # the journal goes by the machine's clock
            past = time is not None and time < self._since - _SLACK_MS
            found.append(KernelLine(prefix.message, time if past else None, past))
        return found

    def close(self) -> None:
        """End journalctl."""
        self._command.close()
