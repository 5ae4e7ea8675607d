"""All measurements as one table: each line a figure, a peer or floor measured in the same run, and the budget.

    python tests/bench/run.py [--quick] [--only promql|exposition|start|…]

A measurement, not a test: the exit code is 0 whatever comes out. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import bench_diagnose  # noqa: E402  # the folders are put on the path just above
import bench_exposition  # noqa: E402  # the folders are put on the path just above
import bench_fleet  # noqa: E402
import bench_ledger  # noqa: E402
import bench_live  # noqa: E402
import bench_probe  # noqa: E402
import bench_promql  # noqa: E402
import bench_recording  # noqa: E402
import bench_serve  # noqa: E402
import bench_start  # noqa: E402
from table import print_table  # noqa: E402

PARTS = {
    "promql": bench_promql.rows,
    "exposition": lambda quick: bench_exposition.rows(),
    "start": bench_start.rows,
    "fleet": bench_fleet.rows,
    "diagnose": bench_diagnose.rows,
    "ledger": bench_ledger.rows,
    "recording": bench_recording.rows,
    "probe": lambda quick: bench_probe.rows(3 if quick else 5),
    "live": lambda quick: bench_live.rows(20.0 if quick else 90.0),
    "serve": lambda quick: bench_serve.rows(20.0 if quick else 90.0),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="speed and memory against peers and floors of the same run")
    parser.add_argument("--quick", action="store_true", help="shorter runs, coarser figures")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for name, part in PARTS.items():
        if not args.only or name in args.only:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            rows += part(args.quick)
    print_table(rows)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} at the start")
    over = sum(row.verdict == "OVER" for row in rows)
    print(f"{over} of {sum(bool(row.verdict) for row in rows)} budgets are exceeded")


if __name__ == "__main__":
    main()
