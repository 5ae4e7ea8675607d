"""What is read from a GPU, as tables and as functions on a `Unit`. Runs in the NVML worker process only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatch.sources.nvml.api import pointer
from gpuwatch.sources.nvml.fields import FAST_FIELDS, GPM_METRICS, SLOW_FIELDS, FieldBatch, throttle_fields

if TYPE_CHECKING:
    from gpuwatch.sources.nvml.fields import Gpm
    from gpuwatch.sources.nvml.unit import Unit

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
"""Name by ``nvmlDeviceArchitecture_t``."""

CLOCK_REASONS = (
    ("idle", 0x1),
    ("application_clocks", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal", 0x20),
    ("hw_thermal", 0x40),
    ("power_brake", 0x80),
    ("display_clocks", 0x100),
    ("board_limit", 0x200),
    ("reliability", 0x400),
)
"""Bits of the clocks event reasons (throttle reasons before R535)."""

FAST_CALLS = (
    ("sm_clock_hertz", "nvmlDeviceGetClockInfo", (1,), 1e6),
    ("memory_clock_hertz", "nvmlDeviceGetClockInfo", (2,), 1e6),
    ("temperature_celsius", "nvmlDeviceGetTemperature", (0,), 1.0),
)
SLOW_CALLS = (
    ("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
    ("power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit", (), 1e-3),
    ("sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", (1,), 1e6),
    ("pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration", (), 1.0),
    ("pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", (), 1.0),
    ("pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth", (), 1.0),
    ("pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth", (), 1.0),
    ("ecc_errors_total|type=corrected", "nvmlDeviceGetTotalEccErrors", (0, 0), 1.0),
    ("ecc_errors_total|type=uncorrected", "nvmlDeviceGetTotalEccErrors", (1, 0), 1.0),
)
"""Name, function of pynvml, arguments after the handle, factor to base units."""


class Readings:
    """The calls of one tick and of every tenth tick, for one GPU on one driver.

    Args:
        driver: the driver's version as numbers, which decides which field ids may be asked.
    """

    def __init__(self, driver: tuple[int, ...]) -> None:
        self._fast = FieldBatch((*FAST_FIELDS, *throttle_fields(driver)))
        self._slow = FieldBatch(SLOW_FIELDS)
        kind = "Event" if pointer("nvmlDeviceGetCurrentClocksEventReasons") else "Throttle"
        self._clock_reasons = f"nvmlDeviceGetCurrentClocks{kind}Reasons"

    def retry(self) -> None:
        """Ask again for the fields that the card did not have."""
        self._fast.reset()
        self._slow.reset()

    def fast(self, unit: Unit, gpm: Gpm | None) -> dict[str, float]:
        """Return what changes from tick to tick, in base units by name."""
        values: dict[str, float] = {}
        rates = unit.value("busy_ratio", "nvmlDeviceGetUtilizationRates")
        if rates is not None:
            unit.take(values, "busy_ratio", rates.gpu / 100)
            unit.take(values, "memory_bandwidth_busy_ratio", rates.memory / 100)
        for name, function, args, scale in FAST_CALLS:
            value = unit.value(name, function, *args)
            if value is not None:
                unit.take(values, name, value * scale)
        mask = unit.value("clocks_event_active", self._clock_reasons)
        if mask is not None:
            for reason, bit in CLOCK_REASONS:
                values[f"clocks_event_active|reason={reason}"] = 1.0 if mask & bit else 0.0
        unit.take_rows(values, "nvmlDeviceGetFieldValues", "energy_joules_total", self._fast.read)
        if "power_watts" not in values:
            power = unit.value("power_watts", "nvmlDeviceGetPowerUsage")
            if power is not None:
                unit.take(values, "power_watts", power * 1e-3)
        if gpm is not None:
            unit.take_rows(values, "nvmlGpmMetricsGet", GPM_METRICS[0][0], gpm.read)
        return values

    def slow(self, unit: Unit) -> dict[str, float]:
        """Return limits, links and error counts, in base units by name."""
        values: dict[str, float] = {}
        for name, function, args, scale in SLOW_CALLS:
            value = unit.value(name, function, *args)
            if value is not None:
                unit.take(values, name, value * scale)
        rows = unit.value("row_remap_pending", "nvmlDeviceGetRemappedRows")
        if rows is not None:
            values["row_remap_pending"], values["row_remap_failed"] = float(bool(rows[2])), float(bool(rows[3]))
        unit.take_rows(values, "nvmlDeviceGetFieldValues", "pcie_replays_total", self._slow.read)
        return values
