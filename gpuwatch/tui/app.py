"""The application: the frame around the views, keys, and the way of snapshots to the screen."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding
from textual.widget import Widget

from gpuwatch.clock import SystemClock
from gpuwatch.tui import keys
from gpuwatch.tui.draw import frame
from gpuwatch.tui.feed import Actions, Arrived, Done, Mailbox, Recalled
from gpuwatch.tui.focus import step
from gpuwatch.tui.history import History
from gpuwatch.tui.leave import in_background, on_signals, try_all
from gpuwatch.tui.text import clean
from gpuwatch.tui.theme import THEMES, prefers_light
from gpuwatch.tui.view.model import Model, Quiet
from gpuwatch.tui.view.status import Pulse
from gpuwatch.tui.walk import Walk
from gpuwatch.tui.widgets.bar import Bar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.message import Message

    from gpuwatch.clock import Clock
    from gpuwatch.snapshot import Snapshot
    from gpuwatch.tui.feed import Feed
    from gpuwatch.tui.screens.base import View
    from gpuwatch.tui.view.findings import Row

SILENCE_SECONDS = 3600.0
NOTICE_SECONDS = 5.0
NARROW = 100
"""Below this width the footer of some views names the other views in one entry."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class GpuwatchApp(App[None]):
    """The screen. It does no I/O: snapshots come from `feed`, and `actions` run in threads of their own."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "gpuwatch"

    CSS = """
    Screen { layout: vertical; background: $background; }
    #body { height: 1fr; width: 1fr; }
    * { scrollbar-color: $scrollbar; scrollbar-color-hover: $primary; scrollbar-color-active: $primary;
        scrollbar-background: $background; scrollbar-background-hover: $background;
        scrollbar-background-active: $background; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, action, show=False) for key, action in keys.BINDINGS),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    def __init__(self, feed: Feed, actions: Actions | None = None, clock: Clock | None = None) -> None:
        plain = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True if plain else None)
        self.palette = "plain" if plain else "light" if prefers_light(dict(os.environ)) else "dark"
        self._feed = feed
        self._actions = actions or Actions()
        self._clock = clock or SystemClock()
        self._mailbox = Mailbox(lambda: self._post(Arrived()))
        self._walk = Walk(feed, lambda ticket, snapshot, error: self._post(Recalled(ticket, snapshot, error)))
        self._unsubscribe: Callable[[], None] | None = None
        self._quiet = Quiet()
        self._newest: Snapshot | None = None
        self._model = Model(History())
        self._arrived_at = self._clock.monotonic()
        self._views: dict[str, View] = {}
        self._view = "overview" if self._actions.focus is None else "fleet"
        self._notice = ("", "")
        self._notice_until = 0.0
        self._replay_halted = False
        self._speed = 1.0
        self._sought: float | None = None

    def on_load(self) -> None:
        """Before the terminal is taken over: see to it that it is given back."""
        on_signals(lambda code: self.exit(return_code=code))

    def _post(self, message: Message) -> None:
        """Post a message from any thread; one that comes after the end is dropped."""
        with suppress(RuntimeError):  # the loop is closed
            self.post_message(message)

    def compose(self) -> ComposeResult:
        """Make the frame; views come when they are opened."""
        yield Bar(id="header")
        with Widget(id="body"):
            yield Bar(id="starting")
        yield Bar(id="footer")

    async def on_mount(self) -> None:
        """Paint the first frame, then start to listen."""
        if self.palette != "plain":
            for theme in THEMES:
                self.register_theme(theme)
            self.theme = f"gpuwatch-{self.palette}"
        self.query_one("#starting", Bar).show_lines(frame.starting(self.size.width))
        self._frame()
        self.set_interval(1.0, self._beat)
        self.call_after_refresh(self._listen)

    async def _listen(self) -> None:
        """After the first frame: load the overview and subscribe to the feed."""
        await self.action_home()
        await self.query_one("#starting").remove()
        self._unsubscribe = self._feed.subscribe(self._mailbox.put)

    def on_unmount(self) -> None:
        """Leave the feed as it was found, while it is still there."""
        set_detail = self._actions.set_rule_detail if self._view == "rules" else None
        try_all((lambda: set_detail(False)) if set_detail is not None else None, self._unsubscribe)

    def on_resize(self) -> None:
        """Draw the frame for the new width."""
        self._frame()

    @property
    def can_demo(self) -> bool:
        """Whether the demo can be started from here."""
        return self._actions.demo is not None

    @property
    def _replay(self) -> bool:
        """Whether what is shown is a recording."""
        return self._newest is not None and self._newest.mode in ("replay", "demo")

    def _pulse(self) -> Pulse:
        """Return how the screen follows the world now."""
        newest = self._newest
        halted = self._walk.paused or self._replay_halted
        silent = 0.0 if newest is None or self._replay_halted else self._clock.monotonic() - self._arrived_at
        return Pulse(paused=halted, silent=silent, newest=newest.time if newest is not None else 0)

    def _frame(self) -> None:
        """Draw header and footer."""
        width = self.size.width
        self._model = replace(self._model, pulse=self._pulse())
        for bar in self.query("#header").results(Bar):
            bar.show_lines(frame.header(self._model, width))
        view = self._views.get(self._view)
        recording = self._newest is not None and self._newest.recording is not None
        entries = keys.hints(
            self._view,
            view.hints() if view is not None else [],
            self._actions,
            empty=self._model.snapshot is not None and self._model.empty,
            replay=self._replay,
            paused=self._pulse().paused,
            recording=recording,
            finding=bool(self._model.findings),
            narrow=width < NARROW,
        )
        notice = self._notice if self._clock.monotonic() < self._notice_until else ("", "")
        for bar in self.query("#footer").results(Bar):
            line, bar.places = frame.footer(entries, notice, width)
            bar.show_lines([line])

    def _beat(self) -> None:
        """Once a second: is the feed silent, has a request for the past timed out, is a notice old."""
        if self._walk.overdue(self._clock.monotonic()):
            self.say("the past could not be read: no answer within 5 s", failed=True)
        self._frame()

    def say(self, text: str, *, failed: bool = False) -> None:
        """Show a sentence in the footer for a few seconds."""
        self._notice = (clean(text), "crit" if failed else "ok")
        self._notice_until = self._clock.monotonic() + NOTICE_SECONDS
        self._frame()

    def on_arrived(self) -> None:
        """Take the newest snapshot; it is remembered even while the screen is paused."""
        snapshot = self._mailbox.take()
        if snapshot is None:
            return
        self._arrived_at, self._sought = self._clock.monotonic(), None
        if self._newest is not None and self._newest.mode != snapshot.mode:
            self._walk.resume()
        self._newest = snapshot
        model = self._build(snapshot, live=True)
        with self.batch_update():
            if not self._walk.paused:
                self._model = model
            self._frame()
            self._draw()

    def _build(self, snapshot: Snapshot, *, live: bool) -> Model:
        """Return the rows of a snapshot."""
        from gpuwatch.tui.view.build import build  # noqa: PLC0415  # loaded after the first frame

        return build(snapshot, self._model.history, self._quiet, live=live)

    def on_recalled(self, message: Recalled) -> None:
        """Show the past that was asked for."""
        if not self._walk.accept(message.ticket, self._clock.monotonic()):
            return
        if message.snapshot is None:
            self.say(f"the past could not be read: {message.error}", failed=True)
            return
        self._walk.viewing = message.snapshot.time
        self._present(message.snapshot)

    def _present(self, snapshot: Snapshot) -> None:
        """Show a snapshot that was not just delivered."""
        self._model = self._build(snapshot, live=False)
        with self.batch_update():
            self._frame()
            self._draw()

    def _draw(self) -> None:
        """Draw the view that is open."""
        view = self._views.get(self._view)
        if view is not None:
            view.show(self._model)

    async def action_home(self) -> None:
        """Open the page to start from: of a fleet the table, but from a page of one machine first its overview."""
        fleet = self._actions.focus is not None and self._view in ("overview", "fleet")
        await self.action_view("fleet" if fleet else "overview")

    async def action_view(self, name: str, key: Hashable | None = None) -> None:
        """Open a view, with something selected in it."""
        if name == "fleet" and self._actions.focus is None:
            return
        focused = self._newest is not None and self._newest.focus is not None
        key, move = step(self._actions, self._views, self._view, name, key, focused=focused)
        self._do(move, "")
        body = self.query_one("#body")
        if name not in self._views:
            module, cls = keys.PAGES[name]
            view = getattr(import_module(module), cls)(id=f"view-{name}")
            self._views[name] = view
            await body.mount(view)
        detail = self._actions.set_rule_detail
        if detail is not None and (name == "rules") != (self._view == "rules"):
            self._do(lambda: detail(name == "rules"), "")
        self._view = name
        with self.batch_update():
            for other, view in self._views.items():
                view.display = other == name
            self._views[name].show(self._model)
            if key is not None:
                self._views[name].open_at(key)
            self._views[name].focus_first()
            self._frame()

    async def on_view_opened(self, message: View.Opened) -> None:
        """A view asks for another one."""
        await self.action_view(message.view, message.key)

    def on_view_hints_changed(self) -> None:
        """The footer names other keys."""
        self._frame()

    def action_help(self) -> None:
        """Show the keys and signs."""
        from gpuwatch.tui.screens.help import Help  # noqa: PLC0415  # loaded when it is asked for

        self.push_screen(Help(keys.help_entries(self._actions, empty=self._model.empty, replay=self._replay)))

    async def action_filter_logs(self) -> None:
        """Open the logs and their filter."""
        await self.action_view("logs")
        await self._views["logs"].run_action("filter")

    async def action_log_hits(self) -> None:
        """Show only recognised lines, or all."""
        await self._views["logs"].run_action("hits")

    async def action_next_engine(self) -> None:
        """Open the engine view; go to the next engine when it is open."""
        if self._view == "engine":
            getattr(self._views["engine"], "next_engine")()  # noqa: B009  # the module is loaded on demand
            self._frame()
        else:
            await self.action_view("engine")

    def action_colours(self) -> None:
        """Change between light and dark."""
        if self.palette != "plain":
            self.palette = "light" if self.palette == "dark" else "dark"
            self.theme = f"gpuwatch-{self.palette}"
            self.refresh(layout=True)
            for view in self.query(Widget):
                view.refresh()

    def action_pause(self) -> None:
        """Pause or resume."""
        if self._newest is None:
            return
        pause = self._actions.pause
        if self._replay and pause is not None:
            halt = self._replay_halted = not self._replay_halted
            self._do(lambda: pause(halt), "")
        elif self._walk.paused:
            self._resume()
            return
        else:
            self._walk.pause(self._newest.time)
        self._frame()
        self._draw()

    def _resume(self) -> None:
        """Follow the feed again."""
        self._walk.resume()
        if self._newest is not None:
            self._present(self._newest)

    def action_walk(self, seconds: float) -> None:
        """Go back or forth in time."""
        newest = self._newest
        if newest is None:
            return
        seek = self._actions.seek
        if self._replay and seek is not None and newest.recording is not None:
            start = newest.recording.position if self._sought is None else self._sought
            position = self._sought = min(max(start + seconds, 0.0), newest.recording.length)
            self._do(lambda: seek(position), "")
        elif seconds > 0 and not self._walk.paused:
            return
        elif not self._walk.go(seconds, newest.started, newest.time, self._clock.monotonic()):
            self._resume()
        self._frame()

    def action_faster(self, by: int) -> None:
        """Play a recording faster or slower."""
        speed = self._actions.speed
        if speed is None or not self._replay:
            return
        place = min(max(keys.SPEEDS.index(self._speed) + by, 0), len(keys.SPEEDS) - 1)
        chosen = self._speed = keys.SPEEDS[place]
        self._do(lambda: speed(chosen), f"plays at {chosen:g} times real time")

    def _do(self, action: Callable[[], object] | None, done: str) -> None:
        """Run an action in a thread; `done` is said afterwards, with ``{}`` replaced by what it returned."""
        if action is not None:
            in_background(action, done, self._post)

    def on_done(self, message: Done) -> None:
        """Say how an action ended."""
        if message.text:
            self.say(message.text, failed=message.failed)

    def action_record(self) -> None:
        """Start or stop a recording."""
        start, stop = self._actions.start_recording, self._actions.stop_recording
        if start is None or stop is None or self._newest is None or self._replay:
            return
        if self._newest.recording is not None:
            self._do(stop, "the recording is closed")
        else:
            self._do(lambda: start(None), "recording to {}")

    def _finding(self) -> Row | None:
        """Return the finding under the cursor."""
        view = self._views.get(self._view)
        return view.finding() if view is not None else None

    def action_acknowledge(self) -> None:
        """Acknowledge the finding under the cursor."""
        row, action = self._finding(), self._actions.acknowledge
        if row is None or action is None:
            return
        self._quiet = replace(self._quiet, acknowledged=self._quiet.acknowledged | {row.key})
        self._do(lambda: action(row.key), f"acknowledged {row.finding.id}")
        self._again()

    def action_silence(self) -> None:
        """Silence the finding under the cursor for an hour."""
        row, action = self._finding(), self._actions.silence
        if row is None or action is None or self._newest is None:
            return
        until = self._newest.time + int(SILENCE_SECONDS * 1000)
        self._quiet = replace(self._quiet, silenced={**self._quiet.silenced, row.key: until})
        self._do(lambda: action(row.key, SILENCE_SECONDS), f"silenced {row.finding.id} for 1 h")
        self._again()

    def _again(self) -> None:
        """Show the same moment with what the person has just said."""
        if self._model.snapshot is not None:
            self._present(self._model.snapshot)

    def action_copy(self) -> None:
        """Copy the finding under the cursor to the clipboard."""
        row = self._finding()
        if row is not None:
            from gpuwatch.tui.view.findings import as_text  # noqa: PLC0415  # beside its only use

            self.copy_to_clipboard(as_text(row))
            self.say(f"copied {row.finding.id}")

    def action_report(self) -> None:
        """Write a report."""
        if self._actions.write_report is not None:
            self._do(self._actions.write_report, "report written to {}")

    def action_demo(self) -> None:
        """Start the demo from an empty machine."""
        if self._actions.demo is not None and self._model.snapshot is not None and self._model.empty:
            self._do(self._actions.demo, "")

    def action_interrupt(self) -> None:
        """Leave at once."""
        self.exit(return_code=INTERRUPTED)
