"""The names and units of nvidia-smi, and the words it prints where it has no value.

Names: ``nvidia-smi --help-query-gpu`` and ``--help-query-compute-apps`` of R470 to R580 (``clocks_throttle_reasons``
was renamed to ``clocks_event_reasons`` in R535); ``-q`` and dmon print the same figures under other headings.
"""

from __future__ import annotations

import re
from datetime import datetime

MIB = 1 << 20

# query name | series without gpuwatch_gpu_ | factor
_ROWS = """
memory.total                        | memory_total_bytes | MiB
memory.used                         | memory_used_bytes | MiB
memory.free                         | memory_free_bytes | MiB
memory.reserved                     | memory_reserved_bytes | MiB
utilization.gpu                     | busy_ratio | %
utilization.memory                  | memory_bandwidth_busy_ratio | %
temperature.gpu                     | temperature_celsius | 1
temperature.memory                  | memory_temperature_celsius | 1
power.draw                          | power_watts | 1
power.draw.instant                  | power_watts | 1
power.draw.average                  | power_watts | 1
enforced.power.limit                | power_limit_watts | 1
power.limit                         | power_limit_watts | 1
power.default_limit                 | power_limit_default_watts | 1
clocks.current.sm                   | sm_clock_hertz | MHz
clocks.sm                           | sm_clock_hertz | MHz
clocks.max.sm                       | sm_clock_max_hertz | MHz
clocks.current.memory               | memory_clock_hertz | MHz
clocks.mem                          | memory_clock_hertz | MHz
pcie.link.gen.current               | pcie_link_generation | 1
pcie.link.gen.gpucurrent            | pcie_link_generation | 1
pcie.link.gen.max                   | pcie_link_generation_max | 1
pcie.link.width.current             | pcie_link_width | 1
pcie.link.width.max                 | pcie_link_width_max | 1
remapped_rows.pending               | row_remap_pending | yes
remapped_rows.failure               | row_remap_failed | yes
ecc.errors.corrected.volatile.total | ecc_errors_total corrected | 1
ecc.errors.uncorrected.volatile.total | ecc_errors_total uncorrected | 1
"""

FACTORS = {"MiB": float(MIB), "%": 0.01, "1": 1.0, "MHz": 1e6, "yes": 1.0}

QUERIES: dict[str, tuple[str, str, str]] = {}
"""Series, label ``type`` and unit by the name of a query."""
for _row in _ROWS.strip().splitlines():
    _name, _series, _unit = (part.strip() for part in _row.split("|"))
    QUERIES[_name] = (*_series.partition(" ")[::2], _unit)

REASON_NAMES = {
    "gpu_idle": "idle",
    "idle": "idle",
    "applications_clocks_setting": "application_clocks",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "power_brake",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal",
}
"""Our names by those of the columns and lines of single reasons."""

_ABSENT = re.compile(
    r"^\[?(N/A|Not Supported|Insufficient Permissions|Unknown Error|GPU is lost|GPU requires reset|ERR!|No data|-)\]?$"
)
_NUMBER = re.compile(r"^(-?\d+(?:\.\d+)?) ?(MiB|%|W|MHz|C|KiB|GiB)?$")
_SIZES = {"KiB": 1 / 1024, "GiB": 1024.0}
_FORMS = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%a %b %d %H:%M:%S %Y")


def number(text: str) -> float | None:
    """Return a printed value without its unit; sizes are in MiB. None for anything else."""
    found = _NUMBER.match(text.strip())
    return None if found is None else float(found[1]) * _SIZES.get(found[2] or "", 1.0)


def absent(text: str) -> str:
    """Return the words that stand for a missing value, or nothing."""
    found = _ABSENT.match(text.strip())
    return "" if found is None else "N/A" if found[1] == "-" else found[1]


def stamp(text: str) -> int:
    """Return the milliseconds of a time of nvidia-smi, which is local time; 0 for none."""
    for form in _FORMS:
        try:
            return round(datetime.strptime(" ".join(text.split()), form).astimezone().timestamp() * 1000)
        except (ValueError, OverflowError):
            continue
    return 0
