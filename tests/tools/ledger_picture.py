"""Draw docs/images/ledger-140x45.svg: the ledger of a real two-rank vLLM on fake GPUs whose memory follows its workers.

A GPU holds what the worker of its rank has in memory, the KV pool counted as allocated in advance as on a real GPU, and
40 MiB that belong to no process. vLLM on the CPU states its pool and not its weights. Needs what `make e2e` needs.

usage: python tests/tools/ledger_picture.py [--seconds 100] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "tools")]

import psutil  # noqa: E402  # the folders are on the path now
from demo_pictures import draw  # noqa: E402
from fakenvml.machine import FakeNvml  # noqa: E402
from vllm_server import Load, VllmServer  # noqa: E402

from gpuwatch.alerts.rulefile import load, shipped_paths  # noqa: E402
from gpuwatch.model import label  # noqa: E402
from gpuwatch.pipeline.core import Pipeline, Settings  # noqa: E402
from gpuwatch.recording import Reader  # noqa: E402

MIB, GIB = 2**20, 2**30
TOTAL, DRIVER, NOBODY, POOL = 4 * GIB, 128 * MIB, 40 * MIB, GIB
MOST_RESIDUAL = 0.03
HOST = "node-07"
FLAGS = ["--max-model-len", "8192", "--max-num-seqs", "16", "--kv-cache-memory-bytes", str(POOL)]


class Follower:
    """Keeps the memory of each fake GPU at what the worker of its rank holds."""

    def __init__(self, fake, server):
        self.fake, self.server = fake, server
        self.stop = threading.Event()
        for gpu in range(2):
            fake.set(gpu, name="Simulated GPU 4GB", mem_total=TOTAL, mem_reserved=DRIVER, mem_used=NOBODY)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        highest = 0.0
        while not self.stop.wait(0.5):
            page = self.server.page()
            highest = max(highest, page("vllm:kv_cache_usage_perc"))
            for gpu, process in enumerate(self.server.workers()):
                resident = psutil.Process(process.pid).memory_info().rss
                held = int(resident + POOL * (1 - highest))
                self.fake.gpus[gpu].processes.clear()
                self.fake.process(gpu, process.pid, memory=held)
                self.fake.set(gpu, mem_used=held + NOBODY, util_gpu=60, power=90_000)


def record(folder, seconds):
    """Serve for a while under a light load, and return the recording."""
    server = VllmServer(FLAGS, folder / "vllm.log", 2)
    fake = FakeNvml(folder / "gpus", gpus=2)
    try:
        server.wait_ready()
        follower, requests = Follower(fake, server), Load()
        requests.steady(server, 2, 600, 100)
        command = [sys.executable, "-m", "gpuwatch", "check", "--for", str(seconds), "--engine", server.url]
        command += ["--log", str(server.log), "--record", str(folder / "run.rec"), "--quiet"]
        config = folder / "gpuwatch.toml"
        config.write_text(f'host = "{HOST}"\nkernel_log = "off"\n')
        env = {**os.environ, "GPUWATCH_CONFIG": str(config), **fake.env()}
        subprocess.run(command, cwd=ROOT, env=env, check=False, timeout=seconds + 60)
        requests.done.set()
        follower.stop.set()
        follower.thread.join(10)
    finally:
        server.stop()
    return folder / "run.rec"


def replayed(path):
    """Return the snapshots of a recording."""
    reader = Reader(path)
    ticks = list(reader.ticks())
    settings = Settings(reader.header.host, "live", reader.header.interval)
    pipeline = Pipeline(settings, load(shipped_paths()), ticks[0].time)
    return [pipeline.snapshot(pipeline.tick(tick.time, tick.batches)) for tick in ticks]


def residuals(snapshot):
    """Return the unexplained share of each GPU."""
    return {
        label(labels, "gpu"): value / TOTAL
        for labels, value in snapshot.answer("gpu_ledger").samples
        if label(labels, "component") == "unexplained"
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "ledger-140x45.svg")
    options = parser.parse_args()
    os.environ["COLORFGBG"] = "15;0"
    with tempfile.TemporaryDirectory() as folder:
        made = replayed(record(Path(folder), options.seconds))
    left = residuals(made[-1])
    print(", ".join(f"GPU {gpu}: {share:.1%} unexplained" for gpu, share in sorted(left.items())))
    options.out.write_text(asyncio.run(draw(made[-60:], (140, 45), ["6"])), encoding="utf-8")
    return 0 if left and max(left.values()) < MOST_RESIDUAL else 1


if __name__ == "__main__":
    sys.exit(main())
