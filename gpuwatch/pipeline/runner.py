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

log = logging.getLogger(__name__)


class SourceRunner:
    """Polls `source` every `interval` seconds, aligned to multiples of it, until `stop`."""

    def __init__(self, source: Source, interval: float, clock: Clock) -> None:
        self.source = source
        self._interval = interval
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
        while not self._stop.is_set():
            started = self._clock.monotonic()
            try:
                batch = self.source.poll()
            except Exception as error:
                if self._stop.is_set():
                    return
                log.exception("source %s failed", self.source.target)
                detail = f"internal error: {type(error).__name__}: {error}"
                batch = Batch(self.source.target, self._clock.now(), up=False, reason=Reason.FAILED, detail=detail)
            self._batches.append(batch)
            took = self._clock.monotonic() - started
            self._clock.wait(self._stop, max(0.02, self._interval - took % self._interval))
