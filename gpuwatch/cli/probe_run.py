"""Runs a probe for the command line: options, Ctrl-C, progress, where the result goes."""

from __future__ import annotations

import importlib
import ipaddress
import json
import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from gpuwatch.cli import FINE, FOUND, INTERRUPTED, NOTHING, UsageError
from gpuwatch.cli.probe_output import Bar, result_json, result_lines
from gpuwatch.cli.signals import Signals
from gpuwatch.config import load
from gpuwatch.diagnosis.finding import SEVERITY_ORDER
from gpuwatch.probes.client import Client, ProbeError, host_of
from gpuwatch.probes.run import GONE, Run
from gpuwatch.probes.run import INTERRUPTED as STOPPED

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from gpuwatch.pipeline.known import Known
    from gpuwatch.probes.result import Result


def run_probe(args: argparse.Namespace) -> int:
    """Run the probe that `args` name; print, save, and return the exit code.

    Raises:
        UsageError: the probe is impossible, or its result cannot be saved.
    """
    if args.config:
        load(args.config)  # what is wrong with it is said, although no probe needs it
    _check_output(args.output)
    _allow(args.engine, "--engine", yes=args.yes)
    bar = Bar(quiet=args.quiet)
    stop = threading.Event()
    try:
        with ExitStack() as stack:
            client = _client(args.engine, args)
            stack.callback(client.close)
            stack.enter_context(_interruptible(stop, client))
            result = _measure(args, client, bar, stop, stack)
    except ProbeError as error:
        bar.clear()
        if stop.is_set():
            return INTERRUPTED
        if error.code == NOTHING:
            print(f"gpuwatch probe {args.probe}: {error}", file=sys.stderr)
            return NOTHING
        raise UsageError(f"{args.probe}: {error}") from None
    bar.clear()
    try:
        _save(result, args.output)
    finally:  # whether stdout or the file fails, the other one has the result
        _print(result, args)
    return _code(result, args)


def _measure(args: argparse.Namespace, client: Client, bar: Bar, stop: threading.Event, stack: ExitStack) -> Result:
    settings: dict[str, Any] = {"seconds": args.seconds, "request_seconds": args.timeout, "seed": args.seed}
    if args.probe == "ramp" and is_local(host_of(client.url)):
        from gpuwatch.pipeline.known import gpu_memory  # noqa: PLC0415  # the other probes need no GPU

        settings["gpu_memory"] = stack.enter_context(gpu_memory())
    run = Run.begin(client, report=bar, **settings)
    run.cancelled = stop
    stack.callback(run.close)
    module = importlib.import_module(f"gpuwatch.probes.{args.probe}")
    result: Result = module.probe(run, OPTIONS[args.probe](args, run, stack))
    return result


# Options of each probe

_OF_THE_POOL = frozenset(
    {"kv.blocks_override", "kv.blocks_profiled", "kv.bytes", "memory_fraction", "flag.kv-cache-memory-bytes"}
)
"""Facts that decide on the size of the KV pool."""


def _ramp(args: argparse.Namespace, run: Run, _stack: ExitStack) -> Any:
    from gpuwatch.probes.ramp import RampOptions  # noqa: PLC0415  # only the probe that runs is loaded

    known = _known(args, run)
    capacity = max((total for _, total in run.gpu_memory().values()), default=None)
    return RampOptions(
        concurrencies=args.concurrency,
        first=args.first,
        longest=args.longest,
        output=args.max_tokens,
        resolution=args.resolution,
        repeats=args.repeats,
        to_the_end=args.to_the_end,
        ledger_tokens=known.ledger_tokens(run.server.engine, run.server.version, capacity),
        told={
            key: float(fact.value)
            for key, fact in known.facts.items()
            if key in _OF_THE_POOL and isinstance(fact.value, (int, float))
        },
    )


def _context(args: argparse.Namespace, run: Run, _stack: ExitStack) -> Any:
    from gpuwatch.probes.context import ContextOptions  # noqa: PLC0415

    known = _known(args, run)
    return ContextOptions(args.length, known.facts, known.events, args.to_the_end)


def _prefix(args: argparse.Namespace, _run: Run, _stack: ExitStack) -> Any:
    from gpuwatch.probes.prefix import PrefixOptions  # noqa: PLC0415

    own = tuple(_prompt(path) for path in args.prompts)
    return PrefixOptions(args.length, args.concurrency, args.lora, args.fill, own)


def _needle(args: argparse.Namespace, _run: Run, _stack: ExitStack) -> Any:
    from gpuwatch.probes.needle import NeedleOptions  # noqa: PLC0415

    return NeedleOptions(args.lengths, args.depths, args.trials, args.concurrency, args.distractors)


def _order(args: argparse.Namespace, _run: Run, _stack: ExitStack) -> Any:
    from gpuwatch.probes.order import OrderOptions  # noqa: PLC0415

    return OrderOptions(args.lengths, args.trials, args.concurrency)


def _digits(args: argparse.Namespace, run: Run, stack: ExitStack) -> Any:
    from gpuwatch.probes.digits import DigitsOptions  # noqa: PLC0415
    from gpuwatch.probes.digits_verdict import read_baseline  # noqa: PLC0415

    baseline: Any = None
    if args.baseline and args.baseline_engine:
        raise UsageError("digits: --baseline and --baseline-engine exclude each other")
    if args.baseline:
        baseline = read_baseline(args.baseline, _json(args.baseline))
    if args.baseline_engine:
        _allow(args.baseline_engine, "--baseline-engine", yes=args.yes)
        client = _client(args.baseline_engine, args, model="")
        stack.callback(client.close)
        run.client.take_along(client)
        baseline = Run.begin(client, seconds=args.seconds, request_seconds=args.timeout, seed=args.seed)
        baseline.cancelled = run.cancelled
        stack.callback(baseline.close)
    return DigitsOptions(args.digits, args.trials, args.length, args.concurrency, baseline)


