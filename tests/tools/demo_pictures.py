"""Draw the pictures of docs/images from the demo recording: the overview in the middle of its storm.

usage: python tests/tools/demo_pictures.py [--seconds N] [--keys "4 enter"] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from concurrent.futures import Future
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpuwatch.alerts.rulefile import load, shipped_paths  # noqa: E402  # the folder is on the path now
from gpuwatch.cli.tui import DEMO  # noqa: E402
from gpuwatch.pipeline.core import Pipeline, Settings  # noqa: E402
from gpuwatch.recording import Reader  # noqa: E402
from gpuwatch.snapshot import Recording  # noqa: E402
from gpuwatch.tui.app import GpuwatchApp  # noqa: E402

SIZES = ((80, 24), (140, 45), (200, 60))
STORM = "kv_preemption_storm"
INTO_THE_STORM = 15


class Played:
    """A feed of snapshots that were made before."""

    def __init__(self):
        self.callback = None

    def subscribe(self, callback):
        self.callback = callback
        return lambda: None

    def at(self, time_ms):
        future = Future()
        future.set_exception(LookupError("not kept"))
        return future


def snapshots(seconds):
    """Play the recording until `seconds`, or until some time into the storm, and return every snapshot."""
    reader = Reader(DEMO)
    ticks = list(reader.ticks())
    first, length = ticks[0].time, (ticks[-1].time - ticks[0].time) / 1000
    pipeline = Pipeline(Settings(reader.header.host, "demo", reader.header.interval), load(shipped_paths()), first)
    made, storm_at = [], None
    for tick in ticks:
        result = pipeline.tick(tick.time, tick.batches)
        position = (tick.time - first) / 1000
        made.append(pipeline.snapshot(result, recording=Recording(str(DEMO), position=position, length=length)))
        if storm_at is None and any(f.id == STORM and f.state == "firing" for f in result.findings):
            storm_at = position
        if (seconds or (storm_at or length) + INTO_THE_STORM) <= position:
            break
    return made


async def draw(made, size, keys):
    feed = Played()
    app = GpuwatchApp(feed)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for snapshot in made:
            feed.callback(snapshot)
            await pilot.pause(0)
        for key in keys:
            await pilot.press(key)
        await pilot.pause()
        return app.export_screenshot(title="gpuwatch tui --demo")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--keys", default="")
    parser.add_argument("--name", default="overview")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    os.environ["COLORFGBG"] = "15;0"
    made = snapshots(options.seconds)
    options.out.mkdir(parents=True, exist_ok=True)
    for width, height in SIZES:
        picture = asyncio.run(draw(made, (width, height), options.keys.split()))
        (options.out / f"{options.name}-{width}x{height}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
