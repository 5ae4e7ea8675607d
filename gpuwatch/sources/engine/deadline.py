"""Time limits for whole requests: the socket in use is shut down when the time is over.

A socket's timeout holds for one read each; a server that sends a byte now and then never runs into it. One thread
watches the requests of all sources, and sleeps through those that end in time.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from contextlib import suppress


class _Watchdog:
    """Expires deadlines when they are due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Deadline, tuple[float, int]] = {}
        self._wakes = -math.inf
        self._thread: threading.Thread | None = None

    def add(self, deadline: Deadline, at: float, number: int) -> None:
        """Expire the request `number` of `deadline` at `at` (monotonic seconds)."""
        with self._changed:
            self._due[deadline] = (at, number)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            elif at < self._wakes:
                self._changed.notify()

    def remove(self, deadline: Deadline) -> None:
        """Forget a request that has ended."""
        with self._changed:
            self._due.pop(deadline, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                over = [(deadline, number) for deadline, (at, number) in self._due.items() if at <= now]
                for deadline, _ in over:
                    del self._due[deadline]
                if not over:
                    self._wakes = min((at for at, _ in self._due.values()), default=math.inf)
                    self._changed.wait(None if self._wakes == math.inf else self._wakes - now)
            for deadline, number in over:
                deadline.expire(number)


_WATCHDOG = _Watchdog()


class Deadline:
    """Ends the request in progress when its time is over. One request at a time; `expire` may come from any thread."""

    def __init__(self) -> None:
        self.expired = False
        self.connections = 0
        self._number = 0
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def start(self, seconds: float) -> None:
        """Begin a request that may take `seconds`."""
        with self._lock:
            self._number += 1
            self.expired = False
            self.connections = 0
        _WATCHDOG.add(self, time.monotonic() + seconds, self._number)

    def stop(self) -> None:
        """End the request; the connection may live on for the next one."""
        _WATCHDOG.remove(self)

    def watch(self, connection: socket.socket) -> None:
        """Take charge of a new connection. Raises TimeoutError when the time is already over.

        A duplicate of the descriptor is kept: TLS wraps the original away, and the duplicate still reaches it.
        """
        with self._lock:
            self.connections += 1
            self._close()
            if self.expired:
                raise TimeoutError
            self._socket = connection.dup()

    def release(self) -> None:
        """Give the connection up; it is not used again."""
        with self._lock:
            self._close()

    def expire(self, number: int | None = None) -> None:
        """Shut the connection down, so that whoever reads from it gets an end of file.

        With `number`, only while that request is the last one that was started.
        """
        with self._lock:
            if number is not None and number != self._number:
                return
            self.expired = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
