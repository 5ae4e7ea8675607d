"""Recordings of an hour, eight GPUs and one engine at 1 Hz: bytes, the recorder's share of a core, and the replay.

    python tests/bench/bench_recording.py [SECONDS]

The engine's page is that of a real vLLM server (the recording behind the demo), played over and over with counters
that go on, so that a storm comes every two and a half minutes. Each GPU is one of that recording with power, clocks,
temperatures and shares that move as noisily as those of a card at work.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from rig import GPUWATCH, finished  # noqa: E402  # the folders are put on the path just above
from table import Row, print_table  # noqa: E402

from gpuwatch.alerts.rulefile import load, shipped_paths  # noqa: E402
from gpuwatch.model import Batch, label, name_of  # noqa: E402
from gpuwatch.pipeline.core import Pipeline, Settings  # noqa: E402
from gpuwatch.recording import Header, Reader, Writer, tick_times  # noqa: E402

DEMO = HERE.parents[1] / "gpuwatch" / "data" / "demo.rec"
HOUR, QUICK = 3600, 600
GPUS = 8
START = 1_790_000_000_000
MEGABYTES, CORE, REPLAY_SECONDS, REPLAY_MIB, REPORT_SECONDS = 5.0, 0.003, 30.0, 150.0, 3.0
COUNTERS = ("_total", "_bucket", "_count", "_sum")
NOISY = {"power": 15.0, "clock": 15.0, "temperature": 1.0, "utilization": 0.03, "busy": 0.03, "pcie": 2e6}


def rows(quick: bool) -> list[Row]:
    """Measure an hour, or ten minutes that are counted up to one."""
    seconds = QUICK if quick else HOUR
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hour.rec"
        used, series = record(path, seconds)
        share, size = used / seconds, path.stat().st_size * HOUR / seconds / 1e6
        begun = time.monotonic()
        ticks = sum(1 for _ in Reader(path).ticks())
        read = time.monotonic() - begun
        begun = time.monotonic()
        assert len(tick_times(path)) == ticks == seconds
        scanned = time.monotonic() - begun
        wall, used_by_replay, memory = run("diagnose", "--json", str(path))
        report, used_by_report, _ = run("report", str(path), "-o", str(Path(folder) / "hour.html"))
    scale = HOUR / seconds
    against = f"CPU {used_by_replay * scale:.1f} s, reading {read * scale:.1f} s, its times {scanned * scale:.2f} s"
    what = f"{GPUS} GPUs + vLLM, {series} series, 1 Hz"
    return [
        Row(f"recording, {what}", f"{size:.2f} MB/h", judged=size, budget=MEGABYTES, unit="MB/h"),
        Row("recording: CPU", f"{share:.2%} of a core", judged=100 * share, budget=100 * CORE, unit="%"),
        Row("replay of an hour through all rules", f"{wall * scale:.1f} s",
            against, wall / read, wall * scale,
            REPLAY_SECONDS, "s"),
        Row("report of an hour", f"{report * scale:.1f} s",
            f"CPU {used_by_report * scale:.1f} s, reading {read * scale:.1f} s", report / read, report * scale,
            REPORT_SECONDS, "s"),
        Row("replay: resident memory", f"{memory:.0f} MiB", judged=memory, budget=REPLAY_MIB, unit="MiB"),
    ]  # fmt: skip


def run(*arguments: str) -> tuple[float, float, float]:
    """Return wall seconds, processor seconds and the highest resident memory in MiB of a command of gpuwatch."""
    done = finished([*GPUWATCH, *arguments])
    assert done.code == 0
    return done.seconds, done.cpu, done.memory


class Timed(Writer):
    """A recorder that knows how much processor time it took."""

    used = 0.0

    def write(self, batch: Batch) -> None:
        begun = time.process_time()
        super().write(batch)
        self.used += time.process_time() - begun

    def found(self, time_: int, what: Mapping[str, Any]) -> None:
        begun = time.process_time()
        super().found(time_, what)
        self.used += time.process_time() - begun

    def tick(self, time_: int) -> None:
        begun = time.process_time()
        super().tick(time_)
        self.used += time.process_time() - begun


def record(path: Path, seconds: int) -> tuple[float, int]:
    """Record a run of the pipeline; return the processor seconds of the recorder, and the number of series."""
    machine = Machine([tick.batches for tick in Reader(DEMO).ticks()])
    pipeline = Pipeline(Settings("bench", "live", 1.0, 900_000), load(shipped_paths()), START)
    writer = Timed(path, Header("bench", START, 1.0, "bench"))
    series = 0
    for second in range(seconds):
        now = START + 1000 * second
        batches = machine.at(second, now)
        pipeline.tick(now, batches, writer)
        series = max(series, sum(len(batch.keys) for batch in batches))
    writer.close()
    assert not writer.error
    return writer.used, series


class Machine:
    """The played recording with more GPUs, at any second."""

    def __init__(self, played: list[tuple[Batch, ...]]) -> None:
        self._played = played
        self._dice = random.Random(1)
        self._layouts: dict[tuple[str, int], tuple[tuple, list[bool]]] = {}
        self._last: dict[tuple[str, object], float] = {}
        self._base: dict[tuple[str, object], float] = {}

    def at(self, second: int, now: int) -> list[Batch]:
        """Return the batches of one second."""
        loop, place = divmod(second, len(self._played))
        if place == 0 and loop:
            self._base = dict(self._last)
        found = []
        for batch in self._played[place]:
            facts = batch.facts if loop == 0 else ()
            moved = replace(batch, time=now, facts=facts, events=() if loop else batch.events)
            if batch.target == "nvml":
                found.append(self._gpus(moved))
            else:
                found.append(replace(moved, values=self._continued(moved)))
        return found

    def _continued(self, batch: Batch) -> list[float]:
        """Return the values with counters that go on from where the last round ended."""
        values = []
        for key, value in zip(batch.keys, batch.values, strict=True):
            if name_of(key).endswith(COUNTERS):
                whole = value + self._base.get((batch.target, key), 0.0)
                self._last[batch.target, key] = whole
                values.append(whole)
            else:
                values.append(value)
        return values

    def _gpus(self, batch: Batch) -> Batch:
        """Return the batch of eight cards, each like the first of the recording."""
        held = self._layouts.get((batch.target, id(batch.keys)))
        first = next(label(key, "uuid") for key in batch.keys if label(key, "uuid"))
        if held is None:
            keys = []
            for gpu in range(GPUS):
                for key in batch.keys:
                    if label(key, "uuid") == first:
                        other = {"uuid": f"GPU-{gpu:08}-0000-0000-0000-000000000000", "gpu": str(gpu)}
                        keys.append(tuple((name, other.get(name, value)) for name, value in key))
            mine = [label(key, "uuid") == first for key in batch.keys]
            held = self._layouts[batch.target, id(batch.keys)] = (tuple(keys), mine)
        pattern = [
            (name_of(key), value) for key, value, own in zip(batch.keys, batch.values, held[1], strict=True) if own
        ]
        values = [self._noisy(gpu, name, value, batch.time) for gpu in range(GPUS) for name, value in pattern]
        return replace(batch, keys=held[0], values=values)

    def _noisy(self, gpu: int, name: str, value: float, now: int) -> float:
        if "energy" in name:
            return round(value + (now - START) / 1000 * (600 + gpu) + self._dice.random(), 3)
        if name.endswith(COUNTERS) or "limit" in name or "max" in name:
            return value
        span = next((span for word, span in NOISY.items() if word in name), 0.0)
        if not span or not value:
            return value
        moved = value + self._dice.uniform(-span, span)
        if "utilization" in name or "busy" in name:
            return round(min(max(moved, 0.0), 1.0), 2)
        return round(moved, 3) if "power" in name else float(round(moved))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        if len(sys.argv) > 1:
            QUICK = int(sys.argv[1])
        print_table(rows(quick=len(sys.argv) > 1))
