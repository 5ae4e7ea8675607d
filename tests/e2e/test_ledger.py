"""The ledger's KV pools are those of the real engine, for plain models and for those with several kinds of layers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ledger_models as made
import pytest
from postmortem import above_info
from vllm_server import CACHE, MODEL, READY_SECONDS, VENV, VllmServer

from gpuwatch.ledger.budget import Deployment
from gpuwatch.ledger.pool import pool_of
from gpuwatch.ledger.reading import read_model
from gpuwatch.units import GIB, MIB

VERSION = (0, 32, 0)
CONTEXT, CHUNK, POOL = 8192, 2048, 256 * MIB

# name: (model, flags of the engine that differ from the usual ones)
PLAIN = {
    "four layers of four heads": (made.llama(4, 4, 32), {}),
    "three layers of eight wide heads, small blocks": (made.llama(3, 8, 64), {"block_size": 32}),
    "one head, 16-bit floats": (made.llama(6, 1, 128), {"block_size": 64, "dtype": "float16"}),
    "32-bit floats": (made.llama(2, 4, 32), {"block_size": 32, "dtype": "float32"}),
    "an 8-bit cache": (made.llama(4, 4, 64), {"kv_cache_dtype": "fp8_e5m2"}),
    "a length that no block divides": (made.llama(5, 2, 64), {"max_model_len": 5000}),
    "latent attention": (made.DEEPSEEK, {"block_size": 16}),
}
SEVERAL_KINDS = {
    "gemma3": (made.GEMMA3, {}),
    "gemma3 with all layers kept whole": (made.GEMMA3, {"disable_hybrid_kv_cache_manager": True}),
    "gpt-oss": (made.GPT_OSS, {"max_model_len": 16384}),
    "cohere2": (made.COHERE2, {"block_size": 64}),
    "llama4 chunks": (made.LLAMA4, {}),
    "qwen3-next": (made.QWEN3_NEXT, {"mamba_ssm_cache_dtype": "float32"}),
    "qwen3-next without prefix caching": (
        made.QWEN3_NEXT,
        {"mamba_ssm_cache_dtype": "float32", "enable_prefix_caching": False},
    ),
    "jamba": (made.JAMBA, {"mamba_ssm_cache_dtype": "float32"}),
    "falcon-h1": (made.FALCON_H1, {"mamba_ssm_cache_dtype": "float32"}),
    "lfm2": (made.LFM2, {}),
    "nemotron-h": (made.NEMOTRON_H, {}),
    "granite-h": (made.GRANITE_H, {"mamba_ssm_cache_dtype": "float32"}),
}
CASES = PLAIN | SEVERAL_KINDS


def usual(flags):
    return {
        "max_model_len": CONTEXT, "max_num_batched_tokens": CHUNK, "max_num_seqs": 16, "block_size": 128,
        "kv_cache_memory_bytes": POOL, **flags,
    }  # fmt: skip


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the engine says about the pool of each case. It is started once for each, in one process."""
    root = tmp_path_factory.mktemp("models")
    cases = []
    for number, (name, (config, flags)) in enumerate(CASES.items()):
        folder = root / f"m{number}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        cases.append({"name": name, "folder": str(folder), "flags": usual(flags)})
    (root / "cases.json").write_text(json.dumps(cases))
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ |= {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    program = Path(__file__).with_name("kv_pools.py")
    done = subprocess.run(
        [VENV / "bin/python", program, root / "cases.json"],
        env=environ, cwd=root, capture_output=True, text=True, timeout=60 * len(cases), check=False,
    )  # fmt: skip
    found = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("POOL ")]
    assert len(found) == len(cases), done.stdout[-3000:] + done.stderr[-3000:]
    return {one["name"]: one for one in found}


