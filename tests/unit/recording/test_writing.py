"""A recording survives its recorder, a full disk, a second writer, and never grows beyond what it may."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.model import Batch, series
from gpuwatch.recording import Header, Keep, Reader, RecordingError, Writer, parts_of

ROOT = Path(__file__).resolve().parents[3]
HEADER = Header(host="node", created=0, interval=1.0, program="test")
WIDE = tuple(series("a", host="node", number=str(number)) for number in range(200))


def noisy(second: int) -> Batch:
    """200 values that do not compress: about 1.5 kB a tick."""
    return Batch(
        "t", 1000 * second, WIDE, [((second + 1) * (place + 7) * 0.6180339887498949) % 1 for place in range(200)]
    )


def fill(writer: Writer, seconds, start: int = 0) -> None:
    for second in range(start, start + seconds):
        writer.write(noisy(second))
        writer.tick(1000 * second)


def seconds_in(path) -> list[int]:
    return [tick.time // 1000 for tick in Reader(path).ticks()]


KILL = """
import mmap, os, pathlib, random, signal, sys, time
from gpuwatch.model import Batch, series
from gpuwatch.recording import Header, Keep, Writer
dice = random.Random(7)
keys = tuple(series("a", number=str(number)) for number in range(200))
for number in range(50):
    path = os.path.join(sys.argv[1], f"{number}.rec")
    keep = Keep(1_000_000) if number % 2 else None
    told = mmap.mmap(-1, 8)
    child = os.fork()
    if not child:
        writer, second = Writer(path, Header("node", 0, 1.0, "test"), keep), 0
        while True:
            writer.write(Batch("t", 1000 * second, keys, [dice.random() for _ in keys]))
            writer.tick(1000 * second)
            second += 1
            told[:8] = second.to_bytes(8, "little")
    time.sleep(dice.uniform(0, 0.08))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(number, int.from_bytes(told[:8], "little"))
