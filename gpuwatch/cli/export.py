"""``gpuwatch export``: a recording in a form that other programs read."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

NAME = "export"
HELP = "write a recording as OpenMetrics, so that Prometheus can be filled with it"


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
    from gpuwatch.cli import FINE, NOTHING, UsageError  # noqa: PLC0415  # --help needs none of these
    from gpuwatch.cli.watching import config_in_use  # noqa: PLC0415
    from gpuwatch.pipeline.openmetrics import replayed  # noqa: PLC0415
    from gpuwatch.pipeline.rules import load_rules  # noqa: PLC0415
    from gpuwatch.recording import RecordingError  # noqa: PLC0415

    if args.json:
        raise UsageError("--json: the output is OpenMetrics text; leave --json out")
    rules = load_rules(config_in_use(args))
    try:
        history, cut = replayed(args.recording, rules, round(args.step * 1000))
    except RecordingError as error:
        raise UsageError(str(error)) from None
    if cut:
        print(f"gpuwatch export: {cut}", file=sys.stderr)
    if not history.series:
        print(f"gpuwatch export: {args.recording}: holds no complete tick", file=sys.stderr)
        return NOTHING
    _write(args.output, history.lines())
    if not args.quiet and args.output != "-":
        print(f"gpuwatch export: {history.series} series in {args.output}", file=sys.stderr)
    return FINE


def _write(output: str, lines: Iterable[str]) -> None:
    """Write to stdout, or to a new file that appears when it is complete."""
    from gpuwatch.cli import UsageError  # noqa: PLC0415

    if output == "-":
        sys.stdout.writelines(lines)
        return
    path = Path(output)
    if path.exists():
        raise UsageError(f"{output}: exists already; choose another name")
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with half.open("x", encoding="utf-8") as file:
            file.writelines(lines)
        half.replace(path)
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}") from None
    finally:
        half.unlink(missing_ok=True)


def _step(text: str) -> float:
    import argparse  # noqa: PLC0415

    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 3600")
    return value
