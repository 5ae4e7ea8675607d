"""Which sources there are: those that were named, and those that discovery finds while we run."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from gpuwatch.config import ConfigError, EngineConfig
from gpuwatch.pipeline.launch import launch_facts
from gpuwatch.pipeline.runner import SourceRunner
from gpuwatch.sources.discovery.find import Discovered, Discovery, engine_process
from gpuwatch.sources.engine.source import EngineSource, EngineTarget
from gpuwatch.sources.host import HostSource
from gpuwatch.sources.logs.source import LogSource
from gpuwatch.sources.nvml.source import NvmlSource, Timing
from gpuwatch.sources.own import OwnSource

if TYPE_CHECKING:
    from gpuwatch.clock import Clock
    from gpuwatch.config import Config
    from gpuwatch.model import Batch
    from gpuwatch.sources import Source
    from gpuwatch.sources.nvml.attribution import EngineProcess

DISCOVERY_SECONDS = 10.0
SLOW_SECONDS = 5.0
"""Interval of the figures of gpuwatch itself."""
PHASES = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1)
"""When in an interval the sources are polled, as shares of it, in turn: close together, and not all at once."""

log = logging.getLogger(__name__)


def engine_target(config: EngineConfig) -> EngineTarget:
    """Return where to scrape, with the bearer token read from the environment where that is asked for.

    Raises:
        ConfigError: the address is wrong, or the variable is not set.
    """
    token = None
    if config.token_env:
        token = os.environ.get(config.token_env)
        if not token:
            raise ConfigError(f"engine {config.url}: the variable {config.token_env} of token_env is not set")
    try:
        return EngineTarget(
            config.url,
            kind=config.kind or None,  # type: ignore[arg-type]  # checked when the configuration was read
            path=config.path,
            token=token,
            token_file=config.token_file or None,
            ca_file=config.ca_file or None,
            verify=config.verify,
            timeout=config.timeout,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


class Collector:
    """All sources of a run, each polled by its own thread. `take` is called by the pipeline thread only."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._host = config.host_name
        self._started = clock.now()
        self._runners: dict[str, SourceRunner] = {}
        self._found = Discovered((), ())
        self._launched: dict[str, object] = {}
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._discover, name="discovery", daemon=True)
        self._nvml = NvmlSource(self._host, clock, self._processes, timing=Timing(interval=config.interval))
        self._engines = [EngineSource(engine_target(engine), self._host, clock) for engine in config.engines]
        self._servers = [source.engine.server for source in self._engines]
        for server in self._servers:
            if self._servers.count(server) > 1:
                raise ConfigError(f"{server} is named more than once: one address is one engine")

    @property
    def looked_for(self) -> tuple[tuple[str, str], ...]:
        """What discovery looked for and what came of it."""
        return self._found.looked_for

    def start(self) -> None:
        """Start the named sources, and discovery."""
        interval = self._config.interval
        if self._config.gpus:
            self._add(self._nvml, interval)
        self._add(HostSource(self._host, self._clock, self._followed), interval)
        self._add(OwnSource(self._host, self._clock, self._workers), SLOW_SECONDS)
        for source, engine in zip(self._engines, self._config.engines, strict=True):
            self._add(source, interval)
            if engine.log:
                self._add_log(engine.log, source.engine.server)
        for item in self._config.logs:
            self._add_log(item.source, item.server)
        if self._config.discovery:
            self._thread.start()

    def take(self) -> list[Batch]:
        """Return what the sources said since the last call, and start sources for engines found meanwhile."""
        batches = [batch for runner in list(self._runners.values()) for batch in runner.take()]
        if self._news.is_set():
            self._news.clear()
            batches += self._take_in(self._found)
        return batches

    def stop(self) -> None:
        """Stop everything; never waits for a source that hangs."""
        self._stop.set()
        for runner in list(self._runners.values()):
            runner.stop()

    def _add(self, source: Source, interval: float) -> None:
        if source.target not in self._runners:
            runner = self._runners[source.target] = SourceRunner(
                source, interval, self._clock, PHASES[len(self._runners) % len(PHASES)]
            )
            runner.start()

    def _add_log(self, spec: str, server: str) -> None:
        source = LogSource(
            spec, self._host, self._clock, server, since=self._started, servers=lambda: tuple(self._servers)
        )
        self._add(source, self._config.interval)

    def _take_in(self, found: Discovered) -> list[Batch]:
        """Follow the engines that are new, and return the facts of their launch."""
        batches = []
        for engine in found.engines:
            if self._config.find_engines and engine.server not in self._servers:
                self._servers.append(engine.server)
                self._add(EngineSource(EngineTarget(engine.url), self._host, self._clock), self._config.interval)
            followed = engine.server in self._servers
            named = any(item.server in ("", engine.server) for item in self._config.logs)
            if followed and engine.log and not named:
                self._add_log(engine.log, engine.server)
            if followed and self._launched.get(engine.server) != (engine.pid, engine.flags):
                self._launched[engine.server] = (engine.pid, engine.flags)
                batches.append(launch_facts(engine, self._clock.now()))
        return batches

    def _processes(self) -> list[EngineProcess]:
        processes = map(engine_process, self._found.engines)
        return [process for process in processes if process is not None]

    def _followed(self) -> list[EngineProcess]:
        return [process for process in self._processes() if process.server in self._servers]

    def _workers(self) -> list[int]:
        return [pid for pid in [self._nvml.worker_pid] if pid is not None]

    def _discover(self) -> None:
        discovery = Discovery(self._clock, self._config.ports if self._config.find_engines else ())
        while not self._stop.is_set():
            try:
                self._found = discovery.find()
                self._news.set()
            except Exception:
                log.exception("discovery failed")
            self._clock.wait(self._stop, DISCOVERY_SECONDS)
