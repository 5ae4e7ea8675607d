from __future__ import annotations

from gpuwatch.alerts.inhibitions import Inhibition
from gpuwatch.diagnosis.explain import without_parts
from gpuwatch.diagnosis.finding import Evidence, Finding
from gpuwatch.diagnosis.ranking import rank

TABLE = (
    Inhibition("gpu_lost", ("engine_down",), ("host",)),
    Inhibition("engine_down", ("queue_growth",), ("host", "server")),
)


def finding(id_, severity="warning", since=0, state="firing", confidence=0.5, **labels):
    labels = {"host": "h", **labels}
    return Finding(id_, severity, id_, "", confidence, (Evidence("x"),), since=since, state=state, labels=labels)


def order(findings, table=TABLE):
    return [(item.id, item.caused_by) for item in rank(findings, table)]


def test_a_symptom_follows_its_cause_even_when_it_started_earlier_and_is_worse():
    found = [finding("queue_growth", "critical", 1, server="a"), finding("engine_down", "warning", 9, server="a")]
    assert order(found) == [("engine_down", None), ("queue_growth", "engine_down")]


def test_a_chain_of_causes_is_shown_in_its_order():
    found = [
        finding("queue_growth", server="a"),
        finding("engine_down", "critical", 2, server="a"),
        finding("gpu_lost", "critical", 5),
    ]
    assert order(found) == [("gpu_lost", None), ("engine_down", "gpu_lost"), ("queue_growth", "engine_down")]


def test_another_engine_is_no_cause():
    found = [finding("engine_down", "critical", server="a"), finding("queue_growth", server="b")]
    assert order(found) == [("engine_down", None), ("queue_growth", None)]


def test_what_happens_in_another_cluster_to_a_machine_of_the_same_name_is_no_cause():
    driver = finding("driver_unresponsive", "critical", 1, cluster="a")
    storm = finding("kv_preemption_storm", "critical", 2, cluster="a", server="s", model_name="m", dp_rank="0")
    gpu = finding("gpu_lost", "critical", 3, cluster="b", uuid="GPU-1")
    queue = finding("queue_growth", "warning", 4, cluster="b", server="s", model_name="m", dp_rank="0")
    found = without_parts([driver, storm, gpu, queue])
    assert [(item.id, item.caused_by) for item in rank(found)] == [
        ("driver_unresponsive", None),
        ("kv_preemption_storm", None),
        ("gpu_lost", None),
        ("queue_growth", None),
    ]


def test_a_driver_that_hangs_hides_no_gpu_that_hangs_in_another_cluster():
    whole = finding("driver_unresponsive", "critical", 1, cluster="a")
    card = finding("driver_unresponsive", "critical", 2, cluster="b", uuid="GPU-1")
    own = finding("driver_unresponsive", "critical", 2, cluster="a", uuid="GPU-2")
    assert without_parts([whole, card, own]) == [whole, card]


def test_a_pool_smaller_than_the_longest_request_is_not_the_cause_of_a_storm_of_short_ones():
    small = finding("max_model_len_exceeds_kv", "critical", 1, server="s", model_name="m", dp_rank="0")
    storm = finding("kv_preemption_storm", "critical", 2, server="s", model_name="m", dp_rank="0")
    assert [(item.id, item.caused_by) for item in rank([small, storm])] == [
        ("max_model_len_exceeds_kv", None),
        ("kv_preemption_storm", None),
    ]


def test_roots_are_ordered_by_severity_then_start_then_confidence():
    found = [
        finding("c", "info"),
        finding("b", "critical", 7),
        finding("e", "warning", 3, confidence=0.2),
        finding("d", "warning", 3, confidence=0.9),
        finding("a", "critical", 5),
    ]
    assert [id_ for id_, _ in order(found)] == ["a", "b", "d", "e", "c"]


def test_what_is_over_comes_last_and_causes_nothing_that_still_fires():
    found = [finding("engine_down", "critical", state="resolved", server="a"), finding("queue_growth", server="a")]
    assert order(found) == [("queue_growth", None), ("engine_down", None)]


def test_a_circle_in_the_table_loses_no_finding():
    table = (Inhibition("a", ("b",), ("host",)), Inhibition("b", ("a",), ("host",)))
    assert {id_ for id_, _ in order([finding("a"), finding("b")], table)} == {"a", "b"}
