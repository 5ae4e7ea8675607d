"""How long one scrape of a 300 KB page takes us, against prometheus_client's parser, in one run.

usage: python tests/bench/bench_exposition.py
"""

from __future__ import annotations

import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gpuwatch.engines.derive import compile_page
from gpuwatch.engines.info import EngineInfo
from gpuwatch.sources.engine.exposition import ExpositionParser

PAGE = Path(__file__).parents[1] / "fixtures" / "pages" / "vllm-0.32.0-storm.txt"
RANKS = 8
WANTED = 25


def big_page() -> bytes:
    """Return the real page with its series repeated for eight data-parallel ranks."""
    text = PAGE.read_text()
    rows = "".join(line + "\n" for line in text.splitlines() if line.startswith("vllm:"))
    return (text + "".join(rows.replace('engine="0"', f'engine="{rank}"') for rank in range(1, RANKS))).encode()


def best(work, rounds):
    """Return the shortest of `rounds` runs in milliseconds."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times) * 1000


def main():
    body = big_page()
    text = body.decode()
    parser = ExpositionParser()
    page = parser.parse(body)
    names = page.layout.names()
    plan = compile_page(page.layout.keys, names, EngineInfo("vllm", "0.32.0"), "h", "s:1").plan
    steady = best(lambda: parser.parse(body), 40)
    client = best(lambda: [family.samples for family in text_string_to_metric_families(text)], 5)
    first = best(lambda: ExpositionParser().parse(body), 3)
    compiled = best(lambda: compile_page(page.layout.keys, names, EngineInfo("vllm", "0.32.0"), "h", "s:1"), 3)
    applied = best(lambda: plan.apply(page.values), 40)
    print(f"page: {len(body):,} bytes, {len(page.values):,} series, {len(plan.keys):,} of ours")
    print(f"prometheus_client {client:.2f} ms   ours {steady:.2f} ms   ratio {client / steady:.0f} (wanted: {WANTED})")
    both = steady + applied
    print(f"mapping {applied:.2f} ms   parse and map {both:.2f} ms, {client / both:.0f} times less")
    print(f"first page or a new layout: parse {first:.1f} ms, compile {compiled:.1f} ms")


if __name__ == "__main__":
    main()
