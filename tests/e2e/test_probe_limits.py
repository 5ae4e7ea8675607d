"""The ramp and the context probe on real servers whose limits are known."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sglang_server import SglangServer

ROOT = Path(__file__).resolve().parents[2]
POOL_TOKENS = 5120
BLOCK = 128
OUTPUT = 16


def start(name, server, *options):
    command = [sys.executable, "-m", "gpuwatch", "probe", name, "--engine", server.url, "--json", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def probe(name, server, *options, timeout=240):
    """Run one probe from the command line and return its JSON."""
    with start(name, server, *options) as process:
        out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return json.loads(out)


def facts(result):
    return {fact["name"]: fact["value"] for fact in result["facts"]}


@pytest.fixture(scope="module")
def ramp(small_pool):
    options = ("--concurrency", "1,4", "--from", "512", "--max-tokens", str(OUTPUT), "--log", str(small_pool.log))
    return probe("ramp", small_pool, *options)


def test_the_limit_of_the_configured_pool_is_found_within_one_step(ramp):
    found = facts(ramp)
    assert ramp["complete"], ramp["stopped_because"]
    assert found["kv_pool_tokens"] == POOL_TOKENS
    assert found["kv_block_tokens"] == BLOCK
    # 40 blocks of 128, less the null block, for four requests: nine blocks each
    expected = 9 * BLOCK - OUTPUT
    assert found["expected_at_4"] == expected
    step = found["resolution_at_4"]
    carried = max(row["held_tokens"] for row in ramp["rows"] if row["concurrency"] == 4 and row["outcome"] == "ok")
    assert abs(carried - OUTPUT - expected) <= step
    assert found["broke_how_at_4"] in ("queued", "preempted")
    assert found["broke_at_4"] - found["carried_at_4"] <= step


def test_one_request_goes_well_up_to_the_context(ramp):
    found = facts(ramp)
    assert found["carried_at_1"] == 4096 - OUTPUT
    assert found["broke_at_1"] is None
    assert ramp["findings"] == []


def test_the_figures_of_the_ramp_are_those_of_a_server_that_works(ramp):
    good = [row for row in ramp["rows"] if row["outcome"] == "ok"]
    for row in good:
        assert 0 < row["ttft_s"] <= row["ttft_max_s"]
        assert row["prefill_tokens_per_s"] > 0
        assert row["decode_tokens_per_s"] > 0
    one = [row for row in good if row["concurrency"] == 1]
    assert one[-1]["ttft_s"] > one[0]["ttft_s"]
    # four requests of nine blocks nearly fill 39 of them
    assert max(row["kv_usage_ratio"] for row in good if row["kv_usage_ratio"] is not None) > 0.7


def test_the_server_is_well_after_the_ramp_and_nothing_is_left_running(ramp, small_pool):
    deadline = time.monotonic() + 60
    while small_pool.page()("vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert small_pool.page()("vllm:num_requests_running") == 0
    assert small_pool.complete(list(range(20, 60)), 4) == 40


def test_a_real_context_is_accepted_whole_and_refused_beyond(small_pool):
    result = probe("context", small_pool, "--log", str(small_pool.log))
    rows = {row["request"]: row for row in result["rows"]}
    assert rows["full length"]["outcome"] == "whole"
    assert rows["full length"]["counted_tokens"] == 4096 - 8
    assert (rows["over the limit"]["outcome"], rows["over the limit"]["http_status"]) == ("refused", 400)
    assert facts(result)["native_context"] == 32_768  # of the model's config.json, found through the process
    assert facts(result)["kv_pool_tokens_printed"] == POOL_TOKENS
    assert result["findings"] == []


def test_ctrl_c_ends_a_ramp_and_the_requests_it_had_open(small_pool):
    options = ("--concurrency", "4", "--from", "2000", "--max-tokens", "1000")
    with start("ramp", small_pool, *options) as process:
        deadline = time.monotonic() + 120
        while small_pool.page()("vllm:num_requests_running") < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["stopped_because"] == "interrupted"
    while small_pool.page()("vllm:num_requests_running") and time.monotonic() < deadline + 60:
        time.sleep(0.2)
    assert small_pool.page()("vllm:num_requests_running") == 0


@pytest.fixture(scope="module")
def smaller_than_its_context(tmp_path_factory):
    """A SGLang server that states a context of 4,096 tokens and has a pool of 2,048. vLLM refuses to start so."""
    flags = ["--max-total-tokens", "2048", "--context-length", "4096"]
    server = SglangServer(flags, tmp_path_factory.mktemp("sglang") / "sglang.log")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def test_a_pool_smaller_than_the_context_is_caught(smaller_than_its_context):
    result = probe("context", smaller_than_its_context)
    assert facts(result)["max_model_len"] == 4096
    assert facts(result)["kv_pool_tokens"] == 2048
    finding = result["findings"][0]
    assert (finding["id"], finding["severity"]) == ("max_model_len_exceeds_kv", "warning")
    assert finding["advice"][0]["flag"] == "--context-length"
    rows = {row["request"]: row for row in result["rows"]}
    assert "full length" not in rows
    assert smaller_than_its_context.healthy()
