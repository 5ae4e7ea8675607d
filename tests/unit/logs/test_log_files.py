"""A followed file survives rotation, truncation, bad bytes and bad luck, with bounded work and memory."""

from __future__ import annotations

import os
import tracemalloc

import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.model import Reason, SourceError
from gpuwatch.sources.logs.files import FileInput
from gpuwatch.sources.logs.lines import LineSplitter, LogLimits

SMALL = LogLimits(whole_file=4000, part=1000, per_poll=100_000, line=200)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "server.log"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def follow(path, clock):
    opened = []

    def start(limits=SMALL):
        opened.append(FileInput(str(path), clock, limits))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def texts(lines):
    return [line.data.decode("utf-8", "replace") for line in lines]


def append(path, text):
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def test_what_is_there_at_the_first_look_is_past_and_what_follows_is_not(path, follow):
    append(path, "one\ntwo\n")
    log = follow()
    assert [(line.data, line.number, line.past) for line in log.read()] == [(b"one", 1, True), (b"two", 2, True)]
    append(path, "three\n")
    assert [(line.data, line.number, line.past) for line in log.read()] == [(b"three", 3, False)]
    assert log.read() == []


def test_an_unfinished_line_is_held_until_it_is_complete(path, follow):
    append(path, "one\n")
    log = follow()
    log.read()
    append(path, "tw")
    assert log.read() == []
    append(path, "o\nth")
    assert texts(log.read()) == ["two"]


def test_an_unfinished_line_is_taken_after_a_while_in_which_it_did_not_grow(path, follow, clock):
    append(path, "")
    log = follow()
    log.read()
    append(path, "EngineCore failed to start.")
    assert log.read() == []
    clock.advance(1.9)
    assert log.read() == []
    clock.advance(0.2)
    assert texts(log.read()) == ["EngineCore failed to start."]
    append(path, "\nnext\n")
    assert texts(log.read()) == ["", "next"]


def test_a_replaced_file_is_read_to_its_end_and_then_the_new_one_from_its_start(path, follow):
    append(path, "one\n")
    log = follow()
    log.read()
    append(path, "last words\nunfinished")
    path.rename(path.with_suffix(".1"))
    append(path, "fresh\n")
    lines = log.read()
    assert texts(lines) == ["last words", "unfinished", "fresh"]
    assert [line.past for line in lines] == [False, False, False]
    assert lines[-1].number == 1
    assert "replaced" in log.note
    append(path, "more\n")
    assert texts(log.read()) == ["more"]
    assert log.note == ""


def test_a_writer_that_has_not_reopened_its_log_yet_is_still_heard(path, follow, clock):
    append(path, "one\n")
    log = follow()
    log.read()
    old = path.with_suffix(".1")
    path.rename(old)
    append(path, "")
    assert log.read() == []
    append(old, "late\n")
    assert texts(log.read()) == ["late"]
    clock.advance(3)
    append(path, "new\n")
    assert texts(log.read()) == ["new"]


def test_a_file_without_its_name_is_still_read(path, follow):
    append(path, "one\n")
    log = follow()
    log.read()
    with path.open("ab") as writer:
        path.unlink()
        writer.write(b"two\n")
        writer.flush()
        assert texts(log.read()) == ["two"]
        assert "lost its name" in log.note
    append(path, "reborn\n")
    assert texts(log.read()) == ["reborn"]


def test_an_emptied_file_is_read_from_its_start(path, follow):
    append(path, "one\ntwo\n")
    log = follow()
    log.read()
    path.write_text("new\n")
    assert texts(log.read()) == ["new"]
    assert "emptied" in log.note


def test_a_file_that_was_emptied_and_grew_past_our_place_is_noticed(path, follow):
    append(path, "one\n")
    log = follow()
    log.read()
    path.write_text("a different and much longer start\nsecond\n")
    assert texts(log.read()) == ["a different and much longer start", "second"]


def test_a_missing_file_says_so_and_is_not_past_when_it_appears(path, follow):
    log = follow()
    with pytest.raises(SourceError, match="no such file; it is read as soon as it appears") as caught:
        log.read()
    assert caught.value.reason is Reason.NOT_FOUND
    append(path, "hello\n")
    assert [(line.data, line.past) for line in log.read()] == [(b"hello", False)]


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_what_is_no_file_is_refused_at_once(path, follow, kind):
    if kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(SourceError, match="not a regular file") as caught:
        follow().read()
    assert caught.value.reason is Reason.FAILED


def test_a_file_that_may_not_be_read_says_so(path, follow, monkeypatch):
    append(path, "x\n")
    # The tests may run as a user who may read everything, so the refusal is made here.
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(SourceError, match="no permission to read it") as caught:
        follow().read()
    assert caught.value.reason is Reason.NO_PERMISSION


def test_of_a_large_file_the_start_and_the_end_are_read(path, follow):
    append(path, "".join(f"line {number:05d}\n" for number in range(1000)))
    log = follow()
    lines = log.read()
    assert texts(lines)[0] == "line 00000"
    assert texts(lines)[-1] == "line 00999"
    assert 100 < len(lines) < 250
    assert all(line.past for line in lines)
    # 1,000 bytes of 11-byte lines: 90 whole ones at the start, numbered; behind the gap numbers are not known.
    assert [line.number for line in lines[:90]] == list(range(1, 91))
    assert {line.number for line in lines[90:]} == {0}
    assert all(text.startswith("line ") and len(text) == 10 for text in texts(lines))
    append(path, "live\n")
    assert [(line.data, line.past) for line in log.read()] == [(b"live", False)]


def test_one_poll_reads_a_bounded_part_and_the_next_ones_the_rest(path, follow):
    append(path, "x" * 99 + "\n")
    log = follow(LogLimits(per_poll=1000))
    log.read()
    append(path, ("y" * 99 + "\n") * 25)
    assert [len(log.read()) for _ in range(4)] == [10, 10, 5, 0]


def test_an_endless_line_is_cut_once_and_takes_no_memory(path, follow):
    append(path, "")
    log = follow(LogLimits(per_poll=2**20))
    log.read()
    tracemalloc.start()
    for _ in range(8):
        append(path, b"z" * 2**20)
        lines = log.read()
        assert len(lines) <= 1
        assert all(line.cut and len(line.data) == 65536 for line in lines)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20
    append(path, "\nafter\n")
    assert texts(log.read()) == ["after"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_pieces_of_any_size_make_the_same_lines(size):
    data = ("short\n\nexactly ten\n" + "l" * 30 + "\nlast").encode()
    splitter = LineSplitter(20)
    lines = []
    for at in range(0, len(data), size):
        lines += splitter.feed(data[at : at + size])
    lines += splitter.flush()
    assert [(line.data, line.number, line.cut) for line in lines] == [
        (b"short", 1, False),
        (b"", 2, False),
        (b"exactly ten", 3, False),
        (b"l" * 20, 4, True),
        (b"last", 5, False),
    ]
