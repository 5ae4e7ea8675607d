"""Which sources there are: those that were named, and those that discovery finds while we run."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.config import ConfigError, EngineConfig
from gpuwatch.pipeline.launch import launch_facts
from gpuwatch.pipeline.model_facts import model_facts, model_folders
from gpuwatch.pipeline.runner import SourceRunner
from gpuwatch.sources.discovery.find import Discovered, Discovery, engine_process
from gpuwatch.sources.engine.source import EngineSource, EngineTarget
from gpuwatch.sources.host import HostSource
from gpuwatch.sources.kernel.source import KernelSource
from gpuwatch.sources.logs.source import LogSource
from gpuwatch.sources.nvml.source import NvmlSource, Timing
from gpuwatch.sources.own import OwnSource

if TYPE_CHECKING:
    from gpuwatch.clock import Clock
    from gpuwatch.config import Config
    from gpuwatch.model import Batch, Fact
    from gpuwatch.sources import Source
    from gpuwatch.sources.discovery.find import FoundEngine
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
        self._models: dict[tuple[str, int | None], tuple[Fact, ...]] = {}
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._discover, name="discovery", daemon=True)
        self._nvml = NvmlSource(self._host, clock, self._processes, timing=Timing(interval=config.interval))
        self._engines = self._engine_sources(config)
        self._servers = [source.engine.server for source in self._engines]
        self._named_logs: dict[str, tuple[str, str]] = {}

    @property
    def looked_for(self) -> tuple[tuple[str, str], ...]:
        """What discovery looked for and what came of it."""
        if self._config.discovery:
            return self._found.looked_for
        return (("engines", "not looked for: discovery = false in the configuration; give one with --engine"),)

    @property
    def targets(self) -> tuple[str, ...]:
        """Everything that is polled."""
        return tuple(self._runners)

    def start(self) -> None:
        """Start the named sources, and discovery."""
        interval = self._config.interval
        if self._config.gpus:
            self._add(self._nvml, interval)
        if self._config.kernel_log != "off":
            self._add(self._kernel(), interval)
        self._add(HostSource(self._host, self._clock, self._followed), interval)
        self._add(OwnSource(self._host, self._clock, self._workers), SLOW_SECONDS)
        for source in self._engines:
            self._add(source, interval)
        for spec, server in self._logs_of(self._config):
            self._named_logs[self._add_log(spec, server)] = (spec, server)
        if self._config.discovery:
            self._thread.start()

    def take(self) -> list[Batch]:
        """Return what the sources said since the last call, and start sources for engines found meanwhile."""
        batches = [batch for runner in list(self._runners.values()) for batch in runner.take()]
        if self._news.is_set():
            self._news.clear()
            batches += self._take_in(self._found)
        return batches

    def reconfigure(self, config: Config) -> list[str]:
        """Follow the engines and logs that `config` names; return the targets that are not polled any more.

        Called by the pipeline thread. What is named as before goes on undisturbed. Everything else in `config` is not
        looked at.

        Raises:
            ConfigError: An engine's settings cannot be used; nothing has changed then.
        """
        sources = {source.engine.server: source for source in self._engine_sources(config)}
        wanted = dict(zip(sources, config.engines, strict=True))
        before = {
            source.engine.server: engine for source, engine in zip(self._engines, self._config.engines, strict=True)
        }
        gone = [f"engine:{server}" for server, engine in before.items() if wanted.get(server) != engine]
        logs = list(dict.fromkeys(self._logs_of(config)))
        gone += [target for target, log in self._named_logs.items() if log not in logs]
        for target in gone:
            self._named_logs.pop(target, None)
            runner = self._runners.pop(target, None)
            if runner is not None:
                runner.stop()
        found = [server for server in self._servers if server not in before and server not in wanted]
        self._config = replace(self._config, engines=config.engines, logs=config.logs, find_engines=config.find_engines)
        self._engines = list(sources.values())
        self._servers[:] = [*sources, *found]
        for source in self._engines:
            self._add(source, self._config.interval)
        for spec, server in logs:
            self._named_logs[self._add_log(spec, server)] = (spec, server)
        self._news.set()
        return [target for target in gone if target not in self._runners]

    def _engine_sources(self, config: Config) -> list[EngineSource]:
        sources = [EngineSource(engine_target(engine), self._host, self._clock) for engine in config.engines]
        servers = [source.engine.server for source in sources]
        for server in servers:
            if servers.count(server) > 1:
                raise ConfigError(f"{server} is named more than once: one address is one engine")
        return sources

    @staticmethod
    def _logs_of(config: Config) -> list[tuple[str, str]]:
        """Return (what to follow, server) of every log that is named."""
        of_engines = [(engine.log, engine_target(engine).server) for engine in config.engines if engine.log]
        return [*of_engines, *((item.source, item.server) for item in config.logs)]

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

    def _add_log(self, spec: str, server: str) -> str:
        """Follow a log and return its target."""
        source = LogSource(
            spec, self._host, self._clock, server, since=self._started, servers=lambda: tuple(self._servers)
        )
        self._add(source, self._config.interval)
        return source.target

    def _kernel(self) -> KernelSource:
        """Return the source of the kernel's log, which tells the GPUs their Xids."""
        way = self._config.kernel_log
        return KernelSource(
            self._host,
            self._clock,
            way=way,  # type: ignore[arg-type]  # checked when the configuration was read
            saw_xid=self._nvml.saw_xid,
            engines=self._processes,
        )

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
            model = self._models.get((engine.server, engine.pid), ())
            launch = (engine.pid, engine.flags, model)
            if followed and self._launched.get(engine.server) != launch:
                self._launched[engine.server] = launch
                batches.append(launch_facts(engine, self._clock.now(), model))
        return batches

    def _read_models(self, found: Discovered) -> None:
        """Read the model's configuration of engines that are new; on the thread of discovery, as a disk may hang."""
        now = self._clock.now()
        self._models = {
            (engine.server, engine.pid): self._models.get((engine.server, engine.pid))
            or model_facts(model_folders(_model(engine), engine.pid), engine.server, now, _model(engine))
            for engine in found.engines
            if engine.pid is not None
        }

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
                found = discovery.find()
                self._read_models(found)
                self._found = found
                self._news.set()
            except Exception:
                log.exception("discovery failed")
            self._clock.wait(self._stop, DISCOVERY_SECONDS)


def _model(engine: FoundEngine) -> str:
    return engine.flag("model") or engine.flag("model-path")
