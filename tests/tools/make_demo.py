"""Make the recording behind `gpuwatch tui --demo`: a real vLLM run of two ranks with simulated GPUs.

usage: python tests/tools/make_demo.py [OUT]        (default: gpuwatch/data/demo.rec)

The engine, its page, its log and the storm are real. Only the GPUs are not: their memory, clocks and power are moved
by what the engine does. The screen says so all the time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]

from fakenvml.machine import FakeNvml  # noqa: E402  # the folders are on the path now
from simulated_gpus import SimulatedGpus  # noqa: E402
from vllm_server import Load, VllmServer, tokens  # noqa: E402

SECONDS = 150
FLAGS = ["--max-model-len", "4096", "--num-gpu-blocks-override", "40", "--max-num-seqs", "16"]


def scenario(server: VllmServer) -> None:
    """Light load, then the storm, then light load again."""
    light = Load()
    light.steady(server, 2, 400, 120, shared=256)
    time.sleep(40)
    storm = Load()
    storm.burst(server, 16, 600, 1500, seed=3)
    time.sleep(75)
    storm.stop(timeout=60)
    light.stop()


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake = FakeNvml(folder / "gpus", gpus=2)
        server = VllmServer(FLAGS, folder / "vllm.log", ranks=2, port=8000)
        try:
            server.wait_ready()
            for seed in range(3):  # the first requests compile kernels
                server.complete(tokens(400, seed), 30)
            gpus = SimulatedGpus(fake, server, 2)
            gpus.start()
            (folder / "demo.toml").write_text('host = "demo"\nports = [8000]\n')
            command = [
                sys.executable, "-m", "gpuwatch", "check", "--for", str(SECONDS), "--config", "demo.toml",
                "--engine", server.url, "--log", "vllm.log", "--record", "demo.rec",
            ]  # fmt: skip
            env = {**os.environ, **fake.env(), "PYTHONPATH": str(ROOT)}
            watch = subprocess.Popen(command, cwd=folder, env=env)
            scenario(server)
            watch.wait(SECONDS + 60)
            gpus.close()
        finally:
            server.stop()
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes((folder / "demo.rec").read_bytes())
    print(f"{out}: {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "gpuwatch" / "data" / "demo.rec")
    main(parser.parse_args().out)
