"""Exact values of ours for pages of several versions, worked out by reading the pages."""

import math
import re

import numpy as np
import pytest

from gpuwatch.engines import vllm
from gpuwatch.engines.catalog import ENGINES, detect
from gpuwatch.engines.derive import compile_page
from gpuwatch.engines.info import EngineInfo, read_models, read_server_info, read_version
from gpuwatch.engines.plan import PlanBuilder
from gpuwatch.model import NAME, Reason, series
from gpuwatch.series import METRICS
from gpuwatch.sources.engine.exposition import ExpositionParser

BASE = {"host": "h", "server": "s:1"}
GIB = 2**30


def convert(body, version="", info=None):
    """Our series for a page: {(short name, extra labels…): value}, and what was compiled."""
    body = body.encode() if isinstance(body, str) else body
    page = ExpositionParser().parse(body)
    detected = detect(page.layout.names())
    info = info or EngineInfo(detected.kind, version=version)
    compiled = compile_page(page.layout.keys, page.layout.names(), info, "h", "s:1")
    keys, values = compiled.plan.apply(page.values)
    return dict(zip(keys, values.tolist(), strict=True)), compiled


def of(found, name, kind="vllm", **labels):
    return found.get(series("gpuwatch_engine_" + name, **BASE, engine_kind=kind, **labels))


def one(found, name, **labels):
    return of(found, name, model_name="tiny", dp_rank="0", **labels)


def names(found):
    return {dict(key)[NAME].removeprefix("gpuwatch_engine_") for key in found}


def test_page_of_0_32_in_a_storm(fixture_page):
    found, compiled = convert(fixture_page("vllm-0.32.0-storm.txt"), "0.32.0")
    want = {
        "requests_running": 1.0,
        "requests_waiting": 5.0,
        "kv_cache_usage_ratio": 0.33333333333333337,
        "kv_cache_blocks": 40.0,
        "kv_block_size_tokens": 128.0,
        "kv_cache_tokens": 5120.0,
        "kv_cache_free_tokens": 26 * 128.0,  # 13 of the 39 usable blocks are in use
        "num_gpu_blocks_override": 40.0,
        "prefix_cache_enabled": 1.0,
        "preemptions_total": 20.0,
        "prompt_tokens_total": 7800.0,
        "prompt_tokens_computed_total": 7800.0,
        "prompt_tokens_cached_total": 0.0,
        "generation_tokens_total": 16862.0,
        "prefix_cache_queries_total": 7800.0,
        "prefix_cache_hits_total": 0.0,
        "external_prefix_cache_queries_total": 0.0,
        "asleep": 0.0,
        "time_to_first_token_seconds_count": 13.0,
        "time_to_first_token_seconds_sum": 91.35008597373962,
        "inter_token_latency_seconds_count": 16849.0,
        "time_per_output_token_seconds_sum": 0.06763570085457037,
        "e2e_latency_seconds_sum": 138.47182750701904,
        "queue_time_seconds_sum": 35.284807147999345,
        "prefill_time_seconds_sum": 1.197173385999804,
        "decode_time_seconds_sum": 101.38591558100097,
        "prompt_length_tokens_sum": 6000.0,
        "generation_length_tokens_sum": 15000.0,
        "max_tokens_asked_count": 10.0,
        "iteration_tokens_sum": 24662.0,
    }
    assert {name: one(found, name) for name in want} == want
    assert one(found, "requests_finished_total", reason="length") == 10.0
    assert one(found, "requests_finished_total", reason="error") == 0.0
    assert one(found, "requests_waiting_by_reason", reason="capacity") == 5.0
    assert of(found, "requests_rejected_total", model_name="tiny", reason="max_num_queued_reqs") == 0.0
    assert of(found, "info", version="0.32.0") == 1.0
    assert one(found, "cache_config_info", cache_dtype="auto") == 1.0
    assert str(compiled.coverage).startswith("vLLM 0.32.0: 27 of 27 known metrics present")
    assert compiled.coverage.unknown == ()


