"""The rule engine on a real store and querier: alerts, series it writes, errors, what it cannot evaluate."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from gpuwatch.alerts.engine import MOST_SERIES, RuleEngine
from gpuwatch.alerts.rulefile import load
from gpuwatch.alerts.state import Saved
from gpuwatch.model import Labels, series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.store import Store

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000
START = 1_700_000_000_000


class World:
    """A store, rules over it, and a clock of one second per tick."""

    def __init__(self, folder: Path, rules: str, **options) -> None:
        path = folder / "rules.yml"
        path.write_text(dedent(rules))
        loaded = load([path])
        assert loaded.problems == (), [str(problem) for problem in loaded.problems]
        self.store = Store()
        self.querier = LocalQuerier(self.store)
        self.engine = RuleEngine(loaded, self.querier, self.store, **options)
        self.time = START

    def tick(self, samples: dict[Labels, float] | None = None, seconds: float = 1):
        self.time += round(seconds * SECOND)
        samples = samples or {}
        self.store.append("source", self.time, tuple(samples), list(samples.values()))
        return self.engine.tick(self.time)

    def ask(self, expr: str) -> dict[Labels, float]:
        return dict(self.querier.instant(expr, self.time).items())


HOT = """\
    groups:
      - name: g
        rules:
          - alert: Hot
            expr: temperature > 90
            for: 2s
            keep_firing_for: 2s
            labels: {severity: warning, where: 'card {{ $labels.gpu }}'}
            annotations: {summary: 'now {{ $value | printf "%.1f" }}'}
    """


def test_an_alert_runs_through_its_life(tmp_path):
    world = World(tmp_path, HOT)
    gpu = series("temperature", gpu="0")
    seen = []
    for value in (80, 95, 96, 97, 85, 85, 85):
        evaluation = world.tick({gpu: value})
        seen.append([(alert.state, alert.value) for alert in evaluation.alerts])
    assert seen == [
        [],
        [("pending", 95.0)],
        [("pending", 96.0)],
        [("firing", 97.0)],
        [("firing", 97.0)],
        [("firing", 97.0)],
        [("resolved", 97.0)],
    ]


def states(evaluation):
    return {alert.name: alert.state for alert in evaluation.alerts}


RESTING = """\
    groups:
      - name: g
        rules:
          - {alert: Warm, expr: temperature > 90, for: 20s}
          - {alert: Brief, expr: temperature > 90, for: 4s}
          - {alert: Hot, expr: temperature > 90}
    """


def test_a_rule_with_a_long_for_rests_until_the_next_part_of_the_clock_and_then_looks_at_every_tick(tmp_path):
    world = World(tmp_path, RESTING, looks=4)
    gpu = series("temperature", gpu="0")
    world.tick({gpu: 80})
    seen = [states(world.tick({gpu: 95})) for _ in range(23)]
    assert seen[:3] == [{"Brief": "pending", "Hot": "firing"}] * 3
    assert seen[3] == {"Warm": "pending", "Brief": "pending", "Hot": "firing"}  # five seconds after the start
    assert [found["Warm"] for found in seen[3:]] == ["pending"] * 20  # since five, so that it fires at 25
    assert states(world.tick({gpu: 95}))["Warm"] == "firing"


def test_a_rule_that_is_pending_does_not_rest(tmp_path):
    world = World(tmp_path, RESTING, looks=4)
    gpu = series("temperature", gpu="0")
    for _ in range(5):
        world.tick({gpu: 95})
    assert "Warm" in states(world.tick({gpu: 95}))
    assert "Warm" not in states(world.tick({gpu: 80}))
    assert "Warm" not in states(world.tick({gpu: 95}))  # it begins anew, in the next part


def test_the_parts_of_rest_are_those_of_the_clock_whenever_the_run_began(tmp_path):
    gpu = series("temperature", gpu="0")
    starts = set()
    for late in (0, 1, 2, 3):
        (tmp_path / str(late)).mkdir()
        world = World(tmp_path / str(late), RESTING, looks=4)
        world.time += late * SECOND
        world.tick({gpu: 80})
        while world.time < START + 12 * SECOND:
            last = world.tick({gpu: 95})
        starts |= {alert.active_at for alert in last.alerts if alert.name == "Warm"}
    assert starts == {START + 5 * SECOND}


def test_labels_and_annotations_are_rendered(tmp_path):
    world = World(tmp_path, HOT)
    (alert,) = world.tick({series("temperature", gpu="3", host="n"): 95.25}).alerts
    assert alert.labels == (
        ("alertname", "Hot"),
        ("gpu", "3"),
        ("host", "n"),
        ("severity", "warning"),
        ("where", "card 3"),
    )
    assert alert.annotations == {"summary": "now 95.2"}
    assert (alert.label("gpu"), alert.label("nothing")) == ("3", "")


def test_annotations_of_an_alert_that_goes_on_are_rendered_anew_after_the_time_that_is_set(tmp_path):
    world = World(tmp_path, HOT, refresh_ms=3_000)
    gpu = series("temperature", gpu="0")
    seen = [world.tick({gpu: value}).alerts[0].annotations["summary"] for value in (91, 92, 93, 94, 95)]
    assert seen == ["now 91.0", "now 91.0", "now 91.0", "now 94.0", "now 94.0"]
    world.tick({gpu: 80}, seconds=1)
    assert world.tick({gpu: 96}).alerts[0].annotations["summary"] == "now 96.0"


def test_a_template_may_query_the_store(tmp_path):
    world = World(
        tmp_path,
        """\
        groups:
          - name: g
            rules:
              - alert: Hot
                expr: temperature > 90
                annotations:
                  name: '{{ with query "gpu_info" }}{{ . | first | label "name" }}{{ end }}'
        """,
    )
    (alert,) = world.tick({series("temperature"): 95, series("gpu_info", name="H100"): 1}).alerts
    assert alert.annotations == {"name": "H100"}


def test_alerts_series_are_written_and_end_with_their_state(tmp_path):
    world = World(tmp_path, HOT)
    gpu = series("temperature", gpu="0")
    labels = {"alertname": "Hot", "gpu": "0", "severity": "warning", "where": "card 0"}
    world.tick({gpu: 95})
    started = world.time // 1000
    assert world.ask("ALERTS") == {series("ALERTS", alertstate="pending", **labels): 1.0}
    assert world.ask("ALERTS_FOR_STATE") == {series("ALERTS_FOR_STATE", **labels): float(started)}
    world.tick({gpu: 95})
    world.tick({gpu: 95})
    assert world.ask("ALERTS") == {series("ALERTS", alertstate="firing", **labels): 1.0}
    assert world.ask("ALERTS_FOR_STATE") == {series("ALERTS_FOR_STATE", **labels): float(started)}
    for _ in range(3):
        world.tick({gpu: 50})
    assert world.ask("ALERTS") == {}
    assert world.ask("ALERTS_FOR_STATE") == {}


RECORD = """\
    groups:
      - name: g
        rules:
          - record: host:heat:max
            expr: max by (host, gpu) (temperature > 0)
            labels: {unit: celsius, gpu: ''}
          - alert: HostHot
            expr: host:heat:max > 90
    """


def test_recorded_series_are_seen_by_later_rules_in_the_same_tick_and_end_with_their_source(tmp_path):
    world = World(tmp_path, RECORD)
    evaluation = world.tick({series("temperature", host="n"): 95})
    assert world.ask("host:heat:max") == {series("host:heat:max", host="n", unit="celsius"): 95.0}
    assert [(alert.name, alert.state) for alert in evaluation.alerts] == [("HostHot", "firing")]
    world.tick({series("temperature", host="n"): 97})
    assert world.ask("host:heat:max") == {series("host:heat:max", host="n", unit="celsius"): 97.0}
    world.tick({})
    assert world.ask("host:heat:max") == {}


def test_recorded_series_that_become_equal_are_an_error(tmp_path):
    world = World(tmp_path, RECORD)
    evaluation = world.tick({series("temperature", gpu="0"): 95, series("temperature", gpu="1"): 95})
    (error,) = evaluation.errors
    assert error.rule == "host:heat:max"
    assert "the same labels" in error.message


def test_a_failing_rule_keeps_its_alerts_is_counted_and_stops_nothing(tmp_path):
    world = World(
        tmp_path,
        """\
        groups:
          - name: g
            rules:
              - {alert: Ratio, expr: a / on (x) b > 1}
              - {alert: Other, expr: c > 0}
        """,
    )
    good = {series("a", x="1"): 4, series("b", x="1"): 2}
    assert [alert.name for alert in world.tick(good).alerts] == ["Ratio"]
    # Two series of b match the one of a: an error in PromQL, not a choice.
    many = {**good, series("b", x="1", y="1"): 1, series("c"): 1}
    for failures in (1, 2):
        evaluation = world.tick(many)
        assert [(alert.name, alert.state) for alert in evaluation.alerts] == [("Ratio", "firing"), ("Other", "firing")]
        (error,) = evaluation.errors
        assert (error.rule, error.file, error.line) == ("Ratio", str(tmp_path / "rules.yml"), 4)
        ratio = evaluation.rules[0]
        assert (ratio.status, ratio.failures, ratio.firing) == ("error", failures, 1)
        assert ratio.detail == error.message
    assert world.tick(good).rules[0].status == "firing"


def test_label_sets_that_become_equal_are_an_error(tmp_path):
    world = World(
        tmp_path,
        """\
        groups:
          - name: g
            rules:
              - {alert: Same, expr: m > 0, labels: {gpu: any}}
        """,
    )
    evaluation = world.tick({series("m", gpu="0"): 1, series("m", gpu="1"): 1})
    assert evaluation.alerts == ()
    (error,) = evaluation.errors
    assert "the same labels" in error.message


def test_a_template_that_fails_is_visible_and_the_alert_goes_on(tmp_path):
    world = World(
        tmp_path,
        """\
        groups:
          - name: g
            rules:
              - alert: Hot
                expr: m > 0
                annotations: {summary: '{{ query "nothing" | first | value }}', other: fine}
        """,
    )
    evaluation = world.tick({series("m"): 1})
    (alert,) = evaluation.alerts
    assert alert.annotations["summary"].startswith("<error expanding template: ")
    assert alert.annotations["other"] == "fine"
    (error,) = evaluation.errors
    assert (error.rule, error.expansion) == ("Hot", True)
    assert evaluation.rules[0].status == "firing"


def test_a_template_that_failed_is_told_at_every_tick_although_it_is_not_rendered_again(tmp_path):
    rules = """\
        groups:
          - name: g
            rules:
              - alert: Hot
                expr: m > 0
                annotations: {summary: '{{ query "nothing" | first | value }}'}
        """
    world = World(tmp_path, rules, refresh_ms=60_000)
    assert [len(world.tick({series("m"): 1}).errors) for _ in range(3)] == [1, 1, 1]


def many_series(count: int) -> dict[Labels, float]:
    return {series("m", i=str(number)): 1.0 for number in range(count)}


def test_more_alerts_than_the_limit_are_an_error(tmp_path):
    world = World(tmp_path, "groups: [{name: g, rules: [{alert: A, expr: m > 0}]}]")
    assert len(world.tick(many_series(MOST_SERIES)).alerts) == MOST_SERIES
    evaluation = world.tick(many_series(MOST_SERIES + 1))
    assert evaluation.alerts == ()
    (error,) = evaluation.errors
    assert error.message == "gives 1,001 series; at most 1,000 are allowed"


def test_the_limit_of_a_group_counts(tmp_path):
    world = World(tmp_path, "groups: [{name: g, limit: 2, rules: [{alert: A, expr: m > 0}, {record: r, expr: m}]}]")
    assert world.tick(many_series(2)).errors == ()
    assert [error.rule for error in world.tick(many_series(3)).errors] == ["A", "r"]


def test_a_symptom_is_marked_with_its_cause(tmp_path):
    world = World(
        tmp_path,
        """\
        groups:
          - name: g
            rules:
              - {alert: Storm, expr: evictions > 0, labels: {diagnosis: kv_preemption_storm}}
              - {alert: Full, expr: usage > 0.9, labels: {diagnosis: kv_pool_saturated}}
        """,
    )
    engine = {"host": "n", "server": "s"}
    evaluation = world.tick({series("evictions", **engine): 3, series("usage", **engine): 0.99})
    assert [(alert.name, alert.inhibited_by) for alert in evaluation.alerts] == [("Storm", ""), ("Full", "Storm")]
    assert [(rule.firing, rule.inhibited) for rule in evaluation.rules] == [(1, 0), (1, 1)]


def test_rules_that_take_over_keep_what_is_kept_firing_or_resolved_of_equal_rules(tmp_path):
    world = World(tmp_path, HOT)
    gpu = series("temperature", gpu="0")
    for value in (95, 96, 97, 85):
        world.tick({gpu: value})
    (tmp_path / "again").mkdir()
    for rules, want in ((HOT, ["firing", "resolved"]), (HOT.replace("> 90", "> 91"), [])):
        again = World(tmp_path / "again", rules)
        again.engine.take_over(world.engine)
        again.time = world.time
        seen = [alert.state for _ in range(2) for alert in again.tick({gpu: 85}).alerts]
        assert seen == want


def test_saved_starts_survive_a_restart(tmp_path):
    before = World(tmp_path, HOT)
    gpu = series("temperature", gpu="0")
    for _ in range(4):
        before.tick({gpu: 95})
    saved = before.engine.saved(before.time)
    assert [(item.active_at, item.fired_at) for item in saved] == [(START + SECOND, START + 3 * SECOND)]
    after = World(tmp_path, HOT)
    after.time = before.time + 60 * SECOND
    after.engine.restore(saved)
    after.tick({})  # the source has not delivered yet
    (alert,) = after.tick({gpu: 95}).alerts
    assert (alert.state, alert.active_at, alert.fired_at) == ("firing", START + SECOND, START + 3 * SECOND)


def test_a_saved_start_is_not_used_five_minutes_later(tmp_path):
    world = World(tmp_path, HOT)
    gpu = series("temperature", gpu="0")
    labels = world.tick({gpu: 95}).alerts[0].labels
    world = World(tmp_path, HOT)
    world.engine.restore([Saved(labels, START - 60_000, START - 1_000, START - 50_000)])
    world.tick({})
    (alert,) = world.tick({gpu: 95}, seconds=301).alerts
    assert (alert.state, alert.active_at) == ("pending", world.time)


@pytest.mark.parametrize(
    ("expr", "samples", "expected"),
    [
        ("m > 90", {"0": 80.0, "1": 95.0}, [("m > 90", "1", 95.0, 90.0)]),
        ("m < 10", {"0": 80.0, "1": 95.0}, [("m < 10", "0", 80.0, 10.0)]),
        ("90 < m", {"0": 80.0}, [("m > 90", "0", 80.0, 90.0)]),
        ("m == 85", {"0": 80.0, "1": 95.0}, [("m == 85", "0", 80.0, 85.0)]),
        ("m != 85", {"0": 80.0, "1": 95.0}, [("m != 85", "1", 95.0, 85.0)]),
        ("m > 90 and m < 99", {"0": 80.0}, [("m > 90", "0", 80.0, 90.0), ("m < 99", "0", 80.0, 99.0)]),
        ("m > 90 and nothing > 5", {"0": 80.0}, [("m > 90", "0", 80.0, 90.0)]),
        ("m > 90", {"0": float("nan")}, []),
    ],
)
def test_readings_are_the_values_nearest_to_firing(tmp_path, expr, samples, expected):
    world = World(tmp_path, f"groups: [{{name: g, rules: [{{alert: A, expr: '{expr}'}}]}}]")
    world.tick({series("m", i=key): value for key, value in samples.items()})
    (rule,) = world.engine.rules.alerts
    found = world.engine.readings(rule, world.time)
    assert [(item.text, dict(item.labels)["i"], item.value, item.threshold) for item in found] == expected
