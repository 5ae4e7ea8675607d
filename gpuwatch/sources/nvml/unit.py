"""Asking one handle, with what is absent and why. Runs in the NVML worker process only.

A unit is a whole GPU or one MIG device of it. All units of one GPU share an `Asker`, which knows the call that is
being made right now and the codes that the present tick has seen.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuwatch.sources.nvml.api import (
    GPU_IS_LOST,
    GPU_NOT_FOUND,
    LIBRARY_GONE,
    NOT_SUPPORTED,
    OUT_OF_RANGE,
    UNSUPPORTED,
    CallFailed,
    ask,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatch.sources.nvml.api import ProcessLister
    from gpuwatch.sources.nvml.memory import Memory

RETRY_TICKS = 100
"""After how many ticks a call that this card does not support is tried again."""

LIMITS = {"celsius": (-60.0, 200.0), "ratio": (0.0, 1.0), "hertz": (0.0, 2e10), "watts": (0.0, 1e5)}
"""Plausible range by unit. Drivers have reported a memory clock as utilisation and 2^64-18 as percent."""

GONE = frozenset({GPU_IS_LOST, GPU_NOT_FOUND})


def plausible(name: str, value: float) -> bool:
    """Say whether a value lies in the range of its unit, which is the last word of its name."""
    low, high = LIMITS.get(name.rpartition("_")[2], (0.0, 1.8e19))
    return low <= value <= high


class Asker:
    """Makes the calls of one GPU and keeps what they said during the present tick.

    Args:
        give_up: ends the worker; takes an NVML code and a text.
    """

    def __init__(self, give_up: Callable[[int, str], None]) -> None:
        self.give_up = give_up
        self.doing = ""
        self.since = 0.0
        self.ok_at = 0.0
        self.tick = 0
        self.codes: set[int] = set()
        self.answers = 0

    def start_tick(self) -> None:
        """Forget the answers of the last tick."""
        self.tick += 1
        self.codes.clear()
        self.answers = 0

    def call(self, function: str, call: Callable[[], Any]) -> Any:
        """Make one call; while it lasts `doing` and `since` tell the sign of life. Raises CallFailed."""
        self.since, self.doing = time.monotonic(), function
        try:
            value = call()
        except CallFailed as failure:
            self.codes.add(failure.code)
            if failure.code in LIBRARY_GONE:
                self.give_up(failure.code, function)
            raise
        finally:
            self.doing = ""
        self.answers += 1
        return value

    def optional(self, function: str, call: Callable[[], Any]) -> Any:
        """Make a call that the device can live without; None on failure. Raises CallFailed when the device is gone."""
        try:
            return self.call(function, call)
        except CallFailed as failure:
            if failure.code in GONE:
                raise
            return None


class Unit:
    """What is reported under one label.

    Args:
        label: NVML index, with ``:slot`` for a MIG device.
        handle: the library's handle.
        identity: what the ``id`` message says.
        asker: the asker of the GPU.
    """

    def __init__(self, label: str, handle: Any, identity: dict[str, Any], asker: Asker) -> None:
        self.label = label
        self.handle = handle
        self.identity = identity
        self.memory: Memory | None = None
        self.absent: dict[str, int] = {}
        self._asker = asker
        self._again: dict[str, int] = {}
        self._shape: tuple[Any, ...] = ()
        self._number = 0

    def attempt(self, name: str, function: str, call: Callable[[], Any]) -> Any:
        """Make the call behind `name`; None and a recorded absence on failure.

        A call that answered "not supported" is left out for `RETRY_TICKS` ticks.
        """
        if self._again.get(name, 0) > self._asker.tick:
            return None
        try:
            value = self._asker.call(function, call)
        except CallFailed as failure:
            self.absent[name] = failure.code
            if failure.code in UNSUPPORTED:
                self._again[name] = self._asker.tick + RETRY_TICKS
            return None
        self.absent.pop(name, None)
        return value

    def value(self, name: str, function: str, *args: Any) -> Any:
        """Ask a getter of pynvml for the value behind `name`."""
        return self.attempt(name, function, lambda: ask(function, self.handle, *args))

    def take(self, values: dict[str, float], name: str, value: float) -> None:
        """Put a value among `values` unless it is impossible."""
        if plausible(name, value):
            values[name] = value
            self.absent.pop(name, None)
        else:
            self.absent[name] = OUT_OF_RANGE

    def take_rows(
        self,
        values: dict[str, float],
        function: str,
        name: str,
        read: Callable[[Any], Iterable[tuple[str, float | None, int]]],
    ) -> None:
        """Put the rows of a batched call among `values`; `name` is marked absent when the call itself fails."""
        for row, value, code in self.attempt(name, function, lambda: read(self.handle)) or ():
            if value is None:
                self.absent[row] = code
            else:
                self.take(values, row, value)

    def read_memory(self) -> None:
        """Read used memory; a failure is an absence of `memory_used_bytes`."""
        if self.memory is not None:
            self.attempt("memory_used_bytes", "nvmlDeviceGetMemoryInfo", self.memory.read)

    def memory_values(self) -> dict[str, float]:
        """Read memory and return its figures by name; empty when it cannot be read."""
        if self.memory is None:
            self.absent["memory_used_bytes"] = NOT_SUPPORTED
            return {}
        self.read_memory()
        values = {} if "memory_used_bytes" in self.absent else self.memory.take()
        if values and "memory_reserved_bytes" not in values:
            self.absent["memory_reserved_bytes"] = NOT_SUPPORTED
        return values

    def processes(self, lister: ProcessLister) -> dict[int, int | None] | None:
        """Return bytes by process id; None and an absence when the driver does not list them."""
        found: dict[int, int | None] | None = self.attempt(
            "processes", "nvmlDeviceGetComputeRunningProcesses", lambda: lister.read(self.handle)
        )
        return found

    def messages(
        self, state: str, values: dict[str, float], processes: dict[int, int | None] | None
    ) -> list[list[Any]]:
        """Return the tick, preceded by its keys when the set of values or absences has changed."""
        messages: list[list[Any]] = []
        shape = (tuple(values), tuple(self.absent.items()))
        if shape != self._shape or not self._number:
            self._shape = shape
            self._number += 1
            messages.append(["keys", self.label, self._number, list(values), dict(self.absent)])
        listed = None if processes is None else sorted(processes.items())
        messages.append(["tick", self.label, time.monotonic(), state, self._number, list(values.values()), listed])
        return messages
