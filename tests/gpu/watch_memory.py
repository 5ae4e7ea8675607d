"""Prints the lowest and highest used memory of each GPU over some seconds, as the NVML source sees it at 1 Hz."""

from __future__ import annotations

import json
import sys
import time

from gpuwatch.clock import SystemClock
from gpuwatch.model import label, name_of
from gpuwatch.sources.nvml.source import NvmlSource

NAMES = {
    "gpuwatch_gpu_memory_used_low_bytes": ("low", min),
    "gpuwatch_gpu_memory_used_high_bytes": ("high", max),
    "gpuwatch_gpu_memory_used_bytes": ("highest_at_a_tick", max),
    "gpuwatch_gpu_busy_ratio": ("busiest", max),
}


def main(seconds: float) -> None:
    """Poll once a second and print the extremes by UUID."""
    source = NvmlSource("check", SystemClock())
    found: dict[str, dict[str, float]] = {}
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            batch = source.poll()
            for key, value in zip(batch.keys, batch.values, strict=True):
                if name_of(key) in NAMES:
                    name, choose = NAMES[name_of(key)]
                    gpu = found.setdefault(label(key, "uuid"), {})
                    gpu[name] = choose(gpu.get(name, value), value)
            time.sleep(1.0)
    finally:
        source.close()
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(float(sys.argv[1]))
