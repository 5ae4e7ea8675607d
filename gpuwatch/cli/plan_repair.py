"""What of a launch command is repaired, judged by the engine that it starts: a repair must not break what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.engines.flag_versions import FlagProblem
from gpuwatch.ledger.lengths import allowed_length, too_long
from gpuwatch.ledger.plan import starved, verdict_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpuwatch.ledger.command import Command
    from gpuwatch.ledger.need import Engine

_FRACTIONS = ("gpu-memory-utilization", "mem-fraction-static")
_ARGUMENTS = ("tp", "pp", "dcp", "pcp", "context", "max_num_seqs", "chunk")


def judged(problems: Sequence[FlagProblem], engine: Engine) -> tuple[tuple[FlagProblem, ...], list[str]]:
    """Return the problems whose repair leaves an engine that serves what was asked for, and notes on the others."""
    if not engine.model.complete:
        return tuple(problems), []
    kept, notes, now = [], [], engine
    for problem in problems:
        after = _without(now, problem)
        if after is None or _serves(after) or not (_serves(now) or problem.flag == "cpu-offload-gb"):
            kept.append(problem)
            now = now if after is None else after
            continue
        change = f"--{problem.flag} {problem.proposed} the engine" if problem.proposed else "without it the engine"
        words = f"--{problem.flag} {problem.value} stays: {problem.text}"
        notes.append(f"{words}; but {change.replace('--', 'with --', 1)} does not hold what was asked for")
    return tuple(kept), notes


def _without(engine: Engine, problem: FlagProblem) -> Engine | None:
    """Return the engine with one flag repaired; None where its memory stays as it is."""
    if problem.kind != "risky":
        return None
    if problem.flag == "cpu-offload-gb":
        return engine.with_deployment(host_weights=0.0)
    if problem.flag in _FRACTIONS and problem.proposed:
        return engine.with_deployment(fraction=float(problem.proposed), fraction_asked=True)
    return None


def _serves(engine: Engine) -> bool:
    return verdict_of([engine]) != "does_not_fit" and not starved(engine, [engine])


def too_long_asked(args: argparse.Namespace, command: Command, engine: Engine) -> tuple[FlagProblem, ...]:
    """Return what is wrong with the length that the command asks for: one that the engine refuses."""
    asked, deployment = command.numbers.get("context"), engine.deployment
    refusal = too_long(engine.model, deployment)
    if refusal is None or args.context is not None or asked is None:
        return ()
    allowed = allowed_length(engine.model, deployment.engine, deployment.version)
    flag = "context-length" if deployment.engine == "sglang" else "max-model-len"
    return (FlagProblem(flag, "risky", str(asked), str(refusal), "", str(allowed)),)


def own_model(args: argparse.Namespace, command: Command) -> bool:
    """Return whether the model that is planned is the command's own, by the last part of its name."""
    names = [name.lower().rstrip("/").rsplit("/", 1)[-1] for name in (*args.models, command.model)]
    return not args.models or (len(names) == 2 and names[0] == names[1])


def replaced(args: argparse.Namespace, command: Command) -> list[str]:
    """Say which of a command's values give way to arguments of their own."""
    notes = []
    if args.models and command.model and not own_model(args, command):
        notes.append(f"{', '.join(args.models)} counted in place of the command's model {command.model}")
    kv_dtype = None if command.kv_dtype == "auto" else command.kv_dtype
    pairs = (
        *((name, getattr(args, name), command.numbers.get(name)) for name in _ARGUMENTS),
        ("utilization", args.utilization, command.fraction),
        ("kv_dtype", args.kv_dtype, kv_dtype),
    )
    for name, given, told in pairs:
        if given is not None and told is not None and given != told:
            notes.append(f"--{name.replace('_', '-')} {given} counted in place of the command's {told}")
    return notes
