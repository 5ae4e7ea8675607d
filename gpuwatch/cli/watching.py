"""Arguments and wiring that ``check`` and ``tui`` share."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.config import Config, LogConfig, engine_from_url, load

if TYPE_CHECKING:
    import argparse

CONFIG_ENV = "GPUWATCH_CONFIG"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what can be watched and recorded."""
    parser.add_argument(
        "--engine",
        metavar="URL",
        action="append",
        default=[],
        help="engine to watch; without it engines are discovered",
    )
    parser.add_argument(
        "--log",
        metavar="LOG",
        action="append",
        default=[],
        help="engine log: a file, -, journal:UNIT, docker:NAME or k8s:NAMESPACE/POD",
    )
    parser.add_argument("--record", metavar="FILE", help="record everything to FILE")
    parser.add_argument("--interval", metavar="SECONDS", type=float, help="time between two polls (default: 1)")


def config_in_use(args: argparse.Namespace) -> Config:
    """Return the configuration file of ``--config`` or of the environment, without one the default.

    Raises:
        ConfigError: the file is wrong.
    """
    path = args.config or os.environ.get(CONFIG_ENV)
    return load(path) if path else Config()


def config_of(args: argparse.Namespace) -> Config:
    """Return the configuration file with the command line laid over it.

    Raises:
        ConfigError: the file or an argument is wrong.
    """
    config = config_in_use(args)
    known = {engine.url for engine in config.engines}
    engines = [engine for engine in map(engine_from_url, args.engine) if engine.url not in known]
    if args.engine or config.engines:
        config = replace(config, engines=(*config.engines, *engines), find_engines=False)
    if args.interval is not None:
        config = with_interval(config, args.interval)
    logs = tuple(LogConfig(source) for source in args.log)
    return replace(config, logs=(*config.logs, *logs))


def with_interval(config: Config, seconds: float) -> Config:
    """Return `config` with another interval.

    Raises:
        ConfigError: the interval is out of range.
    """
    from gpuwatch.config import ConfigError, parse  # noqa: PLC0415  # rarely needed

    try:
        return replace(config, interval=parse({"interval": seconds}, "--interval").interval)
    except ConfigError as error:
        raise ConfigError(str(error)) from None
