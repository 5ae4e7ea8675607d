"""The store against a model that keeps plain lists."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.model import series
from gpuwatch.store import HOLE_BITS, STALE_BITS, Store

KEYS = tuple(series(name, i=i) for name in ("m", "n") for i in ("1", "2", "3"))
CAPACITY = 6
RETENTION = 60_000

moves = st.lists(
    st.tuples(
        st.sampled_from(["s", "t"]),
        st.integers(-3, 12),
        st.one_of(st.none(), st.lists(st.sampled_from(KEYS), max_size=8).map(tuple)),
    ),
    max_size=40,
)


class Model:
    """Every sample of every target by time, and the rules of the store written out plainly."""

    def __init__(self):
        self.columns = {}

    def append(self, target, time, keys, values):
        columns = self._cut(target, time)
        batch = {}
        for key, value in zip(keys, values, strict=True):
            if key not in batch and not self._lives_elsewhere(target, key):
                batch[key] = value
        for key in batch:
            self._take_over(target, key)
        columns.append((time, batch))
        del columns[:-CAPACITY]

    def mark_stale(self, target, time):
        if target in self.columns:
            columns = self._cut(target, time)
            if columns and columns[-1][1]:
                columns.append((time, {}))
                del columns[:-CAPACITY]

    def _cut(self, target, time):
        columns = self.columns.setdefault(target, [])
        columns[:] = [column for column in columns if column[0] < time]
        return columns

    def _lives_elsewhere(self, target, key):
        return any(other != target and columns and key in columns[-1][1] for other, columns in self.columns.items())

    def _take_over(self, target, key):
        for other, columns in self.columns.items():
            if other != target:
                for _, batch in columns:
                    batch.pop(key, None)

    def samples(self, target, key):
        return [(time, batch[key]) for time, batch in self.columns[target] if key in batch]


def _samples(block, key):
    if key not in block.rows:
        return []
    window = slice(block.start, block.stop)
    row = block.data[block.rows[key], window]
    bits = row.view(np.uint64)
    kept = (bits != STALE_BITS) & (bits != HOLE_BITS)
    return list(zip(block.times[window][kept].tolist(), row[kept].tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(moves)
def test_the_store_holds_what_the_model_holds(steps):
    store, model = Store(RETENTION, RETENTION // CAPACITY), Model()
    now, number = 100_000, 0.0
    for target, step, keys in steps:
        now += step * 100
        if keys is None:
            store.mark_stale(target, now)
            model.mark_stale(target, now)
        else:
            values = [number + at for at in range(len(keys))]
            number += len(keys)
            store.append(target, now, keys, values)
            model.append(target, now, keys, values)
        blocks = {block.target: block for block in store.blocks}
        assert set(blocks) <= set(model.columns)
        for name in model.columns:
            for key in KEYS:
                found = _samples(blocks[name], key) if name in blocks else []
                assert found == model.samples(name, key)
        alive = {
            key: value
            for columns in model.columns.values()
            for key, value in (columns[-1][1] if columns else {}).items()
        }
        latest = max([columns[-1][0] for columns in model.columns.values() if columns], default=0)
        assert {key: value for key, value, _ in store.newest(latest)} == alive


@settings(max_examples=200, deadline=None)
@given(moves)
def test_a_hole_never_follows_a_value(steps):
    store = Store(RETENTION, RETENTION // CAPACITY)
    now = 100_000
    for target, step, keys in steps:
        now += step * 100
        if keys is None:
            store.mark_stale(target, now)
        else:
            store.append(target, now, keys, [math.nan] * len(keys))
    for block in store.blocks:
        for row in block.rows.values():
            holes = block.data[row, block.start : block.stop].view(np.uint64) == HOLE_BITS
            assert not (holes[1:] & ~holes[:-1]).any()


def test_a_series_revived_by_a_batch_that_is_replaced_has_ended_again():
    store = Store(RETENTION, RETENTION // CAPACITY)
    key = KEYS[:1]
    store.append("s", 100, key, [1.0])
    store.mark_stale("s", 200)
    store.append("s", 300, key, [2.0])
    store.mark_stale("s", 300)
    assert list(store.newest(400)) == []
    store.append("t", 400, key, [3.0])
    assert [(labels, value) for labels, value, _ in store.newest(400)] == [(key[0], 3.0)]


def test_a_series_can_be_taken_over_when_an_empty_batch_was_replaced_by_an_empty_batch():
    store = Store(RETENTION, RETENTION // CAPACITY)
    key, nothing = KEYS[:1], ()
    store.append("s", 100, key, [1.0])
    store.append("s", 200, nothing, [])
    store.append("s", 200, nothing, [])
    store.append("t", 200, key, [2.0])
    assert [(labels, value) for labels, value, _ in store.newest(200)] == [(key[0], 2.0)]
    assert all(key[0] not in block.rows for block in store.blocks if block.target == "s")
