"""What a limit cuts off is counted, source by source, live and in a replay."""

from __future__ import annotations

from gpuwatch.model import Batch, series
from gpuwatch.pipeline.health import Health
from gpuwatch.recording import Header, Reader, Writer
from gpuwatch.store import Store


def dropped(health, refused=None):
    batch = health.batch(5000, refused or {})
    return {
        dict(key)["target"]: value
        for key, value in zip(batch.keys, batch.values, strict=True)
        if dict(key)["__name__"] == "gpuwatch_source_dropped_total"
    }


def test_the_counter_is_there_at_zero_and_adds_up_what_the_source_says_and_the_store_refuses():
    health = Health("n", 1.0)
    health.update(Batch("engine:a:1", 1000))
    health.update(Batch("nvml", 1000))
    assert dropped(health) == {"a:1": 0.0, "nvml": 0.0}
    health.update(Batch("engine:a:1", 2000, dropped=7))
    health.update(Batch("engine:a:1", 3000))
    health.update(Batch("engine:a:1", 4000, dropped=2))
    assert dropped(health, {"nvml": 3}) == {"a:1": 9.0, "nvml": 3.0}


def test_a_full_store_counts_what_it_refuses_under_the_target():
    store = Store(max_series=2)
    keys = tuple(series("m", number=str(number)) for number in range(5))
    store.append("engine:a:1", 1000, keys, [1.0] * 5)
    health = Health("n", 1.0)
    health.update(Batch("engine:a:1", 1000, keys, [1.0] * 5))
    assert dropped(health, store.dropped_by_target) == {"a:1": 3.0}


def test_a_recording_keeps_it(tmp_path):
    writer = Writer(tmp_path / "r.rec", Header("n", 0, 1.0, "test"))
    writer.write(Batch("engine:a:1", 1000, dropped=7))
    writer.write(Batch("nvml", 1000))
    writer.tick(1000)
    writer.close()
    tick = next(iter(Reader(tmp_path / "r.rec").ticks()))
    assert [batch.dropped for batch in tick.batches] == [7, 0]
