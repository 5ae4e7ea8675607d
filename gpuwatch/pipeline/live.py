"""A run on this machine: sources are polled, and every interval one tick of the pipeline is made."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch import __version__
from gpuwatch.pipeline.collect import Collector
from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.pipeline.feed import Questions, Subscribers
from gpuwatch.pipeline.rules import load_rules
from gpuwatch.pipeline.runner import until_next
from gpuwatch.recording import Header, RecordingError, Writer
from gpuwatch.snapshot import Recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.clock import Clock
    from gpuwatch.config import Config
    from gpuwatch.model import Batch
    from gpuwatch.pipeline.core import TickResult
    from gpuwatch.recording import Keep
    from gpuwatch.snapshot import Snapshot

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0
TICK_PHASE = 0.25
"""When the tick comes, as a share of an interval: sources are polled at its beginning, most answer by then."""


class Live:
    """Runs the pipeline in a thread of its own. `history` collects the results of all ticks for `check`."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.subscribers = Subscribers()
        self.questions = Questions()
        self.on_tick: Callable[[TickResult], None] | None = None
        self.also: Callable[[int], Batch | None] | None = None
        """Returns what somebody else has to say at a tick, given its time; on the pipeline's thread."""
        self.last: TickResult | None = None
        """The result of the newest tick."""
        self.last_at: float | None = None
        """When the newest tick ended, on the monotonic clock."""
        self._collector = Collector(config, clock)
        started = clock.now()
        settings = Settings(config.host_name, "live", config.interval, int(config.history_minutes * 60_000))
        self.pipeline = Pipeline(settings, load_rules(config), started)
        self._writer: Writer | None = None
        self._rule_readings = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pipeline", daemon=True)

    def start(self) -> None:
        """Start the sources and the pipeline thread."""
        self._collector.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop; waits at most two seconds, never for a source that hangs."""
        self._stop.set()
        self.questions.put(lambda: None)  # wakes the thread
        self._collector.stop()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        if self._writer is not None:
            self._writer.close()

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call `callback` with every snapshot; the returned function ends that."""
        return self.subscribers.add(callback)

    def reconfigure(self, config: Config, rules: RuleSet) -> Future[None]:
        """Go on with the engines, logs and rules of `config`; what is named as before is not disturbed.

        The future fails with `ConfigError` where an engine's settings cannot be used; nothing has changed then.
        """

        def change() -> None:
            now = self.clock.now()
            for target in self._collector.reconfigure(config):
                self.pipeline.forget(target, now)
                if self._writer is not None:
                    self._writer.forget(target)
            if rules.groups != self.pipeline.rules.groups:
                self.pipeline.replace_rules(rules, now)
            self.config = replace(
                self.config, engines=config.engines, logs=config.logs, find_engines=config.find_engines,
                rules=config.rules,
            )  # fmt: skip

        return self.questions.put(change)

    @property
    def targets(self) -> tuple[str, ...]:
        """Everything that is polled, also what has not answered yet."""
        return self._collector.targets

    @property
    def alive(self) -> bool:
        """Whether the pipeline's thread runs."""
        return self._thread.is_alive()

    def at(self, time: int) -> Future[Snapshot]:
        """Ask for the snapshot of a past moment (milliseconds)."""
        return self.questions.put(lambda: self.pipeline.at(time))

    def show_rule_readings(self, wanted: bool) -> None:
        """Say whether snapshots carry the present value of each rule's comparisons."""
        self._rule_readings = wanted

    def record(self, path: str | None = None, keep: Keep | None = None, *, append: bool = False) -> str:
        """Start a recording and return its path.

        Args:
            path: The file; without one a name is made of the time.
            keep: How much of it is kept.
            append: Go on with the recording that is there already.

        Raises:
            RecordingError: the file cannot be created, or something is recorded already.
        """
        if self._writer is not None and not self._writer.error:
            raise RecordingError(f"{self._writer.path}: is being recorded; stop that first")
        now = self.clock.now()
        if path is None:
            path = f"gpuwatch-{now // 1000}.rec"
        settings = self.pipeline.settings
        header = Header(
            settings.host, now, settings.interval, f"gpuwatch {__version__}", history_ms=settings.history_ms
        )
        self._writer = Writer(path, header, keep, append=append)
        return path

    @property
    def recording(self) -> Writer | None:
        """What writes the recording in progress, if there is one."""
        return self._writer

    @property
    def recording_error(self) -> str:
        """Why the recording stopped by itself, or the empty string."""
        return self._writer.error if self._writer is not None else ""

    def stop_recording(self) -> None:
        """End the recording, if there is one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self.questions.put(writer.close)

    def _run(self) -> None:
        next_tick = self.clock.monotonic()
        while not self._stop.is_set():
            wait = next_tick - self.clock.monotonic()
            if wait > 0:
                self.questions.answer_for(wait)
                continue
            self._tick()
            now = self.clock.monotonic()
            next_tick = now + until_next(now, self.config.interval, TICK_PHASE)

    def _tick(self) -> None:
        try:
            time, batches = self.clock.now(), self._collector.take()
            told = self.also(time) if self.also is not None else None
            result = self.pipeline.tick(time, batches if told is None else [*batches, told], self._writer)
            self.last, self.last_at = result, self.clock.monotonic()
            if self.on_tick is not None:
                self.on_tick(result)
            if self.subscribers:
                self.subscribers.publish(self.snapshot(result))
        except Exception:
            log.exception("a tick failed")

    def snapshot(self, result: TickResult, *, rules: bool | None = None) -> Snapshot:
        """Return the snapshot after the tick `result`; on the pipeline thread only.

        `rules` says whether it carries the readings of rules; without it `show_rule_readings` does.
        """
        writer = self._writer
        recording = None if writer is None else Recording(writer.path, writer.bytes, writer.error)
        return self.pipeline.snapshot(
            result,
            rules=self._rule_readings if rules is None else rules,
            recording=recording,
            looked_for=self._collector.looked_for,
        )
