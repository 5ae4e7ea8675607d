"""Leaving the screen in order, whatever asks for it and whatever is gone already."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuwatch.tui.feed import Done

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from textual.message import Message

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
LEAVING_SECONDS = 5
"""How long the screen has for an orderly end after such a signal."""


def on_signals(leave: Callable[[int], object]) -> None:
    """Call `leave` with an exit code at a signal that asks to end: 128 + its number, as shells have it.

    The program ends all the same where the screen is not left in time, unless `left` was called. A loop that waits for
    a terminal that takes nothing more, or is gone, never comes to `leave`; a handler in Python interrupts that wait.
    """
    loop = asyncio.get_running_loop()

    def end(number: int, _frame: FrameType | None) -> None:
        code = 128 + number
        if not signal.getitimer(signal.ITIMER_REAL)[0]:  # a further signal does not put the end off
            signal.signal(signal.SIGALRM, lambda *_: os._exit(code))
            signal.alarm(LEAVING_SECONDS)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(leave, code)

    # Only the main thread may ask for signals.
    with suppress(ValueError):
        for number in ENDING_SIGNALS:
            signal.signal(number, end)


def left() -> None:
    """Take note that the screen was left: what comes after it has its own time, and signals end the program again."""
    with suppress(ValueError):
        signal.alarm(0)
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_DFL)


def try_all(*steps: Callable[[], object] | None) -> None:
    """Take every step; what fails at the end has nobody left to be told."""
    for step in steps:
        if step is not None:
            with suppress(Exception):
                step()


def in_background(action: Callable[[], object], done: str, post: Callable[[Message], object]) -> None:
    """Run an action in a thread and post a `Done`; in `done`, ``{}`` becomes what the action returned."""

    def run() -> None:
        try:
            message = Done(done.replace("{}", str(action())))
        except Exception as error:  # noqa: BLE001  # an action that fails is said, never fatal to the screen
            message = Done(f"that did not work: {error}", failed=True)
        post(message)

    threading.Thread(target=run, name="gpuwatch-action", daemon=True).start()
