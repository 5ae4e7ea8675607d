"""Xid errors of one GPU, told by NVML and by the kernel's log, each counted once."""

from __future__ import annotations

import re
from collections import deque
from typing import Literal, TypeAlias

Origin: TypeAlias = Literal["nvml", "kernel"]

SAME_MS = 15_000
"""The two ways tell the same Xid within this time: both are read about once a second, and a busy driver is late."""


_ADDRESS = re.compile(
    r"^(?:PCI:)?(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-7])?$", re.IGNORECASE
)


def pci_address(text: str) -> str:
    """Return ``dddd:bb:dd`` of a PCI address as the kernel, NVML or lspci print it; the empty string for no address."""
    found = _ADDRESS.match(text.strip())
    if found is None:
        return ""
    return f"{int(found['domain'], 16):04x}:{found['bus'].lower()}:{found['device'].lower()}"


class XidCounts:
    """Counts by code. An Xid that one way tells is held until the other way tells it too, or until it is old."""

    def __init__(self) -> None:
        self.counts: dict[int, tuple[int, int]] = {}
        self._open: dict[int, deque[tuple[int, Origin]]] = {}

    def add(self, code: int, time: int, origin: Origin) -> bool:
        """Take an Xid seen at `time` (milliseconds since the epoch); return whether it was a new one."""
        waiting = self._open.setdefault(code, deque())
        while waiting and time - waiting[0][0] > SAME_MS:
            waiting.popleft()
        # All that wait were told by one way: what the other tells takes one of them away.
        if waiting and waiting[0][1] != origin:
            waiting.popleft()
            return False
        waiting.append((time, origin))
        count, _ = self.counts.get(code, (0, 0))
        self.counts[code] = (count + 1, time)
        return True
