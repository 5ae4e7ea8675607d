"""What carries a log, taken off before the lines are read: exports in CSV and JSON, lines in parts, unknown prefixes.

Everything comes out as lines of plain text, each at the number that it has in the file. An export that is one
document of JSON has no lines of its own: its records are counted instead. What has its newest line first is turned.
"""

from __future__ import annotations

import csv
import json
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from gpuwatch.sources.files.learned import Learner
from gpuwatch.sources.files.turned import NOTE, newest_first, turned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DOCUMENT = 32 << 20
"""Bytes of the largest export in JSON that is read."""
_LINE = 1 << 20
_MESSAGES = ("message", "line", "log", "msg", "textPayload", "content", "body", "text", "MESSAGE")
_TIMES = ("timestamp", "@timestamp", "time", "date", "ts", "asctime", "eventtime")
_CRI = re.compile(rb"^(?P<time>\d{4}-\d\d-\d\dT\S+) (?P<stream>std(?:out|err)) (?P<part>[FP]) ", re.MULTILINE)
_DOCKER = re.compile(rb"^\{\"log\": ?\"(?P<text>(?:[^\"\\]|\\.)*)\", ?\"stream\": ?\"(?P<stream>\w+)\"")


def plain(blocks: Iterable[bytes], notes: list[str] | None = None) -> Iterator[bytes]:
    """Yield a text without its carriers. A text that has none comes through in the blocks in which it came.

    `notes` gets what has to be said of the numbers of the lines, where they are not those of the file.
    """
    notes = [] if notes is None else notes
    source = iter(blocks)
    first = next(source, b"")
    if first.lstrip()[:1] in (b"[", b"{"):
        document, whole = _gathered(first, source) if _one_document(first) else (first, False)
        records = _records(document) if whole else []
        if records:
            notes.append("an export in one piece: lines are counted by its records, in the order of their times")
            yield "".join(f"{record}\n" for record in records).encode()
            return
        first = document
    elif newest_first(first):
        first, whole = _gathered(first, source)
        if whole:
            first = turned(first)
            notes.append(NOTE)
    text = _chain(first, source)
    columns = _columns(first)
    if columns is not None:
        text = _rows(text, *columns)
    elif _CRI.search(first) is not None:
        text = _joined(text, _CriParts())
    elif _DOCKER.search(first) is not None:
        text = _joined(text, _DockerParts())
    yield from _without_prefixes(text)


