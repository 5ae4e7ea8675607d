"""What ``gpuwatch doctor`` says of GPUs that cannot be read."""

from __future__ import annotations

import pytest

from gpuwatch.cli import doctor
from gpuwatch.clock import ManualClock
from gpuwatch.config import Config
from gpuwatch.model import Batch, Reason, series
from gpuwatch.sources.nvml import source as nvml


def gpus(clock):
    return list(doctor._gpus(Config(), clock))


def state(gpu, name):
    return series("gpuwatch_gpu_state", uuid=f"GPU-{gpu}", gpu=gpu, state=name)


@pytest.fixture
def script(monkeypatch):
    """Let NVML give these batches, the last one for ever; a hang takes seconds to be known."""

    def install(*batches, counted=None):
        rest = list(batches)

        class Scripted:
            count = counted

            def __init__(self, host, clock):
                pass

            def poll(self):
                return rest.pop(0) if len(rest) > 1 else rest[0]

            def close(self):
                pass

        monkeypatch.setattr(nvml, "NvmlSource", Scripted)

    return install


def test_a_gpu_that_has_said_nothing_yet_is_waited_for_until_its_hang_is_known(script):
    used = series("gpuwatch_gpu_memory_used_bytes", uuid="GPU-0", gpu="0")
    early = Batch("nvml", 0, (state("0", "ok"), used, state("1", "late")), (1.0, 5.0, 1.0), detail="GPU 1: late")
    detail = "GPU 1: nvmlDeviceGetUtilizationRates has not returned for 3 s"
    hung = Batch("nvml", 0, (state("0", "ok"), used, state("1", "hung")), (1.0, 5.0, 1.0), detail=detail)
    script(early, early, hung)
    checks = {check.what: check for check in gpus(ManualClock(0))}
    assert [(what, check.status) for what, check in checks.items()] == [
        ("GPU 0", "ok"),
        ("GPU 1", "problem"),
        ("NVML", "problem"),
    ]
    assert checks["NVML"].detail == detail
    assert checks["GPU 1"].fix


def test_a_gpu_that_the_driver_counts_and_that_hangs_before_it_says_its_name_is_waited_for(script):
    early = Batch("nvml", 0, (state("0", "ok"),), (1.0,))
    hung = Batch("nvml", 0, (state("0", "ok"), state("1", "hung")), (1.0, 1.0), detail="GPU 1: hangs")
    script(early, early, early, hung, counted=2)
    checks = {check.what: check for check in gpus(ManualClock(0))}
    assert {what: check.status for what, check in checks.items()} == {
        "GPU 0": "ok",
        "GPU 1": "problem",
        "NVML": "problem",
    }
    assert checks["GPU 1"].detail.startswith("hung")


def test_a_gpu_that_the_driver_counts_and_that_never_says_a_thing_is_a_problem(script):
    # The MIG device of the first GPU is none that the driver counts.
    script(Batch("nvml", 0, (state("0", "ok"), state("0:0", "ok")), (1.0, 1.0)), counted=2)
    clock = ManualClock(0)
    checks = {check.what: check for check in gpus(clock)}
    assert list(checks) == ["GPU 0", "GPU 0:0", "GPU 1"]
    assert (checks["GPU 1"].status, checks["GPU 1"].fix != "") == ("problem", True)
    assert checks["GPU 1"].detail.startswith("no reading yet")
    assert clock.monotonic() >= 6.0


def test_an_initialisation_that_hangs_is_waited_for_and_named(script):
    starting = Batch("nvml", 0, up=False, reason=Reason.NEVER_SEEN, detail="the NVML worker is starting")
    hung = Batch("nvml", 0, (series("x"),), (4.0,), reason=Reason.HUNG, detail="nvmlInit has not returned for 4 s")
    script(starting, starting, hung)
    (check,) = gpus(ManualClock(0))
    assert (check.status, check.detail) == ("problem", "nvmlInit has not returned for 4 s")


def test_a_worker_that_never_says_a_thing_is_given_up_after_six_seconds(script):
    script(Batch("nvml", 0, up=False, reason=Reason.NEVER_SEEN, detail="the NVML worker is starting"))
    clock = ManualClock(0)
    (check,) = gpus(clock)
    assert (check.status, check.detail) == ("missing", "the NVML worker is starting")
    assert check.fix
    assert 6.0 <= clock.monotonic() < 7.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_permission", "no permission"),
        ("lost", "lost"),
        ("resetting", "needs a reset"),
        ("failed", "every call fails"),
    ],
)
def test_a_gpu_that_may_not_or_cannot_be_read_is_a_problem_beside_one_that_is_fine(script, name, words):
    script(Batch("nvml", 0, (state("0", "ok"), state("1", name)), (1.0, 1.0), detail="GPU 1: the reason"))
    checks = {check.what: check for check in gpus(ManualClock(0))}
    assert checks["GPU 0"].status == "ok"
    assert checks["GPU 1"].status == "problem"
    assert checks["GPU 1"].detail.startswith(words)
    assert checks["GPU 1"].fix
    assert checks["NVML"].detail == "GPU 1: the reason"
