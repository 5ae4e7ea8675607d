"""Notices that an engine was restarted, or that two processes answer in turn on one address."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuwatch.model import NAME, name_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuwatch.model import Labels
    from gpuwatch.sources.engine.exposition import Layout, Page

_START: Labels = ((NAME, "process_start_time_seconds"),)
_REMEMBERED = 8


class RestartWatch:
    """Compares each page of one server with the one before.

    Up to vLLM 0.24 a second server on the same port starts without an error, and the kernel hands requests and
    scrapes to either. A start time that was seen before is therefore not a restart.
    """

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._now: float | None = None
        self._alternates = False
        self._told = False
        self._layout: Layout | None = None
        self._row: int | None = None
        self._keys: tuple[Labels, ...] = ()
        self._values: NDArray[np.float64] = np.empty(0)
        self._rows: NDArray[np.intp] = np.empty(0, np.intp)

    def by_start_time(self, page: Page) -> str:
        """Return what shows that the engine was restarted since the last page, or an empty text.

        Pages of several API-server processes and of SGLang have no start time.
        """
        start = self._start(page)
        before, self._now = self._now, start if start is not None else self._now
        self._alternates = start is not None and start != before and start in self._starts
        if start is None or start == before or self._alternates:
            return ""
        self._starts = [*self._starts, start][-_REMEMBERED:]
        if before is None:
            return ""
        return f"process_start_time_seconds changed from {before:.2f} to {start:.2f}"

    def alternates(self) -> bool:
        """Return True the first time that the last page came from a process that had already been replaced."""
        first = self._alternates and not self._told
        self._told |= self._alternates
        return first

    def by_counters(self, counters: frozenset[Labels], keys: tuple[Labels, ...], values: NDArray[np.float64]) -> str:
        """Return which counter fell since the last page, or an empty text. `counters` are those of `keys` that count.

        While two processes answer in turn, counters jump and say nothing.
        """
        if keys is self._keys:
            before = self._values[self._rows]
        else:
            old = dict(zip(self._keys, self._values.tolist(), strict=True))
            self._rows = np.array([row for row, key in enumerate(keys) if key in counters], np.intp)
            before = np.array([old.get(keys[row], -np.inf) for row in self._rows], np.float64)
        self._keys, self._values = keys, values
        fallen = np.flatnonzero(values[self._rows] < before)
        if not len(fallen) or self._alternates or self._told:
            return ""
        row = self._rows[fallen[0]]
        return f"{name_of(keys[row])} fell from {before[fallen[0]]:g} to {values[row]:g}"

    def _start(self, page: Page) -> float | None:
        if page.layout is not self._layout:
            self._layout = page.layout
            self._row = page.layout.keys.index(_START) if _START in page.layout.keys else None
        start = math.nan if self._row is None else float(page.values[self._row])
        return start if math.isfinite(start) else None
