"""What the screen needs from the rest of the program: snapshots, the past, and things it may do.

The feed lives in the pipeline's thread, the screen in its own. A `Mailbox` between them holds one snapshot, the
newest, so that a slow terminal never builds a backlog.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from textual.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.view.findings import FindingKey


class Feed(Protocol):
    """Where snapshots come from. Neither method blocks."""

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call `callback` with every new snapshot, from any thread; return the function that ends it."""
        ...

    def at(self, time_ms: int) -> Future[Snapshot]:
        """Ask for the snapshot as it was at `time_ms` (milliseconds since the epoch).

        The future fails with an exception whose text is fit to show when that time is no longer, or not yet, known.
        """
        ...


@dataclass(frozen=True, slots=True)
class Actions:
    """What the screen may do; the key of an action that is None is not offered.

    Each runs in a thread of its own, so it may take its time; an exception's text is shown.
    """

    start_recording: Callable[[str | None], str] | None = None
    """Record to a path, or to a name of its own; return the path."""
    stop_recording: Callable[[], None] | None = None
    acknowledge: Callable[[FindingKey], None] | None = None
    silence: Callable[[FindingKey, float], None] | None = None
    """Silence a finding for a number of seconds."""
    demo: Callable[[], None] | None = None
    write_report: Callable[[], str] | None = None
    """Write a report of what was seen; return its path."""
    seek: Callable[[float], None] | None = None
    """Go to a position of a replay, in seconds from its start."""
    pause: Callable[[bool], None] | None = None
    """Halt or continue a replay."""
    speed: Callable[[float], None] | None = None
    """Play a replay at a multiple of real time."""
    focus: Callable[[tuple[str, str] | None], None] | None = None
    """Look at one machine of a fleet, (cluster, host), or at all; set where the feed is a fleet."""
    set_rule_detail: Callable[[bool], None] | None = None
    """Whether snapshots should carry the readings of rules, which cost time and only the rules view shows."""


class Arrived(Message):
    """A new snapshot is in the mailbox."""

    def can_replace(self, message: Message) -> bool:
        """One of these in the queue is enough."""
        return isinstance(message, Arrived)


class Recalled(Message):
    """The feed answered what the world looked like at a time; `error` says why it could not."""

    def __init__(self, ticket: int, snapshot: Snapshot | None, error: str = "") -> None:
        super().__init__()
        self.ticket = ticket
        self.snapshot = snapshot
        self.error = error


class Done(Message):
    """An action has ended; `text` is what to tell the person."""

    def __init__(self, text: str, *, failed: bool = False) -> None:
        super().__init__()
        self.text = text
        self.failed = failed


class Mailbox:
    """Hands the newest snapshot from the pipeline's thread to the screen: one message per unread snapshot at most."""

    def __init__(self, notify: Callable[[], object]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._newest: Snapshot | None = None

    def put(self, snapshot: Snapshot) -> None:
        """Store a snapshot (any thread); notify unless an earlier one is still unread."""
        with self._lock:
            unread = self._newest is not None
            self._newest = snapshot
        if not unread:
            self._notify()

    def take(self) -> Snapshot | None:
        """Return the newest snapshot that was not read yet, or None."""
        with self._lock:
            snapshot, self._newest = self._newest, None
        return snapshot
