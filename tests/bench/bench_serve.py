"""`gpuwatch serve` beside nvitop-exporter, on the same eight fake GPUs and one real vLLM, both scraped every 5 seconds.

    python tests/bench/bench_serve.py [SECONDS]

First both are scraped every 5 seconds, as a Prometheus would, and their processor time and memory are measured over one
span. Then each is scraped 300 times, in turn, at moments that drift through their ticks.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE.parent / "e2e"), str(HERE)]

from bench_live import GPUS, Machine, free_port, watch  # noqa: E402  # the folders are put on the path just above
from rig import GPUWATCH, PEERS  # noqa: E402
from table import Row, print_table  # noqa: E402

SCRAPE_SECONDS = 5.0
SCRAPES = 300
PAUSE_SECONDS = 0.037
CPU_RATIO, PSS_MIB = 0.8, 60.0
P99_MS, P99_RATIO = 10.0, 0.25
HEADERS = {"Accept": "text/plain;version=0.0.4", "Host": "localhost"}


@dataclass(slots=True)
class Scraped:
    """The pages of one program."""

    port: int
    times: list[float] = field(default_factory=list)
    size: int = 0

    def scrape(self, *, gzip: bool = True, keep: bool = False) -> None:
        """Read the page on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        begun = time.perf_counter()
        connection.request("GET", "/metrics", headers={**HEADERS, **({"Accept-Encoding": "gzip"} if gzip else {})})
        answer = connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - begun
        connection.close()
        assert answer.status == 200, answer.status
        if keep:
            self.times.append(took)
            self.size = len(body)

    def percentile(self, share: float) -> float:
        """Return a quantile of the times in milliseconds: the smallest that at least `share` of them do not exceed."""
        ordered = sorted(self.times)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def __str__(self) -> str:
        quantiles = (self.percentile(0.5), self.percentile(0.95), self.percentile(0.99))
        return f"p50 {quantiles[0]:.1f}, p95 {quantiles[1]:.1f}, p99 {quantiles[2]:.1f} ms, {self.size / 1000:.0f} kB"


def wait_for(scraped: Scraped) -> None:
    """Wait until a page is served."""
    deadline = time.monotonic() + 30
    while True:
        try:
            scraped.scrape()
        except (OSError, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def rows(seconds: float) -> list[Row]:
    """Return all lines; a vLLM server is started for them."""
    with Machine() as machine:
        ours, peer = Scraped(free_port()), Scraped(free_port())
        serve = [*GPUWATCH, "serve", "--engine", machine.server.url, "--listen", f"127.0.0.1:{ours.port}", "--quiet"]
        exporter = [str(PEERS / "nvitop-exporter"), "--interval", "1", "--bind-address", "127.0.0.1"]
        programs = [
            machine.start([*serve, "--state", str(machine.folder / "state.json")]),
            machine.start([*exporter, "--port", str(peer.port)], ours=False),
        ]
        for scraped in (ours, peer):
            wait_for(scraped)
        ended = threading.Event()

        def prometheus() -> None:
            while not ended.wait(SCRAPE_SECONDS):
                for scraped in (ours, peer):
                    scraped.scrape()

        client = threading.Thread(target=prometheus, daemon=True)
        client.start()
        used, used_by_peer = watch(programs, seconds)
        ended.set()
        client.join(30)
        for _ in range(SCRAPES):
            for scraped in (ours, peer):
                scraped.scrape(gzip=False, keep=True)
                time.sleep(PAUSE_SECONDS)
        for program in programs:
            program.stop()
    cpu = used.share / used_by_peer.share
    p99 = ours.percentile(0.99)
    return [
        Row(f"serve, {GPUS} GPUs + vLLM, 1 Hz, scraped every 5 s: CPU", str(used), f"nvitop-exporter {used_by_peer}",
            cpu, cpu, CPU_RATIO),
        Row("serve: PSS of all processes", str(used.memory), f"nvitop-exporter {used_by_peer.memory}",
            used.memory.pss / used_by_peer.memory.pss, used.memory.pss, PSS_MIB, "MiB"),
        Row("serve: start-up CPU (not in the lines above)", f"{used.startup:.2f} s",
            f"nvitop-exporter {used_by_peer.startup:.2f} s", used.startup / used_by_peer.startup),
        Row(f"scrape, {SCRAPES} times", str(ours), f"nvitop-exporter {peer}", p99 / peer.percentile(0.99), p99, P99_MS,
            "ms"),
        Row("scrape p99 against nvitop-exporter's", f"{p99:.1f} ms", f"nvitop-exporter {peer.percentile(0.99):.1f} ms",
            p99 / peer.percentile(0.99), p99 / peer.percentile(0.99), P99_RATIO),
    ]  # fmt: skip


if __name__ == "__main__":
    print_table(rows(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
