"""What ``gpuwatch plan`` was asked, from its arguments and an existing launch command, as engines of the ledger."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.cli import UsageError
from gpuwatch.cli.plan_command import checked, read_launch
from gpuwatch.cli.plan_repair import judged, nameless, own_model, refused_settings, replaced, started
from gpuwatch.engines.sizes import MOST_RANKS
from gpuwatch.engines.version import parse_version, show_version
from gpuwatch.ledger.beside import adapters_of, draft_of, exchanges_by_deepep, loads_towers, speculation
from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.command import repaired
from gpuwatch.ledger.command_values import KV_TYPES, KV_TYPES_SHOWN, LONGEST
from gpuwatch.ledger.defaults import NEWEST, V1_SINCE, kv_type_followed, with_defaults
from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.files import load
from gpuwatch.ledger.kv import layout
from gpuwatch.ledger.latent import as_kept
from gpuwatch.ledger.lengths import default_length
from gpuwatch.ledger.need import Engine, loaded, quantised, with_weights
from gpuwatch.ledger.plan import available_bytes
from gpuwatch.ledger.pool import longest_context
from gpuwatch.units import GIB

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpuwatch.cli.plan_command import Launch
    from gpuwatch.engines.flag_versions import FlagProblem
    from gpuwatch.engines.version import Version
    from gpuwatch.ledger.command import Command
    from gpuwatch.ledger.model import Model

DEFAULT_GIB = 80.0
UNDECLARED = {"vllm": 2048, "sglang": 4096}
"""Tokens where neither the model nor the command says a length: vLLM's own (``config/model.py``), a round number."""
_NO_EFFECT = "it has no effect"
"""How the tables begin what they say of a flag that changes no figure."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The engines to plan, the cards, the launch command if one was given, what is wrong with it, and what was assumed.

    The engines are those of the command whose flags have the right names, with the values that it gives.
    """

    engines: tuple[Engine, ...]
    gpus: int
    version: str
    launch: Launch | None
    problems: tuple[FlagProblem, ...]
    assumed: tuple[str, ...]


def read(args: argparse.Namespace) -> Asked:
    """Return what was asked.

    Raises:
        UsageError: an argument is out of range or missing; the message says which and what is allowed.
        ModelConfigError: a model cannot be read.
    """
    _check(args)
    launch = read_launch(args.from_command) if args.from_command else None
    kind = args.engine or (launch.command.engine if launch is not None else "vllm")
    tag = launch.image if launch is not None and kind == launch.command.engine else ""
    named = args.engine_version or tag or None
    version = _version(kind, named)
    launch, loose = _formed(launch, kind, version) if launch is not None else (None, [])
    problems = launch.command.problems(show_version(version)) if launch is not None else ()
    command = None if launch is None else _repaired(launch.command, problems)
    names = list(args.models) or ([command.model] if command is not None and command.model else [])
    if not names:
        raise UsageError("no MODEL; give a folder, a config.json, a known name, or --from-command with a model in it")
    assumed = (
        []
        if args.engine_version
        else [f"{kind} {show_version(version)} {'by the name of its image' if tag else 'assumed'} (--engine-version)"]
    )
    if version > NEWEST[kind]:
        newest = f"{kind} {show_version(NEWEST[kind])}"
        assumed.append(f"{kind} {show_version(version)} is not known: computed as {newest}, the newest that is")
    if args.gpu_memory is None:
        assumed.append(f"cards of {DEFAULT_GIB:g} GiB assumed (--gpu-memory)")
    draft = _draft(command) if command is not None and len(names) == 1 else None
    if command is not None:
        assumed += [*loose, *replaced(args, command)]
        assumed += [*command.unread(show_version(version), draft=draft is not None)]
    engines, gpus = [], 1
    for name in names:
        engine, count, notes = _model(args, command, kind, version, name)
        if draft is not None:
            engine = _drafting(engine, *draft)
        if launch is not None:
            asked = True if launch.asks_for_v1 and version < V1_SINCE else engine.deployment.chunked
            engine = engine.with_deployment(longer_allowed=launch.longer_allowed, chunked=asked)
        engines.append(engine)
        assumed += notes
        gpus = max(gpus, count)
    if command is not None and launch is not None:
        own = own_model(args, command)
        problems = (*problems, *(refused_settings(args, command, engines[0]) if own else ()))
        problems, kept, now = judged(problems, engines[0]) if own else (problems, [], engines[0])
        stopped, stays = started(args, command, now, problems) if own else ((), [])
        problems, kept = (*problems, *stopped), [*kept, *stays]
        assumed += [*_counted((*launch.forms, *problems)), *kept]
        problems = (*nameless(launch, names), *launch.forms, *problems)
        if launch.apart and problems:
            assumed.append("the repaired command is shown without the image and the variables beside it, which stay")
    return Asked(tuple(engines), gpus, show_version(version), launch, problems, tuple(dict.fromkeys(assumed)))


