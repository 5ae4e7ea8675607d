"""Recordings: batches of all sources on disk, append-only, readable after a cut at any byte.

Format (version 1): a gzip stream (RFC 1952) of JSON lines, flushed after every tick, so that ``zcat FILE | head``
works on a file that is still being written. The first line is the header ``{"gpuwatch_recording": 1, …}``. Then:

* ``{"keys": TARGET, "add": [[[name, value], …], …]}`` gives new series of a target the next numbers;
* ``{"batch": TARGET, "t": MS, "i": [GAP, …], "v": [VALUE, …], …}`` holds the values that changed. GAPs count from
  the previous changed series (from -1). An integer VALUE is added to the previous value, a number with a point
  replaces it, ``"NaN"``, ``"+Inf"`` and ``"-Inf"`` replace it too, and ``null`` means that the series is gone.
  ``facts``, ``events``, ``absent``, ``up``, ``reason``, ``detail``, ``dur`` and ``dropped`` appear where they say
  something;
* ``{"tick": MS}`` ends a tick: rules were evaluated at this time.

Plain log lines are not recorded, recognised ones are.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpuwatch.model import Absence, Batch, Fact, Labels, LogEvent, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 1
_GZIP = 31
_EXACT = 2.0**53
_CHUNK = 1 << 16
_SPECIAL = {"NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf}


class RecordingError(Exception):
    """A recording that cannot be written or read; the message is one line."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a recording. `created` in milliseconds, `interval` in seconds."""

    host: str
    created: int
    interval: float
    program: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """The batches that one evaluation of the rules saw."""

    time: int
    batches: tuple[Batch, ...]


class _Table:
    """The series of one target in the order of their numbers, with the last value of each (None: gone)."""

    def __init__(self) -> None:
        self.keys: list[Labels] = []
        self.index: dict[Labels, int] = {}
        self.values: list[float | None] = []

    def add(self, labels: Labels) -> int:
        number = len(self.keys)
        self.keys.append(labels)
        self.index[labels] = number
        self.values.append(None)
        return number


