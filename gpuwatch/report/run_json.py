"""The figures of a run as JSON has them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpuwatch.report.figures import added_seconds, at_most, levels, mean, merged, rate, told
from gpuwatch.report.load import LATENCIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.report.data import EngineRun, GpuRun, RunData, Window

SCHEMA = 1
_RATES = ("prompt_tokens", "generation_tokens")


def as_json(run: RunData, finding_json: Callable[[Finding], dict[str, Any]]) -> dict[str, Any]:
    """Return a run as JSON has it: bytes, seconds, ratios; null is not known. `finding_json` writes a finding."""
    return {
        "schema": SCHEMA,
        "run": {
            "recording": run.name,
            "host": run.host,
            "started": run.started,
            "seconds": run.seconds,
            "unsampled_seconds": run.unsampled,
            "ticks": run.ticks,
            "program": run.program,
            "note": run.note,
            "cut": run.cut,
        },
        "engines": [_engine(engine) for engine in run.engines],
        "gpus": [_gpu(gpu) for gpu in run.gpus],
        "findings": [
            finding_json(finding) | {"episodes": [list(times) for times in run.times_of(finding)]}
            for finding in run.findings
        ],
        "not_enough_evidence": [
            {"id": item.id, "missing": item.missing, "labels": dict(item.labels)} for item in run.not_enough
        ],
        "not_judged_at_end": [
            {"id": item.id, "missing": item.missing, "labels": dict(item.labels)} for item in run.not_at_end
        ],
        "problems": [*run.problems, *(f"{source.name}: {source.value}" for source in run.silent)],
    }


def _engine(engine: EngineRun) -> dict[str, Any]:
    busy = [window for window in engine.windows if window.busy]
    whole = merged(busy)
    length = added_seconds(busy)
    data: dict[str, Any] = {
        "server": engine.server,
        "dp_rank": engine.rank,
        "engine": engine.kind,
        "engine_version": engine.version,
        "model": engine.model,
        "tensor_parallel": engine.tensor_parallel,
        "flags": {item.name: item.value for item in engine.settings if item.name.startswith("--")},
        "starts": [
            {
                "begun": start.begun,
                "served": None if start.served is None else list(start.served),
                "flags": {item.name: item.value for item in start.flags},
            }
            for start in engine.starts
        ],
        "work_seconds": length,
    }
    if whole is None:
        return data
    data |= dict(whole.counted)
    data |= {f"{name}_per_second": rate(whole, name, length) for name in _RATES}
    data |= {"running": whole.running, "waiting": whole.waiting, "kv_usage": whole.kv_usage}
    data["latency"] = _latency(whole)
    data["levels"] = [
        {
            "running": level.text,
            "seconds": level.seconds,
            "generation_tokens_per_second": level.rate("generation_tokens"),
            "latency": _latency(level.whole),
        }
        for level in levels(busy)
    ]
    return data


def _latency(window: Window) -> dict[str, dict[str, float | str | None]]:
    """Return means and quantiles in seconds.

    A quantile in the last bucket is the text ``+Inf``; one in the first is null, with its end as ``_at_most``.
    """
    found: dict[str, dict[str, float | str | None]] = {}
    for name, _ in LATENCIES:
        if name in window.histograms:
            histogram = window.histograms[name]
            values = {f"p{share}": told(share / 100, histogram) for share in (50, 95, 99)}
            bounds = {f"p{share}_at_most": at_most(share / 100, histogram) for share in (50, 95, 99)}
            found[name] = {
                key: "+Inf" if value is not None and math.isinf(value) else value for key, value in values.items()
            }
            found[name] |= {key: bound for key, bound in bounds.items() if bound is not None}
            found[name]["mean"] = mean(histogram)
    return found


def _gpu(gpu: GpuRun) -> dict[str, Any]:
    return {
        "gpu": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "driver": gpu.driver,
        "total_bytes": gpu.total,
        "peak_bytes": gpu.peak,
        "peak_time": gpu.peak_time or None,
        "ledger_at_peak": dict(gpu.at_peak),
        "ledger_at_end": dict(gpu.at_end),
    }
