"""The command line: one module per command, loaded only when its command runs.

A command module has ``NAME``, ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

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
CUT_SHORT = 141
"""As a shell says it of a program that SIGPIPE has ended."""

EXIT_CODES = """exit codes:
  0    fine
  1    findings at or above --fail-on
  2    wrong usage or unreadable input
  3    nothing to judge: no source answered
  130  interrupted
  141  the reader of a long output went away before its end"""


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
    """Errors in one line on stderr, without the usage text; options may stand between the files of a list."""

    _within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, in any order where the command takes a list and no commands of its own."""
        shapes = {action.nargs for action in self._get_positional_actions()}
        if self._within or not shapes & {"*", "+"} or shapes & {argparse.PARSER, argparse.REMAINDER}:
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False

    def error(self, message: str) -> None:  # type: ignore[override]  # never returns, as the base class says
        self.exit(WRONG, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser with the commands `names`; only their modules are loaded."""
    parser = _Parser(
        prog="gpuwatch",
        description="GPU telemetry and diagnostics for vLLM and SGLang: what happened, why, and what to change.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpuwatch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=parser.prog)
    for name in names:
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
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED


class _Clean(logging.Formatter):
    """Lets nothing through that a terminal or a journal could act on: a record may carry what a server said."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text, line by line without control characters."""
        from gpuwatch.engines.log_text import clean  # noqa: PLC0415  # --help does not need it

        return "\n".join(map(clean, super().format(record).split("\n")))


def _run(argv: Sequence[str] | None) -> int:
    _prepare_output()
    words = sys.argv[1:] if argv is None else argv
    args = build_parser(words[:1] if words and words[0] in COMMANDS else COMMANDS).parse_args(words)
    level = logging.INFO if args.verbose else logging.ERROR
    stderr = logging.StreamHandler(sys.stderr)
    stderr.setFormatter(_Clean("gpuwatch: %(message)s"))
    logging.basicConfig(level=level, handlers=[stderr])
    from gpuwatch.config import ConfigError  # noqa: PLC0415  # --help does not need it

    try:
        with contextlib.redirect_stdout(_Output(sys.stdout)):
            code = int(args.run(args))
            sys.stdout.flush()
    except (UsageError, ConfigError) as error:
        print(f"gpuwatch {args.command}: {error}", file=sys.stderr)
        return WRONG
    except BrokenPipeError:
        _give_up_output(sys.stdout)
        return CUT_SHORT
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        _give_up_output(sys.stdout)
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


class _Output:
    """Standard output that may lose its reader: what is printed then goes nowhere, and the command's exit code stands.

    What is written in pieces (`writelines`) may be long: it ends with the error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write; return how much was taken."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            _give_up_output(self._stream)
            return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            _give_up_output(self._stream)


def _give_up_output(stream: TextIO) -> None:
    """Let what is still buffered for stdout go nowhere, so that the interpreter does not fail on it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