def test_histogram_buckets_are_kept_as_the_page_gives_them(fixture_page):
    found, _ = convert(fixture_page("vllm-0.32.0-storm.txt"), "0.32.0")
    name = "gpuwatch_engine_inter_token_latency_seconds_bucket"
    buckets = {dict(key)["le"]: value for key, value in found.items() if dict(key)[NAME] == name}
    assert len(buckets) == 20
    assert (buckets["0.01"], buckets["0.075"], buckets["7.5"], buckets["+Inf"]) == (16801, 16814, 16848, 16849)


def test_memory_fraction_is_absent_where_a_fixed_pool_overrides_it(fixture_page):
    found, compiled = convert(fixture_page("vllm-0.32.0-storm.txt"), "0.32.0")
    assert of(found, "config_memory_fraction_ratio") is None
    (absent,) = [a for a in compiled.absent if dict(a.labels)[NAME] == "gpuwatch_engine_config_memory_fraction_ratio"]
    assert "--kv-cache-memory-bytes" in absent.detail


def test_page_of_0_10_2_uses_the_new_name_of_each_alias_once(fixture_page):
    found, _ = convert(fixture_page("vllm-0.10.2-storm.txt"), "0.10.2")
    assert one(found, "kv_cache_usage_ratio") == 0.8974358974358975
    assert one(found, "kv_cache_free_tokens") == 4 * 128  # 35 of 39 usable blocks are in use
    assert one(found, "prefix_cache_queries_total") == 162541.0
    assert one(found, "prefix_cache_hits_total") == 83712.0
    assert one(found, "inter_token_latency_seconds_count") == 1400.0
    assert one(found, "preemptions_total") == 0.0
    assert of(found, "config_memory_fraction_ratio") == 0.9
    assert one(found, "prompt_tokens_computed_total") is None
    assert len(found) == len(set(found))


def test_two_data_parallel_ranks_stay_apart_and_share_the_summed_blocks(fixture_page):
    found, _ = convert(fixture_page("vllm-0.32.0-two-ranks.txt"), "0.32.0")
    for rank in ("0", "1"):
        labels = {"model_name": "tiny", "dp_rank": rank}
        assert of(found, "kv_cache_blocks", **labels) == 40.0  # the page says 80 at each of the two
        assert of(found, "kv_cache_tokens", **labels) == 5120.0
        assert of(found, "kv_cache_free_tokens", **labels) == 39 * 128.0
        assert of(found, "prompt_tokens_total", **labels) == 900.0
        assert of(found, "requests_finished_total", reason="length", **labels) == 3.0
    ttft = {rank: of(found, "time_to_first_token_seconds_sum", model_name="tiny", dp_rank=rank) for rank in ("0", "1")}
    assert ttft == {"0": 0.48269081115722656, "1": 0.4527096748352051}
    assert {dict(key).get("dp_rank") for key in found} == {None, "0", "1"}


def test_page_of_v0_has_swapping_and_no_ranks(fixture_page):
    found, compiled = convert(fixture_page("vllm-0.6.4-v0.txt"), "0.6.4")
    engine = {"model_name": "llama"}
    want = {
        "requests_running": 7.0,
        "requests_swapped": 2.0,
        "requests_waiting": 3.0,
        "kv_cache_usage_ratio": 0.75,
        "kv_cache_blocks": 1000.0,
        "kv_cache_tokens": 16000.0,
        "kv_cache_free_tokens": 4000.0,  # V0 counts over all blocks
        "prefix_cache_enabled": 0.0,
        "preemptions_total": 4.0,
        "inter_token_latency_seconds_count": 890.0,
        "queue_time_seconds_sum": 1.5,
    }
    assert {name: of(found, name, **engine) for name in want} == want
    assert of(found, "queue_time_seconds_bucket", le="0.3", **engine) == 10.0
    assert of(found, "prefix_cache_hit_ratio", **engine) is None  # -1: caching is off
    assert of(found, "config_memory_fraction_ratio") == 0.9
    reasons = {dict(a.labels)[NAME]: a.reason for a in compiled.absent}
    assert reasons["gpuwatch_engine_asleep"] is Reason.NOT_SUPPORTED
    assert reasons["gpuwatch_engine_e2e_latency_seconds"] is Reason.NEVER_SEEN


