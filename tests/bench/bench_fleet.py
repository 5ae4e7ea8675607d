"""How long it takes until a fleet of 100 machines with 8 GPUs each is on the screen, out of a real Prometheus.

python tests/bench/bench_fleet.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests/e2e"), str(ROOT)]

import fleet_data  # noqa: E402  # the folders are put on the path just above
from bench_start import FLOOR_DRAWN, frame_seconds  # noqa: E402
from prometheus_server import PrometheusServer  # noqa: E402
from rig import GPUWATCH, Program, environment  # noqa: E402
from table import Row, print_table  # noqa: E402

from gpuwatch.alerts.rulefile import load, shipped_paths  # noqa: E402
from gpuwatch.clock import SystemClock  # noqa: E402
from gpuwatch.config import EndpointConfig, PrometheusConfig  # noqa: E402
from gpuwatch.pipeline.fleet.driver import Fleet  # noqa: E402

PAINT_SECONDS = 2.0
DRAWN = fleet_data.host_name(fleet_data.STORM).encode()
"""The first row of the table: the machine with the storm."""


def paint_seconds(url: str) -> float:
    """Return the wall time from the start of the program to the first row of the table."""
    program = Program([*GPUWATCH, "tui", "--prometheus", url], environment(), screen=True)
    try:
        return program.until_drawn(DRAWN)
    finally:
        program.stop()


def look_seconds(url: str, machine: tuple[str, str] | None) -> float:
    """Return the wall time of one look at the fleet, or at everything about one machine of it."""
    fleet = Fleet(PrometheusConfig(EndpointConfig(url)), load(shipped_paths()), SystemClock())
    fleet.look_at(machine)
    try:
        fleet.look(fleet.clock.now())
        begun = time.perf_counter()
        fleet.look(fleet.clock.now())
        return time.perf_counter() - begun
    finally:
        fleet.stop()


def rows(quick: bool = False) -> list[Row]:
    """Return the lines; the first start warms the caches and does not count."""
    with tempfile.TemporaryDirectory() as folder:
        server = PrometheusServer(Path(folder), fleet_data.openmetrics(int(time.time())))
        try:
            floor = [sys.executable, str(HERE / "one_widget.py")]
            pairs = [(paint_seconds(server.url), frame_seconds(floor, FLOOR_DRAWN)) for _ in range(4 if quick else 6)]
            paint, widget = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
            fleet = statistics.median(look_seconds(server.url, None) for _ in range(3))
            machine = ("", fleet_data.host_name(fleet_data.STORM))
            one = statistics.median(look_seconds(server.url, machine) for _ in range(3))
        finally:
            server.stop()
    size = "100 machines x 8 GPUs"
    return [
        Row(
            f"first paint of {size}",
            f"{paint:.2f} s",
            f"one-widget Textual app {widget:.2f} s",
            paint / widget,
            paint,
            PAINT_SECONDS,
            "s",
        ),
        Row(f"one look at {size}", f"{fleet:.2f} s"),
        Row("one look with a machine in focus", f"{one:.2f} s", f"fleet only {fleet:.2f} s", one / fleet),
    ]


if __name__ == "__main__":
    print_table(rows("--quick" in sys.argv))
