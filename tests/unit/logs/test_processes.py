"""Which processes are engines, whose children they are, and which address a server has."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import psutil
import pytest

from gpuwatch.clock import ManualClock, SystemClock
from gpuwatch.sources.discovery.find import FoundEngine, choose_address, engine_process
from gpuwatch.sources.discovery.processes import Process, ProcessTable, engine_role, server_trees


@pytest.mark.parametrize(
    ("command", "engine", "arguments"),
    [
        ("/opt/venv/bin/python3.12 /opt/venv/bin/vllm serve m --port 1", "vllm", ("m", "--port", "1")),
        ("vllm serve m", "vllm", ("m",)),
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm", ("--model", "m")),
        ("python3 -u -X dev -m vllm.entrypoints.openai.api_server", "vllm", ()),
        ("python -m vllm.entrypoints.api_server --port 1", "vllm", ("--port", "1")),
        ("python -m vllm serve m", "vllm", ("m",)),
        ("python -m vllm.entrypoints.cli.main serve m", "vllm", ("m",)),
        ("python /src/vllm/entrypoints/openai/api_server.py --port 1", "vllm", ("--port", "1")),
        ("python -m sglang.launch_server --model-path m", "sglang", ("--model-path", "m")),
        ("/usr/bin/python3 -OO -m sglang.launch_server", "sglang", ()),
        ("/opt/bin/python /opt/bin/sglang serve --model-path m", "sglang", ("--model-path", "m")),
        ("python /src/python/sglang/launch_server.py --tp 2", "sglang", ("--tp", "2")),
    ],
)
def test_a_server_is_recognised_however_it_was_started(command, engine, arguments):
    role = engine_role(command.split())
    assert (role.engine, role.role, role.arguments) == (engine, "server", arguments)


@pytest.mark.parametrize(
    ("title", "engine", "part"),
    [
        ("VLLM::EngineCore", "vllm", "EngineCore"),
        ("VLLM::Worker_TP0", "vllm", "Worker_TP0"),
        ("sglang::scheduler_TP0", "sglang", "scheduler_TP0"),
        ("sglang::detokenizer", "sglang", "detokenizer"),
    ],
)
def test_a_part_is_recognised_by_its_title(title, engine, part):
    role = engine_role([title])
    assert (role.engine, role.role, role.part) == (engine, "part", part)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bash", "-c", "vllm serve m"],
        ["docker", "exec", "c", "vllm", "serve", "m"],
        ["timeout", "100", "vllm", "serve", "m"],
        ["uv", "run", "vllm", "serve", "m"],
        ["grep", "vllm", "serve"],
        ["vllm", "bench", "serve"],
        ["python", "/opt/bin/vllm", "chat"],
        ["python", "-c", "from vllm import serve"],
        ["python", "-m", "sglang_router.launch_server"],
        ["python", "-m", "sglang.launch_router"],
        ["python", "-m", "sglang.bench_serving"],
        ["python", "-m", "vllm.entrypoints.openai.run_batch"],
        ["python", "my_api_server.py"],
        ["python", "-m"],
        ["python"],
        ["vim", "vllm.log"],
    ],
)
def test_what_only_mentions_an_engine_is_none(arguments):
    assert engine_role(arguments) is None


def process(pid, parent, command, started=None):
    return Process(pid, float(started if started is not None else pid), parent, tuple(command.split()))


def trees_of(*processes):
    return server_trees({each.pid: each for each in processes})


def test_a_server_owns_everything_below_it():
    trees, orphans = trees_of(
        process(1, 0, "init"),
        process(10, 1, "bash"),
        process(20, 10, "vllm serve m"),
        process(21, 20, "VLLM::EngineCore"),
        process(22, 21, "VLLM::Worker_TP0"),
        process(23, 21, "VLLM::Worker_TP1"),
        process(24, 22, "gcc x.c"),
        process(30, 1, "other"),
    )
    (tree,) = trees
    assert (tree.root.pid, tree.engine, tree.pids) == (20, "vllm", frozenset({20, 21, 22, 23, 24}))
    assert tree.parts == ((21, "EngineCore"), (22, "Worker_TP0"), (23, "Worker_TP1"))
    assert orphans == ()


def test_a_child_with_the_command_line_of_its_server_is_no_second_server():
    trees, _ = trees_of(process(20, 1, "vllm serve m"), process(21, 20, "vllm serve m"), process(40, 1, "vllm serve n"))
    assert [(tree.root.pid, len(tree.pids)) for tree in trees] == [(20, 2), (40, 1)]


def test_a_part_without_its_server_is_left_over():
    trees, orphans = trees_of(
        process(1, 0, "init"), process(21, 1, "VLLM::EngineCore"), process(22, 21, "VLLM::Worker_TP0")
    )
    assert trees == ()
    assert [orphan.pid for orphan in orphans] == [21, 22]


def test_a_parent_younger_than_its_child_is_another_process_with_a_used_number():
    trees, orphans = trees_of(
        process(20, 1, "vllm serve m", started=900), process(21, 20, "VLLM::EngineCore", started=100)
    )
    assert trees[0].pids == frozenset({20})
    assert [orphan.pid for orphan in orphans] == [21]


@pytest.mark.parametrize(
    ("engine", "flags", "sockets", "want"),
    [
        ("vllm", {}, [("0.0.0.0", 8000)], ("127.0.0.1", 8000, True)),
        ("vllm", {}, [("127.0.0.1", 29500), ("::", 8000)], ("127.0.0.1", 8000, True)),
        ("vllm", {"port": "9000"}, [("10.0.0.5", 9000), ("0.0.0.0", 8000)], ("10.0.0.5", 9000, True)),
        ("vllm", {"port": "9000"}, [("127.0.0.1", 29500)], ("127.0.0.1", 9000, False)),
        ("vllm", {"port": "9000", "host": "10.0.0.5"}, [("127.0.0.1", 29500)], ("10.0.0.5", 9000, False)),
        ("sglang", {}, [("127.0.0.1", 30000)], ("127.0.0.1", 30000, True)),
        ("vllm", {}, [("::ffff:10.0.0.5", 8000)], ("10.0.0.5", 8000, True)),
        ("vllm", {}, [("2001:db8::1", 8000)], ("2001:db8::1", 8000, True)),
        ("vllm", {"host": "gpu-1", "port": "9000"}, [], ("gpu-1", 9000, False)),
        ("vllm", {"host": "gpu-1", "port": "9000"}, None, ("gpu-1", 9000, False)),
    ],
)
def test_the_address_is_where_the_server_listens_else_what_its_flags_say(engine, flags, sockets, want):
    assert choose_address(engine, flags, sockets) == want


def test_a_second_scan_reads_no_command_line_again(monkeypatch):
    calls = []
    real = psutil.Process.cmdline
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: calls.append(self.pid) or real(self))
    # A clock far ahead makes all processes of this machine old.
    clock = ManualClock(SystemClock().now() + 10**7)
    table = ProcessTable(clock)
    first = table.scan(1e9)
    read_once = len(calls)
    second = table.scan(1e9)
    assert first.complete
    assert second.complete
    me = psutil.Process().pid
    assert second.processes[me] == first.processes[me]
    assert second.processes[me].arguments[0] == psutil.Process().cmdline()[0]
    again = [pid for pid in calls[read_once:-1] if pid in first.processes]
    unsettled = [pid for pid in again if "-c" not in first.processes[pid].arguments]
    assert unsettled == []
    assert read_once > len(again)


def test_an_old_process_is_looked_at_again_in_one_of_six_scans_and_one_of_an_engine_in_each(monkeypatch):
    looked = []
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: looked.append(self.pid) or real(self))
    clock = ManualClock(SystemClock().now() + 10**7)
    table = ProcessTable(clock)
    me, parent = os.getpid(), os.getppid()
    known = table.scan(1e9).processes[me]
    looked.clear()
    for _ in range(6):
        assert table.scan(1e9).processes[parent].pid == parent
    assert looked.count(parent) == 1
    looked.clear()
    for _ in range(6):
        table._known[me] = replace(known, arguments=("VLLM::EngineCore",))
        table.scan(1e9)
    assert looked.count(me) == 6


def test_a_scan_without_time_says_that_it_is_incomplete():
    scan = ProcessTable(SystemClock()).scan(deadline=0.0)
    assert not scan.complete
    assert scan.processes == {}


def test_an_engine_goes_to_the_attribution_with_all_its_ranks():
    found = FoundEngine(
        "127.0.0.1:8000", "http://127.0.0.1:8000", "vllm", 7, frozenset({7, 8}), visible_devices="0,1", tp=2, ranks=4
    )
    given = engine_process(found)
    assert (given.server, given.root_pid, given.pids) == ("127.0.0.1:8000", 7, frozenset({7, 8}))
    assert (given.environ_visible_devices, given.tensor_parallel_size, given.engine_kind) == ("0,1", 4, "vllm")
    assert engine_process(FoundEngine("127.0.0.1:8000", "http://127.0.0.1:8000", "vllm", basis="port")) is None


def test_the_interpreter_of_this_test_is_no_engine():
    assert engine_role([sys.executable, "-m", "pytest", "tests/unit"]) is None
