"""Arguments and wiring of ``--prometheus``, which ``tui`` and ``check`` share."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuwatch.cli import FOUND, NOTHING, UsageError

if TYPE_CHECKING:
    import argparse

    from gpuwatch.config import Config, PrometheusConfig
    from gpuwatch.pipeline.fleet.driver import Fleet, Look
    from gpuwatch.snapshot import Snapshot

ONE_LOOK = 0.0
"""Without ``--for`` a check looks once: Prometheus has watched all the time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``--prometheus``."""
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="look at the machines that this Prometheus scrapes, instead of at this one; login: section [prometheus]",
    )


def config_of(args: argparse.Namespace, config: Config) -> PrometheusConfig | None:
    """Return which Prometheus to ask, None where it was not asked for.

    Raises:
        ConfigError: the address is wrong.
        UsageError: an argument of the local machine is there, too.
    """
    if args.prometheus is None:
        return None
    others = [
        f"--{name}"
        for name in ("engine", "log", "record", "replay", "demo", "attach", "report")
        if getattr(args, name, None)
    ]
    if others:
        raise UsageError(f"--prometheus cannot be used with {', '.join(others)}")
    from gpuwatch.config_endpoints import (  # noqa: PLC0415  # rarely needed
        EndpointConfig,
        PrometheusConfig,
        endpoint_at,
        endpoint_url,
    )

    url = endpoint_url(args.prometheus, "Prometheus")
    if config.prometheus is None:
        return PrometheusConfig(EndpointConfig(url))
    return replace(config.prometheus, endpoint=endpoint_at(url, config.prometheus.endpoint))


def fleet(config: PrometheusConfig, args: argparse.Namespace) -> Fleet:
    """Return the driver that looks at a fleet.

    Raises:
        ConfigError: a secret or a certificate file that is named cannot be read.
    """
    from gpuwatch.alerts.rulefile import load, shipped_paths  # noqa: PLC0415  # loads after the first frame
    from gpuwatch.clock import SystemClock  # noqa: PLC0415
    from gpuwatch.pipeline.fleet.driver import INTERVAL, Fleet  # noqa: PLC0415

    interval = args.interval if args.interval is not None else INTERVAL
    return Fleet(config, load(shipped_paths()), SystemClock(), interval)


def check(args: argparse.Namespace, config: PrometheusConfig) -> int:
    """Look at a fleet, once or for a while, print the findings and return the exit code."""
    driver = fleet(config, args)
    clock = driver.clock
    deadline = clock.monotonic() + (args.seconds if args.seconds is not None else ONE_LOOK)
    seen: dict[Any, Any] = {}
    try:
        while True:
            look = driver.look(clock.now())
            look = driver.explain(look, most=EXPLAINED_BY_CHECK)
            for finding in seen.values() if look.judged else ():
                seen[finding.key] = replace(finding, state="resolved")
            seen |= {finding.key: finding for finding in look.snapshot.findings}
            left = deadline - clock.monotonic()
            if left <= 0:
                break
            clock.wait(driver.stopped, min(left, driver.interval))
    finally:
        driver.stop()
    return _report(args, look, list(seen.values()))


EXPLAINED_BY_CHECK = 50
"""Alerts that one check explains itself; the others say what their machine said, or that they fire."""


def _report(args: argparse.Namespace, look: Look, seen: list[Any]) -> int:
    from gpuwatch.cli import output  # noqa: PLC0415  # --help does not need it
    from gpuwatch.engines.log_text import clean  # noqa: PLC0415
    from gpuwatch.snapshot import in_part  # noqa: PLC0415

    snapshot = look.snapshot
    findings = output.ranked(seen)
    problems = (*snapshot.problems, *_lost(snapshot), *_shared(snapshot))
    judged = look.judged and not (_all_lost(snapshot) and not findings)
    partial = bool(in_part(snapshot))
    unjudged = f"{'not everything' if partial else 'nothing'} was judged: {_why(look)}" if not judged else ""
    if args.json:
        output.print_json(output.report_json(_inputs(look), findings, (), problems))
    elif not args.quiet:
        for source in snapshot.sources:
            if source.kind == "prometheus" and (source.detail or not source.up):
                print(clean(f"prometheus {source.target}: {source.detail}"))
        for problem in problems:
            print(clean(problem))
        output.print_findings(findings, (), args.verbose, machine=("host", snapshot.cluster_label))
        if not judged:
            print(clean(unjudged))
    if not judged and (args.quiet or args.json):
        print(clean(f"gpuwatch check: {unjudged}"), file=sys.stderr)
    code = output.exit_code(findings, args.fail_on)
    if judged:
        return code
    return FOUND if partial and code == FOUND else NOTHING


def _lost(snapshot: Snapshot) -> list[str]:
    """Return a line for each machine that Prometheus no longer scrapes: nothing is known of it."""
    from gpuwatch.snapshot import lost_machines  # noqa: PLC0415  # --help does not need it
    from gpuwatch.units import age  # noqa: PLC0415  # same

    return [
        f"host {'/'.join(filter(None, machine)) or '(no host label)'}: not scraped for {age(seconds)}"
        for machine, seconds in sorted(lost_machines(snapshot).items())
    ]


def _shared(snapshot: Snapshot) -> list[str]:
    """Return a line for each name that several programs use."""
    from gpuwatch.snapshot import shared_name_text, shared_names  # noqa: PLC0415  # --help does not need it

    return [
        f"host {'/'.join(filter(None, machine)) or '(no host label)'}: {shared_name_text(number)}"
        for machine, number in sorted(shared_names(snapshot).items())
    ]


def _all_lost(snapshot: Snapshot) -> bool:
    known = len(snapshot.answer("host_last_seen").samples)
    return known > 0 and len(_lost(snapshot)) == known


def _why(look: Look) -> str:
    from gpuwatch.snapshot import PARTIAL  # noqa: PLC0415  # --help does not need it

    snapshot = look.snapshot
    source = next(state for state in snapshot.sources if state.kind == "prometheus")
    if not source.up or source.reason == PARTIAL:
        return source.detail
    failed = snapshot.answer("alerts").error or snapshot.answer("host_last_seen").error
    if failed:
        return failed
    if not snapshot.answer("host_last_seen").samples:
        return f"{source.target} has no series of gpuwatch"
    if look.judged and _all_lost(snapshot):
        return f"{source.target} no longer scrapes any host"
    return "; ".join(snapshot.problems) or f"{source.target} lists no rule named Gpuwatch…"


def _inputs(look: Look) -> list[dict[str, Any]]:
    return [
        {
            "path": source.target,
            "kind": source.kind,
            "up": source.up,
            "reason": source.reason,
            "detail": source.detail,
            "engine": "",
            "engine_version": "",
        }
        for source in look.snapshot.sources
        if source.kind == "prometheus"
    ]
