"""The store: blocks by target, limits, and selection by matchers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatch.model import NAME, name_of
from gpuwatch.store.block import HOLE_BITS, STALE_BITS, Block

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpuwatch.model import Labels
    from gpuwatch.store.matchers import Matcher

LOOKBACK = 300_000
"""Milliseconds for which a sample stands for its series: Prometheus' default lookback."""

_SWEEPS = 30
"""Ended series are looked for this many times per retention."""


@dataclass(frozen=True, slots=True)
class Column:
    """The newest values of one target: a copy. `labels` stay the same object while the set of series does.

    A place without labels is free; a value may be the stale marker or the hole.
    """

    target: str
    labels: tuple[Labels | None, ...]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rows:
    """The selected series of one block: their rows of `block.data` and their labels, in the same order."""

    block: Block
    index: slice | NDArray[np.intp]
    labels: tuple[Labels, ...]


class Moved(NamedTuple):
    """When a series of some name last had another value, ended or came back, and when one last began, if ever.

    Both in milliseconds: the latest time of such a sample.
    """

    changed: int | None
    begun: int | None


class Store:
    """Labelled samples of the last minutes.

    One thread writes and reads; there are no locks. A target's time only moves forward: a batch whose time is at or
    before the target's newest column replaces every column from its own time on. So a repeated time replaces, and a
    clock that was set back costs the columns it had run ahead by, and nothing else.

    A series belongs to one target. While it lives there, the same labels from another target are refused and
    counted; once it has ended, the other target takes it over and its past is forgotten.

    Args:
        retention_ms: How far back the store reaches, in milliseconds, at the expected interval.
        expected_interval_ms: The usual time between two batches of a target. A target that is faster gets no more
            columns, so its history is shorter.
        max_series: The most series of all targets together; further ones are dropped and counted.
    """

    def __init__(
        self, retention_ms: int = 900_000, expected_interval_ms: int = 1000, *, max_series: int = 50_000
    ) -> None:
        self.retention_ms = retention_ms
        self.max_series = max_series
        self.generation = 0
        """Grows when the set of series or the place of a row changes."""
        self.version = 0
        """Grows with every write."""
        self.dropped_by_target: dict[str, int] = {}
        """Series that were refused since the start, by target."""
        self._capacity = max(2, -(-retention_ms // max(1, expected_interval_ms)))
        self._blocks: dict[str, Block] = {}
        self._owners: dict[Labels, Block] = {}
        self._names: dict[str, int] = {}
        self._moved: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._labels: dict[str, tuple[Labels | None, ...]] = {}
        self._labels_of = -1
        self._swept: int | None = None

    @property
    def dropped(self) -> int:
        """Series that were refused since the start."""
        return sum(self.dropped_by_target.values())

    @property
    def series(self) -> int:
        """The number of series, ended ones within the retention included."""
        return len(self._owners)

    @property
    def nbytes(self) -> int:
        """Bytes of all sample buffers."""
        return sum(block.nbytes for block in self._blocks.values())

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of all targets."""
        return tuple(self._blocks.values())

    def append(self, target: str, time: int, keys: tuple[Labels, ...], values: Sequence[float]) -> None:
        """Write one complete batch of a target; series of the target that are not in `keys` end at `time`.

        Passing the same `keys` object as the last time avoids every look-up.

        Raises:
            ValueError: `keys` and `values` differ in length.
        """
        if len(keys) != len(values):
            raise ValueError(f"{target}: {len(keys)} series but {len(values)} values")
        block = self._blocks.get(target)
        if block is None:
            block = self._blocks[target] = Block(target, self._capacity)
        if block.truncate(time):
            self._forget(block)
        if keys is not block.keys:
            self._arrange(block, keys, time)
        self._note(time, block.write(time, values))
        self.version += 1
        self._sweep(time)

    def mark_stale(self, target: str, time: int) -> None:
        """End every series of a target at `time`: its poll failed or it is gone."""
        block = self._blocks.get(target)
        if block is None:
            return
        newest = block.newest
        if newest is not None and newest >= time:
            self._forget(block)
        self._note(time, block.end(time))
        self.version += 1
        self._sweep(time)

    def moved(self, name: str) -> Moved:
        """Return when series called `name` last changed, and when one last began."""
        changed, begun = self._moved
        return Moved(changed.get(name), begun.get(name))

    def select(self, matchers: tuple[Matcher, ...]) -> tuple[Rows, ...]:
        """Return the series that satisfy all `matchers`, ended ones within the retention included.

        Raises:
            RegexError: A matcher's regular expression is not supported.
        """
        name = next((m.value for m in matchers if m.name == NAME and m.op == "="), None)
        rest = [m for m in matchers if not (m.name == NAME and m.op == "=" and m.value == name)]
        found = []
        for block in self._blocks.values():
            candidates = sorted(block.rows.values()) if name is None else block.by_name.get(name, [])
            rows = [row for row in candidates if _matches(block.labels[row], rest)] if rest else candidates
            if rows:
                labels = tuple(key for key in (block.labels[row] for row in rows) if key is not None)
                found.append(Rows(block, _index(rows), labels))
        return tuple(found)

    def name_generation(self, name: str | None) -> int:
        """Return a number that changes when the series called `name` change; without a name, when any do."""
        return self.generation if name is None else self._names.get(name, 0)

    def newest(self, now: int, lookback: int = LOOKBACK) -> Iterator[tuple[Labels, float, int]]:
        """Yield (labels, value, time) of every series that lives at `now`, both times in milliseconds."""
        for block in self._blocks.values():
            stop = block.before(now)
            if stop == block.start or block.times[stop - 1] <= now - lookback:
                continue
            time = int(block.times[stop - 1])
            column = block.data[: len(block.labels), stop - 1].copy()
            bits = column.view(np.uint64)
            alive = ((bits != STALE_BITS) & (bits != HOLE_BITS)).tolist()
            for key, value in compress(zip(block.labels, column.tolist(), strict=True), alive):
                if key is not None:
                    yield key, value, time

    def columns(self, now: int, lookback: int = LOOKBACK) -> tuple[Column, ...]:
        """Return the newest column at `now` (milliseconds) of every target that has one within `lookback`."""
        if self._labels_of != self.generation:
            self._labels_of = self.generation
            known = {target: tuple(block.labels) for target, block in self._blocks.items()}
            before = self._labels
            self._labels = {
                target: before[target] if before.get(target) == labels else labels for target, labels in known.items()
            }
        found = []
        for target, block in self._blocks.items():
            stop = block.before(now)
            if stop > block.start and block.times[stop - 1] > now - lookback:
                labels = self._labels.get(target) or tuple(block.labels)
                found.append(Column(target, labels, block.data[: len(labels), stop - 1].copy()))
        return tuple(found)

    def _arrange(self, block: Block, keys: tuple[Labels, ...], time: int) -> None:
        fresh = sorted({key for key in keys if key not in block.rows})
        admitted = [key for key in fresh if self._admit(key)]
        if admitted := admitted[: max(0, self.max_series - len(self._owners))]:
            block.add(admitted)
            self._owners.update((key, block) for key in admitted)
            self._changed(admitted)
        refused = frozenset(key for key in fresh if key not in block.rows)
        if more := len(refused - block.refused):
            self.dropped_by_target[block.target] = self.dropped_by_target.get(block.target, 0) + more
        block.refused = refused
        block.arrange(keys, time)

    def _admit(self, key: Labels) -> bool:
        """Say whether a series may move into another block; frees its row where it has ended."""
        owner = self._owners.get(key)
        if owner is None:
            return True
        if owner.rows[key] not in owner.ended:
            return False
        self._release(owner, [key])
        return True

    def _note(self, time: int, found: tuple[list[str], list[str]]) -> None:
        """Remember when series of these names changed, and began; a late sample hides no newer change."""
        for moved, names in zip(self._moved, found, strict=True):
            for name in names:
                moved[name] = max(time, moved.get(name, time))

    def _sweep(self, time: int) -> None:
        """Take away series that ended, and targets that were silent, for longer than the retention."""
        period = self.retention_ms // _SWEEPS
        if self._swept is not None and 0 <= time - self._swept < period:
            return
        self._swept = time
        before = time - self.retention_ms
        for block in list(self._blocks.values()):
            newest = block.newest
            silent = newest is None or newest < before
            expired = list(block.rows) if silent else block.expired(before)
            if expired:
                self._release(block, expired)
            if silent:
                del self._blocks[block.target]
            elif block.refused:
                block.keys = None  # the next batch tries again

    def _release(self, block: Block, keys: list[Labels]) -> None:
        for key in keys:
            del self._owners[key]
        names = [*block.rows]
        block.release(keys)
        self._changed(names)

    def _forget(self, block: Block) -> None:
        """Tell readers that columns they may have seen are gone."""
        self._changed(list(block.rows))

    def _changed(self, keys: list[Labels]) -> None:
        self.generation += 1
        for name in {name_of(key) for key in keys}:
            self._names[name] = self.generation


def _matches(labels: Labels | None, matchers: list[Matcher]) -> bool:
    if labels is None:
        return False
    values = dict(labels)
    return all(matcher.matches(values) for matcher in matchers)


def _index(rows: list[int]) -> slice | NDArray[np.intp]:
    """Return neighbouring rows as a slice, which reads without a copy."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return np.array(rows, dtype=np.intp)
