"""Limits of the control group that this process runs in (cgroup v1 and v2). Reads small files only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60
"""v1 writes "no limit" as the largest page-aligned 63-bit number."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in force; None where there is none or it cannot be read. Bytes and cores."""

    memory_limit: float | None = None
    memory_used: float | None = None
    cpu_cores: float | None = None


def read_limits(root: Path = Path("/")) -> Limits:
    """Return the tightest limits between this process's control group and the root of the hierarchy."""
    groups = _groups(root)
    mount = root / "sys/fs/cgroup"
    if (mount / "cgroup.controllers").exists():
        return _tightest([_v2(path) for path in _upwards(mount, groups.get("", "/"))])
    memory = [_v1_memory(path) for path in _upwards(mount / "memory", groups.get("memory", "/"))]
    cpu_mount = next((mount / name for name in ("cpu", "cpu,cpuacct") if (mount / name).is_dir()), mount / "cpu")
    cpu = [_v1_cpu(path) for path in _upwards(cpu_mount, groups.get("cpu", "/"))]
    return _tightest(memory + cpu)


def _groups(root: Path) -> dict[str, str]:
    """Return the path by controller from /proc/self/cgroup; v2 has the empty controller."""
    found: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _upwards(mount: Path, group: str) -> list[Path]:
    """Return the folders from the group up to the mount. Inside a container the path may exist outside only."""
    folder = mount / group.lstrip("/")
    if ".." in folder.parts or not folder.is_dir():
        return [mount]
    return [folder, *[parent for parent in folder.parents if parent == mount or mount in parent.parents]]


def _tightest(limits: list[Limits]) -> Limits:
    """Return the smallest limits; memory in use is that of the group with the smallest memory limit."""
    memory = min((x for x in limits if x.memory_limit is not None), key=lambda x: x.memory_limit or 0.0, default=None)
    cores = [x.cpu_cores for x in limits if x.cpu_cores is not None]
    used = memory.memory_used if memory else None
    return Limits(memory.memory_limit if memory else None, used, min(cores, default=None))


def _v2(folder: Path) -> Limits:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    used = _number(folder / "memory.current")
    return Limits(
        memory_limit=_number(folder / "memory.max"),
        memory_used=_without_cache(used, folder, "inactive_file"),
        cpu_cores=_cores(quota, period),
    )


def _v1_memory(folder: Path) -> Limits:
    limit = _number(folder / "memory.limit_in_bytes")
    used = _number(folder / "memory.usage_in_bytes")
    return Limits(
        memory_limit=None if limit is None or limit >= _NO_LIMIT else limit,
        memory_used=_without_cache(used, folder, "total_inactive_file"),
    )


def _v1_cpu(folder: Path) -> Limits:
    return Limits(cpu_cores=_cores(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")))


def _without_cache(used: float | None, folder: Path, field: str) -> float | None:
    """Leave out page cache that the kernel drops first, as Kubernetes' working set does."""
    if used is None:
        return None
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == field and value.isdigit():
            return max(0.0, used - float(value))
    return used


def _cores(quota: str, period: str) -> float | None:
    try:
        cores = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None


def _number(path: Path) -> float | None:
    text = _text(path)
    return float(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
