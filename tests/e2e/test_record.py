"""Recordings of a real vLLM server: what was found live is found in the replay, at the same times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from fakenvml.machine import FakeNvml
from simulated_gpus import SimulatedGpus
from vllm_server import Load, tokens
from watcher import CONFIG, GPUWATCH, ROOT, Check

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.pipeline.replay import replay
from gpuwatch.recording import Reader

WATCHED = 32.0


def environment(fake):
    return {**os.environ, **CONFIG, **fake.env()}


def storm(server, gpus):
    """More requests than the pool holds."""
    load_ = Load()
    load_.burst(server, 16, 600, 1500, seed=5)
    return load_


def illegal_access(server, gpus):
    """A little work, and a program that reads where it may not."""
    load_ = Load()
    load_.steady(server, 1, 200, 50)
    gpus.fake.xid(1, 31)
    return load_


def off_the_bus(server, gpus):
    """A little work, and a card that falls off the bus."""
    load_ = Load()
    load_.steady(server, 1, 200, 50)
    gpus.fake.xid(1, 79)
    gpus.hold(1, dev_err=15)
    return load_


def key(finding):
    return finding["id"], finding["since"], tuple(sorted(finding["labels"].items()))


@pytest.mark.parametrize("scenario", [storm, illegal_access, off_the_bus], ids=lambda scenario: scenario.__name__)
def test_a_replay_finds_what_was_found_live_at_the_same_times(small_pool, tmp_path, scenario):
    fake = FakeNvml(tmp_path / "gpus", gpus=2)
    gpus = SimulatedGpus(fake, small_pool, 2)
    gpus.start()
    path = tmp_path / "run.rec"
    check = Check(
        "--engine", small_pool.url, "--log", str(small_pool.log), "--record", str(path), seconds=WATCHED, env=fake.env()
    )
    time.sleep(8)
    work = scenario(small_pool, gpus)
    try:
        live = check.result()
    finally:
        work.stop(timeout=60)
        gpus.close()
    done = subprocess.run(
        [*GPUWATCH, "diagnose", "--json", str(path)], cwd=ROOT, env=environment(fake), capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    replayed = json.loads(done.stdout)
    assert live["findings"]
    assert {key(finding) for finding in replayed["findings"]} == {key(finding) for finding in live["findings"]}


def test_a_killed_recorder_loses_less_than_two_seconds_and_goes_on(small_pool, tmp_path):
    fake = FakeNvml(tmp_path / "gpus", gpus=2)
    path = tmp_path / "run.rec"
    command = [*GPUWATCH, "record", str(path), "--engine", small_pool.url, "--quiet", "--append"]
    lasts = []
    for length in (6.0, 7.3, 8.6):
        process = subprocess.Popen(command, cwd=ROOT, env=environment(fake))
        time.sleep(length)
        small_pool.complete(tokens(50, 1), 5)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        killed = time.time()
        last = max(tick.time for tick in Reader(path).ticks()) / 1000
        assert killed - 2.0 <= last <= killed
        lasts.append(last)
    assert lasts == sorted(lasts)
    assert list(replay(path, load(shipped_paths())))
