"""Draw a scripted snapshot as the screen would show it, to an SVG file.

Usage: ``python tests/tools/screenshot.py SCENE OUT.svg [--size 140x45] [--keys "4 enter"] [--light] [--ticks 90]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpuwatch.tui.app import GpuwatchApp
from gpuwatch.tui.feed import Actions
from tests.unit.tui import scenes


async def draw(scene: str, size: tuple[int, int], keys: list[str], ticks: int) -> str:
    """Run the application without a terminal, feed it `ticks` snapshots, press `keys`; return the picture."""
    make = scenes.SCENES.get(scene)
    feed = scenes.ScriptedFeed(lambda time: make(time=time) if make is not None else None)
    actions = Actions(
        start_recording=lambda path: path or "run.gpuwatch",
        stop_recording=lambda: None,
        acknowledge=lambda _key: None,
        silence=lambda _key, _seconds: None,
        demo=lambda: None,
    )
    app = GpuwatchApp(feed, actions)
    async with app.run_test(size=size) as pilot:
        if make is not None:
            for i in range(ticks):
                time = scenes.START + (2 + i) * 1000 if scene == "empty" else scenes.START + 60_000 + i * 1000
                feed.push(make(time=time))
                await pilot.pause(0)
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
        await pilot.pause()
        return app.export_screenshot(title="gpuwatch")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", choices=[*scenes.SCENES, "starting"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="140x45")
    parser.add_argument("--keys", default="")
    parser.add_argument("--ticks", type=int, default=90)
    parser.add_argument("--light", action="store_true")
    options = parser.parse_args()
    os.environ["COLORFGBG"] = "0;15" if options.light else "15;0"
    width, height = (int(part) for part in options.size.split("x"))
    picture = asyncio.run(draw(options.scene, (width, height), options.keys.split(), options.ticks))
    options.out.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
