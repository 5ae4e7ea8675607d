"""Fake GPUs at the real pace: a hung driver call is named in time, silences only its own GPU, and stops nothing."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time

import pytest
from fakenvml.machine import FakeNvml
from watcher import GPUWATCH, ROOT, Check, ids

from gpuwatch.model import label, name_of
from gpuwatch.recording import Reader

HANG_SECONDS = 30


@pytest.fixture
def alone(tmp_path):
    path = tmp_path / "alone.toml"
    path.write_text('host = "node"\ndiscovery = false\nkernel_log = "off"\n')
    return str(path)


def fresh_ticks(path, gpu):
    """Times in seconds of the ticks in which `gpu` had a reading of its memory."""
    return [
        tick.time / 1000
        for tick in Reader(path).ticks()
        for batch in tick.batches
        if batch.target == "nvml"
        and any(name_of(k) == "gpuwatch_gpu_memory_used_bytes" and label(k, "gpu") == gpu for k in batch.keys)
    ]


def test_one_hung_gpu_is_named_within_ten_seconds_and_the_others_stay_fresh(tmp_path, alone):
    fake = FakeNvml(tmp_path / "gpus", gpus=3)
    record = tmp_path / "hang.rec"
    check = Check("--config", alone, "--record", str(record), seconds=26, env=fake.env())
    time.sleep(8)
    hung_at = time.time()
    fake.fail("nvmlDeviceGetMemoryInfo_v2", gpu=1, delay_ms=HANG_SECONDS * 1000)
    report = check.result()
    finding = next(f for f in report["findings"] if f["id"] == "driver_unresponsive")
    print(f"named {finding['since'] / 1000 - hung_at:.1f} s after the call hung")
    assert finding["since"] / 1000 - hung_at <= 10
    assert finding["labels"]["gpu"] == "1"
    assert "driver_unresponsive" in ids(report)
    for gpu in ("0", "2"):
        times = [t for t in fresh_ticks(record, gpu) if t > hung_at]
        assert len(times) >= 12
        assert max(b - a for a, b in itertools.pairwise(times)) < 3
    assert not [t for t in fresh_ticks(record, "1") if t > hung_at + 6]


def test_ctrl_c_works_at_once_while_a_call_hangs(tmp_path, alone):
    fake = FakeNvml(tmp_path / "gpus", gpus=2)
    process = subprocess.Popen(
        [*GPUWATCH, "check", "--for", "600", "--config", alone], cwd=ROOT, env={**os.environ, **fake.env()},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(4)
    fake.fail("nvmlDeviceGetUtilizationRates", gpu=0, delay_ms=HANG_SECONDS * 1000)
    time.sleep(3)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    took = time.monotonic() - begun
    print(f"ended {took:.2f} s after Ctrl-C")
    assert process.returncode == 130
    assert took < 3
    assert "Traceback" not in err


def test_a_lost_gpu_is_critical_and_the_pre_allocated_rest_is_silent(tmp_path, alone):
    fake = FakeNvml(tmp_path / "gpus", gpus=8)
    for gpu in range(8):
        fake.set(gpu, pcie_gen=5, pcie_width=16)
    check = Check("--config", alone, seconds=20, env=fake.env())
    time.sleep(6)
    fake.set(5, dev_err=15)
    report = check.result()
    assert ids(report, above_info=True) == ["gpu_lost"]
    assert report["findings"][0]["labels"]["gpu"] == "5"
    assert report["exit"] == 1


def test_the_doctor_sees_the_gpus(tmp_path, alone):
    fake = FakeNvml(tmp_path / "gpus", gpus=2)
    done = subprocess.run(
        [*GPUWATCH, "doctor", "--json", "--config", alone], cwd=ROOT, env={**os.environ, **fake.env()},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    gpus = [c for c in json.loads(done.stdout)["checks"] if c["area"] == "gpu" and c["status"] == "ok"]
    assert done.returncode == 0
    assert [c["what"] for c in gpus] == ["GPU 0", "GPU 1"]
    assert "580.95.05" in gpus[0]["detail"]
