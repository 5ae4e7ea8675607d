from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from gpuwatch.model import series
from gpuwatch.store import HOLE_BITS, STALE_BITS, Matcher, Store

A, B, C = (series("m", i=name) for name in "abc")


def cells(store, target, key):
    """Return (time, value) of a series; "stale" and "hole" for the two marks."""
    block = next(block for block in store.blocks if block.target == target)
    row = block.data[block.rows[key], block.start : block.stop]
    names = {int(STALE_BITS): "stale", int(HOLE_BITS): "hole"}
    times = block.times[block.start : block.stop].tolist()
    bits = row.view(np.uint64).tolist()
    return [(time, names.get(bit, value)) for time, bit, value in zip(times, bits, row.tolist(), strict=True)]


def newest(store, now, **options):
    return {labels: (value, time) for labels, value, time in store.newest(now, **options)}


def test_the_stale_marker_has_the_bits_that_prometheus_uses():
    assert int(STALE_BITS) == 0x7FF0000000000002
    assert math.isnan(struct.unpack("<d", struct.pack("<Q", int(HOLE_BITS)))[0])
    assert HOLE_BITS != STALE_BITS


def test_a_series_that_is_missing_from_a_batch_ends_there():
    store = Store()
    store.append("t", 1000, (A, B), [1, 2])
    store.append("t", 2000, (B,), [3])
    store.append("t", 3000, (B, A), [4, 5])
    assert cells(store, "t", A) == [(1000, 1.0), (2000, "stale"), (3000, 5.0)]
    assert cells(store, "t", B) == [(1000, 2.0), (2000, 3.0), (3000, 4.0)]


def test_a_series_that_comes_later_has_holes_before_it():
    store = Store()
    store.append("t", 1000, (A,), [1])
    store.append("t", 2000, (A, B), [2, 3])
    assert cells(store, "t", B) == [(1000, "hole"), (2000, 3.0)]


def test_a_nan_is_a_value():
    store = Store()
    store.append("t", 1000, (A,), [math.nan])
    (_, value, _) = next(store.newest(1000))
    assert math.isnan(value)


def test_a_failed_poll_ends_every_series_once():
    store = Store()
    store.append("t", 1000, (A, B), [1, 2])
    store.mark_stale("t", 2000)
    store.mark_stale("t", 3000)
    assert cells(store, "t", A) == [(1000, 1.0), (2000, "stale")]
    assert newest(store, 3000) == {}
    store.append("t", 4000, (A, B), [5, 6])
    assert cells(store, "t", B) == [(1000, 2.0), (2000, "stale"), (4000, 6.0)]


def test_marking_an_unknown_target_does_nothing():
    store = Store()
    store.mark_stale("t", 1000)
    assert store.series == 0


def test_a_batch_at_the_same_time_replaces():
    store = Store()
    store.append("t", 1000, (A, B), [1, 2])
    store.append("t", 1000, (A,), [7])
    assert cells(store, "t", A) == [(1000, 7.0)]
    assert newest(store, 1000) == {A: (7.0, 1000)}


def test_a_clock_that_was_set_back_costs_only_what_it_had_run_ahead():
    store = Store()
    keys = (A,)
    for time in (1000, 2000, 3000, 4000):
        store.append("t", time, keys, [time])
    store.append("t", 2500, keys, [9])
    assert cells(store, "t", A) == [(1000, 1000.0), (2000, 2000.0), (2500, 9.0)]
    store.append("t", 3500, keys, [10])
    assert cells(store, "t", A)[-1] == (3500, 10.0)


def test_a_failed_poll_after_the_clock_was_set_back_hides_the_older_values():
    store = Store()
    for time in (1000, 2000, 3000):
        store.append("t", time, (A,), [time])
    store.mark_stale("t", 4000)
    store.mark_stale("t", 2500)
    assert newest(store, 2600) == {}
    assert cells(store, "t", A) == [(1000, 1000.0), (2000, 2000.0), (2500, "stale")]


