"""Half an hour of four machines for dashboards: three made up, so that rare series exist, and the demo recording.

Every series goes through the real pipeline: rules, alerts and findings are its own.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from pathlib import Path

from gpuwatch.alerts.rulefile import load
from gpuwatch.model import Batch, Reason, series
from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.pipeline.openmetrics import History
from gpuwatch.recording import Reader

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "gpuwatch/data/demo.rec"
GIB = 2**30
STEP = 5
SCRAPE = 15
SECONDS = 1800
SILENT = 1320
BOUNDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


SPREADS = {
    "time_to_first_token_seconds": BOUNDS,
    "inter_token_latency_seconds": BOUNDS,
    "e2e_latency_seconds": BOUNDS,
    "queue_time_seconds": BOUNDS,
    "prefill_time_seconds": BOUNDS,
    "prompt_length_tokens": LENGTHS,
    "generation_length_tokens": LENGTHS,
}


@dataclass
class Spread:
    """A histogram that is fed with log-normal values."""

    name: str
    bounds: tuple[float, ...]
    counts: list[float] = field(default_factory=list)
    total: float = 0.0

    def add(self, rng: random.Random, median: float, number: int) -> None:
        self.counts = self.counts or [0.0] * (len(self.bounds) + 1)
        for _ in range(number):
            value = median * math.exp(rng.gauss(0, 0.35))
            self.total += value
            self.counts[next((n for n, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))] += 1

    def rows(self, labels: dict[str, str]):
        seen = 0.0
        for bound, count in zip((*self.bounds, math.inf), self.counts or [0.0] * (len(self.bounds) + 1), strict=True):
            seen += count
            le = "+Inf" if math.isinf(bound) else str(float(bound))
            yield series(f"{self.name}_bucket", **labels, le=le), seen
        yield series(f"{self.name}_count", **labels), seen
        yield series(f"{self.name}_sum", **labels), self.total


class Engine:
    """One data-parallel rank of an engine whose load a scenario sets."""

    def __init__(self, rng, labels: dict[str, str], pool: int) -> None:
        self.rng = rng
        self.labels = labels
        self.pool = pool
        self.sums: dict[str, float] = {}
        self.reasons = dict.fromkeys(("stop", "length", "abort"), 0.0)
        self.spreads = {name: Spread(f"gpuwatch_engine_{name}", bounds) for name, bounds in SPREADS.items()}

    def step(self, running: int, waiting: int, usage: float, per_request: float, *, slow: float = 1.0, lost: int = 0):
        """Serve for one step; return rows. `per_request` is tokens a second and request, `slow` stretches latencies."""
        rng, add = self.rng, self.add
        generated = round(running * per_request * STEP)
        done = round(generated / 300)
        add("generation_tokens_total", generated)
        add("prompt_tokens_total", done * 1500)
        add("prompt_tokens_cached_total", done * 600)
        add("prompt_tokens_computed_total", done * 900)
        add("prefix_cache_queries_total", done * 1500)
        add("prefix_cache_hits_total", done * 600)
        add("preemptions_total", lost)
        for reason, share in (("stop", 0.8), ("length", 0.18), ("abort", 0.02)):
            self.reasons[reason] += round(done * share)
        spreads = self.spreads
        spreads["time_to_first_token_seconds"].add(rng, 0.25 * slow, done)
        spreads["queue_time_seconds"].add(rng, 0.02 * slow, done)
        spreads["prefill_time_seconds"].add(rng, 0.2, done)
        spreads["inter_token_latency_seconds"].add(rng, 0.018 * math.sqrt(slow), generated // 40)
        spreads["e2e_latency_seconds"].add(rng, 7 * math.sqrt(slow), done)
        spreads["prompt_length_tokens"].add(rng, 1400, done)
        spreads["generation_length_tokens"].add(rng, 280, done)
        gauges = {
            "kv_cache_usage_ratio": usage,
            "kv_cache_tokens": self.pool,
            "kv_cache_free_tokens": round(self.pool * (1 - usage)),
            "kv_block_size_tokens": 16,
            "requests_running": running,
            "requests_waiting": waiting,
            "prefix_cache_enabled": 1,
        }
        yield from self.named({**gauges, **self.sums})
        for reason, value in self.reasons.items():
            yield series("gpuwatch_engine_requests_finished_total", **self.labels, reason=reason), value
        for spread in spreads.values():
            yield from spread.rows(self.labels)

    def named(self, values: dict[str, float]):
        return [(series(f"gpuwatch_engine_{name}", **self.labels), value) for name, value in values.items()]

    def add(self, name: str, amount: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + amount


class Card:
    """One GPU; `gone` leaves its state only."""

    def __init__(self, rng, host: str, index: int, name: str, total: float, *, engine: str = "") -> None:
        self.rng = rng
        self.host = host
        self.labels = {
            "host": host,
            "gpu": str(index),
            "uuid": f"GPU-{host[-2:]}{index:02d}0000-0000-0000-0000-000000000000",
        }
        self.name = name
        self.total = total * GIB
        self.engine = engine
        self.energy = 0.0
        self.throttled = {"power": 0.0, "hw_thermal": 0.0}
        self.xid = 0.0

    def rows(
        self, busy: float, held: float, *, other: float = 0.0, peak: float = 0.0, heat: float = 0.0, state: str = "ok"
    ):
        """Give the readings: `held` by the engine, `other` by other processes, `peak` on top of it, in GiB."""
        for one in ("ok", "lost", "hung", "resetting", "no_permission", "failed"):
            yield self.row("state", float(one == state), state=one)
        info = {"name": self.name, "driver_version": "580.95.05", "memory_kind": "dedicated", "architecture": "Hopper"}
        if state != "ok":
            return
        yield self.row("info", 1.0, **info)
        unseen = 0.6 * GIB + self.rng.random() * 2**24
        used = (held + other) * GIB + unseen
        watts = 120 + 520 * busy + self.rng.uniform(-12, 12)
        for reason, share in (("power", max(0.0, busy - 0.85)), ("hw_thermal", heat)):
            self.throttled[reason] += share * STEP
            yield self.row("throttle_seconds_total", self.throttled[reason], reason=reason)
        values = {
            "memory_total_bytes": self.total,
            "memory_used_bytes": used,
            "memory_used_low_bytes": used,
            "memory_used_high_bytes": used + peak * GIB,
            "memory_reserved_bytes": 0.5 * GIB,
            "memory_free_bytes": self.total - used - 0.5 * GIB,
            "memory_other_bytes": other * GIB,
            "memory_unattributed_bytes": unseen,
            "busy_ratio": busy,
            "memory_bandwidth_busy_ratio": busy * 0.6,
            "sm_clock_hertz": (1.98 - 0.22 * busy - 0.6 * heat) * 1e9,
            "power_watts": watts,
            "power_limit_watts": 700,
            "temperature_celsius": 34 + watts / 17 + 22 * heat,
            "pcie_link_width": 16,
            "pcie_link_width_max": 16,
        }
        for name, value in values.items():
            yield self.row(name, value)
        yield self.row("xid_errors_total", self.xid, xid="94")
        if self.engine:
            yield self.row("memory_engine_bytes", held * GIB, server=self.engine)
            yield self.row("engine", 1.0, server=self.engine, basis="process")

    def row(self, metric: str, value: float, **more: str):
        return series(f"gpuwatch_gpu_{metric}", **self.labels, **more), value


def config(host: str, server: str, kind: str, version: str, **values: float):
    """Give what an engine states about itself."""
    labels = {"host": host, "server": server, "engine_kind": kind}
    yield series("gpuwatch_engine_info", **labels, version=version), 1.0
    for name, value in values.items():
        yield series(f"gpuwatch_engine_config_{name}", **labels), float(value)


def host_rows(host: str, rng, cpu: float, free: float):
    labels = {"host": host}
    values = {
        "cpu_busy_ratio": cpu + rng.uniform(-0.02, 0.02),
        "memory_total_bytes": 2048 * GIB,
        "memory_available_bytes": free * 2048 * GIB,
        "shm_total_bytes": 1024 * GIB,
        "shm_used_bytes": 14 * GIB,
    }
    for name, value in values.items():
        yield series(f"gpuwatch_host_{name}", **labels), value
    yield series("gpuwatch_process_cpu_seconds_total", **labels), next(_cpu[host])
    yield series("gpuwatch_process_resident_bytes", **labels), 61e6 + rng.random() * 2e6


def _counting(step: float):
    value = 0.0
    while True:
        value += step
        yield value


_cpu = {host: _counting(STEP * 0.02) for host in ("node-01", "node-02", "node-03")}


def batch(target: str, time: int, rows) -> Batch:
    keys, values = zip(*rows, strict=True)
    return Batch(target, time, keys, list(map(float, values)))


def wave(at: float, period: float) -> float:
    return 0.5 + 0.5 * math.sin(2 * math.pi * at / period)


class HealthyNode:
    """Eight ranks of one engine; one card overheats in the last third and reports an Xid."""

    host = "node-01"

    def __init__(self, rng) -> None:
        self.rng = rng
        self.server = "10.0.0.1:8000"
        self.labels = {"host": self.host, "server": self.server, "engine_kind": "vllm"}
        labels = {**self.labels, "model_name": "llama-3.3-70b", "dp_rank": "0"}
        self.engine = Engine(rng, labels, 1_200_000)
        self.cards = [Card(rng, self.host, n, "NVIDIA H100 80GB HBM3", 79.6, engine=self.server) for n in range(8)]
        self.cpu = _counting(STEP * 9.5)

    def batches(self, at: int, time: int):
        load, hot = wave(at, 900), at > 1200
        running = 60 + round(60 * load)
        if at == 1320:
            self.cards[5].xid += 1
        nvml = [
            row
            for n, card in enumerate(self.cards)
            for row in card.rows(0.72 + 0.2 * load, 71.5, peak=1.2, heat=0.5 if hot and n == 5 else 0.0)
        ]
        page = [
            *self.engine.step(running, 0, 0.25 + 0.45 * load, 36 - 8 * hot),
            *config(
                self.host, self.server, "vllm", "0.32.0", max_num_seqs=256, max_model_len_tokens=131072,
                max_num_batched_tokens=8192, memory_fraction_ratio=0.92, tensor_parallel_size=8,
                weights_bytes=17.6 * GIB, kv_cache_bytes=48.9 * GIB, activation_peak_bytes=1.9 * GIB,
                graph_bytes=0.7 * GIB, max_concurrency=9.15,
            ),
            (series("gpuwatch_engine_process_cpu_seconds_total", **self.labels), next(self.cpu)),
            (series("gpuwatch_engine_process_resident_bytes", **self.labels), 58 * GIB),
        ]  # fmt: skip
        yield batch("nvml", time, nvml)
        yield batch(f"engine:{self.server}", time, page)
        yield batch("host", time, host_rows(self.host, self.rng, 0.22, 0.81))


class StormNode:
    """Two engines of four ranks: one has a preemption storm for ten minutes, the other falls silent at the end."""

    host = "node-02"

    def __init__(self, rng) -> None:
        self.rng = rng
        self.servers = ("10.0.0.2:8000", "10.0.0.2:8001")
        common = {"host": self.host, "engine_kind": "vllm", "model_name": "qwen3-32b", "dp_rank": "0"}
        self.engines = [Engine(rng, {**common, "server": server}, 96_000) for server in self.servers]
        self.cards = [
            Card(rng, self.host, n, "NVIDIA H100 80GB HBM3", 79.6, engine=self.servers[n // 4]) for n in range(8)
        ]
        self.events = 0.0

    def batches(self, at: int, time: int):
        storm = 600 <= at < 1200
        phase = (at // STEP) % 4
        if storm:
            running, waiting, usage = (52, 40 + at // 60, 0.99) if phase < 2 else (38, 56 + at // 60, 0.83)
            self.events += phase == 2
        else:
            running, waiting, usage = 30 + round(6 * wave(at, 400)), 0, 0.5 + 0.1 * wave(at, 400)
        labels = {"host": self.host, "server": self.servers[0], "log": "vllm.log"}
        log = [
            (series("gpuwatch_log_lines_total", **labels), float(at)),
            (series("gpuwatch_log_events_total", **labels, event="preemption"), self.events),
        ]
        nvml = []
        for n, card in enumerate(self.cards):
            dead = n >= 4 and at > SILENT
            busy = 0.0 if dead else 0.9 if n < 4 else 0.55
            nvml += card.rows(busy, 74.6 if n < 4 else 72.5, peak=3.0 if n < 4 and storm and phase == 1 else 0.4)
        yield batch("nvml", time, nvml)
        for n, (engine, server) in enumerate(zip(self.engines, self.servers, strict=True)):
            if n == 1 and at > SILENT:
                yield Batch(f"engine:{server}", time, (), [], up=False, reason=Reason.UNREACHABLE, detail="refused")
                continue
            page = engine.step(
                running, waiting, usage, 12 if storm else 38, slow=40 if storm else 1, lost=14 * (storm and phase == 2)
            )
            calm = engine.step(24, 0, 0.31, 40)
            by_reason = {"capacity": waiting if n == 0 else 0, "deferred": 0}
            name = "gpuwatch_engine_requests_waiting_by_reason"
            reasons = [(series(name, **engine.labels, reason=reason), number) for reason, number in by_reason.items()]
            yield batch(
                f"engine:{server}",
                time,
                [
                    *(page if n == 0 else calm),
                    *reasons,
                    *config(
                        self.host, server, "vllm", "0.32.0", max_num_seqs=64, max_model_len_tokens=32768,
                        max_num_batched_tokens=8192, memory_fraction_ratio=0.95, tensor_parallel_size=4,
                        weights_bytes=15.3 * GIB, kv_cache_bytes=55 * GIB, graph_bytes=0.6 * GIB, max_concurrency=2.93,
                    ),
                ],
            )  # fmt: skip
        yield batch("log:vllm.log", time, log)
        yield batch("host", time, host_rows(self.host, self.rng, 0.35, 0.64))


class SglangNode:
    """Two data-parallel replicas, a notebook on a third card, and a fourth card that is lost."""

    host = "node-03"

    def __init__(self, rng) -> None:
        self.rng = rng
        self.server = "10.0.0.3:30000"
        common = {"host": self.host, "server": self.server, "engine_kind": "sglang", "model_name": "gpt-oss-120b"}
        self.engines = [Engine(rng, {**common, "dp_rank": str(rank)}, 800_000) for rank in range(2)]
        self.cards = [
            Card(rng, self.host, n, "NVIDIA H200", 139.8, engine=self.server if n < 2 else "") for n in range(4)
        ]
        self.rejected = 0.0

    def batches(self, at: int, time: int):
        load = wave(at, 1200)
        self.rejected += 2 * (at % 300 == 0)
        nvml = []
        for n, card in enumerate(self.cards):
            if n < 2:
                nvml += card.rows(0.5 + 0.3 * load, 121.0)
            elif n == 2:
                nvml += card.rows(0.05, 0.0, other=8.0 + 22.0 * (at > 900))
            else:
                nvml += card.rows(0.0, 0.0, state="lost" if at > 1560 else "ok")
        page = []
        for rank, engine in enumerate(self.engines):
            page += engine.step(20 + round(30 * load * (rank + 1) / 2), 2 * rank, 0.2 + 0.3 * load + 0.1 * rank, 55)
            engine.add("spec_decode_draft_tokens_total", 3000)
            engine.add("spec_decode_accepted_tokens_total", 1900 + 200 * rank)
            page += engine.named({"kv_cache_swa_usage_ratio": 0.4 + 0.2 * load})
            page.append(
                (series("gpuwatch_engine_requests_rejected_total", **engine.labels, reason="queue_full"), self.rejected)
            )
        page += config(
            self.host, self.server, "sglang", "0.5.23", max_num_seqs=128, max_model_len_tokens=131072,
            memory_fraction_ratio=0.87, tensor_parallel_size=1, data_parallel_size=2, weights_bytes=62.0 * GIB,
            kv_cache_bytes=52.0 * GIB,
        )  # fmt: skip
        yield batch("nvml", time, nvml)
        yield batch(f"engine:{self.server}", time, page)
        yield batch("host", time, host_rows(self.host, self.rng, 0.18, 0.9))


def play(history: History, cluster: str, host: str, ticks, more_rules: tuple[Path, ...] = ()) -> None:
    """Run `ticks` of (time, batches) through a pipeline and keep every series, with the label of its Prometheus."""
    rules = load(sorted((ROOT / "rules").glob("*.yml")), more_rules)
    pipeline = None
    for time, batches in ticks:
        pipeline = pipeline or Pipeline(Settings(host, "live", STEP), rules, time)
        pipeline.tick(time, batches)
        for labels, value, at in pipeline.store.newest(time):
            history.add(tuple(sorted((*labels, ("cluster", cluster)))), at, value)


def demo_ticks():
    return [(tick.time, tick.batches) for tick in Reader(DEMO).ticks()]


FAILING_RULE = """groups:
- name: own
  rules:
  - alert: OwnRuleThatFails
    expr: gpuwatch_gpu_power_watts * on (host) gpuwatch_gpu_busy_ratio > 0
"""


def whole_history(folder: Path) -> tuple[History, int, int]:
    """Return samples of all machines at 15 s, as a Prometheus would have, and the first and last time in milliseconds.

    `folder` holds the rule file of one machine: a rule that fails.
    """
    own = folder / "own.yml"
    own.write_text(FAILING_RULE)
    history = History(SCRAPE * 1000)
    demo = demo_ticks()
    end = demo[-1][0]
    start = end - SECONDS * 1000
    play(history, "us-2", "demo", demo)
    for kind in (HealthyNode, StormNode, SglangNode):
        node = kind(random.Random(7))
        times = [(at, start + 1000 * at) for at in range(0, SECONDS + 1, STEP)]
        rules = (own,) if kind is SglangNode else ()
        play(history, "eu-1", node.host, [(time, list(node.batches(at, time))) for at, time in times], rules)
    return history, start, end
