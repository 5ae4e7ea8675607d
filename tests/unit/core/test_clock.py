from __future__ import annotations

import threading
import time

from gpuwatch.clock import ManualClock, SystemClock


class Machine:
    """Stands for the machine's clocks: wall and monotonic time in nanoseconds that a test moves."""

    def __init__(self, monkeypatch):
        self.wall = 1_700_000_000_000_000_000
        self.mono = 5_000_000_000
        monkeypatch.setattr(time, "time_ns", lambda: self.wall)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.mono)

    def pass_seconds(self, seconds, wall=None):
        self.mono += int(seconds * 1e9)
        self.wall += int((seconds if wall is None else wall) * 1e9)


def test_time_goes_on_at_true_speed_when_the_wall_clock_steps_back(monkeypatch):
    machine = Machine(monkeypatch)
    clock = SystemClock()
    start = clock.now()
    machine.pass_seconds(1)
    machine.wall -= 3_600_000_000_000
    assert clock.now() - start == 1000
    machine.pass_seconds(1)
    assert clock.now() - start == 2000


def test_how_far_time_is_ahead_of_a_clock_that_was_set_back_is_known_until_it_has_caught_up(monkeypatch):
    machine = Machine(monkeypatch)
    clock = SystemClock()
    machine.wall -= 900_000_000  # followed step by step
    assert clock.ahead() == 0
    machine.wall += 900_000_000 - 3_600_000_000_000
    clock.now()
    assert clock.ahead() == 3_600_000
    machine.pass_seconds(10)
    clock.now()
    assert clock.ahead() == 3_600_000
    machine.pass_seconds(1, wall=3611)
    clock.now()
    assert clock.ahead() == 0


def test_a_jump_forward_is_followed_at_once(monkeypatch):
    machine = Machine(monkeypatch)
    clock = SystemClock()
    start = clock.now()
    machine.pass_seconds(1, wall=3601)
    assert clock.now() - start == 3_601_000


def test_a_small_drift_is_followed_by_a_millisecond_per_reading(monkeypatch):
    machine = Machine(monkeypatch)
    clock = SystemClock()
    start = clock.now()
    machine.wall += 5_000_000
    assert [clock.now() - start for _ in range(6)] == [1, 2, 3, 4, 4, 4]
    machine.wall -= 5_000_000
    assert [clock.now() - start for _ in range(5)] == [3, 2, 1, 1, 1]


def test_the_manual_clock_stands_still_and_waits_by_moving():
    clock = ManualClock(1000)
    event = threading.Event()
    assert clock.now() == 1000
    assert not clock.wait(event, 2.5)
    assert (clock.now(), clock.monotonic()) == (3500, 2.5)
    clock.set(3000)
    assert (clock.now(), clock.monotonic()) == (3000, 2.5)
