"""The GPUs of one engine as series, each figure for all ranks alike or for each its own."""

from __future__ import annotations

from tests.unit.diagnosis.watch import CONFIG, ENGINE, SERVER, gpu, name

GIB = 1 << 30


def after(second, low, high):
    return lambda now: float(high) if now >= second else float(low)


def group(ranks=2, **figures):
    """The GPUs of one engine; a figure is one value for all ranks, or a list with one for each."""
    rows = {
        name("engine_requests_running", ENGINE): 4.0,
        name("engine_config_tensor_parallel_size", CONFIG): float(ranks),
    }
    for index in range(ranks):
        rows[name("gpu_engine", gpu(index), server=SERVER, basis="process")] = 1.0
        for short, value in figures.items():
            own = value[index] if isinstance(value, list) else value
            rows[name(f"gpu_{short}", gpu(index))] = own
    return rows


STEADY = {
    "busy_ratio": 0.95,
    "power_watts": 500.0,
    "power_limit_watts": 700.0,
    "memory_used_bytes": 70.0 * GIB,
    "memory_total_bytes": 80.0 * GIB,
    "pcie_link_width": 16.0,
    "pcie_link_generation": 4.0,
}
