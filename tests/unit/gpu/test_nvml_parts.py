from __future__ import annotations

import ctypes
import random
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest

from gpuwatch.model import Reason
from gpuwatch.sources.nvml import device as device_module
from gpuwatch.sources.nvml import reasons
from gpuwatch.sources.nvml.fields import _FieldValue, _Value
from gpuwatch.sources.nvml.gpus import Gpu
from gpuwatch.sources.nvml.wire import MAX_LINE, Decoder, encode


def test_field_values_are_laid_out_as_in_the_binding():
    theirs = pynvml.c_nvmlFieldValue_t
    assert ctypes.sizeof(_FieldValue) == ctypes.sizeof(theirs)
    for name, _ in theirs._fields_:
        ours, other = getattr(_FieldValue, name), getattr(theirs, name)
        assert (ours.offset, ours.size) == (other.offset, other.size)
    assert [name for name, _ in _Value._fields_] == [name for name, _ in pynvml.c_nvmlValue_t._fields_]


def test_messages_survive_any_cut_of_the_stream():
    messages = [["hello", "580.1", 2], ["tick", "0", 1.5, "ok", 1, [1.0, 2.5], [[7, None]]], ["beat", 2.0, {}]]
    stream = b"".join(map(encode, messages))
    dice = random.Random(4)  # a fixed sequence of cuts
    for _ in range(50):
        decoder, found, at = Decoder(), [], 0
        while at < len(stream):
            size = dice.randint(1, 20)
            found += decoder.feed(stream[at : at + size])
            at += size
        assert found == messages


def test_garbage_between_messages_is_counted_and_left_out():
    decoder = Decoder()
    data = b"Traceback\n{}\n[1]\n[]\n\xff\xfe\n" + encode(["beat", 1.0, {}])
    assert decoder.feed(data) == [["beat", 1.0, {}]]
    assert decoder.unreadable == 5


