"""What the screen remembers, and how it walks through time."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pytest

from gpuwatch.snapshot import Recording
from gpuwatch.tui.draw.findings import time_line
from gpuwatch.tui.feed import Arrived, Mailbox
from gpuwatch.tui.history import WIDEST, History
from gpuwatch.tui.text import line_width, plain
from gpuwatch.tui.view.build import build
from gpuwatch.tui.view.model import Quiet
from gpuwatch.tui.view.status import Pulse
from gpuwatch.tui.walk import DEADLINE_SECONDS, Walk
from tests.unit.tui import scenes

RANK = ("node-07", "127.0.0.1:8000", "tiny-llama", "")


def feed(history, *snapshots):
    for snapshot in snapshots:
        model = build(snapshot, history, Quiet(), live=True)
    return model


def with_rate(rate, time):
    scene = scenes.Scene()
    if rate is not None:
        scene.rank(generation_rate=rate)
    return scenes.snapshot(scene, time, sources=())


def test_a_trace_holds_one_value_per_tick_and_gaps_where_ticks_were_missed():
    history, start = History(), scenes.START
    feed(history, with_rate(10, start), with_rate(20, start + 1000), with_rate(30, start + 4000))
    assert history.trace(RANK, "generation_rate", start + 4000, 9) == [10, 20, None, None, 30]
    assert history.trace(RANK, "generation_rate", start + 1000, 9) == [10, 20]
    assert history.trace(RANK, "generation_rate", start + 4000, 2) == [None, 30]


def test_an_engine_that_is_gone_leaves_gaps_and_jitter_does_not():
    history, start = History(), scenes.START
    feed(history, with_rate(10, start), with_rate(None, start + 1040), with_rate(30, start + 1990))
    assert history.trace(RANK, "generation_rate", start + 9000, 9) == [10, None, 30]


def test_traces_are_bounded_by_twice_the_widest_chart():
    history, start = History(), scenes.START
    feed(history, *(with_rate(i, start + i * 1000) for i in range(2 * WIDEST + 50)))
    trace = history.trace(RANK, "generation_rate", start + 10_000_000, 10_000)
    assert len(trace) == 2 * WIDEST
    assert trace[-1] == 2 * WIDEST + 49


def test_a_replay_that_jumps_back_and_the_demo_start_afresh():
    history, start = History(), scenes.START
    feed(history, with_rate(10, start + 5000), with_rate(20, start))
    assert history.trace(RANK, "generation_rate", start + 9000, 9) == [20]
    feed(history, replace(with_rate(30, start + 1000), mode="demo"))
    assert history.trace(RANK, "generation_rate", start + 9000, 9) == [30]


def at(value, second):
    """A tick of a replay that began at the scenes' start."""
    snapshot = with_rate(value, scenes.START + second * 1000)
    return replace(snapshot, mode="replay", recording=Recording("x.rec", position=float(second), length=60.0))


def test_a_replay_that_goes_back_to_what_is_remembered_keeps_it():
    history, start = History(), scenes.START
    feed(history, at(10, 1), at(20, 2), at(30, 3), at(20, 2))
    assert history.trace(RANK, "generation_rate", start + 2000, 9) == [10, 20]
    feed(history, at(30, 3), at(40, 4))
    assert history.trace(RANK, "generation_rate", start + 9000, 9) == [10, 20, 30, 40]
    feed(history, at(5, 0))
    assert history.trace(RANK, "generation_rate", start + 9000, 9) == [5]


def test_a_replay_that_goes_back_further_starts_afresh():
    history, start = History(), scenes.START
    feed(history, at(30, 30), at(40, 40), at(20, 20))
    assert history.trace(RANK, "generation_rate", start + 90_000, 9) == [20]


def test_the_same_snapshot_twice_is_one_tick():
    history, start = History(), scenes.START
    feed(history, with_rate(10, start), with_rate(10, start))
    assert history.trace(RANK, "generation_rate", start, 9) == [10]


def test_marks_last_from_the_start_of_a_finding_to_its_end():
    history = History()
    feed(history, scenes.storm(scenes.START + 50_000), scenes.storm(scenes.START + 60_000))
    assert {mark.until for mark in history.marks()} == {None}
    feed(history, scenes.storm(scenes.START + 70_000, findings=()))
    marks = history.marks()
    assert [(mark.since - scenes.START, mark.until - scenes.START) for mark in marks] == [
        (12_000, 70_000), (31_000, 70_000), (38_000, 70_000), (40_000, 70_000)
    ]  # fmt: skip


