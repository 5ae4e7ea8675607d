"""What gpuwatch itself costs: CPU time and memory of this process and its NVML worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from gpuwatch.model import Batch, series

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatch.clock import Clock


class OwnSource:
    """Reads our own processes. `children` returns the process ids of the workers that run now."""

    target = "own"

    def __init__(self, host: str, clock: Clock, children: Callable[[], Sequence[int]] = tuple) -> None:
        self._clock = clock
        self._children = children
        self._process = psutil.Process()
        self._cpu: dict[int, float] = {}
        self._keys = (
            series("gpuwatch_process_cpu_seconds_total", host=host),
            series("gpuwatch_process_resident_bytes", host=host),
        )

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
        values = (sum(self._cpu.values()), float(resident))
        return Batch(self.target, self._clock.now(), self._keys, values, duration=self._clock.monotonic() - begun)

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
