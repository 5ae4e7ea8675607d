"""What outlives a restart of the daemon: since when each alert is active, in a small JSON file."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.alerts.state import Saved
from gpuwatch.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

MARK = "gpuwatch_state"
VERSION = 1
MAX_BYTES = 16 << 20
TOLERANCE_MS = 3_600_000
"""A state older than this is not used: Prometheus' default for ``rules.alert.for-outage-tolerance``."""
REFRESH_MS = 60_000
"""The file is written again after this time even where no alert began or ended."""
STEP_MS = 1000
"""By how much the machine's clock is set back at least before the file is written again for that."""
OFF = "off"


def default_path(port: int) -> Path:
    """Return where the state of the daemon on `port` is kept where nothing else is said.

    systemd's ``StateDirectory`` comes first, then the user's state folder (XDG Base Directory Specification).

    Raises:
        ConfigError: There is neither, and no home directory.
    """
    folder = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if not folder:
        base = os.environ.get("XDG_STATE_HOME", "")
        try:
            folder = str((Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "gpuwatch")
        except RuntimeError:
            raise ConfigError("no home directory for the state file; give --state FILE, or --state off") from None
    return Path(folder) / f"serve-{port}.json"


class StateFile:
    """Reads the state at the start and writes it in a thread of its own; no trouble with the file stops the daemon.

    A file that is not ours is never written over, but set aside with ``.bad`` after its name. Each kind of trouble is
    reported once, in one line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._writable = True
        self._said = ""
        self._written: object = None
        self._written_at: int | None = None
        self._written_ahead = 0
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)

    def load(self, now: int) -> tuple[Saved, ...]:
        """Return the starts that were saved, where they are of the last hour before `now` (milliseconds)."""
        raw = self._read()
        if raw is None:
            return ()
        try:
            data = json.loads(raw)
            if data[MARK] != VERSION:
                self._say(f"{self.path}: state of version {data[MARK]!r}, not {VERSION}; findings start anew")
                return ()
            saved = [_saved(item, int(data["saved_at"])) for item in data["alerts"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._say(f"{self.path}: damaged ({type(error).__name__}); findings start anew")
            return ()
        ahead = sum(item.active_at > now for item in saved)
        if ahead:
            what = f"{ahead} of its {len(saved)} findings had not begun yet and start anew"
            self._say(f"{self.path}: the clock was set back since it was saved; {what}")
        return tuple(item for item in saved if item.active_at <= now and now - item.saved_at <= TOLERANCE_MS)

    def _read(self) -> bytes | None:
        """Return what is in the file; None, and a word about it, where there is none that is ours."""
        try:
            if self.path.exists() and not (self.path.is_file() or self.path.is_dir()):
                self._writable = False
                self._say(f"{self.path}: is no regular file and is left alone; nothing will outlive a restart")
                return None
            with self.path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._say(f"{self.path}: {error.strerror}; findings start anew")
            return None
        if raw and not raw.lstrip().startswith(f'{{"{MARK}"'.encode()):
            self._set_aside()
            return None
        return raw

    def _set_aside(self) -> None:
        """Keep a file that is not ours under another name; where that one is taken, it stays and we write nothing."""
        aside = self.path.with_name(self.path.name + ".bad")
        text = f"{self.path}: is no state file of gpuwatch"
        try:
            os.link(self.path, aside, follow_symlinks=False)  # never over another file, unlike a rename
            self.path.unlink()
        except OSError as error:
            self._writable = False
            self._say(f"{text} and is left alone ({aside.name}: {error.strerror}); nothing will outlive a restart")
            return
        self._say(f"{text}; it is kept as {aside}, findings start anew")

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    def update(self, saved: Iterable[Saved], now: int, ahead: int = 0) -> None:
        """Have the state written when an alert began, fired or ended, and once a minute. Never waits.

        `ahead` is what all times are ahead of the machine's clock (`Clock.ahead`), by which the next start goes.
        """
        listed = sorted(saved, key=lambda item: item.labels)
        state = tuple((item.labels, item.active_at, item.fired_at) for item in listed)
        due = self._written_at is None or now - self._written_at >= REFRESH_MS or now < self._written_at
        due = due or abs(ahead - self._written_ahead) > STEP_MS
        if self._writable and (state != self._written or (due and state)):
            self._written, self._written_at, self._written_ahead = state, now, ahead
            self._queue.put(_document(listed, now, ahead))

    def stop(self, seconds: float) -> None:
        """Write what is waiting; waits at most `seconds`."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            document = self._queue.get()
            with suppress(queue.Empty):  # only the newest counts
                while document is not None:
                    later = self._queue.get_nowait()
                    if later is None:
                        self._write(document)
                        return
                    document = later
            if document is None:
                return
            self._write(document)

    def _write(self, document: bytes) -> None:
        """Replace the file in one step, so that a crash leaves the old one or the new one."""
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
            self._said = ""
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            self._say(f"{self.path}: {error.strerror}; the state is not saved")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.error("%s", text)


def _document(saved: Iterable[Saved], now: int, ahead: int) -> bytes:
    alerts = [
        {
            "labels": dict(item.labels),
            "active_at": item.active_at - ahead,
            "fired_at": None if item.fired_at is None else item.fired_at - ahead,
            "saved_at": item.saved_at - ahead,
        }
        for item in saved
    ]
    return json.dumps({MARK: VERSION, "saved_at": now - ahead, "alerts": alerts}).encode() + b"\n"


def _saved(item: Any, saved_at: int) -> Saved:
    fired = item["fired_at"]
    return Saved(
        labels=tuple(sorted((str(key), str(value)) for key, value in item["labels"].items())),
        active_at=int(item["active_at"]),
        saved_at=int(item.get("saved_at", saved_at)),
        fired_at=None if fired is None else int(fired),
    )
