from __future__ import annotations

import threading
import time

import pytest

from gpuwatch.clock import SystemClock
from gpuwatch.model import Batch, Reason
from gpuwatch.pipeline.feed import Questions, Subscribers
from gpuwatch.pipeline.runner import SourceRunner, until_next


class Scripted:
    target = "host"

    def __init__(self, *steps):
        self.steps = list(steps)
        self.closed = False

    def poll(self):
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, threading.Event):
            step.wait(30)
            return Batch(self.target, 0)
        if isinstance(step, Exception):
            raise step
        return step

    def close(self):
        self.closed = True


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("now", "interval", "phase", "wait"),
    [
        (100.0, 1.0, 0.0, 1.0),
        (100.3, 1.0, 0.0, 0.7),
        (100.3, 1.0, 0.25, 0.95),
        (100.1, 1.0, 0.25, 0.15),
        (100.95, 1.0, 0.0, 1.05),  # the next multiple is too near: the one after it
        (103.0, 5.0, 0.0, 2.0),
        (103.0, 5.0, 0.2, 3.0),
    ],
)
def test_polls_are_at_multiples_of_the_interval_and_ticks_a_share_of_it_later(now, interval, phase, wait):
    assert until_next(now, interval, phase) == pytest.approx(wait)


def test_batches_are_kept_in_order_until_they_are_taken():
    runner = SourceRunner(Scripted(Batch("host", 1), Batch("host", 2), Batch("host", 3)), 0.02, SystemClock())
    runner.start()
    taken: list[int] = []
    assert wait_for(lambda: taken.extend(b.time for b in runner.take()) or len(taken) >= 3)
    runner.stop()
    assert taken[:3] == [1, 2, 3]


def test_a_source_with_a_bug_is_reported_and_polled_again(caplog):
    runner = SourceRunner(Scripted(ValueError("boom"), Batch("host", 2)), 0.02, SystemClock())
    runner.start()
    taken: list[Batch] = []
    assert wait_for(lambda: taken.extend(runner.take()) or len(taken) >= 2)
    runner.stop()
    assert (taken[0].up, taken[0].reason, taken[0].detail) == (False, Reason.FAILED, "internal error: ValueError: boom")
    assert taken[1].time == 2


def test_stopping_never_waits_for_a_poll_that_hangs():
    hang = threading.Event()
    source = Scripted(hang)
    runner = SourceRunner(source, 0.02, SystemClock())
    runner.start()
    begun = time.monotonic()
    runner.stop()
    assert time.monotonic() - begun < 30  # it hangs for ever
    assert source.closed
    hang.set()


def test_a_subscriber_that_fails_does_not_stop_the_others(caplog):
    subscribers = Subscribers()
    got: list[object] = []
    subscribers.add(lambda snapshot: 1 / 0)
    remove = subscribers.add(got.append)
    subscribers.publish("snapshot")  # type: ignore[arg-type]
    remove()
    subscribers.publish("another")  # type: ignore[arg-type]
    assert got == ["snapshot"]


def test_a_question_gets_its_answer_or_its_error():
    questions = Questions()
    good = questions.put(lambda: 42)
    bad = questions.put(lambda: 1 // 0)
    questions.answer_for(0.1)
    questions.answer_for(0.1)
    questions.answer_for(0.0)
    assert good.result(1) == 42
    assert isinstance(bad.exception(1), ZeroDivisionError)


def test_an_error_that_repeats_is_logged_once_and_again_when_it_changes(caplog):
    runner = SourceRunner(
        Scripted(ValueError("a"), ValueError("a"), ValueError("a"), ValueError("b"), ValueError("b")),
        0.02,
        SystemClock(),
    )
    runner.start()
    taken: list[Batch] = []
    assert wait_for(lambda: taken.extend(runner.take()) or len(taken) >= 6)
    runner.stop()
    assert not any(batch.up for batch in taken)
    assert [str(record.exc_info[1]) for record in caplog.records] == ["a", "b"]
