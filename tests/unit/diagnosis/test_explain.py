from __future__ import annotations

import math
import subprocess
import sys

import pytest

from gpuwatch.alerts.engine import Evaluation
from gpuwatch.alerts.presence import Missing
from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.alerts.rulestate import RuleState
from gpuwatch.alerts.state import Alert
from gpuwatch.diagnosis.context import Context, Facts, selector
from gpuwatch.diagnosis.explain import Memory, explain
from gpuwatch.diagnosis.explanation import Unknown
from gpuwatch.diagnosis.registry import DIAGNOSES
from gpuwatch.model import Fact, series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.store import Store
from tests.unit.diagnosis.storms import START
from tests.unit.diagnosis.watch import ENGINE, SERVER, event, fact, name


def context(live=(), facts=(), events=(), seconds=2):
    store = Store()
    live = dict(live)
    keys = tuple(live)
    for second in range(seconds):
        store.append("t", START + second * 1000, keys, list(live.values()))
    return Context(LocalQuerier(store), START + (seconds - 1) * 1000, Facts(facts), tuple(events))


def alert(state="firing", labels=ENGINE, value=1.0, diagnosis="engine_stalled", **extra):
    labels = {**labels, "alertname": "X", **({"diagnosis": diagnosis} if diagnosis else {})}
    return Alert("X", tuple(sorted(labels.items())), value, state, START, fired_at=START, **extra)


FROZEN = {name("engine_page_frozen_seconds", ENGINE): 75.0}


def test_a_pending_alert_is_no_finding():
    findings, _ = explain(Evaluation(START, (alert("pending"),)), context(FROZEN))
    assert findings == ()


def test_an_alert_without_evidence_is_told_as_what_is_missing():
    findings, lacking = explain(Evaluation(START, (alert(),)), context())
    assert findings == ()
    assert [(item.id, item.missing, item.labels["server"]) for item in lacking] == [
        ("engine_stalled", "the engine's page, read twice", SERVER)
    ]


def test_a_finding_carries_the_identity_of_its_alert_and_no_rule_labels():
    (finding,), _ = explain(Evaluation(START, (alert(),)), context(FROZEN))
    assert finding.labels == ENGINE
    assert (finding.severity, finding.since) == ("critical", START)


def test_a_rule_that_always_fires_makes_no_finding_out_of_nothing():
    nothing = context()
    for diagnosis in DIAGNOSES.values():
        for labels in ({}, {"host": "h"}, ENGINE, {"host": "h", "uuid": "GPU-0", "gpu": "0"}):
            verdict = diagnosis.explain(nothing.about(labels, "Mine", 1.0))
            assert isinstance(verdict, Unknown) or not verdict.evidence, (diagnosis.id, labels)


def test_an_engine_whose_page_is_read_is_not_down_whatever_a_rule_says():
    source = {"host": ENGINE["host"], "source": "engine", "target": SERVER, "server": SERVER}
    always = alert(diagnosis="engine_down")
    findings, lacking = explain(Evaluation(START, (always,)), context({name("source_up", source): 1.0}))
    assert (findings, [item.id for item in lacking]) == ((), ["engine_down"])
    (finding,), _ = explain(Evaluation(START, (always,)), context({name("source_up", source): 0.0}))
    assert finding.cause.startswith(f"{SERVER} has never answered")


RULE = next(rule for rule in load(shipped_paths()).alerts if rule.id == "engine_stalled")
OTHER_ENGINE = {**ENGINE, "server": "other:1"}


def lacks(*servers, status="not_evaluable"):
    return RuleState(RULE, status, missing=tuple(Missing(("m",), server) for server in servers))


def unjudged(*rules, alerts=()):
    _, lacking = explain(Evaluation(START, alerts, rules=rules), context(FROZEN))
    return [(item.id, item.missing, item.labels.get("server")) for item in lacking]


def test_a_finding_of_one_engine_does_not_hide_that_another_cannot_be_judged():
    needs = ("engine_stalled", "needs m", "other:1")
    assert unjudged(lacks("other:1", status="firing"), alerts=(alert(),)) == [needs]
    assert unjudged(lacks("other:1", status="pending")) == [needs]
    # the same for the engine that has the finding: another rule has judged it
    assert unjudged(lacks(SERVER, "other:1", status="firing"), alerts=(alert(),)) == [needs]