def test_hit_rate_of_v0_comes_and_goes_with_its_validity(fixture_page):
    body = fixture_page("vllm-0.6.4-v0.txt")
    parser = ExpositionParser()
    first = parser.parse(body)
    compiled = compile_page(first.layout.keys, first.layout.names(), EngineInfo("vllm", "0.6.4"), "h", "s:1")
    off, _ = compiled.plan.apply(first.values)
    on_page = parser.parse(body.replace(b'gpu_prefix_cache_hit_rate{model_name="llama"} -1.0',
                                        b'gpu_prefix_cache_hit_rate{model_name="llama"} 0.25'))  # fmt: skip
    assert on_page.layout is first.layout
    on, values = compiled.plan.apply(on_page.values)
    ratio = series("gpuwatch_engine_prefix_cache_hit_ratio", **BASE, engine_kind="vllm", model_name="llama")
    assert set(on) - set(off) == {ratio}
    assert values[on.index(ratio)] == 0.25
    assert compiled.plan.apply(first.values)[0] is off


def v1(old="", new="", blocks="800", extra=""):
    lines = [f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} {rank + 1}' for rank in (0, 1)]
    lines += [f'vllm:gpu_cache_usage_perc{{engine="{rank}",model_name="m"}} {old}' for rank in (0, 1) if old]
    lines += [f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} {new}' for rank in (0, 1) if new]
    lines += [
        f'vllm:cache_config_info{{engine="{rank}",block_size="16",num_gpu_blocks="{blocks}"{extra}}} 1'
        for rank in (0, 1)
    ]
    return "\n".join(lines) + '\nvllm:prefix_cache_queries_total{engine="0",model_name="m"} 1\n'


def test_labels_that_say_none_are_absent_not_zero():
    found, compiled = convert(v1(old="0.5", blocks="None"), "0.8.4")
    assert {"kv_cache_blocks", "kv_cache_tokens", "kv_cache_free_tokens"}.isdisjoint(names(found))
    assert of(found, "kv_block_size_tokens", model_name="m", dp_rank="1") == 16.0
    assert "gpuwatch_engine_kv_cache_tokens" in {dict(a.labels)[NAME] for a in compiled.absent}


def test_blocks_that_do_not_divide_by_the_ranks_are_unknown():
    assert "kv_cache_blocks" not in names(convert(v1(new="0.5", blocks="801"), "0.11.0")[0])


@pytest.mark.parametrize(
    ("version", "page", "free"),
    [
        ("0.10.0", v1(old="0", new="0"), 400 * 16),  # all of the 400 blocks per rank
        ("0.10.2", v1(old="0", new="0"), 399 * 16),  # all but the null block
        ("0.10.2", v1(old="0.5", new="0.5"), 200 * 16),  # half of 399 blocks, in whole blocks
        ("0.11.0", v1(new="0"), 399 * 16),
        ("", v1(new="0"), 399 * 16),
        ("", v1(old="0"), 400 * 16),
        ("0.9.1", v1(old="0"), 400 * 16),
        ("0.24.0", v1(new="0.25", extra=',kv_cache_size_tokens="10000"'), 7500),  # hybrid: not blocks times size
    ],
)
def test_free_tokens_follow_the_version_s_definition_of_usage(version, page, free):
    found, _ = convert(page, version)
    assert of(found, "kv_cache_free_tokens", model_name="m", dp_rank="0") == free


def test_models_with_state_layers_have_no_naive_pool_size():
    page = v1(new="0.5", extra=',mamba_block_size="528"')
    assert "kv_cache_tokens" not in names(convert(page, "0.11.0")[0])


def test_aliases_are_chosen_per_rank():
    page = (
        'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 1\n'
        'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.1\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2\n'
        'vllm:gpu_cache_usage_perc{engine="1",model_name="m"} 0.3\n'
    )
    found, _ = convert(page, "0.10.0")
    usage = {rank: of(found, "kv_cache_usage_ratio", model_name="m", dp_rank=rank) for rank in ("0", "1")}
    assert usage == {"0": 0.2, "1": 0.3}


