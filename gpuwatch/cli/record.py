"""``gpuwatch record``: write what the sources say to a file, until it is ended."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

from gpuwatch.cli import FINE, INTERRUPTED, NOTHING, WRONG, UsageError, watching
from gpuwatch.cli.signals import Signals
from gpuwatch.footprint import stay_small

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from gpuwatch.pipeline.live import Live
    from gpuwatch.recording import Writer
    from gpuwatch.snapshot import SourceState

NAME = "record"
HELP = "record GPUs, engines and recognised log lines to a file, without a screen"

MAX_SECONDS = 366 * 86_400.0
_LOOK_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("recording", metavar="FILE", help="the recording; must not exist, unless --append")
    parser.add_argument("--for", dest="seconds", metavar="SECONDS", type=float, help="how long (default: until Ctrl-C)")
    parser.add_argument("--append", action="store_true", help="go on with the recording that is there already")
    watching.add_arguments(parser, record=False)


def run(args: argparse.Namespace) -> int:
    """Record until it is ended, and say what was recorded."""
    config = watching.config_of(args)
    args.record = args.recording
    if args.seconds is not None and not 1 <= args.seconds <= MAX_SECONDS:
        raise UsageError(f"--for is {args.seconds:g}; allowed: 1 to {MAX_SECONDS:g} seconds")
    stay_small()
    from gpuwatch.clock import SystemClock  # noqa: PLC0415  # --help does not need the pipeline
    from gpuwatch.pipeline.live import Live  # noqa: PLC0415
    from gpuwatch.recording import RecordingError  # noqa: PLC0415

    live = Live(config, SystemClock())
    try:
        live.record(args.recording, watching.keep_of(args), append=args.append)
    except RecordingError as error:
        raise UsageError(str(error)) from None
    writer = live.recording
    assert writer is not None
    with Signals(signal.SIGTERM, signal.SIGINT) as signals:
        begun = live.clock.monotonic()
        live.start()
        if not args.quiet:
            print(f"gpuwatch: recording to {args.recording}; Ctrl-C ends it", file=sys.stderr, flush=True)
        try:
            ended = _until_over(signals, writer, begun, args.seconds, live)
        finally:
            live.stop()
        states = live.pipeline.source_states(live.clock.now())
        code = _report(args, writer, live.clock.monotonic() - begun, states)
    return INTERRUPTED if code != WRONG and signal.SIGINT in ended else code


def _until_over(
    signals: Signals, writer: Writer, begun: float, seconds: float | None, live: Live
) -> tuple[signal.Signals, ...]:
    """Wait for the end: a signal, the time that was asked for, or a recording that stopped by itself."""
    while not writer.error:
        left = _LOOK_SECONDS if seconds is None else min(_LOOK_SECONDS, begun + seconds - live.clock.monotonic())
        if left <= 0:
            break
        if came := signals.wait(left):
            return came
    return ()


def _report(args: argparse.Namespace, writer: Writer, seconds: float, states: tuple[SourceState, ...]) -> int:
    from gpuwatch.cli import output  # noqa: PLC0415  # --help does not need it
    from gpuwatch.engines.log_text import clean  # noqa: PLC0415  # as above

    answered = [state for state in states if state.age is not None and state.kind in ("nvml", "engine", "log")]
    size = sum(part.stat().st_size for part in _parts(args.recording))
    if writer.error:
        print(f"gpuwatch record: {clean(writer.error)}", file=sys.stderr)
    if args.json:
        output.print_json(
            {
                "schema": output.SCHEMA,
                "recording": args.recording,
                "seconds": round(seconds, 1),
                "ticks": writer.ticks,
                "bytes": size,
                "sources": [_source(state) for state in states],
                "problems": [writer.error] if writer.error else [],
            }
        )
    elif not args.quiet:
        for state in states:
            if not state.up and state.kind in ("nvml", "engine", "log"):
                print(clean(f"{state.name}: {state.reason}: {state.detail}"))
        print(f"{args.recording}: {writer.ticks:,} ticks in {seconds:.0f} s, {size / 1e6:.2f} MB")
        if not answered:
            print("nothing to see was recorded: no GPU, engine or log answered")
    if writer.error:
        return WRONG
    return FINE if answered else NOTHING


def _parts(path: str) -> list[Path]:
    from gpuwatch.recording import parts_of  # noqa: PLC0415  # --help does not need it

    return [part for part in parts_of(path) if part.exists()]


def _source(state: SourceState) -> dict[str, Any]:
    return {"path": state.target, "kind": state.kind, "up": state.up, "reason": state.reason, "detail": state.detail}
