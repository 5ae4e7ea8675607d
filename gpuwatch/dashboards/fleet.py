"""The fleet overview: is anything wrong, and where; then load, GPUs and hosts, one line a machine or engine."""

from __future__ import annotations

from gpuwatch.dashboards.model import CLUSTER, HOST, MODEL, SERVER, Column, Dashboard, Panel, Row, Series
from gpuwatch.dashboards.shared import (
    ANY,
    CARD,
    ENGINE,
    EVICTIONS,
    FINDING_ROWS,
    FINDINGS,
    FLEET,
    HEADROOM,
    HOST_CPU,
    HOST_MEMORY,
    LEDGER,
    MACHINE,
    POOL_FULL,
    RANK,
    SHM,
    SOME,
    finding_columns,
)
from gpuwatch.dashboards.units import EVENTS

_STATE = Row(
    "Is anything wrong?",
    (
        Panel(
            "stat",
            "Critical findings",
            "Requests fail or throughput collapses now. The table below says where, why, and what to change.",
            (Series("fleet_critical", "critical"),),
            width=3,
            height=4,
            limits=(ANY,),
            empty="gpuwatch is not scraped",
        ),
        Panel(
            "stat",
            "Warnings",
            "It will fail, or capacity is wasted.",
            (Series("fleet_warnings", "warnings"),),
            width=3,
            height=4,
            limits=(SOME,),
            empty="gpuwatch is not scraped",
        ),
        Panel(
            "stat",
            "Silent engines",
            "Engines that gpuwatch knows of and whose metrics page could not be read at the last poll.",
            (Series("fleet_engines_silent", "silent"),),
            width=3,
            height=4,
            limits=(ANY,),
            empty="gpuwatch is not scraped",
        ),
        Panel(
            "stat",
            "GPUs not ok",
            "Lost, hung, resetting, or without readings. A GPU that gives no readings is not a healthy one.",
            (Series("fleet_gpus_not_ok", "not ok"),),
            width=3,
            height=4,
            limits=(ANY,),
            empty="no GPU is read",
        ),
        Panel("stat", "Machines", "Machines that run gpuwatch.", (Series("fleet_hosts", "machines"),), 2, 4),
        Panel("stat", "GPUs", "GPUs that the driver lists.", (Series("fleet_gpus", "GPUs"),), 2, 4),
        Panel("stat", "Engines", "Engines that answer.", (Series("fleet_engines", "engines"),), 2, 4),
        Panel(
            "stat",
            "Generation",
            "Generated tokens per second of all engines that are selected.",
            (Series("fleet_generation_rate", "tokens/s"),),
            3,
            4,
        ),
        Panel("stat", "Power", "Power draw of all GPUs.", (Series("fleet_power", "power"),), 3, 4),
        Panel(
            "table",
            "Findings",
            "What gpuwatch finds now, its cause, and the first change to make. `gpuwatch rules explain FINDING` says "
            "more.",
            (Series("findings", ""),),
            width=24,
            height=8,
            by=FINDING_ROWS,
            columns=finding_columns(FINDINGS),
            empty="no finding, or gpuwatch is not scraped",
        ),
    ),
)

_ENGINES = Row(
    "Engines",
    (
        Panel(
            "table",
            "Engines now",
            "One row for each data-parallel rank. A full pool with a queue is saturation; a full pool with evictions "
            "is a storm. Click an engine to open its dashboard.",
            (
                Series("kv_usage", "KV pool"),
                Series("running", "running"),
                Series("waiting", "waiting"),
                Series("generation_rate", "generated"),
                Series("ttft_p95", "TTFT p95"),
                Series("itl_p95", "ITL p95"),
                Series("eviction_rate", "evictions/s"),
                Series("prefix_hit_ratio", "prefix hits"),
                Series("seconds_since_token", "since last token"),
            ),
            width=24,
            height=7,
            by=("cluster", "host", "server", "model_name", "engine_kind", "dp_rank"),
            columns=(
                Column("engine", 160, link=ENGINE),
                Column("KV pool", 160, (POOL_FULL,), bar=True),
                Column("evictions/s", 0, (EVICTIONS,)),
            ),
            sort="waiting",
        ),
        Panel(
            "timeseries",
            "KV pool in use",
            "Part of each engine's KV pool that is in use. High and no queue is healthy; high with a queue means that "
            "the pool limits; high with evictions means that work is done twice.",
            (Series("kv_usage", RANK),),
            limits=(POOL_FULL,),
            top=1,
        ),
        Panel(
            "timeseries",
            "Requests that wait",
            "The queue of each engine. A queue that only grows means that more arrives than is served.",
            (Series("waiting", RANK),),
        ),
        Panel(
            "timeseries",
            "Evictions",
            "Running requests that left the batch without finishing, seen from outside; their work is done again. "
            "Make the pool larger or admit fewer requests.",
            (Series("eviction_rate", RANK),),
            unit=EVENTS,
            limits=(EVICTIONS,),
        ),
        Panel(
            "timeseries",
            "Generated tokens",
            "Output of each engine. A fall while requests run is what users feel.",
            (Series("generation_rate", RANK),),
        ),
        Panel(
            "timeseries",
            "Time to first token, 95th percentile",
            "From arrival to first token: the queue and the prefill.",
            (Series("ttft_p95", RANK),),
        ),
        Panel(
            "timeseries",
            "Time between tokens, 95th percentile",
            "What a reader sees as stutter. Long prefills of others and evictions raise it.",
            (Series("itl_p95", RANK),),
        ),
    ),
)

