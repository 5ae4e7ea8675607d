"""Thresholds and words that several dashboards use: each stands once."""

from __future__ import annotations

from gpuwatch.dashboards.model import Colour, Column, Level, Limit

FLEET = "gpuwatch-fleet"
ENGINE = "gpuwatch-engine"
LEDGER = "gpuwatch-ledger"
FINDINGS = "gpuwatch-findings"

POOL_FULL = Limit("GpuwatchKvPoolSaturated", "avg_over_time(gpuwatch_engine_kv_cache_usage_ratio[1m])", "yellow")
EVICTIONS = Limit(
    "GpuwatchKvPreemptionStorm", 'increase(gpuwatch_engine_evictions_total{engine_kind!="sglang"}[1m])', "red", 1 / 60
)
FROZEN = Limit("GpuwatchEngineStalled", "gpuwatch_engine_page_frozen_seconds")
HEADROOM = Limit(
    "GpuwatchPrefillMemoryPeakHigh",
    "gpuwatch_gpu_memory_free_bytes + gpuwatch_gpu_memory_used_bytes - gpuwatch_gpu_memory_peak_bytes",
)
SOURCE_AGE = Limit("GpuwatchSourceDegraded", 'gpuwatch_source_age_seconds{source!="engine"}', "yellow")
HOST_MEMORY = Limit("GpuwatchHostMemoryLow", "gpuwatch_host_memory_available_bytes")
SHM = Limit("GpuwatchShmFull", "gpuwatch_host_shm_used_bytes")
HOST_CPU = Limit("GpuwatchHostCpuFull", "avg_over_time(gpuwatch_host_cpu_busy_ratio[1m])", "yellow")
ANY = Level(1)
SOME = Level(1, "yellow")

SEVERITIES: tuple[tuple[str, str, Colour], ...] = (
    ("critical", "critical", "red"),
    ("warning", "warning", "orange"),
    ("info", "info", "blue"),
)
_FINDING_COLUMNS = (
    Column("severity", 75, mapping=SEVERITIES),
    Column("cluster", 75),
    Column("host", 90),
    Column("engine", 145, link=ENGINE),
    Column("uuid", 105),
    Column("cause", 0, wrap=True),
    Column("flag", 175),
    Column("from", 60),
    Column("to", 60),
    Column("advice", 0, wrap=True),
)
FINDING_ROWS = ("severity", "id", "cluster", "host", "server", "uuid", "cause", "flag", "from", "to", "advice")
"""Labels that make a row of a table of findings."""


def finding_columns(link: str = "") -> tuple[Column, ...]:
    """Return how the columns of a table of findings are shown; `link` is where a click on the id leads."""
    return (*_FINDING_COLUMNS, Column("finding", 175, link=link))


MACHINE = "{{cluster}} {{host}}"
SERVED = MACHINE + " {{server}}"
"""An engine: on loopback the address alone is the same on every machine."""
RANK = SERVED + " {{model_name}} {{dp_rank}}"
CARD = MACHINE + " gpu {{gpu}}"
