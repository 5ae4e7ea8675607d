"""Hand-made snapshots: what the screen is tested with, and what `tests/tools/screenshot.py` draws.

The figures of the storm are those of a real vLLM 0.32 run (a pool of 5,120 tokens, 16 requests of about 2,100
tokens); the GPUs are invented.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import replace

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding, NotEnough
from gpuwatch.ledger.reconcile import Card, Statement, divide
from gpuwatch.model import Absence, Fact, LogLine, Reason, series
from gpuwatch.snapshot import Answer, Recording, RuleView, Snapshot, SourceState

START = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC."""

GIB = 1024**3
STATED = {
    "weights": "weights",
    "kv_cache_bytes": "kv_pool",
    "activation_peak": "activations",
    "graph_bytes": "graphs",
}
COUNTED = ("gpu_memory_reserved", "gpu_memory_free", "gpu_memory_other")
HOST = "node-07"


def uuid(index):
    return f"GPU-{index:08d}-aaaa-bbbb-cccc-000000000000"


def gpu_labels(index, **more):
    return {"host": HOST, "uuid": uuid(index), "gpu": str(index), **more}


def rank_labels(server="127.0.0.1:8000", model="tiny-llama", dp="", kind="vllm", **more):
    return {"host": HOST, "server": server, "engine_kind": kind, "model_name": model, "dp_rank": dp, **more}


def server_labels(server="127.0.0.1:8000", kind="vllm", **more):
    return {"host": HOST, "server": server, "engine_kind": kind, **more}


class Scene:
    """Collects answers by query."""

    def __init__(self):
        self.samples = {}

    def add(self, query, value, **labels):
        self.samples.setdefault(query, []).append((series("", **labels), float(value)))

    def gpu(self, index, *, name="NVIDIA H100 80GB HBM3", used=74.1, total=79.6, peak=77.8, state="ok", **figures):
        labels = gpu_labels(index)
        self.add("gpu_info", 1, **labels, name=name, driver_version="575.57.08", memory_kind="dedicated",
                 architecture="hopper", pci_bus_id=f"0000:{index:02x}:00.0")  # fmt: skip
        if state:
            self.add("gpu_state", 1, **labels, state=state)
        values = {
            "gpu_memory_total": total * GIB if total is not None else None,
            "gpu_memory_used": used * GIB if used is not None else None,
            "gpu_memory_free": (total - used - 0.5) * GIB if used is not None and total is not None else None,
            "gpu_memory_reserved": 0.5 * GIB if used is not None else None,
            "gpu_memory_peak": peak * GIB if peak is not None else None,
            "gpu_memory_other": 0,
            "gpu_memory_unattributed": 0.5 * GIB,
            "gpu_busy": 0.97,
            "gpu_bandwidth_busy": 0.62,
            "gpu_sm_clock": 1755e6,
            "gpu_power": 612 - 14 * index,
            "gpu_power_limit": 700,
            "gpu_temperature": 64 + index,
            "gpu_pcie_width": 16,
            "gpu_pcie_width_max": 16,
            "gpu_pcie_receive": 3.2 * GIB,
            "gpu_pcie_transmit": 0.4 * GIB,
            **figures,
        }
        for query, value in values.items():
            if value is not None:
                self.add(query, value, **labels)

    def on_gpu(self, index, server="127.0.0.1:8000", held=None):
        self.add("gpu_engine", 1, **gpu_labels(index, server=server, basis="process"))
        if held is not None:
            self.add("gpu_memory_engine", held * GIB, **gpu_labels(index, server=server))

    def server(self, server="127.0.0.1:8000", kind="vllm", version="0.32", **figures):
        labels = server_labels(server, kind)
        self.add("engine_info", 1, **labels, version=version, role="unified")
        values = {
            "max_num_seqs": 16,
            "max_model_len": 4096,
            "tensor_parallel_size": 2,
            "weights": 16.0 * GIB,
            "kv_cache_bytes": 50.1 * GIB,
            "activation_peak": 3.4 * GIB,
            "graph_bytes": 1.7 * GIB,
            "engine_cpu": 1.35,
            "engine_resident": 7.25 * GIB,
            **figures,
        }
        for query, value in values.items():
            if value is not None:
                self.add(query, value, **labels)

    def rank(self, server="127.0.0.1:8000", model="tiny-llama", dp="", kind="vllm", waiting_for=None, **figures):
        labels = rank_labels(server, model, dp, kind)
        for query, value in figures.items():
            if value is not None:
                self.add(query, value, **labels)
        for reason, value in (waiting_for or {}).items():
            self.add("waiting_by_reason", value, **labels, reason=reason)

    def answers(self):
        found = {query: Answer(tuple(samples)) for query, samples in self.samples.items()}
        return {"gpu_ledger": Answer(tuple(self._divided())), **found}

    def _divided(self):
        """The memory of each GPU by what it is for, as the pipeline divides it."""

        def of(query, **want):
            return Answer(tuple(self.samples.get(query, ()))).get(**want)

        for labels, used in self.samples.get("gpu_memory_used", ()):
            gpu = dict(labels)
            engines = []
            for on, _ in self.samples.get("gpu_engine", ()):
                server = dict(on)["server"]
                if dict(on)["uuid"] == gpu["uuid"]:
                    ranks = [v for rank, v in self.samples.get("kv_usage", ()) if dict(rank)["server"] == server]
                    stated = {part: of(query, server=server) for query, part in STATED.items()}
                    usage = ranks[0] if len(ranks) == 1 else None
                    held = of("gpu_memory_engine", uuid=gpu["uuid"], server=server)
                    engines.append((Statement(**stated, kv_usage=usage), held))
            card = Card(used, *(of(query, uuid=gpu["uuid"]) for query in COUNTED))
            for component, amount in divide(card, engines).items():
                yield series("", **gpu, component=component), amount


