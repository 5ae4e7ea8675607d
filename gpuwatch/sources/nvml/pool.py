"""Who reads which GPU: one thread for all that answer, one more for each that hangs. Runs in the NVML worker only.

A thread per GPU would wake up ten times a second for each, which costs more than the calls. So all GPUs share one
reader as long as they answer quickly. When a step takes too long, another thread takes over the rest, and the first
one stays with its GPU alone until it answers quickly again (ctypes releases the GIL during a call).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatch.sources.nvml.device import Device


class Pool:
    """Steps devices when they are due.

    Args:
        patience: seconds that one step may take before the others go on without it.
        start: runs a function in a daemon thread.
    """

    def __init__(self, patience: float, start: Callable[..., None]) -> None:
        self._patience = patience
        self._start = start
        self._lock = threading.Lock()
        self._members: list[Device] = []
        self._reader: object | None = None
        self._stepping: Device | None = None
        self._since = 0.0

    def begin(self, device: Device) -> None:
        """Read a device for the first time, which may take long, in a thread of its own."""
        self._start(self._alone, device)

    def watch(self) -> None:
        """Let another thread take over when the reader is stuck. To be called several times per `patience`."""
        with self._lock:
            device = self._stepping
            if device is None or time.monotonic() - self._since <= self._patience:
                return
            self._members.remove(device)
            self._stepping = None
            self._take_over()

    def _take_over(self) -> None:
        self._reader = token = object()
        self._start(self._read, token)

    def _alone(self, device: Device) -> None:
        """Step one device until it is quick enough to join the others."""
        while True:
            _sleep_until(device.due)
            begin = time.monotonic()
            device.step()
            if time.monotonic() - begin <= self._patience:
                break
        with self._lock:
            self._members.append(device)
            if self._reader is None:
                self._take_over()

    def _read(self, token: Any) -> None:
        """Step the members in the order in which they are due, until another thread has taken over."""
        while True:
            with self._lock:
                if not self._members:
                    self._reader = None
                    return
                due = min(map(_due, self._members))
            _sleep_until(due)
            for device in self._members_due(time.monotonic()):
                with self._lock:
                    self._stepping, self._since = device, time.monotonic()
                device.step()
                with self._lock:
                    if self._reader is token:
                        self._stepping = None
                        continue
                self._alone(device)
                return

    def _members_due(self, now: float) -> list[Device]:
        with self._lock:
            return sorted([device for device in self._members if device.due <= now], key=_due)


def _due(device: Device) -> float:
    return device.due


def _sleep_until(due: float) -> None:
    wait = due - time.monotonic()
    if wait > 0:
        time.sleep(wait)
