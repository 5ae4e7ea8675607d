"""Leaving the screen in order, whatever asks for it and whatever is gone already."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuwatch.tui.feed import Done

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.message import Message

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def on_signals(leave: Callable[[int], object]) -> None:
    """Call `leave` with an exit code at a signal that asks to end: 128 + its number, as shells have it."""
    loop = asyncio.get_running_loop()
    # Only the main thread may ask for signals.
    with suppress(ValueError, RuntimeError, NotImplementedError):
        for number in ENDING_SIGNALS:
            loop.add_signal_handler(number, leave, 128 + number)


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
