"""How every source is doing, worked out from its batches alone, so that a replay says the same as the live run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.model import Batch, Labels, Reason, label, name_of, series
from gpuwatch.snapshot import SourceState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WATCHED = ("nvml", "engine", "log", "host", "kernel", "own")
"""Kinds of sources that deliver each tick and whose silence means something."""

LATE_SECONDS = 10.0
"""A source that should deliver each tick and has said nothing for this long is treated as failed."""


@dataclass(slots=True)
class _Record:
    kind: str
    name: str
    server: str
    batch: Batch
    engine_kind: str = ""
    engine_version: str = ""
    last_success: int | None = None
    failures: int = 0
    dropped: int = 0
    late: bool = False
    excused: int = 0


class Health:
    """The last word of every target, and since when."""

    def __init__(self, host: str, interval: float) -> None:
        self._host = host
        self._late_ms = 1000 * max(LATE_SECONDS, 5 * interval)
        self._pause_ms = 2000 * interval
        self._looked: int | None = None
        self._excused = 0
        """Milliseconds in which nobody looked: a machine that slept, or gave the pipeline no processor."""
        self._records: dict[str, _Record] = {}
        self._keys: tuple[Labels, ...] = ()
        self._layout: tuple[tuple[str, bool, str], ...] = ()

    def update(self, batch: Batch) -> None:
        """Take note of a batch."""
        kind, _, name = batch.target.partition(":")
        if kind not in WATCHED:
            return
        record = self._records.get(batch.target)
        if record is None:
            server = name if kind == "engine" else ""
            record = self._records[batch.target] = _Record(kind, name or kind, server, batch)
            _identify(record, batch.keys)
        if batch.up:
            record.last_success = batch.time
        else:
            record.failures += 1
        if batch.keys and batch.keys is not record.batch.keys:
            _identify(record, batch.keys)
        record.dropped += batch.dropped
        record.batch = batch
        record.late = False
        record.excused = self._excused

    def forget(self, target: str) -> None:
        """Take a target off the list: nobody polls it any more."""
        self._records.pop(target, None)

    def newly_late(self, now: int) -> list[str]:
        """Return the targets that have gone silent since the last call; each is named once.

        Called once per tick. The time between two ticks that are far apart is not held against a source: what kept
        the pipeline from looking kept the source from speaking.
        """
        if self._looked is not None and now - self._looked > self._pause_ms:
            self._excused += now - self._looked
        self._looked = now
        late = []
        for target, record in self._records.items():
            silent = now - record.batch.time - (self._excused - record.excused)
            if not record.late and silent > self._late_ms:
                record.late = True
                late.append(target)
        return late

    def states(self, now: int) -> tuple[SourceState, ...]:
        """Return the state of every source, in the order they first spoke."""
        return tuple(_state(record, now) for record in self._records.values())

    def batch(self, now: int, refused: Mapping[str, int]) -> Batch:
        """Return the ``gpuwatch_source_*`` series; `refused` counts the series of each target that no store took."""
        layout = tuple(
            (target, record.last_success is not None, _failing(record)) for target, record in self._records.items()
        )
        if layout != self._layout:
            self._layout = layout
            self._keys = tuple(self._series())
        values: list[float] = []
        for target, record in self._records.items():
            dropped = float(record.dropped + refused.get(target, 0))
            up = float(record.batch.up and not record.late)
            values += [up, record.batch.duration, float(record.failures), dropped]
            if record.last_success is not None:
                values.append(max(0, now - record.last_success) / 1000)
            if _failing(record):
                values.append(1.0)
        return Batch("sources", now, self._keys, values)

    def _series(self) -> Iterable[Labels]:
        for record in self._records.values():
            names = ["source_up", "source_poll_seconds", "source_failures_total", "source_dropped_total"]
            if record.last_success is not None:
                names.append("source_age_seconds")
            labels = {"host": self._host, "source": record.kind, "target": record.name, "server": record.server}
            for name in names:
                yield series("gpuwatch_" + name, **labels)
            if _failing(record):
                yield series("gpuwatch_source_failing", **labels, reason=_failing(record))


def _failing(record: _Record) -> str:
    """Return why the source fails at present, or the empty string."""
    if record.late:
        return Reason.HUNG.value
    return "" if record.batch.up else (record.batch.reason or Reason.FAILED).value


def _identify(record: _Record, keys: tuple[Labels, ...]) -> None:
    """Note which engine a log or a page says it belongs to."""
    if record.kind == "log" and keys:
        record.server = label(keys[0], "server") or record.server
    if record.kind == "engine":
        for labels in keys:
            if name_of(labels) == "gpuwatch_engine_info":
                record.engine_kind = label(labels, "engine_kind")
                record.engine_version = label(labels, "version")


def _state(record: _Record, now: int) -> SourceState:
    age = None if record.last_success is None else max(0, now - record.last_success) / 1000
    if record.late:
        silent = (now - record.batch.time) / 1000
        reason, detail = Reason.HUNG.value, f"nothing heard for {silent:.0f} s"
    else:
        reason = record.batch.reason.value if record.batch.reason else ""
        detail = record.batch.detail
    up = record.batch.up and not record.late
    return SourceState(
        record.kind, record.name, up, reason, detail, age, record.server, record.engine_kind, record.engine_version
    )