def _chain(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a text in blocks that end with a line, a line without an end apart."""
    left = b""
    for block in blocks:
        text = left + block
        end = text.rfind(b"\n") + 1
        if not end and len(text) > _LINE:
            end = len(text)
        left = text[end:]
        if end:
            yield text[:end]
    if left:
        yield left


def _without_prefixes(blocks: Iterator[bytes]) -> Iterator[bytes]:
    learner = Learner()
    for block in blocks:
        learner.look(block)
        if learner.learned:
            yield from (learner.strip(text) for text in _whole_lines(_chain(block, blocks)))
            return
        yield block
        if not learner.open:
            break
    yield from blocks


# Lines that came in parts


class _CriParts:
    """Containers' logs of Kubernetes (CRI): a line of more than 16 KiB comes in parts marked P, its end marked F."""

    def has(self, text: bytes) -> bool:
        """Whether a block holds a part of a line."""
        return b" stderr P " in text or b" stdout P " in text

    def split(self, line: bytes) -> tuple[bytes, bytes, bytes, bool] | None:
        """Return the stream, what stands before and what stands behind the seam, and whether more follows."""
        found = _CRI.match(line)
        if found is None:
            return None
        head = found["time"] + b" " + found["stream"] + b" F "
        return found["stream"], head, line[found.end() :], found["part"] == b"P"


class _DockerParts:
    """Docker's json-file: a line of more than 16 KiB comes in records of which only the last ends with a line end."""

    def has(self, text: bytes) -> bool:
        """Whether a block holds a part of a line."""
        ends = text.count(b'", "stream"') + text.count(b'","stream"')
        return ends != text.count(b'\\n", "stream"') + text.count(b'\\n","stream"')

    def split(self, line: bytes) -> tuple[bytes, bytes, bytes, bool] | None:
        """Return as `_CriParts.split`; the record's other members go with its end."""
        found = _DOCKER.match(line)
        if found is None:
            return None
        more = not found["text"].endswith(b"\\n")
        return found["stream"], b'{"log":"', found["text"] if more else line[found.start("text") :], more


def _joined(blocks: Iterable[bytes], parts: _CriParts | _DockerParts) -> Iterator[bytes]:
    """Put the parts of a line together at the number of its last part; the others leave empty lines."""
    begun: dict[bytes, bytes] = {}
    for text in _whole_lines(blocks):
        if begun or parts.has(text):
            ended = text.endswith(b"\n")
            lines = (text[:-1] if ended else text).split(b"\n")
            yield b"\n".join([_part(line, parts, begun) for line in lines]) + b"\n" * ended
        else:
            yield text
    if begun:
        yield b"\n".join([b"", *begun.values()])


def _part(line: bytes, parts: _CriParts | _DockerParts, begun: dict[bytes, bytes]) -> bytes:
    found = parts.split(line)
    if found is None:
        return line
    stream, head, text, more = found
    if not more:
        return begun.pop(stream) + text if stream in begun else line
    begun[stream] = begun.get(stream, head) + text
    return begun.pop(stream) if len(begun[stream]) > _LINE else b""


# Tables


def _columns(first: bytes) -> tuple[int, int | None, int] | None:
    """Return the column of the message, that of the time, and their number, where a text is an export in CSV."""
    heading, *below = first[:_LINE].decode("utf-8", "replace").split("\n", 1)
    names = [name.strip().strip('"').lower() for name in heading.split(",")]
    message = next((names.index(name) for each in _MESSAGES if (name := each.lower()) in names), None)
    message = names.index("@message") if message is None and "@message" in names else message
    if message is None or len(names) < 2 or not below or not all(re.fullmatch(r"[\w @.-]+", name) for name in names):
        return None
    try:
        row = next(csv.reader(f"{line}\n" for line in below[0].split("\n")), [])
    except csv.Error:
        return None
    time = next((names.index(name) for name in _TIMES if name in names), None)
    return (message, time, len(names)) if len(row) == len(names) else None


def _rows(blocks: Iterable[bytes], message: int, time: int | None, width: int) -> Iterator[bytes]:
    """Yield the messages of a table, in the lines in which they stand."""
    reader, number, heading = csv.reader(_lines(blocks)), 0, True
    while True:
        try:
            row = next(reader, None)
        except csv.Error:
            continue
        if row is None:
            return
        told = row[message].rstrip("\r\n").split("\n") if len(row) == width and not heading else [""]
        heading = False
        stamp = _stamp(row[time]) if time is not None and len(row) == width else ""
        empty = reader.line_num - number - len(told)
        number = reader.line_num
        yield ("".join(f"{stamp}{line}\n" if line else "\n" for line in told) + "\n" * max(0, empty)).encode()


def _lines(blocks: Iterable[bytes]) -> Iterator[str]:
    for text in _whole_lines(blocks):
        yield from (f"{line}\n" for line in text.decode("utf-8", "replace").removesuffix("\n").split("\n"))


def _stamp(text: object) -> str:
    """Return a time as it stands before a line: ISO as it is, a number since the epoch in whatever unit as ISO."""
    said = str(text).strip()
    if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", said):
        zoned = re.search(r"(?:Z|[+-]\d\d:?\d\d)$", said) is not None
        return f"{said} " if zoned else f"{said}Z "
    if not re.fullmatch(r"\d{10}(?:\.\d+|(?:\d{3}){1,3})?", said):
        return ""
    seconds, _, rest = said.partition(".")
    # Seconds since the epoch have ten digits from 2001 to 2286; smaller units have three digits more each.
    seconds, fraction = seconds[:10], (seconds[10:] or rest)[:9].ljust(3, "0")
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=int(seconds))
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction}Z "


# Documents


def _one_document(first: bytes) -> bool:
    """Whether a text begins with a document of JSON that holds others, and not with one record per line."""
    if re.match(rb"\s*(?:\[\s*\{|\{\s*\"\w+\"\s*:\s*(?:[\[{]|\"success\"))", first) is None:
        return False
    record, _, below = first.lstrip().partition(b"\n")
    try:
        json.loads(record)
    except (ValueError, RecursionError):
        return True
    return not below.strip()


def _gathered(first: bytes, rest: Iterator[bytes]) -> tuple[bytes, bool]:
    """Return a text up to the size of the largest document, and whether that is all of it."""
    text = bytearray(first)
    for block in rest:
        text += block
        if len(text) > _DOCUMENT:
            return bytes(text), False
    return bytes(text), True


def _records(document: bytes) -> list[str]:
    """Return the lines of the log in a document, in order of their times; none where it is something else.

    A document that was printed over many lines is read by these.
    """
    try:
        root = json.loads(document)
    except (ValueError, RecursionError):
        return []
    found: list[tuple[str, str]] = []
    waiting: list[Any] = [root]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            if len(each) in (2, 3) and isinstance(each[0], str) and isinstance(each[1], str) and _stamp(each[0]):
                found.append((_stamp(each[0]), each[1]))
            else:
                waiting += reversed(each)
        elif isinstance(each, dict):
            record = _record(each) if each is not root else None
            if record is not None:
                found.append(record)
            else:
                waiting += reversed(list(each.values()))
    if len(found) < 2 or document.count(b"\n") > len(found):
        return []
    if found[0][0] > found[-1][0]:
        found.reverse()  # the newest came first, and equal times keep their order
    found.sort(key=lambda record: record[0])
    return [f"{stamp}{line}" for stamp, told in found for line in told.rstrip("\r\n").split("\n")]


def _record(members: dict[str, Any]) -> tuple[str, str] | None:
    names = {name.lower(): value for name, value in members.items()}
    told = next((names[each.lower()] for each in _MESSAGES if isinstance(names.get(each.lower()), str)), None)
    stamp = next((stamp for each in _TIMES if (stamp := _stamp(names.get(each, "")))), "")
    return (stamp, told) if told is not None and stamp else None
