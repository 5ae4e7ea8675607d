"""Every failure that real servers on the CPU can be driven into, told from their logs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from postmortem import diagnose, judge
from sglang_server import SglangServer
from vllm_server import CACHE, MODEL, VllmServer, link_model, tokens

START_SECONDS = 240


@dataclass(frozen=True, slots=True)
class Failure:
    """A start that fails: its flags, the finding it has to give, and words that must be in cause or advice."""

    flags: tuple[str, ...]
    id: str
    words: tuple[str, ...]
    model: str = MODEL
    kind: type[VllmServer | SglangServer] = VllmServer


FAILURES = {
    "a flag that does not exist": Failure(("--max-modl-len", "4096"), "flag_unknown", ("--max-model-len",)),
    "a model that is not there": Failure((), "model_not_found", ("no-such-model",), model="./no-such-model"),
    "a length above the model's own": Failure(("--max-model-len", "65536"), "rope_context", ("65,536", "32,768")),
    "a type that the model does not bear": Failure(
        ("--max-model-len", "1024", "--dtype", "float16"),
        "dtype_unsupported",
        ("model type gemma2", "float16", "bfloat16"),
        model="./gemma",
    ),
    "a pool that does not hold one request": Failure(
        ("--max-model-len", "32768", "--num-gpu-blocks-override", "40"),
        "max_model_len_exceeds_kv",
        ("32,768", "4,992", "--num-gpu-blocks-override"),
    ),
    "a flag that SGLang does not have": Failure(
        ("--contxt-length", "4096"), "flag_unknown", ("--context-length",), kind=SglangServer
    ),
    "a model that SGLang does not find": Failure(
        (), "model_not_found", ("no-such-model",), model="./no-such-model", kind=SglangServer
    ),
    "a length above the model's own for SGLang": Failure(
        ("--context-length", "65536"), "rope_context", ("65,536", "32,768"), kind=SglangServer
    ),
    "a type that SGLang does not have": Failure(("--dtype", "int4"), "flag_unknown", ("int4",), kind=SglangServer),
    "a fraction that leaves SGLang no pool": Failure(
        ("--mem-fraction-static", "0.00001"), "no_kv_blocks", ("--mem-fraction-static",), kind=SglangServer
    ),
    "a pool of SGLang that its own warm-up does not fit into": Failure(
        ("--max-total-tokens", "16"), "kv_pool_undersized", ("--max-total-tokens", "32,768"), kind=SglangServer
    ),
}


def make_gemma(folder: Path) -> None:
    """Put a model that vLLM refuses to compute in 16-bit floats into `folder`: the small one under another name."""
    (folder / "gemma").mkdir()
    for file in (CACHE / MODEL).iterdir():
        if file.suffix in (".json", ".model", ".jinja"):
            shutil.copy(file, folder / "gemma")
    path = folder / "gemma/config.json"
    config = json.loads(path.read_text())
    config |= {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}
    path.write_text(json.dumps(config))


def ended(name: str, folder) -> str:
    """Start a server that has to fail, and return its log."""
    failure = FAILURES[name]
    server = failure.kind(list(failure.flags), folder / f"{name.replace(' ', '-')}.log", model=failure.model)
    try:
        server.process.wait(START_SECONDS)
    finally:
        server.stop()
    return str(server.log)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failures")
    link_model(folder)
    make_gemma(folder)
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(FAILURES, pool.map(lambda name: ended(name, folder), FAILURES), strict=True))


@pytest.mark.parametrize("name", FAILURES)
def test_a_start_that_fails_is_told_from_its_log(logs, name):
    failure = FAILURES[name]
    judge(diagnose(logs[name]), failure.id, *failure.words)


@pytest.mark.parametrize(("kind", "flags"), [(VllmServer, ["--max-model-len", "1024"]), (SglangServer, [])])
def test_a_port_that_is_taken(kind, flags, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = kind(flags, tmp_path / "server.log", port=taken.getsockname()[1])
        deadline = time.monotonic() + START_SECONDS
        try:
            # SGLang says so and stays there without a port.
            while server.process.poll() is None and "ddress already in use" not in server.log.read_text("utf-8"):
                assert time.monotonic() < deadline
                time.sleep(0.2)
            time.sleep(1)
        finally:
            server.stop()
    judge(diagnose(server.log), "port_in_use", str(server.port))


class Cgroup:
    """A control group with a limit on memory, of either version; where the machine does not permit one, no test."""

    def __init__(self, limit: int) -> None:
        top, name = Path("/sys/fs/cgroup"), "memory.max"
        if (top / "memory").is_dir():
            top, name = top / "memory", "memory.limit_in_bytes"
        self.folder = top / f"gpuwatch-test-{os.getpid()}"
        try:
            self.folder.mkdir()
            (self.folder / name).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no control group with a limit can be made here: {error}")

    def take(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                self.folder.rmdir()
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            else:
                return


def kernel_log() -> str:
    done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        pytest.skip(f"the kernel's log cannot be read here: {done.stderr.strip()}")
    return done.stdout


def test_a_limit_on_the_memory_of_the_host(tmp_path):
    before = kernel_log().splitlines()
    group = Cgroup(int(1.8 * 2**30))
    server = VllmServer(["--max-model-len", "1024"], tmp_path / "vllm.log")
    try:
        group.take(server.process.pid)
        server.process.wait(START_SECONDS)
    finally:
        server.stop()
        group.close()
    new = kernel_log().splitlines()
    new = new[new.index(before[-1]) + 1 :] if before and before[-1] in new else new
    (tmp_path / "dmesg.txt").write_text("\n".join(new) + "\n")
    judge(diagnose(server.log, tmp_path / "dmesg.txt"), "host_memory_oversubscribed", "VLLM::", "cgroup")


def test_an_engine_core_that_is_killed_while_it_serves(tmp_path):
    server = VllmServer(["--max-model-len", "1024"], tmp_path / "vllm.log")
    try:
        server.wait_ready()
        assert server.complete(tokens(100, 1), 8) == 100
        (core,) = [one for one in server.processes() if "VLLM::EngineCore" in " ".join(one.cmdline())]
        os.kill(core.pid, signal.SIGKILL)
        server.process.wait(60)
    finally:
        server.stop()
    judge(diagnose(server.log), "worker_died")
