"""One file read: what it is, and every fact, event and sample in it."""

from __future__ import annotations

import gzip
import re
import tempfile
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.engines.log_text import clean
from gpuwatch.engines.stack_log import RAISED
from gpuwatch.sources.files import (
    commands,
    containers,
    docker_inspect,
    documents,
    model_config,
    smi_csv,
    smi_query,
    smi_table,
)
from gpuwatch.sources.files.book import FileBook
from gpuwatch.sources.files.carriers import plain
from gpuwatch.sources.files.opening import HEAD, UnreadableError, open_input
from gpuwatch.sources.files.samples import Found
from gpuwatch.sources.files.scan import Scanner
from gpuwatch.sources.files.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuwatch.model import Fact, LogEvent
    from gpuwatch.sources.files.opening import Opened
    from gpuwatch.sources.files.samples import Sample
    from gpuwatch.sources.files.scan import Group

WHOLE = 4 << 20
"""Bytes of a file in which tables, pages, commands and configurations are looked for; log lines are read in all."""
_TOP = 1 << 20
RECORDING = b'{"gpuwatch_recording"'

_KERNEL_PATTERNS = frozenset(
    {
        "xid",
        "xid_answered",
        "sxid",
        "pcie_error",
        "hung_task",
        "gpu_lost",
        "driver_error",
        "oom_killer",
        "oom_constraint",
        "segfault",
    }
)
_SMI_PATTERNS = frozenset({"driver_unreachable", "smi_gpu_lost"})
_OF_CONTAINERS = frozenset({"out_of_memory_killed", "container_exit", "memory_limit", "container_killed"})
_PAGE_MARKS = (
    "# TYPE ",
    "# HELP ",
    "vllm:",
    "sglang:",
    "vllm_num_requests",
    "sglang_num_",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "python_info{",
)
_VLLM_LINE = re.compile(
    rb"^(?:\([^)\n]{1,80}\) )*(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d ", re.MULTILINE
)
_SGLANG_LINE = re.compile(rb"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: [A-Z_]{2,8}\d+)*\] ", re.MULTILINE)
_VLLM_PROCESS = re.compile(rb"^\((?:APIServer|EngineCore|Worker|VllmWorker)[^)\n]{0,40} ?pid=\d+\) ", re.MULTILINE)
_ENGINE_FRAME = re.compile(rb'\bFile "[^"\n]*/(?P<engine>vllm|sglang)/[^"\n]*\.py", line \d+, in ')
# The traceback of a program that somebody runs, such as a training script.
_SCRIPT = re.compile(
    rb'^Traceback \(most recent call last\):\n  File "(?!<)[^"\n]*", line \d+, in <module>', re.MULTILINE
)
_ENGINE_WORD = re.compile(rb"vllm|sglang", re.IGNORECASE)
_SAMPLE = re.compile(rb"#|[a-zA-Z_:][\w:]*(?:\{[^\n]*\})?\s+[-+]?(?:\d[\d.eE+-]*|NaN|Inf)(?:\s+\d{10,13})?\s*$")
_PAGE_LINES = 200
_KERNEL_LINE = re.compile(
    rb"^(?:\[ *\d+\.\d{6}\] |.{0,60} kernel: |<\d>\[ *\d+\.\d+\]"
    rb"|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] (?!\[))",
    re.MULTILINE,
)
_KUBERNETES = re.compile(
    rb"^(?:Namespace: |Containers:$|Events:|QoS Class: |(?:NAMESPACE +)?(?:LAST SEEN +TYPE |NAME +READY +STATUS )"
    rb"|apiVersion: |\$ kubectl | *\"apiVersion\": \"v1\"| *\"kind\": \"(?:Pod|List|Event|Deployment|StatefulSet)\""
    rb"|\{\"(?:apiVersion\": ?\"v1|kind\": ?\"Event)\""
    rb"|kind: (?:Pod|Deployment|StatefulSet)| +Last State: |.*\bkubectl (?:top|get|describe|logs)\b)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class FileText:
    """What one file told. `modified` is the time of the file in milliseconds, 0 where it has none.

    `kind` is a word of the JSON of ``gpuwatch diagnose``. Of a recording nothing else is read; `recording` is the path
    of a file that can be played, a temporary one where the recording came through a pipe.
    """

    path: str
    kind: str
    engine: str = ""
    version: str = ""
    lines: int = 0
    note: str = ""
    modified: int = 0
    facts: tuple[Fact, ...] = ()
    events: tuple[LogEvent, ...] = ()
    samples: tuple[Sample, ...] = ()
    config: Mapping[str, object] | None = None
    recording: str = ""


def read_file(path: str, now: int, progress: Callable[[int, int], None] | None = None) -> FileText:
    """Read a file, a pipe or ``-``.

    Args:
        path: What to read.
        now: Milliseconds since the epoch, for times without a year in what has no time of its own.
        progress: Called with the bytes read so far and the size of the file (0: unknown).

    Raises:
        UnreadableError: Nothing of it can be read.
    """
    opened = open_input(path)
    try:
        if opened.head.lstrip().startswith(RECORDING):
            return FileText(opened.name, "recording", modified=opened.modified, recording=_recording(opened, path))
        return _read(opened, opened.modified or now, progress)
    finally:
        opened.close()


@contextmanager
def playable(path: str | Path) -> Iterator[str]:
    """Give a recording as a file that can be played: itself, or a copy that goes away, as of `read_file`.

    What is no recording is given as it is: whoever plays it says so.
    """
    opened, given = None, str(path)
    try:
        if not Path(path).is_file() or _start(path) != b"\x1f\x8b":
            opened = open_input(str(path))
            if opened.head.lstrip().startswith(RECORDING):
                given = _recording(opened, given)
    except (OSError, UnreadableError):
        given = str(path)
    finally:
        if opened is not None:
            opened.close()
    try:
        yield given
    finally:
        if given != str(path):
            with suppress(OSError):
                Path(given).unlink()


def _start(path: str | Path) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(2)


def _recording(opened: Opened, path: str) -> str:
    """Return a file that can be played: this one, or a copy of what comes through a pipe or is compressed otherwise."""
    if opened.packed == "gzip" and opened.size:
        return path
    with (
        tempfile.NamedTemporaryFile("wb", prefix="gpuwatch-", suffix=".gz", delete=False) as copy,
        gzip.GzipFile(fileobj=copy, mode="wb", compresslevel=1) as packed,
    ):
        for block in opened.blocks():
            packed.write(block)
    return copy.name


def _read(opened: Opened, near: int, progress: Callable[[int, int], None] | None) -> FileText:
    scanner, head, rest = Scanner(), bytearray(), _Rest(0 if opened.packed else opened.size)
    notes: list[str] = []
    for block in plain(opened.blocks(), notes):
        scanner.feed(block)
        if len(head) < WHOLE:
            head += block[: WHOLE - len(head)]
        elif rest.of(bytes(head[:HEAD])):
            rest.take(block)
        if progress is not None:
            progress(opened.raw_bytes, opened.size)
    hits = scanner.finish()
    document = documents.kind_of(bytes(head[:HEAD])) if hits else ""
    if document:
        hits, scanner.groups = [], {}
    book = FileBook(opened.name, near)
    book.read(hits)
    if rest.rows:
        del head[head.rfind(b"\n") + 1 :]
    text = Text(bytes(head))
    found = _parts(text, rest)
    for key, value, line, time in found.facts:
        book.tell(key, value, line, time)
    for name, group in scanner.groups.items():
        _count(book, name, group)
    kind, engine = _kind(bytes(head[: 1 << 20]), scanner.groups, book, found)
    note = "; ".join(filter(None, (opened.note, *notes)))
    if kind == "unknown" and not note:
        told = f"it is {document}, and what it says of log lines happened nowhere"
        note = told if document else "no line of it is of a kind that gpuwatch knows"
    facts = sorted(book.facts, key=lambda fact: fact.line or 0)
    return FileText(
        opened.name,
        kind,
        engine,
        book.version,
        scanner.lines,
        note,
        opened.modified,
        tuple(facts),
        tuple(_attributed(book.events, text.first(_TOP))),
        tuple(found.samples.all()),
        found.config,
    )


def _attributed(events: list[LogEvent], top: Text) -> list[LogEvent]:
    """Return events with the container that they are about and its end, where the text is one about containers."""
    if not any(event.event in _OF_CONTAINERS for event in events):
        return events
    if top.has(docker_inspect.MARKS):
        return docker_inspect.limited(events, top.lines)
    if not top.has((*containers.MARKS, *containers.ENDS)):
        return events
    found = containers.dated(events, top.lines, _OF_CONTAINERS)
    return containers.attributed(found, containers.read_containers(top.lines), top.lines)


def _count(book: FileBook, name: str, group: Group) -> None:
    """Say how many lines of a kind there are where not all of them were kept."""
    if group.count > group.first and group.kind in ("event", "note"):
        book.tell(f"count.{group.pattern.event or name}", group.count, 0)


class _Rest:
    """Rows of a long table behind the part of a file that is read whole: one of so many."""

    def __init__(self, size: int) -> None:
        self.rows: list[str] = []
        self._every = max(1, size // WHOLE) if size else 16
        self._table: bool | None = None

    def of(self, head: bytes) -> bool:
        """Return whether a file that begins with `head` is such a table."""
        if self._table is None:
            text = Text(head)
            places = text.numbers(smi_csv.HEADINGS)
            self._table = any(smi_csv.is_heading(text.line(at).strip()) for at in places)
        return self._table

    def take(self, block: bytes) -> None:
        """Keep some rows of a block."""
        lines = block.split(b"\n")[1 : -1 : self._every]
        self.rows += [clean(line.decode("utf-8", "replace")) for line in lines]


def _parts(text: Text, rest: _Rest) -> Found:
    """Read what is not a line of a log: tables, pages, commands, configurations."""
    found = Found()
    if text.has(smi_table.MARKS):
        smi_table.read_table([(at, line.strip()) for at, line in text.lines], found)
    if text.has(smi_query.MARKS):
        smi_query.read_query(text.lines, found)
    heading = next((at for at in text.numbers(smi_csv.HEADINGS) if smi_csv.is_heading(text.line(at).strip())), None)
    if heading is not None:
        rows = [(at, line.strip()) for at, line in text.lines if at >= heading and line]
        smi_csv.read_csv([*rows, *((0, row) for row in rest.rows)], found)
    if text.has(_PAGE_MARKS):
        from gpuwatch.sources.files import pages  # noqa: PLC0415  # numpy is loaded for pages only

        pages.read_pages([(at, line.strip()) for at, line in text.lines], found)
    top = text.first(_TOP)
    commands.read_commands(top, found)
    commands.read_environment(top, found)
    if text.has(model_config.MARKS):
        model_config.read_config(text.lines, found)
    return found


def _is_page(head: bytes) -> bool:
    """Whether a text is nothing but samples in the format of Prometheus, of whatever program."""
    lines = [line for line in head.split(b"\n", _PAGE_LINES)[:_PAGE_LINES] if line.strip()]
    return not all(line.startswith(b"#") for line in lines) and all(_SAMPLE.match(line) for line in lines)


def _kind(head: bytes, groups: Mapping[str, Group], book: FileBook, found: Found) -> tuple[str, str]:
    """Return what a file is as a whole, and which engine it is of."""
    engine = book.engine
    vllm, sglang = _VLLM_LINE.search(head) is not None, _SGLANG_LINE.search(head) is not None
    own = Counter(group.pattern.engine for group in groups.values() if group.pattern.engine)
    if groups and not (vllm or sglang or own):
        frame = _ENGINE_FRAME.search(head)
        vllm = _VLLM_PROCESS.search(head) is not None or (frame is not None and frame["engine"] == b"vllm")
        sglang = not vllm and frame is not None
    if not engine and (vllm or sglang or own):
        engine = "vllm" if vllm else "sglang" if sglang else own.most_common(1)[0][0]
    events = any(group.kind == "event" for group in groups.values())
    kubernetes = _KUBERNETES.search(head) is not None
    kernel = _KERNEL_LINE.search(head) is not None
    kernel = kernel or (bool(groups) and set(groups) <= _KERNEL_PATTERNS and not kubernetes)
    choices = (
        ("engine_log", vllm or sglang or (bool(own) and "metrics" not in found.kinds)),
        ("metrics", "metrics" in found.kinds or _is_page(head)),
        ("nvidia_smi", "nvidia_smi" in found.kinds),
        ("dmesg", kernel),
        ("kubernetes", kubernetes),
        ("nvidia_smi", bool(groups) and set(groups) <= _SMI_PATTERNS),
        (found.kinds[0] if found.kinds else "", bool(found.kinds)),
        ("engine_log", events and not (_SCRIPT.search(head) is not None and _ENGINE_WORD.search(head) is None)),
        ("host", any(group.pattern.event != RAISED for group in groups.values())),
    )
    return next((kind for kind, holds in choices if holds), "unknown"), engine
