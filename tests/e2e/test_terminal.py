"""The screen in a real terminal under tmux."""

from __future__ import annotations

import shlex
import subprocess
import time
import uuid

import pytest
from watcher import GPUWATCH, ROOT


class Terminal:
    """A tmux session of its own server with one program in it."""

    def __init__(self, command, width, height):
        self.socket = f"gpuwatch-{uuid.uuid4().hex[:8]}"
        line = f"cd {shlex.quote(str(ROOT))} && {shlex.join(command)}; echo exit code $?; sleep 60"
        self.tmux("new-session", "-d", "-x", str(width), "-y", str(height), line)

    def tmux(self, *args):
        done = subprocess.run(
            ["tmux", "-L", self.socket, *args], capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout

    def text(self):
        return self.tmux("capture-pane", "-p")

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def until(self, wanted, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            text = self.text()
            if wanted in text:
                return text
            time.sleep(0.2)
        pytest.fail(f"{wanted!r} did not appear:\n{text}")


@pytest.fixture(params=[(80, 24), (140, 45), (200, 60)], ids=lambda size: f"{size[0]}x{size[1]}")
def demo(request):
    terminal = Terminal([*GPUWATCH, "tui", "--demo"], *request.param)
    yield terminal
    terminal.tmux("kill-server")


def test_the_demo_says_so_shows_gpus_and_engine_and_finds_the_storm(demo):
    demo.until("H100")
    text = demo.until("tiny-llama")
    assert "DEMO: recorded run, simulated GPUs" in text
    for _ in range(6):
        demo.keys("+")
    text = demo.until("kv_preemption_storm", seconds=60)
    assert "DEMO" in text
    for key, word in (("2", "H100"), ("4", "kv_preemption_storm"), ("5", "─ Logs"), ("7", "Gpuwatch")):
        demo.keys(key)
        demo.until(word)
    demo.keys("q")
    assert "Traceback" not in demo.until("exit code 0")


def test_ctrl_c_leaves_the_screen_with_130():
    terminal = Terminal([*GPUWATCH, "tui", "--demo"], 100, 30)
    try:
        terminal.until("DEMO")
        terminal.keys("C-c")
        terminal.until("exit code 130", seconds=10)
    finally:
        terminal.tmux("kill-server")
