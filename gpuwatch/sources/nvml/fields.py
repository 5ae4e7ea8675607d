"""NVML field values and GPM metrics, read in batches. Runs in the worker process only.

Field ids are our own constants: older bindings lack some of them, and some ids changed their meaning between
driver versions (`throttle_fields`). Sources: nvml.h 12.9 and 13.5, nvidia-ml-py 12.570 to 13.615.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import pynvml

from gpuwatch.sources.nvml.api import NOT_SUPPORTED, UNSUPPORTED, CallFailed, ask, check, pointer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALL_LINKS = 0xFFFFFFFF
"""Scope that makes an NVLink field the sum over all links."""

MILLI, NANO, KIBI = 1e3, 1e9, 1 / 1024


class Field(NamedTuple):
    """One value to ask for: our name, NVML's field id and scope, and the divisor to base units."""

    name: str
    id: int
    divisor: float = 1.0
    scope: int = 0


FAST_FIELDS = (
    Field("power_watts", 186, MILLI),
    Field("energy_joules_total", 83, MILLI),
    Field("memory_temperature_celsius", 82),
    Field("throttle_seconds_total|reason=power", 74, NANO),
    Field("throttle_seconds_total|reason=thermal", 75, NANO),
    Field("throttle_seconds_total|reason=sync_boost", 76, NANO),
    Field("throttle_seconds_total|reason=board_limit", 77, NANO),
    Field("throttle_seconds_total|reason=reliability", 79, NANO),
    Field("nvlink_transmit_bytes_total", 138, KIBI, ALL_LINKS),
    Field("nvlink_receive_bytes_total", 139, KIBI, ALL_LINKS),
    Field("pcie_transmit_bytes_total", 197),
    Field("pcie_receive_bytes_total", 198),
)
SLOW_FIELDS = (Field("pcie_replays_total", 94), Field("recovery_action", 230))

_MOVED = ("sw_thermal", "hw_thermal", "power_brake")


def throttle_fields(driver: tuple[int, ...]) -> tuple[Field, ...]:
    """Return the thermal and power-brake counters under the ids that this driver gives them.

    They are 251 to 253 from R575.51 to R580.65 and 269 to 271 from R580.82. The same numbers are power-smoothing
    settings on other drivers, so every driver that is not known is not asked.
    """
    if driver >= (580, 82):
        first = 269
    elif driver >= (575, 51) and driver[:2] <= (580, 65):
        first = 251
    else:
        return ()
    return tuple(Field(f"throttle_seconds_total|reason={name}", first + i, NANO) for i, name in enumerate(_MOVED))


_NUMBER = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""Member of the value union by ``nvmlValueType_t``."""


class _Value(ctypes.Union):
    """``nvmlValue_t``."""

    _fields_ = (
        ("dVal", ctypes.c_double),
        ("uiVal", ctypes.c_uint),
        ("ulVal", ctypes.c_ulong),
        ("ullVal", ctypes.c_ulonglong),
        ("sllVal", ctypes.c_longlong),
        ("siVal", ctypes.c_int),
        ("usVal", ctypes.c_ushort),
    )


class _FieldValue(ctypes.Structure):
    """``nvmlFieldValue_t``. pynvml's own intercepts every access to a member, a quarter of a tick's time."""

    _fields_ = (
        ("fieldId", ctypes.c_uint),
        ("scopeId", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latencyUsec", ctypes.c_longlong),
        ("valueType", ctypes.c_uint),
        ("nvmlReturn", ctypes.c_uint),
        ("value", _Value),
    )


class FieldBatch:
    """Reads its fields with one call; a field that this card does not have is not asked again until `reset`."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._all = tuple(fields)
        self._function = pointer("nvmlDeviceGetFieldValues")
        self.reset()

    def reset(self) -> None:
        """Ask for all fields again at the next read."""
        self._use(self._all)

    def _use(self, fields: tuple[Field, ...]) -> None:
        self._fields = fields
        self._array = (_FieldValue * len(fields))()
        for slot, field in zip(self._array, fields, strict=True):
            slot.fieldId, slot.scopeId = field.id, field.scope

    def read(self, handle: Any) -> Iterator[tuple[str, float | None, int]]:
        """Return (name, value in base units or None, NVML code) per field. Raises CallFailed."""
        if not self._fields:
            return iter(())
        if self._function is None:
            raise CallFailed(NOT_SUPPORTED)
        check(self._function(handle, ctypes.c_int32(len(self._fields)), ctypes.byref(self._array)))
        rows = []
        dropped = False
        for slot, field in zip(self._array, self._fields, strict=True):
            code = slot.nvmlReturn
            member = _NUMBER.get(slot.valueType)
            if code or member is None:
                rows.append((field.name, None, code or NOT_SUPPORTED))
                dropped = dropped or code in UNSUPPORTED
            else:
                rows.append((field.name, getattr(slot.value, member) / field.divisor, 0))
        if dropped:
            lost = {name for name, _, code in rows if code in UNSUPPORTED}
            self._use(tuple(field for field in self._fields if field.name not in lost))
        return iter(rows)


GPM_METRICS = (("sm_active_ratio", 2), ("tensor_active_ratio", 5), ("dram_active_ratio", 10))


class Gpm:
    """GPM metrics of one device (Hopper and newer): two samples that are swapped, one new sample per tick."""

    def __init__(self, handle: Any) -> None:
        if not ask("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice:
            raise CallFailed(NOT_SUPPORTED)
        self._samples = [ask("nvmlGpmSampleAlloc"), ask("nvmlGpmSampleAlloc")]
        self._filled = False
        self._query = pynvml.c_nvmlGpmMetricsGet_t()
        self._query.version = 1
        self._query.numMetrics = len(GPM_METRICS)
        for slot, (_, metric) in zip(self._query.metrics, GPM_METRICS, strict=False):
            slot.metricId = metric

    def read(self, handle: Any) -> list[tuple[str, float | None, int]]:
        """Return (name, ratio or None, NVML code) per metric since the last read; nothing the first time."""
        try:
            ask("nvmlGpmSampleGet", handle, self._samples[1])
        except CallFailed:
            self._filled = False
            raise
        self._samples.reverse()
        if not self._filled:
            self._filled = True
            return []
        self._query.sample1, self._query.sample2 = self._samples[1], self._samples[0]
        ask("nvmlGpmMetricsGet", self._query)
        rows: list[tuple[str, float | None, int]] = []
        for slot, (name, _) in zip(self._query.metrics, GPM_METRICS, strict=False):
            code = slot.nvmlReturn
            rows.append((name, None, code) if code else (name, slot.value / 100, 0))
        return rows

    def free(self) -> None:
        """Give the samples back to the driver."""
        for sample in self._samples:
            ask("nvmlGpmSampleFree", sample)
