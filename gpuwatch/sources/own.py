"""What gpuwatch itself costs, CPU time and memory of this process and its NVML worker, and whether it gets to run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from gpuwatch.model import Absence, Batch, Reason, series

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.clock import Clock
    from gpuwatch.model import Labels


THREADS = Path("/proc/self/task")


class Waiting:
    """How long the threads of a process were ready to run and had no processor.

    The kernel counts it for each thread: second number of ``/proc/PID/task/TID/schedstat``, nanoseconds
    (Documentation/scheduler/sched-stats.rst). `threads` is the folder ``/proc/PID/task``.
    """

    def __init__(self, threads: Path = THREADS) -> None:
        self._threads = threads
        self._waited: dict[str, int] = {}
        self.since_last()

    def since_last(self) -> float | None:
        """Return the seconds since the last call, summed over the threads; None where the kernel does not tell."""
        waited: dict[str, int] = {}
        try:
            for thread in self._threads.iterdir():
                try:
                    waited[thread.name] = int((thread / "schedstat").read_bytes().split()[1])
                except (FileNotFoundError, ProcessLookupError):
                    if not thread.is_dir():  # it has just ended
                        continue
                    raise
        except (OSError, ValueError, IndexError):
            return None
        before, self._waited = self._waited, waited
        return sum(max(0, now - before.get(thread, 0)) for thread, now in waited.items()) / 1e9


class OwnSource:
    """Reads our own processes. `children` returns the process ids of the workers that run now.

    Args:
        threads: Folder of our own threads in ``/proc``.
    """

    target = "own"

    def __init__(
        self, host: str, clock: Clock, children: Callable[[], Sequence[int]] = tuple, *, threads: Path = THREADS
    ) -> None:
        self._clock = clock
        self._waiting = Waiting(threads)
        self._read = clock.monotonic()
        self._starved = series("gpuwatch_process_starved_ratio", host=host)
        self._children = children
        self._process = psutil.Process()
        self._cpu: dict[int, float] = {}
        self._keys: tuple[Labels, ...] = (
            series("gpuwatch_process_cpu_seconds_total", host=host),
            series("gpuwatch_process_resident_bytes", host=host),
        )
        self._all_keys = (*self._keys, self._starved)

    def poll(self) -> Batch:
        """Read CPU time and memory; the CPU time of a worker that ended stays counted."""
        begun = self._clock.monotonic()
        resident = 0
        for process in [self._process, *self._workers()]:
            try:
                times = process.cpu_times()
                resident += process.memory_info().rss
            except psutil.Error:
                continue
            self._cpu[process.pid] = times.user + times.system
        keys, values = self._keys, [sum(self._cpu.values()), float(resident)]
        absent: tuple[Absence, ...] = ()
        waited, passed = self._waiting.since_last(), begun - self._read
        self._read = begun
        if waited is None:
            absent = (Absence(self._starved, Reason.NOT_SUPPORTED, "the kernel does not count how long threads wait"),)
        elif passed > 0:
            keys, values = self._all_keys, [*values, waited / passed]
        return Batch(
            self.target, self._clock.now(), keys, values, absent=absent, duration=self._clock.monotonic() - begun
        )

    def close(self) -> None:
        """Nothing is held."""

    def _workers(self) -> list[psutil.Process]:
        workers = []
        for pid in self._children():
            try:
                workers.append(psutil.Process(pid))
            except psutil.Error:
                continue
        return workers
