"""Reading a recording as far as it goes, whatever happened to it."""

from __future__ import annotations

import fcntl
import json
import math
import zlib
from array import array
from dataclasses import fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpuwatch.model import Absence, Batch, Fact, Labels, LogEvent, Reason
from gpuwatch.recording.format import (
    GZIP,
    HISTORY_MS,
    LAST_MS,
    VERSION,
    Header,
    RecordingError,
    Table,
    Tick,
    decode,
)
from gpuwatch.recording.parts import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CHUNK = 1 << 16
_STEP = 4 << 20
_LONGEST_LINE = 64 << 20
_INTERVALS = (0.05, 3600.0)
_HISTORY = (60_000, 7 * 86_400_000)
_DAMAGE = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)
_AHEAD_MS = 60_000
"""Clocks of two machines may differ by so much without a word."""
_HEADER = b'{"gpuwatch_recording"'
_TICK = b'{"tick":'
_FACT = {item.name for item in fields(Fact)}
_EVENT = {item.name for item in fields(LogEvent)}


class Reader:
    """Reads a recording as far as it goes, all its parts one after the other.

    After the ticks were read, `cut` says why the file ended early or what is damaged in it, or is empty; the end of one
    that is still being written is no damage.

    Args:
        path: The file; its older parts belong to it.
        whole: Whether the older parts are read, too.
    """

    def __init__(self, path: str | Path, *, whole: bool = True) -> None:
        """Open the first file and read its header.

        Raises:
            RecordingError: the file cannot be read, is no recording, or was written by a newer version.
        """
        self.path = str(path)
        self.cut = ""
        self.found: Mapping[str, Any] | None = None
        """What the last evaluation found, where no tick came after it."""
        self._parts = parts_of(path) if whole else [Path(path)]
        self.size = sum(part.stat().st_size for part in self._parts if part.exists())
        self._stream = _Stream(self._parts[0])
        try:
            self.header = _header(next(self._stream.lines, b""), str(self._parts[0]))
        except RecordingError:
            self.close()
            raise

    def ticks(self) -> Iterator[Tick]:
        """Yield every complete tick. What is damaged is left out and named in `cut`."""
        for place, part in enumerate(self._parts):
            if place:
                try:
                    self._stream = _Stream(part)
                    _header(next(self._stream.lines, b""), str(part))
                except RecordingError as error:
                    self._say(str(error))
                    self._stream.close()
                    continue
            yield from self._ticks(self._stream)
            if self._stream.damage:
                self._say(self._stream.damage)
            elif self._stream.open_end and part == self._parts[-1]:
                self._say(f"{part}: the end is missing; read up to the last complete tick")

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._stream.close()

    def ahead(self, now: int) -> str:
        """Say by how much the recording comes from the future of `now` (milliseconds), where it does."""
        seconds = (self.header.created - now) / 1000
        if seconds * 1000 <= _AHEAD_MS:
            return ""
        for size, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
            if seconds >= 2 * size:
                return f"it begins {seconds / size:,.0f} {name} from now: one of the two clocks is wrong"
        return f"it begins {seconds:,.0f} seconds from now: one of the two clocks is wrong"

    def _say(self, why: str) -> None:
        self.cut = self.cut or why

    def _ticks(self, stream: _Stream) -> Iterator[Tick]:
        number = 1
        state = _State()
        try:
            for number, text in enumerate(stream.lines, 2):  # noqa: B007  # named in the message
                tick = state.take(json.loads(text), stream.path)
                if tick is not None:
                    yield tick
            self.found = state.found
        except RecordingError as error:
            stream.damage = str(error)
        except _DAMAGE as error:
            why = type(error).__name__
            stream.damage = f"{stream.path}: line {number} is damaged ({why}); what follows is left out"
        finally:
            stream.close()


