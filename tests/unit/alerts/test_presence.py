"""A rule whose series do not exist cannot be evaluated, and says what it needs and for which engine."""

from __future__ import annotations

import pytest

from gpuwatch.alerts.engine import RuleEngine
from gpuwatch.alerts.rulefile import load
from gpuwatch.alerts.rulestate import RuleState
from gpuwatch.model import Labels, series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.store import Store

START = 1_700_000_000_000


class World:
    def __init__(self, folder, *exprs: str, recorded: dict[str, str] | None = None) -> None:
        rules = [f"{{record: '{name}', expr: '{expr}'}}" for name, expr in (recorded or {}).items()]
        rules += [f"{{alert: A{number}, expr: '{expr}'}}" for number, expr in enumerate(exprs)]
        path = folder / "r.yml"
        path.write_text(f"groups: [{{name: g, rules: [{', '.join(rules)}]}}]")
        loaded = load([path])
        assert loaded.problems == (), loaded.problems
        self.store = Store()
        self.engine = RuleEngine(loaded, LocalQuerier(self.store), self.store)
        self.skip = len(recorded or {})
        self.time = START

    def states(self, *samples: Labels, down: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        """Let ten seconds pass, give every sample the value 0 (0 for sources that are down, 1 for the others)."""
        self.time += 10_000
        values = [float("source" in dict(labels) and dict(labels)["server"] not in down) for labels in samples]
        self.store.append("source", self.time, samples, values)
        return [(state.status, state.detail) for state in self.rules()]

    def rules(self) -> tuple[RuleState, ...]:
        return self.engine.tick(self.time).rules[self.skip :]


def engine(name: str, server: str = "s:1", kind: str = "vllm") -> Labels:
    return series("gpuwatch_engine_" + name, host="n", server=server, engine_kind=kind)


def source(server: str) -> Labels:
    return series("gpuwatch_source_up", source="engine", target=f"engine:{server}", server=server)


def needs(*names: str) -> str:
    return "needs " + ", ".join("gpuwatch_engine_" + name for name in names)


def test_nothing_is_there(tmp_path):
    world = World(
        tmp_path,
        "gpuwatch_gpu_power_watts > 5",
        "gpuwatch_engine_requests_waiting > 5",
        "gpuwatch_log_events_total > 5",
        "gpuwatch_host_swap_used_bytes > 5",
        "my_own_metric > 5",
        "gpuwatch_gpu_power_watts > 5 and on (host) my_own_metric > 5",
    )
    assert world.states() == [
        ("not_evaluable", "cannot evaluate: no GPU is seen"),
        ("not_evaluable", "cannot evaluate: no engine is seen"),
        ("not_evaluable", "cannot evaluate: no log is read"),
        ("not_evaluable", "cannot evaluate: the host is not read"),
        ("not_evaluable", "cannot evaluate: needs my_own_metric"),
        ("not_evaluable", "cannot evaluate: needs gpuwatch_gpu_power_watts, my_own_metric"),
    ]


def test_a_gpu_without_one_series_is_not_a_machine_without_gpu(tmp_path):
    world = World(tmp_path, "gpuwatch_gpu_power_watts > 5")
    state = series("gpuwatch_gpu_state", uuid="u", state="ok")
    assert world.states(state) == [("not_evaluable", "cannot evaluate: needs gpuwatch_gpu_power_watts")]
    assert world.states(state, series("gpuwatch_gpu_power_watts", uuid="u")) == [("ok", "")]


def test_a_gpu_that_something_unseen_uses_is_named(tmp_path):
    world = World(tmp_path, "gpuwatch_gpu_memory_step_bytes > 5")

    def look(*steps: int) -> list[tuple[str, str]]:
        keys, values = [], []
        for gpu, used in enumerate((70.0, 60.0, 1.0)):  # of 80; the last one shows a screen
            labels = {"host": "n", "uuid": f"u{gpu}", "gpu": str(gpu)}
            keys += [series(f"gpuwatch_gpu_memory_{name}_bytes", **labels) for name in ("used", "total")]
            values += [used, 80.0]
            if gpu in steps:
                keys.append(series("gpuwatch_gpu_memory_step_bytes", **labels))
                values.append(0.0)
        world.time += 10_000
        world.store.append("gpus", world.time, tuple(keys), values)
        return [(state.status, state.detail) for state in world.rules()]

    unseen = "not every engine that uses it is polled and answers"
    assert look() == [("not_evaluable", f"cannot evaluate: GPU 0, 1: {unseen}")]
    assert look(0) == [("not_evaluable", f"cannot evaluate: GPU 1: {unseen}")]
    assert look(0, 1) == [("ok", "")]


def test_a_series_that_ends_makes_the_rule_unknown_again(tmp_path):
    world = World(tmp_path, "m > 5")
    assert world.states(series("m")) == [("ok", "")]
    assert world.states() == [("not_evaluable", "cannot evaluate: needs m")]


@pytest.mark.parametrize(
    ("expr", "lacking"),
    [
        ("a > 1 or b > 1", ""),
        ("b > 1 or c > 1", "b"),
        ("a > 1 and b > 1", "b"),
        ("a > 1 unless b > 1", ""),
        ("a / b > 1", "b"),
        ("absent(b)", ""),
        ("a > 1 and absent(b)", ""),
        ("vector(1) > 2", ""),
        ("rate(b[1m]) > 1 or c > 1 and a > 1", "b"),
    ],
)
def test_what_an_expression_needs(tmp_path, expr, lacking):
    world = World(tmp_path, expr)
    ((status, detail),) = world.states(series("a"))
    if lacking:
        assert (status, detail) == ("not_evaluable", f"cannot evaluate: needs {lacking}")
    else:
        assert status != "not_evaluable"


def test_each_engine_that_lacks_a_series_is_named(tmp_path):
    world = World(tmp_path, "gpuwatch_engine_evictions_total > 5 and gpuwatch_engine_requests_waiting > 0")
    waiting = [engine("requests_waiting", server) for server in ("s:1", "s:2", "s:3")]
    ((status, detail),) = world.states(*waiting, engine("evictions_total", "s:2"))
    assert (status, detail) == ("not_evaluable", f"cannot evaluate: s:1, s:3: {needs('evictions_total')}")
    (state,) = world.rules()
    assert [(item.server, item.metrics) for item in state.missing] == [
        ("s:1", ("gpuwatch_engine_evictions_total",)),
        ("s:3", ("gpuwatch_engine_evictions_total",)),
    ]
    everyone = [engine("evictions_total", server) for server in ("s:1", "s:2", "s:3")]
    assert world.states(*waiting, *everyone) == [("ok", "")]


def test_an_engine_that_is_known_only_by_its_failing_source_is_named(tmp_path):
    world = World(tmp_path, "gpuwatch_engine_requests_waiting > 5")
    there = [engine("requests_waiting", "s:1"), source("s:1"), source("s:2"), source("s:3")]
    assert world.states(*there, down=("s:2",)) == [
        ("not_evaluable", f"cannot evaluate: s:2: the engine does not answer; s:3: {needs('requests_waiting')}")
    ]


def test_an_engine_may_meet_either_side_of_or(tmp_path):
    world = World(tmp_path, "gpuwatch_engine_requests_waiting > 5 and (gpuwatch_engine_a > 1 or gpuwatch_engine_b > 1)")
    waiting = [engine("requests_waiting", server) for server in ("s:1", "s:2", "s:3")]
    ((_, detail),) = world.states(*waiting, engine("a", "s:1"), engine("b", "s:2"))
    assert detail == f"cannot evaluate: s:3: {needs('a')}"


def test_a_rule_about_one_kind_of_engine_is_not_missing_on_the_other(tmp_path):
    world = World(
        tmp_path,
        'gpuwatch_engine_new_token_ratio{engine_kind="sglang"} > 5',
        'gpuwatch_engine_preemptions_total{engine_kind!="sglang"} > 5',
    )
    sglang = engine("new_token_ratio", "g:1", "sglang")
    vllm = engine("preemptions_total", "v:1", "vllm")
    assert world.states(sglang, vllm) == [("ok", ""), ("ok", "")]
    no_kind = "cannot evaluate: no engine of the kind it is about is seen"
    assert world.states(vllm) == [("not_evaluable", no_kind), ("ok", "")]


def test_a_firing_rule_still_says_what_it_cannot_judge(tmp_path):
    world = World(tmp_path, "gpuwatch_engine_a >= 0")
    ((status, detail),) = world.states(engine("a", "s:1"), source("s:2"))
    assert (status, detail) == ("firing", f"cannot evaluate: s:2: {needs('a')}")


def test_a_recorded_series_needs_what_it_is_recorded_from(tmp_path):
    world = World(tmp_path, "rec:m > 5", recorded={"rec:m": "sum(m) > 3"})
    assert world.states() == [("not_evaluable", "cannot evaluate: needs m")]
    assert world.states(series("m")) == [("ok", "")]


def test_alerts_about_alerts_need_nothing(tmp_path):
    world = World(tmp_path, 'ALERTS{alertstate="firing"} == 1')
    assert world.states() == [("ok", "")]


def test_what_comes_in_the_first_seconds_is_known_at_once(tmp_path):
    world = World(tmp_path, "gpuwatch_gpu_power_watts > 5")
    world.store.append("source", START, (series("gpuwatch_host_memory_total_bytes"),), [1.0])
    world.time = START
    assert world.rules()[0].detail == "cannot evaluate: no GPU is seen"
    world.time = START + 1000
    gpu = (series("gpuwatch_gpu_state"), series("gpuwatch_gpu_power_watts"))
    world.store.append("source", world.time, gpu, [1.0, 1.0])
    assert world.rules()[0].detail == ""