def test_aliased_histograms_never_mix_their_buckets():
    rows = ""
    for name, bounds in (("time_per_output_token", ("0.01", "0.5", "+Inf")), ("inter_token_latency", ("0.02", "+Inf"))):
        for place, bound in enumerate(bounds):
            rows += f'vllm:{name}_seconds_bucket{{model_name="m",engine="0",le="{bound}"}} {place + 1}\n'
    found, _ = convert(rows, "0.10.2")
    assert sorted(dict(key)["le"] for key in found if "le" in dict(key)) == ["+Inf", "0.02"]


def test_several_api_servers_give_one_series_with_the_highest_reading():
    page = "".join(
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="m",pid="{pid}"}} {value}\n'
        for pid, value in ((11, 0.0), (12, 0.7), (13, 0.2))
    )
    found, _ = convert(page, "0.9.2")
    assert of(found, "kv_cache_usage_ratio", model_name="m", dp_rank="0") == 0.7
    assert not any("pid" in dict(key) for key in found)


@pytest.mark.parametrize("prefix", ["vllm:", "ray_vllm:", "ray_vllm_", "vllm_"])
def test_names_with_ray_s_and_openmetrics_prefixes_are_the_same(prefix, fixture_page):
    body = fixture_page("vllm-0.31.0-storm.txt")
    plain, _ = convert(body, "0.31.0")
    assert convert(body.replace(b"vllm:", prefix.encode()), "0.31.0")[0] == plain


def test_counters_without_suffix_are_read():
    found, _ = convert('ray_vllm_prompt_tokens{model_name="m",engine="0"} 5\n', "0.11.0")
    assert of(found, "prompt_tokens_total", model_name="m", dp_rank="0") == 5.0


def test_replicas_on_one_page_stay_apart_by_the_label_that_tells_them_apart():
    page = ""
    for replica, running, usage in (("a", 1, 0.1), ("b", 9, 0.9)):
        labels = f'{{engine="0",model_name="m",ReplicaId="{replica}",SessionName="s",WorkerId="w{replica}"}}'
        page += f"ray_vllm_num_requests_running{labels} {running}\nray_vllm_kv_cache_usage_perc{labels} {usage}\n"
        page += f"ray_vllm_generation_tokens_total{labels} {running * 100}\n"
    found, _ = convert(page, "0.11.0")
    assert of(found, "kv_cache_usage_ratio", model_name="m", dp_rank="a/0") == 0.1
    assert of(found, "kv_cache_usage_ratio", model_name="m", dp_rank="b/0") == 0.9
    assert of(found, "generation_tokens_total", model_name="m", dp_rank="b/0") == 900.0
    assert {dict(key).get("dp_rank") for key in found} == {None, "a/0", "b/0"}


def test_a_sleeping_engine_is_asleep():
    page = "".join(
        f'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="{state}"}} {value}\n'
        for state, value in (("awake", 0), ("weights_offloaded", 1), ("discard_all", 0))
    )
    assert of(convert(page, "0.11.1")[0], "asleep", model_name="m", dp_rank="0") == 1.0


def test_series_beyond_the_limit_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr("gpuwatch.engines.plan.MAX_SERIES", 50)
    page = "".join(f'vllm:num_requests_running{{engine="0",model_name="m{n}"}} 1\n' for n in range(60))
    found, compiled = convert(page, "0.32.0")
    assert len(found) == 50
    assert compiled.plan.dropped == 12  # ten of the page, the info series and the count of processes


