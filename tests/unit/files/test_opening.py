"""Whatever the bytes of a file are, they come out as text, or one line says why not."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import os
import random
import sys
import threading

import pytest

from gpuwatch.sources.files import opening
from gpuwatch.sources.files.opening import UnreadableError, open_input

TEXT = "INFO 11-29 10:00:00 [a.py:1] naïve\nERROR 11-29 10:00:01 [a.py:2] gone\n"


@pytest.fixture
def put(tmp_path):
    def write(data):
        path = tmp_path / "file"
        path.write_bytes(data)
        return str(path)

    return write


def read(path):
    opened = open_input(path)
    try:
        return b"".join(opened.blocks()), opened
    finally:
        opened.close()


def refusal(path):
    with pytest.raises(UnreadableError) as caught:
        open_input(path)
    return str(caught.value)


def packed(name):
    if name == "zst":
        library = "zstandard" if sys.version_info < (3, 14) else "compression.zstd"
        return importlib.import_module(library).compress(TEXT.encode())
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[name](TEXT.encode())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_every_encoding_of_unicode_comes_out_as_utf8(put, encoding):
    assert read(put(TEXT.encode(encoding)))[0].decode() == TEXT


@pytest.mark.parametrize("name", ["gz", "bz2", "xz", "zst"])
def test_compressed_files_come_out_as_their_text(put, name):
    text, opened = read(put(packed(name)))
    assert text.decode() == TEXT
    assert opened.note == ""


def test_several_gzip_streams_in_one_file_are_one_text(put):
    assert read(put(packed("gz") * 3))[0].decode() == TEXT * 3


def test_compressed_data_that_was_cut_gives_what_is_there_and_says_so(put):
    lines = "".join(f"line {number} {number * 7919 % 10007}\n" for number in range(50_000)).encode()
    data = gzip.compress(lines)
    text, opened = read(put(data[: len(data) // 2]))
    assert lines.startswith(text)
    assert len(text) > len(lines) // 4
    assert opened.note == "ends in the middle of the compressed data; what is there was read"


def test_compressed_data_that_is_damaged_gives_what_comes_before_the_damage(put):
    lines = "".join(f"line {number} {number * 7919 % 10007}\n" for number in range(40_000)).encode()
    data = bytearray(gzip.compress(lines))
    middle = len(data) // 2
    data[middle : middle + 50] = b"\xff" * 50
    text, opened = read(put(bytes(data)))
    assert text[:1000] == lines[:1000]
    assert "damaged compressed data" in opened.note


def test_zstd_without_a_library_says_what_to_install(put, monkeypatch):
    monkeypatch.setattr(opening.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    assert "pip install zstandard" in refusal(put(b"\x28\xb5\x2f\xfd" + bytes(20)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (bytes(100_000), "nothing but zero bytes"),
        (random.Random(1).randbytes(50_000), "binary data"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "a picture"),
        (b"PK\x03\x04" + bytes(50), "a zip archive"),
        (b"\x7fELF" + bytes(50), "a program"),
        (b"name".ljust(257, b"x") + b"ustar" + b"x" * 250, "a tar archive"),
        (gzip.compress(random.Random(2).randbytes(50_000), mtime=0), "binary data"),
    ],
)
def test_what_is_no_text_is_refused_with_the_reason(put, data, words):
    assert words in refusal(put(data))


def test_folders_missing_files_and_devices_are_refused_with_the_reason(tmp_path):
    assert refusal(str(tmp_path)) == "is a folder; name the files in it"
    assert refusal(str(tmp_path / "missing")) == "no such file"
    assert refusal("/dev/zero") == "is neither a file nor a pipe"
    assert "null" in refusal("a\0b")


def test_runs_of_zero_bytes_in_a_log_are_no_reason_to_refuse_it(put):
    text, _ = read(put(TEXT.encode() + bytes(70_000) + TEXT.encode()))
    assert text.replace(b"\0", b"").decode() == TEXT * 2


def test_a_hole_of_two_gigabytes_is_stepped_over(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(TEXT.encode())
        file.seek(2 << 30)
        file.write(TEXT.encode())
    opened = open_input(str(path))
    blocks = [block.replace(b"\0", b"") for block in opened.blocks()]
    opened.close()
    assert b"".join(blocks).decode() == TEXT * 2
    assert opened.raw_bytes < 64 << 20


def test_a_file_that_is_removed_while_it_is_read_is_read_to_its_end(tmp_path):
    path = tmp_path / "gone"
    path.write_bytes(TEXT.encode() * 50_000)
    opened = open_input(str(path))
    path.unlink()
    assert sum(map(len, opened.blocks())) == len(TEXT.encode()) * 50_000
    opened.close()


def test_a_file_that_shrinks_while_it_is_read_gives_what_is_left(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(TEXT.encode() * 50_000)
    opened = open_input(str(path))
    os.truncate(path, 1 << 20)
    assert sum(map(len, opened.blocks())) == 1 << 20
    opened.close()


def test_a_disk_that_fails_in_the_middle_is_a_note(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(TEXT.encode() * 50_000)
    opened = open_input(str(path))
    real = os.read

    def fail(fd, count):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(opening.os, "read", fail)
    text = b"".join(opened.blocks())
    monkeypatch.setattr(opening.os, "read", real)
    opened.close()
    assert len(text) == 1 << 20
    assert opened.note == "could be read in part only: Input/output error"


def test_a_named_pipe_is_read_until_its_writer_closes_it(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(TEXT.encode()))
    writer.start()
    text, opened = read(str(path))
    writer.join()
    assert text.decode() == TEXT
    assert opened.size == 0


def test_standard_input_is_read_and_unpacked_like_a_file(monkeypatch):
    class Stdin:
        buffer = io.BufferedReader(io.BytesIO(packed("gz")))

    monkeypatch.setattr(sys, "stdin", Stdin)
    text, opened = read("-")
    assert text.decode() == TEXT
    assert opened.name == "stdin"


def test_a_pipe_that_nobody_writes_to_is_given_up_in_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "OPENING_SECONDS", 0.05)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert refusal(str(path)) == "is a pipe to which nobody wrote anything in 0 seconds"
