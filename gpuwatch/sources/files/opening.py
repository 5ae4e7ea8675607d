"""Opening what somebody names: a file, a pipe or standard input, compressed or not, in whatever encoding it is.

Everything comes out as blocks of UTF-8 text. What cannot be read says so in one line; what ends early is a note.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import io
import lzma
import os
import select
import stat
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.sources.files.binary import binary_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = 1 << 20
"""Bytes that are read at once."""
HEAD = 1 << 16
"""Bytes from which the encoding is judged."""
MOST_BYTES = 64 << 30
"""Where reading ends, after decompression."""
SILENCE_SECONDS = 60.0
"""How long a named pipe may say nothing."""
OPENING_SECONDS = 30.0
"""How long nobody need write to a named pipe at first."""

_PATIENCE = 0.01

STDIN = "-"


class UnreadableError(Exception):
    """A file cannot be read at all; the message is one line without the file's name."""


@dataclass(slots=True)
class Opened:
    """An open input.

    `size` is that of the file as it lies there, 0 for a pipe; `modified` is in milliseconds since the epoch, 0 unknown.
    `head` is the first block of text (UTF-8); `blocks` gives the whole text, the head included. `packed` says how it is
    compressed (gzip, other, or nothing), `raw_bytes` counts what was read of the file so far, `note` says what is
    wrong with it.
    """

    name: str
    size: int = 0
    modified: int = 0
    head: bytes = b""
    packed: str = ""
    note: str = ""
    raw_bytes: int = 0
    _parts: Iterator[bytes] = field(default_factory=lambda: iter(()))
    _close: Callable[[], None] = lambda: None

    def blocks(self) -> Iterator[bytes]:
        """Yield the text in blocks; may be walked once."""
        if self.head:
            yield self.head
        yield from self._parts

    def close(self) -> None:
        """Close the file."""
        self._close()


def open_input(path: str) -> Opened:
    """Open a file, a pipe or ``-`` and look at its beginning.

    Raises:
        UnreadableError: There is no such file, it may not be read, it is none, it is empty or it holds no text.
    """
    opened = _open(path)
    try:
        parts = _text(opened, _raw(opened, opened._parts))  # noqa: SLF001  # made in this module, not by its users
        opened.head = next(parts, b"")
        opened._parts = parts  # noqa: SLF001  # as above
    except BaseException:
        opened.close()
        raise
    if not opened.head:
        opened.close()
        raise UnreadableError(opened.note or "is empty")
    return opened


