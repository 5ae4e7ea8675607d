"""``gpuwatch export``: a recording in a form that other programs read."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

NAME = "export"
HELP = "write a recording as OpenMetrics, so that Prometheus can be filled with it"
MOST_TOLD = 5
"""Most jumps of the clock that get a line each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gpuwatch export``."""
    parser.add_argument("recording", metavar="FILE", help="a recording")
    parser.add_argument("--openmetrics", action="store_true", required=True, help="OpenMetrics text, version 1.0")
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="where to write; - is stdout, the default")
    parser.add_argument(
        "--step",
        metavar="SECONDS",
        type=_step,
        default=0.0,
        help="least time between two samples of a series (0: keep all)",
    )


def run(args: argparse.Namespace) -> int:
    """Replay the recording and write its series; return the exit code."""
    from gpuwatch.cli import FINE, NOTHING, UsageError, writing  # noqa: PLC0415  # --help needs none of these
    from gpuwatch.pipeline.openmetrics import replayed  # noqa: PLC0415
    from gpuwatch.recording import RecordingError  # noqa: PLC0415

    if args.json:
        raise UsageError("--json: the output is OpenMetrics text; leave --json out")
    rules = writing.rules_of(args)
    try:
        history, cut = replayed(args.recording, rules, round(args.step * 1000))
    except RecordingError as error:
        raise UsageError(str(error)) from None
    if cut:
        print(f"gpuwatch export: {cut}", file=sys.stderr)
    for back in history.set_back[:MOST_TOLD]:
        print(
            f"gpuwatch export: {args.recording}: the clock went back by {back / 1000:,.0f} s; times after that are "
            "moved on",
            file=sys.stderr,
        )
    if len(history.set_back) > MOST_TOLD:
        more = len(history.set_back) - MOST_TOLD
        print(f"gpuwatch export: {args.recording}: and {more:,} more time{'s' if more > 1 else ''}", file=sys.stderr)
    if not history.series:
        print(f"gpuwatch export: {args.recording}: holds no complete tick", file=sys.stderr)
        return NOTHING
    writing.write(args.output, history.lines())
    if not args.quiet and args.output != "-":
        print(f"gpuwatch export: {history.series} series in {args.output}", file=sys.stderr)
    return FINE


def _step(text: str) -> float:
    import argparse  # noqa: PLC0415

    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 3600")
    return value
