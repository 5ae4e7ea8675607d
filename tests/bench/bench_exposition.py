"""How long one scrape of a 300 KB page takes us, against prometheus_client's parser, in one run.

usage: python tests/bench/bench_exposition.py
"""

from __future__ import annotations

import sys
import time
from itertools import cycle
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402  # the folders come first
from table import Row, print_table  # noqa: E402

from gpuwatch.engines.derive import compile_page  # noqa: E402
from gpuwatch.engines.info import EngineInfo  # noqa: E402
from gpuwatch.sources.engine.exposition import ExpositionParser  # noqa: E402

PAGE = HERE.parent / "fixtures" / "pages" / "vllm-0.32.0-storm.txt"
RANKS = 8
WANTED = 25


def big_page() -> bytes:
    """Return the real page with its series repeated for eight data-parallel ranks."""
    text = PAGE.read_text()
    rows = "".join(line + "\n" for line in text.splitlines() if line.startswith("vllm:"))
    return (text + "".join(rows.replace('engine="0"', f'engine="{rank}"') for rank in range(1, RANKS))).encode()


def with_other_numbers(body: bytes) -> bytes:
    """Return the page with another number on every line: the worst that a scrape can be."""
    return b"".join(
        line if line.startswith(b"#") else line.rstrip(b"\n") + (b"1\n" if b"." in line.split()[-1] else b".5\n")
        for line in body.splitlines(keepends=True)
    )


def best(work, rounds):
    """Return the shortest of `rounds` runs in milliseconds."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times) * 1000


def rows() -> list[Row]:
    """Return the lines of the table."""
    body = big_page()
    text = body.decode()
    parser = ExpositionParser()
    page = parser.parse(body)
    info = EngineInfo("vllm", "0.32.0")

    def compiled():
        return compile_page(page.layout.keys, page.layout.names(), info, "h", "s:1")

    plan = compiled().plan
    client = best(lambda: [family.samples for family in text_string_to_metric_families(text)], 5)
    pages = cycle((with_other_numbers(body), body))
    steady = best(lambda: parser.parse(next(pages)), 40)
    both = best(lambda: plan.apply(parser.parse(next(pages)).values), 40)
    first = best(lambda: ExpositionParser().parse(body), 3) + best(compiled, 3)
    what = f"{len(body) / 1000:.0f} KB page, {len(page.values):,} series"
    against = f"prometheus_client {client:.1f} ms"
    return [
        Row(
            f"parse a {what}, all numbers new",
            f"{steady:.2f} ms",
            against,
            client / steady,
            client / steady,
            WANTED,
            "x",
            at_least=True,
        ),
        Row(f"parse and map it to {len(plan.keys):,} of ours", f"{both:.2f} ms", against, client / both),
        Row("first page of an engine: parse and compile", f"{first:.1f} ms", against, client / first),
    ]


if __name__ == "__main__":
    print_table(rows())
