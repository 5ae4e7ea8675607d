"""``gpuwatch compare``: recordings of several runs held against the first one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

NAME = "compare"
HELP = "hold recordings of several runs against the first: which is better, by how much, and how sure that is"

MOST_RUNS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gpuwatch compare``."""
    parser.add_argument("baseline", metavar="A", help="recording of the run that the others are held against")
    parser.add_argument("others", metavar="B", nargs="+", help="recordings of other runs")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help="where to write: NAME.html or NAME.md; - is Markdown on stdout, the default",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that exists")


def run(args: argparse.Namespace) -> int:
    """Write the comparison; return the exit code."""
    from gpuwatch import __version__  # noqa: PLC0415  # --help needs none of these
    from gpuwatch.cli import NOTHING, UsageError, output, writing  # noqa: PLC0415
    from gpuwatch.pipeline.run_data import collect  # noqa: PLC0415
    from gpuwatch.recording import RecordingError  # noqa: PLC0415
    from gpuwatch.report import compare_json, compare_report  # noqa: PLC0415

    paths = [args.baseline, *args.others]
    if len(paths) > MOST_RUNS:
        raise UsageError(f"{len(paths)} recordings; allowed: 2 to {MOST_RUNS}")
    if args.json and args.output != "-":
        raise UsageError("--json goes to stdout; leave -o out")
    writing.check(args.output, force=args.force)
    rules = writing.rules_of(args)
    runs = []
    for path in paths:
        try:
            data = collect(path, rules)
        except RecordingError as error:
            raise UsageError(str(error)) from None
        if data.cut:
            print(f"gpuwatch compare: {data.cut}", file=sys.stderr)
        if not data.ticks:
            print(f"gpuwatch compare: {path}: holds no complete tick", file=sys.stderr)
            return NOTHING
        runs.append(data)
    pairs = compare_report.held_against(runs)
    if args.json:
        output.print_json(compare_json.as_json(runs, output.finding_json, pairs))
        return _code(compare_report.not_compared(pairs))
    document = compare_report.build(runs, f"gpuwatch {__version__}", pairs)
    writing.write(args.output, (writing.render(document, args.output),), force=args.force)
    if not args.quiet and args.output != "-":
        print(f"gpuwatch compare: {args.output}", file=sys.stderr)
    return _code(compare_report.not_compared(pairs))


def _code(why_not: str) -> int:
    from gpuwatch.cli import FINE, NOTHING  # noqa: PLC0415  # --help needs none of these

    if why_not:
        print(f"gpuwatch compare: {why_not}", file=sys.stderr)
    return NOTHING if why_not else FINE
