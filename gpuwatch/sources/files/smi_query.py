"""``nvidia-smi -q``: indented sections of ``Key : Value`` per GPU, as R470 to R590 print them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatch.sources.files.smi_units import FACTORS, MIB, REASON_NAMES, absent, number, stamp
from gpuwatch.sources.nvml.integrated import memory_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.sources.files.samples import Found

MARKS = (
    "NVSMI LOG",
    "FB Memory Usage",
    "Product Name  ",
    "Remapped Rows",
    "Clocks Event Reasons",
    "Clocks Throttle Reasons",
)

_LINE = re.compile(r"^(?P<indent> *)(?P<key>\S.*?)(?: +: (?P<value>.*)| *)$")
_GPU = re.compile(r"^GPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)$")

# section / key | series, type | unit; sections are named by their last heading.
_ROWS = """
FB Memory Usage/Total            | memory_total_bytes | MiB
FB Memory Usage/Reserved         | memory_reserved_bytes | MiB
FB Memory Usage/Used             | memory_used_bytes | MiB
FB Memory Usage/Free             | memory_free_bytes | MiB
Utilization/Gpu                  | busy_ratio | %
Utilization/GPU                  | busy_ratio | %
Utilization/Memory               | memory_bandwidth_busy_ratio | %
Temperature/GPU Current Temp     | temperature_celsius | 1
Temperature/Memory Current Temp  | memory_temperature_celsius | 1
Power Readings/Power Draw        | power_watts | 1
GPU Power Readings/Power Draw    | power_watts | 1
GPU Power Readings/Average Power Draw | power_watts | 1
GPU Power Readings/Instantaneous Power Draw | power_watts | 1
Power Readings/Enforced Power Limit | power_limit_watts | 1
GPU Power Readings/Current Power Limit | power_limit_watts | 1
Power Readings/Default Power Limit | power_limit_default_watts | 1
GPU Power Readings/Default Power Limit | power_limit_default_watts | 1
Clocks/SM                        | sm_clock_hertz | MHz
Clocks/Memory                    | memory_clock_hertz | MHz
Max Clocks/SM                    | sm_clock_max_hertz | MHz
PCIe Generation/Current          | pcie_link_generation | 1
PCIe Generation/Max              | pcie_link_generation_max | 1
PCIe Generation/Device Current   | pcie_link_generation | 1
Link Width/Current               | pcie_link_width | x
Link Width/Max                   | pcie_link_width_max | x
Remapped Rows/Pending            | row_remap_pending | yes
Remapped Rows/Remapping Failure Occurred | row_remap_failed | yes
Volatile/SRAM Uncorrectable      | ecc_errors_total uncorrected | 1
Volatile/DRAM Uncorrectable      | ecc_errors_total uncorrected | 1
Volatile/SRAM Uncorrectable Parity | ecc_errors_total uncorrected | 1
Volatile/SRAM Uncorrectable SEC-DED | ecc_errors_total uncorrected | 1
Volatile/SRAM Correctable        | ecc_errors_total corrected | 1
Volatile/DRAM Correctable        | ecc_errors_total corrected | 1
"""
_KEYS: dict[str, tuple[str, str, str]] = {}
for _row in _ROWS.strip().splitlines():
    _key, _series, _unit = (part.strip() for part in _row.split("|"))
    _KEYS[_key] = (*_series.partition(" ")[::2], _unit)

_ACTIONS = {"None": 0.0, "Reset": 1.0, "Reboot": 2.0, "Drain P2P": 3.0, "Drain and Reset": 4.0}
_REASONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")
_REASON_KEYS = {
    "Idle": "gpu_idle",
    "Applications Clocks Setting": "applications_clocks_setting",
    "SW Power Cap": "sw_power_cap",
    "HW Slowdown": "hw_slowdown",
    "HW Thermal Slowdown": "hw_thermal_slowdown",
    "HW Power Brake Slowdown": "hw_power_brake_slowdown",
    "Sync Boost": "sync_boost",
    "SW Thermal Slowdown": "sw_thermal_slowdown",
}


class _Log:
    """One print: its GPUs are numbered in the order in which they stand."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.time = 0
        self.gpu = -1
        self.info: dict[str, str] = {}
        self.sections: list[tuple[int, str]] = []
        self.errors: dict[str, float] = {}
        self.pid = self.process = ""

    def line(self, at: int, text: str) -> None:
        gpu = _GPU.match(text)
        if gpu is not None:
            self.end()
            self.gpu += 1
            self.info = {"pci_bus_id": gpu["bus"], "driver_version": self.info.get("driver_version", "")}
            self.sections = []
            return
        found = _LINE.match(text)
        if found is None:
            return
        indent, key, value = len(found["indent"]), found["key"], found["value"]
        while self.sections and self.sections[-1][0] >= indent:
            self.sections.pop()
        if value is None:
            self.sections.append((indent, key))
        else:
            self._value(at, key.strip(), value.strip())
            if key.strip() in ("Process ID", "GPU instance ID"):
                return

    def _value(self, at: int, key: str, value: str) -> None:
        if key == "Timestamp":
            self.time = stamp(value)
        elif key in ("Driver Version", "CUDA Version"):
            self.found.tell("driver.version" if key[0] == "D" else "cuda.version", value, at, self.time)
            if key[0] == "D":
                self.info["driver_version"] = value
        elif key in ("Product Name", "GPU UUID"):
            self.info["name" if key[0] == "P" else "uuid"] = value
        elif self.gpu >= 0:
            self._reading(at, key, value)

    def _reading(self, at: int, key: str, value: str) -> None:
        section = self.sections[-1][1] if self.sections else ""
        if key in ("Process ID", "Name"):
            self.pid, self.process = (value, "") if key == "Process ID" else (self.pid, value)
        elif key == "Used GPU Memory" and self.pid:
            used = number(value)
            if used is not None:
                self._add("process_memory_bytes", used * MIB, pid=self.pid, process=self.process)
        elif section in _REASONS and key in _REASON_KEYS and value in ("Active", "Not Active"):
            self._add("clocks_event_active", float(value == "Active"), reason=REASON_NAMES[_REASON_KEYS[key]])
        elif key == "GPU Recovery Action" and value in _ACTIONS:
            self._add("recovery_action", _ACTIONS[value])
        else:
            name, kind, unit = _KEYS.get(f"{section}/{key}", ("", "", ""))
            if name:
                self._known(at, name, kind, unit, value)

    def _known(self, at: int, name: str, kind: str, unit: str, value: str) -> None:
        if unit == "yes":
            reading = {"Yes": 1.0, "No": 0.0}.get(value)
        else:
            reading = number(value.removesuffix("x") if unit == "x" else value)
        if reading is None:
            if absent(value):
                self.found.absent(f"gpu_{name}", str(self.gpu), absent(value), at, self.time)
        elif kind:
            self.errors[kind] = self.errors.get(kind, 0.0) + reading
        else:
            self._add(name, reading * FACTORS.get(unit, 1.0))

    def end(self) -> None:
        """Finish a GPU: its name is known only now."""
        if self.gpu < 0:
            return
        for kind, errors in self.errors.items():
            self._add("ecc_errors_total", errors, type=kind)
        self.errors = {}
        info = {key: self.info.get(key, "") for key in ("name", "pci_bus_id", "driver_version")}
        self._add("info", 1.0, **info, memory_kind=memory_kind(info["name"]))

    def _add(self, name: str, value: float, /, **labels: str) -> None:
        self.found.is_kind("nvidia_smi")
        uuid = self.info.get("uuid", "")
        self.found.samples.add(f"gpu_{name}", value, self.time, gpu=str(self.gpu), uuid=uuid, **labels)


def read_query(lines: Sequence[tuple[int, str]], found: Found) -> None:
    """Read every print in (number, text) lines."""
    log = _Log(found)
    for at, text in lines:
        if "NVSMI LOG" in text:
            log.end()
            log = _Log(found)
        else:
            log.line(at, text)
    log.end()