def _open(path: str) -> Opened:
    if path == STDIN:
        stream = sys.stdin.buffer
        return Opened("stdin", _parts=iter(lambda: stream.read1(BLOCK), b""))  # type: ignore[union-attr]  # buffered
    try:
        status = Path(path).stat()
        if stat.S_ISDIR(status.st_mode):
            raise UnreadableError("is a folder; name the files in it")
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            raise UnreadableError("is neither a file nor a pipe")
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise UnreadableError("no such file") from None
    except PermissionError:
        raise UnreadableError("no permission to read it") from None
    except (OSError, ValueError) as error:
        raise UnreadableError(str(getattr(error, "strerror", None) or error)) from None
    regular = stat.S_ISREG(status.st_mode)
    opened = Opened(path, status.st_size if regular else 0, status.st_mtime_ns // 1_000_000 if regular else 0)
    opened._parts = _file(fd, opened, regular=regular)  # noqa: SLF001  # made in this module
    opened._close = lambda: os.close(fd)  # noqa: SLF001  # as above
    return opened


def _file(fd: int, opened: Opened, *, regular: bool) -> Iterator[bytes]:
    deadline = time.monotonic() + OPENING_SECONDS
    while True:
        try:
            patience = SILENCE_SECONDS if opened.raw_bytes else max(0.0, deadline - time.monotonic())
            if not regular and not select.select([fd], [], [], patience)[0]:
                opened.note = _silent(opened)
                return
            data = os.read(fd, BLOCK)
        except BlockingIOError:
            continue
        except OSError as error:
            opened.note = f"could be read in part only: {error.strerror or error}"
            return
        if not data and not regular and not opened.raw_bytes and time.monotonic() < deadline:
            # Nobody has opened the other end of the pipe yet.
            time.sleep(_PATIENCE)
            continue
        if not data and not regular and not opened.raw_bytes:
            opened.note = _silent(opened)
        if not data:
            return
        yield data
        if regular and not data.strip(b"\0"):
            _skip_hole(fd)


def _silent(opened: Opened) -> str:
    if opened.raw_bytes:
        return f"said nothing for {SILENCE_SECONDS:.0f} seconds; what came before was read"
    return f"is a pipe to which nobody wrote anything in {OPENING_SECONDS:.0f} seconds"


def _skip_hole(fd: int) -> None:
    """Go to the next part of a sparse file that holds something."""
    if not hasattr(os, "SEEK_DATA"):
        return
    try:
        os.lseek(fd, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_DATA)
    except OSError:
        os.lseek(fd, 0, os.SEEK_END)


def _raw(opened: Opened, parts: Iterator[bytes]) -> Iterator[bytes]:
    """Count what is read, and decompress it where it is compressed."""

    def counted() -> Iterator[bytes]:
        for part in parts:
            opened.raw_bytes += len(part)
            yield part

    source = counted()
    first = next(source, b"")
    unpack = _unpacker(first)
    if unpack is None:
        yield from _chain(first, source)
    else:
        opened.packed = "gzip" if first.startswith(b"\x1f\x8b") else "other"
        yield from _unpack(unpack(_Source(_chain(first, source))), opened)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


class _Source(io.RawIOBase):
    """The parts of a file as a stream, for libraries that want one."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._left = part
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def _unpacker(first: bytes) -> Callable[[_Source], Any] | None:
    """Return what opens a compressed stream that begins like this; None for one that is not compressed."""
    if first.startswith(b"\x1f\x8b"):
        return lambda source: gzip.GzipFile(fileobj=io.BufferedReader(source, BLOCK))
    if first.startswith(b"BZh") and first[4:10] == b"1AY&SY":
        return lambda source: bz2.BZ2File(io.BufferedReader(source, BLOCK))
    if first.startswith(b"\xfd7zXZ\0"):
        return lambda source: lzma.LZMAFile(io.BufferedReader(source, BLOCK))
    if first.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd()
    return None


def _zstd() -> Callable[[_Source], Any]:
    try:
        zstd = importlib.import_module("compression.zstd")  # Python 3.14 has it
    except ImportError:
        pass
    else:
        return lambda source: zstd.ZstdFile(io.BufferedReader(source, BLOCK))
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise UnreadableError(
            "is compressed with zstd, which this Python cannot read; pip install zstandard, or unpack it"
        ) from None
    return lambda source: zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)


def _unpack(stream: Any, opened: Opened) -> Iterator[bytes]:
    """Decompress in bounded pieces; several compressed streams in a row are one text, as `zcat` takes them."""
    given = 0
    while given < MOST_BYTES:
        try:
            text = stream.read1(BLOCK) if hasattr(stream, "read1") else stream.read(BLOCK)
        except EOFError:
            opened.note = "ends in the middle of the compressed data; what is there was read"
            return
        except Exception as error:  # noqa: BLE001  # each library has errors of its own
            opened.note = f"is damaged compressed data ({type(error).__name__}); {given:,} bytes of text were read"
            return
        if not text:
            return
        given += len(text)
        yield text
    opened.note = f"only the first {MOST_BYTES >> 30} GiB of text were read"


# Encodings


def _text(opened: Opened, parts: Iterator[bytes]) -> Iterator[bytes]:
    """Turn the bytes into blocks of UTF-8 text, or refuse them."""
    first = b""
    for part in parts:
        first += part
        if len(first) >= HEAD and first.strip(b"\0"):
            break
        if len(first) > 8 * BLOCK:
            first = first.strip(b"\0")
    solid = first.strip(b"\0")
    if not solid:
        if opened.raw_bytes:
            opened.note = opened.note or "holds nothing but zero bytes"
        return
    encoding = _encoding(first[:HEAD])
    if encoding:
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        for part in _chain(first, parts):
            yield decoder.decode(part).encode()
        yield decoder.decode(b"", final=True).encode()
        return
    reason = binary_reason(first[:HEAD] if first[:HEAD].strip(b"\0") else solid[:HEAD])
    if reason:
        raise UnreadableError(reason)
    yield first.removeprefix(b"\xef\xbb\xbf")
    yield from parts


def _encoding(head: bytes) -> str:
    """Return the name of an encoding other than UTF-8, or nothing."""
    for mark, name in ((b"\xff\xfe\0\0", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if head.startswith(mark):
            return name
    pairs = len(head) // 2
    if pairs >= 8:
        even, odd = head[0 : 2 * pairs : 2].count(0), head[1 : 2 * pairs : 2].count(0)
        if odd > 0.7 * pairs and even < 0.1 * pairs:
            return "utf-16-le"
        if even > 0.7 * pairs and odd < 0.1 * pairs:
            return "utf-16-be"
    return ""