def test_only_the_retention_is_kept():
    store = Store(retention_ms=5000, expected_interval_ms=1000)
    keys = (A,)
    for second in range(12):
        store.append("t", second * 1000, keys, [second])
    assert cells(store, "t", A) == [(second * 1000, float(second)) for second in range(7, 12)]


def test_the_window_of_any_length_is_one_slice_at_every_position_of_the_ring():
    store = Store(retention_ms=7000, expected_interval_ms=1000)
    keys = (A, B)
    for second in range(40):
        store.append("t", second * 1000, keys, [second, -second])
        block = store.blocks[0]
        for width in range(1, len(block) + 1):
            expected = list(range(second - width + 1, second + 1))
            window = slice(block.stop - width, block.stop)
            assert block.times[window].tolist() == [at * 1000 for at in expected]
            assert block.data[: len(keys), window].tolist() == [expected, [-at for at in expected]]


def test_keys_and_values_of_different_length_are_refused():
    with pytest.raises(ValueError, match="2 series but 1 values"):
        Store().append("t", 0, (A, B), [1])


def test_of_equal_keys_the_first_counts():
    store = Store()
    store.append("t", 1000, (A, B, A), [1, 2, 3])
    assert newest(store, 1000) == {A: (1.0, 1000), B: (2.0, 1000)}


def test_the_newest_values_are_those_within_the_lookback():
    store = Store()
    store.append("old", 1000, (A,), [1])
    store.append("new", 300_000, (B,), [2])
    assert newest(store, 300_999) == {A: (1.0, 1000), B: (2.0, 300_000)}
    assert newest(store, 301_000) == {B: (2.0, 300_000)}
    assert newest(store, 2000) == {A: (1.0, 1000)}
    assert newest(store, 300_500, lookback=1000) == {B: (2.0, 300_000)}


def test_series_beyond_the_limit_are_dropped_and_counted_once():
    store = Store(max_series=2)
    keys = (A, B, C)
    for time in (1000, 2000, 3000):
        store.append("t", time, keys, [1, 2, 3])
    store.append("u", 3000, (series("other"),), [4])
    assert set(newest(store, 3000)) == {A, B}
    assert store.dropped_by_target == {"t": 1, "u": 1}
    assert store.dropped == 2


def test_a_dropped_series_comes_in_when_there_is_room_again():
    store = Store(retention_ms=30_000, max_series=2)
    gone = series("gone")
    store.append("other", 0, (gone,), [0])
    store.mark_stale("other", 1000)
    keys = (A, B)
    for second in range(1, 40):
        store.append("t", second * 1000, keys, [second, -second])
    assert set(newest(store, 39_000)) == {A, B}
    assert store.dropped == 1


def test_ended_series_are_reclaimed_so_that_churn_does_not_grow_memory():
    store = Store(retention_ms=60_000, expected_interval_ms=1000)
    sizes = []
    for second in range(600):
        keys = tuple(series("churn", request=str(second + at)) for at in range(10))
        store.append("t", second * 1000, keys, range(10))
        sizes.append(store.nbytes)
        assert store.series <= 60 + 10 + 4
    assert sizes[-1] == sizes[200]
    assert len(newest(store, 599_000)) == 10


def test_memory_shrinks_when_most_series_are_gone():
    store = Store(retention_ms=30_000, expected_interval_ms=1000)
    many = tuple(series("many", i=str(at)) for at in range(500))
    store.append("t", 0, (*many, A), range(501))
    before = store.nbytes
    for second in range(1, 60):
        store.append("t", second * 1000, (A,), [second])
    assert store.series == 1
    assert store.nbytes < before / 10
    assert cells(store, "t", A)[-2:] == [(58_000, 58.0), (59_000, 59.0)]


