"""``gpuwatch tui``: the screen."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.cli import FINE, WRONG, UsageError, attaching, fleet, watching
from gpuwatch.cli.reports import DEMO, Reports

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from concurrent.futures import Future

    from gpuwatch.config import Config
    from gpuwatch.pipeline.attach import Attached
    from gpuwatch.pipeline.fleet.driver import Fleet
    from gpuwatch.pipeline.live import Live
    from gpuwatch.pipeline.replay import Replay
    from gpuwatch.recording import Keep
    from gpuwatch.snapshot import Mode, Snapshot
    from gpuwatch.tui.feed import Actions

    Driver: TypeAlias = Live | Replay | Fleet | Attached

NAME = "tui"
HELP = "show GPUs, engines and what is wrong with them; finds them by itself"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    watching.add_arguments(parser)
    fleet.add_arguments(parser)
    attaching.add_argument(parser)
    parser.add_argument("--replay", metavar="FILE", help="play a recording instead of watching")
    parser.add_argument("--demo", action="store_true", help="play a recorded run that ships with gpuwatch")
    parser.add_argument("--report", metavar="FILE", help="write a report of what was seen (.html or .md) at the end")


class Screen:
    """Connects the screen with a driver that is loaded and started once the first frame is on the terminal."""

    def __init__(self, make: Callable[[], Driver]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._callback: Callable[[Snapshot], None] | None = None
        self._left = False
        self._rule_readings = False
        self.on_failure: Callable[[str], object] | None = None

    @property
    def driver(self) -> Driver:
        """The present driver.

        Raises:
            RuntimeError: it is still being loaded.
        """
        driver = self._driver
        if driver is None:
            raise RuntimeError("still starting")
        return driver

    @property
    def live(self) -> Live:
        """The present driver where it is a live run.

        Raises:
            RuntimeError: something else is on the screen.
        """
        from gpuwatch.pipeline.live import Live  # noqa: PLC0415  # loaded by then

        if not isinstance(self.driver, Live):
            raise RuntimeError("only a live run can be recorded")  # noqa: TRY004  # a state, not a type error
        return self.driver

    @property
    def fleet(self) -> Fleet:
        """The present driver where it looks at a fleet.

        Raises:
            RuntimeError: something else is on the screen.
        """
        from gpuwatch.pipeline.fleet.driver import Fleet  # noqa: PLC0415  # loaded by then

        if not isinstance(self.driver, Fleet):
            raise RuntimeError("only a fleet can do that")  # noqa: TRY004  # a state, not a type error
        return self.driver

    @property
    def player(self) -> Replay:
        """The present driver where it is a replay.

        Raises:
            RuntimeError: something else is on the screen.
        """
        from gpuwatch.pipeline.replay import Replay  # noqa: PLC0415  # loaded by then

        if not isinstance(self.driver, Replay):
            raise RuntimeError("only a replay can do that")  # noqa: TRY004  # a state, not a type error
        return self.driver

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Start the driver in a thread of its own and hand its snapshots to `callback`."""
        self._callback = callback
        threading.Thread(target=self._start, args=(self._make,), name="start", daemon=True).start()
        return self.stop

    def show_rule_readings(self, wanted: bool) -> None:
        """Say whether snapshots carry the readings of rules; holds for a driver that is still being loaded, too."""
        with self._lock:
            self._rule_readings = wanted
            driver = self._driver
        if driver is not None:
            driver.show_rule_readings(wanted)

    def at(self, time: int) -> Future[Snapshot]:
        """Ask for the snapshot of a past moment."""
        return self.driver.at(time)

    def switch(self, make: Callable[[], Driver]) -> None:
        """Stop the present driver and go on with another."""
        self._stop_driver()
        self._start(make)

    def stop(self) -> None:
        """Stop the present driver for good: one that is still being loaded never starts."""
        self._left = True
        self._stop_driver()

    def _stop_driver(self) -> None:
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None:
            driver.stop()

    def _start(self, make: Callable[[], Driver]) -> None:
        try:
            driver = make()
        except Exception as error:  # noqa: BLE001  # whatever it is, a screen without a driver must not stay up
            if self.on_failure is not None and not self._left:
                self.on_failure(str(error) or type(error).__name__)
            return
        with self._lock:
            if not self._left:
                self._driver = driver
                driver.show_rule_readings(self._rule_readings)
                if self._callback is not None:
                    driver.subscribe(self._callback)
                driver.start()
                return
        driver.stop()


