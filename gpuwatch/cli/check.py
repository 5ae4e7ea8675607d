"""``gpuwatch check``: watch for a while, print the findings, exit."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuwatch.cli import NOTHING, UsageError, attaching, fleet, watching

if TYPE_CHECKING:
    import argparse

    from gpuwatch.diagnosis.finding import Finding, NotEnough
    from gpuwatch.pipeline.core import TickResult
    from gpuwatch.snapshot import Snapshot, SourceState

NAME = "check"
HELP = "watch for a while, print the findings, exit"

MAX_SECONDS = 24 * 3600.0
DEFAULT_SECONDS = 30.0
SPARE_SECONDS = 30.0
JUDGED = ("nvml", "engine", "log")
"""Kinds of sources of which at least one must have answered for a verdict."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="SECONDS",
        type=float,
        help="how long to watch (default: 30; one look with --prometheus or --attach)",
    )
    parser.add_argument(
        "--fail-on",
        choices=("info", "warning", "critical", "never"),
        default="critical",
        help="exit with 1 at findings of this severity or above (default: critical)",
    )
    watching.add_arguments(parser)
    fleet.add_arguments(parser)
    attaching.add_argument(parser)


class Seen:
    """All findings of a run: the newest form of each, and whether it is still there."""

    def __init__(self) -> None:
        self.findings: dict[Any, Finding] = {}
        self.not_enough: tuple[NotEnough, ...] = ()
        self.answered: set[str] = set()

    def add(self, result: TickResult | Snapshot) -> None:
        """Take in the result of one tick, or a snapshot of it."""
        for finding in result.findings:
            if finding.state != "pending":
                self.findings[finding.key] = finding
        self.not_enough = result.not_enough


def run(args: argparse.Namespace) -> int:
    """Watch, print, and return the exit code."""
    config = watching.config_of(args)
    keep = watching.keep_of(args)
    if args.seconds is not None and not 1 <= args.seconds <= MAX_SECONDS:
        raise UsageError(f"--for is {args.seconds:g}; allowed: 1 to {MAX_SECONDS:g} seconds")
    prometheus = fleet.config_of(args, config)
    if prometheus is not None:
        return fleet.check(args, prometheus)
    if args.attach:
        seen = Seen()
        snapshot, error = attaching.watch(args, config, seen.add)
        problems = [*(snapshot.problems if snapshot is not None else ()), *([error] if error else [])]
        return _report(args, seen, snapshot.sources if snapshot is not None else (), problems)
    seconds = args.seconds if args.seconds is not None else DEFAULT_SECONDS
    from gpuwatch.clock import SystemClock  # noqa: PLC0415  # --help does not need the pipeline
    from gpuwatch.pipeline.live import Live  # noqa: PLC0415
    from gpuwatch.recording import RecordingError  # noqa: PLC0415

    # Nobody asks for a past that is longer than the run.
    config = replace(config, history_minutes=min(config.history_minutes, (seconds + SPARE_SECONDS) / 60))
    live = Live(config, SystemClock())
    seen = Seen()
    live.on_tick = seen.add
    if args.record:
        try:
            live.record(args.record, keep)
        except RecordingError as error:
            raise UsageError(str(error)) from None
    live.start()
    try:
        threading.Event().wait(seconds)
    finally:
        live.stop()
    problems = [str(problem) for problem in live.pipeline.rules.problems]
    if live.recording_error:
        print(f"gpuwatch check: {live.recording_error}", file=sys.stderr)
        problems.append(live.recording_error)
    return _report(args, seen, live.pipeline.source_states(live.clock.now()), problems)


def _report(args: argparse.Namespace, seen: Seen, sources: tuple[SourceState, ...], problems: list[str]) -> int:
    from gpuwatch.cli import output  # noqa: PLC0415  # --help does not need it
    from gpuwatch.engines.log_text import clean  # noqa: PLC0415

    judged = any(state.age is not None for state in sources if state.kind in JUDGED)
    findings = output.ranked(seen.findings.values())
    if args.json:
        output.print_json(output.report_json(map(_input, sources), findings, seen.not_enough, problems))
    elif not args.quiet:
        for state in sources:
            if not state.up and state.kind in JUDGED:
                print(clean(f"{state.kind} {state.target}: {state.reason}: {state.detail}"))
        output.print_findings(findings, seen.not_enough, args.verbose)
        if not judged:
            print("nothing was judged: no GPU, engine or log answered")
    if not judged:
        return NOTHING
    return output.exit_code(findings, args.fail_on)


def _input(state: SourceState) -> dict[str, Any]:
    kind = {"log": "engine_log"}.get(state.kind, state.kind)
    return {
        "path": state.target,
        "kind": kind,
        "up": state.up,
        "reason": state.reason,
        "detail": state.detail,
        "engine": state.engine_kind,
        "engine_version": state.engine_version,
    }
