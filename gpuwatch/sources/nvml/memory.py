"""Memory of one NVML handle, read often. Runs in the worker process only."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from gpuwatch.sources.nvml.api import (
    NO_VALUE,
    NOT_SUPPORTED,
    OUT_OF_RANGE,
    CallFailed,
    MemoryV1,
    MemoryV2,
    check,
    pointer,
)
from gpuwatch.sources.nvml.integrated import is_integrated

if TYPE_CHECKING:
    from typing import TypeAlias

    Figures: TypeAlias = "tuple[float, float, float | None, float]"

_V2 = 0x02000028
_MOST_BYTES = 2.0**50
"""Bytes above which a figure is refused as impossible."""


def system_memory(path: str = "/proc/meminfo") -> tuple[float, float]:
    """Return (total, available) bytes of the machine. Raises CallFailed where the system does not say."""
    figures = {}
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123  # pathlib costs memory in the worker
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    figures[name] = float(rest.split()[0]) * 1024
        return figures["MemTotal"], figures["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        raise CallFailed(NOT_SUPPORTED) from None


class Memory:
    """Total, used, reserved and free bytes of one handle, with the lowest and highest used since `take`.

    A GPU without memory of its own (GB10, Jetson) answers NOT_SUPPORTED, zero or, on some drivers, the figures of
    the machine; its memory is the machine's: total, and used as total minus available.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        function = pointer("nvmlDeviceGetMemoryInfo_v2")
        self._struct: MemoryV1 | MemoryV2 = MemoryV2(version=_V2) if function else MemoryV1()
        self._reference = ctypes.byref(self._struct)
        self._function = function or pointer("nvmlDeviceGetMemoryInfo")
        self.unified = False
        self.figures: Figures | None = None
        self._low = self._high = 0.0

    def decide(self, name: str) -> None:
        """Find out whether the device called `name` has memory of its own. Raises CallFailed."""
        try:
            total = self._device()[0]
        except CallFailed as failure:
            if failure.code != NOT_SUPPORTED:
                raise
            total = 0.0
        if total == 0.0:
            self.unified = True
        elif is_integrated(name):
            machine = system_memory()[0]
            self.unified = abs(total - machine) < 0.1 * machine

    def _device(self) -> Figures:
        if self._function is None:
            raise CallFailed(NOT_SUPPORTED)
        struct = self._struct
        check(self._function(self._handle, self._reference))
        total, used = struct.total, struct.used
        if total > _MOST_BYTES or used > _MOST_BYTES:
            impossible = any(value > _MOST_BYTES for value in (total, used) if value != NO_VALUE)
            raise CallFailed(OUT_OF_RANGE if impossible else NOT_SUPPORTED)
        # Version 1 has no figure for the reserve and counts it as used.
        reserved = float(struct.reserved) if isinstance(struct, MemoryV2) else None
        return float(total), float(used), reserved, float(struct.free)

    def read(self) -> None:
        """Read once. Raises CallFailed, also where more is used than there is."""
        if self.unified:
            total, available = system_memory()
            figures: Figures = (total, total - available, None, available)
        else:
            figures = self._device()
        used = figures[1]
        if used > figures[0]:
            raise CallFailed(OUT_OF_RANGE)
        if self.figures is None:
            self._low = self._high = used
        elif used < self._low:
            self._low = used
        elif used > self._high:
            self._high = used
        self.figures = figures

    def take(self) -> dict[str, float]:
        """Return the last figures and the extremes by name, and start new extremes; empty when nothing was read."""
        if self.figures is None:
            return {}
        total, used, reserved, free = self.figures
        values = {
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "memory_used_low_bytes": self._low,
            "memory_used_high_bytes": self._high,
            "memory_free_bytes": free,
        }
        if reserved is not None:
            values["memory_reserved_bytes"] = reserved
        self.figures = None
        return values
