"""Recordings and runs of a made-up engine whose speed, latency and load are known."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

from gpuwatch.model import Batch, Fact, series
from gpuwatch.recording import Header, Writer
from gpuwatch.report.data import EngineRun, Histogram, RunData, Setting, Window

START = 1_700_000_000_000
SERVER = "127.0.0.1:8000"
ENGINE = {"host": "node", "server": SERVER, "engine_kind": "vllm", "model_name": "tiny", "dp_rank": "0"}
ITL = (0.005, 0.01, 0.02, 0.05, math.inf)
TTFT = (0.1, 0.5, 1.0, 5.0, math.inf)
GIB = float(1 << 30)


def _histogram(name, bounds):
    text = ["+Inf" if math.isinf(bound) else f"{bound:g}" for bound in bounds]
    return (
        *(series(f"gpuwatch_engine_{name}_bucket", le=bound, **ENGINE) for bound in text),
        series(f"gpuwatch_engine_{name}_sum", **ENGINE),
        series(f"gpuwatch_engine_{name}_count", **ENGINE),
    )


KEYS = (
    series("gpuwatch_engine_requests_running", **ENGINE),
    series("gpuwatch_engine_requests_waiting", **ENGINE),
    series("gpuwatch_engine_kv_cache_usage_ratio", **ENGINE),
    series("gpuwatch_engine_generation_tokens_total", **ENGINE),
    series("gpuwatch_engine_prompt_tokens_total", **ENGINE),
    series("gpuwatch_engine_preemptions_total", **ENGINE),
    series("gpuwatch_engine_requests_finished_total", reason="stop", **ENGINE),
    series("gpuwatch_engine_requests_finished_total", reason="length", **ENGINE),
    *_histogram("inter_token_latency_seconds", ITL),
    *_histogram("time_to_first_token_seconds", TTFT),
)
GPU = {"host": "node", "uuid": "GPU-11111111-2222-3333-4444-555555555555", "gpu": "0"}
GPU_KEYS = (
    series("gpuwatch_gpu_info", name="H100", driver_version="580.95", **GPU),
    series("gpuwatch_gpu_memory_total_bytes", **GPU),
    series("gpuwatch_gpu_memory_used_bytes", **GPU),
    series("gpuwatch_gpu_memory_used_high_bytes", **GPU),
    series("gpuwatch_gpu_memory_reserved_bytes", **GPU),
    series("gpuwatch_gpu_memory_free_bytes", **GPU),
    series("gpuwatch_gpu_busy_ratio", **GPU),
)


def page(second, *, running=4, waiting=0, usage=0.5, tokens=0, prompt=0, stop=0, length=0, slow=0, fast=0):
    """The engine's batch: `fast` tokens came within 5 to 10 ms and `slow` ones within 20 to 50 ms."""
    all_tokens = fast + slow
    itl = (0, fast, fast, all_tokens, all_tokens, 0.008 * fast + 0.03 * slow, all_tokens)
    first = stop + length
    ttft = (0, first, first, first, first, 0.2 * first, first)
    values = (running, waiting, usage, tokens, prompt, 0, stop, length, *itl, *ttft)
    return Batch(f"engine:{SERVER}", START + round(1000 * second), KEYS, tuple(map(float, values)))


def card(second, used, high=None):
    """The batch of the GPU: bytes in use now and at most since the last one."""
    values = (1.0, 80 * GIB, used, used if high is None else high, 0.5 * GIB, 79.5 * GIB - used, 0.9)
    return Batch("nvml", START + round(1000 * second), GPU_KEYS, values)


LAUNCH = Batch(
    f"launch:{SERVER}",
    START,
    facts=(
        Fact("flag.max-num-seqs", 16, "command line of process 7", server=SERVER),
        Fact("flag.api-key", "sk-verysecretkey0123456789", "command line of process 7", server=SERVER),
        Fact("max_num_seqs", 16, "command line of process 7", server=SERVER),
        Fact("tp", 2, "command line of process 7", server=SERVER),
        Fact("version", "0.32.0", "vllm.log", 21, server=SERVER),
    ),
)


def record(path, ticks, **header):
    """Write a recording of (second, batches) and return its path."""
    writer = Writer(path, Header(**{"host": "node", "created": START, "interval": 1.0, "program": "test", **header}))
    for second, batches in ticks:
        for batch in batches:
            writer.write(batch)
        writer.tick(START + round(1000 * second))
    writer.close()
    return path


def steady(seconds=30, rate=100):
    """Ticks of an engine that generates `rate` tokens a second for four requests, and of a GPU with one peak."""
    ticks = []
    for second in range(seconds + 1):
        done = rate * second
        batch = page(second, tokens=done, prompt=2 * done, stop=second // 2, length=second // 3, fast=done)
        used = 60 * GIB
        ticks.append((second, [batch, card(second, used, used + 4 * GIB if second == 17 else None)]))
    return [(0, [LAUNCH, *ticks[0][1]]), *ticks[1:]]


def window(number, *, rate=100.0, running=8.0, waiting=4.0, itl=0.01, ttft=0.3, length=200.0, seconds=5):
    """A window of an engine: `rate` tokens a second, all latencies in the bucket that holds them."""
    tokens = rate * seconds
    requests = max(4.0, tokens / length)

    def histogram(bounds, mean, count):
        return Histogram(bounds, tuple(count if mean <= bound else 0.0 for bound in bounds), mean * count)

    counted = {"generation_tokens": tokens, "prompt_tokens": tokens, "finished": requests, "preemptions": 0.0}
    histograms = {
        "itl": histogram(ITL, itl, tokens),
        "ttft": histogram(TTFT, ttft, requests),
        "prompt_length": histogram((100.0, 1000.0, math.inf), length, requests),
        "generation_length": histogram((100.0, 1000.0, math.inf), length, requests),
    }
    start = START + number * seconds * 1000
    return Window(start, start + seconds * 1000, running, waiting, 0.5, counted, histograms)


def _turn(value, number):
    return value[number % len(value)] if isinstance(value, tuple) else value


def run(name, *, seed, rate=100.0, noise=0.05, count=60, tp=1, findings=(), model="tiny", flags=(), **options):
    """A run of five minutes whose windows scatter in a random order around the given rate, with exactly that mean.

    Of options that are tuples the windows take one value after the other.
    """
    scatter = [NormalDist(1, noise).inv_cdf((number + 0.5) / count) if noise else 1.0 for number in range(count)]
    random.Random(seed).shuffle(scatter)
    windows = tuple(
        window(number, rate=rate * factor, **{key: _turn(value, number) for key, value in options.items()})
        for number, factor in enumerate(scatter)
    )
    settings = tuple(Setting(flag, value) for flag, value in flags)
    engine = EngineRun(SERVER, "0", "vllm", model, "0.32.0", tp, 16, settings, (), windows)
    return RunData(
        name, "node", START, START + count * 5000, 1.0, count * 5, "test", engines=(engine,), findings=findings
    )
