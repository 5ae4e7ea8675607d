"""The memory ledger live: what one tick of eight GPUs costs, and what a change of facts costs.

python tests/bench/bench_ledger.py
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from table import Row, print_table  # noqa: E402  # the folders are put on the path just above

from gpuwatch.ledger.predict import engine_of, predict  # noqa: E402
from gpuwatch.ledger.whatif import on_these_cards  # noqa: E402
from gpuwatch.model import Batch, series  # noqa: E402
from gpuwatch.sources.derived.ledger import Ledger  # noqa: E402

GIB = 2**30
GPUS = 8
SERVER = {"host": "h", "server": "127.0.0.1:8000"}
TICK_MS, WHAT_IF_MS = 1.0, 100.0
FACTS = {"model": "Qwen/Qwen3-32B", "version": "0.32.0", "tp": GPUS, "max_model_len": 40960}


def batches(tick: int) -> list[Batch]:
    """Return what NVML, the engine's page and its settings say in one tick."""
    values: list[float] = []
    for gpu in range(GPUS):
        used = (70 + gpu / 10 + tick % 7 / 100) * GIB
        values += [80 * GIB, used, 0.5 * GIB, 79.5 * GIB - used, 0.1 * GIB, used - 0.2 * GIB, 1.0]
    return [
        Batch("nvml", tick * 1000, NVML, values),
        Batch("engine:127.0.0.1:8000", tick * 1000, PAGE, [0.5 + tick % 10 / 100]),
        Batch("config", tick * 1000, CONFIG, [7.7 * GIB, 55.0 * GIB, 1.5 * GIB, 0.6 * GIB]),
    ]


def _gpu(number: int) -> list[tuple[tuple[str, str], ...]]:
    of = {"host": "h", "uuid": f"GPU-{number}", "gpu": str(number)}
    names = ("total", "used", "reserved", "free", "other")
    return [
        *(series(f"gpuwatch_gpu_memory_{name}_bytes", **of) for name in names),
        series("gpuwatch_gpu_memory_engine_bytes", **of, server=SERVER["server"]),
        series("gpuwatch_gpu_engine", **of, server=SERVER["server"], basis="process"),
    ]


NVML = tuple(labels for number in range(GPUS) for labels in _gpu(number))
PAGE = (series("gpuwatch_engine_kv_cache_usage_ratio", **SERVER),)
CONFIG = tuple(
    series(f"gpuwatch_engine_config_{part}_bytes", **SERVER)
    for part in ("weights", "kv_cache", "activation_peak", "graph")
)


def milliseconds(work, times: int) -> float:
    """Return the median time of `work`."""
    took = []
    for number in range(times):
        begun = time.perf_counter()
        work(number)
        took.append(time.perf_counter() - begun)
    return 1000 * statistics.median(took)


def rows(quick: bool = False) -> list[Row]:
    """Return all lines."""
    ledger = Ledger()
    prepared = [batches(tick) for tick in range(300)]
    tick = milliseconds(lambda number: ledger.update(number * 1000, prepared[number]), len(prepared))
    engine = engine_of("vllm", FACTS, 79.6 * GIB)
    assert engine is not None
    times = 5 if quick else 30
    facts = milliseconds(lambda _: predict(engine_of("vllm", FACTS, 79.6 * GIB)), times)
    changes = milliseconds(lambda _: on_these_cards(engine, 131072), times)
    return [
        Row(f"ledger of {GPUS} GPUs, one tick", f"{tick:.2f} ms", judged=tick, budget=TICK_MS, unit="ms"),
        Row("ledger: prediction after a change of facts", f"{facts:.2f} ms"),
        Row("ledger: what-if rows of one engine", f"{changes:.1f} ms", judged=changes, budget=WHAT_IF_MS, unit="ms"),
    ]


if __name__ == "__main__":
    print_table(rows())
