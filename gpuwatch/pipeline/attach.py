"""Showing a running `gpuwatch serve`: its snapshots are read over HTTP, nothing is polled a second time."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.exporter.snapshot_json import SnapshotError, decode
from gpuwatch.model import Reason, SourceError
from gpuwatch.pipeline.feed import Questions, Subscribers
from gpuwatch.snapshot import Snapshot, SourceState
from gpuwatch.sources.api_client import ApiClient
from gpuwatch.sources.engine.http import show_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from gpuwatch.clock import Clock
    from gpuwatch.config import EndpointConfig
    from gpuwatch.model import LogLine
    from gpuwatch.sources.api_client import Reply

log = logging.getLogger(__name__)

VARIABLES = "GPUWATCH_ATTACH"
"""Start of the names of the variables that may hold user, password or token."""
PATH = "/api/v1/snapshot"
KIND = "attach"
"""Kind of the source that stands for the connection to the daemon."""
STOP_SECONDS = 2.0
LINES_KEPT = 2000
LEAST_SECONDS = 0.5


class Attached:
    """Reads the snapshots of one daemon at its interval and hands them on as its own, with the mode *attached*.

    While the daemon does not answer, the last snapshot is handed on with a source of the kind *attach* that says why
    and for how long; before the first one, an empty snapshot is.

    Args:
        endpoint: Where the daemon is, and how to log in.
        clock: Time.
        interval: Seconds between two reads; None: as the daemon's.

    Raises:
        ConfigError: A secret or a certificate file that is named cannot be read.
    """

    def __init__(self, endpoint: EndpointConfig, clock: Clock, interval: float | None = None) -> None:
        self.url = show_url(endpoint.url)
        self.subscribers = Subscribers()
        self.questions = Questions()
        self.error = ""
        """Why the last read failed, or the empty string."""
        self.last: Snapshot | None = None
        """The newest snapshot that was read."""
        self._client = ApiClient.of(endpoint, VARIABLES)
        self._clock = clock
        self._interval = interval
        self._rules = False
        self._reason = Reason.NEVER_SEEN
        self._read_at: float | None = None
        self._lines: deque[LogLine] = deque(maxlen=LINES_KEPT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attach", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; waits at most two seconds."""
        self._stop.set()
        self.questions.put(lambda: None)  # wakes the thread
        self._client.close()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call `callback` with every snapshot; the returned function ends that."""
        return self.subscribers.add(callback)

    def at(self, time: int) -> Future[Snapshot]:
        """Ask the daemon for the snapshot of a past moment (milliseconds)."""

        def ask() -> Snapshot:
            try:
                past = self._ask(f"?time={time}")
            except (SourceError, SnapshotError) as error:
                raise LookupError(str(error)) from None
            return replace(past, mode="attached", lines=tuple(line for line in self._lines if line.time <= past.time))

        return self.questions.put(ask)

    def show_rule_readings(self, wanted: bool) -> None:
        """Say whether snapshots carry the present value of each rule's comparisons."""
        self._rules = wanted

    def poll(self) -> Snapshot | None:
        """Read once; return what is new to show, or None where nothing is."""
        newest, before = self._lines[-1].time if self._lines else 0, self.error
        try:
            snapshot = self._ask(f"?rules={int(self._rules)}&since={newest}")
        except (SourceError, SnapshotError) as error:
            self.error = str(error)
            self._reason = error.reason if isinstance(error, SourceError) else Reason.FAILED
            return self._stale()
        self.error = ""
        self._read_at = self._clock.monotonic()
        old = self.last
        if old is not None and old.started != snapshot.started:
            self._lines.clear()
        known = {line for line in self._lines if line.time >= newest}
        self._lines.extend(line for line in snapshot.lines if line not in known)
        self.last = replace(snapshot, mode="attached", lines=tuple(self._lines))
        if old is not None and old.time == snapshot.time and old.started == snapshot.started and not before:
            return None  # the daemon has not ticked since; the screen counts the seconds
        return self.last

    def _stale(self) -> Snapshot:
        """Return the last snapshot, or an empty one, with why there is none newer."""
        age = None if self._read_at is None else self._clock.monotonic() - self._read_at
        state = SourceState(KIND, self.url, up=False, reason=self._reason.value, detail=self.error, age=age)
        if self.last is None:
            now = self._clock.now()
            tried = ((self.url, self.error),)
            interval = self._interval or 1.0
            return Snapshot(now, now, self.url, "attached", interval, sources=(state,), looked_for=tried)
        return replace(self.last, sources=(*self.last.sources, state))

    def _ask(self, query: str) -> Snapshot:
        reply = self._client.ask(PATH + query)
        if reply.status != 200:
            raise _refused(self.url, reply)
        return decode(reply.body)

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = self._clock.monotonic()
            try:
                snapshot = self.poll()
                if snapshot is not None and not self._stop.is_set():
                    self.subscribers.publish(snapshot)
            except Exception:
                log.exception("reading %s failed", self.url)
            interval = self._interval or (self.last.interval if self.last is not None else 1.0)
            due = begun + max(LEAST_SECONDS, interval)
            while not self._stop.is_set() and (left := due - self._clock.monotonic()) > 0:
                self.questions.answer_for(left)


def _refused(url: str, reply: Reply) -> SourceError:
    """Return in words why the daemon did not give a snapshot."""
    said = stranger = ""
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        said = " ".join(str(json.loads(reply.body)["error"]).split())[:200]
    if reply.kind.startswith("text/plain"):
        stranger = " ".join(reply.body[:200].decode("utf-8", "replace").split())
    if reply.status in (401, 403):
        hint = f"{VARIABLES}_USER and {VARIABLES}_PASSWORD, or [attach] in the configuration"
        return SourceError(Reason.UNAUTHORIZED, f"{url}: not logged in (HTTP {reply.status}); give {hint}")
    if reply.status == 404 and not said:
        words = f": {stranger}" if stranger else ""
        return SourceError(Reason.NOT_FOUND, f"{url}: is no `gpuwatch serve`: there is no {PATH} (HTTP 404{words})")
    reason = Reason.NOT_FOUND if reply.status == 404 else Reason.FAILED
    return SourceError(reason, f"{url}: {said or stranger or f'HTTP {reply.status}'}")
