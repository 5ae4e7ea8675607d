from __future__ import annotations

import gzip
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.model import Absence, Batch, Fact, LogEvent, Reason, series
from gpuwatch.recording import Header, Reader, RecordingError, Writer

ROOT = Path(__file__).resolve().parents[3]
HEADER = Header(host="node", created=1_000, interval=1.0, program="test")
A = series("a_total", host="node")
B = series("b", host="node", gpu="0")
C = series("c", host="node")


def write(path, ticks):
    writer = Writer(path, HEADER)
    for time, batches in ticks:
        for batch in batches:
            writer.write(batch)
        writer.tick(time)
    writer.close()
    return writer


def values(batch):
    return dict(zip(batch.keys, batch.values, strict=True))


def test_values_come_back_exactly_whatever_kind_of_number_they_are(tmp_path):
    keys = (A, B, C)
    rows = [
        (0.0, 0.1, math.nan),
        (5.0, 0.30000000000000004, 7.0),
        (5.0, 2.0, math.inf),
        (3.0, -2.5, -math.inf),
        (2.0**60, 1e-300, 0.0),
        (1.0, 12.0, math.nan),
    ]
    write(tmp_path / "r", [(i, [Batch("t", i, keys, row)]) for i, row in enumerate(rows)])
    ticks = list(Reader(tmp_path / "r").ticks())
    assert [tick.time for tick in ticks] == [0, 1, 2, 3, 4, 5]
    for tick, row in zip(ticks, rows, strict=True):
        got = values(tick.batches[0])
        for key, want in zip(keys, row, strict=True):
            assert got[key] == want or (math.isnan(want) and math.isnan(got[key]))


def test_series_may_vanish_and_return_and_new_ones_may_come(tmp_path):
    batches = [
        Batch("t", 1, (A, B), (1.0, 2.0)),
        Batch("t", 2, (A,), (1.0,)),
        Batch("t", 3, (A, B, C), (2.0, 2.0, 9.0)),
    ]
    write(tmp_path / "r", [(b.time, [b]) for b in batches])
    got = [values(tick.batches[0]) for tick in Reader(tmp_path / "r").ticks()]
    assert got == [{A: 1.0, B: 2.0}, {A: 1.0}, {A: 2.0, B: 2.0, C: 9.0}]


def test_a_failed_poll_is_kept_with_its_reason_and_ends_all_series(tmp_path):
    down = Batch("engine:h:1", 2, up=False, reason=Reason.UNREACHABLE, detail="connection refused")
    ticks = [
        (1, [Batch("engine:h:1", 1, (A,), (4.0,))]),
        (2, [down]),
        (3, [Batch("engine:h:1", 3, (A,), (4.0,))]),
    ]
    write(tmp_path / "r", ticks)
    first, second, third = (tick.batches[0] for tick in Reader(tmp_path / "r").ticks())
    assert values(first) == {A: 4.0}
    assert (second.up, second.reason, second.detail, second.keys) == (
        False,
        Reason.UNREACHABLE,
        "connection refused",
        (),
    )
    assert third.up
    assert values(third) == {A: 4.0}


def test_facts_events_and_absences_travel(tmp_path):
    batch = Batch(
        "log:x",
        5,
        facts=(Fact("kv.tokens", 5120, "x.log", 12, 4, "h:1"),),
        events=(LogEvent("torch_oom", "CUDA out of memory", "x.log", 3, 5, "h:1", (("req", "2.00 GiB"),)),),
        absent=(Absence(B, Reason.NOT_SUPPORTED, "unified memory"),),
    )
    write(tmp_path / "r", [(5, [batch])])
    (tick,) = Reader(tmp_path / "r").ticks()
    assert tick.batches[0].facts == batch.facts
    assert tick.batches[0].events == batch.events
    assert tick.batches[0].absent == batch.absent


def test_an_unchanged_set_of_series_keeps_the_same_keys_object(tmp_path):
    write(tmp_path / "r", [(i, [Batch("t", i, (A, B), (float(i), 1.0))]) for i in range(3)])
    first, second, third = (tick.batches[0] for tick in Reader(tmp_path / "r").ticks())
    assert first.keys is second.keys is third.keys


def test_a_recording_cut_at_any_byte_gives_every_tick_that_was_flushed_before(tmp_path):
    rng = random.Random(1)
    path = tmp_path / "r"
    writer = Writer(path, HEADER)
    ends = []
    for time in range(20):
        writer.write(Batch("t", time, (A, B), (float(time), rng.random())))
        writer.tick(time)
        ends.append(path.stat().st_size)
    writer.close()
    whole = path.read_bytes()
    for size in range(ends[0], len(whole)):
        path.write_bytes(whole[:size])
        reader = Reader(path)
        times = [tick.time for tick in reader.ticks()]
        flushed = sum(end <= size for end in ends)
        assert times[:flushed] == list(range(flushed))
        assert len(times) <= flushed + 1
        assert (reader.cut == "") == (size == len(whole))


def test_a_damaged_middle_ends_the_reading_with_a_note(tmp_path):
    path = tmp_path / "r"
    write(path, [(i, [Batch("t", i, (A,), (random.Random(i).random(),))]) for i in range(300)])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    reader = Reader(path)
    assert len(list(reader.ticks())) < 300
    assert reader.cut


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a gpuwatch recording"),
        (b"hello", "not a gpuwatch recording"),
        (gzip.compress(b'{"some": "json"}\n', mtime=0), "not a gpuwatch recording"),
        (gzip.compress(b"[1]\n", mtime=0), "not a gpuwatch recording"),
        (gzip.compress(b'{"gpuwatch_recording": 99}\n', mtime=0), "recording version 99; this program reads version 1"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "r"
    path.write_bytes(content)
    with pytest.raises(RecordingError) as error:
        Reader(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_an_existing_file_is_never_overwritten(tmp_path):
    (tmp_path / "r").write_text("precious")
    with pytest.raises(RecordingError, match="exists already"):
        Writer(tmp_path / "r", HEADER)
    assert (tmp_path / "r").read_text() == "precious"


FILL_THE_DISK = """
import resource, sys
from gpuwatch.model import Batch, series
from gpuwatch.recording import Header, Reader, Writer
import random
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
writer = Writer(sys.argv[1], Header("node", 1, 1.0, "test"))
for time in range(5_000):
    writer.write(Batch("t", time, (series("a"),), (random.random(),)))
    writer.tick(time)
writer.close()
print(writer.error)
print(len(list(Reader(sys.argv[1]).ticks())))
"""


def test_a_full_disk_stops_the_recorder_says_so_and_keeps_what_was_written(tmp_path):
    path = tmp_path / "r"
    done = subprocess.run(
        [sys.executable, "-c", FILL_THE_DISK, path], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
    )
    error, ticks = done.stdout.splitlines()
    assert error == f"{path}: File too large; recording stopped"
    assert int(ticks) > 100


def test_the_file_can_be_read_with_zcat_while_it_is_written(tmp_path):
    writer = Writer(tmp_path / "r", HEADER)
    writer.write(Batch("t", 7, (A,), (3.0,)))
    writer.tick(7)
    reader = Reader(tmp_path / "r")
    assert [values(tick.batches[0]) for tick in reader.ticks()] == [{A: 3.0}]
    writer.close()
    lines = gzip.decompress((tmp_path / "r").read_bytes()).splitlines()
    assert json.loads(lines[0])["gpuwatch_recording"] == 1
    assert json.loads(lines[-1]) == {"tick": 7}
