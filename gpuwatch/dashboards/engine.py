"""One engine, or a few: from what its users feel down to its pool, its cache, its GPUs and its log."""

from __future__ import annotations

from gpuwatch.dashboards.model import CLUSTER, HOST, MODEL, SERVER, Column, Dashboard, Panel, Row, Series
from gpuwatch.dashboards.shared import ENGINE, EVICTIONS, FROZEN, HEADROOM, POOL_FULL, RANK, SERVED
from gpuwatch.dashboards.units import EVENTS, REQUESTS

_CARD = SERVED + " gpu {{gpu}}"


_NOW = Row(
    "Now",
    (
        Panel(
            "stat",
            "KV pool in use",
            "Cached blocks that nobody uses count as free.",
            (Series("kv_usage", RANK),),
            width=4,
            height=4,
            limits=(POOL_FULL,),
        ),
        Panel("stat", "Running", "Requests in the batch.", (Series("running", RANK),), 3, 4),
        Panel("stat", "Waiting", "Requests in the queue.", (Series("waiting", RANK),), 3, 4),
        Panel("stat", "Generation", "Generated tokens per second.", (Series("generation_rate", RANK),), 4, 4),
        Panel("stat", "TTFT p95", "95th percentile, arrival to first token.", (Series("ttft_p95", RANK),), 3, 4),
        Panel("stat", "ITL p95", "95th percentile of the time between tokens.", (Series("itl_p95", RANK),), 3, 4),
        Panel(
            "stat",
            "Nothing moves since",
            "Time for which no value of the engine's page changed while requests were open. A long prefill moves the "
            "pool and is not this; a hung collective is.",
            (Series("page_frozen", RANK),),
            width=4,
            height=4,
            limits=(FROZEN,),
        ),
    ),
)

_LATENCY = Row(
    "What users feel",
    (
        Panel(
            "timeseries",
            "Time to first token",
            "Arrival to first token. Compare with the queue below: what is left is prefill.",
            (Series("ttft_p50", f"p50 {RANK}"), Series("ttft_p95", f"p95 {RANK}")),
        ),
        Panel(
            "timeseries",
            "Time between tokens",
            "One long prefill, evictions, or a slow rank show here first.",
            (Series("itl_p50", f"p50 {RANK}"), Series("itl_p95", f"p95 {RANK}")),
        ),
        Panel(
            "timeseries",
            "Whole request",
            "Arrival to last token of finished requests.",
            (Series("e2e_p50", f"p50 {RANK}"), Series("e2e_p95", f"p95 {RANK}")),
        ),
        Panel(
            "timeseries",
            "Time in the queue",
            "Before a request is scheduled for the first time.",
            (Series("queue_p50", f"p50 {RANK}"), Series("queue_p95", f"p95 {RANK}")),
        ),
        Panel(
            "timeseries",
            "Prefill, 95th percentile",
            "From scheduling to first token. Grows with the prompt, and where chunks wait for others.",
            (Series("prefill_p95", RANK),),
        ),
        Panel(
            "timeseries",
            "Time since a token",
            "Time since any token came while requests ran; 0 while idle.",
            (Series("seconds_since_token", RANK), Series("page_frozen", f"page frozen {RANK}", dashed=True)),
            limits=(FROZEN,),
        ),
    ),
)

_TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "timeseries",
            "Tokens per second",
            "Prompt tokens count cached ones too.",
            (
                Series("generation_rate", f"generated {RANK}"),
                Series("prompt_rate", f"prompt {RANK}", dashed=True),
            ),
        ),
        Panel(
            "timeseries",
            "Requests that ended",
            "By reason. `length` everywhere: outputs are cut by max_tokens. `abort`: clients give up.",
            (Series("finished_by_reason", "{{reason}} " + RANK),),
            unit=REQUESTS,
        ),
        Panel(
            "timeseries",
            "Requests refused",
            "Refused at admission, by reason.",
            (Series("rejected_by_reason", "{{reason}} " + RANK),),
            unit=REQUESTS,
            empty="none refused, or the engine does not count them",
        ),
        Panel(
            "timeseries",
            "Length of prompts and outputs",
            "Of finished requests. Longer prompts need more of the pool each.",
            (
                Series("prompt_length_p50", f"prompt p50 {RANK}"),
                Series("prompt_length_p95", f"prompt p95 {RANK}"),
                Series("generation_length_p95", f"output p95 {RANK}"),
            ),
        ),
        Panel(
            "timeseries",
            "Prefix cache hits",
            "Share of prompt tokens found in the prefix cache. 0 with shared prompts: they differ early, or are "
            "shorter than a block.",
            (Series("prefix_hit_ratio", RANK),),
            top=1,
            empty="no look-ups",
        ),
        Panel(
            "timeseries",
            "Prompt tokens: computed and cached",
            "What the cache saves.",
            (
                Series("prompt_computed_rate", f"computed {RANK}"),
                Series("prompt_cached_rate", f"from a cache {RANK}", dashed=True),
            ),
            empty="the engine does not tell them apart",
        ),
    ),
)

