"""A rule without alerts rests while nothing that it reads changes, and misses nothing by it."""

from __future__ import annotations

import pytest

from gpuwatch.alerts.engine import RuleEngine
from gpuwatch.alerts.rulefile import load
from gpuwatch.model import series
from gpuwatch.promql.analysis import Reads, reads
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.plan import parse
from gpuwatch.promql.values import Vector
from gpuwatch.store import Store

START = 1_790_000_000_000
CAUSES = series("causes_total", log="a")
SERVING = series("serving", log="a")


class Counting:
    """A querier that counts the questions."""

    def __init__(self, store: Store) -> None:
        self._querier = LocalQuerier(store)
        self.asked = 0

    def instant(self, expr: str, time: int) -> Vector:
        self.asked += 1
        return self._querier.instant(expr, time)

    def range(self, *question):
        return self._querier.range(*question)


class Run:
    """One rule over a store, once with rest and once without."""

    def __init__(self, tmp_path, expr: str) -> None:
        file = tmp_path / "own.yml"
        file.write_text(f"groups: [{{name: g, rules: [{{alert: A, expr: '{expr}'}}]}}]\n")
        rules = load((file,))
        assert not rules.problems
        self.stores = Store(), Store()
        self.queriers = [Counting(store) for store in self.stores]
        self.engines = [
            RuleEngine(rules, self.queriers[0], self.stores[0], statuses=False, moved=self.stores[0].moved),
            RuleEngine(rules, self.queriers[1], self.stores[1], statuses=False),
        ]
        self.second = 0

    def tick(self, causes: float | None, serving: float = 1.0) -> bool:
        """Let a second pass; return whether the alert fires where rules rest, after comparing it with the other."""
        self.second += 1
        time = START + 1000 * self.second
        fires = []
        for store, engine in zip(self.stores, self.engines, strict=True):
            keys = (SERVING,) if causes is None else (CAUSES, SERVING)
            store.append("log", time - 300, keys, [serving] if causes is None else [causes, serving])
            fires.append([alert.state for alert in engine.tick(time).alerts if alert.state != "resolved"])
        assert fires[0] == fires[1], f"second {self.second}"
        return bool(fires[0])


RULE = "increase(causes_total[1m]) > 0 unless on (log) serving == 2"


def test_a_change_is_seen_at_the_tick_at_which_it_is_read(tmp_path):
    run = Run(tmp_path, RULE)
    assert not any(run.tick(0) for _ in range(200))
    assert run.tick(1)


def test_a_rule_rests_once_its_series_have_the_samples_that_it_needs_and_looks_up_every_ten_seconds(tmp_path):
    run = Run(tmp_path, RULE)
    for _ in range(16):  # the first samples came at 0.7 s; 15 s are left for late ones
        run.tick(0)
    assert [querier.asked for querier in run.queriers] == [16, 16]
    for _ in range(100):
        run.tick(0)
    assert [querier.asked for querier in run.queriers] == [26, 116]


def test_after_a_change_a_rule_rests_when_its_window_has_left_it_behind(tmp_path):
    run = Run(tmp_path, "increase(causes_total[1m]) > 5")
    for _ in range(30):
        run.tick(0)
    before = run.queriers[0].asked
    for _ in range(76):  # changed at 30.7 s; 60 s for the window and 15 s for late samples end at 105.7 s
        run.tick(1)
    assert run.queriers[0].asked - before == 76
    for _ in range(9):
        run.tick(1)
    assert run.queriers[0].asked - before == 76


def test_a_series_that_begins_or_ends_wakes_the_rule(tmp_path):
    run = Run(tmp_path, "serving unless on (log) causes_total")
    assert not any(run.tick(0) for _ in range(150))
    assert run.tick(None)
    run = Run(tmp_path, "causes_total")
    assert not any(run.tick(None) for _ in range(150))
    assert run.tick(0)


def test_the_end_of_a_target_wakes_the_rule(tmp_path):
    run = Run(tmp_path, "absent(serving)")
    assert not any(run.tick(0) for _ in range(150))
    fires = []
    for store, engine in zip(run.stores, run.engines, strict=True):
        store.mark_stale("log", START + 150_500)
        fires.append(len(engine.tick(START + 151_000).alerts))
    assert fires == [1, 1]


def test_an_alert_that_ends_with_its_window_ends_at_the_same_tick(tmp_path):
    run = Run(tmp_path, RULE)
    for _ in range(150):
        run.tick(0)
    fired = [run.tick(1) for _ in range(150)]
    assert fired[0]
    assert not fired[-1]


@pytest.mark.parametrize(
    ("expr", "names", "reach", "begun"),
    [
        ("x > 1", ("x",), 0, 0),
        ("rate(x[5m] offset 1m) > 1 and y", ("x", "y"), 360_000, 60_000),
        ("max_over_time(rate(x[1m])[10m:30s]) unless rate(y[2m])", ("x", "y"), 660_000, 660_000),
        ("x offset -1m * pi()", ("x",), 60_000, 60_000),
    ],
)
def test_what_a_rule_reads_is_its_names_and_the_longest_way_back(expr, names, reach, begun):
    assert reads(parse(expr)) == Reads(names, reach, begun)


@pytest.mark.parametrize(
    "expr",
    ["increase(causes_total[1m]) == 0", "rate(causes_total[30s] offset 1m) >= 0",
     "changes(serving[1m]) < 1 unless causes_total offset 40s",
     "max_over_time((causes_total == 2)[1m:10s])", "avg_over_time(causes_total[50s]) == 1",
     "deriv(causes_total[20s]) > 0"],
)  # fmt: skip
def test_with_and_without_rest_a_rule_says_the_same_at_every_tick(tmp_path, expr):
    run = Run(tmp_path, expr)
    for value, seconds in ((0, 130), (1, 140), (None, 40), (0, 100), (2, 130), (1, 60)):
        for _ in range(seconds):
            run.tick(value)


@pytest.mark.parametrize(
    "expr",
    ["time() - x > 5", "timestamp(x) > 5", "hour() > 5 and on () x", "count_over_time(x[1m]) < 5",
     "sum_over_time(x[1m]) < 5", "x @ 1 > 2",
     '{__name__=~"x.*"} > 1'],
)  # fmt: skip
def test_what_depends_on_the_time_never_rests(expr):
    assert reads(parse(expr)) is None