def test_a_silent_target_is_forgotten_after_the_retention():
    store = Store(retention_ms=30_000)
    store.append("gone", 0, (A,), [1])
    for second in range(40):
        store.append("t", second * 1000, (B,), [second])
    assert [block.target for block in store.blocks] == ["t"]
    assert store.select((Matcher("i", "=", "a"),)) == ()


def test_a_series_belongs_to_one_target_until_it_has_ended():
    store = Store()
    store.append("one", 1000, (A,), [1])
    store.append("two", 1000, (A, B), [2, 3])
    assert newest(store, 1000) == {A: (1.0, 1000), B: (3.0, 1000)}
    assert store.dropped_by_target == {"two": 1}
    store.mark_stale("one", 2000)
    store.append("two", 2000, (B, A), [4, 5])
    assert newest(store, 2000) == {A: (5.0, 2000), B: (4.0, 2000)}
    assert len(store.select((Matcher("i", "=", "a"),))) == 1


def test_the_default_size_for_1100_series_is_about_10_mib_once_it_is_full():
    store, keys = Store(), tuple(series("m", i=str(at)) for at in range(1100))
    for second in range(1100):
        store.append("t", second * 1000, keys, [second] * 1100)
        if second == 60:
            assert store.nbytes < 2**20
    assert 9 * 2**20 < store.nbytes < 11 * 2**20
    assert cells(store, "t", keys[7])[0] == (200_000, 200.0)
    assert cells(store, "t", keys[1099])[-1] == (1_099_000, 1099.0)
    assert len(cells(store, "t", keys[0])) == 900


def test_a_block_that_widens_keeps_every_sample_and_what_ended_before():
    store = Store(retention_ms=900_000, expected_interval_ms=1000)
    store.append("t", 0, (A, B), [0, 100])
    for second in range(1, 300):
        store.append("t", second * 1000, (A,), [second])
    assert [value for _, value in cells(store, "t", A)] == list(range(300))
    assert newest(store, 299_000) == {A: (299.0, 299_000)}


@pytest.mark.parametrize(
    ("matchers", "found"),
    [
        ([("__name__", "=", "m")], "abc"),
        ([("__name__", "=", "m"), ("i", "=", "a")], "a"),
        ([("__name__", "=", "m"), ("i", "!=", "a")], "bc"),
        ([("__name__", "=", "m"), ("i", "=~", "a|c")], "ac"),
        ([("__name__", "=", "m"), ("i", "!~", "a|c")], "b"),
        ([("__name__", "=~", "m|n"), ("i", "=", "b")], "b"),
        ([("i", "=", "c")], "c"),
        ([("j", "=", "")], "abc"),
        ([("__name__", "=", "m"), ("__name__", "!=", "m")], ""),
        ([("__name__", "=", "x")], ""),
    ],
)
def test_series_are_selected_by_matchers(matchers, found):
    store = Store()
    store.append("t", 0, (A, B, C), [1, 2, 3])
    rows = store.select(tuple(Matcher(*matcher) for matcher in matchers))
    labels = [dict(key)["i"] for part in rows for key in part.labels]
    assert "".join(labels) == found
    for part in rows:
        assert part.block.data[part.index, part.block.stop - 1].tolist() == ["abc".index(i) + 1 for i in labels]


def test_the_same_keys_object_needs_no_look_up(monkeypatch):
    store = Store()
    keys = (A, B)
    store.append("t", 1000, keys, [1, 2])
    monkeypatch.setattr(store, "_arrange", None)
    store.append("t", 2000, keys, [3, 4])
    assert newest(store, 2000) == {A: (3.0, 2000), B: (4.0, 2000)}


def test_a_selection_stays_valid_while_other_series_come_and_go():
    store = Store()
    keys = (A,)
    store.append("t", 1000, keys, [1])
    generation = store.name_generation("m")
    store.append("t", 2000, (A, series("other")), [2, 3])
    assert store.name_generation("m") == generation
    store.append("t", 3000, (A, B), [2, 3])
    assert store.name_generation("m") > generation
