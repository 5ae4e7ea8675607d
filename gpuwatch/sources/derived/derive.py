"""Series that no source can read because they compare one moment with another: evictions, stalls, memory peaks.

A pure state machine without I/O: the pipeline feeds it each tick's batches before the rules run, and appends what it
returns like any other batch. What rules must see faster than a scrape of 15 seconds exists here as a counter, or as a
gauge of the last minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.model import NAME, Batch, Labels, label, series
from gpuwatch.sources.derived.engine import EngineRows, EngineTrail, engine_rows
from gpuwatch.sources.derived.memory import WINDOW_MS, MemoryTrail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TARGET = "derived"

_USED = "gpuwatch_gpu_memory_used_bytes"
_LOW = "gpuwatch_gpu_memory_used_low_bytes"
_HIGH = "gpuwatch_gpu_memory_used_high_bytes"
_ENGINE_ON_GPU = "gpuwatch_gpu_engine"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the rows of one batch are; valid as long as the batch's `keys` is the same object."""

    keys: tuple[Labels, ...]
    engines: dict[Labels, EngineRows]
    memory: dict[Labels, dict[str, int]]
    placement: tuple[tuple[int, str, str], ...]


def _layout(keys: tuple[Labels, ...]) -> _Layout:
    memory: dict[Labels, dict[str, int]] = {}
    placement = []
    for row, labels in enumerate(keys):
        pairs = dict(labels)
        name = pairs.get(NAME, "")
        if name in (_USED, _LOW, _HIGH):
            gpu = tuple((key, value) for key, value in labels if key != NAME)
            memory.setdefault(gpu, {})[name] = row
        elif name == _ENGINE_ON_GPU:
            placement.append((row, pairs.get("uuid", ""), pairs.get("server", "")))
    return _Layout(keys, engine_rows(keys), memory, tuple(placement))


class Derived:
    """Turns the batches of each tick into the batch of derived series.

    Args:
        host: Kept for symmetry with the sources; the series carry the `host` of the batches they come from.
    """

    target = TARGET

    def __init__(self, host: str) -> None:
        self.host = host
        self._layouts: dict[str, _Layout] = {}
        self._engines: dict[Labels, EngineTrail] = {}
        self._of_target: dict[str, tuple[Labels, ...]] = {}
        self._gpus: dict[Labels, MemoryTrail] = {}
        self._gpu_seen: dict[Labels, int] = {}
        self._on_gpu: dict[str, frozenset[str]] = {}
        self._ready: dict[str, bool] = {}
        self._keys: tuple[Labels, ...] = ()
        self._names: dict[tuple[str, Labels], Labels] = {}

    def update(self, time: int, batches: Sequence[Batch]) -> Batch:
        """Take the batches of one tick and return the derived series at `time` (milliseconds since the epoch).

        Several batches of one target are taken in their order. A target without a batch keeps its last state.
        """
        for batch in batches:
            if batch.up:
                self._take(batch)
            else:
                self._lose(batch)
        keys, values = self._emit(time)
        if keys != self._keys:
            self._keys = keys
        return Batch(TARGET, time, self._keys, values)

    def forget(self, target: str) -> None:
        """Drop what is known of a target that is not polled any more."""
        for engine in self._of_target.pop(target, ()):
            self._engines.pop(engine, None)
            self._ready.pop(label(engine, "server"), None)
        layout = self._layouts.pop(target, None)
        if layout is not None:
            self._forget(layout.memory)

    def _take(self, batch: Batch) -> None:
        layout = self._layouts.get(batch.target)
        if layout is None or layout.keys is not batch.keys:
            gone = set(layout.memory) if layout is not None else set()
            layout = _layout(batch.keys)
            self._layouts[batch.target] = layout
            self._forget(gone - set(layout.memory))
        self._take_placement(layout, batch)
        self._take_engines(layout, batch)
        for gpu, rows in layout.memory.items():
            if _USED not in rows:
                continue
            used = float(batch.values[rows[_USED]])
            low = float(batch.values[rows[_LOW]]) if _LOW in rows else used
            high = float(batch.values[rows[_HIGH]]) if _HIGH in rows else used
            trail = self._gpus.setdefault(gpu, MemoryTrail())
            engines = self._on_gpu.get(label(gpu, "uuid"), frozenset())
            ready = all(self._ready.get(server, False) for server in engines)
            trail.serve(batch.time, engines, ready=ready)
            trail.add(batch.time, used, low, high)
            self._gpu_seen[gpu] = batch.time

    def _forget(self, gpus: Iterable[Labels]) -> None:
        for gpu in gpus:
            self._gpus.pop(gpu, None)
            self._gpu_seen.pop(gpu, None)

    def _take_placement(self, layout: _Layout, batch: Batch) -> None:
        if not layout.placement:
            return
        found: dict[str, set[str]] = {}
        for row, uuid, server in layout.placement:
            found.setdefault(uuid, set())
            if batch.values[row] > 0:
                found[uuid].add(server)
        for uuid, servers in found.items():
            self._on_gpu[uuid] = frozenset(servers)

    def _take_engines(self, layout: _Layout, batch: Batch) -> None:
        before = self._of_target.get(batch.target, ())
        now = tuple(layout.engines)
        for engine in before:
            if engine not in layout.engines:
                del self._engines[engine]
        self._of_target[batch.target] = now
        ready: dict[str, bool] = {}
        for engine, rows in layout.engines.items():
            trail = self._engines.get(engine)
            if trail is None:
                trail = EngineTrail(engine, sglang=label(engine, "engine_kind") == "sglang")
                self._engines[engine] = trail
            trail.update(batch.time, rows, batch.values)
            server, asleep = label(engine, "server"), rows.single.get("asleep")
            ready[server] = ready.get(server, True) and (asleep is None or batch.values[asleep] == 0)
        self._ready |= ready

    def _lose(self, batch: Batch) -> None:
        for engine in self._of_target.get(batch.target, ()):
            self._engines[engine].lost()
            self._ready[label(engine, "server")] = False
        layout = self._layouts.get(batch.target)
        if layout is not None:
            self._forget(layout.memory)

    def _emit(self, time: int) -> tuple[tuple[Labels, ...], list[float]]:
        keys: list[Labels] = []
        values: list[float] = []

        def add(name: str, labels: Labels, value: float | None) -> None:
            if value is not None:
                keys.append(self._name(name, labels))
                values.append(value)

        for engine, trail in self._engines.items():
            if trail.alive:
                add("gpuwatch_engine_evictions_total", engine, trail.evictions)
                add("gpuwatch_engine_seconds_since_token", engine, trail.seconds_since_token)
                add("gpuwatch_engine_page_frozen_seconds", engine, trail.page_frozen_seconds)
                add("gpuwatch_engine_request_length_seen_tokens", engine, trail.length_seen)
        for gpu, memory in self._gpus.items():
            if time - self._gpu_seen[gpu] >= WINDOW_MS:
                continue
            summary = memory.summary()
            add("gpuwatch_gpu_memory_peak_bytes", gpu, summary.peak)
            add("gpuwatch_gpu_memory_step_bytes", gpu, summary.step)
            add("gpuwatch_gpu_memory_transient_bytes", gpu, summary.transient)
        return tuple(keys), values

    def _name(self, name: str, labels: Labels) -> Labels:
        found = self._names.get((name, labels))
        if found is None:
            found = series(name, **dict(labels))
            self._names[name, labels] = found
        return found
