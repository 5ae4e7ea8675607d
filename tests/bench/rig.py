"""Programs under measurement: started alike, in terminals where they need one, and what they use of the machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("GPUWATCH_CACHE", ROOT / ".cache"))
PEERS = CACHE / "peers" / "bin"
GPUWATCH = [sys.executable, "-m", "gpuwatch"]
SYSTEM = ("/usr/lib", "/lib", "/lib64")
WIDTH, HEIGHT = 140, 45
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")


def environment(extra: dict[str, str] | None = None, *, ours: bool = True) -> dict[str, str]:
    """Return what every measured program starts with: compiled modules as on any machine, and all colours."""
    dropped = (
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
        "PYTHONPATH",
        "VIRTUAL_ENV",
        "NO_COLOR",
        "GPUWATCH_CONFIG",
    )
    values = {key: value for key, value in os.environ.items() if key not in dropped}
    values |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", **(extra or {})}
    if ours:
        values["PYTHONPATH"] = str(ROOT)
    return values


def compile_all() -> None:
    """Write the compiled modules of the package, which pip does when it installs."""
    command = [sys.executable, "-m", "compileall", "-q", str(ROOT / "gpuwatch")]
    subprocess.run(command, check=True, env=environment())


class Program:
    """A started program with its children; in a terminal of 140 x 45 when `screen`. What it prints is thrown away."""

    def __init__(self, command: list[str], env: dict[str, str], *, screen: bool = False) -> None:
        self.started = time.monotonic()
        self._seen = b""
        self.drawn = 0
        if not screen:
            self.master = None
            self.process = subprocess.Popen(
                command,
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            return
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        self.process = subprocess.Popen(
            command, env=env, cwd="/", stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:
                return
            if not data:
                return
            self.drawn += len(data)
            self._seen = (self._seen + data)[-(1 << 18) :]

    def until_drawn(self, mark: bytes, seconds: float = 30) -> float:
        """Return the seconds from the start until `mark` was drawn.

        Raises:
            TimeoutError: it was not.
        """
        deadline = self.started + seconds
        while mark not in self._seen:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"{mark!r} was not drawn: {self._seen[-2000:]!r}")
            time.sleep(0.001)
        return time.monotonic() - self.started

    def family(self) -> list[psutil.Process]:
        """Return the process and all its descendants."""
        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]

    def cpu(self) -> float:
        """Return processor seconds (user and system) of the family, with those of children that have ended."""
        total = 0.0
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        ended = psutil.Process(self.process.pid).cpu_times()
        return total + ended.children_user + ended.children_system

    def memory(self) -> Memory:
        """Return the family's memory."""
        return Memory([process.pid for process in self.family()])

    def stop(self) -> None:
        """End the program and what it started. Safe to call twice."""
        members = self.family() if self.process.poll() is None else []
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)
        self.process.wait(10)
        if self.master is not None:
            self._reader.join(5)
            os.close(self.master)
            self.master = None


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command used from its start to its end: wall and processor seconds, highest resident memory in MiB."""

    code: int
    seconds: float
    cpu: float
    memory: float


_RUN = """
import os, subprocess, sys, time
begun = time.monotonic()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
code = child.returncode = os.waitstatus_to_exitcode(status)
print(code, time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""


def finished(command: list[str]) -> Finished:
    """Run a command to its end; nothing that it prints is kept.

    A small program starts it: for Linux the highest memory of a program is at least that of the one that started it.
    """
    starter = [sys.executable, "-S", "-c", _RUN, *command]
    said = subprocess.run(starter, check=True, capture_output=True, text=True, env=environment()).stdout.split()
    return Finished(int(said[0]), *map(float, said[1:]))


class Memory:
    """Memory of a few processes in MiB.

    `pss` is the proportional set size on a machine where no other program is written in Python: a mapped file counts
    once, with the largest part of it that one of the processes has in memory, although the interpreter and numpy may
    be shared with an unrelated program just now. Only the system's own libraries, which every machine has in memory
    anyway, count by the kernel's proportional share. `kernel` is that share for everything. `each` is `pss` of every
    single process.
    """

    def __init__(self, pids: list[int]) -> None:
        shared: dict[tuple[str, int], float] = {}
        self.pss = self.kernel = 0.0
        self.each = []
        for pid in pids:
            mine = 0.0
            for name, figures in _mappings(pid):
                own = figures["Private_Clean"] + figures["Private_Dirty"]
                common = figures["Shared_Clean"] + figures["Shared_Dirty"]
                self.kernel += figures["Pss"] / 1024
                if name.startswith(SYSTEM):
                    own, common = figures["Pss"], 0
                key = (name if name.startswith("/") else f"{pid} {name}", figures["offset"])
                shared[key] = max(shared.get(key, 0), common / 1024)
                self.pss += own / 1024
                mine += (own + common) / 1024
            self.each.append(mine)
        self.pss += sum(shared.values())

    def __str__(self) -> str:
        parts = " + ".join(f"{part:.0f}" for part in self.each)
        return f"{self.pss:.1f} MiB ({parts})" if len(self.each) > 1 else f"{self.pss:.1f} MiB"


def _mappings(pid: int) -> list[tuple[str, dict[str, int]]]:
    found: list[tuple[str, dict[str, int]]] = []
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        match = _MAPPING.match(line)
        if match:
            found.append((match[1], {"offset": int(line.split()[2], 16)}))
        elif line.endswith(" kB"):
            key, value, _ = line.split()
            found[-1][1][key[:-1]] = int(value)
    return found
