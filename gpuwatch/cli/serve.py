"""``gpuwatch serve``: the daemon that Prometheus, Alertmanager and other screens read."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.cli import FINE, INTERRUPTED, UsageError, watching
from gpuwatch.cli.signals import Signals
from gpuwatch.footprint import release_code, stay_small

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from gpuwatch.config import Config, ServeConfig
    from gpuwatch.exporter.alertmanager import Notifier
    from gpuwatch.exporter.otlp import OtlpExport
    from gpuwatch.exporter.server import Server
    from gpuwatch.model import Batch
    from gpuwatch.pipeline.daemon import Daemon
    from gpuwatch.pipeline.state import StateFile

NAME = "serve"
HELP = "run as a daemon: metrics for Prometheus, findings for Alertmanager, a snapshot for other screens"

STOP_SECONDS = 1.8
"""How long an orderly end may take; after it the process ends whatever still hangs."""

FIXED = ("listen", "web_config", "state", "otlp", "otlp_interval")
"""Settings of `serve` that take effect at the next start only."""

SWITCH_SECONDS = 0.0005
"""A scrape that comes during a tick gets its turn after this time; Python's own 5 ms would be most of the answer."""

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    watching.add_arguments(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", help="where to listen (default: 127.0.0.1:19400)")
    parser.add_argument("--web-config", metavar="FILE", help="Prometheus web-configuration file: TLS, users")
    parser.add_argument("--state", metavar="FILE", help="what outlives a restart; off: nothing does")
    parser.add_argument(
        "--alertmanager", metavar="URL", action="append", default=[], help="send findings to this Alertmanager"
    )
    parser.add_argument("--otlp", metavar="URL", help="send the series to this OpenTelemetry collector, too")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    watching.keep_of(args)
    sys.setswitchinterval(SWITCH_SECONDS)
    config = config_of(args)
    # A web configuration may ask for TLS at any time.
    stay_small(*(() if config.serve.web_config else ("asyncio",)))
    service = Service(args, config)
    with Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        try:
            service.start()
            release_code()
            return _until_ended(service, signals)
        finally:
            _end_in_time()
            service.stop()


def config_of(args: argparse.Namespace) -> Config:
    """Return the configuration file with the command line laid over it.

    Raises:
        ConfigError: the file or an argument is wrong.
        UsageError: an argument is empty.
    """
    config = watching.config_of(args)
    given = {key: getattr(args, key) for key in ("listen", "web_config", "state", "otlp")}
    for key, value in given.items():
        if value == "":
            raise UsageError(f"--{key.replace('_', '-')} is empty")
    return replace(
        config, serve=replace(config.serve, **{key: value for key, value in given.items() if value is not None})
    )


class Service:
    """Everything that runs: the daemon, its server, and what sends its findings and series elsewhere."""

    def __init__(self, args: argparse.Namespace, config: Config) -> None:
        from gpuwatch.clock import SystemClock  # noqa: PLC0415  # --help does not need the pipeline
        from gpuwatch.config import ConfigError  # noqa: PLC0415
        from gpuwatch.exporter.app import Application  # noqa: PLC0415
        from gpuwatch.exporter.server import Server  # noqa: PLC0415
        from gpuwatch.pipeline.daemon import Daemon  # noqa: PLC0415
        from gpuwatch.recording import RecordingError  # noqa: PLC0415

        self._args = args
        self._clock = SystemClock()
        self._running = config.serve
        self._notifier: Notifier | None = None
        self._sends = False
        """Whether there was an Alertmanager at some time."""
        self._otlp: OtlpExport | None = None
        state = _state_of(config)
        self.daemon: Daemon = Daemon(config, self._clock, state)
        application = Application(self.daemon.exposition, self.daemon)
        serve = config.serve
        self.server: Server = Server(serve.listen, application, web_config=serve.web_config, names=serve.hosts)
        self.daemon.listeners.append(self._tell)
        self.daemon.live.also = self._deliveries
        self._ask_prometheus(config)
        try:
            if serve.otlp:
                self._otlp = _otlp(self.daemon, config)
            if args.record:
                self.daemon.live.record(args.record, watching.keep_of(args), append=True)
            self._notifier = self._new_notifier(config)
        except (ConfigError, RecordingError) as error:
            self.server.stop()
            raise UsageError(str(error)) from None

    def start(self) -> None:
        """Start watching and answering."""
        self.daemon.start()
        self.server.start()
        if self._otlp is not None:
            self._otlp.start()
        if not self._args.quiet:
            print(f"gpuwatch: serving on {self.server.url}", file=sys.stderr, flush=True)
        if self.server.open_to_anybody:
            log.error(
                "%s: everybody who reaches this address reads metrics, findings and log lines; "
                "--web-config asks for a password or a certificate",
                self.server.address,
            )

    def stop(self) -> None:
        """Stop everything; each part has its own deadline."""
        parts: list[Callable[[], object]] = [self.server.stop]
        if self._notifier is not None:
            parts.append(self._notifier.close)
        if self._otlp is not None:
            parts.append(self._otlp.stop)
        threads = [threading.Thread(target=part, daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        self.daemon.stop()
        for thread in threads:
            thread.join(STOP_SECONDS)

    def reload(self) -> None:
        """Read the configuration again; where it is wrong, say so in one line and go on with the one before."""
        from gpuwatch.config import ConfigError  # noqa: PLC0415  # loaded by then

        notifier, old, running = None, self.daemon.config, self._running
        try:
            config = config_of(self._args)
            prepared = self.server.prepare() if config.serve.web_config == running.web_config else None
            _check_next(config.serve, running)
            renewed = (config.alertmanagers, config.serve.runbook_url) != (old.alertmanagers, old.serve.runbook_url)
            notifier = self._new_notifier(config) if renewed else None
            later = self.daemon.reload(config)
        except ConfigError as error:
            if notifier is not None:
                notifier.close()
            log.error("%s; the configuration before it stays in force", error)  # noqa: TRY400  # one line, no traceback
            return
        self.server.use(prepared, config.serve.hosts)
        if renewed:
            before, self._notifier = self._notifier, notifier
            if before is not None:
                before.close()
        fixed = [name for name in FIXED if getattr(config.serve, name) != getattr(running, name)]
        waiting = [*later, *(f"serve.{name}" for name in fixed)]
        if waiting:
            log.error("%s: takes effect at the next start", ", ".join(waiting))
        elif not self._args.quiet:
            print("gpuwatch: the configuration was read again", file=sys.stderr, flush=True)

    def _ask_prometheus(self, config: Config) -> None:
        """Give alerts that the state file does not know the start that Prometheus remembers, where one is named."""
        if config.prometheus is None:
            return
        from gpuwatch.pipeline.fleet.restore import merged  # noqa: PLC0415  # only where it is used

        pipeline, now = self.daemon.live.pipeline, self._clock.now()
        self.daemon.restore(merged(pipeline.saved(now), config.prometheus, config.host_name, pipeline.rules, now))

    def _new_notifier(self, config: Config) -> Notifier | None:
        """Return what sends findings to the Alertmanagers of the command line and of the configuration."""
        targets = [*self._args.alertmanager, *config.alertmanagers]
        if not targets:
            return None
        from gpuwatch.exporter.alertmanager import Notifier  # noqa: PLC0415  # only where it is used

        return Notifier(targets, self._clock, runbook=config.serve.runbook_url)

    def _deliveries(self, time: int) -> Batch | None:
        """Return how sending to the Alertmanagers goes; nothing where there never was one."""
        from gpuwatch.model import Batch  # noqa: PLC0415  # loaded by then

        notifier = self._notifier
        if notifier is not None:
            self._sends = True
            return notifier.batch(self.daemon.config.host_name, time)
        return Batch("alertmanager", time) if self._sends else None

    def _tell(self, findings: tuple[object, ...], time: int) -> None:
        notifier = self._notifier
        if notifier is not None:
            notifier.notify(findings, time)  # type: ignore[arg-type]  # findings, as the daemon hands them on


def _check_next(serve: ServeConfig, running: ServeConfig) -> None:
    """Check the settings that only the next start will use: it must not be the first to find them wrong.

    Raises:
        ConfigError: One of them cannot be used.
    """
    from gpuwatch.config_endpoints import OTLP_LOGIN, endpoint_url  # noqa: PLC0415  # loaded by then
    from gpuwatch.exporter import listen  # noqa: PLC0415  # same
    from gpuwatch.exporter.prepared import check_web_config  # noqa: PLC0415  # same

    listen.parse(serve.listen)
    if serve.web_config and serve.web_config != running.web_config:
        check_web_config(serve.web_config)
    if serve.otlp:
        endpoint_url(serve.otlp, "otlp", OTLP_LOGIN)


def _state_of(config: Config) -> StateFile | None:
    from gpuwatch.exporter import listen  # noqa: PLC0415  # --help does not need the pipeline
    from gpuwatch.pipeline.state import OFF, StateFile, default_path  # noqa: PLC0415

    if config.serve.state == OFF:
        return None
    return StateFile(config.serve.state or default_path(listen.parse(config.serve.listen)[1]))


def _otlp(daemon: Daemon, config: Config) -> OtlpExport:
    from gpuwatch.exporter.otlp import OtlpExport  # noqa: PLC0415  # an extra, and heavy

    return OtlpExport(config.serve.otlp, daemon.exposition.columns, config.serve.otlp_interval)


def _until_ended(service: Service, signals: Signals) -> int:
    """Handle signals until one asks for the end; return the exit code."""
    while True:
        came = signals.wait()
        ending = next((number for number in came if number != signal.SIGHUP), None)
        if ending is not None:
            return INTERRUPTED if ending == signal.SIGINT else FINE
        if came:
            service.reload()


def _end_in_time() -> None:
    """End the process after `STOP_SECONDS`, whatever hangs then."""
    timer = threading.Timer(STOP_SECONDS, os._exit, (FINE,))
    timer.daemon = True
    timer.start()
