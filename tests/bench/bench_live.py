"""`gpuwatch check` and `gpuwatch tui` beside their nearest peers, on the same eight fake GPUs and one real vLLM.

    python tests/bench/bench_live.py [SECONDS]

Each pair runs at the same time for the same span. Processor time is that of all processes of a program, user and
system; what was used before the span began is start-up and is stated separately.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE.parent / "e2e"), str(HERE)]

from fakenvml.machine import FakeNvml  # noqa: E402  # the folders are put on the path just above
from rig import GPUWATCH, PEERS, Memory, Program, compile_all, environment  # noqa: E402
from table import Row, print_table  # noqa: E402
from vllm_server import VllmServer, tokens  # noqa: E402

GPUS = 8
SETTLE_SECONDS = 12.0
CHECK_RATIO, CHECK_MIB = 0.8, 60.0
TUI_RATIO, TUI_MIB = 1.5, 100.0
RECORDED_MB_PER_HOUR = 5.0
HOUR = 3600


@dataclass(frozen=True, slots=True)
class Used:
    """What a program used: processor seconds before the span, share of a core in it, and memory at its end."""

    startup: float
    share: float
    memory: Memory

    def __str__(self) -> str:
        return f"{self.share:.2%} of a core"


class Machine(contextlib.ExitStack):
    """Eight fake GPUs with a process on each (vLLM on the first), and a real vLLM server that gets a little work."""

    def __enter__(self) -> Machine:  # noqa: PYI034  # typing.Self is newer than Python 3.10
        super().__enter__()
        compile_all()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.fake = FakeNvml(self.folder / "gpus", gpus=GPUS)
        self.server = VllmServer(["--max-model-len", "1024", "--max-num-seqs", "16"], self.folder / "vllm.log")
        self.callback(self.server.stop)
        for gpu in range(GPUS):
            self.fake.set(gpu, pcie_gen=5, pcie_width=16)  # healthy: the fake card's own link is a degraded one
        self.fake.process(0, self.server.process.pid, memory=60 << 30)
        for gpu in range(1, GPUS):
            user = subprocess.Popen(["sleep", "7200"])
            self.callback(user.wait)
            self.callback(user.kill)
            self.fake.process(gpu, user.pid, memory=60 << 30)
        self.server.wait_ready()
        self._ended = threading.Event()
        self._client = threading.Thread(target=self._work, daemon=True)
        self._client.start()
        self.callback(self._client.join, 60)
        self.callback(self._ended.set)
        return self

    def _work(self) -> None:
        """Send a short request every second, so that the page moves and the cores stay nearly idle."""
        number = 0
        while not self._ended.wait(1.0):
            number += 1
            self.server.complete(tokens(100, number), 12, timeout=60)

    def start(self, command: list[str], *, screen: bool = False, ours: bool = True) -> Program:
        """Start a program before this machine; it ends with it."""
        program = Program(command, environment(self.fake.env(), ours=ours), screen=screen)
        self.callback(program.stop)
        return program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def watch(programs: list[Program], seconds: float) -> list[Used]:
    """Let the programs settle, then measure all of them over one span."""
    time.sleep(SETTLE_SECONDS)
    begun = time.monotonic()
    before = [program.cpu() for program in programs]
    time.sleep(seconds)
    span = time.monotonic() - begun
    after = [program.cpu() for program in programs]
    for program in programs:
        assert program.process.poll() is None, program.process.args
    return [
        Used(first, (last - first) / span, program.memory())
        for program, first, last in zip(programs, before, after, strict=True)
    ]


def check_rows(machine: Machine, seconds: float) -> list[Row]:
    """`check` and `check --record` against nvitop-exporter."""
    port = free_port()
    record = machine.folder / "run.rec"
    length = str(seconds + SETTLE_SECONDS + 60)
    check = [*GPUWATCH, "check", "--engine", machine.server.url, "--for", length]
    exporter = [str(PEERS / "nvitop-exporter"), "--interval", "1", "--bind-address", "127.0.0.1", "--port", str(port)]
    programs = [
        machine.start(check),
        machine.start([*check, "--record", str(record)]),
        machine.start(exporter, ours=False),
    ]
    time.sleep(3)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        assert page.read().count(b"\ngpu_utilization_Percentage{") == GPUS
    before, at = record.stat().st_size, time.monotonic()
    ours, recording, peer = watch(programs, seconds)
    per_hour = (record.stat().st_size - before) / (time.monotonic() - at) * HOUR
    for program in programs:
        program.stop()
    ratio = ours.share / peer.share
    extra = recording.share - ours.share
    return [
        Row(f"check, {GPUS} GPUs + vLLM, 1 Hz: CPU", str(ours), f"nvitop-exporter {peer}", ratio, ratio, CHECK_RATIO),
        Row("check: start-up CPU (not in the line above)", f"{ours.startup:.2f} s",
            f"nvitop-exporter {peer.startup:.2f} s", ours.startup / peer.startup),
        Row("check: PSS of all processes", str(ours.memory), f"nvitop-exporter {peer.memory}",
            ours.memory.pss / peer.memory.pss, ours.memory.pss, CHECK_MIB, "MiB"),
        Row(f"recording, per hour from {seconds:.0f} s", f"{per_hour / 1e6:.2f} MB/h", judged=per_hour / 1e6,
            budget=RECORDED_MB_PER_HOUR, unit="MB/h"),
        Row("recording: CPU above check without it", f"{extra:.2%} of a core", f"check {ours}", extra / ours.share),
    ]  # fmt: skip


def tui_rows(machine: Machine, seconds: float) -> list[Row]:
    """`tui` against vllmstat's TUI on the same engine."""
    url = machine.server.url
    ours_program = machine.start([*GPUWATCH, "tui", "--engine", url], screen=True)
    peer_program = machine.start([str(PEERS / "vllmstat"), "--url", url], screen=True, ours=False)
    ours, peer = watch([ours_program, peer_program], seconds)
    drawn = f"{ours_program.drawn / 1000:.0f} kB", f"{peer_program.drawn / 1000:.0f} kB"
    for program in (ours_program, peer_program):
        program.stop()
    ratio = ours.share / peer.share
    return [
        Row(f"tui 140x45, {GPUS} GPUs + vLLM, 1 Hz: CPU", str(ours), f"vllmstat {peer}", ratio, ratio, TUI_RATIO),
        Row("tui: start-up CPU (not in the line above)", f"{ours.startup:.2f} s, drew {drawn[0]}",
            f"vllmstat {peer.startup:.2f} s, drew {drawn[1]}", ours.startup / peer.startup),
        Row("tui: PSS of all processes", str(ours.memory), f"vllmstat {peer.memory}",
            ours.memory.pss / peer.memory.pss, ours.memory.pss, TUI_MIB, "MiB"),
    ]  # fmt: skip


def rows(seconds: float) -> list[Row]:
    """Return all lines; a vLLM server is started for them."""
    with Machine() as machine:
        return [*check_rows(machine, seconds), *tui_rows(machine, seconds)]


if __name__ == "__main__":
    print_table(rows(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