def test_an_engine_that_one_of_several_rules_can_judge_is_judged():
    assert unjudged(lacks(SERVER, "other:1"), lacks("other:1")) == [("engine_stalled", "needs m", "other:1")]
    assert unjudged(lacks(SERVER, "other:1"), lacks(status="ok")) == []
    assert unjudged(lacks(SERVER), lacks("")) == [("engine_stalled", "needs m", SERVER)]


def test_each_engine_without_evidence_is_told():
    _, lacking = explain(Evaluation(START, (alert(), alert(labels=OTHER_ENGINE))), context())
    assert [item.labels["server"] for item in lacking] == [SERVER, "other:1"]


def test_a_rule_that_sees_the_harmless_side_of_an_id_makes_a_milder_finding():
    for severity in ("warning", "critical"):
        (finding,), _ = explain(Evaluation(START, (alert(labels={**ENGINE, "severity": severity}),)), context(FROZEN))
        assert finding.severity == severity


def test_a_users_own_rule_is_shown_as_it_speaks():
    own = alert(
        diagnosis="", labels={"server": "a"}, value=0.25, annotations={"summary": "Odd", "description": "It is 25 %."}
    )
    (finding,), _ = explain(Evaluation(START, (own,)), context())
    assert (finding.id, finding.title, finding.cause, finding.severity) == ("X", "Odd", "It is 25 %.", "warning")
    assert finding.evidence[0].value == 0.25


def test_with_memory_an_explanation_is_reused_while_it_is_fresh():
    memory = Memory()
    asked = []

    class Counting:
        def __init__(self, inner):
            self.inner = inner

        def instant(self, expr, time):
            asked.append(expr)
            return self.inner.instant(expr, time)

    store = context(FROZEN, seconds=10)
    counting = Context(Counting(store.querier), START + 5000, store.facts)
    evaluation = Evaluation(START, (alert(),))
    explain(evaluation, counting, memory)
    first = len(asked)
    explain(evaluation, counting.at(START + 6000), memory)
    assert len(asked) == first
    explain(evaluation, counting.at(START + 7000), memory)
    assert len(asked) > first
    explain(Evaluation(START, ()), counting, memory)
    assert memory.said == {}


@pytest.mark.parametrize(
    ("value", "text"), [('a"b', r'x{k="a\"b"}'), ("a\\b", r'x{k="a\\b"}'), ("a\nb", r'x{k="a\nb"}'), ("", 'x{k=""}')]
)
def test_label_values_are_quoted_as_promql_wants_them(value, text):
    assert selector("x", {"k": value}) == text


def test_one_engine_is_never_answered_with_the_figures_of_another():
    other = {**ENGINE, "dp_rank": "1"}
    ranks = {name("engine_requests_running", ENGINE): 3.0, name("engine_requests_running", other): 9.0}
    moment = context(ranks)
    assert moment.about(ENGINE).now("engine_requests_running") == 3
    assert moment.about(other).now("engine_requests_running") == 9
    assert moment.about({**ENGINE, "dp_rank": "2"}).now("engine_requests_running") is None


def test_series_that_contradict_each_other_are_no_answer():
    rows = {
        series("gpuwatch_engine_config_max_num_seqs", host="h", server=SERVER, engine_kind="vllm"): 16.0,
        series("gpuwatch_engine_config_max_num_seqs", host="h", server=SERVER): 8.0,
    }
    assert context(rows).about(ENGINE).now("engine_config_max_num_seqs", ("host", "server")) is None


def test_a_value_that_is_not_a_number_is_no_answer():
    assert (
        context({name("engine_requests_running", ENGINE): math.nan}).about(ENGINE).now("engine_requests_running")
        is None
    )


def test_a_broken_expression_is_no_answer():
    assert context().about(ENGINE).ask("rate(") is None


def test_the_series_of_a_setting_counts_before_the_fact():
    setting = series("gpuwatch_engine_config_max_num_seqs", host="h", server=SERVER, engine_kind="vllm")
    assert context({setting: 8.0}, [fact("max_num_seqs", 16)]).about(ENGINE).config("max_num_seqs", "max_num_seqs") == 8
    assert context({}, [fact("max_num_seqs", 16)]).about(ENGINE).config("max_num_seqs", "max_num_seqs") == 16


def test_a_log_of_an_unknown_server_speaks_for_the_only_engine():
    one = Facts([fact("max_num_seqs", 16, server="")])
    assert one.get(SERVER, "max_num_seqs").value == 16
    two = Facts([fact("max_num_seqs", 16, server=""), fact("tp", 1, server="10.0.0.1:8000")])
    assert two.get(SERVER, "max_num_seqs") is None


