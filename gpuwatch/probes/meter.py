"""The engine's own figures beside a probe: its metrics page under gpuwatch's names, now or watched for a while."""

from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.clock import SystemClock
from gpuwatch.model import Labels, label, name_of
from gpuwatch.sources.engine.source import EngineSource, EngineTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the page. Names are those of `gpuwatch.series` without ``gpuwatch_engine_``."""

    values: Mapping[Labels, float]

    def each(self, name: str) -> list[float]:
        """Return the values of a metric: one for each model and data-parallel rank."""
        full = f"gpuwatch_engine_{name}"
        return [value for labels, value in self.values.items() if name_of(labels) == full and math.isfinite(value)]

    def total(self, name: str) -> float | None:
        """Return the sum of a counter or of a number of things over ranks; None where the page has none."""
        values = self.each(name)
        return sum(values) if values else None

    def most(self, name: str) -> float | None:
        """Return the largest value over ranks, for ratios and limits; None where the page has none."""
        return max(self.each(name), default=None)

    def least(self, name: str) -> float | None:
        """Return the smallest value over ranks; None where the page has none."""
        return min(self.each(name), default=None)

    def ranks(self) -> int:
        """Return how many data-parallel ranks the page tells apart; at least 1."""
        return max(1, len({label(labels, "dp_rank") for labels in self.values} - {""}))


class Meter:
    """Reads the metrics page of one server; from any thread, one at a time."""

    def __init__(self, url: str, token: str = "", *, verify: bool | str = True) -> None:
        ca_file = verify if isinstance(verify, str) else None
        target = EngineTarget(url, token=token or None, ca_file=ca_file, verify=bool(verify), timeout=5.0)
        self._source = EngineSource(target, "", SystemClock())
        self._lock = threading.Lock()

    def read(self) -> Reading | None:
        """Return what the page says now, or None where it cannot be read."""
        with self._lock:
            batch = self._source.poll()
        return Reading(dict(zip(batch.keys, batch.values, strict=True))) if batch.up else None

    def close(self) -> None:
        """Close the connection."""
        self._source.close()


@dataclass(slots=True)
class Peaks:
    """What was seen while a watch ran. None: the page does not say.

    Attributes:
        kv_usage: Largest used part of the KV pool, of the fullest rank.
        running: Most requests in the running batch.
        waiting: Most requests in the queue.
        gpu_memory: Most used bytes of each GPU, and its size.
        looks: How often it was looked.
    """

    kv_usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    gpu_memory: dict[str, tuple[float, float]] = field(default_factory=dict)
    looks: int = 0

    def take(self, reading: Reading | None, gpus: Mapping[str, tuple[float, float]]) -> None:
        """Keep the peaks of one more look."""
        if reading is not None:
            self.looks += 1
            self.kv_usage = _larger(self.kv_usage, reading.most("kv_cache_usage_ratio"))
            self.running = _larger(self.running, reading.total("requests_running"))
            self.waiting = _larger(self.waiting, reading.total("requests_waiting"))
        for gpu, (used, size) in gpus.items():
            self.gpu_memory[gpu] = max(used, self.gpu_memory.get(gpu, (used, size))[0]), size


@contextmanager
def watched(
    read: Callable[[], Reading | None],
    gpu_memory: Callable[[], Mapping[str, tuple[float, float]]],
    every: float = 0.25,
    look: Callable[[Reading | None, float], None] | None = None,
    poke: threading.Event | None = None,
) -> Iterator[Peaks]:
    """Look at page and GPUs every `every` seconds, at first more often, until the block ends; then peaks are complete.

    `look` is handed each reading of the page and the monotonic time before it, on the thread that looks. Setting `poke`
    makes it look at once.
    """
    peaks, done = Peaks(), threading.Event()
    wake = poke or threading.Event()

    def watch() -> None:
        pause = every / 8
        while True:
            wake.wait(pause)
            if done.is_set():
                break
            wake.clear()
            began, reading = time.monotonic(), read()
            peaks.take(reading, gpu_memory())
            if look is not None:
                look(reading, began)
            pause = min(every, 2 * pause)
        peaks.take(None, gpu_memory())

    thread = threading.Thread(target=watch, name="probe-meter", daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        wake.set()
        thread.join(10.0)


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)