_GPUS = Row(
    "GPUs",
    (
        Panel(
            "table",
            "Machines now",
            "One row for each machine. Headroom is what its fullest GPU had left at the peak of the last minute: the "
            "next peak needs it. Click a machine to open its memory ledger.",
            (
                Series("host_gpus", "GPUs"),
                Series("host_gpu_memory_used", "GPU memory used"),
                Series("host_gpu_memory_total", "GPU memory"),
                Series("host_least_headroom", "least headroom"),
                Series("host_busiest_gpu", "busiest GPU"),
                Series("host_idlest_gpu", "idlest GPU"),
                Series("host_gpu_power", "power"),
                Series("host_hottest_gpu", "hottest GPU"),
                Series("host_cpu", "CPU"),
                Series("host_memory_free_ratio", "memory available"),
            ),
            width=24,
            height=6,
            by=("cluster", "host"),
            columns=(Column("host", 160, link=LEDGER), Column("least headroom", 0, (HEADROOM,))),
            sort="GPU memory used",
        ),
        Panel(
            "timeseries",
            "Busiest and idlest GPU of each machine",
            "Share of time a kernel ran. Far apart on one machine: a replica without load, or ranks that wait for a "
            "slow one.",
            (
                Series("host_busiest_gpu", MACHINE + " busiest"),
                Series("host_idlest_gpu", MACHINE + " idlest", dashed=True),
            ),
            top=1,
        ),
        Panel(
            "timeseries",
            "Least headroom of each machine",
            "What the fullest GPU of each machine had left at its peak of the last minute, as a part of its memory.",
            (Series("host_least_headroom", MACHINE),),
            limits=(HEADROOM,),
        ),
        Panel(
            "timeseries",
            "Lowered clocks",
            "Share of time for which the worst GPU of a machine ran with lowered clocks, by reason. `power` at a "
            "power cap is how a busy card works; thermal reasons and power brakes are not.",
            (Series("host_throttle", MACHINE + " {{reason}}"),),
            top=1,
            empty="no GPU lowers its clocks",
        ),
        Panel(
            "timeseries",
            "Power of each machine",
            "Sum over the GPUs of a machine.",
            (Series("host_gpu_power", MACHINE),),
        ),
        Panel(
            "timeseries",
            "Hottest GPU of each machine",
            "GPU temperature. A card lowers its clocks on its own when it gets too hot.",
            (Series("host_hottest_gpu", MACHINE),),
            bottom=None,
        ),
        Panel(
            "timeseries",
            "Xid errors",
            "Errors that the driver reported, by number. `gpuwatch rules explain xid_hardware` tells hardware from "
            "software.",
            (Series("gpu_xid_rate", f"{CARD} Xid {{{{xid}}}}"),),
            empty="no Xid error",
        ),
    ),
)

_HOSTS = Row(
    "Hosts and gpuwatch itself",
    (
        Panel(
            "timeseries",
            "CPU",
            "Share of all cores in use. An engine whose GPUs idle while requests wait is often short of CPU.",
            (Series("host_cpu", MACHINE),),
            width=6,
            limits=(HOST_CPU,),
            top=1,
        ),
        Panel(
            "timeseries",
            "Memory available",
            "Part of the machine's memory that programs can still get. When it is gone, the kernel kills a worker.",
            (Series("host_memory_free_ratio", MACHINE),),
            width=6,
            limits=(HOST_MEMORY,),
            top=1,
        ),
        Panel(
            "timeseries",
            "Shared memory in use",
            "Used part of the file system for shared memory. NCCL and workers need it; containers often have 64 MiB.",
            (Series("host_shm_used_ratio", MACHINE),),
            width=6,
            limits=(SHM,),
            top=1,
        ),
        Panel(
            "timeseries",
            "CPU of gpuwatch",
            "Cores that gpuwatch itself uses.",
            (Series("own_cpu", MACHINE),),
            width=6,
        ),
    ),
)

DASHBOARD = Dashboard(
    FLEET,
    "gpuwatch / fleet",
    "All machines, engines and GPUs: is anything wrong, where, and what to change.",
    (CLUSTER, HOST, SERVER, MODEL),
    (_STATE, _ENGINES, _GPUS, _HOSTS),
)