def test_the_time_line_shows_when_findings_fired_and_where_one_looks():
    history = History()
    start = scenes.START
    snapshot = replace(scenes.storm(start + 600_000), started=start)
    model = feed(history, snapshot)
    model = replace(model, pulse=Pulse(newest=snapshot.time))
    line = plain(time_line(model, 114, None))
    # 15 minutes end at 22:23; the run began 600 s ago, the first finding 588 s ago: columns 33 and 34 of 100.
    assert line.startswith(" 22:08 ·")
    assert line.endswith(" 22:23 ")
    assert line_width(time_line(model, 114, None)) == 114
    track = line[7:-7]
    assert track.index("▲") == 34
    assert track.index("●") == 36
    assert track.count("━") == 100 - 34 - 2
    looking = plain(time_line(replace(model, pulse=Pulse(paused=True, newest=snapshot.time)), 114, start + 300_000))
    assert looking[7:-7].index("┃") == 66


def test_a_mailbox_keeps_only_the_newest_and_notifies_once():
    calls = []
    mailbox = Mailbox(lambda: calls.append(1))
    first, second = scenes.storm(), scenes.storm(scenes.START + 61_000)
    mailbox.put(first)
    mailbox.put(second)
    assert (len(calls), mailbox.take(), mailbox.take()) == (1, second, None)
    mailbox.put(first)
    assert len(calls) == 2
    assert Arrived().can_replace(Arrived())


class Past:
    def __init__(self):
        self.asked = []

    def subscribe(self, callback):
        raise NotImplementedError

    def at(self, time_ms):
        future = Future()
        self.asked.append((time_ms, future))
        return future


@pytest.fixture
def walk():
    past, answers = Past(), []
    return Walk(past, lambda *answer: answers.append(answer)), past, answers


def test_the_past_is_asked_step_by_step_from_where_one_stands(walk):
    walker, past, answers = walk
    assert walker.go(-5, 0, 100_000, 0.0)
    assert [time for time, _ in past.asked] == [95_000]
    past.asked[0][1].set_result("snapshot")
    assert answers == [(1, "snapshot", "")]
    assert walker.accept(1, 0.0)
    assert walker.go(-60, 0, 101_000, 1.0)
    assert past.asked[1][0] == 35_000


def test_many_key_presses_make_one_request_at_a_time_and_the_last_wish_wins(walk):
    walker, past, _ = walk
    for _ in range(10):
        walker.go(-5, 0, 100_000, 0.0)
    assert [time for time, _ in past.asked] == [95_000]
    assert walker.accept(1, 0.0)
    assert [time for time, _ in past.asked] == [95_000, 50_000]


def test_walking_stops_at_the_start_and_returns_to_the_present_at_the_end(walk):
    walker, past, _ = walk
    walker.go(-60, 90_000, 100_000, 0.0)
    assert past.asked[0][0] == 90_000
    walker.accept(1, 0.0)
    assert walker.go(5, 90_000, 100_000, 0.0)
    walker.accept(2, 0.0)
    assert not walker.go(5, 90_000, 100_000, 0.0)


def test_an_answer_that_comes_after_resuming_is_not_shown(walk):
    walker, _, _ = walk
    walker.go(-5, 0, 100_000, 0.0)
    walker.resume()
    assert not walker.accept(1, 0.0)
    assert not walker.paused


def test_a_request_has_a_deadline_and_a_failed_one_says_why(walk):
    walker, past, answers = walk
    walker.go(-5, 0, 100_000, 10.0)
    assert not walker.overdue(10.0 + DEADLINE_SECONDS - 0.1)
    assert walker.overdue(10.0 + DEADLINE_SECONDS)
    past.asked[0][1].set_exception(RuntimeError("older than what is kept"))
    assert answers == [(1, None, "older than what is kept")]
    assert not walker.accept(1, 20.0)


def test_a_feed_that_refuses_at_once_is_an_answer_too(walk):
    walker, past, answers = walk

    def refuse(time):
        raise RuntimeError("still starting")

    past.at = refuse
    walker.go(-5, 0, 100_000, 0.0)
    assert answers == [(1, None, "still starting")]
