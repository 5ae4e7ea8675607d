"""Arguments and wiring that ``check`` and ``tui`` share."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.cli import UsageError
from gpuwatch.config import Config, ConfigError, LogConfig, engine_from_url, load

if TYPE_CHECKING:
    from gpuwatch.recording import Keep

CONFIG_ENV = "GPUWATCH_CONFIG"
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([KMGT])B?", re.IGNORECASE)
_SIZES = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_LEAST_SIZE, _MOST_SIZE = 10**6, 10**15
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([smhd])", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LEAST_SECONDS, _MOST_SECONDS = 60.0, 3650 * 86_400.0
_HEAD = 4096


def add_arguments(parser: argparse.ArgumentParser, *, record: bool = True) -> None:
    """Declare what can be watched and recorded; without `record` the command names the recording in its own way."""
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
    if record:
        parser.add_argument("--record", metavar="FILE", help="record everything to FILE")
    parser.add_argument(
        "--record-size",
        metavar="SIZE",
        type=size,
        default=0,
        help="keep at most so much of the recording, such as 500M or 2G: the oldest goes (default: keep everything)",
    )
    parser.add_argument(
        "--record-age",
        metavar="TIME",
        type=duration,
        default=0.0,
        help="keep so much time of the recording, such as 90m, 12h or 7d (default: keep everything)",
    )
    parser.add_argument("--interval", metavar="SECONDS", type=float, help="time between two polls (default: 1)")


def config_in_use(args: argparse.Namespace) -> Config:
    """Return the configuration file of ``--config`` or of the environment, without one the default.

    Raises:
        ConfigError: the file is wrong.
    """
    path = args.config or os.environ.get(CONFIG_ENV)
    return load(path) if path else Config()


def size(text: str) -> int:
    """Return a number of bytes written as ``500M`` or ``2G`` (powers of 1000).

    Raises:
        ArgumentTypeError: it is none, or less than a megabyte.
    """
    match = _SIZE.fullmatch(text.strip())
    count = int(float(match[1]) * _SIZES[match[2].upper()]) if match else 0
    if not _LEAST_SIZE <= count <= _MOST_SIZE:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: 1M to 1000T, such as 500M or 2G")
    return count


def duration(text: str) -> float:
    """Return seconds written as ``90m``, ``12h`` or ``7d``.

    Raises:
        ArgumentTypeError: it is none, or less than a minute.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2].lower()] if match else 0.0
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: 1m to 3650d, such as 90m, 12h or 7d")
    return seconds


def keep_of(args: argparse.Namespace) -> Keep:
    """Return how much of a recording is kept.

    Raises:
        UsageError: it is said of a recording that is not asked for.
    """
    from gpuwatch.recording import Keep  # noqa: PLC0415  # --help does not need it

    keep = Keep(args.record_size, args.record_age)
    if keep != Keep() and not getattr(args, "record", None):
        raise UsageError("--record-size and --record-age need a recording: name its file with --record FILE")
    return keep


def config_of(args: argparse.Namespace) -> Config:
    """Return the configuration file with the command line laid over it.

    Raises:
        ConfigError: the file or an argument is wrong, or a rule file that it names is not there.
        UsageError: a ``--log`` names nothing that could be a log.
    """
    config = config_in_use(args)
    _check_rules(config, args.config or os.environ.get(CONFIG_ENV) or "")
    known = {engine.url for engine in config.engines}
    engines = [engine for engine in map(engine_from_url, args.engine) if engine.url not in known]
    if args.engine or config.engines:
        config = replace(config, engines=(*config.engines, *engines), find_engines=False)
    if args.interval is not None:
        config = with_interval(config, args.interval)
    logs = tuple(LogConfig(_log_of(source)) for source in args.log)
    return replace(config, logs=(*config.logs, *logs))


def _check_rules(config: Config, file: str) -> None:
    """Refuse to watch without rules that `file` asks for; what is wrong within a rule file is told, others run."""
    if not config.rules:
        return
    from gpuwatch.pipeline.rules import own_paths  # noqa: PLC0415  # --help does not need it

    for path in own_paths(config):
        if not path.exists():
            raise ConfigError(
                f"{file}: key 'rules': {path} does not exist; allowed: rule files, from the configuration's folder"
            )


def _log_of(spec: str) -> str:
    """Return a ``--log`` that could be followed; a file need not exist yet.

    Raises:
        UsageError: it names nothing that could be a log.
    """
    from gpuwatch.model import SourceError  # noqa: PLC0415  # --help does not need it
    from gpuwatch.sources.logs.commands import command_for  # noqa: PLC0415  # same

    allowed = "a file, -, journal:UNIT, docker:NAME or k8s:NAMESPACE/POD"
    if not spec.strip():
        raise UsageError(f"--log is empty; allowed: {allowed}")
    if Path(spec).is_dir():
        raise UsageError(f"--log {spec}: is a folder; allowed: {allowed}")
    if _is_binary(Path(spec)):
        raise UsageError(f"--log {spec}: is binary data, not a log; allowed: {allowed}; diagnose reads packed logs")
    if not Path(spec).exists():
        try:
            command_for(spec, 0)
        except SourceError as error:
            raise UsageError(f"--{error}") from None
    return spec


def _is_binary(path: Path) -> bool:
    """Whether a file holds something else than lines. Zeros at its start are those of a log that was cut while open."""
    from gpuwatch.sources.files.binary import binary_reason  # noqa: PLC0415  # --help does not need it

    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return bool(binary_reason(file.read(_HEAD).lstrip(b"\0")))
    except (OSError, ValueError):  # what cannot be opened is said when it is read
        return False


def with_interval(config: Config, seconds: float) -> Config:
    """Return `config` with another interval.

    Raises:
        ConfigError: the interval is out of range.
    """
    from gpuwatch.config import parse  # noqa: PLC0415  # rarely needed

    try:
        return replace(config, interval=parse({"interval": seconds}, "--interval").interval)
    except ConfigError as error:
        raise ConfigError(str(error)) from None