STORM_RANK = {
    "kv_usage": 0.9746,
    "kv_tokens": 5120,
    "kv_free_tokens": 130,
    "kv_blocks": 40,
    "kv_block_size": 128,
    "running": 3,
    "waiting": 13,
    "prompt_rate": 60,
    "generation_rate": 155,
    "preemption_rate": 0.42,
    "eviction_rate": 0.5,
    "finish_rate": 0.02,
    "prefix_enabled": 1,
    "ttft_p50": 18.2,
    "ttft_p95": 41,
    "itl_p50": 0.009,
    "itl_p95": 0.212,
    "queue_p95": 38,
    "seconds_since_token": 0.1,
}

CALM_RANK = {
    **STORM_RANK,
    "kv_usage": 0.31,
    "kv_free_tokens": 3533,
    "waiting": 0,
    "running": 12,
    "prompt_rate": 2310,
    "generation_rate": 370,
    "preemption_rate": 0,
    "eviction_rate": 0,
    "prefix_hit_ratio": 0.42,
    "ttft_p50": 0.081,
    "ttft_p95": 0.19,
    "itl_p50": 0.009,
    "itl_p95": 0.014,
    "queue_p95": 0.02,
}


def storm_findings(start=START):
    labels = {"host": HOST, "server": "127.0.0.1:8000", "model_name": "tiny-llama"}
    return (
        Finding(
            id="kv_preemption_storm",
            severity="critical",
            title="requests are thrown out of the KV pool and computed again",
            cause="26 evictions in 60 s: the pool of 5,120 tokens holds 2.4 requests of 2,100 tokens, and 16 are "
            "admitted. The pool is small because --num-gpu-blocks-override sets 40 blocks.",
            confidence=0.95,
            evidence=(
                Evidence(
                    "26 requests left the batch without finishing in the last 60 s",
                    "127.0.0.1:8000/metrics",
                    None,
                    "gpuwatch_engine_evictions_total",
                    26.0,
                    "",
                ),
                Evidence(
                    "KV pool 97 % full for 58 s",
                    "127.0.0.1:8000/metrics",
                    None,
                    "gpuwatch_engine_kv_cache_usage_ratio",
                    0.97,
                    "ratio",
                ),
                Evidence("Overriding num_gpu_blocks=5721 with num_gpu_blocks_override=40", "/var/log/vllm.log", 41),
            ),
            advice=(
                Advice(
                    "remove it: memory profiling found room for 5,721 blocks", "--num-gpu-blocks-override", "40", None
                ),
                Advice("if the pool has to stay this small", "--max-num-seqs", "16", "2"),
            ),
            since=start + 31_000,
            labels=labels,
        ),
        Finding(
            id="queue_growth",
            severity="warning",
            title="arrivals exceed service: 13 requests wait, 4 more than a minute ago",
            cause="the batch shrinks with every eviction",
            confidence=0.8,
            evidence=(
                Evidence("13 waiting", "127.0.0.1:8000/metrics", None, "gpuwatch_engine_requests_waiting", 13.0, ""),
            ),
            caused_by="kv_preemption_storm",
            since=start + 38_000,
            labels=labels,
        ),
        Finding(
            id="throughput_collapse",
            severity="warning",
            title="generation fell from 370 to 155 tok/s",
            cause="tokens are computed twice",
            confidence=0.8,
            evidence=(),
            caused_by="kv_preemption_storm",
            since=start + 40_000,
            labels=labels,
        ),
        Finding(
            id="gpu_headroom_low",
            severity="warning",
            title="the next peak will not fit",
            cause="GPU 0 peaked at 77.8 of 79.6 GiB in the last minute; a prefill of 8,192 tokens needs 2.1 GiB.",
            confidence=0.7,
            evidence=(Evidence("peak 77.8 GiB", "nvml", None, "gpuwatch_gpu_memory_peak_bytes", 77.8 * GIB, "bytes"),),
            advice=(Advice("leaves 2.4 GiB for the peak", "--gpu-memory-utilization", "0.93", "0.90"),),
            since=start + 12_000,
            labels={"host": HOST, "uuid": uuid(0), "gpu": "0"},
        ),
    )