def test_of_too_many_models_the_first_are_kept_whole_and_all_keep_more_than_buckets(monkeypatch, fixture_page):
    one = [line for line in fixture_page("vllm-0.32.0-storm.txt").decode().splitlines() if "{" in line]
    page = "".join(line.replace('"tiny"', f'"m{n}"') + "\n" for n in range(30) for line in one)
    monkeypatch.setattr("gpuwatch.engines.plan.MAX_SERIES", 10**9)
    whole, _ = convert(page, "0.32.0")
    parts = {model: {key for key in whole if dict(key).get("model_name") == model} for model in ("m0", "m1", "m29")}
    scalars = [key for key in whole if "le" not in dict(key)]
    monkeypatch.setattr("gpuwatch.engines.plan.MAX_SERIES", len(scalars) + len(parts["m0"]))
    found, compiled = convert(page, "0.32.0")
    assert len(found) <= len(scalars) + len(parts["m0"])
    assert compiled.plan.dropped == len(whole) - len(found)
    assert set(scalars) <= found.keys()
    assert parts["m0"] <= found.keys()
    assert not any("le" in dict(key) for key in found if dict(key).get("model_name") == "m29")
    assert [key for key in whole if key in found] == list(found)


def test_sglang_0_4_6(fixture_page):
    found, _ = convert(fixture_page("sglang-0.4.6.txt"), "0.4.6.post5")
    engine = {"kind": "sglang", "model_name": "qwen"}
    want = {
        "requests_running": 12.0,
        "requests_waiting": 4.0,
        "kv_cache_usage_ratio": 0.8,
        "prompt_tokens_total": 5000.0,
        "generation_tokens_total": 700.0,
        "prompt_tokens_cached_total": 1500.0,
        "prefix_cache_queries_total": 5000.0,
        "prefix_cache_hits_total": 1500.0,
        "time_to_first_token_seconds_count": 9.0,
    }
    assert {name: of(found, name, **engine) for name in want} == want
    assert of(found, "requests_finished_total", reason="finished", **engine) == 9.0
    assert {"prefix_cache_hit_ratio", "preemptions_total", "kv_cache_tokens"}.isdisjoint(names(found))
    assert of(found, "info", kind="sglang", version="0.4.6.post5", role="unified") == 1.0


def test_sglang_0_4_3_hit_rate_is_used_where_it_was_cumulative():
    page = 'sglang:num_running_reqs{model_name="q"} 1\nsglang:cache_hit_rate{model_name="q"} 0.4\n'
    assert of(convert(page, "0.4.3")[0], "prefix_cache_hit_ratio", kind="sglang", model_name="q") == 0.4


def test_sglang_0_5_23_two_ranks(fixture_page):
    found, _ = convert(fixture_page("sglang-0.5.23-two-ranks.txt"), "0.5.23")
    zero = {"kind": "sglang", "model_name": "qwen", "dp_rank": "0"}
    want = {
        "requests_running": 5.0,  # the total over priorities, the same at both tensor-parallel ranks
        "requests_waiting": 9.0,  # 6 queued, 1 waits for a grammar, 2 for memory of a prefilled request
        "kv_cache_usage_ratio": pytest.approx(1 - 1234 / 10000, abs=1e-12),
        "kv_cache_tokens": 10000.0,
        "kv_cache_free_tokens": 1234.0,
        "kv_cache_evictable_tokens": 234.0,
        "kv_block_size_tokens": 64.0,
        "preemptions_total": 3.0,  # both tensor-parallel ranks count the same three
        "new_token_ratio": 0.45,
        "prompt_tokens_computed_total": 400.0,
        "decode_time_seconds_sum": 6.0,
    }
    assert {name: of(found, name, **zero) for name in want} == want
    assert of(found, "requests_waiting_by_reason", reason="capacity", **zero) == 6.0
    assert of(found, "requests_waiting_by_reason", reason="deferred", **zero) == 3.0
    one = zero | {"dp_rank": "1"}
    assert of(found, "requests_running", **one) == 1.0
    assert of(found, "kv_cache_free_tokens", **one) == 9000.0
    assert of(found, "preemptions_total", **one) == 0.0  # no retraction yet: the counter exists, at 0