def test_a_new_run_of_the_server_forgets_what_the_old_one_said():
    facts = Facts([fact("started", "line", 1), fact("kv.blocks_override", 40, 43)])
    facts.update([fact("started", "line", 1)])
    assert facts.get(SERVER, "kv.blocks_override").value == 40
    facts.update([fact("started", "line", 900), fact("max_num_seqs", 8, 905)])
    assert facts.get(SERVER, "kv.blocks_override") is None
    assert [item.key for item in facts.all()] == ["max_num_seqs", "started"]


def test_a_fact_in_words_is_no_number():
    facts = [
        fact("max_num_seqs", "many"),
        Fact("tp", value=True, source="x", server=SERVER),
        Fact("pp", 2, "x", server=SERVER),
    ]
    about = context({}, facts).about(ENGINE)
    assert (about.number("max_num_seqs"), about.number("tp"), about.number("pp")) == (None, None, 2)


def test_events_of_another_server_and_old_ones_are_left_out():
    events = [
        event("torch_oom", "mine", 100),
        event("torch_oom", "theirs", 100, server="10.0.0.1:8000"),
        event("torch_oom", "old", 1),
        event("xid", "other kind", 100),
    ]
    moment = Context(LocalQuerier(Store()), START + 120_000, Facts(), tuple(events))
    assert [item.text for item in moment.about(ENGINE).events("torch_oom", seconds=60)] == ["mine"]


def test_the_families_of_diagnoses_are_loaded_when_an_alert_is_explained():
    code = "import sys, gpuwatch.pipeline.core, gpuwatch.pipeline.log_causes, gpuwatch.cli.check; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    names = set(loaded.stdout.split())
    assert "gpuwatch.diagnosis.explain" in names
    assert not names & {"gpuwatch.diagnosis.registry", "gpuwatch.diagnosis.kv", "gpuwatch.diagnosis.hang", "statistics"}


@pytest.mark.parametrize(
    ("shown", "told", "version"),
    [("0.24.0", "0.9.0", (0, 24, 0)), ("", "0.9.0", (0, 9, 0)), ("", None, None), ("dev", None, None)],
)
def test_the_version_is_the_page_s_else_what_a_log_told(shown, told, version):
    live = {name("engine_info", {"host": "h", "server": SERVER, "engine_kind": "vllm"}, version=shown): 1.0}
    facts = [fact("version", told)] if told else []
    assert context(live, facts).about({"host": "h", "server": SERVER}).version == version


def test_a_log_of_no_engine_is_no_evidence_about_one_of_two_engines():
    up = {"host": "h", "source": "engine", "target": "t"}
    lines = [event("torch_oom", "nobody's", 1, server=""), event("xid", "its GPU", 1, server="", pci="0000:01:00.0")]
    placed = {
        name("gpu_engine", {"host": "h", "uuid": "GPU-0", "server": SERVER}): 1.0,
        name("gpu_info", {"host": "h", "uuid": "GPU-0", "pci_bus_id": "00000000:01:00.0"}): 1.0,
    }
    one = {**placed, name("source_up", up, server=SERVER): 1.0}
    two = {**one, name("source_up", up, server="127.0.0.1:8001"): 1.0}
    kinds = ("torch_oom", "xid")
    assert [e.text for e in context(one, (), lines).about(ENGINE).events(*kinds)] == ["nobody's", "its GPU"]
    assert [e.text for e in context(two, (), lines).about(ENGINE).events(*kinds)] == ["its GPU"]
    other = context(two, (), lines).about({**ENGINE, "server": "127.0.0.1:8001"})
    assert other.events(*kinds) == ()


def test_a_log_of_no_engine_sets_nothing_for_one_of_two_engines():
    told = [fact("tp", 2, server=""), fact("flag.seed", 7, server="")]
    ups = [
        name("source_up", {"host": "h", "source": "engine", "target": each}, server=each)
        for each in (SERVER, "127.0.0.1:8001")
    ]
    alone = context({ups[0]: 1.0}, told).about(ENGINE)
    assert (alone.number("tp"), alone.flags()) == (2, {"seed": 7})
    not_alone = context(dict.fromkeys(ups, 1.0), told).about(ENGINE)
    assert (not_alone.number("tp"), not_alone.flags()) == (None, {})
