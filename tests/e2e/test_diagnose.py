"""Every failure that a real vLLM on the CPU can be driven into, told from its log alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from vllm_server import CACHE, MODEL, ROOT, VllmServer, link_model, tokens
from watcher import GPUWATCH

START_SECONDS = 240


@dataclass(frozen=True, slots=True)
class Failure:
    """A start that fails: its flags, the finding it has to give, and words that must be in cause or advice."""

    flags: tuple[str, ...]
    id: str
    words: tuple[str, ...]
    model: str = MODEL


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
    server = VllmServer(list(failure.flags), folder / f"{name.replace(' ', '-')}.log", model=failure.model)
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


def diagnose(*files: str) -> list[dict]:
    done = subprocess.run(
        [*GPUWATCH, "diagnose", "--json", *files], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)["findings"]


def judge(found: list[dict], id_: str, *words: str) -> None:
    first = found[0]
    text = json.dumps(first, ensure_ascii=False)
    assert first["id"] == id_, text
    assert first["evidence"]
    assert any(piece.get("line") for piece in first["evidence"])
    for word in words:
        assert word in text


@pytest.mark.parametrize("name", FAILURES)
def test_a_start_that_fails_is_told_from_its_log(logs, name):
    failure = FAILURES[name]
    judge(diagnose(logs[name]), failure.id, *failure.words)


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = VllmServer(["--max-model-len", "1024"], tmp_path / "vllm.log", port=taken.getsockname()[1])
        try:
            server.process.wait(START_SECONDS)
        finally:
            server.stop()
    judge(diagnose(str(server.log)), "port_in_use", str(server.port))


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
    judge(diagnose(str(server.log)), "worker_died")
