"""The NVML worker as a child process: started, read without blocking, and ended without waiting for it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from gpuwatch.sources.nvml.wire import Decoder

if TYPE_CHECKING:
    from collections.abc import Mapping

REAP_SECONDS = 0.2
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031  # linux/fcntl.h; the fcntl module has it since Python 3.10 on Linux only


class Child:
    """One worker process.

    Args:
        interval: seconds per tick.
        env: variables to add to the environment.

    Raises:
        OSError: when the process cannot be started.
    """

    def __init__(self, interval: float, env: Mapping[str, str] | None = None) -> None:
        paths = [os.path.abspath(path or ".") for path in sys.path]  # noqa: PTH100  # sys.path entries are strings
        environment = {**os.environ, **(env or {})}
        # The worker finds the same packages as we do, whatever its working directory.
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        environment.setdefault("MALLOC_ARENA_MAX", "2")
        self._process = subprocess.Popen(  # noqa: S603  # our own module with our own interpreter
            [sys.executable, "-W", "ignore", "-m", "gpuwatch.sources.nvml.worker", repr(interval)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._decoder = Decoder()
        self._closed = False
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._out, False)
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # noqa: PLC0415  # POSIX only

            fcntl.fcntl(self._out, _F_SETPIPE_SZ, _PIPE_BYTES)

    def wait_readable(self, seconds: float) -> None:
        """Wait until there is something to read or the worker has ended, at most `seconds`."""
        if not self._closed:
            select.select([self._out], [], [], max(0.0, seconds))

    def read(self) -> tuple[list[list[Any]], bool]:
        """Return the messages that have arrived, and whether the worker has closed its side."""
        messages: list[list[Any]] = []
        while not self._closed:
            try:
                data = os.read(self._out, 1 << 16)
            except BlockingIOError:
                return messages, False
            except OSError:
                break
            if not data:
                break
            messages += self._decoder.feed(data)
        return messages, True

    def kill(self) -> None:
        """Send SIGKILL. A process that hangs in the driver dies when the driver lets go, or never."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def close(self, seconds: float = REAP_SECONDS) -> bool:
        """Close the pipes, kill the worker and wait at most `seconds` for it; return whether it is gone."""
        self.kill()
        self._closed = True
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.gone()

    def gone(self) -> bool:
        """Say whether the process has ended and was reaped."""
        return self._process.poll() is not None

    def starved(self) -> bool:
        """Say whether a thread of it could run and waits for a processor: what hangs in the driver does not."""
        try:
            for thread in os.listdir(f"/proc/{self.pid}/task"):  # noqa: PTH208  # names are all that is wanted
                with open(f"/proc/{self.pid}/task/{thread}/stat", "rb") as file:  # noqa: PTH123  # a small file
                    if file.read().rpartition(b") ")[2][:1] == b"R":
                        return True
        except OSError:
            pass
        return False

    def how_ended(self) -> str:
        """Say how the process ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_SECONDS)
        code = self._process.returncode
        if code is None:
            return "closed its output"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"
