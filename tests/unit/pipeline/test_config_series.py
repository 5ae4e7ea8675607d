"""Facts as series: scales of the KV cache, ranks of this server, launch flags with a trap, and why a source fails."""

from __future__ import annotations

import pytest
from unit.pipeline.scenario import HOST, SERVER, START

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.diagnosis.context import Facts
from gpuwatch.model import Batch, Fact, Reason, label, name_of, series
from gpuwatch.pipeline.config_series import ConfigSeries, ranks_here
from gpuwatch.pipeline.core import Pipeline, Settings

CONFIG = {"host": HOST, "server": SERVER, "engine_kind": "vllm"}
ENGINE = {**CONFIG, "model_name": "tiny"}


def told(values: dict, dtype: str = "auto", version: str = "0.32.0") -> dict[tuple[str, str], float]:
    """The series of an engine whose page gives `dtype` and `version`, by (short name, flag)."""
    keys = (
        series("gpuwatch_engine_cache_config_info", **ENGINE, cache_dtype=dtype),
        series("gpuwatch_engine_info", **CONFIG, version=version),
    )
    config = ConfigSeries(HOST)
    config.saw(Batch(f"engine:{SERVER}", START, keys, (1.0, 1.0)))
    facts = Facts(Fact(key, value, "log", 1, START, SERVER) for key, value in values.items())
    batch = config.batch(START, facts)
    assert all(dict(key).items() >= CONFIG.items() for key in batch.keys)
    return {
        (name_of(key).removeprefix("gpuwatch_engine_config_"), label(key, "flag")): value
        for key, value in zip(batch.keys, batch.values, strict=True)
    }


@pytest.mark.parametrize(
    ("dtype", "facts", "expected"),
    [
        ("auto", {}, 0.0),
        ("bfloat16", {}, 0.0),
        ("fp8", {}, None),
        ("fp8", {"kv.unscaled": True}, 1.0),
        ("auto", {"kv.unscaled": True}, 1.0),
        ("", {}, None),
    ],
)
def test_a_cache_without_scales_is_known_from_its_type_or_the_log_and_else_unknown(dtype, facts, expected):
    assert told(facts, dtype).get(("kv_cache_unscaled", "")) == expected


def test_flags_with_a_trap_are_series_and_a_zero_says_that_flags_are_known():
    assert told({"flag.cpu-offload-gb": 4.0, "flag.max-num-seqs": 16}) == {
        ("kv_cache_unscaled", ""): 0.0,
        ("flag_problem", ""): 0.0,
        ("flag_problem", "cpu-offload-gb"): 1.0,
        ("kv_transfer", ""): 0.0,
    }
    assert ("flag_problem", "") not in told({})
    assert ("flag_problem", "") not in told({"flag.cpu-offload-gb": 4.0}, version="")


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}', 1.0),
        ("kv-transfer-config", "{}", 0.0),
        ("kv-offloading-size", 64.0, 1.0),
        ("kv-offloading-size", 0.0, 0.0),
        ("disaggregation-mode", "decode", 1.0),
        ("disaggregation-mode", "null", 0.0),
        ("max-num-seqs", 16, 0.0),
    ],
)
def test_flags_tell_whether_kv_caches_may_come_from_elsewhere(flag, value, expected):
    assert told({"flag." + flag: value}, version="")["kv_transfer", ""] == expected
    assert ("kv_transfer", "") not in told({}, version="")


def test_the_version_that_a_log_told_counts_as_well():
    found = told({"flag.cpu-offload-gb": 4.0, "version": "0.16.0"}, version="")
    assert found["flag_problem", "cpu-offload-gb"] == 1.0


@pytest.mark.parametrize(
    ("ranks", "flags", "expected"),
    [
        (8, {}, None),
        (8, {"data-parallel-external-lb": True}, 1.0),
        (8, {"data-parallel-rank": 3}, 1.0),
        (8, {"nnodes": 2}, 4.0),
        (8, {"nnodes": 1}, None),
        (1, {"nnodes": 4}, None),
        (None, {"nnodes": 4}, None),
    ],
)
def test_a_server_has_all_ranks_unless_its_flags_say_otherwise(ranks, flags, expected):
    assert ranks_here(ranks, flags) == expected


def test_an_endless_context_is_no_number():
    assert ("native_context_tokens", "") not in told({"model.context": float("inf")})
    assert told({"model.context": 32768.0})["native_context_tokens", ""] == 32768.0


@pytest.fixture
def pipeline():
    return Pipeline(Settings(HOST), load(shipped_paths()), START)


def failing(second: int, reason: Reason) -> Batch:
    return Batch(f"engine:{SERVER}", START + 1000 * second, up=False, reason=reason, detail="why")


@pytest.mark.parametrize(
    ("reason", "expected"), [(Reason.NOT_METRICS, "metrics_disabled"), (Reason.UNREACHABLE, "engine_down")]
)
def test_a_page_without_metrics_and_a_server_that_is_away_are_different_findings(pipeline, reason, expected):
    good = Batch(f"engine:{SERVER}", START, (series("gpuwatch_engine_requests_running", **ENGINE),), (0.0,))
    pipeline.tick(START, [good])
    for second in range(1, 45):
        result = pipeline.tick(START + 1000 * second, [failing(second, reason)])
    assert [finding.id for finding in result.findings] == [expected]


def test_why_a_source_fails_is_a_series_until_it_answers_again(pipeline):
    def reasons() -> list[str]:
        found = pipeline.querier.instant("gpuwatch_source_failing", pipeline.store_time)
        return [label(labels, "reason") for labels in found.labels]

    pipeline.store_time = START
    pipeline.tick(START, [failing(0, Reason.TIMEOUT)])
    assert reasons() == ["timeout"]
    pipeline.store_time = START + 1000
    pipeline.tick(START + 1000, [failing(1, Reason.NOT_METRICS)])
    assert reasons() == ["not_metrics"]
    pipeline.store_time = START + 2000
    pipeline.tick(
        START + 2000, [Batch(f"engine:{SERVER}", START + 2000, (series("gpuwatch_engine_info", **CONFIG),), (1.0,))]
    )
    assert reasons() == []
