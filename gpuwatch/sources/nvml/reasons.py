"""What NVML's return codes mean for people and programs. Runs in the parent; pynvml is not imported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.model import Reason
from gpuwatch.sources.nvml.wire import BINDING, NO_GPU


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no worker."""

    reason: Reason
    detail: str
    rare: bool = False


REASONS: dict[int, Reason] = {
    1: Reason.NO_DRIVER,
    2: Reason.NOT_SUPPORTED,
    3: Reason.NOT_SUPPORTED,
    4: Reason.NO_PERMISSION,
    6: Reason.NOT_SUPPORTED,
    9: Reason.NO_DRIVER,
    10: Reason.TIMEOUT,
    12: Reason.NO_DRIVER,
    13: Reason.NOT_SUPPORTED,
    15: Reason.LOST,
    16: Reason.RESETTING,
    17: Reason.NO_PERMISSION,
    18: Reason.DRIVER_MISMATCH,
    25: Reason.NOT_SUPPORTED,
    26: Reason.NOT_SUPPORTED,
    28: Reason.LOST,
    BINDING: Reason.FAILED,
    NO_GPU: Reason.NOT_FOUND,
}
"""Reason by ``nvmlReturn_t``; every other code is FAILED."""

WORDS: dict[int, str] = {
    -2: "the driver reported an impossible value",
    -1: "the driver reported text that is not UTF-8",
    2: "not supported by this driver",
    3: "not supported by this GPU",
    4: "no permission",
    6: "not found",
    10: "timed out",
    13: "this driver has no such function",
    15: "GPU is lost",
    16: "GPU requires a reset",
    25: "this driver wants another struct version",
    26: "deprecated in this driver",
    28: "GPU not found",
}

CALL_REASON = {"lost": Reason.LOST, "hung": Reason.HUNG, "late": Reason.TIMEOUT, "resetting": Reason.RESETTING}
"""Reason by state of a GPU, for the states that take all its values away."""

RARE = frozenset({9, 12, BINDING, NO_GPU})
"""Failures that stay until somebody installs or plugs in something: retried rarely."""


def reason_of(code: int) -> Reason:
    """Return the reason for programs."""
    return REASONS.get(code, Reason.FAILED)


def words_of(code: int) -> str:
    """Return the reason for one absent value."""
    return WORDS.get(code, f"NVML error {code}")


def in_container(root: str = "/") -> bool:
    """Say whether this looks like the inside of a container."""
    markers = (".dockerenv", "run/.containerenv")
    return "KUBERNETES_SERVICE_HOST" in os.environ or any(Path(root, marker).exists() for marker in markers)


_DETAILS: dict[int, tuple[str, str]] = {
    4: ("no permission to use the NVIDIA driver; see who may read /dev/nvidiactl", ""),
    9: ("no NVIDIA driver: the kernel module is not loaded (see dmesg; modprobe nvidia)", ""),
    12: ("no NVIDIA driver: libnvidia-ml.so.1 not found", "start the container with --gpus all"),
    17: ("the operating system forbids the use of the NVIDIA driver", "give the container the NVIDIA devices"),
    18: ("driver and libnvidia-ml.so.1 differ in version: the driver was replaced; reload the module or reboot", ""),
    999: ("NVML says Unknown Error ({text})", "after systemctl daemon-reload a container has to be restarted"),
    BINDING: ("{text}", ""),
    NO_GPU: ("the NVIDIA driver {text} lists no GPU", "start the container with --gpus all"),
    0: ("the NVML worker failed: {text}", ""),
}
"""What to say, and what to add inside a container, by code of ``end``."""


def failure_detail(code: int, text: str, *, container: bool) -> str:
    """Say in one line why the worker ended, and what helps. `text` is what the worker added."""
    detail, hint = _DETAILS.get(code, (f"NVML: {words_of(code)} ({{text}})", ""))
    detail = detail.replace("{text}", text)
    return f"{detail}; {hint}" if container and hint else detail


DRIVER_TRACES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/etc/ld.so.cache", "/dev/dxg")
"""Files that appear or change when a driver is installed or loaded."""


def driver_traces() -> tuple[float, ...]:
    """Return the times of `DRIVER_TRACES`, 0 for one that is not there."""
    return tuple(_changed(path) for path in DRIVER_TRACES)


def _changed(path: str) -> float:
    try:
        # Files of /proc and /dev have no steady time; that they exist is what counts.
        return Path(path).stat().st_mtime if path.startswith("/etc") else float(Path(path).exists())
    except OSError:
        return 0.0
