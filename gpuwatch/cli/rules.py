"""``gpuwatch rules``: list, check, test and explain rules, shipped ones and a user's own."""

from __future__ import annotations

import argparse
from typing import Any

NAME = "rules"
HELP = "list, check, test and explain alerting rules"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _action(actions, "list", "the rules in use: the shipped ones, with the user's own laid over them")
    check = _action(actions, "check", "check rule files (- for standard input; without FILE: the rules in use)")
    check.add_argument("files", metavar="FILE", nargs="*")
    test = _action(actions, "test", "run rule tests in promtool's format; exit code 1 when one fails")
    test.add_argument("files", metavar="FILE", nargs="+")
    explain = _action(actions, "explain", "what a rule looks at, what it needs and when it fires")
    explain.add_argument("name", metavar="NAME", help="name of a rule, or finding id")


def _action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    """Add one action; the common options may stand before or after it."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    hidden = argparse.SUPPRESS
    parser.add_argument("--config", metavar="FILE", default=hidden, help="configuration file (TOML)")
    parser.add_argument("--json", action="store_true", default=hidden, help="print JSON")
    parser.add_argument("--quiet", action="store_true", default=hidden, help="print nothing but errors")
    parser.add_argument("-v", "--verbose", action="store_true", default=hidden, help="say more on stderr")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the action and return the exit code."""
    from gpuwatch.cli.rules_actions import ACTIONS  # noqa: PLC0415  # --help needs no rules

    return ACTIONS[args.action](args)
