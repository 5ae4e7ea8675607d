"""Time of one tick of rules and catalogue over a full store: run it as a program.

Prints milliseconds of processor time and, because machines differ, the ratio to a floor measured in the same run:
one numpy reduction of eight series over a minute per expression.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from table import Row, print_table  # noqa: E402  # the folders are put on the path just above

from gpuwatch.alerts.engine import RuleEngine  # noqa: E402
from gpuwatch.alerts.rulefile import load, shipped_paths  # noqa: E402
from gpuwatch.model import series  # noqa: E402
from gpuwatch.pipeline.core import ANNOTATIONS_MS  # noqa: E402
from gpuwatch.promql.local import LocalQuerier  # noqa: E402
from gpuwatch.queries import QUERIES  # noqa: E402
from gpuwatch.series import ENGINE, GPU, METRICS  # noqa: E402
from gpuwatch.store import Store  # noqa: E402

START = 1_790_000_000_000
BOUNDS = [
    *("0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1.0", "2.5", "5.0"),
    *("7.5", "10.0", "20.0", "40.0", "80.0", "160.0", "640.0", "2560.0", "+Inf"),
]
RULES = """
rate(gpuwatch_engine_preemptions_total[1m]) > 0.1 and avg_over_time(gpuwatch_engine_kv_cache_usage_ratio[1m]) > 0.4
histogram_quantile(0.99, sum by (le, model_name, server) \
(rate(gpuwatch_engine_time_to_first_token_seconds_bucket[1m]))) > 2
histogram_quantile(0.95, sum by (le, model_name, server) \
(rate(gpuwatch_engine_inter_token_latency_seconds_bucket[1m]))) > 0.2
histogram_quantile(0.99, sum by (le, model_name) (rate(gpuwatch_engine_e2e_latency_seconds_bucket[5m]))) > 30
histogram_quantile(0.9, sum by (le, server) (rate(gpuwatch_engine_queue_time_seconds_bucket[1m]))) > 1
sum by (server) (rate(gpuwatch_engine_generation_tokens_total[1m])) < 10 and on (server) \
gpuwatch_engine_requests_running > 0
rate(gpuwatch_engine_prefix_cache_hits_total[1m]) / rate(gpuwatch_engine_prefix_cache_queries_total[1m]) < 0.1
deriv(gpuwatch_engine_requests_waiting[1m]) > 0.5
avg_over_time(gpuwatch_engine_requests_waiting[2m]) > 10
sum by (server) (increase(gpuwatch_engine_requests_finished_total{reason="abort"}[5m])) > 5
sum by (server) (rate(gpuwatch_engine_requests_finished_total[1m])) == 0 and on (server) \
gpuwatch_engine_requests_running > 0
absent(gpuwatch_engine_requests_running)
max_over_time(gpuwatch_gpu_temperature_celsius[1m]) > 85
rate(gpuwatch_gpu_throttle_seconds_total{reason="thermal"}[1m]) > 0.1
rate(gpuwatch_gpu_throttle_seconds_total{reason="power"}[1m]) > 0.5
rate(gpuwatch_gpu_throttle_seconds_total{reason=~"hw_.*"}[1m]) > 0
increase(gpuwatch_gpu_xid_errors_total[5m]) > 0
increase(gpuwatch_gpu_ecc_errors_total{type="uncorrected"}[10m]) > 0
rate(gpuwatch_gpu_ecc_errors_total{type="corrected"}[10m]) > 1
gpuwatch_gpu_memory_used_bytes / gpuwatch_gpu_memory_total_bytes > 0.97
predict_linear(gpuwatch_gpu_memory_used_bytes[5m], 600) > 1e12
avg_over_time(gpuwatch_gpu_busy_ratio[1m]) < 0.1 and on (host) sum by (host) (gpuwatch_gpu_power_watts) > 100
stddev by (host) (avg_over_time(gpuwatch_gpu_sm_clock_hertz[1m])) > 1e8
max by (host) (avg_over_time(gpuwatch_gpu_busy_ratio[1m])) - min by (host) \
(avg_over_time(gpuwatch_gpu_busy_ratio[1m])) > 0.5
rate(gpuwatch_gpu_pcie_receive_bytes_total[1m]) > 2e10
rate(gpuwatch_gpu_nvlink_transmit_bytes_total[1m]) > 2e11
rate(gpuwatch_gpu_energy_joules_total[1m]) / gpuwatch_gpu_power_limit_watts > 0.98
changes(gpuwatch_gpu_sm_clock_hertz[1m]) > 30
quantile_over_time(0.5, gpuwatch_gpu_busy_ratio[1m]) < 0.2
gpuwatch_gpu_temperature_celsius - on (gpu, host) group_left gpuwatch_gpu_memory_temperature_celsius > 20
topk(3, rate(gpuwatch_engine_generation_tokens_total[1m])) < 1
sum(rate(gpuwatch_engine_prompt_tokens_total[1m])) / sum(rate(gpuwatch_engine_generation_tokens_total[1m])) > 100
histogram_quantile(0.99, sum by (le) (rate(gpuwatch_engine_prefill_time_seconds_bucket[1m]))) > 5
histogram_quantile(0.99, sum by (le) (rate(gpuwatch_engine_decode_time_seconds_bucket[1m]))) > 60
rate(gpuwatch_engine_time_to_first_token_seconds_sum[1m]) / \
rate(gpuwatch_engine_time_to_first_token_seconds_count[1m]) > 2 * \
(rate(gpuwatch_engine_time_to_first_token_seconds_sum[5m] offset 5m) / \
rate(gpuwatch_engine_time_to_first_token_seconds_count[5m] offset 5m))
avg_over_time(gpuwatch_engine_kv_cache_usage_ratio[1m]) > 0.95 unless on (server) \
gpuwatch_engine_requests_waiting == 0
max_over_time(rate(gpuwatch_engine_preemptions_total[30s])[5m:10s]) > 5
min_over_time(gpuwatch_gpu_sm_clock_hertz[1m]) < 0.5 * max_over_time(gpuwatch_gpu_sm_clock_hertz[10m])
histogram_quantile(0.99, rate(gpuwatch_engine_iteration_tokens_bucket[1m])) > 8192
count by (host) (gpuwatch_source_up == 0) > 0
""".strip().splitlines()


def targets(gpus: int, engines: int) -> dict[str, tuple[list[tuple[tuple[str, str], ...]], list[bool]]]:
    """Return the series of each target and which of them are counters."""
    found: dict[str, tuple[list[tuple[tuple[str, str], ...]], list[bool]]] = {"nvml": ([], []), "host": ([], [])}
    for metric in METRICS.values():
        if metric.labels[: len(GPU)] == GPU:
            for gpu in range(gpus):
                _add(found["nvml"], metric, {"host": "node1", "uuid": f"GPU-{gpu:04d}", "gpu": str(gpu)})
        elif metric.labels[: len(ENGINE)] == ENGINE or "server" in metric.labels[:2]:
            for engine in range(engines):
                target = found.setdefault(f"engine:{engine}", ([], []))
                own = {"host": "node1", "server": f"127.0.0.1:{8000 + engine}", "engine_kind": "vllm"}
                if metric.labels[: len(ENGINE)] == ENGINE:
                    own |= {"model_name": "llama", "dp_rank": "0"}
                _add(target, metric, own)
        else:
            _add(found["host"], metric, {"host": "node1"})
    return found


def _add(target, metric, own):
    keys, counters = target
    if metric.kind == "histogram":
        for bound in BOUNDS:
            keys.append(series(f"{metric.name}_bucket", le=bound, **own))
        keys += [series(f"{metric.name}_sum", **own), series(f"{metric.name}_count", **own)]
        counters += [True] * (len(BOUNDS) + 2)
        return
    values = {
        "reason": ("power", "thermal", "hw_thermal", "abort", "stop", "length"),
        "type": ("corrected", "uncorrected"),
    }
    extra = next((name for name in metric.labels if name in values and name not in own), None)
    for value in values[extra] if extra else ("",):
        keys.append(series(metric.name, **own, **({extra: value} if extra else {})))
        counters.append(metric.kind == "counter")


QUIET = ("xid", "ecc", "evictions", "preemptions", "rejected", "failures", "dropped", "replays", "throttle", "events")
"""Counters that stand still on a healthy machine."""
LEVELS = {
    "gpu_memory_total_bytes": 85e9,
    "gpu_memory_used": 78e9,
    "gpu_memory_peak_bytes": 78e9,
    "gpu_memory_free_bytes": 6e9,
    "gpu_memory_engine_bytes": 77e9,
    "gpu_sm_clock": 1.7e9,
    "gpu_power_limit": 700.0,
    "gpu_power_watts": 500.0,
    "gpu_temperature": 60.0,
    "gpu_pcie_link_generation": 5.0,
    "gpu_pcie_link_width": 16.0,
    "gpu_engine": 1.0,
    "engine_kv_cache_usage_ratio": 0.5,
    "engine_kv_cache_blocks": 10_000.0,
    "engine_kv_cache_tokens": 160_000.0,
    "engine_kv_cache_free_tokens": 80_000.0,
    "engine_kv_block_size_tokens": 16.0,
    "engine_requests_running": 30.0,
    "engine_config_max_num_seqs": 64.0,
    "engine_config_max_model_len_tokens": 32_768.0,
    "engine_config_native_context_tokens": 32_768.0,
    "engine_config_kv_heads": 8.0,
    "engine_config_tensor_parallel_size": 8.0,
    "engine_config_data_parallel_size": 1.0,
    "engine_config_memory_fraction_ratio": 0.9,
    "engine_page_processes": 1.0,
    "host_memory_total_bytes": 1e12,
    "host_memory_available_bytes": 8e11,
    "host_shm_total_bytes": 5e11,
    "source_up": 1.0,
    "log_serving": 1.0,
}
"""Gauges of a healthy machine, by the beginning of their names; all others are 0."""
NOISE = 0.01


def levels(names) -> np.ndarray:
    """Return the usual value of each gauge."""
    plain = [dict(labels)["__name__"].removeprefix("gpuwatch_") for labels in names]
    return np.array([next((LEVELS[start] for start in LEVELS if name.startswith(start)), 0.0) for name in plain])


def fill(store: Store, found, samples: int) -> int:
    """Write `samples` seconds of a healthy machine; return the last time."""
    rng = np.random.default_rng(1)
    for target, (keys, counters) in found.items():
        names = tuple(keys)
        step = rng.random((samples, len(keys)))
        quiet = [any(part in dict(labels)["__name__"] for part in QUIET) for labels in names]
        step[:, quiet] = 0.0
        step[:, counters] = step[:, counters].cumsum(axis=0)
        gauges = ~np.array(counters)
        step[:, gauges] = levels(names)[gauges] * (1 + NOISE * (step[:, gauges] - 0.5))
        for second in range(samples):
            store.append(target, START + second * 1000, names, step[second])
    return START + (samples - 1) * 1000


def floor(store: Store, expressions: int) -> float:
    """Return milliseconds for one numpy reduction of a minute of eight series, once per expression."""
    block = next(block for block in store.blocks if block.target == "nvml")
    started = time.thread_time()
    for _ in range(expressions):
        block.data[:8, block.stop - 60 : block.stop].sum(axis=1)
    return (time.thread_time() - started) * 1000


def tick(store: Store, querier: LocalQuerier, found, exprs: list[str], now: int) -> float:
    """Append one second to every target and return milliseconds for evaluating `exprs`."""
    rng = np.random.default_rng(now)
    for target, (keys, _) in found.items():
        block = next(block for block in store.blocks if block.target == target)
        last = block.data[[block.rows[key] for key in keys], block.stop - 1]
        store.append(target, now, block.keys or tuple(keys), last * (1 + 0.001 * rng.random(len(keys))))
    started = time.thread_time()
    for expr in exprs:
        querier.instant(expr, now)
    return (time.thread_time() - started) * 1000


@dataclass(frozen=True, slots=True)
class Size:
    """A store full of series, and the floor of this machine for as many expressions as are asked."""

    title: str
    store: Store
    found: dict
    now: int
    floor: float


def fill_size(title: str, gpus: int, engines: int, wanted: int, samples: int = 900) -> Size:
    """Fill a store; series that nobody asks for make up the number that is wanted."""
    store = Store()
    found = targets(gpus, engines)
    keys, counters = found["host"]
    lacking = wanted - sum(len(names) for names, _ in found.values())
    keys += [series("gpuwatch_other", host="node1", n=str(number)) for number in range(lacking)]
    counters += [False] * lacking
    now = fill(store, found, samples)
    lowest = min(floor(store, len(RULES) + len(QUERIES)) for _ in range(20))
    return Size(f"{title}, {store.series:,} series x {samples}", store, found, now, lowest)


def expressions(size: Size, exprs: list[str], ticks: int = 25) -> tuple[Size, list[float]]:
    """Return the milliseconds of each tick that asks `exprs`, without the five that warm up."""
    querier = LocalQuerier(size.store)
    times = []
    now = size.now
    for _ in range(ticks):
        now += 1000
        times.append(tick(size.store, querier, size.found, exprs, now))
    return replace(size, now=now), times[5:]


def shipped(size: Size, ticks: int = 25) -> tuple[Size, list[float], list[float]]:
    """Return the milliseconds of each tick: the shipped rules with their states alone, and with the catalogue.

    The machine is healthy, but for two settings that move a little with the noise, so that two alerts live.
    """
    querier = LocalQuerier(size.store)
    engine = RuleEngine(load(shipped_paths()), querier, size.store, refresh_ms=ANNOTATIONS_MS)
    alone, all_of_it = [], []
    now = size.now
    for _ in range(ticks):
        now += 1000
        tick(size.store, querier, size.found, [], now)
        started = time.thread_time()
        engine.tick(now)
        alone.append((time.thread_time() - started) * 1000)
        for query in QUERIES.values():
            querier.instant(query.expr("10s"), now)
        all_of_it.append((time.thread_time() - started) * 1000)
    return replace(size, now=now), alone[5:], all_of_it[5:]


def catalogue() -> list[str]:
    """Return the expressions of the catalogue."""
    return [query.expr("10s") for query in QUERIES.values()]


def rows(quick: bool = False) -> list[Row]:
    """Return the lines of the table."""
    ticks = 15 if quick else 40
    found = []
    for title, gpus, engines, wanted, budget, of_rules in (
        ("8 GPUs, 1 engine", 8, 1, 1100, 5.0, 4.0),
        ("8 GPUs, 7 engines", 8, 7, 3000, 12.0, 10.0),
    ):
        size = fill_size(title, gpus, engines, wanted)
        size, both = expressions(size, RULES + catalogue(), ticks)
        size, rules = expressions(size, RULES, ticks)
        size, own, own_and_catalogue = shipped(size, ticks)
        for what, times, limit in (
            (f"{len(RULES)} rules + {len(QUERIES)} catalogue queries", both, budget),
            (f"{len(RULES)} rules", rules, 8.0),
            ("all shipped rules with their states", own, of_rules),
            ("the same + catalogue", own_and_catalogue, budget),
        ):
            typical = statistics.median(times)
            found.append(
                Row(f"{what}; {size.title}", f"{typical:.2f} ms", f"numpy sums {size.floor:.2f} ms",
                    typical / size.floor, typical, limit, "ms")
            )  # fmt: skip
    full = Store()
    full.append("t", 0, tuple(series("m", i=str(at)) for at in range(1100)), [0.0] * 1100)
    size = full.nbytes / 2**20
    raw = 1100 * 900 * 8 / 2**20
    found.append(
        Row("store of 1,100 series when its 15 minutes are full", f"{size:.1f} MiB", f"bare float64 {raw:.1f} MiB",
            size / raw, size, 20.0, "MiB")
    )  # fmt: skip
    return found


def _dearest(querier: LocalQuerier, exprs: list[str], now: int) -> None:
    cost = []
    for expr in exprs:
        querier.instant(expr, now)
        started = time.thread_time()
        for step in range(10):
            querier.instant(expr, now - step - 1)
        cost.append(((time.thread_time() - started) * 100, expr))
    for milliseconds, expr in sorted(cost, reverse=True)[:12]:
        print(f"    {milliseconds:6.3f} ms  {expr[:110]}")


if __name__ == "__main__":
    print_table(rows("--quick" in sys.argv))
    if "-v" in sys.argv:
        large = fill_size("8 GPUs, 7 engines", 8, 7, 3000)
        _dearest(LocalQuerier(large.store), RULES + catalogue(), large.now)
