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
        self._known: dict[int, tuple[int, ...]] = {}
        self._missing: set[int] = set()
        self._refreshed = clock.monotonic()

    def ancestors(self, pids: Iterable[int]) -> Mapping[int, tuple[int, ...]]:
        """Return the ancestors, nearest first, of those `pids` that exist; the others are left out."""
        now = self._clock.monotonic()
        if now - self._refreshed >= REFRESH_SECONDS:
            self._refreshed = now
            self._known.clear()
            self._missing.clear()
        found = {}
        for pid in pids:
            if pid not in self._known and pid not in self._missing:
                parents = _parents(pid)
                if parents is None:
                    self._missing.add(pid)
                else:
                    self._known[pid] = parents
            if pid in self._known:
                found[pid] = self._known[pid]
        return found


def _parents(pid: int) -> tuple[int, ...] | None:
    """Return the ancestors of a process, nearest first; None when it does not exist."""
    try:
        return tuple(parent.pid for parent in psutil.Process(pid).parents())
    except psutil.NoSuchProcess:
        return None
    except psutil.Error:
        return ()
