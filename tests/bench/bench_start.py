"""How long a person waits: for `gpuwatch --help`, and for the first frame against a one-widget Textual application.

python tests/bench/bench_start.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from rig import GPUWATCH, Program, compile_all, environment  # noqa: E402  # the folder is put on the path just above
from table import Row, print_table  # noqa: E402

HELP_SECONDS = 0.3
FRAME_RATIO = 1.6
OURS_DRAWN = b"help"
"""In the last row of our first frame, which says which key shows the help."""
FLOOR_DRAWN = b"row 45"
"""The last row of the one widget."""


def help_seconds(command: list[str]) -> float:
    """Return the wall time of one run."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment(), timeout=30)
    return time.perf_counter() - begun


def frame_seconds(command: list[str], mark: bytes) -> float:
    """Return the wall time from the start of a program to the last row of its first frame."""
    program = Program(command, environment(), screen=True)
    try:
        return program.until_drawn(mark)
    finally:
        program.stop()


def rows(quick: bool = False) -> list[Row]:
    """Return the two lines; runs alternate, and the first of each kind warms the caches and does not count."""
    compile_all()
    count = 5 if quick else 10
    ours, floor = [*GPUWATCH, "--help"], [sys.executable, "-c", "pass"]
    pairs = [(help_seconds(ours), help_seconds(floor)) for _ in range(count + 1)][1:]
    help_ours, help_floor = (statistics.median(column) for column in zip(*pairs, strict=True))
    ours, floor = [*GPUWATCH, "tui"], [sys.executable, str(HERE / "one_widget.py")]
    count = 5 if quick else 9
    pairs = [(frame_seconds(ours, OURS_DRAWN), frame_seconds(floor, FLOOR_DRAWN)) for _ in range(count + 1)][1:]
    first, widget = (statistics.median(column) for column in zip(*pairs, strict=True))
    return [
        Row("gpuwatch --help", f"{help_ours:.3f} s", f"empty Python program {help_floor:.3f} s", help_ours / help_floor,
            help_ours, HELP_SECONDS, "s"),
        Row("first frame of tui", f"{first:.3f} s", f"one-widget Textual app {widget:.3f} s", first / widget,
            first / widget, FRAME_RATIO),
    ]  # fmt: skip


if __name__ == "__main__":
    print_table(rows("--quick" in sys.argv))
