"""The command line: one module per command, loaded only when its command runs.

A command module has ``NAME``, ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import logging
import os
import sys
from typing import TYPE_CHECKING, Protocol, cast

from gpuwatch import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = (
    "tui", "serve", "check", "diagnose", "doctor", "rules", "plan",
    "probe", "record", "report", "compare", "bundle", "export", "dashboards",
)  # fmt: skip

FINE = 0
FOUND = 1
WRONG = 2
NOTHING = 3
INTERRUPTED = 130

EXIT_CODES = """exit codes:
  0    fine
  1    findings at or above --fail-on
  2    wrong usage or unreadable input
  3    nothing to judge: no source answered
  130  interrupted"""


class UsageError(Exception):
    """Wrong usage or unreadable input: the message is one line that says what, where and what is allowed."""


class Command(Protocol):
    """What a command module offers."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return the exit code."""
        ...


class _Parser(argparse.ArgumentParser):
    """Errors in one line on stderr, without the usage text."""

    def error(self, message: str) -> None:  # type: ignore[override]  # never returns, as the base class says
        self.exit(WRONG, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with every command."""
    parser = _Parser(
        prog="gpuwatch",
        description="GPU telemetry and diagnostics for vLLM and SGLang: what happened, why, and what to change.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpuwatch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        command = _load(name)
        sub = commands.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.HELP,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_common(sub)
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every command has."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (TOML)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")


def _load(name: str) -> Command:
    return cast("Command", importlib.import_module(f"gpuwatch.cli.{name}"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run gpuwatch and return the exit code."""
    _prepare_output()
    args = build_parser().parse_args(argv)
    level = logging.INFO if args.verbose else logging.ERROR
    logging.basicConfig(level=level, format="gpuwatch: %(message)s", stream=sys.stderr)
    from gpuwatch.config import ConfigError  # noqa: PLC0415  # --help does not need it

    try:
        code = int(args.run(args))
        sys.stdout.flush()
    except (UsageError, ConfigError) as error:
        print(f"gpuwatch {args.command}: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_output()
        return FINE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        _give_up_output()
        print(f"gpuwatch {args.command}: cannot write the output: {error.strerror}", file=sys.stderr)
        return WRONG
    return code


def _prepare_output() -> None:
    """Make stdout and stderr writable whatever they are: closed ones go nowhere, unknown characters become ``?``."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  # for the whole run
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _give_up_output() -> None:
    """Let what is still buffered for stdout go nowhere, so that the interpreter does not fail on it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