def rules():
    return (
        RuleView("KvPreemptionStorm", "kv_preemption_storm", "critical", "firing",
                 "increase(gpuwatch_engine_evictions_total[1m]) > 5 and\n gpuwatch_engine_kv_cache_usage_ratio > 0.9",
                 "rules/kv.yml", "", (("increase(…[1m]) > 5", 26.0, 5.0), ("…usage_ratio > 0.9", 0.97, 0.9)), 1),
        RuleView("QueueGrowth", "queue_growth", "warning", "firing", "deriv(gpuwatch_engine_requests_waiting[1m]) > 0",
                 "rules/kv.yml", "", (("deriv(…) > 0", 0.07, 0.0),), 1, 1),
        RuleView("GpuHeadroomLow", "gpu_headroom_low", "warning", "pending", "gpuwatch_gpu_memory_peak_bytes > 1",
                 "rules/gpu.yml", "for 1m, true for 20 s"),
        RuleView("PrefixCacheCollapse", "prefix_cache_collapse", "warning", "not_evaluable", "a < b", "rules/p.yml",
                 "needs gpuwatch_engine_prefix_cache_hits_total"),
        RuleView("TpImbalance", "tp_imbalance", "warning", "ok", "stddev(x) > 1", "rules/gpu.yml", "",
                 (("stddev(…) > 1", 0.02, 1.0),)),
        RuleView("GpuLost", "gpu_lost", "critical", "ok", "gpuwatch_gpu_state == 1", "rules/gpu.yml"),
        RuleView("Broken", "engine_down", "critical", "error", "foo(", "my.yml", "many-to-many matching not allowed"),
    )  # fmt: skip


def sources(**down):
    states = (
        SourceState("nvml", "nvml", up=True, age=0.2),
        SourceState("engine", "engine:127.0.0.1:8000", up=True, age=0.3, server="127.0.0.1:8000"),
        SourceState("log", "log:/var/log/vllm.log", up=True, age=1.1, server="127.0.0.1:8000"),
        SourceState("host", "host", up=True, age=0.2),
    )
    return tuple(replace(state, **down.get(state.kind, {})) for state in states)


def log_lines(start=START, number=30):
    texts = [
        ("INFO", "Avg prompt throughput: 60.0 tokens/s, generation 155.2 tokens/s, Running: 3 reqs", ""),
        ("INFO", "127.0.0.1:53402 - POST /v1/completions HTTP/1.1 200 OK", ""),
        ("WARNING", "Sequence group 7 is preempted because there is not enough KV cache", "preemption"),
        ("DEBUG", "scheduler step took 12 ms", ""),
        ("ERROR", "EngineCore encountered a fatal error: 日本語 path /models/ライブラリ", ""),
    ]  # fmt: skip
    return tuple(
        LogLine("vllm.log", 100 + i, start + i * 1000, *texts[i % len(texts)][:2], event=texts[i % len(texts)][2])
        for i in range(number)
    )


