"""The machine itself: CPU, memory, swap, /dev/shm, control-group limits, NVIDIA devices, and the engines' processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from gpuwatch.model import Absence, Batch, Labels, Reason, series
from gpuwatch.sources.host_cgroup import Limits, read_limits
from gpuwatch.sources.host_roles import RoleTimes
from gpuwatch.sources.nvml.reasons import in_container

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatch.clock import Clock
    from gpuwatch.sources.nvml.attribution import EngineProcess

SLOW_SECONDS = 10.0
"""How often what hardly changes (limits, devices) is read."""

REMEMBERED_SECONDS = 900.0
"""How long the processes of an engine that is no longer found are reported: 0 of them once they have ended."""

_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"


def nvidia_devices(root: Path = Path("/")) -> int | None:
    """Return the number of NVIDIA display and 3D controllers on the PCI bus; None where sysfs does not tell."""
    folder = root / "sys/bus/pci/devices"
    try:
        devices = list(folder.iterdir())
    except OSError:
        return None
    count = 0
    for device in devices:
        try:
            vendor = (device / "vendor").read_text(encoding="ascii").strip()
            kind = (device / "class").read_text(encoding="ascii").strip()
        except OSError:
            continue
        count += vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS)
    return count


def is_wsl(root: Path = Path("/")) -> bool:
    """Say whether this is the Windows Subsystem for Linux: Microsoft's kernel says so in its release."""
    try:
        release = (root / "proc/sys/kernel/osrelease").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "microsoft" in release.lower()


def busy_ratio(before: Sequence[float], after: Sequence[float], idle: Iterable[int]) -> float | None:
    """Return the share of CPU time between two readings that was not idle; None when no time has passed.

    `before` and `after` are seconds by kind of time; `idle` the positions of idle and I/O wait.
    """
    deltas = [max(0.0, b - a) for a, b in zip(before, after, strict=True)]
    total = sum(deltas)
    if total <= 0:
        return None
    return min(1.0, max(0.0, 1.0 - sum(deltas[i] for i in idle) / total))


_MEMORY = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")


def read_memory(path: str = "/proc/meminfo") -> tuple[float, float, float, float]:
    """Return (total, available, swap total, swap used) in bytes.

    One read of Linux' own file; psutil reads three, and is asked where that file is missing or says impossible things.
    """
    found: dict[str, float] = {}
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123  # read every second
            for line in file:
                name, _, rest = line.partition(":")
                if name in _MEMORY:
                    found[name] = float(rest.split()[0]) * 1024
        total, available, swap, free = (found[name] for name in _MEMORY)
    except (OSError, KeyError, ValueError, IndexError):
        total, available, swap, free = 0.0, 1.0, 0.0, 0.0
    if available <= total and free <= swap:
        return total, available, swap, swap - free
    memory, swapped = psutil.virtual_memory(), psutil.swap_memory()
    return float(memory.total), float(memory.available), float(swapped.total), float(swapped.used)


@dataclass(frozen=True, slots=True)
class _Usage:
    created: float
    cpu_seconds: float