def run(args: argparse.Namespace) -> int:
    """Show the screen until it is left."""
    if args.json:
        raise UsageError("--json: the screen has none; gpuwatch check --json prints findings, and serve a snapshot")
    config = watching.config_of(args)
    watching.keep_of(args)
    if args.demo and args.replay:
        raise UsageError("--demo and --replay exclude each other")
    if args.record and (args.demo or args.replay):
        raise UsageError("--record needs something live to record; it cannot be used with --demo or --replay")
    reports = Reports(args)
    if args.attach:
        attaching.refuse_others(args, "engine", "log", "record", "replay", "demo", "prometheus", "report")
        attaching.attached(args, config)
    _check_files(args)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the screen needs a terminal; use `gpuwatch check` in scripts")
    if not sys.stderr.isatty():
        raise UsageError("the screen is drawn on standard error, which is not a terminal here; do not redirect it")
    from gpuwatch.tui.app import GpuwatchApp  # noqa: PLC0415  # --help does not need the screen
    from gpuwatch.tui.leave import left  # noqa: PLC0415  # as above

    reports.spool()
    screen = Screen(_maker(args, config, reports))
    app = GpuwatchApp(screen, actions(screen, args, reports))

    def fail(message: str) -> None:
        with suppress(RuntimeError):  # the screen was left meanwhile
            app.call_from_thread(app.exit, None, WRONG, f"gpuwatch tui: {message}")

    screen.on_failure = fail
    try:
        app.run()
    finally:
        left()
        screen.stop()
        failed = reports.finish()
    return app.return_code or (WRONG if failed else FINE)


def _check_files(args: argparse.Namespace) -> None:
    """Refuse what cannot work before the terminal is taken over."""
    from gpuwatch.recording import Reader, RecordingError  # noqa: PLC0415  # --help does not need it

    if args.record and Path(args.record).exists():
        raise UsageError(f"{args.record}: exists already; choose another name")
    if args.replay:
        try:
            Reader(args.replay).close()
        except RecordingError as error:
            raise UsageError(str(error)) from None


def _maker(args: argparse.Namespace, config: Config, reports: Reports) -> Callable[[], Driver]:
    if args.demo:
        return demo
    prometheus = fleet.config_of(args, config)
    if prometheus is not None:
        return lambda: fleet.fleet(prometheus, args)
    if args.replay:
        return lambda: player(args.replay, config)
    if args.attach:
        return lambda: attaching.attached(args, config)
    keep = watching.keep_of(args) if args.record else reports.keep
    return lambda: live(config, reports.recording, keep)


def live(config: Config, record: str | None, keep: Keep | None = None) -> Live:
    """Return a run on this machine."""
    from gpuwatch.clock import SystemClock  # noqa: PLC0415  # numpy and the parsers load after the first frame
    from gpuwatch.pipeline.live import Live  # noqa: PLC0415

    driver = Live(config, SystemClock())
    if record:
        driver.record(record, keep)
    return driver


def player(path: str | Path, config: Config, *, mode: Mode = "replay") -> Replay:
    """Return the replay of a recording; the demo starts again at its end."""
    from gpuwatch.clock import SystemClock  # noqa: PLC0415  # numpy and the parsers load after the first frame
    from gpuwatch.pipeline.replay import Replay  # noqa: PLC0415
    from gpuwatch.pipeline.rules import load_rules  # noqa: PLC0415

    return Replay(path, load_rules(config), SystemClock(), mode=mode, endless=mode == "demo")


def demo() -> Replay:
    """Return the endless replay of the recorded run that ships with the package."""
    from gpuwatch.config import Config  # noqa: PLC0415  # with the others

    return player(DEMO, Config(), mode="demo")


def _show_demo(screen: Screen, reports: Reports) -> None:
    """Go on with the demo; a report that is asked for from now on is of it."""
    screen.switch(demo)
    reports.shown = str(DEMO)


def actions(screen: Screen, args: argparse.Namespace, reports: Reports) -> Actions:
    """Return what the screen may do in this mode."""
    from gpuwatch.tui.feed import Actions  # noqa: PLC0415  # --help does not need the screen

    def pause(halted: bool) -> None:
        screen.player.pause(halted)

    def speed(times: float) -> None:
        screen.player.set_speed(times)

    def focus(machine: tuple[str, str] | None) -> None:
        screen.fleet.focus(machine)

    def seek(position: float) -> None:
        screen.player.seek(position)

    def record(path: str | None) -> str:
        reports.recording = screen.live.record(path)
        return reports.recording

    def stop_recording() -> None:
        screen.live.stop_recording()

    if args.demo or args.replay:
        return Actions(
            set_rule_detail=screen.show_rule_readings, pause=pause, speed=speed, seek=seek, write_report=reports.write
        )
    if args.attach:
        return Actions(set_rule_detail=screen.show_rule_readings)
    if args.prometheus:
        return Actions(focus=focus)
    return Actions(
        start_recording=record,
        stop_recording=stop_recording,
        set_rule_detail=screen.show_rule_readings,
        demo=lambda: _show_demo(screen, reports),
        write_report=reports.write,
    )
