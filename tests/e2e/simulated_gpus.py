"""Fake GPUs moved by a real engine: busy while requests run, a memory peak while prompts are computed."""

from __future__ import annotations

import random
import re
import threading
import time
from typing import Any

import requests
from fakenvml.machine import FakeNvml
from vllm_server import VllmServer

GIB = 2**30
POOLED = int(73.1 * GIB)
PEAK = 1.4
"""GiB that a prompt takes beside the pool."""


STILL_SECONDS = 2.0
"""Without a token for so long while requests run, the ranks wait for one that does not come."""
THROTTLE_FIELDS = {"power": "f74", "thermal": "f75", "board_limit": "f77", "hw_thermal": "f270"}
"""Field of the nanoseconds spent with lowered clocks, by reason (driver 580.82 and newer)."""


class SimulatedGpus:
    """Moves the GPUs of `fake` by the page of `server`; the pool is allocated before, 92 % of the memory.

    `hold`, `grow` and `throttle` make a GPU ill while the rest of it follows the engine.
    """

    def __init__(self, fake: FakeNvml, server: VllmServer, gpus: int) -> None:
        self.fake = fake
        self.server = server
        self.gpus = gpus
        self.stop = threading.Event()
        self.random = random.Random(5)
        self.energy = [0.0] * gpus
        self.held = 0.0
        self.held_keys: dict[int, dict[str, Any]] = {}
        self.pids: dict[int, int] = {}
        self.growth: dict[int, tuple[float, float]] = {}
        self.throttled: dict[int, tuple[str, float, float]] = {}
        for gpu in range(gpus):
            fake.set(
                gpu, mem_used=POOLED, util_gpu=0, util_mem=0, ecc_corr_vol=0, ecc_unc_vol=0, throttle=0,
                pcie_gen=5, pcie_width=16,
            )  # fmt: skip
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Give each GPU one of the engine's newest processes and begin to follow the page."""
        self.hand_to(self.server)
        self.thread.start()

    def hand_to(self, server: VllmServer) -> None:
        """Give each GPU one of the newest processes of this server, and of no other, as the driver does."""
        self.server = server
        children = server.processes()[1:]
        workers = [process.pid for process in children][-self.gpus :]
        for gpu in range(self.gpus):
            self.pids[gpu] = workers[gpu % len(workers)]
            self.fake.no_processes(gpu)
            self.fake.process(gpu, self.pids[gpu], memory=int(72.9 * GIB))

    def free(self) -> None:
        """Take the processes of an engine that ended from the GPUs."""
        for gpu in range(self.gpus):
            self.fake.no_processes(gpu)

    def hold(self, gpu: int, **keys: Any) -> None:
        """Keep keys of one GPU at these values from now on, whatever the engine does."""
        self.held_keys.setdefault(gpu, {}).update(keys)

    def grow(self, gpu: int, bytes_per_second: float) -> None:
        """Let the engine's memory on one GPU grow from now on, from its highest level; none is given back."""
        self.growth[gpu] = (time.monotonic(), bytes_per_second)

    def throttle(self, gpu: int, reason: str, share: float) -> None:
        """Let the counter of one reason rise by `share` of the time from now on."""
        self.throttled[gpu] = (reason, time.monotonic(), share)

    def close(self) -> None:
        """Stop following."""
        self.stop.set()
        self.thread.join(10)

    def _run(self) -> None:
        prompt_before = None
        tokens, moved = -1.0, time.monotonic()
        while not self.stop.wait(0.25):
            try:
                page = requests.get(self.server.url + "/metrics", timeout=2).text
            except requests.RequestException:
                continue
            running = _value(page, "vllm:num_requests_running")
            prompt = _value(page, "vllm:prompt_tokens_total")
            computing = prompt_before is not None and prompt > prompt_before
            prompt_before = prompt
            made = prompt + _value(page, "vllm:generation_tokens_total")
            if made != tokens:
                if tokens >= 0:  # between two steps with requests the page may say that none runs
                    running = max(running, 1.0)
                tokens, moved = made, time.monotonic()
            self._move(running, computing, waits=running > 0 and time.monotonic() - moved > STILL_SECONDS)

    def _move(self, running: float, computing: bool, *, waits: bool) -> None:
        wanted = PEAK if computing else min(self.held, 0.9)
        self.held = max(wanted, self.held * 0.98)
        for gpu in range(self.gpus):
            busy = 0 if not running else min(99, int(78 + 4 * running + self.random.randint(-3, 3)))
            watts = 118 + 5.2 * busy + self.random.uniform(-8, 8)
            if waits:  # a kernel that waits for another rank keeps a GPU busy at little power
                busy, watts = 100, 205 + self.random.uniform(-8, 8)
            self.energy[gpu] += watts * 0.25
            held, more = self.held, 0.0
            if gpu in self.growth:
                begun, speed = self.growth[gpu]
                held, more = PEAK, (time.monotonic() - begun) * speed
                self.fake.gpus[gpu].processes.clear()  # no write before the next line: the list is never seen empty
                self.fake.process(gpu, self.pids[gpu], memory=int(72.9 * GIB + more))
            keys = {
                "mem_used": int((73.1 + held + 0.05 * gpu) * GIB + more),
                "util_gpu": busy,
                "util_mem": int(busy * 0.62),
                "power": int(watts * 1000),
                "clk_sm": 1980 if not running else 1755 + self.random.choice((0, 15, 30)),
                "temp": int(38 + watts / 19 + gpu),
            }
            self.fake.set(gpu, **{**keys, **self.held_keys.get(gpu, {})})
            milliwatts, millijoules = int(watts * 1000), int(9e8 + self.energy[gpu] * 1000)
            self.fake.field_set(
                gpu, f82=f"{44 + watts / 19:.0f}", f185=str(milliwatts), f186=str(milliwatts), f83=f"{millijoules}:l"
            )
            if gpu in self.throttled:
                reason, begun, share = self.throttled[gpu]
                nanoseconds = int(7e9 + (time.monotonic() - begun) * share * 1e9)
                self.fake.field_set(gpu, **{THROTTLE_FIELDS[reason]: f"{nanoseconds}:l"})


def _value(page: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE))
