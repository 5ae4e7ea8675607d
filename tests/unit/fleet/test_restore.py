"""A daemon that lost its state asks Prometheus when its alerts began."""

from __future__ import annotations

import fleet_data
from fleet_data import STEP_SECONDS, host_name, page

from gpuwatch.alerts.state import Saved
from gpuwatch.config import EndpointConfig, PrometheusConfig
from gpuwatch.pipeline.fleet.restore import merged, starts
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.promql.remote import RemoteQuerier
from tests.unit.fleet.conftest import NOW
from tests.unit.fleet.prometheus_like import PrometheusLike, store_of

MS = NOW * 1000
ACTIVE = (NOW - 12 * STEP_SECONDS) * 1000
HOT = host_name(fleet_data.HOT)


def test_the_alerts_of_this_machine_come_back_with_their_start(server, rules):
    querier = RemoteQuerier(server.url)
    saved = starts(querier, host_name(fleet_data.STORM), rules, MS)
    querier.close()
    (storm,) = saved
    assert storm.labels == (
        ("alertname", "GpuwatchKvPreemptionStorm"),
        ("diagnosis", "kv_preemption_storm"),
        ("engine_kind", "vllm"),
        ("host", host_name(fleet_data.STORM)),
        ("model_name", "llama-70b"),
        ("server", "127.0.0.1:8000"),
        ("severity", "critical"),
    )
    assert (storm.active_at, storm.saved_at, storm.fired_at) == (ACTIVE, MS, ACTIVE)


def test_a_rule_with_a_waiting_time_fired_when_that_was_over(server, rules):
    querier = RemoteQuerier(server.url)
    saved = starts(querier, HOT, rules, MS)
    querier.close()
    assert len(saved) == 2
    assert {item.fired_at for item in saved} == {ACTIVE + 30_000}


def test_it_works_after_the_series_have_ended_with_the_daemon(rules):
    store = store_of(page(NOW, [fleet_data.STORM]))
    (target,) = {"10.0.0.7:19400"}
    store.mark_stale(target, MS + 15_000)
    querier = LocalQuerier(store)
    assert len(querier.instant("ALERTS_FOR_STATE", MS + 60_000)) == 0
    (storm,) = starts(querier, host_name(fleet_data.STORM), rules, MS + 60_000)
    assert storm.active_at == ACTIVE


def test_an_alert_that_was_over_before_the_daemon_ended_does_not_come_back(rules):
    made = page(NOW, [0])
    labels = {"host": host_name(0), "instance": "x", "alertname": "GpuwatchEngineDown", "severity": "critical",
              "diagnosis": "engine_down", "server": "s:1"}  # fmt: skip
    over = NOW - 20 * STEP_SECONDS
    made.add("ALERTS_FOR_STATE", labels, [(at, float(over - 60)) for at in range(over - 60, over + 1, STEP_SECONDS)])
    store = store_of(made)
    store.mark_stale("x", (over + STEP_SECONDS) * 1000)
    assert starts(LocalQuerier(store), host_name(0), rules, MS) == ()


def test_a_machine_that_prometheus_does_not_know_has_no_starts(server, rules):
    querier = RemoteQuerier(server.url)
    assert starts(querier, "elsewhere", rules, MS) == ()
    querier.close()


def test_what_the_daemon_itself_remembers_goes_before(server, rules):
    config = PrometheusConfig(EndpointConfig(server.url))
    (theirs,) = merged((), config, host_name(fleet_data.STORM), rules, MS)
    ours = Saved(theirs.labels, ACTIVE + 700, MS, ACTIVE + 700)
    assert merged([ours], config, host_name(fleet_data.STORM), rules, MS) == (ours,)


def test_a_prometheus_that_does_not_answer_is_one_line_and_changes_nothing(rules, caplog, small_store):
    gone = PrometheusLike(small_store)
    gone.close()
    ours = Saved((("alertname", "X"),), 1, 2)
    assert merged([ours], PrometheusConfig(EndpointConfig(gone.url)), "h", rules, MS) == (ours,)
    (record,) = caplog.records
    assert "refused" in record.getMessage()
