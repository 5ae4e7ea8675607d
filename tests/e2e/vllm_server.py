"""A real vLLM server on the CPU, and the loads that make it healthy or ill."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import psutil
import requests

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("GPUWATCH_CACHE", ROOT / ".cache"))
VENV = CACHE / "vllm-0.32.0"
MODEL = "tiny-llama"
READY_SECONDS = 300
VOCABULARY = 1000

Open: TypeAlias = "set[socket.socket | None]"
"""The connections of requests that are not answered yet."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def link_model(folder: Path) -> None:
    """Put the model into `folder`; it is made once."""
    made = CACHE / MODEL
    if not (made / "config.json").exists():
        subprocess.run([VENV / "bin/python", Path(__file__).with_name("model.py"), made], check=True, timeout=120)
    if not (folder / MODEL).exists():
        (folder / MODEL).symlink_to(made)


def read_page(url: str) -> Callable[[str], float]:
    """Read an engine's metrics page; the returned function gives the sum of a metric over its labels."""
    text = requests.get(url + "/metrics", timeout=10, headers={"Accept": "text/plain; version=0.0.4"}).text
    return lambda name: sum(map(float, re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)))


def yield_to_the_page(processes: list[psutil.Process]) -> None:
    """Let the first of a server's `processes`, which serves the page, go first, as where each has a core of its own.

    The core and the ranks of an engine spin while they wait for each other. On two cores the page is then not served
    for ten seconds at a time, and a watcher sees nothing of what happens within. Where the kernel shares the cores
    among groups of programs (autogroup), the server's group goes behind: others got none for seconds.
    """
    if not processes:
        return
    with contextlib.suppress(OSError):  # a kernel without such groups
        Path(f"/proc/{processes[0].pid}/autogroup").write_text("10")
    for process in processes[1:]:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            for thread in process.threads():
                os.setpriority(os.PRIO_PROCESS, thread.id, 10)


class VllmServer:
    """One server process with its log file. `flags` are added to those that every run needs; the last of two counts.

    The server runs in the folder of the log, with the model as a relative path: no path of the machine is in its words.
    """

    def __init__(
        self, flags: list[str], log: Path, ranks: int = 1, port: int | None = None, model: str = MODEL
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = f"127.0.0.1:{self.port}"
        self.log = log
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if ranks > 1:
            environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(rank) for rank in range(ranks))
            flags = [*flags, "--tensor-parallel-size", str(ranks)]
        command = [
            str(VENV / "bin/vllm"), "serve", model, "--load-format", "dummy", "--dtype", "bfloat16",
            "--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager",
            *flags,
        ]  # fmt: skip
        link_model(log.parent)
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environ, cwd=log.parent, start_new_session=True
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                tail = self.log.read_text(errors="replace")[-3000:]
                raise AssertionError(f"vLLM ended with status {self.process.returncode}:\n{tail}")
            with contextlib.suppress(requests.RequestException):
                if requests.get(self.url + "/health", timeout=2).status_code == 200:
                    yield_to_the_page(self.processes())
                    return
            time.sleep(0.5)
        raise AssertionError(f"vLLM not ready after {READY_SECONDS} s")

    def processes(self) -> list[psutil.Process]:
        """Return the server and all processes under it, oldest first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def workers(self) -> list[psutil.Process]:
        """Return the process of each tensor-parallel rank, in order of rank."""
        found = {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                title = re.search(r"VLLM::Worker_TP(\d+)", " ".join(process.cmdline()))
                if title:
                    found[int(title[1])] = process
        return [found[rank] for rank in sorted(found)]

    def page(self) -> Callable[[str], float]:
        """Read the metrics page; the returned function gives the sum of a metric over its labels."""
        return read_page(self.url)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(15)

    def complete(
        self, prompt: list[int], max_tokens: int, timeout: float = 300, stop: bool = False, open_: Open | None = None
    ) -> int:
        """Send token ids and return the number of prompt tokens that the server counted; 0 when it failed."""
        body = {
            "model": MODEL, "prompt": prompt, "max_tokens": max_tokens,
            "temperature": 1.0, "ignore_eos": not stop,
        }  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.connect()
            if open_ is not None:
                open_.add(connection.sock)
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            return int(json.loads(connection.getresponse().read())["usage"]["prompt_tokens"])
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return 0
        finally:
            if open_ is not None:
                open_.discard(connection.sock)
            connection.close()


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(10, VOCABULARY) for _ in range(count)]


class Load:
    """Requests that are sent in the background until `stop`.

    It waits for those that are open and then breaks them off: a server ends a request whose connection is gone.
    """

    def __init__(self) -> None:
        self.done = threading.Event()
        self.open: Open = set()
        self.threads: list[threading.Thread] = []

    def burst(self, server: VllmServer, requests_at_once: int, prompt: int, output: int, seed: int = 0) -> None:
        """Send `requests_at_once` different prompts at one moment."""
        for number in range(requests_at_once):
            ids = tokens(prompt, seed * 1000 + number)
            self._start(lambda ids=ids: server.complete(ids, output, timeout=120, open_=self.open))

    def steady(self, server: VllmServer, clients: int, prompt: int, output: int, shared: int = 0) -> None:
        """Keep `clients` requests open until `stop`; each prompt is new after its first `shared` tokens."""
        head = tokens(shared, 1)

        def client(first: int) -> None:
            number = first * 100_000
            while not self.done.is_set():
                server.complete([*head, *tokens(prompt - shared, number)], output, timeout=60, open_=self.open)
                number += 1

        for number in range(clients):
            self._start(lambda number=number: client(number + 1))

    def _start(self, work) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.threads.append(thread)

    def stop(self, timeout: float = 60) -> None:
        self.done.set()
        deadline = time.monotonic() + timeout
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for sock in tuple(self.open):
            with contextlib.suppress(OSError, AttributeError):  # closed by its own thread just now
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(20)
