"""Whatever a recording looks like: what is whole in it is read, and what is not is said in one line."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.model import Batch, series
from gpuwatch.recording import Header, Keep, Reader, RecordingError, Writer, parts_of, reader, tick_times

CREATED = 1_700_000_000_000
HEADER = {"gpuwatch_recording": 1, "host": "node", "created": CREATED, "interval": 1.0, "program": "test"}
A, B = series("a", host="node"), series("b", host="node")
GOOD = [
    {"keys": "t", "add": [A, B]},
    {"batch": "t", "t": 5, "i": [1, 1], "v": [3, 4.5]},
    {"tick": 5},
]


def lines(path, *rows, header=HEADER):
    """Write a recording from its lines; a text is taken as it is."""
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in (header, *rows))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def read(path):
    found = Reader(path)
    return [(tick.time, [tuple(batch.values) for batch in tick.batches]) for tick in found.ticks()], found.cut


BAD = [
    "x",
    "[1]",
    "5",
    '"tick"',
    "null",
    '{"tick": "5"}',
    '{"tick": true}',
    '{"tick": -1}',
    '{"tick": 1e300}',
    '{"tick": 253402300800000}',
    '{"batch": "t", "t": 6, "i": [1], "v": [1, 2]}',
    '{"batch": "t", "t": 6, "i": [0], "v": [1]}',
    '{"batch": "t", "t": 6, "i": [-1], "v": [1]}',
    '{"batch": "t", "t": 6, "i": [3], "v": [1]}',
    '{"batch": "t", "t": 6, "i": [1], "v": ["much"]}',
    '{"batch": "t", "t": 6, "i": [1], "v": [true]}',
    '{"batch": "t", "t": 6, "i": [1], "v": [1' + "0" * 400 + "]}",
    '{"batch": "t", "t": 6, "up": 0, "reason": "because"}',
    '{"batch": "t", "t": 6, "dur": "NaN"}',
    '{"batch": ["t"], "t": 6}',
    '{"batch": "t", "t": 6, "facts": [{"key": "x"}]}',
    '{"batch": "t", "t": 6, "facts": [{"key": "x", "value": [1], "source": ""}]}',
    '{"batch": "t", "t": 6, "facts": [{"key": "x", "value": 1, "source": "", "line": "7"}]}',
    '{"batch": "t", "t": 6, "events": [{"event": "x", "text": "", "source": "", "line": 1, "time": 1}]}',
    '{"batch": "t", "t": 6, "absent": [{"labels": [["a"]], "reason": "failed", "detail": ""}]}',
    '{"keys": "t", "add": [[["a"]]]}',
    '{"keys": "t", "add": 5}',
    "[" * 100_000,
]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_a_damaged_line_ends_the_reading_and_is_named(tmp_path, bad):
    path = lines(tmp_path / "r.rec", *GOOD, bad, {"tick": 7})
    ticks, cut = read(path)
    assert ticks == [(5, [(3.0, 4.5)])]
    assert cut.startswith(f"{path}: line 5 is damaged (")
    assert cut.endswith("); what follows is left out")
    assert "\n" not in cut
    assert list(tick_times(path))[:1] == [5]


def test_what_a_later_program_adds_is_passed_over(tmp_path):
    fact = {"key": "x", "value": 1, "source": "s", "line": None, "time": None, "server": "", "colour": "red"}
    rows = [*GOOD, {"news": 1}, {"batch": "t", "t": 6, "facts": [fact], "mood": "good"}, {"tick": 6, "took": 3}]
    ticks, cut = read(lines(tmp_path / "r.rec", *rows, header={**HEADER, "colour": "red"}))
    assert ticks == [(5, [(3.0, 4.5)]), (6, [(3.0, 4.5)])]
    assert cut == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpuwatch_recording": 2}, "recording version 2; this program reads version 1; a newer gpuwatch wrote it"),
        ({"gpuwatch_recording": 0}, "recording version 0; this program reads version 1"),
        ({"gpuwatch_recording": "1"}, "recording version '1'; this program reads version 1"),
        ({"gpuwatch_recording": None}, "recording version None; this program reads version 1"),
        ({"gpuwatch_recording": True}, "recording version True; this program reads version 1"),
        ({"created": "yesterday"}, "the header of the recording is damaged"),
        ({"created": 10**18}, "the header of the recording is damaged"),
        ({"host": 5}, "the header of the recording is damaged"),
        ({"interval": "often"}, "the header of the recording is damaged"),
        ({"interval": 0}, "the recording has an interval of 0 s; allowed: 0.05 to 3600"),
        ({"interval": 1e9}, "the recording has an interval of 1e+09 s; allowed: 0.05 to 3600"),
    ],
)
def test_a_header_that_cannot_be_used_is_one_line(tmp_path, change, message):
    path = lines(tmp_path / "r.rec", *GOOD, header={**HEADER, **change})
    with pytest.raises(RecordingError) as error:
        Reader(path)
    assert str(error.value) == f"{path}: {message}"


def test_the_end_of_a_file_that_is_still_written_is_no_damage(tmp_path):
    writer = Writer(tmp_path / "r.rec", Header("node", 1, 1.0, "test"))
    writer.write(Batch("t", 5, (A,), (1.0,)))
    writer.tick(5)
    assert read(tmp_path / "r.rec") == ([(5, [(1.0,)])], "")
    writer._file.close()
    assert read(tmp_path / "r.rec")[1].endswith("the end is missing; read up to the last complete tick")


def test_zeros_after_a_power_cut_are_said_and_what_was_before_is_read(tmp_path):
    path = lines(tmp_path / "r.rec", *GOOD)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(4096))
    ticks, cut = read(path)
    assert len(ticks) == 1
    assert cut == f"{path}: damaged after {size} bytes; what follows is left out"


def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_LONGEST_LINE", 1 << 20)
    path = lines(tmp_path / "r.rec", *GOOD, "9" * (30 << 20), {"tick": 7})
    ticks, cut = read(path)
    assert len(ticks) == 1
    assert cut == f"{path}: a line is longer than 1 MiB; the rest is left out"


def test_a_recording_cut_in_its_header_is_refused_and_never_a_traceback(tmp_path):
    whole = lines(tmp_path / "r.rec", *GOOD).read_bytes()
    path = tmp_path / "cut.rec"
    opened, refused = 0, []
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        try:
            ticks, cut = read(path)
        except RecordingError as error:
            refused.append(str(error))
        else:
            opened += 1
            assert len(ticks) <= 1
            assert cut
    assert opened > 20
    assert opened + len(refused) == len(whole)
    assert set(refused) == {f"{path}: not a gpuwatch recording"}


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 5))
def test_any_bytes_anywhere_are_survived(tmp_path_factory, junk, place, gone):
    folder = tmp_path_factory.mktemp("junk")
    whole = lines(folder / "r.rec", *GOOD, *({"tick": 6 + number} for number in range(20))).read_bytes()
    place %= len(whole)
    path = folder / "x.rec"
    path.write_bytes(whole[:place] + junk + whole[place + gone :])
    try:
        said = read(path)[1]
    except RecordingError as error:
        said = str(error)
    assert "\n" not in said


def test_a_damaged_part_costs_only_itself(tmp_path):
    path = tmp_path / "r.rec"
    writer = Writer(path, Header("node", 0, 1.0, "test"), Keep(seconds=480))
    for second in range(0, 300, 10):
        writer.write(Batch("t", 1000 * second, (A,), (float(second),)))
        writer.tick(1000 * second)
    writer.close()
    first, second, *rest = parts_of(path)
    in_second = [time // 1000 for time in tick_times(second)]
    second.write_bytes(b"not what it was")
    found = Reader(path)
    assert [tick.time // 1000 for tick in found.ticks()] == [s for s in range(0, 300, 10) if s not in in_second]
    assert found.cut == f"{second}: not a gpuwatch recording"
    assert len(rest) >= 3
    assert first.exists()


def test_a_recorder_killed_between_two_parts_leaves_a_recording_that_opens(tmp_path):
    path = tmp_path / "r.rec"
    lines(path, *GOOD)
    path.rename(tmp_path / "r.rec.000001")
    assert read(path) == ([(5, [(3.0, 4.5)])], "")
    assert list(tick_times(path)) == [5]


def test_the_times_of_the_ticks_are_found_without_reading_the_rest(tmp_path):
    path = tmp_path / "r.rec"
    writer = Writer(path, Header("node", 0, 1.0, "test"), Keep(seconds=480))
    for second in range(0, 300, 10):
        writer.write(Batch("t", 1000 * second, (A, B), (float(second), 0.5)))
        writer.tick(1000 * second)
    writer.close()
    assert list(tick_times(path)) == [tick.time for tick in Reader(path).ticks()] == list(range(0, 300_000, 10_000))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, ""),
        (60, ""),
        (90, "it begins 90 seconds from now: one of the two clocks is wrong"),
        (3600, "it begins 60 minutes from now: one of the two clocks is wrong"),
        (40 * 86_400, "it begins 40 days from now: one of the two clocks is wrong"),
    ],
)
def test_a_recording_from_the_future_says_so(tmp_path, seconds, said):
    found = Reader(lines(tmp_path / "r.rec", *GOOD))
    found.close()
    assert found.ahead(CREATED - 1000 * seconds) == said