def test_sglang_0_5_23_counts_of_the_tokenizer_are_added_up(fixture_page):
    found, _ = convert(fixture_page("sglang-0.5.23-two-ranks.txt"), "0.5.23")
    tokenizer = {"kind": "sglang", "model_name": "qwen"}
    want = {
        "prompt_tokens_total": 6000.0,
        "prompt_tokens_cached_total": 1290.0,
        "prefix_cache_queries_total": 6000.0,
        "prefix_cache_hits_total": 1050.0,
        "external_prefix_cache_hits_total": 240.0,
        "time_to_first_token_seconds_count": 10.0,
        "time_to_first_token_seconds_sum": 5.0,
    }
    assert {name: of(found, name, **tokenizer) for name in want} == want
    assert of(found, "time_to_first_token_seconds_bucket", le="0.1", **tokenizer) == 5.0
    assert of(found, "requests_finished_total", reason="finished", **tokenizer) == 10.0
    assert of(found, "requests_finished_total", reason="abort", **tokenizer) == 0.0


def test_sglang_0_5_23_settings_and_memory_in_bytes(fixture_page):
    found, _ = convert(fixture_page("sglang-0.5.23-two-ranks.txt"), "0.5.23")
    assert of(found, "config_max_model_len_tokens", kind="sglang") == 32768.0
    assert of(found, "config_weights_bytes", kind="sglang") == 15.5 * GIB
    assert of(found, "config_graph_bytes", kind="sglang") == 0.75 * GIB
    assert of(found, "info", kind="sglang", version="0.5.23", role="decode") == 1.0
    assert "kv_cache_swa_usage_ratio" not in names(found)  # no sliding-window pool: its gauge reads 0


def test_sglang_page_with_openmetrics_underscores_is_the_same(fixture_page):
    body = fixture_page("sglang-0.5.23-two-ranks.txt")
    renamed = b"\n".join(
        row if row.startswith(b"#") else row.replace(b"sglang:", b"sglang_", 1) for row in body.split(b"\n")
    )
    assert convert(renamed, "0.5.23")[0] == convert(body, "0.5.23")[0]


def test_sglang_pool_size_comes_from_server_info_where_the_page_has_none(fixture_page):
    info = read_server_info(EngineInfo("sglang"), {"version": "0.4.6", "max_total_num_tokens": 10000, "page_size": 1})
    found, _ = convert(fixture_page("sglang-0.4.6.txt"), info=info)
    engine = {"kind": "sglang", "model_name": "qwen"}
    assert of(found, "kv_cache_tokens", **engine) == 10000.0
    assert of(found, "kv_cache_free_tokens", **engine) == pytest.approx(2000.0, abs=1e-6)


def test_every_series_is_in_the_vocabulary_with_its_labels(fixture_page):
    for name, version in (("vllm-0.32.0-two-ranks.txt", "0.32.0"), ("sglang-0.5.23-two-ranks.txt", "0.5.23")):
        for key in convert(fixture_page(name), version)[0]:
            labels = dict(key)
            full = labels.pop(NAME)
            family = next(
                (full.removesuffix(s) for s in ("_bucket", "_sum", "_count") if full.removesuffix(s) in METRICS), full
            )
            assert set(labels) <= {*METRICS[family].labels, "le"}, key
            assert ("le" in labels) == full.endswith("_bucket")


def test_nan_on_the_page_is_absent():
    found, _ = convert(
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} NaN\n'
        'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
    )
    assert "kv_cache_usage_ratio" not in names(found)
    assert "requests_running" in names(found)


@pytest.mark.parametrize(("reading", "kept"), [("1.0000001", True), ("37.5", False), ("1e300", False), ("-0.1", False)])
def test_a_reading_that_is_no_share_is_absent_with_what_follows_from_it(reading, kept):
    found, _ = convert(v1(new=reading))
    assert ("kv_cache_usage_ratio" in names(found)) == kept
    assert kept or "kv_cache_free_tokens" not in names(found)
    assert "requests_running" in names(found)


def test_free_tokens_of_a_pool_of_unknown_size_are_unknown():
    assert vllm.free_tokens(0.5, vllm.CacheConfig(), null_block=True) is None