class _State:
    """What the lines of one stream have said so far."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.layouts: dict[str, tuple[Labels, ...]] = {}
        self.batches: list[Batch] = []
        self.forgotten: list[str] = []
        self.found: dict[str, Any] | None = None

    def take(self, line: Any, path: str) -> Tick | None:
        """Take in a line; return the tick that it ends."""
        if not isinstance(line, dict):
            raise TypeError
        if "tick" in line:
            tick = Tick(moment(line["tick"]), tuple(self.batches), tuple(self.forgotten), self.found)
            self.batches, self.forgotten, self.found = [], [], None
            return tick
        if "batch" in line:
            target = _text(line["batch"])
            self.batches.append(_batch(target, line, self.tables.setdefault(target, Table()), self.layouts))
        elif "keys" in line:
            table = self.tables.setdefault(_text(line["keys"]), Table())
            for pairs in line["add"]:
                table.add(tuple((str(key), str(value)) for key, value in pairs))
        elif "found" in line:
            self.found = line
        elif "forget" in line:
            target = _text(line["forget"])
            self.forgotten.append(target)
        elif "gpuwatch_recording" in line:  # parts that were joined with cat
            _check_version(line["gpuwatch_recording"], path)
            self.__init__()  # type: ignore[misc]  # the numbers of series begin afresh
        return None


class _Stream:
    """The lines of one file. `damage` says where its bytes make no sense, `open_end` that nobody finished it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.damage = ""
        self.open_end = False
        try:
            self._file: IO[bytes] = path.open("rb")
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror}") from None
        self.lines = self._read()

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._file.close()

    def _read(self) -> Iterator[bytes]:
        unzip = zlib.decompressobj(GZIP)
        rest, fresh = bytearray(), False
        while not self.damage and not self._file.closed:
            try:
                chunk = self._file.read(_CHUNK)
            except OSError as error:
                self.damage = f"{self.path}: {error.strerror}"
                return
            if not chunk:
                break
            data = chunk
            while data and not self.damage:
                if unzip.eof:
                    unzip, fresh = zlib.decompressobj(GZIP), True
                before = unzip.copy()
                try:
                    rest += unzip.decompress(data, _STEP)
                    data = unzip.unused_data if unzip.eof else unzip.unconsumed_tail
                    fresh = False
                except zlib.error:
                    more, good = (b"", 0) if fresh else _until_damage(before, data)
                    rest += more
                    at = self._file.tell() - len(data) + good
                    self.damage = f"{self.path}: damaged after {at} bytes; what follows is left out"
                if b"\n" in rest:
                    *lines, last = bytes(rest).split(b"\n")
                    rest = bytearray(last)
                    yield from lines
                elif len(rest) > _LONGEST_LINE:
                    self.damage = f"{self.path}: a line is longer than {_LONGEST_LINE >> 20} MiB; the rest is left out"
        if not unzip.eof and not self.damage:
            self.open_end = not self._being_written()

    def _being_written(self) -> bool:
        """Whether a recorder holds the file."""
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (OSError, ValueError):  # no locks here, or the file was closed meanwhile
            return False
        fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)
        return False


def tick_times(path: str | Path) -> array[int]:
    """Return the times of all ticks in milliseconds, without looking at what they hold.

    Raises:
        RecordingError: as of `Reader`.
    """
    times = array("q")
    Reader(path).close()
    for part in parts_of(path):
        try:
            stream = _Stream(part)
        except RecordingError:
            continue
        try:
            if not next(stream.lines, b"").startswith(_HEADER):
                continue
            times.extend(moment(json.loads(line)["tick"]) for line in stream.lines if line.startswith(_TICK))
        except _DAMAGE:
            continue
        finally:
            stream.close()
    return times


