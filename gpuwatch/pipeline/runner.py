"""One daemon thread per source: polls it at its interval and keeps the batches until the pipeline takes them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from gpuwatch.model import Batch, Reason

if TYPE_CHECKING:
    from gpuwatch.clock import Clock
    from gpuwatch.sources import Source

KEPT = 30
"""Batches that are kept while nobody takes them; older ones are dropped."""

TOO_SOON = 0.1
"""Share of an interval: a poll is left out where less than this has passed since the one before."""

log = logging.getLogger(__name__)


def until_next(now: float, interval: float, phase: float = 0.0) -> float:
    """Return the seconds from `now` (monotonic) to the next multiple of `interval`, plus `phase` of an interval.

    All sources are polled at the same moment and the pipeline comes shortly after it, so that a tick sees one and the
    same second of everything, and the processor wakes up once.
    """
    wait = interval - (now - phase * interval) % interval
    return wait if wait >= TOO_SOON * interval else wait + interval


class SourceRunner:
    """Polls `source` every `interval` seconds, at multiples of it, until `stop`."""

    def __init__(self, source: Source, interval: float, clock: Clock, phase: float = 0.0) -> None:
        self.source = source
        self._interval = interval
        self._phase = phase
        self._clock = clock
        self._stop = threading.Event()
        self._batches: deque[Batch] = deque(maxlen=KEPT)
        self._thread = threading.Thread(target=self._run, name=source.target, daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def take(self) -> list[Batch]:
        """Return the batches since the last call, oldest first."""
        batches = []
        while self._batches:
            batches.append(self._batches.popleft())
        return batches

    def stop(self) -> None:
        """Ask the thread to end and close the source; never waits for a poll that hangs."""
        self._stop.set()
        self.source.close()

    def _run(self) -> None:
        logged = ""
        while not self._stop.is_set():
            try:
                batch = self.source.poll()
            except Exception as error:
                if self._stop.is_set():
                    return
                detail = f"internal error: {type(error).__name__}: {error}"
                if detail != logged:
                    log.exception("source %s failed", self.source.target)
                    logged = detail
                batch = Batch(self.source.target, self._clock.now(), up=False, reason=Reason.FAILED, detail=detail)
            self._batches.append(batch)
            self._clock.wait(self._stop, until_next(self._clock.monotonic(), self._interval, self._phase))
