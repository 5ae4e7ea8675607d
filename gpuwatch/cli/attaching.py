"""Arguments and wiring of ``--attach``: ``check`` and ``tui`` on a daemon that runs already."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpuwatch.cli import UsageError
from gpuwatch.cli.signals import CtrlC

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from gpuwatch.config import Config
    from gpuwatch.pipeline.attach import Attached
    from gpuwatch.snapshot import Snapshot


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--attach``."""
    parser.add_argument("--attach", metavar="URL", help="show a running `gpuwatch serve` instead of watching")


def refuse_others(args: argparse.Namespace, *others: str) -> None:
    """Refuse options that have no meaning beside ``--attach``.

    Raises:
        UsageError: one of `others` was given, too.
    """
    for name in others:
        if getattr(args, name.replace("-", "_"), None):
            raise UsageError(f"--attach shows what another gpuwatch watches; it cannot be used with --{name}")


def attached(args: argparse.Namespace, config: Config) -> Attached:
    """Return the reader of the daemon at ``--attach``.

    Raises:
        ConfigError: the address is wrong, or a secret that is named cannot be read.
    """
    from gpuwatch.clock import SystemClock  # noqa: PLC0415  # --help does not need it
    from gpuwatch.config_endpoints import endpoint_at, endpoint_url  # noqa: PLC0415
    from gpuwatch.pipeline.attach import Attached  # noqa: PLC0415

    endpoint = endpoint_at(endpoint_url(args.attach, "--attach"), config.attach)
    return Attached(endpoint, SystemClock(), args.interval)


def watch(args: argparse.Namespace, config: Config, see: Callable[[Snapshot], None]) -> tuple[Snapshot | None, str]:
    """Read the daemon for ``--for`` seconds, without it once, and hand each snapshot to `see`.

    Returns:
        The newest snapshot, and why none came at last, or the empty string.
    """
    refuse_others(args, "engine", "log", "record", "prometheus")
    reader = attached(args, config)
    with CtrlC() as ctrl_c:

        def take(snapshot: Snapshot) -> None:
            if reader.last is not None:
                see(snapshot)
            if args.seconds is None:
                ctrl_c.wake()

        reader.subscribe(take)
        reader.start()
        try:
            ctrl_c.pause(args.seconds if args.seconds is not None else 2 * config.attach.timeout)
        finally:
            reader.stop()
    if reader.error:
        from gpuwatch.engines.log_text import clean  # noqa: PLC0415  # a daemon that answers needs none

        print(clean(f"gpuwatch check: {reader.error}"), file=sys.stderr)
    return reader.last, reader.error
