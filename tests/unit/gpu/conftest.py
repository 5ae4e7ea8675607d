"""A machine with fake GPUs and the real source before it: own process, own worker, unmodified pynvml."""

from __future__ import annotations

import time

import pytest
from fakenvml.machine import FakeNvml

from gpuwatch.clock import SystemClock
from gpuwatch.model import label, name_of
from gpuwatch.sources.nvml.source import NvmlSource, Timing

FAST = Timing(interval=0.1, missed_ticks=6, least_late=0.0, first_delay=0.1, last_delay=0.4, start_wait=5.0)


class Watched:
    """A source on a fake machine, with short ways to look at its batches."""

    def __init__(self, fake, *, timing=FAST, engines=tuple, env=None):
        self.fake = fake
        self.timing = timing
        self.source = NvmlSource("node-1", SystemClock(), engines, timing=timing, env={**fake.env(), **(env or {})})
        self.batch = None

    def poll(self):
        self.batch = self.source.poll()
        return self.batch

    def until(self, condition, seconds=30.0):
        """Poll until `condition` holds; fail with the last batch otherwise."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.poll()
            if condition():
                return self.batch
            time.sleep(0.03)
        values = {name: self.value(name) for name in sorted(self.names())}
        pytest.fail(f"never happened: {self.batch.up} {self.batch.reason} {self.batch.detail} {values}")

    def value(self, name, gpu="0", **labels):
        """Return one value by metric name and GPU index, or None when it is absent."""
        for key, value in zip(self.batch.keys, self.batch.values, strict=True):
            if (
                name_of(key) == f"gpuwatch_gpu_{name}"
                and label(key, "gpu") == gpu
                and all(label(key, k) == v for k, v in labels.items())
            ):
                return value
        return None

    def host_value(self, name):
        for key, value in zip(self.batch.keys, self.batch.values, strict=True):
            if name_of(key) == name:
                return value
        return None

    def names(self, gpu="0"):
        return {name_of(key).removeprefix("gpuwatch_gpu_") for key in self.batch.keys if label(key, "gpu") == gpu}

    def labels(self, name, gpu="0"):
        for key in self.batch.keys:
            if name_of(key) == f"gpuwatch_gpu_{name}" and label(key, "gpu") == gpu:
                return dict(key)
        return None

    def state(self, gpu="0"):
        """Return the one state that is 1."""
        states = [
            label(key, "state")
            for key, value in zip(self.batch.keys, self.batch.values, strict=True)
            if name_of(key) == "gpuwatch_gpu_state" and label(key, "gpu") == gpu and value == 1
        ]
        assert len(states) <= 1
        return states[0] if states else None

    def absent(self, name, gpu="0"):
        """Return (reason, detail) of an absence, or None."""
        for absence in self.batch.absent:
            if name_of(absence.labels) == f"gpuwatch_gpu_{name}" and label(absence.labels, "gpu") == gpu:
                return absence.reason, absence.detail
        return None


@pytest.fixture
def machine(tmp_path):
    """Return a function that makes a fake machine."""

    def make(gpus=2, variant="full"):
        return FakeNvml(tmp_path / "nvml-state", gpus=gpus, variant=variant)

    return make


@pytest.fixture
def watch():
    """Return a function that starts a source; all are closed at the end."""
    started = []

    def start(fake, **options):
        watched = Watched(fake, **options)
        started.append(watched)
        return watched

    yield start
    for watched in started:
        watched.source.close()
