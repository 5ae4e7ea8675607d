"""Logs that a command prints: journald units, containers, pods. And standard input."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.config_checks import log_name
from gpuwatch.model import Reason, SourceError
from gpuwatch.sources.logs.lines import LineSplitter, LogLimits, RawLine

if TYPE_CHECKING:
    from gpuwatch.clock import Clock

_STAMP = re.compile(rb"^\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d)(?= )")
_FIRST_RETRY = 1.0
# A child that has delivered for this long, in seconds, starts the back-off anew when it ends.
_SETTLED = 30.0
PROVEN = 3.0
"""A child that has run for this long, in seconds, follows the log, also where nothing new is in it."""
_WORDS = 200
_MOST_WORDS = 20
_SHOWN_WORDS = 600


@dataclass(frozen=True, slots=True)
class LogCommand:
    """A program that prints a log and goes on printing.

    The lines of the log begin with a time that names its zone; those of a journal may go on, indented (`indents`). What
    else the program prints are its own words.
    """

    program: str
    arguments: tuple[str, ...]
    what: str
    indents: bool = False


def command_for(spec: str, backlog: int) -> LogCommand | None:
    """Return the command that follows `spec`, with `backlog` old lines first; None where `spec` is a file or ``-``.

    Raises:
        SourceError: the name is not one that the program could know.
    """
    try:
        named = log_name(spec)
    except ValueError as error:
        raise SourceError(Reason.FAILED, f"log {spec!r}: allowed is {error}") from None
    if named is None:
        return None
    (kind, found), lines = named, str(backlog)
    name = found.group()
    if kind == "journal":
        journal = ("-u", name, "-o", "short-iso-precise", "-f", "-n", lines, "--no-pager")
        return LogCommand("journalctl", journal, f"the journal of {name}", indents=True)
    if kind == "docker":
        return LogCommand("docker", ("logs", "--follow", "--timestamps", "--tail", lines, name), f"container {name}")
    arguments = ("logs", "--follow", "--timestamps", f"--tail={lines}", f"--namespace={found['ns']}", found["pod"])
    container = (f"--container={found['c']}",) if found["c"] else ()
    return LogCommand("kubectl", (*arguments, *container), f"pod {name}")


class CommandInput:
    """Runs a command and reads what it prints. Started again with a growing pause when it ends.

    It counts as read only while it is proven that the command follows the log: a new line has come, or it has run for
    a while (`PROVEN`). What it says itself, such as an error, is not part of the log.
    """

    def __init__(self, command: LogCommand, clock: Clock, limits: LogLimits) -> None:
        self._command = command
        self._clock = clock
        self._limits = limits
        self._splitter = LineSplitter(limits.line)
        self._child: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._pause = _FIRST_RETRY
        self._retry_at: float | None = None
        self._last_stamp = b""
        self._resume_after = b""
        self._repeating = False
        text = f"{command.what}: {command.program} has been started and has said nothing yet"
        self._why = SourceError(Reason.NEVER_SEEN, text)
        self._proven = False
        self._words: list[str] = []
        self.note = ""

    def read(self) -> list[RawLine]:
        """Return the lines since the last call.

        Raises:
            SourceError: the program is missing, ended and waits to be started again, or has not proven itself yet.
        """
        if self._child is None:
            if self._retry_at is not None and self._clock.monotonic() < self._retry_at:
                raise self._why
            self._start()
        assert self._child is not None
        assert self._child.stdout is not None
        lines, ended = _drain(self._child.stdout.fileno(), self._splitter, self._limits.per_poll)
        if ended:
            lines += self._splitter.flush()
        lines = [line for line in lines if self._of_log(line) and not self._seen(line)]
        ran = self._clock.monotonic() - self._started
        self._proven = self._proven or bool(lines) or (ran >= PROVEN and not ended)
        if ended:
            self._ended(ran)
        if not lines and (ended or not self._proven):
            raise self._why
        self.note = "" if ended else self._said()
        return lines

    def close(self) -> None:
        """End the program."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.stdout is not None:
            child.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.5)

    def _start(self) -> None:
        from shutil import which  # noqa: PLC0415  # only for a log that a command follows

        path = which(self._command.program)
        if path is None:
            text = f"{self._command.what}: the program {self._command.program} is not on PATH"
            self._fail(SourceError(Reason.NOT_FOUND, text))
            raise self._why
        try:
            self._child = subprocess.Popen(  # noqa: S603  # an argument list without a shell; names are checked above
                [path, *self._command.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
        except OSError as error:
            self._fail(SourceError(Reason.FAILED, f"{self._command.program}: {error.strerror}"))
            raise self._why from None
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        self._splitter.restart(counting=False)
        self._started = self._clock.monotonic()
        self._proven, self._words = False, []
        self._resume_after = self._last_stamp
        self._repeating = bool(self._resume_after)

    def _of_log(self, line: RawLine) -> bool:
        """Whether the line is part of the log. The program's own words are remembered, each once."""
        if _STAMP.match(line.data) or (self._command.indents and line.data[:1].isspace()):
            return True
        words = line.data.decode("utf-8", "replace").strip()[:_WORDS]
        if words and words not in self._words and len(self._words) < _MOST_WORDS:
            self._words.append(words)
        return False

    def _said(self) -> str:
        """Return what the program said itself in one line, what looks like an error first."""
        return "; ".join(sorted(self._words, key=lambda words: "error" not in words.lower()))[:_SHOWN_WORDS]

    def _seen(self, line: RawLine) -> bool:
        """Whether the line was read before the program was started again. Remembers the newest time of a line."""
        stamp = _STAMP.match(line.data)
        if stamp is not None:
            self._last_stamp = max(self._last_stamp, stamp[0])
            self._repeating = bool(self._resume_after) and stamp[0] <= self._resume_after
        return self._repeating

    def _ended(self, ran: float) -> None:
        child = self._child
        assert child is not None
        self.close()
        words, status = self._said(), child.returncode
        end = f"ended with status {status}" + (f": {words}" if status and words else "")
        reason = Reason.FAILED
        if "No such container" in words or "NotFound" in words:
            reason = Reason.NOT_FOUND
        elif "permission denied" in words.lower() or "Forbidden" in words:
            reason = Reason.NO_PERMISSION
        self._pause = _FIRST_RETRY if ran >= _SETTLED else self._pause
        self._fail(SourceError(reason, f"{self._command.what}: {self._command.program} {end}"))

    def _fail(self, why: SourceError) -> None:
        self._why = why
        self._retry_at = self._clock.monotonic() + self._pause
        self._pause = min(2 * self._pause, self._limits.retry)


class StdinInput:
    """Reads standard input. Its end is not a failure: what was read stays valid."""

    def __init__(self, clock: Clock, limits: LogLimits, fd: int | None = None) -> None:
        self._clock = clock
        self._limits = limits
        self._fd = fd
        self._splitter = LineSplitter(limits.line)
        self._ended = False
        self._silent = True
        self._idle_since: float | None = None
        self.note = ""

    def read(self) -> list[RawLine]:
        """Return the lines since the last call.

        Raises:
            SourceError: there is no standard input, or it has ended without a line.
        """
        if self._ended:
            return self._checked([])
        try:
            fd = sys.stdin.fileno() if self._fd is None else self._fd
            lines, self._ended = _drain(fd, self._splitter, self._limits.per_poll, poll=True)
        except (OSError, ValueError, AttributeError):
            raise SourceError(Reason.NOT_FOUND, "standard input is closed") from None
        now = self._clock.monotonic()
        if lines or not self._splitter.waiting or self._idle_since is None:
            self._idle_since = now
        waited = self._splitter.waiting and now - self._idle_since >= self._limits.partial
        if self._ended or waited:
            lines += self._splitter.flush()
        if self._ended:
            self.note = "standard input has ended"
        return self._checked(lines)

    def _checked(self, lines: list[RawLine]) -> list[RawLine]:
        self._silent = self._silent and not lines
        if self._silent and self._ended:
            raise SourceError(Reason.NOT_FOUND, "standard input has ended without a line")
        return lines

    def close(self) -> None:
        """Leave standard input to whoever owns it."""


def _drain(fd: int, splitter: LineSplitter, budget: int, *, poll: bool = False) -> tuple[list[RawLine], bool]:
    """Read what is there, at most `budget` bytes; return (lines, whether the writer has closed).

    A shared descriptor such as standard input is asked (`poll`) before each read, since making it non-blocking would
    make it so for every program that shares it.
    """
    lines: list[RawLine] = []
    asker = select.poll() if poll else None
    if asker is not None:
        asker.register(fd, select.POLLIN)
    while budget > 0:
        if asker is not None and not asker.poll(0):
            return lines, False
        try:
            data = os.read(fd, 2**16)
        except BlockingIOError:
            return lines, False
        if not data:
            return lines, True
        budget -= len(data)
        lines += splitter.feed(data)
    return lines, False
