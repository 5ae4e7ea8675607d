"""``gpuwatch plan``: a memory ledger before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.cli import FINE, FOUND, UsageError
from gpuwatch.engines.sizes import count_of

if TYPE_CHECKING:
    import argparse

    from gpuwatch.ledger.plan import Plan

NAME = "plan"
_SCALES = {"M": 1e6, "B": 1e9, "T": 1e12}
MOST_COUNTED = 1e15
"""No number that is asked for is larger."""
HELP = "say what a model takes on each GPU, what fits, and which change buys what"


def count(text: str) -> int:
    """Return a whole number of tokens, as ``4096``, ``128k`` (128,000), ``128K`` (131,072) or ``1e6``.

    Raises:
        ValueError: it is none.
    """
    found = count_of(text)
    if found is not None:
        return found
    value = float(text)
    if not value.is_integer() or abs(value) > MOST_COUNTED:
        raise ValueError(text)
    return int(value)


def number(text: str) -> float:
    """Return a number, as ``8e9`` or ``8B``.

    Raises:
        ValueError: it is none.
    """
    return float(text[:-1]) * _SCALES[text[-1].upper()] if text[-1:].upper() in _SCALES else float(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "models", metavar="MODEL", nargs="*", help="folder, config.json, or a known name; several share the cards"
    )
    parser.add_argument("--gpus", metavar="N", type=int, help="cards (default: tensor x pipeline ranks, else 1)")
    parser.add_argument("--gpu-memory", metavar="GiB", type=float, help="memory of one card (default: 80)")
    parser.add_argument("--context", metavar="N", type=count, help="longest request (default: what the model declares)")
    parser.add_argument("--tp", metavar="N", type=int, help="tensor-parallel ranks (default: all cards)")
    parser.add_argument("--pp", metavar="N", type=int, help="pipeline stages (default: 1)")
    parser.add_argument("--dcp", metavar="N", type=int, help="decode-context-parallel ranks (default: 1)")
    parser.add_argument("--pcp", metavar="N", type=int, help="prefill-context-parallel ranks (default: 1)")
    parser.add_argument(
        "--memory-kind",
        choices=("dedicated", "unified", "mig"),
        default="dedicated",
        help="unified: shared with the host (GB10, Jetson); mig: each of the cards is a MIG slice",
    )
    parser.add_argument(
        "--weights", metavar="DTYPE", help="weight type, such as bf16, fp8, int4 (default: as configured)"
    )
    parser.add_argument(
        "--kv-dtype", metavar="DTYPE", help="KV cache type, such as fp8 or int4 (default: as the model)"
    )
    parser.add_argument("--max-num-seqs", metavar="N", type=int, help="most requests in a batch")
    parser.add_argument("--chunk", metavar="N", type=int, help="token budget of one step")
    parser.add_argument("--utilization", metavar="R", type=float, help="the engine's reserve fraction, 0 to 1")
    parser.add_argument("--engine", choices=("vllm", "sglang"), help="engine (default: vllm)")
    parser.add_argument("--engine-version", metavar="V", help="version of the engine (default: the newest known)")
    parser.add_argument("--params", metavar="N", type=number, help="parameters, where only their number is known")
    parser.add_argument("--weights-bytes", metavar="N", type=float, help="bytes of all weights, where they are known")
    parser.add_argument("--from-command", metavar="COMMAND", help="read an existing launch command, and repair it")
    parser.add_argument(
        "--fail-on",
        choices=("does_not_fit", "never"),
        default="never",
        help="exit with 1 when it does not fit, holds no request as it is launched, or when that is unknown",
    )
    parser.add_argument(
        "--fail", dest="fail_on", action="store_const", const="does_not_fit", help="the same as --fail-on does_not_fit"
    )


def run(args: argparse.Namespace) -> int:
    """Plan and print."""
    from gpuwatch.cli import plan_ask, plan_output  # noqa: PLC0415  # --help does not need the ledger
    from gpuwatch.ledger.fields import ModelConfigError  # noqa: PLC0415
    from gpuwatch.ledger.plan import make_plan  # noqa: PLC0415

    try:
        asked = plan_ask.read(args)
        plan = make_plan(asked.engines)
        if args.json:
            plan_output.print_json(plan, asked)
        elif not args.quiet:
            plan_output.print_text(plan, asked)
    except (ModelConfigError, ValueError) as error:
        raise UsageError(str(error)) from None
    return FOUND if _fails(args, plan) else FINE


def _fails(args: argparse.Namespace, plan: Plan) -> bool:
    return args.fail_on == "does_not_fit" and (plan.verdict in ("does_not_fit", "unknown") or not plan.serves)
