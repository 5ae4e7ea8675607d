"""Reports in a real browser."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import chromium
import pytest
from vllm_server import Load, tokens
from watcher import Check

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "gpuwatch" / "data" / "demo.rec"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for name, arguments in (("report", [DEMO]), ("compare", [DEMO, DEMO])):
        command = [sys.executable, "-m", "gpuwatch", name, *map(str, arguments), "-o", str(folder / f"{name}.html")]
        subprocess.run(command, check=True, cwd=ROOT, timeout=120)
    return folder


@pytest.mark.parametrize(
    ("name", "words"), [("report", "kv_preemption_storm"), ("compare", "No difference between A and B")]
)
def test_a_browser_shows_the_page_and_complains_about_nothing(pages, name, words):
    page = pages / f"{name}.html"
    text, complaints = chromium.text_of(page)
    assert complaints == []
    assert words in text
    assert text.count("<svg") == page.read_text().count("<svg") > 0
    picture = pages / f"{name}.png"
    chromium.picture(page, picture, 800, 600)
    assert struct.unpack(">II", picture.read_bytes()[16:24]) == (800, 600)
    assert picture.stat().st_size > 20_000  # a blank page has less than 5,000 bytes


def test_a_report_counts_what_the_server_counts(ample_pool, tmp_path):
    ample_pool.complete(tokens(300, 1), 30)  # the first request compiles kernels
    recording = tmp_path / "run.rec"
    check = Check("--engine", ample_pool.url, "--log", str(ample_pool.log), "--record", str(recording), seconds=75)
    time.sleep(8)
    before = ample_pool.page()
    load = Load()
    load.steady(ample_pool, 4, 300, 60)
    time.sleep(20)
    load.stop()
    after = ample_pool.page()
    check.result()
    command = [sys.executable, "-m", "gpuwatch", "report", str(recording), "--json"]
    done = subprocess.run(command, check=True, cwd=ROOT, timeout=120, capture_output=True, text=True)
    (engine,) = json.loads(done.stdout)["engines"]
    for ours, theirs in (
        ("generation_tokens", "vllm:generation_tokens_total"),
        ("prompt_tokens", "vllm:prompt_tokens_total"),
        ("finished", "vllm:request_success_total"),
    ):
        assert engine[ours] == after(theirs) - before(theirs) > 0
    assert engine["flags"]["--max-num-seqs"] == "8"
    itl = engine["latency"]["itl"]  # within vLLM's first bound of 10 ms only the bound is known
    p50, p95 = (itl[name] if itl[name] is not None else itl[f"{name}_at_most"] for name in ("p50", "p95"))
    assert 0 < p50 <= p95
    assert itl["mean"] > 0