class EngineUsage:
    """CPU time and resident memory of an engine's processes; the time of processes that ended stays in the sum."""

    def __init__(self) -> None:
        self._alive: dict[int, _Usage] = {}
        self._ended = 0.0
        self._roles = RoleTimes()

    @property
    def role_seconds(self) -> dict[str, float]:
        """CPU seconds of the busiest process of each role since the first reading."""
        return self._roles.seconds

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that existed at the last reading."""
        return tuple(self._alive)

    def read(self, pids: Iterable[int], *, known: bool = False) -> tuple[float, float, int]:
        """Return (CPU seconds, resident bytes, number of processes).

        A process that has ended and was not collected by its parent does not count. With `known` a process counts only
        if it is the same as at the last reading: ids are used again.
        """
        alive: dict[int, _Usage] = {}
        resident = 0.0
        for pid in pids:
            try:
                process = psutil.Process(pid)
                with process.oneshot():
                    times, created = process.cpu_times(), process.create_time()
                    before = self._alive.get(pid)
                    other = known and (before is None or before.created != created)
                    if other or process.status() == psutil.STATUS_ZOMBIE:
                        continue
                    resident += process.memory_info().rss
                    alive[pid] = _Usage(created, times.user + times.system)
            except psutil.Error:  # each process may end on its own
                continue
        for pid, usage in self._alive.items():
            if pid not in alive or alive[pid].created != usage.created:
                self._ended += usage.cpu_seconds
        self._alive = alive
        self._roles.add({pid: (usage.created, usage.cpu_seconds) for pid, usage in alive.items()})
        return self._ended + sum(usage.cpu_seconds for usage in alive.values()), resident, len(alive)


class HostSource:
    """The machine (target ``host``).

    Args:
        host: value of the label ``host``.
        clock: gives times.
        engines: returns the engines on this machine.
        root: where ``/proc/self/cgroup``, ``/sys`` and ``/dev/shm`` are looked for.
    """

    target = "host"

    def __init__(
        self,
        host: str,
        clock: Clock,
        engines: Callable[[], Sequence[EngineProcess]] = tuple,
        *,
        root: Path = Path("/"),
    ) -> None:
        self._host, self._clock, self._engines, self._root = host, clock, engines, root
        self._times: tuple[float, ...] | None = None
        self._slow: dict[str, float] = {}
        self._slow_at: float | None = None
        self._group = Limits()
        self._usage: dict[str, EngineUsage] = {}
        self._found: dict[str, tuple[EngineProcess, float]] = {}
        self._labels: dict[tuple[str, ...], Labels] = {}
        self._keys: tuple[Labels, ...] = ()
        self._absent: dict[str, str] = {}

    def poll(self) -> Batch:
        """Read the machine once."""
        begin = self._clock.monotonic()
        self._absent = {}
        values: dict[Labels, float] = {}
        for name, value in {**self._cpu(), **self._memory(), **self._shm(), **self._limits(begin)}.items():
            values[self._key(name)] = value
        values.update(self._processes(begin))
        keys = tuple(values)
        if keys != self._keys:
            self._keys = keys
        return Batch(
            self.target,
            self._clock.now(),
            self._keys,
            list(values.values()),
            duration=self._clock.monotonic() - begin,
            absent=tuple(
                Absence(self._key(name), Reason.NOT_SUPPORTED, detail) for name, detail in self._absent.items()
            ),
        )

    def close(self) -> None:
        """Nothing to release."""

    def _key(self, name: str, server: str = "", engine_kind: str = "", role: str = "") -> Labels:
        item = (name, server, engine_kind, role)
        if item not in self._labels:
            self._labels[item] = series(name, host=self._host, server=server, engine_kind=engine_kind, role=role)
        return self._labels[item]

    def _cpu(self) -> dict[str, float]:
        values = {"gpuwatch_host_cpu_cores": float(psutil.cpu_count() or 1)}
        reading = psutil.cpu_times()
        # Guest time is contained in user time already.
        fields = [name for name in reading._fields if not name.startswith("guest")]
        times = tuple(float(getattr(reading, name)) for name in fields)
        if self._times is not None:
            idle = [i for i, name in enumerate(fields) if name in ("idle", "iowait")]
            busy = busy_ratio(self._times, times, idle)
            if busy is not None:
                values["gpuwatch_host_cpu_busy_ratio"] = busy
        self._times = times
        return values

    def _memory(self) -> dict[str, float]:
        total, available, swap_total, swap_used = read_memory()
        return {
            "gpuwatch_host_memory_total_bytes": total,
            "gpuwatch_host_memory_available_bytes": available,
            "gpuwatch_host_swap_total_bytes": swap_total,
            "gpuwatch_host_swap_used_bytes": swap_used,
        }

    def _shm(self) -> dict[str, float]:
        try:
            status = os.statvfs(self._root / "dev/shm")
        except (OSError, AttributeError) as error:
            self._absent["gpuwatch_host_shm_total_bytes"] = f"cannot be read: {error}"
            return {}
        total = status.f_blocks * status.f_frsize
        return {
            "gpuwatch_host_shm_total_bytes": float(total),
            "gpuwatch_host_shm_used_bytes": float(total - status.f_bfree * status.f_frsize),
        }

    def _limits(self, now: float) -> dict[str, float]:
        due = self._slow_at is None or now - self._slow_at >= SLOW_SECONDS
        if due or self._group.memory_limit is not None:  # memory in use is reported beside a limit only
            self._group = read_limits(self._root)
        if due:
            self._slow_at = now
            devices = nvidia_devices(self._root)
            self._slow = {} if devices is None else {"gpuwatch_host_nvidia_devices": float(devices)}
            self._slow["gpuwatch_host_wsl"] = float(is_wsl(self._root))
            self._slow["gpuwatch_host_container"] = float(in_container(str(self._root)))
        found = {
            "gpuwatch_host_cgroup_memory_limit_bytes": self._group.memory_limit,
            "gpuwatch_host_cgroup_memory_used_bytes": self._group.memory_used,
            "gpuwatch_host_cpu_quota_cores": self._group.cpu_cores,
        }
        return {**self._slow, **{name: value for name, value in found.items() if value is not None}}

    def _processes(self, now: float) -> dict[Labels, float]:
        """Return the figures of the engines that are found, and of those that were and have ended: none is 0."""
        values: dict[Labels, float] = {}
        found = {engine.server: (engine, now) for engine in self._engines()}
        remembered = {
            server: (engine, seen)
            for server, (engine, seen) in self._found.items()
            if server not in found and now - seen < REMEMBERED_SECONDS
        }
        for engine, _ in found.values():
            values.update(self._engine(engine, sorted({engine.root_pid, *engine.pids})))
        for server, (engine, _) in remembered.items():
            values.update(self._engine(engine, self._usage[server].pids, known=True))
        self._found = {**found, **remembered}
        return values

    def _engine(self, engine: EngineProcess, pids: Sequence[int], *, known: bool = False) -> dict[Labels, float]:
        usage = self._usage.setdefault(engine.server, EngineUsage())
        cpu, resident, count = usage.read(pids, known=known)
        labels = {"server": engine.server, "engine_kind": engine.engine_kind}
        return {
            self._key("gpuwatch_engine_process_cpu_seconds_total", **labels): cpu,
            self._key("gpuwatch_engine_process_resident_bytes", **labels): resident,
            self._key("gpuwatch_engine_processes", **labels): float(count),
            **{
                self._key("gpuwatch_engine_role_cpu_seconds_total", **labels, role=role): seconds
                for role, seconds in usage.role_seconds.items()
            },
        }
