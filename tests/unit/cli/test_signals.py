"""Signals arrive whichever thread the kernel hands them to, and whatever the program does meanwhile."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from gpuwatch.cli.signals import CtrlC, Signals

ONE, TWO = signal.SIGUSR1, signal.SIGUSR2
LONG = 30.0


@pytest.fixture
def other_thread():
    """A thread that sleeps all the time."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    yield thread
    over.set()
    thread.join(LONG)


def test_a_signal_that_another_thread_gets_ends_the_wait(other_thread):
    with Signals(ONE) as signals:
        sender = threading.Timer(0.05, signal.pthread_kill, (other_thread.ident, ONE))
        sender.start()
        assert signals.wait(LONG) == (ONE,)
        sender.join(LONG)


def test_none_of_many_signals_at_random_moments_is_lost():
    seen = threading.Semaphore(0)
    chance = random.Random(7)

    def send():
        for _ in range(200):
            busy = chance.randrange(3000)
            while busy:
                busy -= 1
            os.kill(os.getpid(), ONE)
            if not seen.acquire(timeout=LONG):
                return

    with Signals(ONE) as signals:
        sender = threading.Thread(target=send)
        sender.start()
        came = []
        while len(came) < 200 and (got := signals.wait(LONG)):
            came += got
            seen.release()
        sender.join(LONG)
    assert came == [ONE] * 200


def test_what_came_meanwhile_is_returned_once_each_and_in_order():
    with Signals(ONE, TWO) as signals:
        for number in (TWO, ONE, TWO, TWO):
            signal.raise_signal(number)
        assert signals.wait(LONG) == (TWO, ONE)
        assert signals.wait(0) == ()


def test_a_wait_ends_after_its_time_and_when_it_is_woken():
    with Signals(ONE) as signals:
        assert signals.wait(0.01) == ()
        signals.wake()
        assert signals.wait() == ()


def test_afterwards_everything_is_as_before():
    before = signal.getsignal(ONE), signal.getsignal(TWO)
    with Signals(ONE, TWO):
        assert signal.getsignal(ONE) != before[0]
    assert (signal.getsignal(ONE), signal.getsignal(TWO)) == before
    fd = signal.set_wakeup_fd(-1)
    assert fd == -1


def test_ctrl_c_interrupts_a_pause_whichever_thread_gets_it(other_thread):
    with CtrlC() as ctrl_c:
        sender = threading.Timer(0.05, signal.pthread_kill, (other_thread.ident, signal.SIGINT))
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.pause(LONG)
        sender.join(LONG)


def test_ctrl_c_before_the_pause_is_not_lost_and_a_pause_that_is_woken_goes_on():
    with CtrlC() as ctrl_c:
        ctrl_c.wake()
        ctrl_c.pause(LONG)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.pause(LONG)
    ctrl_c.wake()