def _formed(launch: Launch, kind: str, version: Version) -> tuple[Launch, list[str]]:
    own = launch.command.engine
    return launch.formed(version if own == kind else NEWEST[own])


def _counted(problems: Sequence[FlagProblem]) -> list[str]:
    """Say in which way the figures are those of a command with faults."""
    notes = []
    if any(problem.kind == "unknown" for problem in problems):
        notes.append("the figures are for the command with the names and forms of its flags repaired")
    counting = [problem for problem in problems if problem.kind == "risky" and not problem.text.startswith(_NO_EFFECT)]
    risky = ", ".join(f"--{problem.flag}" for problem in counting)
    if risky:
        notes.append(f"the figures count {risky} as given, which the repaired command changes")
    return notes


def _draft(command: Command) -> tuple[Model, float | None] | None:
    """Return the draft model of a command with the bytes of its files; None where it is none that is known here."""
    try:
        model, weights = load(command.draft) if command.draft else (None, None)
    except ModelConfigError:
        return None
    return (model, weights) if model is not None and model.complete else None


def _drafting(engine: Engine, model: Model, weights: float | None) -> Engine:
    """Return the engine with a draft model beside its own."""
    draft = draft_of(model, weights, engine.model, engine.deployment)
    return engine.with_deployment(drafting=draft.weights, drafting_share=draft.share)


def _model(
    args: argparse.Namespace, command: Command | None, kind: str, version: tuple[int, int, int], name: str
) -> tuple[Engine, int, list[str]]:
    """Return one engine, the cards it needs, and what was assumed of it."""
    model, weights = load(name, command.overrides if command is not None else None)
    model = as_kept(model, kind, version)
    engine, count = _engine(args, command, kind, version, model)
    if weights is not None and args.params is None and args.weights_bytes is None and args.weights is None:
        engine = replace(engine, weights_bytes=weights)
    if args.weights is None:
        engine = loaded(engine, str(command.flags.get("dtype", "auto")) if command is not None else "auto")
    notes = []
    if command is not None and command.longest_that_fits and args.context is None:
        engine = _fitted(engine)
        length = engine.deployment.context
        declared = default_length(model, kind, version)
        told = "" if declared is None else f" (the model declares {declared:,})"
        notes.append(f"--max-model-len auto: {length:,} tokens, the longest that the pool holds{told}")
    if model.kv_type and args.kv_dtype is None and (command is None or command.kv_dtype == "auto"):
        took = engine.deployment.kv_dtype
        notes.append(f"the checkpoint names {model.kv_type} for its KV cache; {took} counted (--kv-dtype)")
    own = default_length(model, kind, version)
    if own != model.context and own == engine.deployment.context and args.context is None:
        notes.append(f"{model.context:,} tokens declared, of which {kind} makes {own:,} by the model's rope scaling")
    if model.context is None and args.context is None:
        notes.append(f"{name} declares no length: {UNDECLARED[kind]:,} tokens assumed (--context)")
    return engine, count, notes