"""


def test_fifty_recorders_killed_at_random_lose_nothing_that_they_had_ended(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILL, tmp_path], capture_output=True, text=True, timeout=300, cwd=ROOT, check=True
    )
    rows = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(rows) == 50
    for number, told in rows:
        path = tmp_path / f"{number}.rec"
        if not told and not path.exists():
            continue  # killed before it had begun
        reader = Reader(path)
        got = [tick.time // 1000 for tick in reader.ticks()]
        assert not got or got == list(range(got[0], got[-1] + 1))
        assert len(got) == 0 if not told and not got else got[-1] >= told - 1
        assert number % 2 or not got or got[0] == 0
        cut = reader.cut.endswith("the end is missing; read up to the last complete tick")
        rotates = number % 2  # between two parts the last one is ended and the next not begun
        assert cut or not got or rotates


def test_a_recording_never_takes_more_than_it_may_and_the_oldest_goes(tmp_path):
    path, keep = tmp_path / "r.rec", Keep(bytes=1_000_000)
    writer = Writer(path, HEADER, keep)
    for second in range(0, 900, 10):
        fill(writer, 10, second)
        assert sum(part.stat().st_size for part in tmp_path.iterdir()) <= 1_000_000
    writer.close()
    assert len(parts_of(path)) in (7, 8)  # an eighth of what may be kept is left free for the next part
    got = seconds_in(path)
    assert got == list(range(got[0], 900))
    assert 300 < len(got) < 900


def test_parts_that_are_too_old_go(tmp_path):
    path = tmp_path / "r.rec"
    writer = Writer(path, HEADER, Keep(seconds=480))
    for second in range(0, 1200, 10):
        writer.write(Batch("t", 1000 * second, WIDE[:1], [float(second)]))
        before = set(tmp_path.glob("r.rec.*"))
        writer.tick(1000 * second)
        for part in set(tmp_path.glob("r.rec.*")) - before:  # as if it had been written at the time that it records
            os.utime(part, (second, second))
    writer.close()
    got = seconds_in(path)
    assert got[-1] == 1190
    # A part of a minute goes when its end is too old, and that is looked at once a minute.
    assert 1190 - 480 - 120 <= got[0] <= 1190 - 480
    assert 8 <= len(parts_of(path)) <= 10


def test_every_part_is_a_recording_by_itself_and_they_can_be_joined_with_cat(tmp_path):
    path = tmp_path / "r.rec"
    writer = Writer(path, HEADER, Keep(bytes=1_000_000))
    fill(writer, 300)
    writer.close()
    parts = parts_of(path)
    assert len(parts) > 3
    alone = [seconds_in(part) for part in parts[:-1]]
    alone.append([tick.time // 1000 for tick in Reader(path, whole=False).ticks()])
    assert [second for part in alone for second in part] == list(range(300))
    joined = tmp_path / "joined.rec"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    reader = Reader(joined)
    values = [tuple(tick.batches[0].values) for tick in reader.ticks()]
    assert values == [tuple(noisy(second).values) for second in range(300)]
    assert reader.cut == ""
    assert json.loads(gzip.decompress(joined.read_bytes()).splitlines()[0])["gpuwatch_recording"] == 1


def test_a_recorder_says_when_a_part_needs_what_is_known_already(tmp_path):
    writer = Writer(tmp_path / "r.rec", HEADER, Keep(bytes=1_000_000))
    fresh = []
    for second in range(200):
        fresh.append(writer.fresh)
        fill(writer, 1, second)
    writer.close()
    assert fresh[:2] == [True, False]
    assert sum(fresh) == len(parts_of(tmp_path / "r.rec"))


def test_a_second_recorder_is_refused_whatever_it_wants(tmp_path):
    path = tmp_path / "r.rec"
    first = Writer(path, HEADER)
    fill(first, 3)
    with pytest.raises(RecordingError, match=r"r\.rec: exists already; choose another name"):
        Writer(path, HEADER)
    with pytest.raises(RecordingError, match=r"r\.rec: another gpuwatch writes to it; choose another name"):
        Writer(path, HEADER, append=True)
    fill(first, 3, 3)
    first.close()
    assert seconds_in(path) == [0, 1, 2, 3, 4, 5]
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_recorder_goes_on_where_one_was_killed(tmp_path):
    path = tmp_path / "r.rec"
    killed = Writer(path, HEADER)
    fill(killed, 3)
    killed._file.close()
    again = Writer(path, HEADER, append=True)
    fill(again, 3, 3)
    again.close()
    reader = Reader(path)
    assert [tick.time // 1000 for tick in reader.ticks()] == [0, 1, 2, 3, 4, 5]
    assert reader.cut == ""
    with pytest.raises(RecordingError, match="exists already"):
        Writer(path, HEADER)
    path.unlink()
    with pytest.raises(RecordingError, match=r"r\.rec\.000001: exists already"):
        Writer(path, HEADER)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"precious", "not a gpuwatch recording"),
        (gzip.compress(b'{"gpuwatch_recording": 2}\n', mtime=0), "recording version 2; this program reads version 1"),
    ],
)
def test_going_on_with_something_else_is_refused_and_leaves_it_alone(tmp_path, content, message):
    path = tmp_path / "r.rec"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=message):
        Writer(path, HEADER, append=True)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_one_line(tmp_path):
    with pytest.raises(RecordingError) as error:
        Writer(tmp_path / "no" / "r.rec", HEADER)
    assert str(error.value) == f"{tmp_path}/no/r.rec: No such file or directory"


def test_a_recording_that_is_removed_or_replaced_is_noticed(tmp_path):
    path = tmp_path / "r.rec"
    writer = Writer(path, HEADER)
    fill(writer, 2)
    path.unlink()
    fill(writer, 2, 2)
    assert writer.error == f"{path}: was removed while it was written; recording stopped"
    other = tmp_path / "s.rec"
    writer = Writer(other, HEADER, Keep(bytes=1_000_000))
    fill(writer, 2)
    other.rename(tmp_path / "moved.rec")
    other.write_text("somebody else's")
    fill(writer, 200, 2)
    assert writer.error == f"{other}: was replaced by another file while it was written; recording stopped"
    assert other.read_text() == "somebody else's"


class Disk:
    """The file of a recorder on a disk that takes half a tick and is full then, until an older part is removed."""

    def __init__(self, writer: Writer) -> None:
        self.file, self.folder = writer._file, Path(writer.path).parent
        self.parts = len(list(self.folder.iterdir()))
        self.room = True

    def write(self, data):
        if len(list(self.folder.iterdir())) != self.parts:
            return self.file.write(data)
        if self.room:
            self.room = False
            return self.file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_keeps_whole_ticks_and_says_so(tmp_path):
    path = tmp_path / "r.rec"
    writer = Writer(path, HEADER)
    fill(writer, 5)
    writer._file = Disk(writer)
    fill(writer, 5, 5)
    assert writer.error == f"{path}: No space left on device; recording stopped"
    writer.close()
    reader = Reader(path)
    assert [tick.time // 1000 for tick in reader.ticks()] == [0, 1, 2, 3, 4]
    assert reader.cut == f"{path}: the end is missing; read up to the last complete tick"


def test_on_a_full_disk_the_oldest_part_makes_room_where_not_everything_is_kept(tmp_path):
    path = tmp_path / "r.rec"
    writer = Writer(path, HEADER, Keep(bytes=1_000_000))
    fill(writer, 300)
    before = parts_of(path)
    disk = writer._file = Disk(writer)
    fill(writer, 1, 300)
    assert writer.error == ""
    writer._file = disk.file
    fill(writer, 1, 301)
    writer.close()
    assert parts_of(path) == before[1:]
    reader = Reader(path)
    assert [tick.time // 1000 for tick in reader.ticks()][-2:] == [300, 301]
    assert reader.cut == ""
