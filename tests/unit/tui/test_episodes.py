"""A finding that fires again, the readings of rules, and the way out of the screen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.snapshot import RuleView
from gpuwatch.tui.draw import findings as draw_findings
from gpuwatch.tui.draw import frame
from gpuwatch.tui.draw import rules as draw_rules
from gpuwatch.tui.feed import Actions
from gpuwatch.tui.history import EPISODES_MS, MOST_EPISODES, History
from gpuwatch.tui.keys import hints
from gpuwatch.tui.text import line_width, plain
from gpuwatch.tui.view.build import build
from gpuwatch.tui.view.findings import as_text
from gpuwatch.tui.view.model import Quiet
from gpuwatch.tui.view.rules import reading_text, rules
from tests.unit.tui import scenes

START = scenes.START


def storm(time, since=None, until=None):
    """A snapshot with one finding that fires since `since`, is over since `until`, or has none (seconds)."""
    scene = scenes.storm(START + time * 1000)
    if since is None:
        return replace(scene, findings=())
    first = next(finding for finding in scene.findings if finding.id == "kv_preemption_storm")
    state = "firing" if until is None else "resolved"
    ended = None if until is None else START + until * 1000
    found = replace(first, since=START + since * 1000, until=ended, state=state, caused_by=None)
    return replace(scene, findings=(found,))


def see(history, *snapshots):
    for snapshot in snapshots:
        model = build(snapshot, history, Quiet(), live=True)
    return model.findings


def test_earlier_episodes_are_listed_under_a_finding_that_fires_again():
    # 22:13:20 is the start; the finding fires at +10 s and +60 s and +120 s.
    (row,) = see(History(), storm(10, 10), storm(40, 10), storm(50, 10, 49), storm(60, 60), storm(75), storm(120, 120))
    assert [(mark.since - START, mark.until - START) for mark in row.earlier] == [(60_000, 75_000), (10_000, 49_000)]
    text = [plain(line) for line in draw_findings.details(row, 100)]
    start = next(place for place, line in enumerate(text) if "earlier" in line)
    assert text[start].split("earlier")[1].strip() == "22:14:20 to 22:14:35, 15 s"
    assert text[start + 1].strip() == "22:13:30 to 22:14:09, 39 s"
    assert " 3 times" in plain(draw_findings.head_line(row, 120))
    assert "earlier: 22:13:30 to 22:14:09, 39 s" in as_text(row).splitlines()


def test_a_finding_that_fires_for_the_first_time_has_no_earlier_ones():
    (row,) = see(History(), storm(10, 10), storm(11, 10))
    assert row.earlier == ()
    assert "times" not in plain(draw_findings.head_line(row, 120))
    assert "earlier" not in "\n".join(plain(line) for line in draw_findings.details(row, 100))


def test_an_episode_that_was_replaced_between_two_ticks_ended_there():
    (row,) = see(History(), storm(10, 10), storm(20, 18))
    assert [(mark.since - START, mark.until - START) for mark in row.earlier] == [(10_000, 20_000)]


def test_looking_back_shows_only_what_was_before():
    history = History()
    see(history, storm(10, 10), storm(20), storm(30, 30), storm(40), storm(50, 50))
    (row,) = build(storm(35, 30), history, Quiet(), live=False).findings
    assert [mark.since - START for mark in row.earlier] == [10_000]


def test_episodes_are_bounded_in_number_and_age():
    history = History()
    for second in range(0, 4 * MOST_EPISODES, 2):
        see(history, storm(second, second), storm(second + 1))
    assert len(history.marks()) == MOST_EPISODES
    see(history, storm(EPISODES_MS // 1000 + 4 * MOST_EPISODES + 1))
    assert history.marks() == []


def test_many_episodes_are_cut_with_their_number():
    history = History()
    for second in range(0, 24, 2):
        see(history, storm(second, second), storm(second + 1))
    (row,) = see(history, storm(30, 30))
    text = [plain(line).strip() for line in draw_findings.details(row, 100)]
    assert "+4 more" in text
    assert sum(" to 22:" in line for line in text) == 8


def rule(status, *readings):
    return RuleView("R", "r", "warning", status, "expr", "file.yml", readings=readings)


HIGH = ("usage > 0.75", 0.95, 0.75)
LOW = ("evictions >= 2", 0.0, 2.0)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (rule("ok", HIGH, LOW), "0 / 2, 1 of 2"),
        (rule("ok", LOW, HIGH), "0 / 2, 1 of 2"),
        (rule("firing", LOW, HIGH), "0.95 / 0.75, 1 of 2"),
        (rule("ok", HIGH), "0.95 / 0.75"),
        (rule("ok", HIGH, HIGH), "0.95 / 0.75, 2 of 2"),
        (rule("ok", ("free < 5", 5.0, 5.0)), "5 / 5"),
        (rule("ok"), ""),
    ],
)
def test_the_reading_of_a_rule_is_the_one_that_decides(view, expected):
    assert reading_text(view) == expected


@pytest.mark.parametrize(
    ("text", "value", "held"),
    [
        ("x > 5", 5.0, False), ("x >= 5", 5.0, True), ("x < 5", 5.0, False), ("x <= 5", 5.0, True),
        ("x == 5", 5.0, True), ("x != 5", 5.0, False), ("x != 5", 6.0, True), ("max_over_time(x[1m]) > 5", 7.0, True),
    ],
)  # fmt: skip
def test_each_comparison_says_whether_it_holds(text, value, held):
    lines = shown(rule("ok", (text, value, 5.0)))
    assert (f"✓ holds: {text}" in lines) is held
    assert (f"✗ does not hold: {text}" in lines) is not held


def shown(view):
    (row,) = rules(scenes.snapshot(scenes.Scene(), rules=(view,)))
    return "\n".join(plain(line) for line in draw_rules.details(row, 160))


def test_a_quiet_rule_beside_a_value_above_its_threshold_says_what_is_missing():
    text = shown(rule("ok", HIGH, LOW))
    assert "✓ holds: usage > 0.75 · nearest value 0.95 · threshold 0.75" in text
    assert "✗ does not hold: evictions >= 2 · nearest value 0 · threshold 2" in text
    assert "1 of 2 comparisons with a number hold" in text
    assert "not all conditions of the rule for one and the same series" in shown(rule("ok", HIGH, HIGH))
    assert "comparisons" not in shown(rule("not_evaluable"))


@pytest.mark.parametrize("view", frame.VIEWS)
@pytest.mark.parametrize("width", [60, 80, 139])
@pytest.mark.parametrize("replay", [False, True])
def test_the_way_out_is_always_in_the_footer(view, width, replay):
    everything = Actions(
        start_recording=lambda path: path, stop_recording=lambda: "", acknowledge=lambda key: None,
        silence=lambda key, until: None, write_report=lambda path: path, speed=lambda factor: None,
    )  # fmt: skip
    entries = hints(
        view,
        [],
        everything,
        empty=False,
        replay=replay,
        paused=False,
        recording=False,
        finding=True,
        narrow=width < 100,
    )
    line, places = frame.footer(entries, ("", ""), width)
    assert plain(line).endswith("q quit")
    assert line_width(line) <= width
    assert places[-1][2] == "quit"
    assert places[0][2] == entries[0].action
