"""Draw the pictures of docs/images of the fleet: a made-up fleet of 100 machines in a real Prometheus.

usage: python tests/tools/fleet_pictures.py [--text] [--keys "j enter"] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e")]

import fleet_data  # noqa: E402  # the folders are on the path now
from prometheus_server import PrometheusServer  # noqa: E402

from gpuwatch.alerts.rulefile import load, shipped_paths  # noqa: E402
from gpuwatch.clock import ManualClock  # noqa: E402
from gpuwatch.config import EndpointConfig, PrometheusConfig  # noqa: E402
from gpuwatch.pipeline.fleet.driver import Fleet  # noqa: E402
from gpuwatch.tui.app import GpuwatchApp  # noqa: E402
from gpuwatch.tui.feed import Actions  # noqa: E402

NOW = 1_700_000_400
SIZES = ((80, 24), (140, 45))


class Feed:
    """Looks at the fleet at one moment, whenever the screen asks."""

    def __init__(self, url: str) -> None:
        self.fleet = Fleet(PrometheusConfig(EndpointConfig(url)), load(shipped_paths()), ManualClock(NOW * 1000))
        self.callback = None

    def subscribe(self, callback):
        self.callback = callback
        return lambda: None

    def at(self, time_ms):
        return self.fleet.at(time_ms)

    def focus(self, machine):
        self.fleet.look_at(machine)
        self.push(5)

    def push(self, later=0):
        look = self.fleet.look((NOW + later) * 1000)
        self.callback(self.fleet.explain(look).snapshot)


async def draw(feed, size, keys, as_text):
    app = GpuwatchApp(feed, Actions(focus=feed.focus), ManualClock(NOW * 1000))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        feed.push()
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.7)
        if as_text:
            return "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        return app.export_screenshot(title="gpuwatch tui --prometheus")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", default="")
    parser.add_argument("--name", default="fleet")
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    os.environ["COLORFGBG"] = "15;0"
    os.environ["TZ"] = "UTC"
    time.tzset()
    with tempfile.TemporaryDirectory() as folder:
        server = PrometheusServer(Path(folder), fleet_data.openmetrics(NOW), shipped_paths())
        try:
            for size in SIZES:
                feed = Feed(server.url)
                picture = asyncio.run(draw(feed, size, options.keys.split(), options.text))
                feed.fleet.stop()
                if options.text:
                    print(picture)
                else:
                    path = options.out / f"{options.name}-{size[0]}x{size[1]}.svg"
                    path.write_text(picture, encoding="utf-8")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
