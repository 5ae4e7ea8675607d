"""CPU and memory of the GPU sampler against nvitop-exporter, on the same eight fake GPUs at the same time.

    python tests/bench/bench_nvml.py [SECONDS]

Both run at 1 Hz with 16 processes on the GPUs; both are measured from after their start to the end of the same span.
nvitop-exporter is installed into .cache/peers when it is not there. Prints one JSON object; `ratio` is the
sampler's CPU (source and worker) over nvitop-exporter's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakenvml.machine import FakeNvml, read_counters  # noqa: E402  # the folder is put on the path just above

GPUS = 8
PROCESSES = 16
SETTLE_SECONDS = 4.0
NVITOP = "nvitop-exporter==1.7.2"

SAMPLER = """
import time
from gpuwatch.clock import SystemClock
from gpuwatch.sources.nvml.source import NvmlSource
clock = SystemClock()
source = NvmlSource("bench", clock)
while True:
    begin = time.monotonic()
    batch = source.poll()
    assert batch.up, batch.detail
    time.sleep(max(0.0, 1.0 - (time.monotonic() - begin)))
"""


def exporter() -> Path:
    """Return the program nvitop-exporter, installed when it is missing."""
    folder = Path(os.environ.get("GPUWATCH_CACHE", ROOT / ".cache")) / "peers"
    program = folder / "bin" / "nvitop-exporter"
    if not program.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", NVITOP], check=True, timeout=300)
    return program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def memory(processes: list[psutil.Process]) -> dict[str, list[float]]:
    figures = [process.memory_full_info() for process in processes]
    return {
        "rss_mib": [round(figure.rss / 2**20, 1) for figure in figures],
        "pss_mib": [round(figure.pss / 2**20, 1) for figure in figures],
    }


def calls(path: Path) -> int:
    return sum(count for count, _, _ in read_counters(path).values())


def measure(seconds: float) -> dict[str, object]:
    """Run both programs side by side for `seconds` and return the figures."""
    program = exporter()
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake = FakeNvml(folder / "state", gpus=GPUS)
        try:
            for number in range(PROCESSES):
                user = subprocess.Popen(["sleep", "3600"])
                started.append(user)
                fake.process(number % GPUS, user.pid, memory=30 << 30)
            port = free_port()
            commands = {
                "gpuwatch": [sys.executable, "-c", SAMPLER],
                "nvitop": [str(program), "--interval", "1", "--bind-address", "127.0.0.1", "--port", str(port)],
            }
            running = {}
            for label, command in commands.items():
                environment = {**os.environ, **fake.env(folder / label), "PYTHONPATH": str(ROOT)}
                if label == "nvitop":
                    del environment["PYTHONPATH"]
                running[label] = subprocess.Popen(
                    command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                started.append(running[label])
            time.sleep(SETTLE_SECONDS)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                assert b"gpu_utilization" in page.read()
            families = {label: family(process.pid) for label, process in running.items()}
            before = {label: (cpu_seconds(members), calls(folder / label)) for label, members in families.items()}
            begin = time.monotonic()
            time.sleep(seconds)
            span = time.monotonic() - begin
            result: dict[str, object] = {"seconds": round(span, 1), "gpus": GPUS, "processes": PROCESSES}
            cpu = {}
            for label, members in families.items():
                cpu[label] = (cpu_seconds(members) - before[label][0]) / span
                result[label] = {
                    "cpu_percent_of_a_core": round(100 * cpu[label], 3),
                    "nvml_calls_per_second": round((calls(folder / label) - before[label][1]) / span),
                    **memory(members),
                }
            result["ratio"] = round(cpu["gpuwatch"] / cpu["nvitop"], 3)
            return result
        finally:
            for process in reversed(started):
                process.kill()
                process.wait()


if __name__ == "__main__":
    print(json.dumps(measure(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0), indent=2))
