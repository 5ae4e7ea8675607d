"""``gpuwatch diagnose``: the cause and the change to make, from whatever files of an incident there are."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from gpuwatch.cli import NOTHING, WRONG, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.diagnosis.causes.incident import Input
    from gpuwatch.pipeline.postmortem import PostMortem

NAME = "diagnose"
HELP = "name the cause and the change to make from logs, dmesg, nvidia-smi, saved metrics pages, recordings"

_BAR_BYTES = 32 << 20
_BAR_WIDTH = 24
_BAR_SECONDS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="engine logs, dmesg, nvidia-smi output, saved /metrics pages, kubectl output, config.json, .env, "
        "recordings: any mix, gz, bz2, xz or zst too; - is standard input",
    )
    parser.add_argument("--flags", metavar="COMMAND", default="", help='the launch command, such as "vllm serve …"')
    parser.add_argument("--markdown", action="store_true", help="print Markdown for an issue, with secrets cut out")
    parser.add_argument(
        "--fail-on",
        choices=("info", "warning", "critical", "never"),
        default="never",
        help="exit with 1 at findings of this severity or above (default: never)",
    )


def run(args: argparse.Namespace) -> int:
    """Read, judge, print, and return the exit code."""
    if not args.files and not args.flags:
        raise UsageError("nothing to read; name files, - for standard input, or a launch command with --flags")
    try:
        shlex.split(args.flags.replace("\\\n", " "))
    except ValueError as error:
        raise UsageError(f"--flags cannot be split into words: {error}") from None
    if args.json and args.markdown:
        raise UsageError("--json and --markdown exclude each other")
    from gpuwatch.pipeline.postmortem import investigate  # noqa: PLC0415  # --help does not need it

    bar = Progress(args.files) if sys.stderr.isatty() and not args.quiet else None
    step = None if bar is None else bar.step
    try:
        result = investigate(args.files, args.flags, time.time_ns() // 1_000_000, _rules(args), step)
    finally:
        if bar is not None:
            bar.clear()
    return _report(args, result)


def _rules(args: argparse.Namespace) -> Callable[[], RuleSet]:
    def loaded() -> RuleSet:
        from gpuwatch.cli.watching import config_in_use  # noqa: PLC0415  # a recording needs rules, other files do not
        from gpuwatch.pipeline.rules import load_rules  # noqa: PLC0415  # as above

        return load_rules(config_in_use(args))

    return loaded


def _report(args: argparse.Namespace, result: PostMortem) -> int:
    from gpuwatch.cli import output  # noqa: PLC0415  # --help does not need it
    from gpuwatch.engines.log_text import clean  # noqa: PLC0415  # as above

    for path, why in result.refused:
        print(f"gpuwatch diagnose: {clean(path)}: {why}", file=sys.stderr)
    if result.refused and not result.inputs:
        return WRONG
    findings = list(result.findings)
    if args.json:
        inputs = [*map(_input, result.inputs), *(_refused(path, why) for path, why in result.refused)]
        output.print_json(output.report_json(inputs, findings, result.not_enough))
    elif args.markdown:
        from gpuwatch.cli.markdown import report  # noqa: PLC0415  # other forms do not need it

        print(report(result))
    elif not args.quiet:
        for given in result.inputs:
            print(clean(input_line(given)))
        print()
        # An empty answer must not read as a sound engine, nor one that holds remarks only: what could not be judged is
        # part of it.
        told = any(finding.severity != "info" for finding in findings)
        output.print_findings(findings, result.not_enough, args.verbose or not told)
    for path in result.empty:
        print(f"gpuwatch diagnose: {clean(path)}: holds no complete tick", file=sys.stderr)
    judged = any(given.kind != "unknown" and given.path not in result.empty for given in result.inputs)
    if not judged:
        return NOTHING
    return output.exit_code(findings, args.fail_on)


def input_line(given: Input) -> str:
    """Return one line that says what an input is taken for."""
    version = f" {given.engine_version}" if given.engine_version else ""
    engine = f", {given.engine}{version}" if given.engine else ""
    lines = f", {given.lines:,} lines" if given.lines else ""
    note = f" ({given.note})" if given.note else ""
    return f"{given.path}: {given.kind.replace('_', ' ')}{engine}{lines}{note}"


def _input(given: Input) -> dict[str, Any]:
    return {
        "path": given.path,
        "kind": given.kind,
        "engine": given.engine,
        "engine_version": given.engine_version,
        "lines": given.lines,
        "note": given.note,
    }


def _refused(path: str, why: str) -> dict[str, Any]:
    return {"path": path, "kind": "unknown", "engine": "", "engine_version": "", "lines": 0, "note": why}


class Progress:
    """A bar on stderr while large files are read. Nothing is drawn for small ones."""

    def __init__(self, paths: list[str]) -> None:
        self._count = len(paths)
        self._places = {path: place for place, path in enumerate(dict.fromkeys(paths), 1)}
        self._drawn = 0.0
        self._width = 0

    def step(self, path: str, done: int, size: int) -> None:
        """Show how far the reading of a file is."""
        now = time.monotonic()
        if max(size, done) < _BAR_BYTES or now - self._drawn < _BAR_SECONDS:
            return
        self._drawn = now
        place = f"{self._places.get(path, 1)}/{self._count} " if self._count > 1 else ""
        name = path if len(path) <= 30 else "…" + path[-29:]
        if size:
            filled = min(_BAR_WIDTH, _BAR_WIDTH * done // size)
            bar = f"[{'█' * filled}{'·' * (_BAR_WIDTH - filled)}] {100 * done // size:3} %"
        else:
            bar = f"{done >> 20:,} MiB"
        self._print(f"{place}{''.join(letter for letter in name if letter.isprintable())} {bar}")

    def clear(self) -> None:
        """Take the bar away."""
        if self._width:
            self._print("")
            print("\r", end="", file=sys.stderr, flush=True)

    def _print(self, text: str) -> None:
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._width = len(text)
