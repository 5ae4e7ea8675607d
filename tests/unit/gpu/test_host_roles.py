"""Which process of an engine is the busy one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.model import label, name_of
from gpuwatch.sources import host_roles
from gpuwatch.sources.host import HostSource
from gpuwatch.sources.host_roles import RoleTimes, process_role
from gpuwatch.sources.nvml.attribution import EngineProcess

NAME = "gpuwatch_engine_role_cpu_seconds_total"


@pytest.mark.parametrize(
    ("arguments", "role"),
    [
        (["VLLM::EngineCore"], "scheduler"),
        (["VLLM::EngineCore_DP1"], "scheduler"),
        (["VLLM::Worker_TP0"], "worker"),
        (["VLLM::APIServer_0"], "api_server"),
        (["sglang::scheduler_TP0"], "scheduler"),
        (["sglang::detokenizer"], "other"),
        (["/usr/bin/python3", "-m", "sglang.launch_server", "--model-path", "m"], "api_server"),
        (["/opt/venv/bin/vllm", "serve", "m"], "api_server"),
        (["/usr/bin/python3", "-c", "from multiprocessing.spawn import spawn_main"], "other"),
        ([], "other"),
    ],
)
def test_roles_are_read_off_titles_and_command_lines(arguments, role):
    assert process_role(arguments) == role


def titled(title: str) -> subprocess.Popen[bytes]:
    """A process whose command line begins with `title`, as the engines set theirs."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [title, "-c", code], executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_of_each_role_the_busiest_process_counts_and_restarts_never_count_backwards():
    core, first, second = titled("VLLM::EngineCore"), titled("VLLM::Worker_TP0"), titled("VLLM::Worker_TP1")
    try:
        times = RoleTimes()
        times.add({core.pid: (1.0, 10.0), first.pid: (1.0, 5.0), second.pid: (1.0, 5.0)})
        assert times.seconds == {"scheduler": 0.0, "worker": 0.0}
        times.add({core.pid: (1.0, 10.9), first.pid: (1.0, 5.2), second.pid: (1.0, 5.7)})
        times.add({core.pid: (1.0, 11.9), first.pid: (1.0, 6.2), second.pid: (1.0, 5.8)})
        assert times.seconds == pytest.approx({"scheduler": 1.9, "worker": 0.7 + 1.0})
        times.add({core.pid: (2.0, 0.1)})  # the same id, another process
        assert times.seconds == pytest.approx({"scheduler": 1.9, "worker": 1.7})
    finally:
        for process in (core, first, second):
            stop(process)


def test_a_command_line_is_read_once_and_that_of_a_process_without_a_title_ever_more_rarely(monkeypatch):
    asked = []
    lines = {1: ["VLLM::EngineCore"], 2: ["sglang::detokenizer"], 3: ["/usr/bin/python3", "-c", "spawn_main()"]}

    class Process:
        def __init__(self, pid):
            self.pid = pid

        def cmdline(self):
            asked.append(self.pid)
            return lines[self.pid]

    monkeypatch.setattr(host_roles.psutil, "Process", Process)
    times = RoleTimes()
    for second in range(100):
        times.add({pid: (1.0, float(second)) for pid in lines})
    assert {pid: asked.count(pid) for pid in lines} == {1: 1, 2: 1, 3: 7}  # readings 1, 2, 4, 8, 16, 32 and 64
    lines[3] = ["VLLM::Worker_TP0"]
    for second in range(100, 130):
        times.add({pid: (1.0, float(second)) for pid in lines})
    assert asked.count(3) == 8
    assert times.seconds["worker"] == 3.0  # of the readings 128 to 130, the first of which found it out
    times.add(dict.fromkeys(lines, (2.0, 0.0)))  # the same ids, other processes
    assert {pid: asked.count(pid) for pid in lines} == {1: 2, 2: 2, 3: 9}


def test_the_host_source_reports_them_by_role(tmp_path):
    core = titled("VLLM::EngineCore")
    try:
        engine = EngineProcess("127.0.0.1:8000", os.getpid(), frozenset({core.pid}), engine_kind="vllm")
        source = HostSource("h", ManualClock(), lambda: (engine,), root=tmp_path)
        batch = source.poll()
        found = {label(key, "role") for key in batch.keys if name_of(key) == NAME}
        assert found == {"scheduler", "other"}
        assert {label(key, "server") for key in batch.keys if name_of(key) == NAME} == {"127.0.0.1:8000"}
    finally:
        stop(core)
