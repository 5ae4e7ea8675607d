"""Every pattern recognises its own lines, in every version's wording, and nothing that only looks like them."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from gpuwatch.engines.events import EVENTS, NOTES
from gpuwatch.engines.facts import FACTS, config_series
from gpuwatch.engines.log_pattern import read
from gpuwatch.engines.log_prefixes import strip_prefix
from gpuwatch.engines.log_text import clean
from gpuwatch.engines.logs import PATTERNS, classify, facts_of, prefilter, settle, split_pairs
from gpuwatch.series import METRICS
from gpuwatch.sources.logs.book import oom_sizes

FIXTURES = Path(__file__).parents[2] / "fixtures" / "logs"
LINES = [
    tuple(line.split("\t", 1)) for line in (FIXTURES / "lines.tsv").read_text(encoding="utf-8").splitlines() if line
]
GIB = 1_073_741_824
MIB = 1_048_576


def of(name: str, part: str = "") -> str:
    """Return the sample line of a pattern that contains `part`."""
    return next(message for pattern, message in LINES if pattern == name and part in message)


def facts(message: str) -> dict[str, object]:
    match = classify(message)
    assert match is not None
    return facts_of(match)


@pytest.mark.parametrize(("name", "message"), LINES, ids=[f"{at}-{name}" for at, (name, _) in enumerate(LINES)])
def test_a_line_is_recognised_by_its_own_pattern(name, message):
    match = classify(message)
    assert match is not None
    assert match.pattern.name == name


def test_every_pattern_has_a_sample_line():
    assert {pattern.name for pattern in PATTERNS} == {name for name, _ in LINES}


def test_the_scan_for_literals_finds_every_sample_and_every_literal():
    assert [message for _, message in LINES if prefilter().search(message) is None] == []
    needles = [needle for pattern in PATTERNS for needle in pattern.needles]
    assert [needle for needle in needles if prefilter().search(f"x{needle}x") is None] == []


def test_the_scan_passes_over_the_lines_that_fill_most_logs():
    access = 'INFO:     127.0.0.1:54820 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    assert prefilter().search(access) is None


def test_pattern_names_are_unique_and_events_are_known():
    assert [name for name, n in Counter(pattern.name for pattern in PATTERNS).items() if n > 1] == []
    events = {pattern.event for pattern in PATTERNS if pattern.kind == "event"}
    assert events == set(EVENTS)
    assert {pattern.event for pattern in PATTERNS if pattern.kind == "note"} == set(NOTES)
    assert all(pattern.event == "" for pattern in PATTERNS if pattern.kind not in ("event", "note"))


def test_every_reading_names_a_known_fact_and_a_group_of_its_expression():
    for pattern in PATTERNS:
        groups = set(re.compile(pattern.regex).groupindex)
        for reading in pattern.readings:
            assert reading.fact in FACTS, pattern.name
            assert set(filter(None, reading.group.split("+"))) <= groups, pattern.name
            read("1", reading.unit)


def test_every_fact_that_is_a_series_is_in_the_vocabulary():
    assert [spec.series for spec in FACTS.values() if spec.series and spec.series not in METRICS] == []


@pytest.mark.parametrize(
    "message",
    [
        "Triton is installed, but doesn't include CPU backend. Disabling Triton.",
        "Using LBHNC KV cache layout.",
        "[W1129 15:44:33.98 utils.cpp:68] Warning: NUMA binding: Using MEMBIND policy for memory allocation",
        'INFO:     127.0.0.1:56510 - "GET /health HTTP/1.1" 200 OK',
        "AsyncLLM output_handler failed.",
        "Parent process exited, terminating worker queues",
        "Torch profiler disabled. AsyncLLM CPU traces will not be collected.",
        "",
    ],
)
def test_ordinary_lines_say_nothing(message):
    assert classify(message) is None


def test_the_attention_backend_is_not_read_from_a_line_about_the_cache_layout():
    assert classify("Using HND KV cache layout for CPU_ATTN backend.") is None
    assert facts(of("attention_backend", "out of potential"))["attention.backend"] == "FLASH_ATTN"


def test_the_text_of_a_prompt_cannot_be_an_event():
    for name in ("request", "dump"):
        assert classify(of(name)).pattern.kind == "ignore"


# What the captured logs say, counted by reading them.
CAPTURES = {
    "vllm_0_10_2_killed.log": {"stats": 9, "engine_dead": 2, "kv_size": 1, "max_concurrency": 1, "api_version": 1},
    "vllm_0_10_2_too_long.log": {"max_len_v1": 2, "start_failed": 2, "source_line": 1, "kv_size": 0},
    "vllm_0_10_2_port_in_use.log": {"port_in_use": 1},
    "vllm_0_10_2_beyond_native.log": {"rope": 1},
    "vllm_0_31_0_killed.log": {"stats": 4, "engine_dead": 2, "kv_size": 1, "banner_version": 1, "uvicorn_ready": 1},
    "vllm_0_31_0_too_long.log": {"max_len_v1": 2, "start_failed": 2, "worker_stopped": 1, "worker_dead": 0},
    "vllm_0_31_0_port_in_use.log": {"port_in_use": 1},
    "vllm_0_31_0_beyond_native.log": {"rope": 1},
    "vllm_0_31_0_bad_flag.log": {"unknown_flag": 1},
    "vllm_0_31_0_bad_path.log": {"model_missing": 1},
    "vllm_0_32_0_dp2.log": {"stats_off": 2, "listening": 2, "kv_size": 2, "banner_version": 1, "engine_config": 1},
}


@pytest.mark.parametrize("name", CAPTURES)
def test_a_real_log_says_what_is_in_it_and_no_more(name):
    found = Counter()
    for line in (FIXTURES / name).read_text(encoding="utf-8").splitlines():
        match = classify(strip_prefix(clean(line)).message)
        if match is not None:
            found[match.pattern.name] += 1
    assert {pattern: found[pattern] for pattern in CAPTURES[name]} == CAPTURES[name]
    events = {pattern.name for pattern in PATTERNS if pattern.kind == "event"}
    assert {pattern for pattern in found if pattern in events} == {
        pattern for pattern, count in CAPTURES[name].items() if count and pattern in events
    }


def test_the_facts_of_a_real_start_of_0_10_2():
    found = {}
    for line in (FIXTURES / "vllm_0_10_2_killed.log").read_text(encoding="utf-8").splitlines():
        match = classify(strip_prefix(clean(line)).message)
        if match is not None:
            found |= facts_of(match)
    assert {key: value for key, value in found.items() if not key.startswith("flag.")} == {
        "engine": "vllm",
        "version": "0.10.2",
        "model": "tiny",
        "served_model_name": "tiny",
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "attention.backend": "Torch SDPA",
        "server.url": "http://127.0.0.1:8142",
        "ready": True,
        "enforce_eager": True,
        "prefix_caching": True,
        "chunked_prefill": True,
        "world_size": 1,
        "tp": 1,
        "pp": 1,
        "dp": 1,
        "max_model_len": 4096,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "max_concurrency": 1.25,
        "kv.tokens": 5120,
        "kv.blocks": 40,
        "kv.blocks_profiled": 4096,
        "kv.blocks_override": 40,
        "load.begun": True,
        "start.seconds": 4.49,
    }
    assert found["flag.num-gpu-blocks-override"] == 40
    assert found["flag.load-format"] == "dummy"


def test_the_facts_of_a_real_start_of_0_31_with_the_pool_scaled_to_the_override():
    found = {}
    for line in (FIXTURES / "vllm_0_31_0_killed.log").read_text(encoding="utf-8").splitlines():
        match = classify(strip_prefix(clean(line)).message)
        if match is not None:
            found |= facts_of(match)
    assert found["version"] == "0.31.0"
    assert found["server.url"] == "http://127.0.0.1:8106"
    assert found["kv.tokens"] == 5120
    assert found["kv.bytes"] == GIB
    # 1 GiB made 4,096 blocks; 40 of them are in use.
    assert settle(found)["kv.bytes"] == GIB // 4096 * 40


def test_two_data_parallel_engines_are_two_although_each_says_one():
    found = {}
    for line in (FIXTURES / "vllm_0_32_0_dp2.log").read_text(encoding="utf-8").splitlines():
        match = classify(strip_prefix(clean(line)).message)
        if match is not None:
            found |= facts_of(match)
    assert found["dp"] == 1
    assert settle(found)["dp"] == 2
    assert (found["stats_log"], found["flag.api-server-count"], found["version"]) == (False, 2, "0.32.0")


@pytest.mark.parametrize(
    ("name", "part", "want"),
    [
        ("weights", "6.1340 GB", {"weights.bytes": round(6.1340 * GIB)}),
        ("weights", "memory and", {"weights.bytes": round(14.99 * GIB), "load.seconds": 3.516247}),
        ("v0_budget", "", {"gpu.total_bytes": round(44.53 * GIB), "memory_fraction": 0.98, "budget.bytes": round(43.64 * GIB)}),
        ("v0_parts", "", {"weights.bytes": round(20.64 * GIB), "activation.bytes": round(1.52 * GIB), "kv.bytes": round(21.20 * GIB)}),
        ("v064_profile", "", {"kv.bytes": round(4.87 * GIB), "peak_torch.bytes": round(16.16 * GIB), "memory_fraction": 0.9}),
        ("blocks", "229", {"kv.blocks": 229, "kv.cpu_blocks": 512}),
        ("kv_size", "1,234,567", {"kv.tokens": 1_234_567}),
        ("kv_size", "host", {"kv.tokens": 600_000, "max_model_len": 8192, "max_concurrency": 73.24}),
        ("context_parallel", "pcp", {"dcp": 2, "pcp": 2}),
        ("block_override", "", {"kv.blocks_profiled": 4096, "kv.blocks_override": 200, "kv.blocks": 200}),
        ("graphs_done", "0.63", {"graph.bytes": round(0.63 * GIB), "graph.seconds": 18.0}),
        ("graph_budget", "", {"memory_fraction": 0.82, "memory_fraction.without_graphs": 0.8048}),
        ("memory_summary", "consumed", {"consumed.bytes": round(61.2 * GIB), "activation.bytes": round(4.5 * GIB), "graph.bytes": round(1.25 * GIB)}),
        ("memory_summary", "for weight", {"weights.bytes": round(14.99 * GIB), "nontorch.bytes": round(0.09 * GIB)}),
        ("auto_fit", "", {"max_model_len": 40960}),
        ("sgl_limits", "822016", {"kv.tokens": 822_016, "max_num_batched_tokens": 28_672, "max_num_seqs": 72, "max_model_len": 8192}),
        ("sgl_kv", "27.13", {"kv.bytes": round(27.13 * GIB) * 2}),
        ("sgl_kv", "6.71", {"kv.bytes": round(6.71 * GIB), "kv.tokens": 100_000, "kv.dtype": "torch.bfloat16"}),
        ("sgl_load_end", "56.98", {"weights.bytes": round(56.98 * GIB), "avail.after_weights_bytes": round(230.2 * GIB)}),
        ("sgl_graphs", "7.52", {"graph.bytes": round(7.52 * GIB)}),
        ("sgl_swa_pool", "full", {"kv.tokens": 120_000, "kv.swa_tokens": 96_000}),
        ("engine_config", "V0 LLM", {"tp": 8, "pp": 2, "version": "0.8.3", "max_model_len": 32768}),
        ("prefix_default", "(Enabling)", {"prefix_caching": True}),
        ("prefix_off", "", {"prefix_caching": False}),
    ],
)  # fmt: skip
def test_a_line_gives_facts_in_base_units(name, part, want):
    found = facts(of(name, part))
    assert {key: found.get(key) for key in want} == want


def test_sglang_arguments_become_facts_and_the_key_only_its_presence():
    found = facts(of("sgl_args"))
    assert found["tp"] == 4
    assert found["memory_fraction"] == 0.88
    assert found["max_num_batched_tokens"] == 8192
    assert found["prefix_caching"] is True
    assert "max_num_seqs" not in found
    assert found["flag.api-key"] == "set"
    assert not any("secret" in str(value) for value in found.values())


@pytest.mark.parametrize("name", ["non_default_args", "all_args", "sgl_args"])
def test_no_key_of_a_launch_line_becomes_a_fact(name):
    assert "secret" in of(name)
    assert not any("secret" in str(value) for value in facts(of(name)).values())


def test_less_than_nothing_left_for_the_pool_is_no_size():
    assert "kv.bytes" not in facts("Available KV cache memory: -0.35 GiB")


@pytest.mark.parametrize(
    ("part", "want"),
    [
        ("23.69", {"requested": 20 * MIB, "free": 15 * MIB, "reserved_unallocated": round(22.5 * GIB) - 21 * GIB}),
        ("capacty", {"requested": round(1.16 * GIB), "free": round(1.17 * GIB), "reserved_unallocated": round(18.97 * MIB)}),
        ("178.35", {"requested": round(16.41 * GIB), "free": round(14.92 * GIB), "reserved_unallocated": round(20.11 * GIB)}),
        ("448.00", {"requested": 2 * MIB, "free": 448 * 1024}),
        ("HIP", {"requested": 512, "free": 0}),
    ],
)  # fmt: skip
def test_an_out_of_memory_line_gives_its_sizes_in_every_wording(part, want):
    assert oom_sizes(classify(of("torch_oom", part))) == want


def test_an_error_keeps_its_figures_as_fields():
    match = classify(of("max_len_v1", "1048576"))
    assert (match.group("mml"), match.group("need"), match.group("have"), match.group("fit")) == (
        "1048576",
        "2.0",
        "1.0",
        "524160",
    )
    assert classify(of("xid", "79")).group("code") == "79"
    assert classify(of("worker_dead", "-9")).group("code") == "-9"


def test_printed_pairs_survive_nesting_quotes_and_a_cut_end():
    assert split_pairs("'a': 1, 'b': 'x, y', 'c': {'d': [1, 2]}, 'e': \"it's\"}, 'after': 1") == {
        "a": "1",
        "b": "x, y",
        "c": "{'d': [1, 2]}",
        "e": "it's",
    }
    assert split_pairs("a=1, b=Config(c=[1, 2], d='('), e=None, f='cut he") == {
        "a": "1",
        "b": "Config(c=[1, 2], d='(')",
        "e": "None",
        "f": "'cut he",
    }
    assert split_pairs("") == {}


def test_numeric_facts_become_series():
    known = {"max_model_len": 4096, "tp": 2, "weights.bytes": 5, "model": "x", "kv.tokens": 5120}
    assert config_series(known) == [
        ("gpuwatch_engine_config_tensor_parallel_size", 2.0),
        ("gpuwatch_engine_config_max_model_len_tokens", 4096.0),
        ("gpuwatch_engine_config_weights_bytes", 5.0),
    ]