_POOL = Row(
    "Scheduling and KV pool",
    (
        Panel(
            "timeseries",
            "KV pool in use",
            "High and no queue is healthy. Right after an eviction it falls, so look at the evictions beside it.",
            (Series("kv_usage", RANK), Series("swa_usage", f"sliding window {RANK}", dashed=True)),
            limits=(POOL_FULL,),
            top=1,
        ),
        Panel(
            "timeseries",
            "Running and waiting",
            "The batch, the queue, and the most requests a batch may hold. Running far below the limit while others "
            "wait: the pool is what limits.",
            (
                Series("running", f"running {RANK}"),
                Series("waiting", f"waiting {RANK}"),
                Series("max_num_seqs", f"limit {SERVED}", dashed=True),
            ),
        ),
        Panel(
            "timeseries",
            "Evictions and preemptions",
            "Evictions are seen from outside, at once. The engine's own counter of preemptions moves late on vLLM V1.",
            (
                Series("eviction_rate", f"evictions {RANK}"),
                Series("preemption_rate", f"preemptions {RANK}", dashed=True),
            ),
            unit=EVENTS,
            limits=(EVICTIONS,),
        ),
        Panel(
            "timeseries",
            "Pool against request length",
            "Pool divided by the tokens of a request is how many fit. The length is a lower bound, seen over five "
            "minutes.",
            (
                Series("kv_tokens", f"pool {RANK}"),
                Series("kv_free_tokens", f"free {RANK}"),
                Series("request_length_seen", f"per request {RANK}"),
                Series("max_model_len", f"longest allowed {SERVED}", dashed=True),
            ),
        ),
        Panel(
            "timeseries",
            "Why requests wait",
            "`capacity`: the pool or the batch is full. `deferred`: something else, such as a grammar or a transfer.",
            (Series("waiting_by_reason", "{{reason}} " + RANK),),
            empty="none waits, or the engine does not say why",
        ),
        Panel(
            "timeseries",
            "Accepted draft tokens",
            "Share of the drafted tokens that speculative decoding kept. Low: drafting costs more than it gives.",
            (Series("draft_acceptance", RANK),),
            top=1,
            empty="no speculative decoding",
        ),
    ),
)

_GPUS = Row(
    "Its GPUs",
    (
        Panel(
            "timeseries",
            "Busy",
            "Share of time a kernel ran. Idle GPUs while requests wait: the host or a rank is what limits.",
            (Series("engine_gpu_busy", _CARD),),
            top=1,
        ),
        Panel(
            "timeseries",
            "Memory in use",
            "The ranks of a tensor-parallel engine hold the same; the fullest one limits all.",
            (Series("engine_gpu_memory", _CARD),),
        ),
        Panel(
            "timeseries",
            "Headroom at the last peak",
            "Part of the memory that was left at the peak of the last minute.",
            (Series("engine_gpu_headroom", _CARD),),
            limits=(HEADROOM,),
        ),
        Panel(
            "timeseries",
            "SM clock",
            "One card slower than the others slows the whole group.",
            (Series("engine_gpu_clock", _CARD),),
            bottom=None,
        ),
        Panel("timeseries", "Power", "Power draw of each card.", (Series("engine_gpu_power", _CARD),)),
        Panel(
            "timeseries",
            "Lowered clocks",
            "Share of time with lowered clocks, for the reason that holds longest; reasons may overlap.",
            (Series("engine_gpu_throttle", _CARD),),
            empty="no GPU lowers its clocks",
        ),
    ),
)

_PROCESS = Row(
    "Process, log and settings",
    (
        Panel(
            "timeseries",
            "CPU",
            "Cores that the engine's processes use.",
            (Series("engine_cpu", SERVED),),
            empty="the engine's processes are not visible",
        ),
        Panel(
            "timeseries",
            "Resident memory",
            "Of the engine's processes. Growth without end is a leak; growth to a plateau is a cache.",
            (Series("engine_resident", SERVED),),
            empty="the engine's processes are not visible",
        ),
        Panel(
            "timeseries",
            "Recognised log lines",
            "Lines of the log that mean something, by event.",
            (Series("log_events", "{{event}} " + SERVED + " {{log}}"),),
            unit=EVENTS,
            empty="none, or no log is read",
        ),
        Panel(
            "table",
            "Settings",
            "What the engine was started with and what it printed about its memory, for each GPU.",
            (
                Series("max_num_seqs", "max requests"),
                Series("max_model_len", "max length"),
                Series("max_batched_tokens", "tokens a step"),
                Series("tensor_parallel_size", "TP"),
                Series("memory_fraction", "memory fraction"),
                Series("max_concurrency", "full-length requests"),
                Series("weights", "weights"),
                Series("kv_cache_bytes", "KV pool"),
                Series("activation_peak", "activation peak"),
                Series("graph_bytes", "graphs"),
            ),
            width=24,
            height=6,
            by=("cluster", "host", "server", "engine_kind"),
            columns=(Column("engine", 160),),
        ),
    ),
)

DASHBOARD = Dashboard(
    ENGINE,
    "gpuwatch / engine",
    "What the users of an engine feel, and why: queue, KV pool, prefix cache, GPUs, log.",
    (CLUSTER, HOST, SERVER, MODEL),
    (_NOW, _LATENCY, _TRAFFIC, _POOL, _GPUS, _PROCESS),
)
