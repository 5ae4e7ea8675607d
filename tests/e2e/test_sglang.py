"""Real SGLang servers on the CPU: a retraction storm, prefix hits, and a scheduler that dies behind a living page."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from detected import detect
from fakenvml.machine import IDLE, FakeNvml
from follow import Follow
from postmortem import above_info, diagnose, judge
from sglang_server import SglangServer
from vllm_server import tokens
from watcher import Check, ids

from gpuwatch.model import name_of
from gpuwatch.recording import Reader

POOL_TOKENS = 4500
POOL = ["--max-total-tokens", str(POOL_TOKENS), "--context-length", "4096", "--enable-cache-report"]
STORM_SECONDS = 40
"""Two retractions within this time are a storm; the rule looks back over a minute."""
CARELESS = ["--schedule-conservativeness", "0.02"]
"""Admits requests as if they would hardly grow, so that a burst outgrows the pool."""


def serve(folder: Path, flags: list[str], version: str = "0.5.23"):
    server = SglangServer(flags, folder / "sglang.log", version)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def newest(tmp_path_factory):
    yield from serve(tmp_path_factory.mktemp("sglang"), [*POOL, *CARELESS])


@pytest.fixture(scope="module")
def oldest(tmp_path_factory):
    yield from serve(tmp_path_factory.mktemp("sglang"), [*POOL, *CARELESS], "0.4.6")


@pytest.fixture
def gpus(tmp_path):
    """Two healthy GPUs that nobody uses, so that there is always something to be wrong about."""
    fake = FakeNvml(tmp_path / "gpus", gpus=2)
    for gpu in range(2):
        fake.set(gpu, **IDLE, pcie_width=16)
    return fake


def background(work, count, gap=0.0):
    threads = []
    for number in range(count):
        thread = threading.Thread(target=work, args=(number,), daemon=True)
        thread.start()
        threads.append(thread)
        time.sleep(gap)
    return threads


def retract(server, line, *, to_the_end):
    """Send bursts of requests that each want more than they were admitted with, until the log tells two retractions.

    Returns when it did, in seconds since the epoch. One retraction is no storm, nor are two that are a minute apart.
    """
    told = []
    for seed in range(6):
        background(
            lambda n, seed=seed: server.generate(tokens(250, 100 * seed + n), 900, 200, to_the_end=to_the_end),
            16,
            gap=0.05,
        )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            fresh = server.log.read_text(errors="replace").count(line) - len(told)
            told += [time.time()] * fresh
            if len(told) >= 2 and told[-1] - told[-2] < STORM_SECONDS:
                return told[-1]
            time.sleep(0.2)
    raise AssertionError(f"{line!r} did not come twice within {STORM_SECONDS} s into {server.log}: {told}")


def last_value(recording, name):
    """The newest value of a series of which there is one."""
    value = None
    for tick in Reader(recording).ticks():
        for batch in tick.batches:
            found = [v for key, v in zip(batch.keys, batch.values, strict=True) if name_of(key) == name]
            value = found[0] if found else value
    return value


def test_a_moderate_load_with_prefix_hits_is_silent_and_the_hits_are_counted_as_the_engine_reports_them(
    newest, gpus, tmp_path
):
    record = tmp_path / "hits.rec"
    head = tokens(800, 3)
    newest.generate([*head, *tokens(20, 1)], 8)
    watched = Check(
        "--engine", newest.url, "--log", str(newest.log), "--record", str(record), seconds=45, env=gpus.env()
    )
    time.sleep(5)
    hits = []
    deadline = time.monotonic() + 32
    while time.monotonic() < deadline:
        hits.append(newest.generate([*head, *tokens(20, 100 + len(hits))], 40))
    report = watched.result()
    assert len(hits) >= 3
    assert min(hits) >= 800
    assert ids(report) == []
    # the page is behind by what was answered before the first and after the last poll
    counted = last_value(record, "gpuwatch_engine_prefix_cache_hits_total")
    assert sum(hits) * 0.8 <= counted <= sum(hits) + 820
    assert above_info(newest.log) == []


def test_a_retraction_storm_is_named_with_the_flags_of_sglang(newest, gpus):
    with Follow("--engine", newest.url, "--log", str(newest.log), env=gpus.env()) as watch:
        watch.lead()
        begun = time.time()
        second = retract(newest, "Retract requests", to_the_end=False)
        scenario = ("16 requests on 4,500 tokens", "SGLang 0.5.23")
        view = detect(watch, "sglang_retraction_storm", scenario, second, 15, begun=begun)
    storm = view.finding("sglang_retraction_storm")
    assert storm["severity"] == "critical"
    assert view.firing()[0] == "sglang_retraction_storm"
    assert storm["since"] / 1000 >= begun
    flags = {item["flag"] for item in storm["advice"]}
    assert {"--max-total-tokens", "--max-running-requests"} <= flags
    assert not [flag for flag in flags if flag in ("--max-num-seqs", "--num-gpu-blocks-override")]
    assert "4,500" in storm["cause"]


def test_before_0_5_7_the_log_alone_names_the_storm(oldest, gpus):
    with Follow("--engine", oldest.url, "--log", str(oldest.log), env=gpus.env()) as watch:
        watch.lead()
        begun = time.time()
        second = retract(oldest, "Decode out of memory happened", to_the_end=True)
        scenario = ("the same, no counter", "SGLang 0.4.6")
        view = detect(watch, "sglang_retraction_storm", scenario, second, 15, begun=begun)
    storm = view.finding("sglang_retraction_storm")
    assert view.firing()[0] == "sglang_retraction_storm"
    assert "--max-num-seqs" not in {item["flag"] for item in storm["advice"]}


def test_a_dead_scheduler_behind_a_page_that_still_answers_is_a_stall(oldest, gpus):
    wait_for_idle(oldest, 240)
    warm_up(oldest)
    with Follow("--engine", oldest.url, env=gpus.env()) as watch:
        watch.lead()
        background(lambda n: oldest.generate(tokens(300, 50 + n), 900, 100, to_the_end=True), 3)
        time.sleep(4)
        oldest.scheduler().kill()
        killed = time.time()
        view = detect(watch, "engine_stalled", ("scheduler killed, page answers", "SGLang 0.4.6"), killed, 15)
        assert oldest.healthy()
    stalled = view.finding("engine_stalled")
    assert view.firing()[0] == "engine_stalled"
    assert "engine_down" not in watch.ever()
    assert stalled["severity"] == "critical"
    assert any("page" in item["text"] for item in stalled["evidence"])


def test_a_dead_scheduler_that_takes_the_server_with_it_is_an_engine_that_is_down(newest, gpus):
    wait_for_idle(newest, 240)
    with Follow("--engine", newest.url, "--log", str(newest.log), env=gpus.env()) as watch:
        watch.lead()
        background(lambda n: newest.generate(tokens(300, 70 + n), 900, 100, to_the_end=True), 3)
        time.sleep(4)
        killed = time.time()
        newest.scheduler().kill()
        deadline = time.monotonic() + 30
        while newest.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        gone = time.time()
        scenario = ("scheduler killed, server ends", "SGLang 0.5.23")
        view = detect(watch, "engine_down", scenario, gone, 15, begun=killed)
    down = view.finding("engine_down")
    assert down["severity"] == "critical"
    # the log says which process died and of what signal: that is the cause
    assert view.firing()[0] == "worker_died"
    assert down["caused_by"] == "worker_died"
    assert "SIGKILL" in view.finding("worker_died")["cause"]
    judge(diagnose(newest.log), "worker_died", "SIGKILL")


def warm_up(server):
    """Let the engine generate so many tokens that silence is no longer taken for compiling."""
    while server.page()("sglang:generation_tokens_total") <= 10_500:
        for thread in background(lambda n: server.generate(tokens(50, 200 + n), 500, 100, to_the_end=True), 4):
            thread.join(100)


def wait_for_idle(server, seconds):
    """Wait until a short request is answered at once."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        begun = time.monotonic()
        if server.generate(tokens(20, 9), 4, 60) >= 0 and time.monotonic() - begun < 2:
            return
        time.sleep(1)
    raise AssertionError("the server is still busy")
