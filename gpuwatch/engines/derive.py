"""What an engine's page implies: pool sizes from labels, free tokens, totals of queues, counters that are still 0."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gpuwatch.engines import sglang, vllm
from gpuwatch.engines.catalog import ENGINES, Coverage, coverage, detect
from gpuwatch.engines.metric import PREFIX
from gpuwatch.engines.plan import Plan, PlanBuilder
from gpuwatch.engines.version import parse_version, show_version
from gpuwatch.model import Absence, Reason, series

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatch.engines.catalog import Engine
    from gpuwatch.engines.info import EngineInfo
    from gpuwatch.engines.version import Version
    from gpuwatch.model import Labels

_CONFIG = PREFIX + "config_"
_QUEUES = ("~grammar_queue", "~bootstrap_queue", "~prealloc_queue", "~transfer_queue")
# Derived series that a page should allow, and from what.
_DERIVED = {
    "vllm": {
        "kv_cache_tokens": "the label kv_cache_size_tokens or num_gpu_blocks of vllm:cache_config_info",
        "kv_cache_blocks": "a number of blocks in vllm:cache_config_info that divides by the ranks",
        "kv_block_size_tokens": "the label block_size of vllm:cache_config_info",
        "kv_cache_free_tokens": "the KV usage and the size of the pool",
        "prefix_cache_enabled": "the label enable_prefix_caching of vllm:cache_config_info",
        "config_memory_fraction_ratio": "the label gpu_memory_utilization of vllm:cache_config_info; no effect beside "
        "--kv-cache-memory-bytes",
    },
    "sglang": {
        "requests_waiting": "sglang:num_queue_reqs",
        "kv_cache_free_tokens": "sglang:kv_available_tokens, or the usage and the size of the pool",
    },
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan, the series that it lacks and why, and how complete the page is."""

    plan: Plan
    absent: tuple[Absence, ...]
    coverage: Coverage


def compile_page(page: Sequence[Labels], names: Iterable[str], info: EngineInfo, host: str, server: str) -> Compiled:
    """Compile the plan for a page with the series `page`; `names` adds declared families without series."""
    engine = ENGINES[info.kind]
    names = tuple(names)
    builder = PlanBuilder(engine, page, host, server)
    version = parse_version(info.version)
    if engine.kind == "vllm":
        _derive_vllm(builder, version)
    else:
        _derive_sglang(builder, version, info)
    builder.constant(PREFIX + "page_processes", builder.base, len(builder.pids()))
    builder.constant(PREFIX + "info", builder.base, 1.0, version=info.version, role=_role(builder, info))
    for name, value in info.config:
        builder.constant(name, builder.base, value)
    builder.constant(_CONFIG + "max_model_len_tokens", builder.base, info.max_model_len)
    covered = coverage(names, info.kind, info.version)
    return Compiled(builder.build(), tuple(_absences(builder, engine, version, names, covered)), covered)


def _role(builder: PlanBuilder, info: EngineInfo) -> str:
    """Return prefill, decode or the like: SGLang's label `engine_type`, where the page has just one."""
    types = {labels.get("engine_type", "") for labels in builder.page_rows(builder.engine.running)}
    return info.role or (types.pop() if len(types) == 1 else "")


def _derive_vllm(builder: PlanBuilder, version: Version | None) -> None:
    null_block = vllm.has_null_block(version, builder.names)
    rows = list(builder.page_rows("cache_config_info"))
    ranks = Counter(replica for replica, _ in {(builder.replica(row), row.get("engine", "")) for row in rows})
    engines = builder.engines()
    for labels in rows:
        config = vllm.cache_config(labels, ranks[builder.replica(labels)])
        of = _with_model(builder.engine_labels(labels), engines)
        builder.constant(PREFIX + "kv_block_size_tokens", of, config.block_size)
        builder.constant(PREFIX + "kv_cache_blocks", of, config.blocks)
        builder.constant(PREFIX + "kv_cache_tokens", of, config.tokens)
        builder.constant(PREFIX + "num_gpu_blocks_override", of, config.override)
        builder.constant(PREFIX + "prefix_cache_enabled", of, config.prefix_caching)
        builder.constant(PREFIX + "cache_config_info", of, 1.0, cache_dtype=config.dtype)
        builder.constant(_CONFIG + "memory_fraction_ratio", builder.base, config.memory_fraction)
        if config.tokens is not None:
            builder.formula(
                PREFIX + "kv_cache_free_tokens",
                of,
                [PREFIX + "kv_cache_usage_ratio"],
                partial(vllm.free_tokens, config=config, null_block=null_block),
            )