class Writer:
    """Writes batches to a new file; after every `tick` all of them are with the operating system.

    A full disk does not raise: the writer closes and `error` says why.
    """

    def __init__(self, path: str | Path, header: Header) -> None:
        """Create the file.

        Raises:
            RecordingError: the file exists or cannot be created.
        """
        self.path = str(path)
        self.bytes = 0
        self.error = ""
        self._tables: dict[str, _Table] = {}
        self._layouts: dict[str, tuple[tuple[Labels, ...], list[int]]] = {}
        self._zip = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        try:
            self._file: IO[bytes] | None = Path(path).open("xb", buffering=0)  # noqa: SIM115  # closed by close()
        except FileExistsError:
            raise RecordingError(f"{path}: exists already; choose another name") from None
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror}") from None
        self._line({"gpuwatch_recording": VERSION, **asdict(header)})
        self._flush()

    def write(self, batch: Batch) -> None:
        """Append what changed since the target's previous batch."""
        if self._file is None:
            return
        table = self._tables.setdefault(batch.target, _Table())
        line: dict[str, Any] = {"batch": batch.target, "t": batch.time}
        numbers = self._numbers(batch, table)
        changed = _changes(table, numbers, batch.values)
        if changed:
            gaps, last = [], -1
            for number, _ in changed:
                gaps.append(number - last)
                last = number
            line["i"], line["v"] = gaps, [value for _, value in changed]
        if not batch.up:
            line |= {"up": 0, "reason": batch.reason.value if batch.reason else "", "detail": batch.detail}
        if batch.duration:
            line["dur"] = round(batch.duration, 4)
        if batch.dropped:
            line["dropped"] = batch.dropped
        for name, items in (("facts", batch.facts), ("events", batch.events), ("absent", batch.absent)):
            if items:
                line[name] = [asdict(item) for item in items]
        self._line(line)

    def tick(self, time: int) -> None:
        """End a tick and hand everything to the operating system."""
        if self._file is not None:
            self._line({"tick": time})
            self._flush()

    def close(self) -> None:
        """Finish the file. Safe to call twice."""
        if self._file is None:
            return
        self._put(self._zip.flush(zlib.Z_FINISH))
        if self._file is not None:
            self._file.close()
            self._file = None

    def _numbers(self, batch: Batch, table: _Table) -> list[int]:
        layout = self._layouts.get(batch.target)
        if layout is not None and layout[0] is batch.keys:
            return layout[1]
        new = [labels for labels in batch.keys if labels not in table.index]
        for labels in new:
            table.add(labels)
        if new:
            self._line({"keys": batch.target, "add": new})
        numbers = [table.index[labels] for labels in batch.keys]
        self._layouts[batch.target] = (batch.keys, numbers)
        return numbers

    def _line(self, data: dict[str, Any]) -> None:
        text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        self._put(self._zip.compress(text.encode("utf-8", "replace") + b"\n"))

    def _flush(self) -> None:
        self._put(self._zip.flush(zlib.Z_SYNC_FLUSH))

    def _put(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            while data:
                written = self._file.write(data) or 0
                self.bytes += written
                data = data[written:]
        except OSError as error:
            self.error = f"{self.path}: {error.strerror}; recording stopped"
            self._file.close()
            self._file = None


def _changes(table: _Table, numbers: list[int], values: Any) -> list[tuple[int, int | float | str | None]]:
    """Return (number, encoded value) of what differs from `table`, in order, and bring `table` up to date."""
    old = table.values
    changed: list[tuple[int, int | float | str | None]] = []
    for number, value in zip(numbers, values, strict=True):
        before = old[number]
        if before != value and not (before is not None and math.isnan(before) and math.isnan(value)):
            changed.append((number, _encode(before, float(value))))
            old[number] = float(value)
    if len(numbers) < len(old):
        present = set(numbers)
        for number, before in enumerate(old):
            if before is not None and number not in present:
                changed.append((number, None))
                old[number] = None
    changed.sort(key=lambda item: item[0])
    return changed


def _encode(before: float | None, value: float) -> int | float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    base = 0.0 if before is None else before
    if value.is_integer() and base.is_integer() and abs(value) < _EXACT and abs(base) < _EXACT:
        return int(value) - int(base)
    return value


def _decode(before: float | None, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _SPECIAL[value]
    if isinstance(value, int):
        base = 0.0 if before is None or not before.is_integer() else before
        return base + value
    return float(value)


class Reader:
    """Reads a recording as far as it goes.

    After the ticks were read, `cut` says why the file ended early, or is empty.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file and read its header.

        Raises:
            RecordingError: the file cannot be read, is no recording, or was written by a newer version.
        """
        self.path = str(path)
        self.cut = ""
        self.size = 0
        try:
            self._file = Path(path).open("rb")  # noqa: SIM115  # closed when the last line was read
            self.size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror}") from None
        self._lines = self._read_lines()
        self.header = self._read_header()

    def _read_header(self) -> Header:
        try:
            first = json.loads(next(self._lines))
            version = first["gpuwatch_recording"]
        except (StopIteration, ValueError, KeyError, TypeError):
            self.close()
            raise RecordingError(f"{self.path}: not a gpuwatch recording") from None
        if version != VERSION:
            self.close()
            raise RecordingError(f"{self.path}: recording version {version!r}; this program reads version {VERSION}")
        return Header(
            host=str(first.get("host", "")),
            created=int(first.get("created", 0)),
            interval=float(first.get("interval", 1.0)),
            program=str(first.get("program", "")),
            note=str(first.get("note", "")),
        )

    def ticks(self) -> Iterator[Tick]:
        """Yield every complete tick. A damaged end ends the iteration and sets `cut`."""
        number = 1
        tables: dict[str, _Table] = {}
        layouts: dict[str, tuple[Labels, ...]] = {}
        batches: list[Batch] = []
        try:
            for number, text in enumerate(self._lines, 2):  # noqa: B007  # named in the message
                line = json.loads(text)
                if "tick" in line:
                    yield Tick(int(line["tick"]), tuple(batches))
                    batches = []
                elif "keys" in line:
                    table = tables.setdefault(line["keys"], _Table())
                    for pairs in line["add"]:
                        table.add(tuple((str(key), str(value)) for key, value in pairs))
                elif "batch" in line:
                    batches.append(_batch(line, tables.setdefault(line["batch"], _Table()), layouts))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self.cut = f"{self.path}: line {number} is damaged ({type(error).__name__}); what follows is left out"
        finally:
            self.close()

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._file.close()

    def _read_lines(self) -> Iterator[bytes]:
        unzip = zlib.decompressobj(_GZIP)
        rest = b""
        while (chunk := self._file.read(_CHUNK)) and not self.cut:
            before = unzip.copy()
            try:
                data = unzip.decompress(chunk)
            except zlib.error:
                data, good = _until_damage(before, chunk)
                self.cut = f"{self.path}: damaged after {self._file.tell() - len(chunk) + good} bytes"
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
        if not unzip.eof and not self.cut:
            self.cut = f"{self.path}: the end is missing; read up to the last complete tick"


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


def _batch(line: dict[str, Any], table: _Table, layouts: dict[str, tuple[Labels, ...]]) -> Batch:
    number = -1
    shape_changed = False
    for gap, value in zip(line.get("i", ()), line.get("v", ()), strict=True):
        number += gap
        before = table.values[number]
        after = _decode(before, value)
        table.values[number] = after
        shape_changed = shape_changed or (before is None) != (after is None)
    target = line["batch"]
    if shape_changed or target not in layouts:
        layouts[target] = tuple(key for key, value in zip(table.keys, table.values, strict=True) if value is not None)
    up = bool(line.get("up", 1))
    return Batch(
        target=target,
        time=int(line["t"]),
        keys=layouts[target] if up else (),
        values=[value for value in table.values if value is not None] if up else [],
        up=up,
        reason=Reason(line["reason"]) if line.get("reason") else None,
        detail=line.get("detail", ""),
        duration=line.get("dur", 0.0),
        dropped=int(line.get("dropped", 0)),
        absent=tuple(
            Absence(tuple((k, v) for k, v in item["labels"]), Reason(item["reason"]), item["detail"])
            for item in line.get("absent", ())
        ),
        facts=tuple(Fact(**item) for item in line.get("facts", ())),
        events=tuple(
            LogEvent(**{**item, "fields": tuple((k, v) for k, v in item["fields"])}) for item in line.get("events", ())
        ),
    )
