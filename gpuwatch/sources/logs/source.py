"""The log of an engine as a source: a file, standard input, a journald unit, a container or a pod."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpuwatch.engines.events import EVENTS
from gpuwatch.model import Batch, Labels, Reason, SourceError, series
from gpuwatch.sources.logs.book import LogBook
from gpuwatch.sources.logs.commands import CommandInput, StdinInput, command_for
from gpuwatch.sources.logs.files import FileInput
from gpuwatch.sources.logs.lines import LogLimits, RawLine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.clock import Clock

_DEFAULTS = LogLimits()


class LogInput(Protocol):
    """Where lines come from. `note` is a remark about the present state, or empty."""

    note: str

    def read(self) -> list[RawLine]:
        """Return new lines without waiting; raise `SourceError` where there can be none."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


@dataclass(frozen=True, slots=True)
class _Shape:
    """What decides the set of series."""

    server: str
    oom: tuple[str, ...]


class LogSource:
    """Follows one log and tells what it says.

    `spec` is a path, ``-``, ``journal:UNIT``, ``docker:NAME`` or ``k8s:NAMESPACE/POD[/CONTAINER]``. `server` is the
    engine's ``host:port`` where it is known; otherwise the log's own words tell it, matched with `servers`: the names
    of the engines that are scraped.

    Lines written before `since` (milliseconds since the epoch; default: now) give facts and are shown, but count as
    nothing that happens now. Counters start at 0 in the first batch, so that a rule sees their first step.
    """

    def __init__(
        self,
        spec: str,
        host: str,
        clock: Clock,
        server: str = "",
        *,
        since: int | None = None,
        servers: Callable[[], Sequence[str]] = tuple,
        limits: LogLimits = _DEFAULTS,
    ) -> None:
        self.spec = spec
        self.name = "stdin" if spec == "-" else spec
        self.target = f"log:{self.name}"
        self._host = host
        self._clock = clock
        self._servers = servers
        self._book = LogBook(self.name, limits, clock.now() if since is None else since, server)
        self._input: LogInput | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._limits = limits
        self._shape: _Shape | None = None
        self._keys: tuple[Labels, ...] = ()
        self._shown: tuple[int, int, tuple[int, ...]] = (0, 0, (0,) * len(EVENTS))

    @property
    def server(self) -> str:
        """The engine's ``host:port`` as far as it is known."""
        return self._book.server

    def poll(self) -> Batch:
        """Read what is new; never waits for more."""
        with self._lock:
            return self._poll()

    def close(self) -> None:
        """Close the file, or end the program that prints the log; it is not opened again."""
        with self._lock:
            self._closed = True
            self._drop()

    def _poll(self) -> Batch:
        begun = self._clock.monotonic()
        now = self._clock.now()
        try:
            lines = self._read()
        except SourceError as error:
            took = self._clock.monotonic() - begun
            return Batch(self.target, now, up=False, reason=error.reason, detail=str(error), duration=took)
        assert self._input is not None
        known = self._servers()
        taken = self._book.take(lines, now, known)
        keys, values = self._series()
        return Batch(
            self.target,
            now,
            keys,
            values,
            detail=self._input.note,
            duration=self._clock.monotonic() - begun,
            facts=tuple(taken.facts),
            events=tuple(taken.events),
            lines=tuple(taken.lines),
        )

    def _read(self) -> list[RawLine]:
        if self._closed:
            raise SourceError(Reason.FAILED, f"{self.name}: closed")
        try:
            if self._input is None:
                self._input = _open(self.spec, self._clock, self._limits)
            return self._input.read()
        except OSError as error:
            # A disk or network file system failed; the next poll opens the log anew.
            self._drop()
            raise SourceError(Reason.FAILED, f"{self.name}: {error.strerror or error}") from None

    def _drop(self) -> None:
        source, self._input = self._input, None
        if source is not None:
            source.close()

    def _series(self) -> tuple[tuple[Labels, ...], list[float]]:
        """Return the series and their values.

        When the set changes, the counters keep the values they had for one more poll: a new series must be seen before
        its first step.
        """
        book = self._book
        shape = _Shape(book.server, tuple(book.oom))
        fresh = self._shape is None or shape.server != self._shape.server
        if shape != self._shape:
            self._shape = shape
            self._keys = self._key_set(shape)
        if not fresh:
            self._shown = (book.lines, book.unreadable, tuple(book.counts[event] for event in EVENTS))
        lines, unreadable, counts = self._shown
        values = [float(lines), float(unreadable), *map(float, counts)]
        values += [float(book.oom[name]) for name in shape.oom]
        return self._keys, values

    def _key_set(self, shape: _Shape) -> tuple[Labels, ...]:
        common = {"host": self._host, "log": self.name, "server": shape.server}
        return (
            series("gpuwatch_log_lines_total", **common),
            series("gpuwatch_log_unreadable_lines_total", **common),
            *(series("gpuwatch_log_events_total", event=event, **common) for event in EVENTS),
            *(series(f"gpuwatch_log_oom_{name}_bytes", **common) for name in shape.oom),
        )


def _open(spec: str, clock: Clock, limits: LogLimits) -> LogInput:
    if spec == "-":
        return StdinInput(clock, limits)
    command = command_for(spec, limits.backlog)
    if command is not None and not Path(spec).exists():
        return CommandInput(command, clock, limits)
    return FileInput(spec, clock, limits)
