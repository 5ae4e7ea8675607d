"""A healthy soak: real vLLM under moderate load, eight fake GPUs pre-allocated to 92 %, and no finding above info.

usage: python tests/tools/soak.py [--minutes 10]        exit code 1 when something above info was found
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]

from fakenvml.machine import FakeNvml  # noqa: E402  # the folders are on the path now
from simulated_gpus import SimulatedGpus  # noqa: E402
from vllm_server import Load, VllmServer, tokens  # noqa: E402
from watcher import CONFIG  # noqa: E402

FLAGS = ["--max-model-len", "4096", "--num-gpu-blocks-override", "400", "--max-num-seqs", "8"]
GPUS = 8


def watch(server: VllmServer, fake: FakeNvml, seconds: float) -> dict:
    """Return what `gpuwatch check` said about `seconds` of moderate load."""
    load = Load()
    load.steady(server, 2, 500, 150, shared=256)
    command = [
        sys.executable, "-m", "gpuwatch", "check", "--json", "--for", str(seconds),
        "--engine", server.url, "--log", str(server.log),
    ]  # fmt: skip
    begun = time.time()
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **CONFIG, **fake.env()}, capture_output=True, text=True,
        timeout=seconds + 120, check=False,
    )  # fmt: skip
    load.stop()
    if done.returncode not in (0, 1):
        raise SystemExit(f"gpuwatch check ended with {done.returncode}: {done.stderr}")
    return {**json.loads(done.stdout), "begun": begun * 1000, "ended": time.time() * 1000}


def main() -> int:
    """Run the soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        fake = FakeNvml(Path(name) / "gpus", gpus=GPUS)
        server = VllmServer(FLAGS, Path(name) / "vllm.log")
        try:
            server.wait_ready()
            for seed in range(3):
                server.complete(tokens(300, seed), 20)
            gpus = SimulatedGpus(fake, server, GPUS)
            gpus.start()
            report = watch(server, fake, options.minutes * 60)
            gpus.close()
        finally:
            server.stop()
    for finding in report["findings"]:
        lasted = ((finding["until"] or report["ended"]) - finding["since"]) / 1000
        at = (finding["since"] - report["begun"]) / 1000
        print(f"{finding['severity']:8} {finding['id']} at {at:.0f} s for {lasted:.0f} s: {finding['cause']}")
        print("".join(f"             {item['text']}\n" for item in finding["evidence"]), end="")
    loud = [finding for finding in report["findings"] if finding["severity"] != "info"]
    found = f"{len(report['findings'])} findings, {len(loud)} above info"
    print(f"{options.minutes:g} minutes, {GPUS} GPUs, 1 engine: {found}")
    return 1 if loud else 0


if __name__ == "__main__":
    sys.exit(main())
