"""``gpuwatch report``: a recording as one file to hand on."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from gpuwatch.alerts.rulefile import RuleSet

NAME = "report"
JSON = "json"
"""Stands for an output that is JSON."""
HELP = "write the report of a recording: one HTML file without anything else, or Markdown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gpuwatch report``."""
    parser.add_argument("recording", metavar="FILE", help="a recording")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help="where to write: NAME.html or NAME.md; - is Markdown on stdout, the default",
    )
    parser.add_argument(
        "--probe",
        metavar="FILE",
        action="append",
        default=[],
        help="result of a probe (gpuwatch probe -o FILE) to show as well; may be given several times",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that exists")


def run(args: argparse.Namespace) -> int:
    """Write the report; return the exit code."""
    from gpuwatch.cli import FINE, NOTHING, UsageError, writing  # noqa: PLC0415  # --help needs none of these

    if args.json and args.output != "-":
        raise UsageError("--json goes to stdout; leave -o out")
    writing.check(args.output, force=args.force)
    form = JSON if args.json else args.output
    text, ticks, cut = text_of(args.recording, form, writing.rules_of(args), args.probe)
    if cut:
        print(f"gpuwatch report: {cut}", file=sys.stderr)
    if not ticks:
        print(f"gpuwatch report: {args.recording}: holds no complete tick", file=sys.stderr)
        return NOTHING
    writing.write(args.output, (text,), force=args.force)
    if not args.quiet and args.output != "-":
        print(f"gpuwatch report: {args.output}", file=sys.stderr)
    return FINE


def text_of(
    recording: str | Path, output: str, rules: RuleSet, probe_files: Sequence[str] = ()
) -> tuple[str, int, str]:
    """Return the report, the number of ticks in the recording, and why it ends early, if it does.

    Args:
        recording: The recording.
        output: Says by its ending whether HTML or Markdown is wanted; `JSON`: the figures as JSON.
        rules: The rules that judge.
        probe_files: Results of probes.

    Raises:
        UsageError: a file cannot be read or is not what it should be.
    """
    from gpuwatch import __version__  # noqa: PLC0415  # --help needs none of these
    from gpuwatch.cli import UsageError, writing  # noqa: PLC0415
    from gpuwatch.cli.output import finding_json  # noqa: PLC0415
    from gpuwatch.pipeline.run_data import collect  # noqa: PLC0415
    from gpuwatch.recording import RecordingError  # noqa: PLC0415
    from gpuwatch.report import run_json, run_report  # noqa: PLC0415
    from gpuwatch.report.probes import ProbeFileError, read  # noqa: PLC0415

    try:
        results = tuple(map(read, probe_files))
        data = collect(recording, rules)
    except (RecordingError, ProbeFileError) as error:
        raise UsageError(str(error)) from None
    if output == JSON:
        figures = {**run_json.as_json(data, finding_json), "probes": [result.data for result in results]}
        text = json.dumps(figures, indent=1, ensure_ascii=False, allow_nan=False)
        return f"{text}\n", data.ticks, data.cut
    return writing.render(run_report.build(data, results, f"gpuwatch {__version__}"), output), data.ticks, data.cut
