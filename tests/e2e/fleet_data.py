"""A made-up fleet as OpenMetrics text: what the gpuwatch of each machine would have exported over some minutes.

Most machines are healthy. A few have a storm, a lost GPU, a silent engine, or have not been scraped for a while.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable

GIB = 2**30
STEP_SECONDS = 15
STORM, DOWN, HOT, GPU_LOST, GONE = 7, 23, 41, 58, 77
"""The numbers of the machines in trouble: KV storm, engine down, memory almost full, GPU lost, not scraped any more."""
CAUSE = "The pool of 98,304 tokens holds 11.7 requests of 8,400; 64 are admitted."


def host_name(number: int) -> str:
    return f"gpu-{number:03d}"


class Page:
    """Collects samples by family; OpenMetrics wants each family in one piece."""

    def __init__(self) -> None:
        self.families = defaultdict(list)

    def add(self, name, labels, points):
        self.families[name].append(({key: value for key, value in labels.items() if value != ""}, points))

    def text(self):
        out = []
        for name, series in self.families.items():
            out.append(f"# TYPE {name} unknown")
            for labels, points in series:
                text = ",".join(f'{key}="{value}"' for key, value in labels.items())
                out += [f"{name}{{{text}}} {value:.10g} {time}" for time, value in points]
        return "\n".join([*out, "# EOF\n"])


def openmetrics(now: int, hosts: int = 100, gpus: int = 8, minutes: float = 6.0) -> str:
    """Return the text for `hosts` machines with `gpus` GPUs; `now` in seconds is the time of the last sample."""
    return page(now, range(hosts), gpus, minutes).text()


def page(now: int, numbers: Iterable[int], gpus: int = 8, minutes: float = 6.0, cluster: str = "") -> Page:
    """Return the samples of the machines with these numbers."""
    made, rng = Page(), random.Random(7)
    times = [now - STEP_SECONDS * step for step in range(int(minutes * 60 / STEP_SECONDS), -1, -1)]
    for number in numbers:
        _machine(
            made, number, gpus, times[: len(times) * 2 // 3] if number == GONE else times, rng=rng, cluster=cluster
        )
    return made


def _machine(page, number, gpus, times, *, rng, cluster):
    host = {"cluster": cluster, "host": host_name(number), "job": "gpuwatch", "instance": f"10.0.0.{number}:19400"}

    def flat(name, value, /, **labels):
        page.add("gpuwatch_" + name, {**host, **labels}, [(time, value) for time in times])

    def wave(name, low, high, /, **labels):
        phase = rng.random() * 6
        points = [(t, low + (high - low) * (0.5 + 0.5 * math.sin(t / 90 + phase))) for t in times]
        page.add("gpuwatch_" + name, {**host, **labels}, points)

    def count(name, rate, /, **labels):
        page.add("gpuwatch_" + name, {**host, **labels}, [(t, 1e5 + rate * (t - times[0])) for t in times])

    server = "127.0.0.1:8000"
    flat("build_info", 1, version="0.1.0")
    flat("host_cpu_busy_ratio", 0.2 + 0.3 * rng.random())
    flat("host_memory_total_bytes", 1024 * GIB)
    flat("host_memory_available_bytes", (500 + 300 * rng.random()) * GIB)
    _sources(flat, number, server)
    for index in range(gpus):
        _gpu(flat, wave, rng, number=number, index=index, server=server)
    if number == DOWN:
        return _alert(
            page,
            host,
            times,
            "GpuwatchEngineDown",
            severity="critical",
            diagnosis="engine_down",
            source="engine",
            target=server,
            server=server,
        )
    _engine(flat, wave, count, number=number, server=server, gpus=gpus)
    if number == STORM:
        _alert(
            page,
            host,
            times,
            "GpuwatchKvPreemptionStorm",
            severity="critical",
            diagnosis="kv_preemption_storm",
            server=server,
            engine_kind="vllm",
            model_name="llama-70b",
        )
        info = {
            "id": "kv_preemption_storm",
            "severity": "critical",
            "server": server,
            "cause": CAUSE,
            "flag": "--max-num-seqs",
            "from": "64",
            "to": "11",
            "advice": "admit what the pool holds",
        }
        flat("finding_info", 1, **info)
    if number == GPU_LOST:
        _alert(
            page,
            host,
            times,
            "GpuwatchGpuLost",
            severity="critical",
            diagnosis="gpu_lost",
            uuid=_uuid(number, 3),
            gpu="3",
        )
    if number == HOT:
        for index in (1, 4):
            _alert(
                page,
                host,
                times,
                "GpuwatchGpuHeadroomLow",
                severity="warning",
                diagnosis="gpu_headroom_low",
                uuid=_uuid(number, index),
                gpu=str(index),
            )
    return None


def _sources(flat, number, server):
    for source, target in (("nvml", "nvml"), ("host", "host"), ("engine", server)):
        up = not (number == DOWN and source == "engine")
        own = {"source": source, "target": target, "server": server if source == "engine" else ""}
        flat("source_up", float(up), **own)
        flat("source_age_seconds", 0.4 if up else 190, **own)


def _uuid(number, index):
    return f"GPU-{number:04x}{index:04x}-1111-2222-3333-444444444444"


def _gpu(flat, wave, rng, *, number, index, server):
    own = {"uuid": _uuid(number, index), "gpu": str(index)}
    lost = number == GPU_LOST and index == 3
    for state in ("ok", "lost", "hung", "resetting", "no_permission", "failed"):
        flat("gpu_state", float(state == ("lost" if lost else "ok")), state=state, **own)
    flat("gpu_info", 1, name="NVIDIA H100 80GB HBM3", driver_version="575.57.08", memory_kind="dedicated", **own)
    if lost:
        return
    used = 79.2 if number == HOT and index in (1, 4) else 73.1 + rng.random()
    flat("gpu_memory_total_bytes", 79.6 * GIB, **own)
    flat("gpu_memory_used_bytes", used * GIB, **own)
    flat("gpu_memory_peak_bytes", min(used + 0.9, 79.3) * GIB, **own)
    flat("gpu_memory_free_bytes", (79.4 - used) * GIB, **own)
    flat("gpu_memory_reserved_bytes", 0.2 * GIB, **own)
    flat("gpu_memory_transient_bytes", 0.9 * GIB, **own)
    flat("gpu_memory_other_bytes", 0, **own)
    flat("gpu_memory_unattributed_bytes", 0.4 * GIB, **own)
    flat("gpu_memory_engine_bytes", (used - 0.4) * GIB, server=server, **own)
    flat("gpu_engine", 1, server=server, basis="process", **own)
    wave("gpu_busy_ratio", 0.0 if number == DOWN else 0.55, 0.0 if number == DOWN else 0.98, **own)
    wave("gpu_power_watts", 320, 640, **own)
    flat("gpu_power_limit_watts", 700, **own)
    flat("gpu_sm_clock_hertz", 1.755e9, **own)
    flat("gpu_temperature_celsius", 55 + index, **own)


def _engine(flat, wave, count, *, number, server, gpus):
    rank = {"server": server, "engine_kind": "vllm", "model_name": "llama-70b"}
    own = {"server": server, "engine_kind": "vllm"}
    storm = number == STORM
    flat("engine_info", 1, version="0.32.0", role="unified", **own)
    flat("engine_config_max_num_seqs", 64, **own)
    flat("engine_config_max_model_len_tokens", 32768, **own)
    flat("engine_config_tensor_parallel_size", gpus, **own)
    flat("engine_config_weights_bytes", 16.4 * GIB, **own)
    flat("engine_config_kv_cache_bytes", 50.2 * GIB, **own)
    flat("engine_kv_cache_tokens", 98304, **rank)
    flat("engine_kv_block_size_tokens", 16, **rank)
    if storm:
        flat("engine_kv_cache_usage_ratio", 0.985, **rank)
        flat("engine_requests_running", 11, **rank)
        flat("engine_requests_waiting", 53, **rank)
    else:
        wave("engine_kv_cache_usage_ratio", 0.2, 0.75, **rank)
        wave("engine_requests_running", 8, 31, **rank)
        flat("engine_requests_waiting", 0, **rank)
    flat("engine_request_length_seen_tokens", 8400, **rank)
    count("engine_preemptions_total", 0.6 if storm else 0, **rank)
    count("engine_evictions_total", 0.7 if storm else 0, **rank)
    count("engine_requests_finished_total", 0.1 if storm else 1.5, reason="stop", **rank)
    count("engine_generation_tokens_total", 410 if storm else 2100 + 9 * number, **rank)
    count("engine_prompt_tokens_total", 900 if storm else 5200, **rank)


def _alert(page, host, times, name, *, severity, diagnosis, **labels):
    own = {**host, "alertname": name, "severity": severity, "diagnosis": diagnosis, **labels}
    since = times[len(times) // 2]
    live = [time for time in times if time >= since]
    page.add("ALERTS", {**own, "alertstate": "firing"}, [(time, 1.0) for time in live])
    page.add("ALERTS_FOR_STATE", own, [(time, float(since)) for time in live])