def _repaired(command: Command, problems: Sequence[FlagProblem]) -> Command:
    """Return the command with the names of its flags repaired: with the others the engine does not start.

    Raises:
        UsageError: a value is none that the engine takes.
    """
    unknown = [problem for problem in problems if problem.kind == "unknown"]
    return checked(command.engine, shlex.split(repaired(command, unknown))) if unknown else command


def _fitted(engine: Engine) -> Engine:
    """Return the engine with the longest request that its pool holds, at most what the model declares.

    Source: ``_auto_fit_max_model_len`` in vLLM's ``v1/core/kv_cache_utils.py``.
    """
    declared = engine.deployment.context
    longest = longest_context(engine.model, engine.deployment, max(0.0, available_bytes(engine)))
    return engine.with_deployment(context=min(declared, longest)) if longest else engine


def _check(args: argparse.Namespace) -> None:
    for name in ("gpus", "tp", "pp", "dcp", "pcp", "context", "max_num_seqs", "chunk"):
        value = getattr(args, name)
        most = MOST_RANKS if name in ("gpus", "tp", "pp", "dcp", "pcp") else LONGEST
        if value is not None and not 1 <= value <= most:
            raise UsageError(f"--{name.replace('_', '-')} is {value}; allowed: 1 to {most:,}")
    for name, low, high in (("gpu_memory", 0.5, 4096), ("params", 1e3, 1e14), ("weights_bytes", 1e3, 1e15)):
        value = getattr(args, name)
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise UsageError(f"--{name.replace('_', '-')} is {value:g}; allowed: {low:g} to {high:g}")
    if args.utilization is not None and not 0 < args.utilization <= 1:
        raise UsageError(f"--utilization is {args.utilization:g}; allowed: above 0, at most 1")
    if args.kv_dtype is not None and not KV_TYPES.fullmatch(args.kv_dtype):
        raise UsageError(f"--kv-dtype is {args.kv_dtype!r}; allowed: {KV_TYPES_SHOWN}")


def _version(engine: str, text: str | None) -> tuple[int, int, int]:
    if text is None:
        return NEWEST[engine]
    version = parse_version(text)
    if version is None:
        raise UsageError(f"--engine-version is {text!r}; a version such as {show_version(NEWEST[engine])} is expected")
    return version


def _kv_dtype(args: argparse.Namespace, command: Command | None, kind: str, version: Version, model: Model) -> str:
    """Return the KV type: as asked for, else as the checkpoint names it where the engine follows it."""
    asked = str(args.kv_dtype or (command.kv_dtype if command is not None else "auto"))
    return (kv_type_followed(kind, version, model) or asked) if asked == "auto" else asked