def _header(first: bytes, path: str) -> Header:
    try:
        line = json.loads(first)
        version = line["gpuwatch_recording"]
    except _DAMAGE:
        raise RecordingError(f"{path}: not a gpuwatch recording") from None
    _check_version(version, path)
    try:
        interval, history = float(line.get("interval", 1.0)), int(line.get("history_ms", HISTORY_MS))
        header = Header(
            host=_text(line.get("host", "")),
            created=moment(line.get("created", 0)),
            interval=interval,
            program=_text(line.get("program", "")),
            note=_text(line.get("note", "")),
            history_ms=min(max(history, _HISTORY[0]), _HISTORY[1]),
        )
    except _DAMAGE:
        raise RecordingError(f"{path}: the header of the recording is damaged") from None
    if not _INTERVALS[0] <= interval <= _INTERVALS[1]:
        raise RecordingError(f"{path}: the recording has an interval of {interval:g} s; allowed: 0.05 to 3600")
    return header


def _check_version(version: Any, path: str) -> None:
    """Refuse another version.

    Raises:
        RecordingError: it is another one.
    """
    if version != VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and not isinstance(version, bool) and version > VERSION
        hint = "; a newer gpuwatch wrote it" if newer else ""
        raise RecordingError(f"{path}: recording version {version!r}; this program reads version {VERSION}{hint}")


def moment(value: Any) -> int:
    """Return a time in milliseconds since the epoch.

    Raises:
        ValueError: it is none, or one that cannot be shown.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LAST_MS:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _until_damage(unzip: zlib._Decompress, chunk: bytes) -> tuple[bytes, int]:
    """Return what `chunk` holds before its first damaged byte, and how many bytes that took."""
    data = bytearray()
    position = 0
    try:
        for position in range(len(chunk)):
            data += unzip.decompress(chunk[position : position + 1])
    except zlib.error:
        return bytes(data), position
    return bytes(data), len(chunk)


def _batch(target: str, line: dict[str, Any], table: Table, layouts: dict[str, tuple[Labels, ...]]) -> Batch:
    number = -1
    shape_changed = False
    for gap, value in zip(line.get("i", ()), line.get("v", ()), strict=True):
        if gap < 1:
            raise IndexError
        number += gap
        before = table.values[number]
        after = decode(before, value)
        table.values[number] = after
        shape_changed = shape_changed or (before is None) != (after is None)
    if shape_changed or target not in layouts:
        layouts[target] = tuple(key for key, value in zip(table.keys, table.values, strict=True) if value is not None)
    up = bool(line.get("up", 1))
    duration = float(line.get("dur", 0.0))
    if not math.isfinite(duration):
        raise ValueError
    return Batch(
        target=target,
        time=moment(line["t"]),
        keys=layouts[target] if up else (),
        values=[value for value in table.values if value is not None] if up else [],
        up=up,
        reason=Reason(line["reason"]) if line.get("reason") else None,
        detail=_text(line.get("detail", "")),
        duration=duration,
        dropped=int(line.get("dropped", 0)),
        absent=tuple(
            Absence(tuple((_text(k), _text(v)) for k, v in item["labels"]), Reason(item["reason"]), item["detail"])
            for item in line.get("absent", ())
        ),
        facts=tuple(map(_fact, line.get("facts", ()))),
        events=tuple(map(_event, line.get("events", ()))),
    )


def _fact(item: dict[str, Any]) -> Fact:
    """Return a fact; what a later version says beside it is left out."""
    fact = Fact(**{key: value for key, value in item.items() if key in _FACT})
    _check(fact.line, fact.time)
    _text(fact.key), _text(fact.source), _text(fact.server)
    if not isinstance(fact.value, str | int | float):
        raise TypeError
    return fact


def _event(item: dict[str, Any]) -> LogEvent:
    """Return an event; what a later version says beside it is left out."""
    named = {key: value for key, value in item.items() if key in _EVENT}
    event = LogEvent(**{**named, "fields": tuple((_text(k), _text(v)) for k, v in item["fields"])})
    _check(event.line, event.time)
    _text(event.event), _text(event.text), _text(event.source), _text(event.server)
    return event


def _check(*numbers: Any) -> None:
    """Refuse a line or time that is no number.

    Raises:
        TypeError: it is none.
    """
    if not all(number is None or isinstance(number, int) for number in numbers):
        raise TypeError