FACTS = (
    Fact("num_gpu_blocks_override", 40, "/var/log/vllm.log", 41, START, "127.0.0.1:8000"),
    Fact("gpu_memory_utilization", 0.93, "vllm serve --gpu-memory-utilization 0.93", None, START, "127.0.0.1:8000"),
    Fact("model", "tiny-llama", "/var/log/vllm.log", 3, START, "127.0.0.1:8000"),
)


LAUNCHED = (
    *FACTS[:2],
    Fact("model", "Qwen/Qwen3-32B", "command line of process 7", None, START, "127.0.0.1:8000"),
    Fact("version", "0.32.0", "127.0.0.1:8000/version", None, START, "127.0.0.1:8000"),
    Fact("tp", 2, "command line of process 7", None, START, "127.0.0.1:8000"),
    Fact("max_model_len", 4096, "command line of process 7", None, START, "127.0.0.1:8000"),
)
"""A model that the ledger knows by name, and how it was launched."""


def own(scene):
    scene.add("own_cpu", 0.021, host=HOST)
    scene.add("own_resident", 61 * 1024**2, host=HOST)
    scene.add("own_tick", 0.004, host=HOST)


def snapshot(scene, time=START + 60_000, **more):
    more.setdefault("sources", sources())
    more.setdefault("rules", rules())
    return Snapshot(
        time=time, started=START, host=HOST, mode=more.pop("mode", "live"), interval=1.0,
        answers=scene.answers() if scene is not None else {}, **more,
    )  # fmt: skip


def storm(time=START + 60_000, **more):
    scene = Scene()
    for index in range(2):
        scene.gpu(index, used=74.1 - 0.1 * index, peak=77.8 - 0.1 * index)
        scene.on_gpu(index, held=73.6 - 0.1 * index)
    scene.server()
    wave = math.sin(time / 7000)
    rank = {
        **STORM_RANK,
        "generation_rate": 155 + 40 * wave,
        "prompt_rate": max(60 + 60 * math.sin(time / 3000), 0),
        "eviction_rate": 0.5 + 0.1 * wave,
        "waiting": 13 + round(2 * wave),
    }
    if time <= START + 60_000:
        rank = STORM_RANK
    scene.rank(**rank, waiting_for={"capacity": rank["waiting"]})
    own(scene)
    more.setdefault("findings", storm_findings())
    more.setdefault("lines", log_lines())
    more.setdefault("facts", FACTS)
    more.setdefault("not_enough", (NotEnough("prefix_cache_collapse", "needs prefix cache counters", {}),))
    return snapshot(scene, time, **more)


def predicted(time=START + 60_000, missing=None, **more):
    """A storm on an engine whose memory was predicted; `missing` bytes of what it states are not on its first GPU."""
    scene = Scene()
    if missing is not None:
        scene.add("gpu_ledger_missing", missing, **gpu_labels(0))
    for index in range(2):
        scene.gpu(index)
        scene.on_gpu(index, held=73.6)
        scene.add("gpu_ledger_growth", 0.75 * GIB * (1 - 2 * index), **gpu_labels(index))
    scene.server(weights=30.6 * GIB, kv_cache_bytes=36 * GIB, max_model_len=4096)
    scene.rank(**STORM_RANK)
    for component, gib in (("weights", 30.5), ("kv_pool", 35.3), ("work", 6.6), ("rest", 1.5)):
        scene.add("ledger_predicted", gib * GIB, **server_labels(), component=component)
    return snapshot(scene, time, facts=LAUNCHED, **more)


def calm(time=START + 60_000, **more):
    scene = Scene()
    for index in range(2):
        scene.gpu(index, used=70.2, peak=71.0, gpu_busy=0.55)
        scene.on_gpu(index, held=69.7)
    scene.server()
    scene.rank(**CALM_RANK)
    own(scene)
    quiet = tuple(replace(rule, status="ok", detail="", firing=0, inhibited=0) for rule in rules())
    return snapshot(scene, time, rules=quiet, **more)


def two_ranks(time=START + 60_000, **more):
    """One server with two data-parallel ranks: one full, one nearly idle."""
    scene = Scene()
    for index in range(2):
        scene.gpu(index)
        scene.on_gpu(index, held=73.6)
    scene.server(tensor_parallel_size=1)
    scene.rank(dp="0", **STORM_RANK, waiting_for={"capacity": 12, "deferred": 1})
    scene.rank(dp="1", **{**CALM_RANK, "kv_usage": 0.31})
    return snapshot(scene, time, **more)