OPTIONS: Mapping[str, Callable[[argparse.Namespace, Run, ExitStack], Any]] = {
    "ramp": _ramp,
    "prefix": _prefix,
    "needle": _needle,
    "order": _order,
    "digits": _digits,
    "context": _context,
}


def _known(args: argparse.Namespace, run: Run) -> Known:
    from gpuwatch.pipeline.known import known_of  # noqa: PLC0415  # two probes need it

    files = [*args.log, *([args.model_config] if args.model_config else [])]
    server = run.server.url.partition("://")[2].partition("/")[0]
    known = known_of(server, files, local=is_local(host_of(run.server.url)))
    if known.problems:
        raise UsageError(f"{args.probe}: {known.problems[0]}")
    return known


def _prompt(path: str) -> str:
    from gpuwatch.probes.prefix_own import MOST_CHARACTERS  # noqa: PLC0415  # one probe needs it

    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except OSError as error:
        raise UsageError(f"--prompts {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"--prompts {path}: not UTF-8 text") from None
    if not text or len(text) > MOST_CHARACTERS:
        raise UsageError(f"--prompts {path}: {len(text):,} characters; allowed: 1 to {MOST_CHARACTERS:,}")
    return text


def _json(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"--baseline {path}: not JSON") from None


# Which servers


def _client(url: str, args: argparse.Namespace, model: str | None = None) -> Client:
    if args.ca_file and not Path(args.ca_file).is_file():
        raise UsageError(f"--ca-file {args.ca_file}: no such file")
    return Client(
        url,
        token_env=args.token_env,
        timeout=min(args.timeout, args.seconds),
        model=args.model if model is None else model,
        verify=args.ca_file or True,
    )


def _allow(url: str, option: str, *, yes: bool) -> None:
    """Refuse a server that is not on this machine, unless it was allowed."""
    if "://" not in url and ":" not in url:
        raise UsageError(f"{option} {url}: no port; expected http://HOST:PORT")
    host = host_of(url if "://" in url else f"http://{url}")
    if not yes and host and not is_local(host):
        raise UsageError(
            f"{option} {host}: not on this machine; a probe is real load for whoever uses that server: add --yes"
        )


def is_local(host: str) -> bool:
    """Return whether `host` means this machine: a loopback address, one of its own addresses, or its own name."""
    if host.lower() in ("localhost", socket.gethostname().lower()):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    own = {row.address.partition("%")[0] for rows in psutil.net_if_addrs().values() for row in rows}
    return str(address) in own


# Ctrl-C


@contextmanager
def _interruptible(stop: threading.Event, client: Client) -> Iterator[None]:
    """End the probe in an orderly way at the first SIGINT or SIGTERM; a second SIGINT ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()

    def watch(signals: Signals) -> None:
        while not over.is_set():
            if signals.wait() and not stop.is_set():
                stop.set()
                client.cancel()

    def first(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with Signals(signal.SIGINT, signal.SIGTERM) as signals:
        signal.signal(signal.SIGINT, first)
        watcher = threading.Thread(target=watch, args=(signals,), name="signals", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            signals.wake()
            watcher.join()


# The result


def _print(result: Result, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(result_json(result), ensure_ascii=False, indent=2))
    elif not args.quiet:
        print("\n".join(result_lines(result)))


def _check_output(output: str) -> None:
    """Say before the probe runs that its result cannot be saved there."""
    if not output:
        return
    path = Path(output)
    if os.path.lexists(path):
        raise UsageError(f"-o {output}: exists already; choose another name")
    if not path.parent.is_dir():
        raise UsageError(f"-o {output}: the folder {path.parent} does not exist")


def _save(result: Result, output: str) -> None:
    """Write the file; it appears when it is complete, and replaces none that was made while the probe ran."""
    if not output:
        return
    path = Path(output)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(json.dumps(result_json(result), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        _place(half, path)
    except FileExistsError:
        raise UsageError(f"-o {output}: exists by now; the result is printed, not saved") from None
    except OSError as error:
        raise UsageError(f"-o {output}: {error.strerror}; the result is printed, not saved") from None
    finally:
        half.unlink(missing_ok=True)


def _place(half: Path, path: Path) -> None:
    """Give a complete file its name, unless there is one of that name.

    Raises:
        FileExistsError: there is.
    """
    try:
        os.link(half, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with path.open("x", encoding="utf-8") as file:
            file.write(half.read_text(encoding="utf-8"))


def _answerless(result: Result) -> bool:
    """Return whether not one request of the probe was answered."""
    return result.fact("verdict") == "not measured" or result.fact("answered") is False


def _code(result: Result, args: argparse.Namespace) -> int:
    if result.stopped_because == STOPPED:
        return INTERRUPTED
    if (result.stopped_because == GONE and not result.rows) or _answerless(result):
        return NOTHING
    if args.fail_on == "never":
        return FINE
    least = SEVERITY_ORDER[args.fail_on]
    return FOUND if any(SEVERITY_ORDER[finding.severity] >= least for finding in result.findings) else FINE