def _with_model(of: dict[str, str], engines: list[dict[str, str]]) -> dict[str, str]:
    """Add the model name that `cache_config_info` lacks, from the scheduler of the same rank, where it is the only one."""
    if "model_name" in of:
        return of
    models = {one["model_name"] for one in engines if "model_name" in one and one.get("dp_rank") == of.get("dp_rank")}
    return of | {"model_name": models.pop()} if len(models) == 1 else of


def _derive_sglang(builder: PlanBuilder, version: Version | None, info: EngineInfo) -> None:
    usage, tokens, free = (PREFIX + "kv_cache_" + name for name in ("usage_ratio", "tokens", "free_tokens"))
    evictable = PREFIX + "kv_cache_evictable_tokens"
    paged = {builder.engine_labels(labels).get("dp_rank"): labels for labels in builder.page_rows("cache_config_info")}
    for of in builder.engines():
        builder.constant(tokens, of, info.setting("kv.tokens"))
        builder.constant(PREFIX + "prefix_cache_enabled", of, info.setting("prefix_caching"))
        labels = paged.get(of.get("dp_rank"), {})
        builder.constant(PREFIX + "kv_block_size_tokens", of, _count(labels.get("page_size")))
        builder.constant(PREFIX + "kv_block_size_tokens", of, info.setting("kv.block_size"))
        builder.constant(PREFIX + "kv_cache_blocks", of, _count(labels.get("num_pages")))
        builder.formula(usage, of, ["~available", evictable, tokens], sglang.precise_usage)
        if not builder.formula(free, of, ["~available", evictable], lambda *parts: sum(parts)):
            builder.formula(free, of, ["~token_usage", tokens], sglang.free_from_usage)
        deferred = [name for name in _QUEUES if builder.has(name, of)]
        builder.formula(PREFIX + "requests_waiting", of, ["~queue", *deferred], lambda *parts: sum(parts))
        if deferred:
            builder.formula(
                PREFIX + "requests_waiting_by_reason", of, deferred, lambda *parts: sum(parts), reason="deferred"
            )
        if builder.has("~swa_tokens", of):
            builder.formula(PREFIX + "kv_cache_swa_usage_ratio", of, ["~swa_token_usage"], float)
        builder.formula(PREFIX + "kv_offload_usage_ratio", of, ["~host_used", "~host_total"], sglang.share)
    _add_zeros(builder, version)


def _add_zeros(builder: PlanBuilder, version: Version | None) -> None:
    """Add counters that have not counted yet as 0, where the version is known to have them.

    SGLang creates the children of a counter with their first event, and `increase()` never sees an event that
    creates its series.
    """
    if version is None:
        detected = detect((builder.engine.prefixes[0] + name for name in builder.names), builder.engine.kind)
        version = detected.since if detected is not None else None
    schedulers = builder.engines()
    tokenizers = [{key: value for key, value in of.items() if key != "dp_rank"} for of in schedulers]
    for row in builder.engine.table:
        if row.zero and version is not None and row.available("", version):
            for of in schedulers if row.zero == "scheduler" else tokenizers:
                builder.constant(row.target, of, 0.0, **dict(row.const))


OPTIONAL = "the page has none of: "
"""How the reason of what a complete page may lack begins: it is not switched on, or has not happened yet."""


def _count(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _absences(
    builder: PlanBuilder, engine: Engine, version: Version | None, names: Sequence[str], covered: Coverage
) -> Iterable[Absence]:
    """Yield what the page does not give, and why: not in this version, not switched on, or missing without a reason."""
    present = builder.targets()
    detected = detect(names, engine.kind)
    generation = detected.generation if detected is not None else ""
    title = f"{engine.title} {show_version(version)}" if version else engine.title
    derived = {PREFIX + name: source for name, source in _DERIVED[engine.kind].items()}
    for target in dict.fromkeys((*(row.target for row in engine.table), *derived)):
        if target in present or target.startswith("~"):
            continue
        labels = series(target, **builder.base)
        rows = [row for row in engine.table if row.target == target]
        fitting = [row for row in rows if version is None or row.available(generation, version)]
        if target in derived:
            yield Absence(labels, Reason.NEVER_SEEN, f"needs {derived[target]}")
        elif not fitting:
            versions = ", ".join(f"{engine.prefixes[0]}{row.upstream} ({row.versions()})" for row in rows)
            yield Absence(labels, Reason.NOT_SUPPORTED, f"{title} has no such metric; it would be {versions}")
        elif any(not row.conditional for row in fitting) or version is None:
            wanted = " or ".join(dict.fromkeys(engine.prefixes[0] + row.upstream for row in fitting))
            yield Absence(labels, Reason.NEVER_SEEN, f"the page has no {wanted}. {covered}")
        else:
            wanted = "; ".join(f"{engine.prefixes[0]}{row.upstream}: {row.note or 'not yet'}" for row in fitting)
            yield Absence(labels, Reason.NEVER_SEEN, f"{OPTIONAL}{wanted}")
