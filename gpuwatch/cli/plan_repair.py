"""What of a launch command is repaired, judged by the engine that it starts: a repair must not break what runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_versions import FlagProblem, show
from gpuwatch.engines.version import show_version
from gpuwatch.ledger.command import stretched
from gpuwatch.ledger.fraction import highest_fraction
from gpuwatch.ledger.lengths import allowed_length, too_long
from gpuwatch.ledger.plan import capacity_of, fraction_needed, start_notes, starved, verdict_of
from gpuwatch.ledger.ranks import fewer_ranks, own_pool
from gpuwatch.ledger.starts import obstacles
from gpuwatch.ledger.steps import paged_step, prompt_beyond_step, step_between_pages, too_many_sequences

if TYPE_CHECKING:
    import argparse
    from collections.abc import Container, Iterator, Sequence

    from gpuwatch.cli.plan_command import Launch
    from gpuwatch.ledger.budget import Deployment
    from gpuwatch.ledger.command import Command
    from gpuwatch.ledger.need import Engine

_FRACTIONS = ("gpu-memory-utilization", "mem-fraction-static")
_LENGTHS = ("max-model-len", "context-length")
_STEPS = {"max-num-seqs": "sequences", "max-num-batched-tokens": "chunk", "chunked-prefill-size": "chunk"}
_LENGTH_FITTED_SINCE = (0, 14, 0)
"""vLLM that takes ``--max-model-len auto`` and ``-1``."""
_POOLS = ("num-gpu-blocks-override", "kv-cache-memory-bytes", "max-total-tokens")
_RANKS = {
    "vllm": {
        "tp": "tensor-parallel-size",
        "pp": "pipeline-parallel-size",
        "dcp": "decode-context-parallel-size",
    },
    "sglang": {"tp": "tp-size", "pp": "pp-size", "dcp": "dcp-size"},
}
_ARGUMENTS = ("tp", "pp", "dcp", "pcp", "context", "max_num_seqs", "chunk")


def judged(problems: Sequence[FlagProblem], engine: Engine) -> tuple[tuple[FlagProblem, ...], list[str], Engine]:
    """Return the problems whose repair leaves an engine that serves what was asked for, and notes on the others.

    The engine that comes with them is the one of the repaired command.
    """
    if not engine.model.complete:
        return tuple(problems), [], engine
    kept, notes, now = [], [], engine
    for one in problems:
        problem = _on_pages(now, one)
        after = _without(now, problem)
        if after is None or _serves(after) or not (_serves(now) or problem.flag == "cpu-offload-gb"):
            kept.append(problem)
            now = now if after is None else after
            continue
        change = f"--{problem.flag} {problem.proposed} the engine" if problem.proposed else "without it the engine"
        words = f"--{problem.flag} {problem.value} stays: {problem.text}"
        notes.append(f"{words}; but {change.replace('--', 'with --', 1)} does not hold what was asked for")
    return tuple(kept), notes, now


def _on_pages(engine: Engine, problem: FlagProblem) -> FlagProblem:
    """Return a problem with a step of SGLang that it proposes made a multiple of the pages."""
    after = _without(engine, problem) if problem.flag == "chunked-prefill-size" else None
    if after is None or step_between_pages(after.deployment) is None:
        return problem
    return replace(problem, proposed=str(paged_step(after.deployment)))


def started(
    args: argparse.Namespace, command: Command, engine: Engine, problems: Sequence[FlagProblem]
) -> tuple[tuple[FlagProblem, ...], list[str]]:
    """Return what keeps the engine of a command with `problems` repaired from starting, and a note where that stays.

    Ranks become the most, of those that there are, with which it starts and serves; a size of the pool that holds no
    request is left out, and a share of the card that holds none raised, where that is enough.
    """
    reasons: Sequence[str] = obstacles(engine.model, engine.deployment)
    found: tuple[FlagProblem, ...] = ()
    if reasons:
        found = _other_ranks(args, command, engine, reasons[0])
    elif engine.model.complete and verdict_of([engine]) != "unknown":
        reasons = [note for note in start_notes(capacity_of(engine)) if "will not start" in note]
        repaired = {problem.flag for problem in problems}
        found = _other_pool(args, command, engine, reasons[0], repaired) if reasons else ()
    if not reasons or found:
        return found, []
    return (), ["the repaired command will not start, either: it takes more than a repair, as under what if"]


def _other_ranks(args: argparse.Namespace, command: Command, engine: Engine, reason: str) -> tuple[FlagProblem, ...]:
    complete, before = engine.model.complete, engine.deployment
    after = next((one.deployment for one in fewer_ranks(engine) if not complete or _serves(one)), None)
    if after is None:
        return ()
    flags = _RANKS[before.engine]
    changed = [name for name in flags if getattr(before, name) != getattr(after, name)]
    if any(getattr(args, name) is not None or name not in command.numbers for name in changed):
        return ()  # not the command's own
    return tuple(
        FlagProblem(flags[name], "risky", str(getattr(before, name)), reason, "", str(getattr(after, name)))
        for name in changed
    )


def _other_pool(
    args: argparse.Namespace, command: Command, engine: Engine, reason: str, repaired: Container[str]
) -> tuple[FlagProblem, ...]:
    deployment = engine.deployment
    if deployment.pool_asked:
        names = [name for name in _POOLS if name in command.flags]
        free = own_pool(engine)
        return tuple(FlagProblem(name, "risky", show(command.flags[name]), reason) for name in names if _serves(free))
    flag, needed = _FRACTIONS[deployment.engine == "sglang"], fraction_needed(engine)
    larger = engine.with_deployment(fraction=needed, fraction_told=True)
    assumed = command.fraction is None and args.gpu_memory is None  # nothing that was said needs it
    stays = assumed or args.utilization is not None or flag in repaired
    if stays or not deployment.fraction < needed <= highest_fraction(deployment) or not _serves(larger):
        return ()
    return (FlagProblem(flag, "risky", f"{deployment.fraction:g}", reason, "", f"{needed:g}"),)


def _without(engine: Engine, problem: FlagProblem) -> Engine | None:
    """Return the engine with one flag repaired; None where its memory stays as it is."""
    if problem.kind != "risky":
        return None
    if problem.flag == "cpu-offload-gb":
        return engine.with_deployment(host_weights=0.0)
    if problem.flag in _FRACTIONS and problem.proposed:
        return engine.with_deployment(fraction=float(problem.proposed), fraction_told=True)
    if problem.flag in _LENGTHS and problem.proposed:
        return engine.with_deployment(context=int(problem.proposed))
    if problem.flag in _STEPS and problem.proposed:
        now = engine.with_deployment(**{_STEPS[problem.flag]: int(problem.proposed)})
        return now.with_deployment(paged_steps=True) if problem.value == "-1" else now  # prompts are cut from now on
    return None


def _serves(engine: Engine) -> bool:
    return verdict_of([engine]) != "does_not_fit" and not starved(engine, [engine])


def nameless(launch: Launch, names: Sequence[str]) -> tuple[FlagProblem, ...]:
    """Return what is wrong where SGLang is not told its model by ``--model-path``, as all but ``sglang serve`` need."""
    named = {"model-path", "config"} & set(launch.command.flags)  # the file may say it
    if not launch.names_by_flag or named or len(names) != 1:
        return ()
    return (FlagProblem("model-path", "risky", "", "the engine will not start without it", "", names[0]),)


def refused_settings(args: argparse.Namespace, command: Command, engine: Engine) -> tuple[FlagProblem, ...]:
    """Return what is wrong with the length and the steps that the command asks for: those that the engine refuses.

    The steps are judged by the length that is proposed, and the batch by the step.
    """
    lengths = (*_too_long_asked(args, command, engine), *_length_not_fitted(args, command, engine))
    context = next((int(one.proposed) for one in lengths if one.flag in _LENGTHS), engine.deployment.context)
    return (*lengths, *_steps_asked(args, command, replace(engine.deployment, context=context)))


def _steps_asked(args: argparse.Namespace, command: Command, deployment: Deployment) -> Iterator[FlagProblem]:
    sequences, step = command.numbers.get("max_num_seqs"), command.numbers.get("chunk")
    if step is not None and args.chunk is None:
        small, uneven = prompt_beyond_step(deployment), step_between_pages(deployment)
        if small is not None:
            proposed = deployment.context
            yield FlagProblem("max-num-batched-tokens", "risky", str(step), str(small), "", str(proposed))
            deployment = replace(deployment, chunk=proposed)
        if uneven is not None:
            whole = paged_step(deployment)
            yield FlagProblem("chunked-prefill-size", "risky", str(step), str(uneven), "", str(whole))
    many = too_many_sequences(deployment)
    if many is not None and sequences is not None and args.max_num_seqs is None:
        yield FlagProblem("max-num-seqs", "risky", str(sequences), str(many), "", str(deployment.chunk))


def _length_not_fitted(args: argparse.Namespace, command: Command, engine: Engine) -> tuple[FlagProblem, ...]:
    """Return what is wrong with a length that vLLM is to choose by its pool, where the version does not."""
    fitted = args.context is None and command.longest_that_fits
    if not fitted or engine.deployment.version >= _LENGTH_FITTED_SINCE:
        return ()
    asked, since = show(command.flags["max-model-len"]), show_version(_LENGTH_FITTED_SINCE)
    words = f"vLLM before {since} takes a number, not {asked}: the engine will not start"
    return (FlagProblem("max-model-len", "unknown", asked, words, "", str(engine.deployment.context)),)


def _too_long_asked(args: argparse.Namespace, command: Command, engine: Engine) -> tuple[FlagProblem, ...]:
    """Return what is wrong with the length that the command asks for: one that the engine refuses."""
    asked, deployment = command.numbers.get("context"), engine.deployment
    refusal = too_long(engine.model, deployment)
    if refusal is None or args.context is not None or asked is None:
        return ()
    allowed = allowed_length(engine.model, deployment.engine, deployment.version)
    sglang = deployment.engine == "sglang"
    fields = stretched(command)
    length = fields.get("max_position_embeddings")
    if isinstance(length, int) and length >= asked and "max_position_embeddings" not in command.overrides:
        words = f"{refusal.reason}: the rope scaling stretches it to {length:,}, which has to be declared beside it"
        into = "json-model-override-args" if sglang else "hf-overrides"
        return (FlagProblem(into, "risky", "", words, "", json.dumps(fields)),)
    flag = "context-length" if sglang else "max-model-len"
    return (FlagProblem(flag, "risky", str(asked), str(refusal), "", str(allowed)),)


def own_model(args: argparse.Namespace, command: Command) -> bool:
    """Return whether the model that is planned is the command's own, by the last part of its name."""
    names = [name.lower().rstrip("/").rsplit("/", 1)[-1] for name in (*args.models, command.model)]
    alone = len(args.models) == 1 and not command.model
    return not args.models or alone or (len(names) == 2 and names[0] == names[1])


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
