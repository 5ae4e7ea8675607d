"""What ``gpuwatch plan`` was asked, from its arguments and an existing launch command, as engines of the ledger."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.cli import UsageError
from gpuwatch.engines.version import parse_version, show_version
from gpuwatch.ledger.budget import GIB, Deployment
from gpuwatch.ledger.command import read_command
from gpuwatch.ledger.command_values import KV_TYPES, KV_TYPES_SHOWN, LONGEST, MOST_RANKS, check_values
from gpuwatch.ledger.defaults import NEWEST, with_defaults
from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.files import load
from gpuwatch.ledger.kv import layout
from gpuwatch.ledger.need import Engine, quantised, with_weights

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from gpuwatch.engines.version import Version
    from gpuwatch.ledger.command import Command
    from gpuwatch.ledger.model import Model

DEFAULT_GIB = 80.0
DEFAULT_CONTEXT = 4096
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_VLLM_IMAGE = re.compile(r"(?:^|/)vllm-openai(?:[:@]|$)")
"""The image whose entry point is the engine: what follows its name are the engine's arguments."""
_IMAGE_TAG = re.compile(r"vllm-openai:v?(?P<version>\d+\.\d+(?:\.\d+)?)")
KV_TYPE_READ_SINCE = (0, 32)
"""vLLM whose ``auto`` is known to follow the KV type that a checkpoint names."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The engines to plan, the cards, the launch command if one was given, and what was assumed."""

    engines: tuple[Engine, ...]
    gpus: int
    version: str
    command: Command | None
    assumed: tuple[str, ...]


def read(args: argparse.Namespace) -> Asked:
    """Return what was asked.

    Raises:
        UsageError: an argument is out of range or missing; the message says which and what is allowed.
        ModelConfigError: a model cannot be read.
    """
    _check(args)
    command = _command(args.from_command) if args.from_command else None
    names = list(args.models) or ([command.model] if command is not None and command.model else [])
    if not names:
        raise UsageError("no MODEL; give a folder, a config.json, a known name, or --from-command with a model in it")
    kind = args.engine or (command.engine if command is not None else "vllm")
    tag = _IMAGE_TAG.search(args.from_command or "") if kind == "vllm" else None
    named = args.engine_version or (tag["version"] if tag is not None else None)
    version = _version(kind, named)
    assumed = [] if named else [f"{kind} {show_version(version)} assumed (--engine-version)"]
    if args.gpu_memory is None:
        assumed.append(f"cards of {DEFAULT_GIB:g} GiB assumed (--gpu-memory)")
    engines, gpus = [], 1
    for name in names:
        model, weights = load(name)
        engine, count = _engine(args, command, kind, version, model)
        if weights is not None and args.params is None and args.weights_bytes is None and args.weights is None:
            engine = replace(engine, weights_bytes=weights)
        engines.append(engine)
        if model.kv_type and args.kv_dtype is None and (command is None or command.kv_dtype == "auto"):
            took = engine.deployment.kv_dtype
            assumed.append(f"the checkpoint names {model.kv_type} for its KV cache; {took} counted (--kv-dtype)")
        gpus = max(gpus, count)
        if model.context is None and args.context is None:
            assumed.append(f"{name} declares no length: {DEFAULT_CONTEXT:,} tokens assumed (--context)")
    return Asked(tuple(engines), gpus, show_version(version), command, tuple(dict.fromkeys(assumed)))


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


def _command(text: str) -> Command:
    """Read a launch command, through variables set in front of it and what starts it (``docker run …``, ``nohup``)."""
    from gpuwatch.sources.discovery.processes import engine_role  # noqa: PLC0415  # loads psutil

    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UsageError(f"--from-command cannot be split into words: {error}") from None
    for at, word in enumerate(words):
        if _ASSIGNMENT.match(word):
            continue
        role = engine_role(words[at:])
        if role is not None and role.role == "server":
            return _checked(role.engine, role.arguments)
    for at, word in enumerate(words):
        if _VLLM_IMAGE.search(word):
            return _checked("vllm", words[at + 1 :])
    raise UsageError(
        "--from-command has no engine in it; expected: vllm serve …, python -m vllm.entrypoints.openai.api_server …, "
        "python -m sglang.launch_server … or sglang serve …"
    )


