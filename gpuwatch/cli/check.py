"""``gpuwatch check``: watch for a while, print the findings, exit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwatch.cli import FINE, NOTHING, UsageError, attaching, fleet, watching
from gpuwatch.cli.signals import run_for
from gpuwatch.config import Config
from gpuwatch.footprint import stay_small
from gpuwatch.model import Reason, label
from gpuwatch.snapshot import SourceState

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from gpuwatch.diagnosis.finding import Finding, NotEnough
    from gpuwatch.pipeline.core import TickResult
    from gpuwatch.pipeline.live import Live
    from gpuwatch.snapshot import Snapshot

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
    """All findings of a run: the newest form of each, and whether it is still there.

    `sources` are those that were watched, `named` the (kind, target) of those that were asked for by name, `readable`
    says whether any GPU could be read, `empty_logs` are the logs without a line, `failures` what kept rules from being
    evaluated, by rule and text.
    """

    def __init__(self) -> None:
        self.findings: dict[Any, Finding] = {}
        self.not_enough: tuple[NotEnough, ...] = ()
        self.sources: tuple[SourceState, ...] = ()
        self.named: frozenset[tuple[str, str]] = frozenset()
        self.readable = False
        self.empty_logs: set[str] = set()
        self.failures: dict[tuple[str, str], str] = {}

    def add(self, result: TickResult | Snapshot) -> None:
        """Take in the result of one tick, or a snapshot of it."""
        for finding in result.findings:
            if finding.state != "pending":
                self.findings[finding.key] = finding
        self.not_enough = result.not_enough

    def tick(self, result: TickResult) -> None:
        """Take in the result of one tick of a run on this machine."""
        self.add(result)
        for error in result.evaluation.errors:
            self.failures.setdefault((error.file, error.rule), str(error))


def run(args: argparse.Namespace) -> int:
    """Watch, print, and return the exit code."""
    config = watching.config_of(args)
    stay_small()
    keep = watching.keep_of(args)
    if args.seconds is not None and not 1 <= args.seconds <= MAX_SECONDS:
        raise UsageError(f"--for is {args.seconds:g}; allowed: 1 to {MAX_SECONDS:g} seconds")
    prometheus = fleet.config_of(args, config)
    if prometheus is not None:
        return fleet.check(args, prometheus)
    if args.attach:
        seen = Seen()
        snapshot, error = attaching.watch(args, config, seen.add)
        problems = [*_told(snapshot.problems if snapshot is not None else ()), *([error] if error else [])]
        if snapshot is not None:
            seen.sources = snapshot.sources
            samples = snapshot.answer("gpu_state").samples
            seen.readable = any(label(labels, "state") == "ok" for labels, _ in samples)
        return _report(args, seen, problems, error)
    seconds = args.seconds if args.seconds is not None else DEFAULT_SECONDS
    from gpuwatch.clock import SystemClock  # noqa: PLC0415  # --help does not need the pipeline
    from gpuwatch.pipeline.live import Live  # noqa: PLC0415
    from gpuwatch.recording import RecordingError  # noqa: PLC0415

    # Nobody asks for a past that is longer than the run.
    config = replace(config, history_minutes=min(config.history_minutes, (seconds + SPARE_SECONDS) / 60))
    live = Live(config, SystemClock())
    seen = Seen()
    live.on_tick = seen.tick
    if args.record:
        try:
            live.record(args.record, keep)
        except RecordingError as error:
            raise UsageError(str(error)) from None
    run_for(seconds, live)
    problems = [str(problem) for problem in live.pipeline.rules.problems]
    if live.recording_error:
        print(f"gpuwatch check: {live.recording_error}", file=sys.stderr)
        problems.append(live.recording_error)
    problems += _told(seen.failures.values())
    _look_back(live, seen)
    seen.named = _named(config)
    return _report(args, seen, problems)


def _told(problems: Iterable[str]) -> list[str]:
    """Say on stderr what is wrong with rules, and return it."""
    from gpuwatch.engines.log_text import clean  # noqa: PLC0415  # --help does not need it

    told = list(problems)
    for problem in told:
        print(clean(f"gpuwatch check: {problem}"), file=sys.stderr)
    return told


def _look_back(live: Live, seen: Seen) -> None:
    """Take in what the run has shown as a whole: which sources spoke, and what their logs and GPUs gave."""
    now = live.clock.now()
    spoke = live.pipeline.source_states(now)
    silent = [target.partition(":") for target in live.targets]
    known = {(state.kind, state.target) for state in spoke}
    seen.sources = spoke + tuple(
        SourceState(kind, name or kind, up=False, reason=Reason.NEVER_SEEN.value, detail="no answer yet")
        for kind, _, name in silent
        if (kind, name or kind) not in known
    )
    ok = live.pipeline.querier.instant('max_over_time(gpuwatch_gpu_state{state="ok"}[1d])', now)
    seen.readable = any(value == 1 for _, value in ok.items())
    if live.last is not None:
        snapshot = live.pipeline.snapshot(live.last)
        said = {line.source for line in snapshot.lines} | {fact.source for fact in snapshot.facts}
        seen.empty_logs = {state.target for state in spoke if state.kind == "log"} - said
    serving = {state.server for state in spoke if state.kind == "engine" and state.up}
    for state in spoke:
        dead = state.kind == "log" and state.target in live.pipeline.dead_logs
        if dead and not (serving if not state.server else state.server in serving) and Path(state.target).is_file():
            _add_dead(state.target, now, seen)


def _add_dead(path: str, now: int, seen: Seen) -> None:
    """Add what a log says that its server died of before the watch began: nothing of it happens while one looks."""
    from gpuwatch.pipeline.postmortem import investigate  # noqa: PLC0415  # most logs are of a server that lives
    from gpuwatch.pipeline.rules import load_rules  # noqa: PLC0415  # as above

    found = investigate([path], "", now, lambda: load_rules(Config()))
    known = {finding.id for finding in seen.findings.values()}
    for finding in found.findings:
        if finding.id not in known:
            seen.findings[finding.key] = finding
    text = "its server was gone before the watch began; judged as gpuwatch diagnose does"
    seen.sources = tuple(
        replace(state, detail="; ".join(filter(None, (state.detail, text)))) if state.target == path else state
        for state in seen.sources
    )


def _named(config: Config) -> frozenset[tuple[str, str]]:
    """Return the (kind, target) of the engines and logs that the command line and the configuration name."""
    from gpuwatch.pipeline.collect import engine_target  # noqa: PLC0415  # --help does not need it

    engines = (("engine", engine_target(engine).server) for engine in config.engines)
    logs = (*(engine.log for engine in config.engines), *(item.source for item in config.logs))
    return frozenset((*engines, *(("log", "stdin" if spec == "-" else spec) for spec in logs if spec)))


def _unanswered(seen: Seen) -> list[str]:
    """Say which sources that were asked for by name have never given anything: nothing is known of those."""
    return [
        f"{state.name} was not judged: it never answered with anything that could be read "
        f"({': '.join(filter(None, (state.reason, state.detail)))})"
        for state in seen.sources
        if (state.kind, state.target) in seen.named and state.age is None and not state.up
    ]


def _judged(seen: Seen) -> bool:
    """Whether a source answered with something that can be judged."""
    for state in seen.sources:
        if state.kind not in JUDGED or state.age is None:
            continue
        if state.kind == "nvml" and not (seen.readable or seen.findings):
            continue
        if state.kind == "log" and state.target in seen.empty_logs:
            continue
        return True
    return False


_FAMILIES = (("nvml", "no GPU is seen"), ("engine", "no engine is seen"), ("log", "no log is read"))


def _not_enough(seen: Seen) -> list[NotEnough]:
    """Return what could not be judged; where a source is there and was only too slow, that is what is missing."""
    words = {}
    for kind, absent in _FAMILIES:
        states = [state for state in seen.sources if state.kind == kind]
        if any(state.up for state in states):
            words[absent] = "watched too short"
        waiting = [state.target for state in states if not state.up and state.reason == Reason.NEVER_SEEN.value]
        if waiting:
            words[absent] = f"watched too short: no answer of {', '.join(waiting)} yet"
    return [replace(item, missing=words.get(item.missing, item.missing)) for item in seen.not_enough]


def _report(args: argparse.Namespace, seen: Seen, problems: list[str], why: str = "") -> int:
    """Print the findings and return the exit code; `why` says, where known, why nothing could be judged."""
    from gpuwatch.cli import output  # noqa: PLC0415  # --help does not need it
    from gpuwatch.engines.log_text import clean  # noqa: PLC0415

    judged, not_enough, unanswered = _judged(seen), _not_enough(seen), _unanswered(seen)
    findings = output.ranked(seen.findings.values())
    code = output.exit_code(findings, args.fail_on) if judged else NOTHING
    if args.json:
        output.print_json(output.report_json(_inputs(seen), findings, not_enough, [*problems, *unanswered]))
    elif not args.quiet:
        for state in seen.sources:
            if state.kind in JUDGED and not state.up:
                print(clean(f"{state.name}: {state.reason}: {state.detail}"))
            elif state.kind in JUDGED and state.detail:
                print(clean(f"{state.name}: {state.detail}"))
        output.print_findings(findings, not_enough, args.verbose)
        if not judged:
            print(clean(f"nothing was judged: {why or 'no GPU, engine or log answered'}"))
        for text in unanswered if judged else ():
            print(clean(text))
    return NOTHING if code == FINE and unanswered else code


def _inputs(seen: Seen) -> list[dict[str, Any]]:
    """Return what was watched; the figures of gpuwatch itself are no input."""
    return [_input(state, seen.readable) for state in seen.sources if state.kind != "own"]


_SILENT = (Reason.HUNG.value, Reason.NEVER_SEEN.value)


def _input(state: SourceState, readable: bool) -> dict[str, Any]:
    # A driver that hangs is told by how long it has not answered: that is no answer.
    up = state.up and not (state.kind == "nvml" and state.reason in _SILENT and not readable)
    kind = {"log": "engine_log"}.get(state.kind, state.kind)
    return {
        "path": state.target,
        "kind": kind,
        "up": up,
        "reason": state.reason,
        "detail": state.detail,
        "engine": state.engine_kind,
        "engine_version": state.engine_version,
    }
