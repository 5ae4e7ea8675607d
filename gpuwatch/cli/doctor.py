"""``gpuwatch doctor``: what gpuwatch can and cannot see on this machine, and how to fix that."""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuwatch.cli import FINE, NOTHING, watching
from gpuwatch.engines.log_text import clean
from gpuwatch.model import Reason, label, name_of
from gpuwatch.units import GIB, MIB

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from gpuwatch.clock import Clock
    from gpuwatch.config import Config
    from gpuwatch.model import Batch
    from gpuwatch.sources import Source
    from gpuwatch.sources.discovery.find import FoundEngine
    from gpuwatch.sources.engine.source import EngineTarget

NAME = "doctor"
HELP = "say what gpuwatch can see on this machine, what it cannot, and how to fix that"

Status: TypeAlias = Literal["ok", "missing", "problem"]

GPU_SECONDS = 6.0
"""How long to wait for the GPUs: a call that hangs is known as such after a few seconds."""
LOG_SECONDS = 4.0
SHM = "/dev/shm"  # noqa: S108  # only its size is looked at
_GLYPH = {"ok": "✓", "missing": "-", "problem": "✗"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `fix` says what to do where it is not ok."""

    area: str
    what: str
    status: Status
    detail: str = ""
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--engine", metavar="URL", action="append", default=[], help="engine to look at")
    parser.add_argument("--log", metavar="LOG", action="append", default=[], help="engine log to look at")
    parser.set_defaults(interval=None)


def run(args: argparse.Namespace) -> int:
    """Look at everything once and print it; 3 when there is neither a GPU nor an engine."""
    config = watching.config_of(args)
    from gpuwatch.cli import output  # noqa: PLC0415  # --help does not need it
    from gpuwatch.clock import SystemClock  # noqa: PLC0415

    checks = list(examine(config, SystemClock()))
    if args.json:
        output.print_json({"schema": output.SCHEMA, "checks": [asdict(check) for check in checks]})
    elif not args.quiet:
        _print(checks)
    seen = any(check.status == "ok" and check.area in ("gpu", "engine") for check in checks)
    return FINE if seen else NOTHING


def examine(config: Config, clock: Clock) -> Iterator[Check]:
    """Look at the program, its rules, the GPUs, the engines and their logs, and the host."""
    yield from _program(config)
    if config.gpus:
        yield from _gpus(config, clock)
    yield from _engines(config, clock)
    yield from _host(config, clock)
    if config.kernel_log != "off":
        yield _kernel(config, clock)


def _program(config: Config) -> Iterator[Check]:
    from gpuwatch import __version__  # noqa: PLC0415
    from gpuwatch.pipeline.rules import load_rules  # noqa: PLC0415

    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("program", "gpuwatch", "ok", f"version {__version__} on Python {version}, {sys.platform}")
    rules = load_rules(config)
    yield Check("rules", "alerting rules", "ok" if rules.alerts else "problem", f"{len(rules.alerts)} loaded")
    for problem in rules.problems:
        yield Check("rules", "rule file", "problem", str(problem), "gpuwatch rules check FILE lists all problems")


_FIXES = {
    Reason.NO_DRIVER: "install or load the NVIDIA driver until nvidia-smi lists the GPUs; in a container: --gpus all",
    Reason.NOT_FOUND: "see what nvidia-smi -L lists; in a container: --gpus all",
    Reason.NO_PERMISSION: "see who may read /dev/nvidiactl and /dev/nvidia0; in a container: --gpus all",
    Reason.DRIVER_MISMATCH: "reload the kernel module or reboot: the driver was replaced while it ran",
    Reason.HUNG: "read dmesg for an Xid; if it stays so, drain the machine, reset the card or reboot",
    Reason.NEVER_SEEN: "run gpuwatch doctor again; if it stays so, see whether nvidia-smi answers",
}
_STATE_WORDS = {"resetting": "needs a reset", "failed": "every call fails", "late": "no reading yet"}
_STATE_FIXES = {
    "lost": (
        "stop what uses it, then nvidia-smi --gpu-reset -i GPU, or reboot; read dmesg for the Xid before it; if it "
        "comes back: power cables, riser and cooling"
    ),
    "hung": _FIXES[Reason.HUNG],
    "late": _FIXES[Reason.NEVER_SEEN],
    "resetting": "stop what uses it, then nvidia-smi --gpu-reset -i GPU, or reboot",
    "no_permission": "see who may read /dev/nvidiactl and /dev/nvidiaGPU; in a container: --gpus all",
    "failed": "see what nvidia-smi -i GPU says, and read dmesg for an Xid",
}


def _gpus(config: Config, clock: Clock) -> Iterator[Check]:
    from gpuwatch.sources.nvml.source import NvmlSource  # noqa: PLC0415

    source = NvmlSource(config.host_name, clock)
    deadline = clock.monotonic() + GPU_SECONDS
    try:
        batch = source.poll()
        while clock.monotonic() < deadline and not _settled(batch, source.count):
            clock.wait(threading.Event(), 0.2)
            batch = source.poll()
    finally:
        source.close()
    if not batch.up:
        yield Check("gpu", "NVML", "missing", batch.detail, _FIXES.get(batch.reason or Reason.FAILED, ""))
        return
    states = _states(batch)
    unheard = set(map(str, range(source.count or 0))) - states.keys()
    if batch.reason is not Reason.HUNG:
        states |= dict.fromkeys(unheard, "late")
    infos = {label(labels, "gpu"): labels for labels in batch.keys if name_of(labels) == "gpuwatch_gpu_info"}
    for gpu in sorted(states, key=lambda gpu: [int(part) for part in gpu.split(":")]):
        state, said = states[gpu], "its name is not known"
        if gpu in infos:
            name, driver, kind = (label(infos[gpu], key) for key in ("name", "driver_version", "memory_kind"))
            said = f"{name}, driver {driver}, {kind} memory"
        if state == "ok":
            yield Check("gpu", f"GPU {gpu}", "ok", said)
        else:
            fix = _STATE_FIXES.get(state, "").replace("GPU", gpu)
            words = _STATE_WORDS.get(state, state.replace("_", " "))
            yield Check("gpu", f"GPU {gpu}", "problem", f"{words}; {said}", fix)
    if batch.detail:
        fix = _FIXES.get(batch.reason, "") if batch.reason is not None else ""
        yield Check("gpu", "NVML", "problem", batch.detail, fix)
    yield from _absences(batch)


def _states(batch: Batch) -> dict[str, str]:
    """Return the state of each GPU by its number."""
    rows = zip(batch.keys, batch.values, strict=True)
    found = ((labels, value) for labels, value in rows if name_of(labels) == "gpuwatch_gpu_state")
    return {label(labels, "gpu"): label(labels, "state") for labels, value in found if value == 1}


def _settled(batch: Batch, count: int | None) -> bool:
    """Whether there is nothing to wait for: each of `count` GPUs is read or known not to be, or NVML fails or hangs."""
    if not batch.up:
        return batch.reason is not Reason.NEVER_SEEN
    states = _states(batch)
    cards = [gpu for gpu in states if ":" not in gpu]
    return batch.reason is Reason.HUNG or (len(cards) >= max(count or 0, 1) and "late" not in states.values())


def _absences(batch: Batch) -> Iterator[Check]:
    """Say what cannot be read, once for all GPUs that lack it for the same reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for absence in batch.absent:
        key = (name_of(absence.labels), absence.reason.value, absence.detail)
        found.setdefault(key, []).append(label(absence.labels, "gpu"))
    for (name, reason, detail), gpus in found.items():
        where = f" (GPU {', '.join(sorted(set(filter(None, gpus))))})" if any(gpus) else ""
        text = reason.replace("_", " ") + (f": {detail}" if detail else "")
        yield Check("gpu", f"{name}{where}", "missing", text)


def _engines(config: Config, clock: Clock) -> Iterator[Check]:
    from gpuwatch.pipeline.collect import engine_target  # noqa: PLC0415
    from gpuwatch.sources.discovery.find import Discovery  # noqa: PLC0415
    from gpuwatch.sources.engine.source import EngineTarget  # noqa: PLC0415

    targets = [engine_target(engine) for engine in config.engines]
    logs = [(item.source, item.server) for item in config.logs]
    logs += [(engine.log, target.server) for engine, target in zip(config.engines, targets, strict=True) if engine.log]
    if config.discovery:
        found = Discovery(clock, config.ports if config.find_engines else ()).find()
        for engine in found.engines:
            if config.find_engines and all(target.server != engine.server for target in targets):
                targets.append(EngineTarget(engine.url))
            if engine.log:
                logs.append((engine.log, engine.server))
            yield _flags(engine)
        if not targets:
            for what, result in found.looked_for:
                yield Check("discovery", what, "missing", result)
    for target in targets:
        yield from _engine(target, config, clock)
    for spec, server in logs:
        yield _log(spec, server, config, clock)


def _flags(engine: FoundEngine) -> Check:
    if engine.pid is None:
        return Check("engine process", engine.server, "missing", "found by its port only", engine.log_remark)
    flags = " ".join(f"--{name} {value}" for name, value in engine.flags)
    return Check("engine process", engine.server, "ok", f"process {engine.pid}, {engine.kind}: {flags}")


_ENGINE_FIXES = {
    Reason.UNREACHABLE: "start the engine, or correct host and port: ss -ltnp lists what listens on this machine",
    Reason.TIMEOUT: "raise timeout in its [[engine]] section, or see why its front end is slow (top)",
    Reason.UNAUTHORIZED: "give token_file or token_env in its [[engine]] section of the configuration",
    Reason.NOT_METRICS: "correct port and path: curl -si URL/metrics; vLLM with --disable-log-stats has no metrics",
    Reason.NOT_FOUND: "SGLang: start it with --enable-metrics; else correct the path",
}


def _engine(target: EngineTarget, config: Config, clock: Clock) -> Iterator[Check]:
    from gpuwatch.engines.derive import OPTIONAL  # noqa: PLC0415
    from gpuwatch.sources.engine.source import EngineSource  # noqa: PLC0415

    source = EngineSource(target, config.host_name, clock)
    try:
        batch = source.poll()
    finally:
        source.close()
    if not batch.up:
        reason = batch.reason.value.replace("_", " ") if batch.reason else "failed"
        fix = _ENGINE_FIXES.get(batch.reason or Reason.FAILED, "see what curl -si URL/metrics answers")
        yield Check("engine", target.server, "problem", f"{reason}: {batch.detail}", fix)
        return
    info = source.info
    name = f"{info.kind} {info.version or '(version not told)'}" if info else "engine"
    yield Check("engine", target.server, "ok", f"{name}: {len(batch.keys)} series in {batch.duration * 1000:.0f} ms")
    for absence in batch.absent:
        if absence.reason is Reason.NOT_SUPPORTED or absence.detail.startswith(OPTIONAL):
            continue
        detail = absence.detail or absence.reason.value.replace("_", " ")
        yield Check("engine", f"{target.server} {name_of(absence.labels)}", "missing", detail)


def _log(spec: str, server: str, config: Config, clock: Clock) -> Check:
    from gpuwatch.sources.logs.source import LogSource  # noqa: PLC0415

    source = LogSource(spec, config.host_name, clock, server)
    try:
        batch = _first(source, clock)
    finally:
        source.close()
    if not batch.up:
        return Check("log", spec, "problem", batch.detail)
    return Check(
        "log", spec, "ok", f"{len(batch.facts)} facts and {len(batch.events)} events read; {batch.detail}".rstrip("; ")
    )


def _first(source: Source, clock: Clock) -> Batch:
    """Return what the source says, once a program that it started has had the time to say something."""
    deadline = clock.monotonic() + LOG_SECONDS
    batch = source.poll()
    while batch.reason is Reason.NEVER_SEEN and clock.monotonic() < deadline:
        clock.wait(threading.Event(), 0.2)
        batch = source.poll()
    return batch


def _host(config: Config, clock: Clock) -> Iterator[Check]:
    from gpuwatch.sources.host import HostSource  # noqa: PLC0415

    batch = HostSource(config.host_name, clock).poll()
    values = {name_of(labels): value for labels, value in zip(batch.keys, batch.values, strict=True)}
    memory = values.get("gpuwatch_host_memory_total_bytes")
    shm = values.get("gpuwatch_host_shm_total_bytes")
    if memory is not None:
        yield Check("host", "memory", "ok", f"{memory / GIB:.1f} GiB")
    if shm is None:
        yield Check("host", SHM, "missing", "cannot be read")
    elif shm < GIB:
        fix = "engines with several ranks need more: docker run --shm-size 16g, or an emptyDir with medium Memory"
        yield Check("host", SHM, "problem", f"{shm / MIB:.0f} MiB", fix)
    else:
        yield Check("host", SHM, "ok", f"{shm / GIB:.1f} GiB")
    for absence in batch.absent:
        yield Check("host", name_of(absence.labels), "missing", absence.detail or absence.reason.value)


def _kernel(config: Config, clock: Clock) -> Check:
    from gpuwatch.sources.kernel.source import KernelSource  # noqa: PLC0415

    source = KernelSource(config.host_name, clock, way=config.kernel_log)  # type: ignore[arg-type]  # checked when read
    try:
        batch = _first(source, clock)
    finally:
        source.close()
    if not batch.up:
        fix = "without it, Xids that NVML does not deliver and processes killed for memory are not seen"
        return Check("host", "kernel log", "missing", batch.detail, fix)
    past = sorted({fact.key.removeprefix("past.") for fact in batch.facts})
    said = f"read; before now it said: {', '.join(past)}" if past else "read; no GPU error and no killed process in it"
    return Check("host", "kernel log", "ok", f"{said}; {batch.detail}".rstrip("; "))


def _print(checks: list[Check]) -> None:
    width = max(len(check.what) for check in checks)
    area = ""
    for check in checks:
        if check.area != area:
            area = check.area
            print(area)
        print(clean(f"  {_GLYPH[check.status]} {check.what:<{min(width, 44)}}  {check.detail}"))
        if check.fix and check.status != "ok":
            print(f"      → {check.fix}")