def _checked(engine: str, arguments: Sequence[str]) -> Command:
    """Read the arguments of an engine.

    Raises:
        UsageError: a value is none that the engine takes, or missing.
    """
    try:
        check_values(engine, arguments)
    except ValueError as error:
        raise UsageError(f"--from-command: {error}") from None
    return read_command(engine, arguments)


def _kv_dtype(args: argparse.Namespace, command: Command | None, kind: str, version: Version, model: Model) -> str:
    """Return the KV type: as asked for, else as the checkpoint names it where the engine follows it."""
    asked = str(args.kv_dtype or (command.kv_dtype if command is not None else "auto"))
    follows = asked == "auto" and kind == "vllm" and version >= KV_TYPE_READ_SINCE
    return model.kv_type if follows and model.kv_type else asked


def _engine(
    args: argparse.Namespace, command: Command | None, kind: str, version: tuple[int, int, int], model: Model
) -> tuple[Engine, int]:
    """Return one engine and the cards it needs."""
    if not model.layers and model.missing:
        raise ModelConfigError(
            f"{model.name or 'the config'} lacks {', '.join(model.missing)}: nothing can be computed"
        )
    told = dict(command.numbers) if command is not None else {}
    tp, pp, pcp, gpus = _ranks(args, told)
    if args.weights is not None:
        model = with_weights(model, args.weights)
    elif command is not None and command.quantisation and model.quantisation is None:
        model = quantised(model, command.quantisation)
    deployment = Deployment(
        engine=kind,
        version=version,
        capacity=(args.gpu_memory or DEFAULT_GIB) * GIB,
        tp=tp,
        pp=pp,
        dcp=args.dcp or told.get("dcp") or 1,
        pcp=pcp,
        dp_attention=told.get("dp", 1) if command is not None and command.dp_attention else 1,
        context=args.context or told.get("context") or model.context or DEFAULT_CONTEXT,
        kv_dtype=_kv_dtype(args, command, kind, version, model),
        block_size=told.get("block_size") or (1 if kind == "sglang" else 16),
        eager=command is not None and command.eager,
        prefix_caching=None if command is None else command.prefix_caching,
        hybrid_manager=command is None or command.hybrid_manager,
        kv_bytes=told.get("kv_bytes"),
        blocks_override=told.get("blocks_override"),
        max_total_tokens=told.get("max_total_tokens"),
        unified=args.memory_kind == "unified",
        mig=args.memory_kind == "mig",
        host_weights=command.gib("cpu-offload-gb") * GIB if command is not None else 0.0,
        host_cache=command.gib("kv-offloading-size", "hicache-size") * GIB if command is not None else 0.0,
        asynchronous=command is None or command.flags.get("async-scheduling") is not False,
        state_dtype=str(command.flags.get("mamba-ssm-cache-dtype", "auto")) if command is not None else "auto",
    )
    filled = with_defaults(
        deployment,
        model,
        chunk=args.chunk or told.get("chunk"),
        sequences=args.max_num_seqs or told.get("max_num_seqs"),
        fraction=args.utilization or (command.fraction if command is not None else None),
    )
    layout(model, filled.kv_settings)  # says at once when the model keeps nothing
    return Engine(model, filled, parameters=args.params, weights_bytes=args.weights_bytes), gpus


def _ranks(args: argparse.Namespace, told: dict[str, int]) -> tuple[int, int, int, int]:
    """Return tensor ranks, pipeline stages, prefill contexts, and cards."""
    mig = args.memory_kind == "mig"
    pp = args.pp or told.get("pp") or 1
    pcp = args.pcp or told.get("pcp") or 1
    tp = args.tp or told.get("tp") or (1 if mig else max(1, (args.gpus or 1) // (pp * pcp)))
    needed = tp * pp * pcp
    gpus = args.gpus or needed
    if needed > gpus:
        more = f" x --pcp {pcp}" if pcp > 1 else ""
        raise UsageError(f"--tp {tp} x --pp {pp}{more} needs {needed} cards, but --gpus is {gpus}")
    if mig and needed > 1:
        raise UsageError(f"--tp {tp} x --pp {pp} with --memory-kind mig; allowed: 1, slices cannot form a group")
    return tp, pp, pcp, gpus


def models_of(engines: Sequence[Engine]) -> str:
    """Return the names of the models, joined."""
    return " + ".join(engine.model.name or engine.model.architecture or "model" for engine in engines)
