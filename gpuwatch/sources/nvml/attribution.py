"""Whose memory is it? Attributes the processes on each GPU to engines. Pure functions.

What is known best counts: a process that NVML lists and that belongs to an engine's process tree (basis
``process``); else the devices named in the engine's CUDA_VISIBLE_DEVICES (``environment``); else the number of
ranks (``config``). The last two say that an engine uses a GPU, never how many bytes.

CUDA numbers devices "fastest first" unless CUDA_DEVICE_ORDER=PCI_BUS_ID; NVML numbers them by PCI bus. The two
agree when all GPUs are of one model, so an index is only resolved then or when the order is PCI_BUS_ID.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Basis: TypeAlias = Literal["process", "environment", "config"]


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """The processes of one engine on this machine.

    `server` is ``host:port``; `engine_kind` vllm or sglang; `root_pid` the topmost process and `pids` the whole
    tree as far as it is known. `environ_visible_devices` and `environ_device_order` are CUDA_VISIBLE_DEVICES and
    CUDA_DEVICE_ORDER, None where unset or unreadable. `tensor_parallel_size` is the number of GPUs that the engine
    uses on this machine (ranks of all kinds).
    """

    server: str
    root_pid: int
    pids: frozenset[int]
    environ_visible_devices: str | None = None
    tensor_parallel_size: int = 1
    engine_kind: str = ""
    environ_device_order: str | None = None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What NVML says of one GPU or MIG device.

    `index` is NVML's index, None for a MIG device; `used` bytes without the driver's reserve, None if unknown;
    `processes` are (process id, bytes or None), None when they cannot be listed.
    """

    uuid: str
    index: int | None
    name: str
    used: float | None
    processes: tuple[tuple[int, float | None], ...] | None


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whose one GPU is.

    `engine_bytes` are (server, bytes) of engines whose processes are all known with their memory; `other_bytes`
    belong to visible processes of no known engine; `unattributed_bytes` to no visible process. None: not known.
    `engines` are (server, basis). `hidden` counts processes that NVML lists and this machine does not show.
    """

    engine_bytes: tuple[tuple[str, float], ...]
    other_bytes: float | None
    unattributed_bytes: float | None
    engines: tuple[tuple[str, Basis], ...]
    hidden: int = 0


def attribute(
    gpus: Sequence[GpuUse],
    engines: Sequence[EngineProcess],
    ancestors: Mapping[int, Sequence[int]],
    *,
    own_namespace: bool = True,
) -> dict[str, Ownership]:
    """Attribute the memory of `gpus` by UUID.

    Args:
        gpus: what NVML lists.
        engines: the engines of this machine.
        ancestors: for each visible process its parents up to the root; a process that is missing is not visible.
        own_namespace: whether this machine's process ids are those that the driver uses. In a container they are
            not: one invisible process then makes all ids doubtful, since equal numbers may be coincidence.
    """
    listed = {pid for gpu in gpus for pid, _ in gpu.processes or ()}
    trusted = own_namespace or all(pid in ancestors for pid in listed)
    owner = {pid: _owner(pid, engines, ancestors) for pid in listed if trusted and pid in ancestors}
    seen = {server for server in owner.values() if server}
    fallback = [(engine, *_devices(engine, engines, gpus)) for engine in engines if engine.server not in seen]
    return {gpu.uuid: _ownership(gpu, owner, fallback) for gpu in gpus}


def _owner(pid: int, engines: Iterable[EngineProcess], ancestors: Mapping[int, Sequence[int]]) -> str:
    """Return the server whose tree `pid` belongs to, or the empty string; the nearest ancestor decides."""
    for process in (pid, *ancestors.get(pid, ())):
        for engine in engines:
            if process == engine.root_pid or process in engine.pids:
                return engine.server
    return ""


def _ownership(
    gpu: GpuUse,
    owner: Mapping[int, str],
    fallback: Iterable[tuple[EngineProcess, frozenset[str], Basis]],
) -> Ownership:
    by_server: dict[str, float | None] = {}
    other: float | None = 0.0
    hidden = 0
    for pid, used in gpu.processes or ():
        if pid not in owner:
            hidden += 1
        elif owner[pid]:
            by_server[owner[pid]] = _add(by_server.get(owner[pid], 0.0), used)
        else:
            other = _add(other, used)
    uses: list[tuple[str, Basis]] = [(server, "process") for server in by_server]
    uses += [(engine.server, basis) for engine, uuids, basis in fallback if gpu.uuid in uuids]
    known = [used for used in (*by_server.values(), other) if used is not None]
    unattributed = None
    if gpu.used is not None and gpu.processes is not None and len(known) == len(by_server) + 1:
        # Process figures are rounded and read a moment earlier, so their sum may exceed the total a little.
        unattributed = max(0.0, gpu.used - sum(known))
    return Ownership(
        engine_bytes=tuple(sorted((server, used) for server, used in by_server.items() if used is not None)),
        other_bytes=None if gpu.processes is None else other,
        unattributed_bytes=unattributed,
        engines=tuple(sorted(uses)),
        hidden=hidden,
    )


def _add(total: float | None, used: float | None) -> float | None:
    return None if total is None or used is None else total + used


def _devices(
    engine: EngineProcess, engines: Sequence[EngineProcess], gpus: Sequence[GpuUse]
) -> tuple[frozenset[str], Basis]:
    """Return the UUIDs that an engine without visible processes must be on, and how that is known."""
    ranks = max(1, engine.tensor_parallel_size)
    if engine.environ_visible_devices is not None:
        visible = resolve_devices(engine.environ_visible_devices, gpus, engine.environ_device_order)
        return frozenset(visible[:ranks]), "environment"
    whole = [gpu.uuid for gpu in gpus if gpu.index is not None]
    # Without a list of devices an engine takes the first ones, but two engines that do so would collide.
    alone = len(engines) == 1 and (ranks >= len(whole) or _comparable(gpus, engine.environ_device_order))
    return frozenset(whole[:ranks] if alone or len(whole) == 1 else ()), "config"


def resolve_devices(text: str, gpus: Sequence[GpuUse], order: str | None = None) -> list[str]:
    """Return the UUIDs that a CUDA_VISIBLE_DEVICES value names, in its order.

    Entries are indexes, UUIDs or unique beginnings of UUIDs; as in CUDA the first invalid one hides itself and all
    that follow, and an empty value hides all devices.
    """
    by_index = {str(gpu.index): gpu.uuid for gpu in gpus if gpu.index is not None}
    found: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.startswith(("GPU-", "MIG-")):
            matches = [gpu.uuid for gpu in gpus if gpu.uuid.lower().startswith(entry.lower())]
            uuid = matches[0] if len(matches) == 1 else None
        else:
            uuid = by_index.get(entry) if _comparable(gpus, order) else None
        if uuid is None or uuid in found:
            break
        found.append(uuid)
    return found


def _comparable(gpus: Sequence[GpuUse], order: str | None) -> bool:
    """Say whether CUDA's index is NVML's."""
    return order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus if gpu.index is not None}) == 1
