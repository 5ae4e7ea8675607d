"""Alert states, worked out by hand from Prometheus 2.42 ``rules/alerting.go`` (AlertingRule.Eval)."""

from __future__ import annotations

import pytest

from gpuwatch.alerts.state import Alert, Result, Saved, alert_labels, restored, step
from gpuwatch.model import series

X = (("alertname", "A"), ("gpu", "0"))
Y = (("alertname", "A"), ("gpu", "1"))
MINUTE = 60_000


def run(present: str, hold: int = 0, keep: int = 0, start: int = 1_000) -> str:
    """Play one label set: `present` has ``x`` where the expression returns it; one letter per second comes back.

    ``p`` pending, ``f`` firing, ``r`` resolved, ``.`` unknown.
    """
    active: dict = {}
    states = []
    for index, mark in enumerate(present):
        results = {X: Result(float(index))} if mark == "x" else {}
        active = step("A", active, results, start + index * 1000, hold=hold * 1000, keep=keep * 1000)
        states.append(active[X].state[0] if X in active else ".")
    return "".join(states)


@pytest.mark.parametrize(
    ("present", "hold", "keep", "expected"),
    [
        pytest.param("....", 0, 0, "....", id="never-seen"),
        pytest.param("xxx.", 0, 0, "fffr", id="without-for-fires-in-the-first-evaluation"),
        pytest.param(".xxxxx.", 3, 0, ".pppffr", id="for-exactly-reached-fires-in-that-evaluation"),
        pytest.param("xxx.xxxx", 3, 0, "ppp.pppf", id="gap-while-pending-starts-over"),
        pytest.param("xxx...", 3, 0, "ppp...", id="pending-that-vanishes-is-forgotten-not-resolved"),
        pytest.param("x.x.x.x", 1, 5, "p.p.p.p", id="keep-firing-does-not-help-pending"),
        pytest.param("x......", 0, 3, "ffffrrr", id="kept-for-less-than-keep-firing-for"),
        pytest.param("x..x..x....", 0, 3, "ffffffffffr", id="flapping-within-keep-firing-for-stays-firing"),
        pytest.param("x...x.....", 0, 3, "ffffffffrr", id="return-one-tick-before-resolving-resets-the-clock"),
        pytest.param("x....x", 0, 3, "ffffrf", id="return-after-resolving-fires-anew"),
        pytest.param("xxx.xxx", 2, 0, "ppfrppf", id="return-after-resolving-is-pending-again"),
        pytest.param("xxxx....x", 2, 2, "ppffffrrp", id="for-and-keep-together"),
    ],
)
def test_states_second_by_second(present, hold, keep, expected):
    assert run(present, hold, keep) == expected


def test_for_longer_than_the_data_never_fires():
    assert run("x" * 30, hold=30) == "p" * 30
    assert run("x" * 31, hold=30) == "p" * 30 + "f"


def test_keep_firing_counts_from_the_first_absence_not_from_the_last_presence():
    # Evaluations 10 s apart with keep 10 s: absent first at 10 s (kept), 20 s - 10 s = 10 s is not less than 10 s.
    active = step("A", {}, {X: Result(1.0)}, 0, hold=0, keep=10_000)
    active = step("A", active, {}, 10_000, hold=0, keep=10_000)
    assert active[X].state == "firing"
    assert active[X].absent_since == 10_000
    active = step("A", active, {}, 20_000, hold=0, keep=10_000)
    assert (active[X].state, active[X].resolved_at) == ("resolved", 20_000)


def test_times_are_those_of_the_evaluations():
    active = step("A", {}, {X: Result(5.0)}, 1_000, hold=2_000, keep=0)
    assert active[X] == Alert("A", X, 5.0, "pending", active_at=1_000)
    active = step("A", active, {X: Result(6.0)}, 2_000, hold=2_000, keep=0)
    active = step("A", active, {X: Result(7.0)}, 3_000, hold=2_000, keep=0)
    assert active[X] == Alert("A", X, 7.0, "firing", active_at=1_000, fired_at=3_000)
    active = step("A", active, {}, 4_000, hold=2_000, keep=0)
    assert active[X] == Alert("A", X, 7.0, "resolved", active_at=1_000, fired_at=3_000, resolved_at=4_000)


