"""Signals that a thread waits for, whichever thread the kernel hands them to."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from types import FrameType

_Self = TypeVar("_Self", bound="Signals")
_MOST = 65_536
"""Bytes that a pipe holds on Linux: as many signals may come between two looks."""


class Signals:
    """Takes some signals over, as a context manager that is entered by the main thread.

    A Python handler runs in the main thread only, and only once that thread does something: a wait for a lock goes on
    where another thread got the signal, and a handler that takes a lock can find it held by the very code that it
    interrupted. So the handlers do nothing; the C handler writes the number into a pipe (`signal.set_wakeup_fd`),
    whichever thread it runs in, and `wait` reads the pipe.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers

    def __enter__(self: _Self) -> _Self:  # noqa: PYI019  # typing.Self came with Python 3.11
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _nothing) for number in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        read, write, self._read, self._write = self._read, self._write, -1, -1
        os.close(read)
        os.close(write)

    def wait(self, seconds: float | None = None) -> tuple[signal.Signals, ...]:
        """Return the signals that came, each once, in their order; wait for one, at most `seconds`.

        Nothing is returned where the time is over, or after `wake`.
        """
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        poll.poll(None if seconds is None else max(0.0, seconds) * 1000)
        with suppress(BlockingIOError):
            came = dict.fromkeys(os.read(self._read, _MOST))
            return tuple(signal.Signals(number) for number in came if number in self._numbers)
        return ()

    def wake(self) -> None:
        """End the present `wait` of another thread, or its next one; nothing once the context is left."""
        with suppress(OSError):
            os.write(self._write, b"\0")


class CtrlC(Signals):
    """A main thread that waits and can be interrupted at every moment of it.

    A plain wait cannot: the signal may come between Python's last look at it and the beginning of the wait.
    """

    def __init__(self) -> None:
        super().__init__(signal.SIGINT)

    def pause(self, seconds: float) -> None:
        """Wait for `seconds` or until `wake`.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed since the context was entered.
        """
        if self.wait(seconds):
            raise KeyboardInterrupt


class Startable(Protocol):
    """What runs in threads of its own between two calls."""

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self) -> None:
        """End."""
        ...


def run_for(seconds: float, what: Startable) -> None:
    """Let something run for a while, and stop it in every case.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    with CtrlC() as ctrl_c:
        what.start()
        try:
            ctrl_c.pause(seconds)
        finally:
            what.stop()


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal; the pipe has it already."""
