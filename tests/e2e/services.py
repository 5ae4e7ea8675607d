"""The programs of a production set-up on the loopback interface, each started for a test and stopped after it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_server import CACHE, ROOT, binaries

READY_SECONDS = 90
"""How long a program may take to answer, on a machine that has other things to do."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition: Callable[[], object], seconds: float, what: str, pause: float = 0.25):
    """Return what `condition` gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(pause)


def get(url: str, timeout: float = 10) -> bytes:
    with urllib.request.urlopen(url, timeout=timeout) as response:
        return response.read()


class Program:
    """A child process with a log file, and a page that says that it is ready."""

    def __init__(self, command: Sequence[object], log: Path, ready: str, env: Mapping[str, str] | None = None) -> None:
        self.command = [str(part) for part in command]
        self.log = log
        self.ready = ready
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen | None = None
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, stdout=out, stderr=subprocess.STDOUT, env=self.env, cwd=self.log.parent
            )
        wait_for(self._is_ready, READY_SECONDS, f"{Path(self.command[0]).name} {self.ready}")

    def _is_ready(self) -> bool:
        code = self.process.poll()
        assert code is None, f"ended with {code}:\n{self.log.read_text(errors='replace')[-3000:]}"
        with contextlib.suppress(urllib.error.URLError, OSError):
            get(self.ready, 2)
            return True
        return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)


class Webhook:
    """Takes the notifications of an Alertmanager."""

    def __init__(self) -> None:
        self.posts: list[dict] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                outer.posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/"
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    def alerts(self, diagnosis: str, status: str) -> list[dict]:
        """Return the notified alerts of a finding id, oldest first."""
        return [
            alert
            for post in list(self.posts)
            for alert in post["alerts"]
            if alert["labels"].get("diagnosis") == diagnosis and alert["status"] == status
        ]

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)


def alertmanager(folder: Path, webhook: str) -> tuple[Program, str]:
    """Start Alertmanager with the shipped configuration, quicker, and with `webhook` as its receiver.

    Debian's build looks for its own templates in one absolute folder; a patched copy looks beside itself.
    """
    source = binaries()[0].with_name("prometheus-alertmanager")
    built_in = b"/usr/share/prometheus/alertmanager"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "alertmanager"
    program.write_bytes(source.read_bytes().replace(built_in, b"." + b"/" * (len(built_in) - 1)))
    program.chmod(0o755)
    for template in (source.parents[1] / "share/prometheus/alertmanager").glob("*.tmpl"):
        shutil.copy(template, folder)
    shutil.copy(ROOT / "deploy/alertmanager/gpuwatch.tmpl", folder)
    text = (ROOT / "deploy/alertmanager/alertmanager.yml").read_text()
    for old, new in (
        ("http://127.0.0.1:9095/", webhook),
        ("group_wait: 15s", "group_wait: 1s"),
        ("group_wait: 2m", "group_wait: 1s"),
        ("group_interval: 1m", "group_interval: 5s"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "alertmanager.yml").write_text(text)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        program, f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", "--log.level=warn",
    ]  # fmt: skip
    return Program(command, folder / "alertmanager.log", url + "/-/ready"), url


def prometheus(
    folder: Path, targets: Sequence[str], alertmanagers: Sequence[str] = (), seconds: int = 5
) -> tuple[Program, str]:
    """Start Prometheus with the shipped rules; it scrapes `targets` and evaluates every few `seconds`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "global": {"scrape_interval": f"{seconds}s", "evaluation_interval": f"{seconds}s"},
        "rule_files": [str(ROOT / "rules/*.yml")],
        "scrape_configs": [{"job_name": "gpuwatch", "static_configs": [{"targets": list(targets)}]}],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [url.removeprefix("http://") for url in alertmanagers]}]}]
        },
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        binaries()[0], f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    return Program(command, folder / "prometheus.log", url + "/-/ready"), url


def victoria(folder: Path, targets: Sequence[str], seconds: int = 5) -> tuple[Program, str]:
    """Start VictoriaMetrics; it scrapes `targets`."""
    program = CACHE / "victoria/usr/bin/victoria-metrics"
    assert program.exists(), f"{program} is missing: tests/e2e/fetch.sh victoria"
    folder.mkdir(parents=True, exist_ok=True)
    scrape = [{"job_name": "gpuwatch", "static_configs": [{"targets": list(targets)}]}]
    config = {"global": {"scrape_interval": f"{seconds}s"}, "scrape_configs": scrape}
    (folder / "scrape.yml").write_text(json.dumps(config))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        program, f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}",
        f"-promscrape.config={folder / 'scrape.yml'}", "-search.latencyOffset=1s", "-memory.allowedBytes=200MB",
    ]  # fmt: skip
    return Program(command, folder / "victoria.log", url + "/health"), url


def gpuwatch_serve(
    folder: Path, host: str, *args: str, env: Mapping[str, str] | None = None, settings: str = "discovery = false"
) -> tuple[Program, str]:
    """Start ``gpuwatch serve`` as machine `host`; return it and its address."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "gpuwatch.toml"
    port = free_port()
    config.write_text(f'host = "{host}"\nkernel_log = "off"\n{settings}\n[serve]\nlisten = "127.0.0.1:{port}"\n')
    command = [
        sys.executable, "-m", "gpuwatch", "serve", "--config", config, "--state", folder / "state.json", *args,
    ]  # fmt: skip
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {"PYTHONPATH": paths, **(env or {})}
    return Program(command, folder / "serve.log", f"http://127.0.0.1:{port}/-/ready", environment), f"127.0.0.1:{port}"


def check(*args: str, seconds: float = 180) -> tuple[int, dict]:
    """Run ``gpuwatch check --json`` and return its exit code and report."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuwatch", "check", "--json", *args], cwd=ROOT, capture_output=True, text=True,
        timeout=seconds, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)
