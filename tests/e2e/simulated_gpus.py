"""Fake GPUs moved by a real engine: busy while requests run, a memory peak while prompts are computed."""

from __future__ import annotations

import random
import re
import threading

import psutil
import requests
from fakenvml.machine import FakeNvml
from vllm_server import VllmServer

GIB = 2**30
POOLED = int(73.1 * GIB)


class SimulatedGpus:
    """Moves the GPUs of `fake` by the page of `server`; the pool is allocated before, 92 % of the memory."""

    def __init__(self, fake: FakeNvml, server: VllmServer, gpus: int) -> None:
        self.fake = fake
        self.server = server
        self.gpus = gpus
        self.stop = threading.Event()
        self.random = random.Random(5)
        self.energy = [0.0] * gpus
        self.held = 0.0
        for gpu in range(gpus):
            fake.set(gpu, mem_used=POOLED, util_gpu=0, util_mem=0, ecc_corr_vol=0, ecc_unc_vol=0, throttle=0)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Give each GPU one of the engine's newest processes and begin to follow the page."""
        children = [p.pid for p in psutil.Process(self.server.process.pid).children(recursive=True)]
        workers = children[-self.gpus :]
        for gpu in range(self.gpus):
            self.fake.process(gpu, workers[gpu % len(workers)], memory=int(72.9 * GIB))
        self.thread.start()

    def close(self) -> None:
        """Stop following."""
        self.stop.set()
        self.thread.join(10)

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
        for gpu in range(self.gpus):
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
            milliwatts, millijoules = int(watts * 1000), int(9e8 + self.energy[gpu] * 1000)
            self.fake.field_set(
                gpu, f82=f"{44 + watts / 19:.0f}", f185=str(milliwatts), f186=str(milliwatts), f83=f"{millijoules}:l"
            )


def _value(page: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE))