def _engine(
    args: argparse.Namespace, command: Command | None, kind: str, version: tuple[int, int, int], model: Model
) -> tuple[Engine, int]:
    """Return one engine and the cards it needs."""
    _check_model(model)
    told = dict(command.numbers) if command is not None else {}
    inner = command.attention_groups if command is not None else 1
    dp = told.get("dp", 1) if inner == 1 else 1
    tp, pp, pcp, gpus = _ranks(args, told, dp)
    sharing = dp if kind == "vllm" and model.experts is not None else 1
    if args.weights is not None:
        model = with_weights(model, args.weights)
    elif command is not None and command.quantisation and model.quantisation is None:
        model = quantised(model, command.quantisation)
    flags = command.flags if command is not None else {}
    places, rank = adapters_of(kind, flags)
    arguments = command.arguments if command is not None else ()
    deployment = Deployment(
        engine=kind,
        version=version,
        capacity=(args.gpu_memory or DEFAULT_GIB) * GIB,
        tp=tp,
        pp=pp,
        dcp=args.dcp or told.get("dcp") or 1,
        pcp=pcp,
        dp_attention=inner,
        dp=dp,
        sharing_dp=sharing,
        expert_parallel=command is not None and command.flags.get("enable-expert-parallel") is True,
        context=args.context or told.get("context") or default_length(model, kind, version) or UNDECLARED[kind],
        kv_dtype=_kv_dtype(args, command, kind, version, model),
        block_size=told.get("block_size") or (1 if kind == "sglang" else 16),
        eager=command is not None and command.eager,
        prefix_caching=None if command is None else command.prefix_caching,
        chunked=chunked if isinstance(chunked := flags.get("enable-chunked-prefill"), bool) else None,
        hybrid_manager=command is None or command.hybrid_manager,
        speculative_tokens=command.drafted if command is not None else 0,
        kv_bytes=told.get("kv_bytes"),
        blocks_override=told.get("blocks_override"),
        max_total_tokens=told.get("max_total_tokens"),
        unified=args.memory_kind == "unified",
        mig=args.memory_kind == "mig",
        host_weights=command.gib("cpu-offload-gb") * GIB if command is not None else 0.0,
        host_cache=command.gib("kv-offloading-size", "hicache-size") * GIB if command is not None else 0.0,
        asynchronous=command is None or command.flags.get("async-scheduling") is not False,
        state_dtype=str(command.flags.get("mamba-ssm-cache-dtype", "auto")) if command is not None else "auto",
        towers=loads_towers(kind, version, flags, arguments, videos=model.sees_videos),
        adapters=places,
        adapter_rank=rank,
        speculation=speculation(flags) if kind == "sglang" else "",
        deepep=exchanges_by_deepep(flags),
        multimodal=flags.get("enable-multimodal") is True,
        paged_steps=flags.get("chunked-prefill-size") != -1 and flags.get("disaggregation-mode") != "decode",
    )
    fraction = args.utilization or (command.fraction if command is not None else None)
    filled = with_defaults(
        replace(deployment, fraction_told=fraction is not None),
        model,
        chunk=args.chunk or told.get("chunk"),
        sequences=args.max_num_seqs or told.get("max_num_seqs"),
        fraction=fraction,
        doubled=flags.get("performance-mode") == "throughput",
    )
    layout(model, filled.kv_settings)  # says at once when the model keeps nothing
    return Engine(model, filled, parameters=args.params, weights_bytes=args.weights_bytes), gpus


def _check_model(model: Model) -> None:
    """Check that the config says enough to compute anything.

    Raises:
        ModelConfigError: it does not.
    """
    if not model.layers and model.missing:
        raise ModelConfigError(
            f"{model.name or 'the config'} lacks {', '.join(model.missing)}: nothing can be computed"
        )


def _ranks(args: argparse.Namespace, told: dict[str, int], dp: int) -> tuple[int, int, int, int]:
    """Return tensor ranks, pipeline stages, prefill contexts, and cards; `dp` groups have as many cards each."""
    mig = args.memory_kind == "mig"
    pp = args.pp or told.get("pp") or 1
    pcp = args.pcp or told.get("pcp") or 1
    tp = args.tp or told.get("tp") or (1 if mig else max(1, (args.gpus or 1) // (pp * pcp * dp)))
    needed = tp * pp * pcp * dp
    gpus = args.gpus or needed
    if needed > gpus:
        more = (f" x --pcp {pcp}" if pcp > 1 else "") + (f" x --dp {dp}" if dp > 1 else "")
        raise UsageError(f"--tp {tp} x --pp {pp}{more} needs {needed} cards, but --gpus is {gpus}")
    if mig and tp * pp * pcp > 1:
        raise UsageError(f"--tp {tp} x --pp {pp} with --memory-kind mig; allowed: 1, slices cannot form a group")
    return tp, pp, pcp, gpus


def models_of(engines: Sequence[Engine]) -> str:
    """Return the names of the models, joined."""
    return " + ".join(engine.model.name or engine.model.architecture or "model" for engine in engines)