def test_an_endless_line_does_not_fill_the_memory():
    decoder = Decoder()
    for _ in range(40):
        decoder.feed(b"x" * (MAX_LINE // 16))
    assert len(decoder._rest) <= MAX_LINE
    decoder.feed(b"\n")
    assert decoder.feed(encode(["beat", 1.0, {}])) == [["beat", 1.0, {}]]


def reading(gpu, at, used, low, high):
    gpu.set_keys(1, ["memory_used_bytes", "memory_used_low_bytes", "memory_used_high_bytes"], {})
    gpu.take(at, "ok", 1, [used, low, high], None)


def test_extremes_of_two_readings_between_two_polls_are_joined():
    gpu = Gpu("h", "GPU-1", "0")
    reading(gpu, 1.0, 50.0, 40.0, 90.0)
    reading(gpu, 2.0, 55.0, 45.0, 60.0)
    assert gpu.readings()[1] == [55.0, 40.0, 90.0]
    reading(gpu, 3.0, 56.0, 55.0, 57.0)
    assert gpu.readings()[1] == [56.0, 55.0, 57.0]


def test_a_poll_without_a_new_reading_repeats_the_last_one():
    gpu = Gpu("h", "GPU-1", "0")
    reading(gpu, 1.0, 50.0, 40.0, 90.0)
    assert gpu.readings() == gpu.readings()


def test_a_reading_whose_keys_are_not_known_is_left_out():
    gpu = Gpu("h", "GPU-1", "0")
    reading(gpu, 1.0, 50.0, 40.0, 90.0)
    gpu.take(2.0, "ok", 2, [1.0, 2.0, 3.0], None)
    gpu.take(2.0, "ok", 1, [1.0], None)
    assert gpu.answered == 1.0


def test_a_gpu_hangs_when_its_last_answer_is_too_old():
    gpu = Gpu("h", "GPU-1", "0")
    assert gpu.state(0.0, 3.0, hanging=True) == "hung"
    assert gpu.state(0.0, 3.0, hanging=False) == "late"
    reading(gpu, 10.0, 1.0, 1.0, 1.0)
    assert gpu.state(13.0, 3.0, hanging=True) == "ok"
    assert gpu.state(13.1, 3.0, hanging=True) == "hung"
    assert gpu.state(13.1, 3.0, hanging=False) == "late"
    gpu.stuck = ("nvmlDeviceGetX", 3.0)
    assert gpu.state(13.1, 3.0, hanging=False) == "hung"
    gpu.present = False
    assert gpu.state(13.0, 3.0, hanging=True) == "lost"


@pytest.mark.parametrize(
    ("code", "container", "reason", "detail"),
    [
        (12, False, Reason.NO_DRIVER, "no NVIDIA driver: libnvidia-ml.so.1 not found"),
        (
            12,
            True,
            Reason.NO_DRIVER,
            "no NVIDIA driver: libnvidia-ml.so.1 not found; start the container with --gpus all",
        ),
        (999, False, Reason.FAILED, "NVML says Unknown Error (nvmlInit)"),
        (
            999,
            True,
            Reason.FAILED,
            "NVML says Unknown Error (nvmlInit); after systemctl daemon-reload a container has to be restarted",
        ),
        (23, False, Reason.FAILED, "NVML: NVML error 23 (nvmlInit)"),
    ],
)
def test_reasons_say_what_helps(code, container, reason, detail):
    assert reasons.failure_detail(code, "nvmlInit", container=container) == detail
    assert reasons.reason_of(code) is reason


def test_the_worker_loads_nothing_heavy():
    code = (
        "import sys\n"
        "import gpuwatch.sources.nvml.worker, gpuwatch.sources.nvml.device\n"
        "heavy = {'numpy', 'psutil', 'requests', 'textual', 'dataclasses', 'asyncio', 'yaml', 'subprocess'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert loaded.stdout.strip() == "[]"


def test_the_search_for_libraries_that_the_worker_does_without_is_there_when_it_is_called():
    code = (
        "import gpuwatch.sources.nvml.api as api, ctypes.util\n"
        "name = api.pynvml.find_library('c')\n"
        "print(name == ctypes.util.find_library('c'), hasattr(ctypes.util, 'test'))\n"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert loaded.stdout.strip() == "True True"


def test_the_parent_never_loads_the_library():
    code = "import sys, gpuwatch.sources.nvml\nprint('pynvml' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert loaded.stdout.strip() == "False"


def test_a_tick_that_falls_into_a_pause_comes_with_the_next_step_and_the_grid_stays(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(device_module.time, "monotonic", lambda: now[0])
    device = device_module.Device(0, (580,), send=print, give_up=print, events=None, interval=1.0)
    device.due = 100.0
    ticks = []
    monkeypatch.setattr(device, "tick", lambda: ticks.append(round(now[0], 3)))
    while device.due < 103.05:
        late = 0.55 if round(device.due, 3) == 100.9 else 0.0  # the processor is away
        now[0] = device.due + late
        device.step()
    assert ticks == [100.0, 101.5, 102.0, 103.0]


@pytest.mark.parametrize(("interval", "ticks"), [(0.1, 10), (1.0, 10), (2.0, 5), (3.0, 3), (5.0, 2), (15.0, 1)])
def test_slow_values_are_read_every_tenth_tick_and_no_further_apart_than_ten_seconds_or_one_tick(interval, ticks):
    assert device_module.slow_ticks(interval) == ticks
    assert ticks == 1 or ticks * interval <= 10


def test_a_link_is_read_again_within_ten_seconds_at_an_interval_of_five(monkeypatch):
    device = device_module.Device(0, (580,), send=print, give_up=print, events=None, interval=5.0)
    read = []
    slow = lambda _: read.append(device.asker.tick) or {}  # noqa: E731
    readings = SimpleNamespace(retry=bool, fast=lambda *_: {}, slow=slow)
    monkeypatch.setattr(device, "_readings", readings, raising=False)
    monkeypatch.setattr(device, "_rare", (), raising=False)
    monkeypatch.setattr(device, "_find_migs", bool)
    unit = SimpleNamespace(memory_values=dict)
    for tick in range(1, 7):
        device.asker.tick = tick
        device._read(unit)
    assert read == [1, 2, 4, 6]