def test_version_and_models_are_read_from_their_documents():
    info = read_version(EngineInfo("vllm"), {"version": "0.32.0"})
    models = {"data": [
        {"id": "lora", "parent": "base", "max_model_len": None},
        {"id": "base", "parent": None, "max_model_len": 4096},
    ]}  # fmt: skip
    info = read_models(info, models)
    assert (info.version, info.models, info.max_model_len) == ("0.32.0", ("base",), 4096)


@pytest.mark.parametrize(
    "document",
    [None, [], "x", 3, {"data": 5}, {"data": [None, 4]}, {"version": 7}, {"data": [{"id": 3, "max_model_len": "x"}]}],
)
def test_documents_of_another_shape_say_nothing(document):
    info = EngineInfo("sglang")
    assert read_models(read_server_info(read_version(info, document), document), document) == info


def test_server_info_gives_settings_and_leaves_keys_and_unset_values_out():
    document = {
        "version": "0.5.23", "tp_size": 2, "pp_size": 1, "dp_size": 1, "mem_fraction_static": 0.88,
        "context_length": None, "max_running_requests": None, "chunked_prefill_size": -1, "api_key": "sk-secret",
        "disable_radix_cache": False,
        "internal_states": [{"effective_max_running_requests_per_dp": 48}], "disaggregation_mode": "prefill",
    }  # fmt: skip
    info = read_server_info(EngineInfo("sglang"), document)
    config = {name.removeprefix("gpuwatch_engine_config_"): value for name, value in info.config}
    assert config == {
        "max_num_seqs": 48, "memory_fraction_ratio": 0.88, "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1, "data_parallel_size": 1,
    }  # fmt: skip
    assert info.role == "prefill"
    assert info.setting("prefix_caching") == 1.0
    assert "secret" not in repr(info)


@pytest.mark.parametrize("reading", ["NaN", "+Inf", "-Inf", "-0.5"])
def test_a_reading_that_is_no_number_takes_only_itself_and_what_is_computed_from_it(reading, fixture_page):
    body = fixture_page("vllm-0.32.0-storm.txt").decode()
    whole, _ = convert(body, "0.32.0")
    head = 'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"}'
    broken, _ = convert(re.sub(rf"(?m)^{re.escape(head)} .*$", f"{head} {reading}", body), "0.32.0")
    gone = {dict(key)[NAME].removeprefix("gpuwatch_engine_") for key in whole.keys() - broken.keys()}
    assert gone == {"kv_cache_usage_ratio", "kv_cache_free_tokens"}
    assert all(whole[key] == value for key, value in broken.items())


@pytest.mark.parametrize("reading", ["NaN", "+Inf", "-Inf", "-1", "1e308"])
@pytest.mark.parametrize("name", ["vllm-0.32.0-storm.txt", "vllm-0.6.4-v0.txt", "sglang-0.5.23-two-ranks.txt"])
def test_a_page_of_nothing_but_such_numbers_is_read_without_an_error(name, reading, fixture_page):
    lines = fixture_page(name).decode().splitlines()
    body = "\n".join(line if line.startswith("#") else f"{line.rpartition(' ')[0]} {reading}" for line in lines)
    found, _ = convert(body + "\n")
    assert found
    assert all(math.isfinite(value) and value >= 0 for value in found.values())


def test_a_formula_that_raises_loses_only_its_own_series():
    builder = PlanBuilder(ENGINES["vllm"], [series("vllm:num_requests_running", model_name="m")], "h", "s:1")
    (of,) = builder.engines()
    for error in (ZeroDivisionError, ValueError, OverflowError, TypeError, KeyError):

        def fails(_, error=error):
            raise error

        builder.formula(f"gpuwatch_engine_{error.__name__}", of, ["gpuwatch_engine_requests_running"], fails)
    builder.formula("gpuwatch_engine_twice", of, ["gpuwatch_engine_requests_running"], lambda value: 2 * value)
    keys, values = builder.build().apply(np.array([3.0]))
    assert [dict(key)[NAME] for key in keys] == ["gpuwatch_engine_requests_running", "gpuwatch_engine_twice"]
    assert values.tolist() == [3.0, 6.0]
