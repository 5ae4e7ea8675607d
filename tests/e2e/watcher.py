"""Runs gpuwatch as people run it, and an observer of our own that reads an engine's page independently."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import requests

ROOT = Path(__file__).resolve().parents[2]
GPUWATCH = [sys.executable, "-m", "gpuwatch"]
CONFIG = {"GPUWATCH_CONFIG": str(Path(__file__).with_name("watcher.toml"))}


class Check:
    """A running ``gpuwatch check --json``."""

    def __init__(self, *args: str, seconds: float, env: dict[str, str] | None = None) -> None:
        command = [*GPUWATCH, "check", "--json", "--for", str(seconds), *args]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **CONFIG, **(env or {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,  # the kernel shares the processor among sessions, and the engine has its own
        )  # fmt: skip
        self.seconds = seconds

    def result(self) -> dict:
        out, err = self.process.communicate(timeout=self.seconds + 30)
        assert "Traceback" not in err, err
        assert self.process.returncode in (0, 1), err
        report = json.loads(out)
        report["exit"] = self.process.returncode
        return report


def ids(report: dict, *, above_info: bool = False) -> list[str]:
    return [f["id"] for f in report["findings"] if not above_info or f["severity"] != "info"]


class Observer:
    """Reads a page four times a second and notes when requests left the batch unfinished and when the counter moved."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.first_eviction: float | None = None
        self.counter_moved: float | None = None
        self.evictions = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Observer:  # noqa: PYI034  # typing.Self is newer than Python 3.10
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        before = None
        while not self._stop.wait(0.25):
            try:
                page = requests.get(self.url + "/metrics", timeout=2).text
            except requests.RequestException:
                continue
            now = (_sum(page, "vllm:num_requests_running"), _sum(page, "vllm:request_success_total"))
            if before is not None:
                left = before[0] - now[0] - (now[1] - before[1])
                if left > 0:
                    self.evictions += int(left)
                    self.first_eviction = self.first_eviction or time.time()
            if _sum(page, "vllm:num_preemptions_total") > 0:
                self.counter_moved = self.counter_moved or time.time()
            before = now


def _sum(page: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE))
