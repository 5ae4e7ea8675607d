"""A real SGLang server on the CPU: scheduler, radix cache, metrics, log lines and process tree are the real ones."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import requests
from vllm_server import CACHE, MODEL, free_port, link_model, read_page, yield_to_the_page

NEWEST = "0.5.23"
FOLDER = CACHE / "sglang"
STUBS = Path(__file__).with_name("sglang_stubs")
READY_SECONDS = 400


class SglangServer:
    """One server process with its log file. `flags` are added to those that every run needs.

    It runs in the folder of the log, with the model as a relative path. `version`: 0.4.6, or the newest that is known.
    """

    def __init__(
        self, flags: list[str], log: Path, version: str = NEWEST, port: int | None = None, model: str = MODEL
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = f"127.0.0.1:{self.port}"
        self.log = log
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        before = [STUBS, FOLDER / "pins" / version, FOLDER / "src" / version]
        environ |= {
            "PYTHONPATH": os.pathsep.join(map(str, before)),
            "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        # An idle scheduler spins a whole core, which the newer ones can be told not to.
        idle = ["--sleep-on-idle"] if version == NEWEST else []
        command = [
            str(FOLDER / "venv/bin/python"), "-m", "sglang.launch_server", "--model-path", model,
            "--device", "cpu", "--attention-backend", "torch_native", "--load-format", "dummy",
            "--disable-cuda-graph", "--disable-overlap-schedule", "--sampling-backend", "pytorch",
            "--mem-fraction-static", "0.1", "--enable-metrics",
            "--host", "127.0.0.1", "--port", str(self.port), *idle, *flags,
        ]  # fmt: skip
        link_model(log.parent)
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environ, cwd=log.parent, start_new_session=True
            )
        self._tree: list[psutil.Process] = []

    def wait_ready(self) -> None:
        """Wait until the server says in its log that its own warm-up request was answered."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            text = self.log.read_text(errors="replace")
            if self.process.poll() is not None:
                raise AssertionError(f"SGLang ended with status {self.process.returncode}:\n{text[-3000:]}")
            if "ready to roll" in text:
                self._tree = self.processes()
                yield_to_the_page(self._tree)
                return
            time.sleep(0.5)
        raise AssertionError(f"SGLang not ready after {READY_SECONDS} s")

    def processes(self) -> list[psutil.Process]:
        """Return the server and all processes under it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def page(self) -> Callable[[str], float]:
        """Read the metrics page; the returned function gives the sum of a metric over its labels."""
        return read_page(self.url)

    def scheduler(self) -> psutil.Process:
        """Return the process that runs the model."""
        return next(p for p in self.processes() if any("sglang::scheduler" in word for word in p.cmdline()))

    def stop(self) -> None:
        """End the whole tree, also what a killed parent has left behind."""
        tree = {process.pid: process for process in (*self._tree, *self.processes())}
        for process in tree.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        _, alive = psutil.wait_procs(list(tree.values()), timeout=10)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(15)

    def generate(self, prompt: list[int], max_tokens: int, timeout: float = 300, *, to_the_end: bool = False) -> int:
        """Send token ids; return the number of prompt tokens found in the cache, or -1 when the request failed.

        `to_the_end`: the model may not stop before `max_tokens`.
        """
        sampling = {"max_new_tokens": max_tokens, "temperature": 0, "ignore_eos": to_the_end}
        body = {"input_ids": prompt, "sampling_params": sampling}
        try:
            answer = requests.post(self.url + "/generate", json=body, timeout=timeout)
            return int(answer.json()["meta_info"].get("cached_tokens", 0))
        except (requests.RequestException, ValueError, KeyError):
            return -1

    def healthy(self) -> bool:
        """Return whether ``/health`` answers 200."""
        with contextlib.suppress(requests.RequestException):
            return requests.get(self.url + "/health", timeout=5).status_code == 200
        return False
