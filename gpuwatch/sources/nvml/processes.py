"""The process tree above the processes that use GPUs, from psutil, looked up once per process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatch.clock import Clock

REFRESH_SECONDS = 10.0
_INITIAL_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of include/linux/proc_ns.h


def in_initial_namespace() -> bool:
    """Say whether this process sees the machine's own process ids, as the NVIDIA driver does."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _INITIAL_NAMESPACE
    except OSError:
        return True


class ProcessTree:
    """Parents of processes. A process is looked up when it is first seen and again every `REFRESH_SECONDS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parents: dict[int, int | None] = {}
        self._refreshed = clock.monotonic()

    def ancestors(self, pids: Iterable[int]) -> Mapping[int, tuple[int, ...]]:
        """Return the ancestors, nearest first, of those `pids` that exist; the others are left out."""
        now = self._clock.monotonic()
        if now - self._refreshed >= REFRESH_SECONDS:
            self._refreshed = now
            self._parents.clear()
        return {pid: self._above(pid) for pid in pids if self._parent(pid) is not None}

    def _above(self, pid: int) -> tuple[int, ...]:
        found: list[int] = []
        while (parent := self._parent(pid)) and parent not in found:
            found.append(parent)
            pid = parent
        return tuple(found)

    def _parent(self, pid: int) -> int | None:
        """Return the parent of a process, 0 where it has none that can be seen, None when it does not exist."""
        if pid not in self._parents:
            self._parents[pid] = _parent(pid)
        return self._parents[pid]


def _parent(pid: int) -> int | None:
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return None
    except psutil.Error:
        return 0
