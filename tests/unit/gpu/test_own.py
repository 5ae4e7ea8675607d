"""What gpuwatch says about itself."""

from __future__ import annotations

import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.model import Reason, name_of
from gpuwatch.sources.own import OwnSource, Waiting

SECOND = 1_000_000_000


def thread(folder, number, waited):
    task = folder / str(number)
    task.mkdir(exist_ok=True)
    (task / "schedstat").write_text(f"123456789 {waited} 42\n")


def read(source):
    batch = source.poll()
    return {name_of(key).removeprefix("gpuwatch_"): value for key, value in zip(batch.keys, batch.values, strict=True)}


def test_waiting_is_the_growth_of_all_threads_and_an_ended_one_takes_nothing_away(tmp_path):
    thread(tmp_path, 1, 5 * SECOND)
    thread(tmp_path, 2, 7 * SECOND)
    waiting = Waiting(tmp_path)
    thread(tmp_path, 1, 6 * SECOND)
    thread(tmp_path, 2, 7 * SECOND + SECOND // 2)
    thread(tmp_path, 3, SECOND // 4)
    assert waiting.since_last() == pytest.approx(1 + 0.5 + 0.25)
    (tmp_path / "2" / "schedstat").unlink()
    (tmp_path / "2").rmdir()
    assert waiting.since_last() == 0


def test_the_ratio_is_seconds_of_waiting_per_second(tmp_path):
    clock = ManualClock()
    thread(tmp_path, 1, 0)
    source = OwnSource("h", clock, threads=tmp_path)
    clock.advance(5)
    thread(tmp_path, 1, 4 * SECOND)
    values = read(source)
    assert values["process_starved_ratio"] == pytest.approx(0.8)
    assert values["process_resident_bytes"] > 0
    clock.advance(10)
    thread(tmp_path, 1, 5 * SECOND)
    assert read(source)["process_starved_ratio"] == pytest.approx(0.1)


@pytest.mark.parametrize("content", [None, "", "nonsense\n"])
def test_a_kernel_that_does_not_count_leaves_the_ratio_absent(tmp_path, content):
    folder = tmp_path / "task"
    if content is not None:
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "schedstat").write_text(content)
    clock = ManualClock()
    source = OwnSource("h", clock, threads=folder)
    clock.advance(5)
    batch = source.poll()
    assert [name_of(key) for key in batch.keys] == [
        "gpuwatch_process_cpu_seconds_total",
        "gpuwatch_process_resident_bytes",
    ]
    (absence,) = batch.absent
    assert absence.reason is Reason.NOT_SUPPORTED


def test_threads_that_run_when_they_want_to_do_not_wait():
    clock = ManualClock()
    source = OwnSource("h", clock)
    clock.advance(3600)
    assert 0 <= read(source)["process_starved_ratio"] < 1
