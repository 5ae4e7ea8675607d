"""A user's rule under the name or the id of a shipped one."""

from __future__ import annotations

import pytest

from gpuwatch.alerts.engine import RuleEngine
from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.diagnosis.context import Context, Facts
from gpuwatch.diagnosis.explain import explain
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.store import Store
from tests.unit.diagnosis.storms import START
from tests.unit.diagnosis.watch import ENGINE, name

GPU = {"host": ENGINE["host"], "uuid": "GPU-0", "gpu": "0"}


def findings_of(tmp_path, rules, live, seconds=61):
    """Return the findings after `seconds` of the constant series `live`, with the user's `rules` over the shipped."""
    path = tmp_path / "mine.yml"
    path.write_text(f"groups:\n  - name: mine\n    rules:\n{rules}")
    loaded = load(shipped_paths(), [path])
    assert loaded.problems == ()
    store = Store()
    querier = LocalQuerier(store)
    engine = RuleEngine(loaded, querier, store, statuses=False)
    keys = tuple(live)
    for second in range(seconds):
        now = START + second * 1000
        store.append("t", now, keys, list(live.values()))
        evaluation = engine.tick(now)
    return explain(evaluation, Context(querier, now, Facts()))[0]


def saturated(usage, waiting):
    return {
        name("engine_kv_cache_usage_ratio", ENGINE): usage,
        name("engine_requests_waiting", ENGINE): waiting,
        name("engine_requests_running", ENGINE): 4.0,
        name("engine_evictions_total", ENGINE): 0.0,
        name("engine_preemptions_total", ENGINE): 0.0,
    }


POOL = """
      - alert: GpuwatchKvPoolSaturated
        expr: gpuwatch_engine_kv_cache_usage_ratio > 0.3
        labels: {severity: critical, diagnosis: kv_pool_saturated}
        annotations: {summary: My pool, description: 'My limit is 30 %.'}
"""


def test_a_rule_that_replaces_a_shipped_one_keeps_its_severity_and_texts(tmp_path):
    (finding,) = findings_of(tmp_path, POOL, saturated(0.44, 0.0))
    assert (finding.id, finding.severity, finding.title) == ("kv_pool_saturated", "critical", "My pool")
    assert finding.evidence[0].value == 0.44


def test_a_diagnosis_whose_own_conditions_do_not_hold_is_not_told(tmp_path):
    (finding,) = findings_of(tmp_path, POOL, saturated(0.44, 0.0))
    assert finding.cause == (
        "My limit is 30 %. It cannot be explained as kv_pool_saturated: what the shipped rule asks for does not hold."
    )
    assert finding.advice == ()


def test_where_the_shipped_rule_holds_too_its_explanation_stands_beside_the_users_words(tmp_path):
    (finding,) = findings_of(tmp_path, POOL, saturated(0.99, 6.0))
    assert (finding.severity, finding.title) == ("critical", "My pool")
    assert finding.cause.startswith("The KV pool is full and requests wait")
    assert [item.text for item in finding.evidence][:1] == ["My limit is 30 %."]
    assert len(finding.evidence) > 1


def test_the_conditions_are_those_of_the_same_engine(tmp_path):
    other = {**ENGINE, "server": "b:1"}
    full = {tuple(sorted({**dict(key), "server": "b:1"}.items())): value for key, value in saturated(0.99, 6.0).items()}
    found = {item.labels["server"]: item for item in findings_of(tmp_path, POOL, {**saturated(0.44, 0.0), **full})}
    assert found[other["server"]].cause.startswith("The KV pool is full")
    assert "cannot be explained" in found[ENGINE["server"]].cause


@pytest.mark.parametrize(
    ("expr", "id_", "series"),
    [
        ("gpuwatch_gpu_temperature_celsius > 50", "throttling", {name("gpu_temperature_celsius", GPU): 60.0}),
        ("gpuwatch_gpu_memory_free_bytes < 2e10", "gpu_headroom_low", {name("gpu_memory_free_bytes", GPU): 7e9}),
        ("gpuwatch_engine_requests_running > 3", "queue_growth", saturated(0.4, 0.0)),
    ],
)
def test_a_rule_of_a_new_name_says_only_what_it_measured(tmp_path, expr, id_, series):
    rule = f"      - alert: Mine\n        expr: {expr}\n        labels: {{severity: info, diagnosis: {id_}}}\n"
    (finding,) = findings_of(tmp_path, rule, series)
    assert (finding.id, finding.severity, finding.title, finding.advice) == (id_, "info", "Mine", ())
    assert finding.cause == (
        f"The rule Mine fires. It cannot be explained as {id_}: what the shipped rule asks for does not hold."
    )


def test_a_rule_without_a_severity_has_that_of_its_id(tmp_path):
    rule = POOL.replace("severity: critical, ", "")
    (finding,) = findings_of(tmp_path, rule, saturated(0.44, 0.0))
    assert finding.severity == "info"


def test_the_gravest_severity_of_two_rules_of_one_id_counts(tmp_path):
    rule = POOL.replace("GpuwatchKvPoolSaturated", "Mine")
    (finding,) = findings_of(tmp_path, rule, saturated(0.99, 6.0), 130)
    assert (finding.id, finding.severity) == ("kv_pool_saturated", "critical")


def test_a_description_that_repeats_the_finding_is_not_taken_into_its_cause(tmp_path):
    quoting = (
        '\'Too full.{{ with query "gpuwatch_finding_info" }}{{ with first . }} Cause: {{ .Labels.cause }}'
        "{{ end }}{{ end }}'"
    )
    rule = POOL.replace("'My limit is 30 %.'", quoting)
    told = {(("__name__", "gpuwatch_finding_info"), ("cause", "Too full. Once more.")): 1.0}
    (finding,) = findings_of(tmp_path, rule, {**saturated(0.44, 0.0), **told})
    assert finding.cause.startswith("Too full. It cannot be explained")


def test_title_and_evidence_tell_the_value_of_one_evaluation(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text(
        "groups:\n  - name: mine\n    rules:\n"
        "      - {alert: Mine, expr: gpuwatch_engine_requests_running > 0, labels: {severity: info},\n"
        "         annotations: {summary: 'runs {{ $value }}'}}\n"
    )
    store = Store()
    querier = LocalQuerier(store)
    engine = RuleEngine(load((), [path]), querier, store, statuses=False, refresh_ms=5000)
    told = []
    for second in range(8):
        now = START + second * 1000
        store.append("t", now, (name("engine_requests_running", ENGINE),), [1.0 + second])
        evaluation = engine.tick(now)
        (finding,) = explain(evaluation, Context(querier, now, Facts()))[0]
        told.append((finding.title, finding.evidence[0].text, finding.evidence[0].value))
        assert evaluation.alerts[0].value == 1.0 + second
    assert told == [("runs 1", "Mine fires at 1", 1.0)] * 5 + [("runs 6", "Mine fires at 6", 6.0)] * 3


def test_a_value_without_end_is_written_as_prometheus_writes_it(tmp_path):
    rule = "      - {alert: Mine, expr: gpuwatch_engine_requests_running / 0, labels: {severity: info}}\n"
    (finding,) = findings_of(tmp_path, rule, {name("engine_requests_running", ENGINE): 1.0})
    assert finding.evidence[0].text == "Mine fires at +Inf"