def predicted(config, flags):
    asked = usual(flags)
    config = config | ({"torch_dtype": asked["dtype"]} if "dtype" in asked else {})
    model = read_model(config)
    deployment = Deployment(
        engine="vllm", version=VERSION, capacity=80 * GIB, context=asked["max_model_len"],
        chunk=asked["max_num_batched_tokens"], block_size=asked["block_size"],
        kv_dtype=asked.get("kv_cache_dtype", "auto"), prefix_caching=asked.get("enable_prefix_caching", True),
        hybrid_manager=not asked.get("disable_hybrid_kv_cache_manager", False),
        state_dtype=asked.get("mamba_ssm_cache_dtype", "auto"),
        asynchronous=False,  # the core is started without a server that would overlap its steps
    )  # fmt: skip
    return pool_of(model, deployment, POOL)


@pytest.mark.parametrize("name", CASES)
def test_the_pool_holds_the_tokens_that_the_engine_says(said, name):
    answer = said[name]
    assert "error" not in answer, answer
    pool = predicted(*CASES[name])
    print(f"{name}: {answer['tokens']:,} tokens, {answer['concurrency']:.2f} requests, {answer['blocks']:,} blocks")
    assert pool.tokens == answer["tokens"]
    assert pool.concurrency == pytest.approx(answer["concurrency"], rel=1e-6)


# what of the tiny model is changed, further flags, ranks
SERVERS = {
    "as it is": ({}, {}, 1),
    "more layers, fewer heads": ({"num_hidden_layers": 6, "num_key_value_heads": 2}, {"block-size": 64}, 1),
    "wide heads in 16-bit floats": ({"head_dim": 64, "num_hidden_layers": 3}, {"dtype": "float16"}, 1),
    "a long request": ({"num_key_value_heads": 8}, {"max-model-len": 10000, "block-size": 32}, 1),
    "two ranks share the heads": ({}, {}, 2),
    "two ranks copy the only head": ({"num_key_value_heads": 1}, {"block-size": 32}, 2),
}
LINE = re.compile(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")


def printed(overrides, flags, ranks, folder):
    """Start a server until it has printed its pool, and return the tokens and the concurrency."""
    arguments = {"max-model-len": CONTEXT, "max-num-batched-tokens": CHUNK, "max-num-seqs": 16, **flags}
    words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    words += ["--hf-overrides", json.dumps(overrides)]
    server = VllmServer(words, folder / "vllm.log", ranks)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            found = LINE.search(server.log.read_text(errors="replace"))
            if found:
                return int(found[1].replace(",", "")), float(found[2])
            assert server.process.poll() is None, server.log.read_text(errors="replace")[-3000:]
            time.sleep(0.2)
        raise AssertionError("the server did not print its pool")
    finally:
        server.stop()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Name: (what a server printed, its log). Two start at a time."""
    folders = {name: tmp_path_factory.mktemp("server") for name in SERVERS}
    with ThreadPoolExecutor(2) as pool:
        running = {name: pool.submit(printed, *SERVERS[name], folder) for name, folder in folders.items()}
    return {name: (one, folders[name] / "vllm.log") for name, one in running.items()}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_prints_the_tokens_that_are_predicted(servers, name):
    overrides, flags, ranks = SERVERS[name]
    said, log = servers[name]
    tokens, concurrency = said.result()
    tiny = json.loads((CACHE / MODEL / "config.json").read_text())
    config = {**tiny, **overrides, **({"torch_dtype": flags["dtype"]} if "dtype" in flags else {})}
    deployment = Deployment(
        engine="vllm", version=VERSION, capacity=80 * GIB, tp=ranks, context=flags.get("max-model-len", CONTEXT),
        chunk=CHUNK, block_size=flags.get("block-size", 128),
    )  # fmt: skip
    assert above_info(log) == []
    pool = pool_of(read_model(config), deployment, GIB)  # VLLM_CPU_KVCACHE_SPACE of `VllmServer`
    print(f"{name}: {tokens:,} tokens, {concurrency} requests")
    assert pool.tokens == tokens
    assert pool.concurrency == pytest.approx(concurrency, abs=0.005)


def test_there_are_enough_cases_of_each_kind():
    assert len(PLAIN) + len(SERVERS) >= 12
    assert len(SEVERAL_KINDS) >= 4
    assert {ranks for *_, ranks in SERVERS.values()} == {1, 2}