def several_engines(time=START + 60_000, number=3, **more):
    scene = Scene()
    for index in range(4):
        scene.gpu(index)
    for i in range(number):
        server = f"127.0.0.1:{8000 + i}"
        kind = "sglang" if i == 1 else "vllm"
        scene.server(server, kind=kind, version="0.5.23" if i == 1 else "0.32")
        scene.rank(server, model=f"model-{i}", kind=kind, **(STORM_RANK if i == 0 else CALM_RANK))
        scene.on_gpu(i, server, held=60)
    return snapshot(scene, time, **more)


def many_findings(time=START + 60_000, number=9, **more):
    """Eight GPUs, one of them with two MIG devices, five engines, five sources that are down, many findings."""
    scene = Scene()
    for index in range(8):
        scene.gpu(index)
    for slot in range(2):
        labels = {**gpu_labels(5), "gpu": f"5:{slot}", "uuid": f"MIG-{slot}"}
        scene.add("gpu_info", 1, **labels, name="NVIDIA H100 80GB HBM3 MIG 3g.40gb")
        scene.add("gpu_memory_total", 39.2 * GIB, **labels)
        scene.add("gpu_memory_used", 20 * GIB, **labels)
    for i in range(5):
        server = f"127.0.0.1:{8000 + i}"
        scene.server(server, tensor_parallel_size=1)
        for dp in range(2 if i == 0 else 1):
            scene.rank(server, model=f"model-{i}", dp=str(dp) if i == 0 else "", **STORM_RANK)
        scene.on_gpu(i, server, held=60)
    first, *_, last = storm_findings()
    more.setdefault("findings", (first, *(
        replace(last, id=f"finding_{i}", labels={"host": HOST, "uuid": uuid(i % 8), "gpu": str(i % 8)})
        for i in range(1, number)
    )))  # fmt: skip
    down = tuple(
        SourceState(
            "engine", f"engine:127.0.0.1:{9000 + i}", up=False, reason="timeout", server=f"127.0.0.1:{9000 + i}"
        )
        for i in range(5)
    )
    return snapshot(scene, time, sources=(*sources(), *down), **more)


def sixteen(time=START + 60_000, **more):
    scene = Scene()
    for index in range(16):
        scene.gpu(index, used=60 + index, peak=62 + index)
        scene.on_gpu(index, held=59.5 + index)
    scene.server(tensor_parallel_size=16)
    scene.rank(**STORM_RANK, waiting_for={"capacity": 13})
    more.setdefault("findings", storm_findings())
    return snapshot(scene, time, **more)


def troubled(time=START + 60_000, **more):
    """GPU 0 is fine, GPU 1 hangs, GPU 2 is lost, GPU 3 supports little, GPU 4 is throttled and had an Xid."""
    scene = Scene()
    scene.gpu(0)
    scene.add("gpu_state", 1, **gpu_labels(1), state="hung")
    scene.add("gpu_unresponsive", 12, **gpu_labels(1))
    scene.add("gpu_state", 1, **gpu_labels(2), state="lost")
    scene.gpu(3, name="NVIDIA GB10", used=None, total=None, peak=None, gpu_power=None, gpu_busy=0.0, gpu_sm_clock=None)
    scene.gpu(4)
    scene.add("gpu_throttle", 0.35, **gpu_labels(4), reason="power")
    scene.add("gpu_xid", 2, **gpu_labels(4), xid="79")
    absent = (
        Absence(series("", host=HOST, uuid=uuid(2)), Reason.LOST, "GPU has fallen off the bus"),
        *(
            Absence(series(f"gpuwatch_gpu_{name}", host=HOST, uuid=uuid(3)), Reason.NOT_SUPPORTED)
            for name in ("memory_used_bytes", "memory_total_bytes", "power_watts")
        ),
    )
    return snapshot(scene, time, absent=absent, **more)


def silent_engine(time=START + 60_000, age=12.0, **more):
    """The GPUs are seen, the engine no longer answers."""
    scene = Scene()
    for index in range(2):
        scene.gpu(index)
    down = {"up": False, "reason": "unreachable", "detail": "connection refused", "age": age}
    return snapshot(scene, time, sources=sources(engine=down), **more)


