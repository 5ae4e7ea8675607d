"""The application driven by a scripted feed, and the text that is on its screen."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager

import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.tui.app import GpuwatchApp
from gpuwatch.tui.feed import Actions
from tests.unit.tui.scenes import ScriptedFeed


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """UTC, a dark terminal with colours."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLORFGBG", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


PATIENCE = 60.0
"""Seconds after which something that was waited for will not happen any more."""


class Driver:
    """A running application: push snapshots, press keys, read the screen."""

    def __init__(self, app, feed, clock, pilot):
        self.app, self.feed, self.clock, self.pilot = app, feed, clock, pilot

    async def push(self, *snapshots):
        for snapshot in snapshots:
            self.feed.push(snapshot)
            await self.pilot.pause()
            await self._taken()

    async def _taken(self):
        """Wait until the application has taken what was pushed: on a busy machine one pause is not enough."""
        deadline = time.monotonic() + PATIENCE
        while self.app._mailbox._newest is not None and time.monotonic() < deadline:
            await self.pilot.pause(0.01)
        for _ in range(2):  # one pause ends after a second, whether all is drawn or not
            await self.pilot.pause()

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.pilot.pause()

    def lines(self):
        return [strip.text for strip in self.app.screen._compositor.render_strips()]

    def text(self):
        return "\n".join(self.lines())

    def footer(self):
        return self.lines()[-1]

    async def settle(self, condition, what):
        """Wait for what a thread of an action brings about."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            await self.pilot.pause(0.01)
            if condition():
                return
        pytest.fail(f"{what} did not happen; the screen:\n{self.text()}")


@pytest.fixture
def screen():
    """Start the application at a size: ``async with screen(140, 45) as s``."""

    @asynccontextmanager
    async def start(width=140, height=45, actions=None, past=None):
        feed, clock = ScriptedFeed(past), ManualClock()
        app = GpuwatchApp(feed, actions or Actions(), clock)
        async with app.run_test(size=(width, height)) as pilot:
            await pilot.pause()
            driver = Driver(app, feed, clock, pilot)
            await driver.settle(lambda: feed.callbacks, "that the application asks for snapshots")
            yield driver

    return start
