"""Speed of reading logs: MB/s of the scan alone, of classification, and of a live source; run it from the root.

Usage: python tests/bench/bench_logs.py [MEGABYTES]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from gpuwatch.clock import SystemClock
from gpuwatch.engines.log_prefixes import strip_prefix
from gpuwatch.engines.log_text import clean
from gpuwatch.engines.logs import classify, prefilter
from gpuwatch.sources.logs.lines import LogLimits
from gpuwatch.sources.logs.source import LogSource

FIXTURES = Path(__file__).parents[1] / "fixtures" / "logs"
ACCESS = 'INFO:     127.0.0.1:54820 - "POST /v1/completions HTTP/1.1" 200 OK\n'


def text_of(megabytes: int) -> str:
    """Return a log with one start and then nine access lines to each line of the captured log."""
    start = (FIXTURES / "vllm_0_31_0_killed.log").read_text(encoding="utf-8")
    mixed = "".join(line + ACCESS * 9 for line in start.splitlines(keepends=True) if len(line) < 500)
    return start + mixed * (megabytes * 2**20 // len(mixed))


def main() -> None:
    """Print one line per measurement."""
    text = text_of(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
    size = len(text.encode()) / 1e6
    lines = text.splitlines()

    begun = time.process_time()
    hits = sum(1 for _ in prefilter().finditer(text))
    print(f"scan of the whole text: {size / (time.process_time() - begun):8.1f} MB/s, {hits} literals")

    begun = time.process_time()
    matches = sum(1 for line in lines if prefilter().search(line) and classify(strip_prefix(clean(line)).message))
    print(f"scan, then read hits:   {size / (time.process_time() - begun):8.1f} MB/s, {matches} lines recognised")

    begun = time.process_time()
    for line in lines:
        classify(strip_prefix(clean(line)).message)
    print(f"every line taken apart: {size / (time.process_time() - begun):8.1f} MB/s")

    with tempfile.NamedTemporaryFile() as file:
        source = LogSource(file.name, "bench", SystemClock(), limits=LogLimits(per_poll=2**30))
        source.poll()
        file.write(text.encode())
        file.flush()
        begun = time.process_time()
        source.poll()
        print(f"a live source:          {size / (time.process_time() - begun):8.1f} MB/s")
        source.close()


if __name__ == "__main__":
    main()
