"""Pausing and walking back in time, for a live feed: the feed is asked what the world looked like."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.feed import Feed

DEADLINE_SECONDS = 5.0


class Walk:
    """Where the screen stands in time. One request is under way at most; the last wish wins.

    `answer` is called from whichever thread completes a request, with (ticket, snapshot or None, error).
    """

    def __init__(self, feed: Feed, answer: Callable[[int, Snapshot | None, str], object]) -> None:
        self._feed = feed
        self._answer = answer
        self._wish: int | None = None
        self._ticket = 0
        self._asked_at = 0.0
        self._busy = False
        self.paused = False
        self.viewing: int | None = None

    def pause(self, time: int) -> None:
        """Stand still at `time` (milliseconds)."""
        self.paused = True
        self.viewing = time

    def resume(self) -> None:
        """Follow the feed again; a request under way is forgotten."""
        self.paused = False
        self.viewing = self._wish = None
        self._busy = False
        self._ticket += 1

    def go(self, seconds: float, first: int, last: int, now: float) -> bool:
        """Ask for `seconds` from where the screen stands, between `first` and `last` (milliseconds).

        `now` is the monotonic clock. Return False when that is the present: the caller resumes.
        """
        start = self._wish if self._wish is not None else self.viewing if self.viewing is not None else last
        target = max(start + round(seconds * 1000), first)
        if target >= last and seconds > 0:
            return False
        self.paused = True
        self._wish = min(target, last)
        if not self._busy:
            self._ask(now)
        return True

    def _ask(self, now: float) -> None:
        """Send the wish."""
        assert self._wish is not None
        self._ticket += 1
        self._busy = True
        self._asked_at = now
        self.viewing, self._wish = self._wish, None
        ticket = self._ticket

        def done(future: Future[Snapshot]) -> None:
            error = future.exception() if not future.cancelled() else None
            if future.cancelled() or error is not None:
                self._answer(ticket, None, str(error) if error else "the request was cancelled")
            else:
                self._answer(ticket, future.result(), "")

        try:
            self._feed.at(self.viewing).add_done_callback(done)
        except Exception as error:  # noqa: BLE001  # whatever the feed raises is shown, never fatal to the screen
            self._answer(ticket, None, str(error))

    def accept(self, ticket: int, now: float) -> bool:
        """Return whether an answer is to be shown; send the next wish if there is one."""
        if ticket != self._ticket or not self._busy:
            return False
        self._busy = False
        if self._wish is not None:
            self._ask(now)
        return True

    def overdue(self, now: float) -> bool:
        """Return whether a request has passed its deadline; it is given up then."""
        if not self._busy or now - self._asked_at < DEADLINE_SECONDS:
            return False
        self._busy = False
        self._wish = None
        self._ticket += 1
        return True
