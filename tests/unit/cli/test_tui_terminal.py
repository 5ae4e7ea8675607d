"""The screen on a real terminal: how it is left, and what the terminal looks like afterwards."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from unit.exporter.conftest import Site
from unit.tui import scenes

from gpuwatch.cli.reports import DEMO
from gpuwatch.recording import Header, Writer

ROOT = Path(__file__).resolve().parents[3]
ALTERNATE_ON, ALTERNATE_OFF, MOUSE_OFF = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?1003l"


class Terminal:
    """``gpuwatch tui`` on a pseudo-terminal that is its controlling one."""

    def __init__(self, *args, run=("-m", "gpuwatch", "tui"), **popen):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
        streams = {"stdin": slave, "stdout": slave, "stderr": slave, **popen}
        self.process = subprocess.Popen(
            [sys.executable, *run, *map(str, args)], cwd=ROOT, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),  # noqa: PLW1509  # one system call, no lock
            env={**os.environ, "TERM": "xterm-256color"},
            **streams,
        )  # fmt: skip
        os.close(slave)
        self.output = b""

    def read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            try:
                self.output += os.read(self.master, 65536)
            except OSError:  # the other end is closed
                return False
        return True

    def until(self, wanted, seconds=20):
        deadline = time.monotonic() + seconds
        while wanted not in self.output:
            if time.monotonic() > deadline or not self.read(0.1):
                pytest.fail(f"{wanted!r} did not appear: {self.output[-2000:]!r}")

    def keys(self, text):
        os.write(self.master, text)

    def exit_code(self, seconds=10):
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.05)
        while self.read(0) and select.select([self.master], [], [], 0)[0]:
            pass
        return self.process.poll()

    def hang_up(self):
        """Go away as a closed window does: the kernel tells the program."""
        os.close(self.master)
        self.master = -1

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(5)
        if self.master >= 0:
            os.close(self.master)


@pytest.fixture
def terminal():
    made = []

    def start(*args, **popen):
        made.append(Terminal(*args, **popen))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def alone(tmp_path):
    path = tmp_path / "alone.toml"
    path.write_text("gpus = false\ndiscovery = false\n")
    return path


def test_leaving_from_the_rules_view_is_orderly(terminal, alone):
    screen = terminal("--config", alone)
    screen.until(b"no engine")
    screen.keys(b"7")
    screen.until(b"value / threshold")
    screen.keys(b"q")
    assert screen.exit_code() == 0
    assert b"Traceback" not in screen.output
    assert screen.output.rindex(ALTERNATE_OFF) > screen.output.rindex(ALTERNATE_ON)


def test_a_termination_signal_puts_the_terminal_back(terminal, alone):
    screen = terminal("--config", alone)
    screen.until(b"no engine")
    screen.process.send_signal(signal.SIGTERM)
    assert screen.exit_code() == 143
    assert b"Traceback" not in screen.output
    assert screen.output.rindex(ALTERNATE_OFF) > screen.output.rindex(ALTERNATE_ON)
    assert MOUSE_OFF in screen.output


def test_a_terminal_that_goes_away_ends_the_screen(terminal, alone):
    screen = terminal("--config", alone)
    screen.until(b"no engine")
    screen.hang_up()
    assert screen.process.wait(10) == 129


BEHIND = """
import os, signal, subprocess, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the kernel's word on the terminal would be lost on it
screen = subprocess.Popen([sys.executable, "-m", "gpuwatch", "tui", *sys.argv[1:]], preexec_fn=lambda: os.setpgid(0, 0))
print("pid", screen.pid, "run", flush=True)
screen.wait()
"""
"""A shell that starts the screen in a group of its own that is not the terminal's, as ``timeout`` does."""


