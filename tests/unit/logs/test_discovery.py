"""Engines are found as real processes and real ports, and what is not found is explained."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from gpuwatch.clock import ManualClock, SystemClock
from gpuwatch.sources.discovery.find import Discovery
from gpuwatch.sources.discovery.ports import open_ports

# Far more than is needed, for a machine that does other things as well.
AMPLE = 30.0

# Stands for a server: the same words on its command line, a child with an engine's title, a socket that listens.
SERVER = """
import os, socket, subprocess, sys, time
child = subprocess.Popen(["VLLM::EngineCore", "-c", "import time; time.sleep(60)"], executable=sys.executable)
def port():
    for at, word in enumerate(sys.argv):
        if word == "--port":
            return int(sys.argv[at + 1])
    return 0
with socket.socket() as inner, socket.socket() as server:
    if "FAKE_GO" in os.environ:
        inner.bind(("127.0.0.1", 0))
        inner.listen()
        with open(os.environ["FAKE_READY"], "w") as file:
            file.write(f"{inner.getsockname()[1]} {child.pid}")
        while not os.path.exists(os.environ["FAKE_GO"]):
            time.sleep(0.01)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port()))
    if "FAKE_SILENT" not in os.environ:
        server.listen()
    with open(os.environ["FAKE_READY"], "w") as file:
        file.write(f"{server.getsockname()[1]} {child.pid}")
    time.sleep(60)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def launch(tmp_path):
    """Start a fake server as `vllm serve …` or `python -m sglang.launch_server …`; return (process, port, child)."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "vllm"
    script.write_text(f"#!{sys.executable}\n{SERVER}")
    script.chmod(0o755)
    package = tmp_path / "lib" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(SERVER)
    started = []

    def start(*arguments, engine="vllm", output=None, **variables):
        ready = tmp_path / f"ready-{len(started)}"
        head = [str(script), "serve"] if engine == "vllm" else [sys.executable, "-m", "sglang.launch_server"]
        environment = {**os.environ, "FAKE_READY": str(ready), "PYTHONPATH": str(tmp_path / "lib"), **variables}
        process = subprocess.Popen([*head, *arguments], stdout=output, stderr=output, env=environment)
        end = time.monotonic() + AMPLE
        while not (ready.exists() and ready.read_text()):
            assert time.monotonic() < end
            time.sleep(0.01)
        port, child = map(int, ready.read_text().split())
        started.append((process, child))
        return process, port, child

    yield start
    for process, child in started:
        process.kill()
        process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def find(ports=(), patience=AMPLE):
    return Discovery(SystemClock(), ports, patience=patience).find(AMPLE)


def the_one(discovered, process):
    return next(engine for engine in discovered.engines if engine.pid == process.pid)


def results(discovered, word):
    return [result for what, result in discovered.looked_for if word in f"{what} {result}"]


def test_a_running_server_is_found_with_all_that_can_be_known(launch, tmp_path):
    log = tmp_path / "server.log"
    wanted = free_port()
    with log.open("wb") as output:
        process, port, child = launch(
            "org/model",
            *("--port", str(wanted), "-tp", "2", "--max-num-seqs=16", "--gpu-memory-utilization", "0.85"),
            *("--num-gpu-blocks-override", "40", "--api-key", "s3cr3t"),
            output=output,
            CUDA_VISIBLE_DEVICES="2,3",
            CUDA_DEVICE_ORDER="PCI_BUS_ID",
            VLLM_API_KEY="s3cr3t",
        )
    discovered = find()
    engine = the_one(discovered, process)
    assert port == wanted
    assert (engine.server, engine.url) == (f"127.0.0.1:{port}", f"http://127.0.0.1:{port}")
    assert (engine.kind, engine.ready, engine.basis) == ("vllm", True, "process")
    assert engine.pids >= {process.pid, child}
    assert dict(engine.flags) == {
        "model": "org/model",
        "port": str(port),
        "tensor-parallel-size": "2",
        "max-num-seqs": "16",
        "gpu-memory-utilization": "0.85",
        "num-gpu-blocks-override": "40",
        "api-key": "set",
    }
    assert (engine.log, engine.tp, engine.ranks) == (str(log), 2, 2)
    assert (engine.visible_devices, engine.device_order) == ("2,3", "PCI_BUS_ID")
    assert "s3cr3t" not in repr(discovered)
    assert results(discovered, f"process {process.pid}") == [f"http://127.0.0.1:{port}"]


def test_the_port_is_read_from_the_socket_where_no_flag_names_it(launch):
    process, port, _ = launch("m", output=subprocess.DEVNULL)
    engine = the_one(find(), process)
    assert (engine.server, engine.ready) == (f"127.0.0.1:{port}", True)
    assert (engine.visible_devices, engine.flag("api-key")) == (os.environ.get("CUDA_VISIBLE_DEVICES"), "")


def test_an_sglang_server_is_found(launch):
    process, port, _ = launch(
        *("--model-path", "m", "--port", str(free_port()), "--tp", "4", "--dp-size", "2"),
        engine="sglang",
        output=subprocess.DEVNULL,
    )
    engine = the_one(find(), process)
    assert (engine.kind, engine.server, engine.flag("model-path")) == ("sglang", f"127.0.0.1:{port}", "m")
    assert (engine.tp, engine.ranks) == (4, 8)


def test_a_server_that_does_not_listen_yet_is_found_and_said_to_start(launch):
    port = free_port()
    process, _, _ = launch("m", "--port", str(port), output=subprocess.DEVNULL, FAKE_SILENT="1")
    discovered = find()
    engine = the_one(discovered, process)
    assert (engine.server, engine.ready) == (f"127.0.0.1:{port}", False)
    assert "nothing accepts connections there" in results(discovered, f"process {process.pid}")[0]


@pytest.mark.parametrize(
    ("kind", "remark"), [("null", "its output is discarded"), ("pipe", "its output goes to a pipe")]
)
def test_output_that_is_no_log_is_explained(launch, kind, remark):
    process, _, _ = launch("m", output=subprocess.DEVNULL if kind == "null" else subprocess.PIPE)
    discovered = find()
    engine = the_one(discovered, process)
    assert engine.log == ""
    assert engine.log_remark.startswith(remark)
    assert any(row.endswith("give it with --log") for row in results(discovered, f"log of {engine.server}"))
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def test_a_removed_log_is_no_log(launch, tmp_path):
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process, _, _ = launch("m", output=output)
    log.unlink()
    engine = the_one(find(), process)
    assert (engine.log, "removed" in engine.log_remark) == ("", True)


def test_parts_whose_server_was_killed_are_named(launch):
    process, _, child = launch("m", output=subprocess.DEVNULL)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    discovered = find()
    assert all(engine.pid != process.pid for engine in discovered.engines)
    assert dict(discovered.looked_for)[f"process {child}"].startswith("VLLM::EngineCore runs without a server")


def test_a_server_without_an_api_is_said_to_have_none(launch):
    process, _, _ = launch("m", "--headless", output=subprocess.DEVNULL)
    discovered = find()
    assert all(engine.pid != process.pid for engine in discovered.engines)
    assert results(discovered, f"process {process.pid}") == ["runs with --headless: it serves no API on this machine"]


def test_the_next_look_sees_what_came_and_what_went(launch):
    discovery = Discovery(SystemClock(), ())
    discovery.find(AMPLE)
    process, port, _ = launch("m", output=subprocess.DEVNULL)
    assert the_one(discovery.find(AMPLE), process).server == f"127.0.0.1:{port}"
    process.kill()
    process.wait()
    assert all(engine.pid != process.pid for engine in discovery.find(AMPLE).engines)


def test_a_server_that_listens_between_its_processes_only_is_ready_once_it_does_on_its_port(launch, tmp_path):
    discovery = Discovery(SystemClock(), ())
    wanted, go = free_port(), tmp_path / "go"
    process, _, _ = launch("m", "--port", str(wanted), output=subprocess.DEVNULL, FAKE_GO=str(go))
    early = the_one(discovery.find(AMPLE), process)
    assert (early.server, early.ready) == (f"127.0.0.1:{wanted}", False)
    go.touch()
    end = time.monotonic() + AMPLE
    while not (found := the_one(discovery.find(AMPLE), process)).ready:
        assert time.monotonic() < end
    assert found.server == f"127.0.0.1:{wanted}"
    assert the_one(discovery.find(AMPLE), process) == found


class Page(BaseHTTPRequestHandler):
    """Answers with what its server was told to say, and counts."""

    def do_GET(self):
        self.server.paths.append(self.path)
        status, body = self.server.answer
        self.send_response(status)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(status, body):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        server.answer = (status, body)
        server.paths = []
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


VLLM = (
    b"# HELP python_info x\n" * 300 + b'# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine="0"} 1.0\n'
)


@pytest.mark.parametrize(
    ("status", "body", "engine", "words"),
    [
        (200, VLLM, "vllm", "answers with metrics of vllm"),
        (200, b'sglang:token_usage{model_name="m"} 0.1\n', "sglang", "answers with metrics of sglang"),
        (200, b"# TYPE ray_vllm:num_requests_running gauge\n", "vllm", "answers with metrics of vllm"),
        (200, b"<html>the word vllm: in a page</html>", "", "answers, but with no metric of vLLM or SGLang"),
        (404, b"", "", "answers, but has no /metrics (an SGLang without --enable-metrics looks like this)"),
        (401, b"vllm:num_requests_running 1\n", "", "answers /metrics with status 401"),
    ],
)
def test_a_port_without_a_known_process_is_asked_once(serve, status, body, engine, words):
    server = serve(status, body)
    port = server.server_address[1]
    discovered = find((port,))
    assert dict(discovered.looked_for)[f"port 127.0.0.1:{port}"] == words
    found = [each for each in discovered.engines if each.basis == "port"]
    assert [(each.kind, each.server, each.pid) for each in found] == (
        [(engine, f"127.0.0.1:{port}", None)] if engine else []
    )
    assert server.paths == ["/metrics"]


def test_a_port_that_is_no_engine_is_not_asked_again_for_a_minute(serve):
    server = serve(404, b"")
    clock = ManualClock(SystemClock().now())
    discovery = Discovery(clock, (server.server_address[1],), patience=AMPLE)
    for _ in range(3):
        discovery.find(AMPLE)
    assert len(server.paths) == 1
    clock.advance(61)
    discovery.find(AMPLE)
    assert len(server.paths) == 2


def test_a_port_that_belongs_to_a_found_process_is_not_asked(launch):
    process, port, _ = launch("m", output=subprocess.DEVNULL)
    discovered = find((port,))
    assert the_one(discovered, process).server == f"127.0.0.1:{port}"
    assert results(discovered, "ports") == []
    assert f"port 127.0.0.1:{port}" not in dict(discovered.looked_for)


@pytest.mark.parametrize(
    ("reply", "patience", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", AMPLE, "answers, but not in plain HTTP"),
        (b"", 0.3, "listens, but does not answer in time"),
        (b"HTTP/1.1 200 OK\r\n\r\ndrip", 2.0, "answers, but with no metric of vLLM or SGLang"),
    ],
)
def test_a_port_that_does_not_finish_is_given_up_and_described(reply, patience, words):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        accepted = []

        def answer():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                accepted.append(connection)
                second, _ = server.accept()
                accepted.append(second)
                second.sendall(reply)
                if patience == AMPLE:
                    second.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        begun = time.monotonic()
        discovered = find((port,), patience)
        assert time.monotonic() - begun < AMPLE / 2
        assert dict(discovered.looked_for)[f"port 127.0.0.1:{port}"] == words
        thread.join(20)
        for connection in accepted:
            connection.close()


def test_an_empty_machine_is_told_what_was_looked_for():
    port = free_port()
    rows = dict(find((port,)).looked_for)
    assert "servers" in rows["processes"]
    assert rows[f"ports {port} on 127.0.0.1"] == "none listens"


def test_only_ports_that_listen_are_open():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        closed = free_port()
        assert open_ports([port, closed]) == (port,)


def test_a_look_without_time_says_so():
    discovered = Discovery(SystemClock(), (1,)).find(seconds=0.0)
    assert discovered.engines == ()
    assert any("no time was left" in result for _, result in discovered.looked_for)


def test_discovery_does_not_leave_sockets_or_threads_behind(serve):
    server = serve(404, b"")
    me = psutil.Process()
    find((server.server_address[1],))
    before = me.num_fds()
    for _ in range(3):
        find((server.server_address[1],))
    assert me.num_fds() <= before + 1
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("discovery")] == []
