"""Compares the figures of the NVML source with nvidia-smi's, on a machine with real GPUs.

Prints one JSON object with both figures of every comparison; status 1 when one is outside its tolerance. What changes
from moment to moment has a wide tolerance, what does not change has none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import psutil

from gpuwatch.clock import SystemClock
from gpuwatch.model import label, name_of
from gpuwatch.sources.nvml.source import NvmlSource

MIB = float(1 << 20)
# nvidia-smi's name, our metric without its prefix, factor to our unit, absolute and relative tolerance.
COMPARED = (
    ("memory.total", "memory_total_bytes", MIB, MIB, 0.0),
    ("memory.used", "memory_used_bytes", MIB, 256 * MIB, 0.02),
    ("memory.reserved", "memory_reserved_bytes", MIB, MIB, 0.0),
    ("temperature.gpu", "temperature_celsius", 1.0, 8.0, 0.0),
    ("temperature.memory", "memory_temperature_celsius", 1.0, 8.0, 0.0),
    ("power.draw", "power_watts", 1.0, 40.0, 0.4),
    ("enforced.power.limit", "power_limit_watts", 1.0, 1.0, 0.0),
    ("clocks.max.sm", "sm_clock_max_hertz", 1e6, 0.0, 0.0),
    ("clocks.sm", "sm_clock_hertz", 1e6, 3e8, 0.5),
    ("clocks.mem", "memory_clock_hertz", 1e6, 3e8, 0.5),
    ("utilization.gpu", "busy_ratio", 0.01, 1.0, 0.0),
    ("pcie.link.gen.max", "pcie_link_generation_max", 1.0, 0.0, 0.0),
    ("pcie.link.width.max", "pcie_link_width_max", 1.0, 0.0, 0.0),
    ("pcie.link.width.current", "pcie_link_width", 1.0, 0.0, 0.0),
)


def nvidia_smi(query: str, fields: list[str]) -> list[dict[str, str]]:
    """Return the rows of one nvidia-smi query."""
    command = ["nvidia-smi", f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    return [dict(zip(fields, (part.strip() for part in line.split(",")), strict=False)) for line in text.splitlines()]


def number(text: str) -> float | None:
    """Return a figure of nvidia-smi, None for [N/A] and the like."""
    try:
        return float(text)
    except ValueError:
        return None


def compare(row: dict[str, str], ours: dict[str, float], kind: str) -> list[dict[str, Any]]:
    """Compare the figures of one GPU. Where nvidia-smi has none, ours may only be there for unified memory."""
    results = []
    for theirs, name, factor, absolute, relative in COMPARED:
        raw = number(row[theirs])
        expected, found = None if raw is None else raw * factor, ours.get(name)
        if expected is None or found is None:
            good = (expected is None) == (found is None) or (kind != "dedicated" and name.startswith("memory_"))
        else:
            good = abs(found - expected) <= absolute + relative * abs(expected)
        results.append({"name": name, "nvidia_smi": expected, "gpuwatch": found, "ok": good})
    return results


def main(seconds: float) -> int:
    """Poll for some seconds, then compare the last batch."""
    source = NvmlSource("check", SystemClock())
    try:
        begin = time.monotonic()
        first = source.poll()
        started = time.monotonic() - begin
        worker = psutil.Process(source.worker_pid) if source.worker_pid else None
        cpu = sum(worker.cpu_times()[:2]) if worker else 0.0
        span = time.monotonic()
        while time.monotonic() - span < seconds:
            source.poll()
            time.sleep(min(0.5, seconds))
        rows = nvidia_smi("gpu", ["uuid", "name", "driver_version", *(theirs for theirs, *_ in COMPARED)])
        batch = source.poll()
        cost = (sum(worker.cpu_times()[:2]) - cpu) / (time.monotonic() - span) if worker else None
        resident = worker.memory_info().rss if worker else None
    finally:
        source.close()
    gpus: dict[str, dict[str, float]] = {}
    info: dict[str, dict[str, str]] = {}
    for key, value in zip(batch.keys, batch.values, strict=True):
        name, uuid = name_of(key).removeprefix("gpuwatch_gpu_"), label(key, "uuid")
        gpus.setdefault(uuid, {})[name] = value
        if name == "info":
            info[uuid] = dict(key)
    report: dict[str, Any] = {
        "up": batch.up,
        "detail": batch.detail,
        "first_poll": {"seconds": round(started, 3), "series": len(first.keys)},
        "series": len(batch.keys),
        "worker": {"cpu_ratio": cost, "resident_bytes": resident},
        "absent": [[name_of(a.labels), label(a.labels, "gpu"), a.reason.value, a.detail] for a in batch.absent],
        "gpus": [],
    }
    good = batch.up and bool(rows)
    for row in rows:
        mine = info.get(row["uuid"], {})
        results = compare(row, gpus.get(row["uuid"], {}), mine.get("memory_kind", "dedicated"))
        same = mine.get("name") == row["name"] and mine.get("driver_version") == row["driver_version"]
        report["gpus"].append({"uuid": row["uuid"], "identity": mine, "identity_ok": same, "figures": results})
        good = good and same and all(result["ok"] for result in results)
    report["ok"] = good
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 12.0))
