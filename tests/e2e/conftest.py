from __future__ import annotations

import detected
import pytest
from vllm_server import VllmServer


def _serve(tmp_path_factory, flags, ranks=1):
    server = VllmServer(flags, tmp_path_factory.mktemp("vllm") / "vllm.log", ranks)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def small_pool(tmp_path_factory):
    """A server whose pool of 40 blocks (5,120 tokens) was forced, with 16 sequences admitted."""
    flags = ["--max-model-len", "4096", "--num-gpu-blocks-override", "40", "--max-num-seqs", "16"]
    yield from _serve(tmp_path_factory, flags)


@pytest.fixture(scope="module")
def ample_pool(tmp_path_factory):
    """A server whose pool holds what it admits."""
    flags = ["--max-model-len", "4096", "--num-gpu-blocks-override", "400", "--max-num-seqs", "8"]
    yield from _serve(tmp_path_factory, flags)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """A tensor-parallel server of two ranks."""
    flags = ["--max-model-len", "4096", "--num-gpu-blocks-override", "400", "--max-num-seqs", "8"]
    yield from _serve(tmp_path_factory, flags, ranks=2)


def pytest_terminal_summary(terminalreporter):
    """Print what the scenarios of this run detected, and keep it."""
    rows = detected.lines()
    if rows:
        detected.save()
        terminalreporter.section("seconds to detect")
        terminalreporter.write(detected.text(rows))
