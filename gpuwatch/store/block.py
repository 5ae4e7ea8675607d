"""The ring of one target: all its series share one time axis, a row each, a column per poll."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuwatch.model import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from gpuwatch.model import Labels

STALE_BITS = np.uint64(0x7FF0000000000002)
"""The bits of Prometheus' stale marker: the series ended here. Every other NaN is a value."""

HOLE_BITS = np.uint64(0x7FF0000000000003)
"""The bits of a cell before the first sample of its series."""

_SLACK = 8
"""Rows grow by one part in this many."""

_ROOM = 5
"""Columns beyond the capacity, as one part in this many: the block is moved once per so many writes."""

_FIRST_COLUMNS = 64
"""Columns of a new block. It doubles until it is as wide as it may be: every row begins on memory of its own."""

_MOST_FOUND = 1024
"""Positions that are remembered between two writes."""


def may_have_nan(values: NDArray[np.float64]) -> bool:
    """Return False where no value is NaN, so that there is neither a hole nor an end among them.

    A sum is found several times as fast as an answer for each value; infinities of both signs look like a NaN in it.
    """
    return math.isnan(np.add.reduce(values, axis=None))


class Block:
    """The samples of one target.

    `data` (rows, columns) and `times` (milliseconds) grow until they have room for more than `capacity` columns; when
    that is used up, the newest columns move to the front. So any run of columns is one contiguous slice. `start` and
    `stop` bound the columns that are valid. A column is complete: a row that did not get a value in it holds the stale
    marker if the series has ended, or the hole if it had not begun. A hole therefore never follows a value.
    """

    __slots__ = (
        "_bits",
        "_direct",
        "_found",
        "_free",
        "_layout",
        "_names",
        "_numbers",
        "_pick",
        "_widest",
        "by_name",
        "capacity",
        "data",
        "ended",
        "keys",
        "labels",
        "refused",
        "rows",
        "start",
        "stop",
        "target",
        "times",
        "version",
    )

    def __init__(self, target: str, capacity: int) -> None:
        self.target = target
        self.capacity = capacity
        self.version = 0
        self._widest = capacity + max(1, capacity // _ROOM)
        self.times = np.zeros(min(self._widest, _FIRST_COLUMNS), dtype=np.int64)
        self.data: NDArray[np.float64] = np.empty((0, len(self.times)))
        self._bits = self.data.view(np.uint64)
        self.start = self.stop = 0
        self.labels: list[Labels | None] = []
        self.rows: dict[Labels, int] = {}
        self.by_name: dict[str, list[int]] = {}
        self.ended: dict[int, int] = {}
        self.keys: tuple[Labels, ...] | None = None
        self.refused: frozenset[Labels] = frozenset()
        self._free: list[int] = []
        self._layout: NDArray[np.intp] = np.empty(0, dtype=np.intp)
        self._pick: NDArray[np.intp] | None = None
        self._direct = False
        self._found: dict[int, int] = {}
        self._names: list[str] = []
        self._numbers: NDArray[np.intp] | None = None

    def __len__(self) -> int:
        """Return the number of columns."""
        return self.stop - self.start

    @property
    def newest(self) -> int | None:
        """The time of the last column, or None."""
        return int(self.times[self.stop - 1]) if self.stop > self.start else None

    @property
    def nbytes(self) -> int:
        """Bytes of the sample buffers."""
        return self.data.nbytes + self.times.nbytes

    def before(self, time: int) -> int:
        """Return the index behind the last column whose time is at or before `time` (at least `start`)."""
        found = self._found.get(time)
        if found is None:
            if len(self._found) > _MOST_FOUND:
                self._found.clear()
            times = self.times[self.start : self.stop]
            found = self._found[time] = self.start + int(times.searchsorted(time, "right"))
        return found

    def add(self, fresh: Sequence[Labels]) -> None:
        """Give a row to each of the series `fresh`, none of which has one."""
        lacking = len(fresh) - len(self._free) - (len(self.data) - len(self.labels))
        if lacking > 0:
            self._reserve(len(self.data) + lacking)
        for key in fresh:
            if self._free:
                row = self._free.pop()
                self.labels[row] = key
            else:
                row = len(self.labels)
                self.labels.append(key)
            if self.stop > self.start:
                self._bits[row] = HOLE_BITS
            self.rows[key] = row
            self.by_name.setdefault(name_of(key), []).append(row)
        self._numbers = None

    def arrange(self, keys: tuple[Labels, ...], time: int) -> None:
        """Expect values in the order of `keys` from now on; series that are not among them end at `time`.

        Of equal keys the first counts; keys without a row are left out.
        """
        layout: dict[int, int] = {}
        for position, key in enumerate(keys):
            row = self.rows.get(key)
            if row is not None:
                layout.setdefault(row, position)
        for row in self.rows.values():
            if row in layout:
                self.ended.pop(row, None)
            else:
                self.ended.setdefault(row, time)
        self.keys = keys
        self._layout = np.fromiter(layout, dtype=np.intp, count=len(layout))
        self._pick = None if len(layout) == len(keys) else np.fromiter(layout.values(), np.intp, len(layout))
        self._direct = self._pick is None and np.array_equal(self._layout, np.arange(len(self.labels)))

    def write(self, time: int, values: Sequence[float]) -> tuple[list[str], list[str]]:
        """Append one column of `values`, in the order of the keys given to `arrange`.

        Returns the names of which a series has another value than in the column before, bit by bit, or has ended or
        come back; and the names of which a series begins.
        """
        column = np.asarray(values, dtype=np.float64)
        if not self._direct:
            whole = np.full(len(self.labels), STALE_BITS).view(np.float64)
            whole[self._layout] = column if self._pick is None else column[self._pick]
            column = whole
        return self._put(time, column)

    def end(self, time: int) -> tuple[list[str], list[str]]:
        """End every series at `time`; returns what `write` does. Writes nothing where all have ended before."""
        self.truncate(time)
        live = [row for row in self.rows.values() if row not in self.ended]
        if not live:
            return [], []
        self.ended.update((row, time) for row in live)
        self.keys = None
        return self._put(time, np.full(len(self.labels), STALE_BITS).view(np.float64))

    def _moved(self, bits: NDArray[np.uint64]) -> tuple[list[str], list[str]]:
        """Compare a column with the newest one, and return what `write` does."""
        last = self._bits[: len(bits), self.stop - 1] if len(self) else np.full(len(bits), HOLE_BITS)
        other = bits != last
        if not np.count_nonzero(other):
            return [], []
        begun = other & (last == HOLE_BITS)
        return self._names_at(other & ~begun), self._names_at(begun) if np.count_nonzero(begun) else []

    def _names_at(self, rows: NDArray[np.bool_]) -> list[str]:
        """Return the names of the series in the rows where `rows` is true."""
        if self._numbers is None:
            names = ["" if key is None else name_of(key) for key in self.labels]
            self._names = list(dict.fromkeys(names))
            places = {name: number for number, name in enumerate(self._names)}
            self._numbers = np.fromiter(map(places.__getitem__, names), np.intp, len(names))
        return [self._names[number] for number in np.flatnonzero(np.bincount(self._numbers[rows])).tolist()]

    def truncate(self, time: int) -> bool:
        """Forget every column at or after `time`; return whether there was one."""
        if self.stop == self.start or self.times[self.stop - 1] < time:
            return False
        self.stop = self.before(time - 1)
        self.version += 1
        self._found.clear()
        for row in [row for row, ended in self.ended.items() if ended >= time]:
            del self.ended[row]
        for row in self._without_value():
            self.ended.setdefault(row, time)
        self.keys = None  # which series live is decided anew by the next batch
        return True

    def _without_value(self) -> list[int]:
        """Return the rows without a value in the newest column: what a forgotten column had begun or revived."""
        if self.stop == self.start:
            return list(self.rows.values())
        column = self._bits[: len(self.labels), self.stop - 1]
        gone = (column == STALE_BITS) | (column == HOLE_BITS)
        return [row for row in self.rows.values() if gone[row]]

    def expired(self, before: int) -> list[Labels]:
        """Return the series that ended before the time `before`."""
        labels = (self.labels[row] for row, ended in self.ended.items() if ended < before)
        return [key for key in labels if key is not None]

    def release(self, keys: Iterable[Labels]) -> None:
        """Take the rows of `keys` away; compacts the block when most of it is unused."""
        for key in keys:
            row = self.rows.pop(key)
            name = name_of(key)
            self.by_name[name].remove(row)
            if not self.by_name[name]:
                del self.by_name[name]
            self.labels[row] = None
            self.ended.pop(row, None)
            self._free.append(row)
        self.keys = self._numbers = None
        if len(self.rows) * 2 < len(self.data):
            self._compact()

    def _put(self, time: int, column: NDArray[np.float64]) -> tuple[list[str], list[str]]:
        if self.stop == len(self.times):
            if self.stop < self._widest:
                self._widen()
            else:
                self._move_to_front()
        moved = self._moved(column.view(np.uint64))
        self.data[: len(column), self.stop] = column
        self.times[self.stop] = time
        self.stop += 1
        self.start = max(self.start, self.stop - self.capacity)
        self.version += 1
        self._found.clear()
        return moved

    def _widen(self) -> None:
        """Double the number of columns, up to the most there may be."""
        times = np.zeros(min(self._widest, 2 * self.stop), dtype=np.int64)
        times[: self.stop] = self.times
        self.times = times
        self._rebuild(len(self.data), range(len(self.labels)))

    def _move_to_front(self) -> None:
        """Make room behind the newest columns; the oldest of a full block is left behind."""
        first = max(self.start, self.stop - self.capacity + 1)
        kept = self.stop - first
        for row in self.data[: len(self.labels)]:
            row[:kept] = row[first : self.stop]
        self.times[:kept] = self.times[first : self.stop]
        self.start, self.stop = 0, kept

    def _reserve(self, rows: int) -> None:
        self._rebuild(rows + rows // _SLACK, range(len(self.labels)))

    def _rebuild(self, rows: int, kept: Sequence[int]) -> None:
        """Take new memory for `rows` rows, and copy the valid columns of the rows `kept` to its front.

        Memory that nobody has written to costs nothing yet, so the other columns are left alone.
        """
        data = np.empty((rows, len(self.times)))
        for new, old in enumerate(kept):
            data[new, self.start : self.stop] = self.data[old, self.start : self.stop]
        self.data = data
        self._bits = data.view(np.uint64)

    def _compact(self) -> None:
        """Move the rows together, in the order of their labels."""
        order = sorted(self.rows)
        old = [self.rows[key] for key in order]
        ended = {new: self.ended[row] for new, row in enumerate(old) if row in self.ended}
        self._rebuild(len(old), old)
        self.labels = list(order)
        self.rows = {key: row for row, key in enumerate(order)}
        self.by_name = {}
        for row, key in enumerate(order):
            self.by_name.setdefault(name_of(key), []).append(row)
        self.ended = ended
        self._free = []
        self.keys = None
