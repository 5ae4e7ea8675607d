"""A real Prometheus on a data directory that was written with promtool."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("GPUWATCH_CACHE", ROOT / ".cache"))


def binaries() -> tuple[Path, Path]:
    """Return the paths of prometheus and promtool."""
    given = os.environ.get("GPUWATCH_PROMETHEUS")
    prometheus = Path(given) if given else CACHE / "prometheus/usr/bin/prometheus"
    promtool = prometheus.with_name("promtool")
    for path in (prometheus, promtool):
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: run `make e2e`, or set GPUWATCH_PROMETHEUS to the binary")
    return prometheus, promtool


class PrometheusServer:
    """Prometheus over the samples of an OpenMetrics text, on a free port of the loopback interface."""

    def __init__(self, folder: Path, openmetrics: str, rules: Sequence[Path] = ()) -> None:
        prometheus, promtool = binaries()
        (folder / "samples.txt").write_text(openmetrics)
        backfill = [promtool, "tsdb", "create-blocks-from", "openmetrics", folder / "samples.txt", folder / "data"]
        subprocess.run(backfill, check=True, capture_output=True, timeout=120)
        config = {"global": {"scrape_interval": "1s"}, "rule_files": [str(path) for path in rules]}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._log = (folder / "prometheus.log").open("w")
        self._process = subprocess.Popen(
            [
                prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--storage.tsdb.retention.time=100y",
                "--log.level=error",
            ],
            stderr=self._log,
        )
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self._wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _wait(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                self._connection.request("GET", "/-/ready")
                with self._connection.getresponse() as response:
                    response.read()
                    if response.status == 200:
                        return
            except OSError:
                self._connection.close()
            assert self._process.poll() is None, "Prometheus ended while it started"
            time.sleep(0.1)
        raise TimeoutError("Prometheus did not become ready within 30 s")

    def get(self, path: str, **params: str) -> dict:
        """Return the decoded answer of the HTTP API."""
        self._connection.request("GET", f"{path}?{urllib.parse.urlencode(params)}")
        with self._connection.getresponse() as response:
            return json.load(response)

    def stop(self) -> None:
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        self._log.close()
