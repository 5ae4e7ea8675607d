"""The run that other programs read: a live pipeline, its newest values for `/metrics`, its state over restarts."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from gpuwatch.config import ConfigError
from gpuwatch.exporter.exposition import Exposition
from gpuwatch.pipeline.live import Live
from gpuwatch.pipeline.rules import rules_in_use
from gpuwatch.pipeline.state import STEP_MS

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from gpuwatch.alerts.state import Saved
    from gpuwatch.clock import Clock
    from gpuwatch.config import Config
    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.exporter.collector import GpuwatchCollector
    from gpuwatch.pipeline.core import TickResult
    from gpuwatch.pipeline.state import StateFile
    from gpuwatch.snapshot import Snapshot

log = logging.getLogger(__name__)

STUCK_SECONDS = 15.0
STUCK_INTERVALS = 5.0
RELOAD_SECONDS = 10.0
RELOADED = frozenset({"engines", "logs", "rules", "find_engines", "attach", "prometheus", "alertmanagers", "serve"})
"""Settings that a reload changes; the others take effect at the next start."""


class Daemon:
    """Watches this machine until `stop`.

    `listeners` are called after each tick with its findings and its time in milliseconds, on the pipeline's thread:
    they must return at once, and one that fails does not stop the others.

    Args:
        config: What to watch.
        clock: Time.
        state: Where the start of alerts outlives a restart; None: it does not.
    """

    def __init__(self, config: Config, clock: Clock, state: StateFile | None = None) -> None:
        self.config = config
        self.live = Live(config, clock)
        self.live.on_tick = self._ticked
        self.exposition = Exposition()
        self.listeners: list[Callable[[tuple[Finding, ...], int], None]] = []
        self.ticked = threading.Event()
        """Set from the first tick on."""
        self._clock = clock
        self._started = clock.monotonic()
        self._state = state
        self._snapshots: dict[bool, Snapshot] = {}
        self._said = ""
        self._ahead = 0
        if state is not None:
            self.live.pipeline.restore(state.load(clock.now()))

    def restore(self, saved: tuple[Saved, ...]) -> None:
        """Give alerts the start that another program remembers; before `start` only."""
        self.live.pipeline.restore(saved)

    def start(self) -> None:
        """Start watching."""
        if self._state is not None:
            self._state.start()
        self.live.start()

    def stop(self) -> None:
        """Stop watching, and save the state."""
        self.live.stop()
        if self._state is not None:
            self._state.stop(0.5)

    def collector(self) -> GpuwatchCollector:
        """Return our series as a collector for another registry of prometheus_client."""
        from gpuwatch.exporter.collector import GpuwatchCollector  # noqa: PLC0415  # the daemon itself does without

        return GpuwatchCollector(self.exposition.columns)

    # What the exporter asks

    def trouble(self) -> str:
        """Return why the pipeline counts as stuck, or the empty string. A GPU or engine in trouble is none."""
        limit = max(STUCK_SECONDS, STUCK_INTERVALS * self.config.interval)
        last = self.live.last_at
        silent = self._clock.monotonic() - (self._started if last is None else last)
        if silent > limit:
            return f"the pipeline is stuck: {'no' if last is None else 'the last'} tick {silent:.0f} s ago"
        return ""

    def ready(self) -> bool:
        """Return whether there was a tick."""
        return self.live.last is not None

    def ask_snapshot(self, *, time: int | None, rules: bool, since: int | None) -> Future[Snapshot]:
        """Ask for the newest snapshot, or that of a past `time`; log lines before `since` are left out."""

        def ask() -> Snapshot:
            snapshot = self._newest(rules=rules) if time is None else self._past(time)
            if since is None:
                return snapshot
            return replace(snapshot, lines=tuple(line for line in snapshot.lines if line.time >= since))

        return self.live.questions.put(ask)

    def _past(self, time: int) -> Snapshot:
        last = self.live.last
        if last is not None and time > last.time + 1000 * self.config.interval:
            raise LookupError(f"{time} has not come yet; the newest snapshot is of {last.time}")
        return self.live.pipeline.at(time)

    def _newest(self, *, rules: bool) -> Snapshot:
        """Return the snapshot of the newest tick; made once per tick however many ask."""
        last = self.live.last
        if last is None:
            raise LookupError("nothing was read yet")
        known = self._snapshots.get(rules)
        if known is None or known.time != last.time:
            known = self._snapshots[rules] = self.live.snapshot(last, rules=rules)
        return known

    def _ticked(self, result: TickResult) -> None:
        pipeline = self.live.pipeline
        self.exposition.update(pipeline.store.columns(result.time))
        self.ticked.set()
        self._watch_clock()
        if self._state is not None:
            self._state.update(pipeline.saved(result.time), result.time, self._clock.ahead())
        if self.live.recording_error != self._said:
            self._said = self.live.recording_error
            log.error("%s", self._said)
        for listener in self.listeners:
            try:
                listener(result.findings, result.time)
            except Exception:
                log.exception("a listener failed")

    def _watch_clock(self) -> None:
        """Say once when the machine's clock was set back, and each time that it is set back further."""
        ahead = self._clock.ahead()
        if ahead > self._ahead + STEP_MS:
            log.error(
                "the machine's clock was set back: gpuwatch's own time goes on without a step, %d s ahead of it, until "
                "the next start; Alertmanager and the state file get the machine's time",
                round(ahead / 1000),
            )
        self._ahead = ahead

    # Configuration

    def reload(self, config: Config) -> tuple[str, ...]:
        """Go on with another configuration; return the settings in it that need a new start.

        Raises:
            ConfigError: It cannot be used, or one of its rule files has a problem; everything stays as it was.
        """
        rules = rules_in_use(config)
        if rules.problems:
            raise ConfigError(str(rules.problems[0]))
        taken = self.live.reconfigure(config, rules)
        try:
            taken.result(RELOAD_SECONDS)
        except FutureTimeoutError:
            if taken.cancel():
                raise ConfigError(f"the pipeline did not take it within {RELOAD_SECONDS:g} s") from None
            _wait_for(taken)  # it is being taken, and cannot be kept from it any more
        old = self.config
        kept = {name: getattr(old, name) for name in _names(config) if name not in RELOADED}
        changed = tuple(name for name, value in kept.items() if value != getattr(config, name))
        self.config = replace(config, **kept)
        return changed


def _wait_for(taken: Future[None]) -> None:
    try:
        taken.result(RELOAD_SECONDS)
    except FutureTimeoutError:
        raise ConfigError(f"the pipeline is at it for {RELOAD_SECONDS:g} s and not done") from None


def _names(config: Config) -> list[str]:
    return [item.name for item in fields(config)]
