"""Makes memory peaks shorter than a second and then a fragmented pool, with torch; prints what it did as JSON."""

from __future__ import annotations

import json
import sys
import time

import torch

MIB = 1 << 20
PEAKS = 6
PEAK_SECONDS = 0.3
PAUSE_SECONDS = 2.7
FRAGMENTED_SECONDS = 10.0


def main() -> None:
    """Run for about 30 seconds on the first device."""
    free, total = torch.cuda.mem_get_info()
    unit = min(free // 8, 8192 * MIB) // MIB * MIB
    weights = torch.ones(unit, dtype=torch.uint8, device="cuda")
    report = {
        "uuid": f"GPU-{getattr(torch.cuda.get_device_properties(0), 'uuid', '')}",
        "total_bytes": total,
        "weights_bytes": unit,
        "peak_bytes": 3 * unit,
        "used_without_peak_bytes": total - torch.cuda.mem_get_info()[0],
    }
    used = 0
    for _ in range(PEAKS):
        peak = torch.ones(2 * unit, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        used = max(used, total - torch.cuda.mem_get_info()[0])
        time.sleep(PEAK_SECONDS)
        del peak
        torch.cuda.empty_cache()
        time.sleep(PAUSE_SECONDS)
    report["used_at_peak_bytes"] = used
    # Every second block is given back: the pool keeps the memory, but in pieces of 24 MiB.
    blocks = [torch.ones(24 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2 * unit // (24 * MIB))]
    blocks = blocks[::2]
    torch.cuda.synchronize()
    report["reserved_bytes"] = torch.cuda.memory_reserved()
    report["allocated_bytes"] = torch.cuda.memory_allocated()
    end = time.monotonic() + FRAGMENTED_SECONDS
    while time.monotonic() < end:
        weights.add_(1)
        torch.cuda.synchronize()
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