def fading(time=START + 60_000, start=START + 60_000, **more):
    """A storm of 30 s; then GPU 1 hangs and the engine is gone."""
    gone = (time - start) / 1000 - 30
    if gone < 0:
        return storm(time, **more)
    scene = Scene()
    scene.gpu(0)
    scene.on_gpu(0, held=73.6)
    scene.add("gpu_state", 1, **gpu_labels(1), state="hung")
    scene.add("gpu_unresponsive", gone + 1, **gpu_labels(1))
    down = {"up": False, "reason": "unreachable", "detail": "connection refused", "age": gone + 1}
    return snapshot(scene, time, sources=sources(engine=down), findings=storm_findings()[3:], **more)


LOOKED_FOR = (
    ("NVIDIA GPUs", "libnvidia-ml.so.1 was not found: no driver is installed"),
    ("vLLM and SGLang processes", "none of 212 processes is one"),
    ("ports 8000-8009, 30000", "nothing answered on 127.0.0.1"),
)


def empty(time=START + 2_000, **more):
    down = SourceState("nvml", "nvml", up=False, reason="no_driver", detail="libnvidia-ml.so.1 was not found")
    more.setdefault("looked_for", LOOKED_FOR)
    return snapshot(None, time, sources=(down, SourceState("host", "host", up=True, age=0.1)), rules=(), **more)


ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;owned\x07 [bold red]markup[/] \u202egnp.exe \x9b2J \r\n tail"


def hostile(time=START + 60_000, **more):
    """Names and lines that try to get at the terminal or at Rich's markup, and very long and wide ones."""
    scene = Scene()
    scene.gpu(0, name="NVIDIA " + ESCAPES)
    scene.gpu(1, name="名前" * 40)
    scene.server("127.0.0.1:8000", version="[red]0.32[/red]")
    scene.rank(model="[bold red]evil[/] " + "あ" * 60 + ESCAPES, **STORM_RANK)
    finding = Finding("kv_preemption_storm", "critical", ESCAPES, ESCAPES + " " + "long" * 200, 0.9,
                      (Evidence(ESCAPES, ESCAPES, 1, "n", 1.0, ""),), (Advice(ESCAPES, "--x\x1b[2J", "1\x07", "[b]2"),),
                      since=START, labels={"host": HOST, "server": "\x1b[1mserver"})  # fmt: skip
    lines = (
        LogLine("\x1b[2Jlog", 1, START, "ERROR", ESCAPES, "[blink]"),
        LogLine("b.log", 2, START, "\x1b[5m", "x" * 5000),
        LogLine("b.log", 3, START, "", "[link=file:///etc/passwd]click[/link] 👩\u200d👩\u200d👧 \ufeff"),
    )
    bad = SourceState("log", "log:\x1b[31m", up=False, reason="failed", detail=ESCAPES)
    return snapshot(
        scene, time, findings=(finding,), lines=lines, sources=(*sources(), bad),
        looked_for=((ESCAPES, ESCAPES),),
        facts=(Fact("k\x1b[1m", ESCAPES, ESCAPES, 1, START, "127.0.0.1:8000"),), **more,
    )  # fmt: skip


def demo(time=START + 60_000):
    return storm(time, mode="demo", recording=Recording("demo.gpuwatch", 0, "", 72.0, 300.0))


class ScriptedFeed:
    """A feed whose snapshots are pushed by hand; the past is whatever `past` returns."""

    def __init__(self, past=None):
        self.callbacks = []
        self.asked = []
        self.past = past
        self.held = []

    def subscribe(self, callback):
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def push(self, snapshot):
        for callback in list(self.callbacks):
            callback(snapshot)

    def at(self, time_ms):
        self.asked.append(time_ms)
        future = Future()
        if self.past is None:
            self.held.append(future)
            return future
        try:
            future.set_result(self.past(time_ms))
        except Exception as error:  # noqa: BLE001  # the feed hands on whatever went wrong
            future.set_exception(error)
        return future


SCENES = {
    "storm": storm,
    "predicted": predicted,
    "calm": calm,
    "two_ranks": two_ranks,
    "several_engines": several_engines,
    "sixteen": sixteen,
    "many_findings": many_findings,
    "troubled": troubled,
    "silent_engine": silent_engine,
    "empty": empty,
    "fading": fading,
    "hostile": hostile,
    "demo": demo,
}
