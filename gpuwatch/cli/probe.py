"""``gpuwatch probe``: small experiments on a serving engine."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from gpuwatch.cli import EXIT_CODES

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "probe"
HELP = "load-test companions: find the limits of a serving engine, and whether it reads its context"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the probes and their arguments."""
    probes = parser.add_subparsers(dest="probe", metavar="PROBE", required=True)
    for name, (text, own) in PROBES.items():
        sub = probes.add_parser(
            name,
            help=text,
            description=text,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _common(sub)
        own(sub)


def run(args: argparse.Namespace) -> int:
    """Run the probe and return the exit code."""
    from gpuwatch.cli.probe_run import run_probe  # noqa: PLC0415  # --help needs no HTTP

    return run_probe(args)


def _common(parser: argparse.ArgumentParser) -> None:
    """Add what every probe takes; the common options of all commands may stand before or after the probe's name."""
    add = parser.add_argument
    hidden = argparse.SUPPRESS
    add("--config", metavar="FILE", default=hidden, help="configuration file (TOML); no probe needs it")
    add("--json", action="store_true", default=hidden, help="print JSON")
    add("--quiet", action="store_true", default=hidden, help="print nothing but errors")
    add("-v", "--verbose", action="store_true", default=hidden, help="say more on stderr")
    add("--engine", metavar="URL", required=True, help="the server: http://HOST:PORT")
    add("--yes", action="store_true", help="allow a server that is not on this machine: it gets real load")
    add("--model", metavar="NAME", default="", help="model to ask for (default: the server's first one)")
    add("--token-env", metavar="VARIABLE", default="", help="environment variable that holds the API key")
    add("--ca-file", metavar="FILE", default="", help="certificates to trust instead of the system's")
    add("--for", dest="seconds", metavar="SECONDS", type=number(1, 86_400), default=1800.0, help="time for all of it")
    add("--timeout", metavar="SECONDS", type=number(0.1, 86_400), default=300.0, help="longest time for one request")
    add("--seed", metavar="N", type=whole(0), default=0, help="of everything random (default: 0)")
    add("-o", "--output", metavar="FILE", default="", help="also save the JSON, for gpuwatch report --probe")
    add(
        "--fail-on",
        choices=("info", "warning", "critical", "never"),
        default="never",
        help="exit with 1 for findings of this severity and above",
    )


def _ramp(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--concurrency",
        metavar="N,N,…",
        type=wholes(1, 1024),
        default=(1, 2, 4),
        help="requests at once, one search each (default: 1,2,4)",
    )
    add("--from", dest="first", metavar="N", type=whole(1), default=1024, help="shortest prompt (default: 1024)")
    add("--to", dest="longest", metavar="N", type=whole(1), help="longest prompt (default: the server's limit)")
    add("--max-tokens", metavar="N", type=whole(1), default=32, help="tokens to generate (default: 32)")
    add("--resolution", metavar="N", type=whole(1), help="find the limit to so many tokens (default: 1/32 of it)")
    add("--repeats", metavar="N", type=whole(1, 1000), default=1, help="waves for each length (default: 1)")
    _files(parser)
    _to_the_end(parser, "go on where the engine could die: prompts that never fit, full GPUs, server errors")


def _context(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--length", metavar="N", type=whole(1), help="length to test (default: what the server states)")
    _files(parser)
    _to_the_end(parser, "send the full length although it can never fit into the KV pool")


def _prefix(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--length", metavar="N", type=whole(64), help="tokens of the common prompt (default: about 16 blocks)")
    add(
        "--concurrency",
        metavar="N",
        type=whole(1, 1024),
        default=8,
        help="equal prompts at the same moment (default: 8)",
    )
    add("--lora", metavar="NAME", default="", help="adapter to compare with (default: the first one of the server)")
    add(
        "--fill",
        metavar="N",
        type=whole(0),
        default=200_000,
        help="most tokens to send in order to push a prompt out of the cache; 0: do not try (default: 200000)",
    )
    add(
        "--prompts",
        metavar="FILE",
        nargs=2,
        default=(),
        help="two prompts of your own, as text: where they part, and what the second one finds of the first",
    )


def _needle(parser: argparse.ArgumentParser) -> None:
    _lengths(parser)
    add = parser.add_argument
    add(
        "--depths",
        metavar="D,D,…",
        type=_depths,
        default=(0.0, 0.25, 0.5, 0.75, 1.0),
        help="where the fact stands, from 0 to 1 (default: 0,0.25,0.5,0.75,1)",
    )
    add("--distractors", metavar="N", type=whole(0, 30), default=3, help="other facts of the same form (default: 3)")
    _trials(parser, 5, "questions for each length and depth")


def _order(parser: argparse.ArgumentParser) -> None:
    _lengths(parser)
    _trials(parser, 10, "texts for each length and gap")


def _digits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--digits",
        metavar="N,N,…",
        type=wholes(4, 64),
        default=(8, 12, 16, 20),
        help="lengths of the strings (default: 8,12,16,20)",
    )
    add("--length", metavar="N", type=whole(64), default=2048, help="tokens of the text (default: 2048)")
    _trials(parser, 20, "questions for each length of string")
    add("--baseline-engine", metavar="URL", help="second server to compare with, such as one with a 16-bit KV cache")
    add("--baseline", metavar="FILE", help="saved result of an earlier run to compare with")


def _lengths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lengths",
        metavar="N,N,…",
        type=wholes(64, 10**8),
        default=(),
        help="prompt lengths (default: doubling from 1024 up to the server's limit)",
    )


def _trials(parser: argparse.ArgumentParser, default: int, what: str) -> None:
    parser.add_argument(
        "--trials", metavar="N", type=whole(1, 10_000), default=default, help=f"{what} (default: {default})"
    )
    parser.add_argument(
        "--concurrency", metavar="N", type=whole(1, 1024), default=4, help="requests at a time (default: 4)"
    )


def _files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log", metavar="FILE", action="append", default=[], help="log of the engine (a local engine's is found)"
    )
    parser.add_argument("--model-config", metavar="FILE", help="the model's config.json (a local engine's is found)")


def _to_the_end(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--to-the-end", action="store_true", help=text)


PROBES: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "ramp": ("longer and longer prompts until it breaks: speed, KV usage, memory, the breaking point", _ramp),
    "prefix": ("whether prefix caching works, and which construction of requests defeats it", _prefix),
    "needle": ("whether the model finds a fact in a long text, by depth and length", _needle),
    "order": ("whether the model knows which of two contradicting statements came last", _order),
    "digits": ("whether strings of digits come back exactly: what a quantised KV cache loses first", _digits),
    "context": ("whether the advertised context length is real", _context),
}
"""Name: (help, what declares its arguments)."""


def whole(least: int, most: int = 10**8) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text[:18]) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least:,} to {most:,}")
        return int(text)

    return read


def wholes(least: int, most: int) -> Callable[[str], tuple[int, ...]]:
    """Return a reader of whole numbers with commas between them."""
    one = whole(least, most)

    def read(text: str) -> tuple[int, ...]:
        return tuple(sorted({one(part.strip()) for part in text.split(",")}))

    return read


def number(least: float, most: float) -> Callable[[str], float]:
    """Return a reader of numbers from `least` to `most`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return value

    return read


def _depths(text: str) -> tuple[Any, ...]:
    one = number(0.0, 1.0)
    return tuple(sorted({one(part.strip()) for part in text.split(",")}))