def state_of(pid):
    """Return the letter of a process's state; Z where there is none any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_screen_that_was_stopped_in_the_background_does_not_outlive_its_terminal(terminal):
    screen = terminal("--replay", DEMO, run=("-c", BEHIND))
    screen.until(b" run")
    pid = int(screen.output.split()[screen.output.split().index(b"pid") + 1])
    try:
        deadline = time.monotonic() + 20
        while state_of(pid) != "T" and time.monotonic() < deadline:
            screen.read(0.05)
        assert state_of(pid) == "T"
        screen.hang_up()
        while state_of(pid) != "Z" and time.monotonic() < deadline + 20:
            time.sleep(0.05)
        assert state_of(pid) == "Z"
    finally:
        if state_of(pid) != "Z":
            os.kill(pid, signal.SIGKILL)


def test_a_screen_whose_drawing_would_go_elsewhere_is_refused(terminal, alone, tmp_path):
    with (tmp_path / "errors").open("wb") as errors:
        screen = terminal("--config", alone, stderr=errors)
        assert screen.exit_code() == 2
    assert ALTERNATE_ON not in screen.output
    said = (tmp_path / "errors").read_text().splitlines()
    assert len(said) == 1
    assert said[0].startswith("gpuwatch tui: the screen is drawn on standard error")


def test_a_recording_with_a_header_only_says_that_it_holds_nothing(terminal, tmp_path):
    path = tmp_path / "empty.rec"
    Writer(path, Header("h", 1_700_000_000_000, 1.0, "gpuwatch")).close()
    screen = terminal("--replay", path)
    screen.until(b"holds no complete tick")
    screen.until(b"end of the recording")
    screen.keys(b"\x03")
    assert screen.exit_code() == 130


def test_an_attached_screen_shows_the_daemons_values_and_says_when_they_are_old(terminal):
    site = Site()
    site.daemon.answer = scenes.calm()
    try:
        screen = terminal("--attach", site.server.url)
        screen.until(b"attached 1.0 s")
        screen.until(b"node-07")
    finally:
        site.server.stop()
    screen.until(b"stale since")
    screen.until(b"connection refused: nothing listens at 127.0.0.1:")
    screen.keys(b"q")
    assert screen.exit_code() == 0


def test_a_replay_is_paused_taken_forth_and_reported(terminal, tmp_path):
    report = tmp_path / "out.md"
    screen = terminal("--replay", DEMO, "--report", report)
    screen.until(b"REPLAY")
    screen.keys(b" ")
    screen.until(b"paused")
    screen.keys(b"\x1b[1;2C")  # shift and right: a minute on, into the storm
    screen.until(b"kv_preemption_storm")
    screen.keys(b"q")
    assert screen.exit_code(60) == 0
    assert f"gpuwatch tui: report in {report}".encode() in screen.output
    assert "kv_preemption_storm" in report.read_text()


def test_a_live_run_that_nobody_records_is_reported_all_the_same(terminal, tmp_path, alone, monkeypatch):
    report, spool = tmp_path / "out.html", tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setenv("TMPDIR", str(spool))
    log = ROOT / "tests" / "fixtures" / "logs" / "vllm_0_31_0_killed.log"
    screen = terminal("--config", alone, "--log", log, "--report", report)
    screen.until(b"rec ")
    assert list(spool.glob("gpuwatch-*/run.rec"))
    screen.keys(b"q")
    assert screen.exit_code(60) == 0
    assert report.read_text().startswith("<!")
    assert list(spool.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--report", "x.pdf"], b"x.pdf: the name must end in .html or .md"),
        (["--report", "-"], b"--report: the screen has the terminal"),
        (["--report", "x.md", "--attach", "http://127.0.0.1:1"], b"cannot be used with --report"),
        (["--record-age", "1h"], b"need a recording"),
    ],
)
def test_what_cannot_be_reported_or_kept_is_said_before_the_screen_opens(terminal, words, message):
    screen = terminal(*words)
    assert screen.exit_code(30) == 2
    assert ALTERNATE_ON not in screen.output
    assert message in screen.output
