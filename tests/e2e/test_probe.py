"""The probes on caching and recall, and a load generator beside gpuwatch, on a real vLLM server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_server import MODEL, VENV, link_model

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "docs" / "recipes" / "vllm-bench-serve.md"


def probe(name, server, *options, timeout=180):
    """Run one probe from the command line and return its JSON."""
    command = [sys.executable, "-m", "gpuwatch", "probe", name, "--engine", server.url, "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def facts(result):
    return {fact["name"]: fact["value"] for fact in result["facts"]}


@pytest.fixture(scope="module")
def prefix(ample_pool):
    return probe("prefix", ample_pool)


def test_a_random_head_finds_nothing_and_a_random_tail_nearly_everything(prefix):
    found = facts(prefix)
    assert found["verdict"] == "works"
    assert found["random_head"] == 0
    assert found["random_tail"] >= 0.9
    assert prefix["complete"]
    assert prefix["findings"] == []


def test_the_block_size_is_measured_as_the_engine_has_it(prefix):
    found = facts(prefix)
    assert found["block_size_page"] == found["block_size_measured"] == 128


def test_every_case_is_as_a_cache_of_blocks_has_it(prefix):
    cases = {row["case"]: row for row in prefix["rows"]}
    # Blocks of 128: the common prompt of 2,112 tokens has 16 whole ones.
    assert cases["same prompt"]["cached_tokens"] == 2048
    assert cases["differs from 50 % on"]["cached_tokens"] == 1024  # 1,056 shared
    assert cases["shorter than a block, repeated"]["cached_tokens"] == 0
    assert cases["exactly two blocks, repeated"]["cached_tokens"] == 128
    assert [cases[f"{which} salt"]["cached_tokens"] for which in ("new", "same", "another")] == [0, 2048, 0]


def test_a_prompt_is_pushed_out_by_more_than_a_pool_of_others(prefix):
    rows = [row for row in prefix["rows"] if row["case"].startswith("after")]
    ages = [int(row["case"].split()[1].replace(",", "")) for row in rows]
    found = [row["cached_tokens"] for row in rows]
    # 399 usable blocks are 51,072 tokens.
    assert ages[0] < 51_072 / 2 < 51_072 < ages[-1]
    assert found[0] == 256
    assert found[-1] == 0


@pytest.mark.parametrize(
    ("name", "options", "verdict"),
    [
        ("needle", ("--lengths", "1200,3500", "--depths", "0,0.5,1", "--trials", "2"), "fails"),
        ("order", ("--lengths", "1500", "--trials", "4"), "does not recall"),
        ("digits", ("--digits", "8,20", "--trials", "4", "--length", "1500"), "fails"),
    ],
)
def test_a_model_without_trained_weights_is_reported_as_failing(ample_pool, name, options, verdict):
    result = probe(name, ample_pool, *options)
    assert facts(result)["verdict"] == verdict
    assert "fails" in result["conclusion"][0]
    assert facts(result)["answers"] > 0
    assert result["complete"]


def test_texts_have_about_the_length_that_was_asked_for(ample_pool):
    result = probe("needle", ample_pool, "--lengths", "1200,3500", "--depths", "0.5", "--trials", "2")
    for row in result["rows"]:
        assert row["prompt_tokens"] == pytest.approx(row["length_tokens"], rel=0.1)


def test_the_recipe_of_vllm_bench_serve_runs_as_it_stands(ample_pool, tmp_path):
    text = re.search(r"```sh\n(.*?)```", RECIPE.read_text(encoding="utf-8"), re.DOTALL)[1]
    for line, other in (
        ("URL=http://127.0.0.1:8000", f"URL={ample_pool.url}"),
        ("MODEL=meta-llama/Llama-3.1-8B-Instruct", f"MODEL={MODEL}"),
        ("PROMPTS=200 INPUT=1000 OUTPUT=128 CONCURRENCY=16", "PROMPTS=24 INPUT=256 OUTPUT=16 CONCURRENCY=8"),
    ):
        assert line in text
        text = text.replace(line, other)
    link_model(tmp_path)
    tool = tmp_path / "bin" / "gpuwatch"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m gpuwatch "$@"\n')
    tool.chmod(0o755)
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ |= {"PATH": f"{tool.parent}:{VENV / 'bin'}:{environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    before = ample_pool.page()("vllm:generation_tokens_total")
    done = subprocess.run(
        ["bash", "-eu", "-c", text], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    generated = ample_pool.page()("vllm:generation_tokens_total") - before

    bench = json.loads((tmp_path / "run-a.json").read_text())
    assert bench["completed"] == 24
    assert bench["total_output_tokens"] == 24 * 16
    assert generated >= bench["total_output_tokens"]  # one more request where the tool tries the server first
    assert recorded_tokens(tmp_path) == generated
    assert "</html>" in (tmp_path / "run-a.html").read_text(encoding="utf-8")


def recorded_tokens(folder):
    """Return by how much the generated tokens grew in the recording."""
    command = [folder / "bin" / "gpuwatch", "export", folder / "run-a.rec", "--openmetrics"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    values = [
        float(line.split()[-2])
        for line in text.splitlines()
        if line.startswith("gpuwatch_engine_generation_tokens_total{")
    ]
    return values[-1] - values[0]
