"""Writing a recording: one tick after the other, into one file or into parts of which the oldest go."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.recording.format import GZIP, VERSION, Header, RecordingError, Table, changes
from gpuwatch.recording.parts import Keep, next_part, older_parts, remove_old, remove_oldest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from gpuwatch.model import Batch, Labels

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK = (*_FULL, errno.EFBIG, errno.EIO)
"""What no other name would mend, and what may be over later."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_WRITTEN_ELSEWHERE = "another gpuwatch writes to it; choose another name"


class Writer:
    """Writes batches to a file; after every `tick` all of them are with the operating system.

    A full disk does not raise: the writer closes and `error` says why; with `append` so from the beginning, because who
    goes on with a recording does so unattended. The file is locked (flock) while it is written.

    Args:
        path: The file.
        header: Its first line.
        keep: How much is kept; the oldest parts are removed as new ones come.
        append: Go on with the recording that is there, if there is one, in a new part.
    """

    def __init__(self, path: str | Path, header: Header, keep: Keep | None = None, *, append: bool = False) -> None:
        """Create the file.

        Raises:
            RecordingError: the file or a part of it exists, is no recording or is being written (`append`), or it
                cannot be created; with `append` not where only the disk is full or broken.
        """
        self.path = str(path)
        self.header = header
        self.keep = keep or Keep()
        self.bytes = 0
        self.ticks = 0
        self.error = ""
        self.fresh = True
        """Whether the present part has no tick yet: its first batch should carry what is known already."""
        self._file: IO[bytes] | None = None
        try:
            self._claim(append)
            self._open(header)
        except OSError as error:
            self._leave()
            if not append or error.errno not in _DISK:
                raise RecordingError(f"{path}: {error.strerror}") from None
            self._fail(error.strerror or str(error))

    def write(self, batch: Batch) -> None:
        """Append what changed since the target's previous batch."""
        if self._file is None:
            return
        table = self._tables.setdefault(batch.target, Table())
        line: dict[str, Any] = {"batch": batch.target, "t": batch.time}
        numbers = self._numbers(batch, table)
        changed = changes(table, numbers, batch.values)
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

    def forget(self, target: str) -> None:
        """Say that a target is not polled any more."""
        if self._file is not None:
            self._line({"forget": target})

    def found(self, time: int, what: Mapping[str, Any]) -> None:
        """Say what the rules found at `time` (milliseconds), in terms that JSON has."""
        if self._file is not None:
            self._line({"found": time, **what})

    def tick(self, time: int) -> None:
        """End a tick at `time` (milliseconds) and hand it to the operating system; begin a part where one is due."""
        if self._file is None:
            return
        self._line({"tick": time})
        self._flush()
        if self._file is None:
            return
        self.ticks += 1
        self.fresh = False
        if not os.fstat(self._file.fileno()).st_nlink:
            self._fail("was removed while it was written")
        elif self._due(time):
            self._rotate(time)

    def close(self) -> None:
        """Finish the file. Safe to call twice."""
        if self._file is None:
            return
        self._put(bytes(self._pending) + self._zip.flush(zlib.Z_FINISH))
        self._leave()

    # Parts

    def _claim(self, append: bool) -> None:
        """See to it that the name is free; with `append` a recording that has it becomes a full part.

        Raises:
            RecordingError: it is taken.
        """
        path = Path(self.path)
        if not append:
            taken = next((part for part in (path, *older_parts(path)) if os.path.lexists(part)), None)
            if taken is not None:
                raise RecordingError(f"{taken}: exists already; choose another name")
            return
        if not os.path.lexists(path):
            return
        from gpuwatch.recording.reader import Reader  # noqa: PLC0415  # most recordings are new

        if not path.is_file():
            raise RecordingError(f"{path}: is no regular file; choose another name")
        with path.open("rb") as before:
            _lock(before, self.path)
            Reader(path, whole=False).close()
            path.rename(next_part(path))

    def _open(self, header: Header) -> None:
        """Begin a part. Its name appears when its header is in it, so that it can be read at every moment."""
        path = Path(self.path)
        half = path.with_name(f".{path.name}.{os.getpid()}")
        half.unlink(missing_ok=True)
        self._file = half.open("xb", buffering=0)
        try:
            _lock(self._file, self.path)
            self._begin(header)
            _publish(half, path)
        except FileExistsError:
            self._leave()
            raise RecordingError(f"{self.path}: exists already; choose another name") from None
        finally:
            half.unlink(missing_ok=True)

    def _begin(self, header: Header) -> None:
        """Write the header of a part."""
        self._tables: dict[str, Table] = {}
        self._layouts: dict[str, tuple[tuple[Labels, ...], list[int]]] = {}
        self._zip = zlib.compressobj(6, zlib.DEFLATED, GZIP)
        self._pending = bytearray()
        self._part_bytes = 0
        self._part_began = header.created
        self.fresh = True
        self._line({"gpuwatch_recording": VERSION, **asdict(header)})
        self._flush(first=True)

    def _due(self, time: int) -> bool:
        size, age = self.keep.part_bytes, self.keep.part_seconds
        return bool((size and self._part_bytes >= size) or (age and time - self._part_began >= 1000 * age))

    def _rotate(self, time: int) -> None:
        """Finish the present part and begin another one."""
        path = Path(self.path)
        assert self._file is not None
        self._put(self._zip.flush(zlib.Z_FINISH))
        if self._file is None:
            return
        before = self._file
        try:
            if not os.path.samestat(path.stat(), os.fstat(before.fileno())):
                self._fail("was replaced by another file while it was written")
                return
            path.rename(next_part(path))
            self._open(Header(**{**asdict(self.header), "created": time}))
            remove_old(path, self.keep, time)
        except OSError as error:
            self._fail(error.strerror or str(error))
        except RecordingError as error:
            self.error = f"{error}; recording stopped"
        finally:
            before.close()

    # Bytes

    def _numbers(self, batch: Batch, table: Table) -> list[int]:
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
        self._pending += self._zip.compress(text.encode("utf-8", "replace") + b"\n")

    def _flush(self, *, first: bool = False) -> None:
        data = bytes(self._pending) + self._zip.flush(zlib.Z_SYNC_FLUSH)
        self._pending.clear()
        self._put(data, first=first)

    def _put(self, data: bytes, *, first: bool = False) -> None:
        """Write; with a full disk the oldest part makes room where not everything has to be kept."""
        if self._file is None:
            return
        whole = self._part_bytes
        while data:
            try:
                written = self._file.write(data) or 0
            except OSError as error:
                makes_room = error.errno in _FULL and (self.keep.bytes or self.keep.seconds)
                if makes_room and remove_oldest(self.path):
                    continue
                if first:
                    raise
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file.fileno(), whole)
                self._fail(error.strerror or str(error))
                return
            self.bytes += written
            self._part_bytes += written
            data = data[written:]

    def _fail(self, why: str) -> None:
        self.error = f"{self.path}: {why}; recording stopped"
        self._leave()

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock(file: IO[bytes], path: str) -> None:
    """Lock a file until it is closed. Some file systems have no locks; they are used without.

    Raises:
        RecordingError: somebody else has locked it.
    """
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RecordingError(f"{path}: {_WRITTEN_ELSEWHERE}") from None
    except OSError:
        return


def _publish(half: Path, path: Path) -> None:
    """Give a file its name.

    Raises:
        FileExistsError: the name is taken.
    """
    try:
        os.link(half, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError from None
        half.rename(path)
