"""Which alerts about a GPU explain which alerts about an engine: two engines on one host, four GPUs."""

from __future__ import annotations

import pytest
import yaml

from gpuwatch.alerts.inhibition import RULES, alertmanager_yaml, inhibit
from gpuwatch.alerts.placement import Placement
from gpuwatch.alerts.state import Alert
from gpuwatch.diagnosis.ranking import rank
from tests.unit.diagnosis.test_ranking import finding

H, OTHER = ("", "h"), ("", "other")
PLACED = Placement(frozenset({(H, "GPU-0", "a"), (H, "GPU-1", "a"), (H, "GPU-2", "b"), (H, "GPU-3", "b")}))
ROWS = [
    ("gpu_lost", "tp_imbalance"),
    ("gpu_lost", "tp_straggler"),
    ("gpu_lost", "nccl_hang"),
    ("xid_hardware", "nccl_hang"),
    ("gpu_memory_growth", "tp_imbalance"),
    ("driver_unresponsive", "engine_stalled"),
    ("driver_unresponsive", "nccl_hang"),
    ("driver_unresponsive", "engine_down"),
    ("throttling", "throughput_collapse"),
    ("throttling", "queue_growth"),
    ("gpu_lost", "throughput_collapse"),
    ("xid_hardware", "queue_growth"),
]


def alert(id_: str, **labels: str) -> Alert:
    pairs = tuple(sorted({"alertname": id_, "diagnosis": id_, "host": "h", **labels}.items()))
    return Alert(id_, pairs, 1.0, "firing", 0)


@pytest.mark.parametrize(("cause", "symptom"), ROWS)
@pytest.mark.parametrize(("server", "by"), [("a", True), ("b", False)])
def test_a_gpu_explains_the_engine_that_uses_it_and_no_other_of_the_host(cause, symptom, server, by):
    muted = inhibit([alert(cause, uuid="GPU-1"), alert(symptom, server=server)], RULES, PLACED)
    assert muted[1].inhibited_by == (cause if by else "")
    found = rank([finding(cause, uuid="GPU-1"), finding(symptom, server=server)], placement=PLACED)
    assert {each.id: each.caused_by for each in found} == {cause: None, symptom: cause if by else None}


def test_the_slow_rank_of_another_engine_keeps_its_own_cause():
    found = rank(
        [
            finding("gpu_lost", "critical", uuid="GPU-1"),
            finding("throttling", uuid="GPU-2"),
            finding("tp_straggler", uuid="GPU-2", server="b"),
        ],
        placement=PLACED,
    )
    assert [(each.id, each.caused_by) for each in found][2] == ("tp_straggler", "throttling")


def test_the_fault_of_a_rank_s_own_gpu_comes_before_that_of_another_rank():
    found = rank(
        [
            finding("gpu_lost", "critical", uuid="GPU-0"),
            finding("throttling", uuid="GPU-1"),
            finding("tp_straggler", uuid="GPU-1", server="a"),
        ],
        placement=PLACED,
    )
    assert {each.id: each.caused_by for each in found}["tp_straggler"] == "throttling"


def test_the_driver_of_a_host_explains_every_engine_there_that_uses_a_gpu():
    both = Placement(PLACED.pairs | {(H, "", "a"), (H, "", "cpu"), (OTHER, "GPU-9", "z")})
    symptoms = [alert("engine_stalled", server=server) for server in ("a", "b", "cpu")]
    muted = inhibit([alert("driver_unresponsive"), *symptoms], RULES, both)
    assert [each.inhibited_by for each in muted] == ["", "driver_unresponsive", "driver_unresponsive", ""]


def test_a_driver_that_never_told_who_uses_its_gpus_explains_the_engines_whose_processes_run_there():
    known = Placement(frozenset({(H, "", "a"), (OTHER, "GPU-9", "z")}))
    symptoms = [alert("engine_stalled", server=server) for server in ("a", "elsewhere")]
    muted = inhibit([alert("driver_unresponsive"), *symptoms], RULES, known)
    assert [each.inhibited_by for each in muted] == ["", "driver_unresponsive", ""]


@pytest.mark.parametrize(("model", "by"), [("m", "dp_imbalance"), ("other", None)])
def test_a_queue_that_grows_at_the_busiest_rank_follows_from_the_uneven_load_of_its_model(model, by):
    cause = finding("dp_imbalance", server="a", model_name="m")
    found = rank([cause, finding("queue_growth", server="a", model_name=model, dp_rank="1")])
    assert {each.id: each.caused_by for each in found}["queue_growth"] == by


def test_a_log_of_no_known_engine_is_about_the_only_engine_with_gpus_and_about_none_of_two():
    causes = [alert("gpu_lost", uuid="GPU-0"), alert("nccl_hang", log="x.log")]
    one = Placement(frozenset({(H, "GPU-0", "a"), (OTHER, "GPU-9", "z")}))
    assert inhibit(causes, RULES, one)[1].inhibited_by == "gpu_lost"
    assert inhibit(causes, RULES, PLACED)[1].inhibited_by == ""


def test_a_cause_that_was_told_stays_where_nobody_knows_the_placement():
    told = finding("tp_imbalance", server="a")
    cause = finding("gpu_lost", uuid="GPU-0")
    ranked = rank(rank([cause, told], placement=PLACED))
    assert {each.id: each.caused_by for each in ranked} == {"gpu_lost": None, "tp_imbalance": "gpu_lost"}
    assert {each.caused_by for each in rank([cause, told])} == {None}


def test_alertmanager_is_not_given_rows_that_need_to_know_where_an_engine_runs():
    given = yaml.safe_load(alertmanager_yaml())["inhibit_rules"]
    by_host = [rule for rule in given if rule["equal"] == ["cluster", "host"]]
    assert {rule["source_matchers"][0] for rule in by_host} == {
        'diagnosis="host_memory_leak"',
        'diagnosis="k8s_oomkilled"',
    }