def test_resolved_alert_is_kept_for_fifteen_minutes_inclusive():
    active = step("A", {}, {X: Result(1.0)}, 0, hold=0, keep=0)
    active = step("A", active, {}, 1_000, hold=0, keep=0)
    active = step("A", active, {}, 1_000 + 15 * MINUTE, hold=0, keep=0)
    assert active[X].state == "resolved"
    assert step("A", active, {}, 1_001 + 15 * MINUTE, hold=0, keep=0) == {}


def test_a_return_after_resolving_is_a_new_alert():
    active = step("A", {}, {X: Result(1.0)}, 0, hold=0, keep=0)
    active = step("A", active, {}, 1_000, hold=0, keep=0)
    active = step("A", active, {X: Result(2.0)}, 2_000, hold=0, keep=0)
    assert active[X] == Alert("A", X, 2.0, "firing", active_at=2_000, fired_at=2_000)


def test_annotations_follow_the_newest_result_and_stay_while_kept_firing():
    active = step("A", {}, {X: Result(1.0, {"summary": "one"})}, 0, hold=0, keep=5_000)
    active = step("A", active, {X: Result(2.0, {"summary": "two"})}, 1_000, hold=0, keep=5_000)
    assert active[X].annotations == {"summary": "two"}
    active = step("A", active, {}, 2_000, hold=0, keep=5_000)
    assert (active[X].value, active[X].annotations) == (2.0, {"summary": "two"})


def test_label_sets_live_on_their_own():
    active = step("A", {}, {X: Result(1.0), Y: Result(2.0)}, 0, hold=1_000, keep=0)
    active = step("A", active, {Y: Result(2.0)}, 1_000, hold=1_000, keep=0)
    assert {labels: alert.state for labels, alert in active.items()} == {Y: "firing"}


def test_step_changes_nothing_that_it_was_given():
    before = step("A", {}, {X: Result(1.0)}, 0, hold=1_000, keep=0)
    copy = dict(before)
    step("A", before, {}, 1_000, hold=1_000, keep=0)
    assert before == copy


def test_clock_stepping_back_neither_fires_nor_resolves_early():
    active = step("A", {}, {X: Result(1.0)}, 100_000, hold=10_000, keep=0)
    active = step("A", active, {X: Result(1.0)}, 40_000, hold=10_000, keep=0)
    assert active[X].state == "pending"
    active = step("A", active, {X: Result(1.0)}, 110_000, hold=10_000, keep=0)
    assert active[X].state == "firing"


class TestRestore:
    """The starts of alerts survive a restart; downtime does not count towards ``for``."""

    def new(self, time: int) -> Alert:
        return Alert("A", X, 1.0, "pending", time)

    def test_alert_that_was_firing_fires_at_once_with_its_old_times(self):
        saved = Saved(X, active_at=10_000, saved_at=100_000, fired_at=40_000)
        after = restored(self.new(200_000), saved, 200_000, hold=30_000)
        assert (after.state, after.active_at, after.fired_at) == ("firing", 10_000, 40_000)

    def test_alert_that_had_been_active_for_long_enough_fires_now(self):
        saved = Saved(X, active_at=10_000, saved_at=40_000)
        after = restored(self.new(200_000), saved, 200_000, hold=30_000)
        assert (after.state, after.active_at, after.fired_at) == ("firing", 10_000, 200_000)

    def test_pending_alert_goes_on_where_it_was(self):
        # 20 s of 30 s were spent before the stop at 30 s; at 200 s another 10 s are needed.
        saved = Saved(X, active_at=10_000, saved_at=30_000)
        after = restored(self.new(200_000), saved, 200_000, hold=30_000)
        assert (after.state, after.active_at) == ("pending", 180_000)
        later = step("A", {X: after}, {X: Result(1.0)}, 209_999, hold=30_000, keep=0)
        assert later[X].state == "pending"
        later = step("A", later, {X: Result(1.0)}, 210_000, hold=30_000, keep=0)
        assert later[X].state == "firing"


def test_rule_labels_override_those_of_the_series_and_empty_ones_vanish():
    labels = alert_labels(
        series("m", gpu="0", host="a", severity="x"), {"severity": "critical", "host": "", "extra": "1"}, "Hot"
    )
    assert labels == (("alertname", "Hot"), ("extra", "1"), ("gpu", "0"), ("severity", "critical"))
