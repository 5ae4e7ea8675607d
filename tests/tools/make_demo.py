"""Make the recording behind `gpuwatch tui --demo`: a real vLLM run of two ranks with simulated GPUs.

usage: python tests/tools/make_demo.py [OUT]        (default: gpuwatch/data/demo.rec)

The engine, its page, its log and the storm are real. Only the GPUs are not: their memory, clocks and power are moved
by what the engine does. The screen says so all the time.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import requests

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]

from fakenvml.machine import FakeNvml  # noqa: E402  # the folders are on the path now
from vllm_server import Load, VllmServer, tokens  # noqa: E402

GIB = 2**30
SECONDS = 150
FLAGS = ["--max-model-len", "4096", "--num-gpu-blocks-override", "40", "--max-num-seqs", "16"]


class SimulatedGpus:
    """Moves two fake GPUs by the engine's page: busy while requests run, a memory peak while prompts are computed."""

    def __init__(self, fake: FakeNvml, server: VllmServer) -> None:
        self.fake = fake
        self.server = server
        self.stop = threading.Event()
        self.random = random.Random(5)
        self.energy = [0.0, 0.0]
        self.held = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def place_processes(self) -> None:
        workers = [p.pid for p in psutil.Process(self.server.process.pid).children(recursive=True)][-2:]
        for gpu, pid in enumerate(workers):
            self.fake.process(gpu, pid, memory=int(72.9 * GIB))

    def _run(self) -> None:
        prompt_before = None
        while not self.stop.wait(0.25):
            try:
                page = requests.get(self.server.url + "/metrics", timeout=2).text
            except requests.RequestException:
                continue
            running = _value(page, "vllm:num_requests_running")
            prompt = _value(page, "vllm:prompt_tokens_total")
            computing = prompt_before is not None and prompt > prompt_before
            prompt_before = prompt
            self._move(running, computing)

    def _move(self, running: float, computing: bool) -> None:
        wanted = 1.4 if computing else min(self.held, 0.9)
        self.held = max(wanted, self.held * 0.98)
        for gpu in (0, 1):
            busy = 0 if not running else min(99, int(78 + 4 * running + self.random.randint(-3, 3)))
            watts = 118 + 5.2 * busy + self.random.uniform(-8, 8)
            self.energy[gpu] += watts * 0.25
            self.fake.set(
                gpu,
                mem_used=int((73.1 + self.held + 0.05 * gpu) * GIB),
                util_gpu=busy,
                util_mem=int(busy * 0.62),
                power=int(watts * 1000),
                clk_sm=1980 if not running else 1755 + self.random.choice((0, 15, 30)),
                temp=int(38 + watts / 19 + gpu),
            )
            milli = {"82": f"{int(44 + watts / 19)}", "185": f"{int(watts * 1000)}", "186": f"{int(watts * 1000)}"}
            self.fake.field_set(gpu, **milli, **{"83": f"{int(9e8 + self.energy[gpu] * 1000)}:l"})


def _value(page: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE))


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
        for gpu in (0, 1):
            fake.set(gpu, mem_used=int(73.1 * GIB), util_gpu=0, util_mem=0, ecc_corr_vol=0, ecc_unc_vol=0, throttle=0)
        server = VllmServer(FLAGS, folder / "vllm.log", ranks=2, port=8000)
        try:
            server.wait_ready()
            for seed in range(3):  # the first requests compile kernels
                server.complete(tokens(400, seed), 30)
            gpus = SimulatedGpus(fake, server)
            gpus.place_processes()
            gpus.thread.start()
            (folder / "demo.toml").write_text('host = "demo"\nports = [8000]\n')
            command = [
                sys.executable, "-m", "gpuwatch", "check", "--for", str(SECONDS), "--config", "demo.toml",
                "--engine", server.url, "--log", "vllm.log", "--record", "demo.rec",
            ]  # fmt: skip
            env = {**os.environ, **fake.env(), "PYTHONPATH": str(ROOT)}
            watch = subprocess.Popen(command, cwd=folder, env=env)
            scenario(server)
            watch.wait(SECONDS + 60)
            gpus.stop.set()
        finally:
            server.stop()
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes((folder / "demo.rec").read_bytes())
    print(f"{out}: {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "gpuwatch" / "data" / "demo.rec")
    main(parser.parse_args().out)
