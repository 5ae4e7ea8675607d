"""A headless Chromium that loads a page from a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("GPUWATCH_CACHE", ROOT / ".cache"))


def picture(page, out, width, height):
    """Write a picture of the upper part of a page."""
    _run(page, f"--window-size={width},{height}", f"--screenshot={out}")


def text_of(page):
    """Return the document after it was loaded, and what the browser complained about."""
    done = _run(page, "--dump-dom", "--enable-logging=stderr")
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def _run(page, *options):
    folder = CACHE / "chromium" / "usr" / "lib"
    program = folder / "chromium" / "chromium"
    env = dict(os.environ)
    if program.exists():
        libraries = [folder / "chromium", *(path for path in folder.glob("*-linux-gnu*")), *folder.glob("*/pulseaudio")]
        env["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
    else:
        program = shutil.which("chromium")
        assert program, "no Chromium: bash tests/e2e/fetch.sh chromium"
    with tempfile.TemporaryDirectory() as profile:
        command = [
            str(program), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={profile}", *options, Path(page).resolve().as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done
