"""GPUs without memory of their own, by name. Light, because the NVML worker uses it as well as the readers of files."""

from __future__ import annotations

INTEGRATED = ("GB10", "DGX Spark", "Thor", "Orin", "Xavier", "Tegra")
"""Parts of the names of GPUs that share the machine's memory."""


def is_integrated(name: str) -> bool:
    """Return whether the GPU called `name` shares the machine's memory."""
    return any(part in name for part in INTEGRATED)


def memory_kind(name: str) -> str:
    """Return ``unified`` or ``dedicated`` for the GPU called `name`; empty where it has no name."""
    if not name:
        return ""
    return "unified" if is_integrated(name) else "dedicated"
