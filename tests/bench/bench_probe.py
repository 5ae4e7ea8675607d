"""`gpuwatch probe ramp` beside `vllm bench serve`: what each measures on the same server, in five runs each, in turn.

    python tests/bench/bench_probe.py [RUNS]

Both send the same load: prompts of 512 random tokens one after the other, 64 tokens generated. The difference of the
medians is the overhead of the probe, and should be smaller than the spread of either.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE.parent / "e2e"), str(HERE)]

from table import Row, print_table  # noqa: E402  # the folders are put on the path just above
from vllm_server import MODEL, VENV, VllmServer  # noqa: E402

ROOT = HERE.parents[1]
INPUT, OUTPUT, PROMPTS = 512, 64, 8
FLAGS = ["--max-model-len", "4096", "--num-gpu-blocks-override", "400", "--max-num-seqs", "8"]


def by_ramp(server: VllmServer, seed: int) -> float:
    """Return the output tokens per second that the ramp measures."""
    command = [
        sys.executable, "-m", "gpuwatch", "probe", "ramp", "--engine", server.url, "--json", "--concurrency", "1",
        "--from", str(INPUT), "--to", str(INPUT), "--max-tokens", str(OUTPUT), "--repeats", str(PROMPTS),
        "--seed", str(seed),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    facts = {fact["name"]: fact["value"] for fact in json.loads(done.stdout)["facts"]}
    return float(facts["output_tokens_per_s_median"])


def by_vllm(server: VllmServer, folder: Path, seed: int) -> float:
    """Return the output tokens per second that vLLM's own benchmark measures."""
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [
        str(VENV / "bin/vllm"), "bench", "serve", "--backend", "vllm", "--base-url", server.url, "--model", MODEL,
        "--dataset-name", "random", "--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT),
        "--num-prompts", str(PROMPTS), "--max-concurrency", "1", "--seed", str(seed), "--ignore-eos",
        "--save-result", "--result-filename", f"{seed}.json",
    ]  # fmt: skip
    subprocess.run(
        command, cwd=folder, env={**environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, timeout=300, check=True
    )
    return float(json.loads((folder / f"{seed}.json").read_text())["output_throughput"])


def spread(values: list[float]) -> float:
    """Return the distance between the largest and the smallest value."""
    return max(values) - min(values)


def rows(runs: int) -> list[Row]:
    """Measure both in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = VllmServer(FLAGS, folder / "vllm.log")
        try:
            server.wait_ready()
            by_ramp(server, 0)  # the first requests of a server are slower
            ours, theirs = [], []
            for run in range(1, runs + 1):
                ours.append(by_ramp(server, run))
                theirs.append(by_vllm(server, folder, 1000 + run))
        finally:
            server.stop()
    here, there = median(ours), median(theirs)
    off = abs(here - there)
    return [
        Row(
            "probe ramp: output tokens/s, median",
            f"{here:.1f} (spread {spread(ours):.1f})",
            f"vllm bench serve {there:.1f} (spread {spread(theirs):.1f})",
            here / there,
        ),
        Row(
            "probe ramp: difference of the medians", f"{100 * off / there:.1f} %", "", None, 100 * off / there, 10, "%"
        ),
        Row(
            "probe ramp: difference against the larger spread",
            f"{off:.1f}",
            f"{max(spread(ours), spread(theirs)):.1f}",
            None,
            off,
            round(max(spread(ours), spread(theirs)), 1),
            "tokens/s",
        ),
    ]


if __name__ == "__main__":
    print_table(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
