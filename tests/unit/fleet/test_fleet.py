"""A fleet looked at through the Prometheus that scrapes it."""

from __future__ import annotations

import re
import threading
import time

import fleet_data
import pytest
from fleet_data import STEP_SECONDS, host_name, page

from gpuwatch.config import EndpointConfig
from gpuwatch.diagnosis.explanation import Explanation
from gpuwatch.diagnosis.finding import Advice, Evidence
from gpuwatch.pipeline.fleet.driver import LONGEST_INTERVAL
from gpuwatch.pipeline.fleet.findings import FleetAlert, Said, Teller
from gpuwatch.pipeline.fleet.questions import Phrasing, scrape_seconds
from gpuwatch.snapshot import lost_machines
from gpuwatch.tui.draw.fleet import machine_line
from gpuwatch.tui.history import History
from gpuwatch.tui.view.build import build
from gpuwatch.tui.view.findings import findings
from gpuwatch.tui.view.fleet import machines
from gpuwatch.tui.view.model import Quiet
from tests.unit.fleet.conftest import MACHINES, NOW
from tests.unit.fleet.prometheus_like import PrometheusLike, store_of, wait_until

MS = NOW * 1000
STORM = host_name(fleet_data.STORM)
# Six minutes of samples: the alerts became active at the middle one.
ACTIVE = (NOW - 12 * STEP_SECONDS) * 1000


def by_host(snapshot, query):
    return {dict(labels)["host"]: value for labels, value in snapshot.answer(query).samples}


def finding(snapshot, wanted):
    return next(found for found in snapshot.findings if found.id == wanted)


def test_a_look_has_one_figure_per_machine(server, fleet_of):
    look = fleet_of(server).look(MS)
    snapshot = look.snapshot
    assert (snapshot.mode, snapshot.host, snapshot.focus) == ("prometheus", server.url, None)
    assert by_host(snapshot, "host_gpus") == {host_name(number): 5.0 for number in MACHINES}
    assert by_host(snapshot, "host_gpus_not_ok")[host_name(fleet_data.GPU_LOST)] == 1.0
    assert by_host(snapshot, "host_engines_silent") == {
        host_name(number): float(number == fleet_data.DOWN) for number in MACHINES
    }
    assert by_host(snapshot, "host_waiting")[STORM] == 53.0
    assert by_host(snapshot, "host_generation_rate")[STORM] == pytest.approx(410)
    gone = by_host(snapshot, "host_last_seen")[host_name(fleet_data.GONE)]
    assert gone == NOW - 9 * STEP_SECONDS  # 25 samples, of which it has the first two thirds: 16
    assert "gpu_busy" not in snapshot.answers
    assert look.judged


def test_the_alerts_of_prometheus_are_findings_with_their_start(server, fleet_of, rules):
    snapshot = fleet_of(server).look(MS).snapshot
    found = {(one.id, one.labels["host"]): one for one in snapshot.findings}
    assert set(found) == {
        ("kv_preemption_storm", STORM),
        ("engine_down", host_name(fleet_data.DOWN)),
        ("gpu_lost", host_name(fleet_data.GPU_LOST)),
        ("gpu_headroom_low", host_name(fleet_data.HOT)),
    }
    storm = found["kv_preemption_storm", STORM]
    assert (storm.severity, storm.state, storm.since) == ("critical", "firing", ACTIVE)
    assert storm.labels == {
        "host": STORM, "server": "127.0.0.1:8000", "engine_kind": "vllm", "model_name": "llama-70b",
    }  # fmt: skip
    # A rule with `for: 30s` fires half a minute after its alert became active.
    headroom = found["gpu_headroom_low", host_name(fleet_data.HOT)]
    assert next(rule.hold for rule in rules.alerts if rule.name == "GpuwatchGpuHeadroomLow") == 30_000
    assert headroom.since == ACTIVE + 30_000


def test_the_label_that_vmalert_adds_is_not_one_of_the_finding(fleet_of):
    made = page(NOW, [fleet_data.STORM], gpus=2)
    for name in ("ALERTS", "ALERTS_FOR_STATE"):
        made.families[name] = [
            ({**labels, "alertgroup": "gpuwatch-kv"}, points) for labels, points in made.families[name]
        ]
    server = PrometheusLike(store_of(made))
    try:
        storm = finding(fleet_of(server).look(MS).snapshot, "kv_preemption_storm")
        assert set(storm.labels) == {"host", "server", "engine_kind", "model_name"}
        assert storm.since == ACTIVE
    finally:
        server.close()


def test_critical_findings_come_first(server, fleet_of):
    severities = [found.severity for found in fleet_of(server).look(MS).snapshot.findings]
    assert severities == sorted(severities, key=["critical", "warning", "info"].index)


def test_what_the_machines_own_gpuwatch_said_is_the_cause_and_the_advice(server, fleet_of):
    storm = finding(fleet_of(server).look(MS).snapshot, "kv_preemption_storm")
    assert storm.cause == fleet_data.CAUSE
    (advice,) = storm.advice
    assert (advice.flag, advice.current, advice.proposed) == ("--max-num-seqs", "64", "11")
    assert storm.evidence[0].text == "GpuwatchKvPreemptionStorm fires in Prometheus"


@pytest.mark.parametrize(
    ("own", "flags"),
    [
        ([("--kv-cache-dtype", "fp8"), ("--max-num-seqs", "11")], ["--kv-cache-dtype", "--max-num-seqs"]),
        ([("--kv-cache-dtype", "fp8"), ("--max-num-seqs", "9")], ["--max-num-seqs"]),
        ([], ["--max-num-seqs"]),
    ],
)
def test_more_changes_are_named_where_our_explanation_comes_to_the_one_that_was_told(own, flags):
    labels = tuple(sorted({"alertname": "A", "diagnosis": "kv_preemption_storm", "host": "h", "server": "s"}.items()))
    info = tuple(sorted({"id": "kv_preemption_storm", "host": "h", "server": "s", "cause": "told", "advice": "words",
                         "flag": "--max-num-seqs", "from": "64", "to": "11"}.items()))  # fmt: skip
    advice = tuple(Advice("own", flag, "x", to) for flag, to in own)
    teller = Teller(Phrasing(), {})
    teller.said[labels] = Said(MS, Explanation("own cause", 0.9, (Evidence("seen", "s"),), advice))
    (found,) = teller.findings([FleetAlert(labels, MS, ("", "h"))], [info])
    assert found.cause == "told"
    assert [one.flag for one in found.advice] == flags
    assert Advice("words", "--max-num-seqs", "64", "11") in found.advice


@pytest.mark.parametrize("label", ["cluster", "env"])
def test_what_happens_in_another_cluster_neither_causes_nor_hides_a_finding(label):
    def alert(diagnosis, since, **labels):
        labels |= {"alertname": diagnosis, "diagnosis": diagnosis, "host": "h", "severity": "critical"}
        return FleetAlert(tuple(sorted(labels.items())), since, (labels[label], "h"))

    engine = {"server": "s", "model_name": "m", "dp_rank": "0"}
    alerts = [
        alert("driver_unresponsive", 1, **{label: "a"}),
        alert("driver_unresponsive", 2, **{label: "b"}, uuid="GPU-7"),
        alert("kv_preemption_storm", 3, **{label: "a"}, **engine),
        alert("queue_growth", 4, **{label: "b"}, **engine),
    ]
    found = Teller(Phrasing((), label), {}).findings(alerts, [])
    assert [(one.id, one.labels[label], one.caused_by) for one in found] == [
        ("driver_unresponsive", "a", None),
        ("driver_unresponsive", "b", None),
        ("kv_preemption_storm", "a", None),
        ("queue_growth", "b", None),
    ]


def test_without_it_the_same_diagnosis_explains_over_http(server, fleet_of):
    fleet = fleet_of(server)
    look = fleet.look(MS)
    before = finding(look.snapshot, "gpu_lost")
    assert before.cause == "The rule GpuwatchGpuLost fires in Prometheus; why is not worked out yet."
    after = finding(fleet.explain(look).snapshot, "gpu_lost")
    assert "dropped off" in after.cause
    assert len(after.evidence) > 1
    assert after.since == before.since


def test_the_value_that_made_a_rule_fire_is_asked_for(server, fleet_of):
    fleet = fleet_of(server)
    headroom = finding(fleet.explain(fleet.look(MS)).snapshot, "gpu_headroom_low")
    # 79.4 - 79.2 GiB are free, and peaks took 0.9 GiB
    assert "205 MiB are free" in headroom.cause
    assert "922 MiB" in headroom.cause


def test_a_query_that_fails_leaves_the_explanation_open_and_is_never_taken_for_absence(server, fleet_of):
    fleet = fleet_of(server)
    look = fleet.look(MS)
    server.fault = lambda query: (503, "text/plain", b"busy") if "host=" in query else None
    lost = finding(fleet.explain(look).snapshot, "gpu_lost")
    assert lost.cause.endswith("why is not worked out yet.")
    assert len(lost.evidence) == 1


def test_what_an_explanation_lacks_is_said(rules, fleet_of):
    made = page(NOW, [0])
    labels = {"host": "h", "instance": "i", "alertname": "GpuwatchKvPoolSaturated", "severity": "info",
              "diagnosis": "kv_pool_saturated", "server": "h:1"}  # fmt: skip
    made.add("ALERTS", {**labels, "alertstate": "firing"}, [(NOW, 1.0)])
    server = PrometheusLike(store_of(made))
    try:
        fleet = fleet_of(server)
        saturated = finding(fleet.explain(fleet.look(MS)).snapshot, "kv_pool_saturated")
        assert re.search(r"fires in Prometheus\. To say why, this lacks .+\.$", saturated.cause)
        assert saturated.since == 0  # no ALERTS_FOR_STATE: not known, and not invented
    finally:
        server.close()


def test_the_number_of_queries_of_a_look_does_not_grow_with_the_fleet(server, fleet_of, rules):
    fleet = fleet_of(server)
    fleet.look(MS)
    small = len(server.asked)
    large = PrometheusLike(store_of(page(NOW, range(30), gpus=2)))
    try:
        fleet_of(large).look(MS)
        assert len(large.asked) == small <= 25
    finally:
        large.close()


def test_the_machine_in_focus_has_the_whole_catalogue_and_only_its_own_series(server, fleet_of):
    fleet = fleet_of(server)
    fleet.look_at(("", STORM))
    snapshot = fleet.look(MS).snapshot
    assert snapshot.focus == ("", STORM)
    hosts = {dict(labels)["host"] for labels, _ in snapshot.answer("gpu_busy").samples}
    assert hosts == {STORM}
    assert len(snapshot.answer("gpu_busy").samples) == 5
    assert snapshot.answer("kv_usage").get(server="127.0.0.1:8000") == 0.985
    assert {(source.kind, source.up) for source in snapshot.sources} == {
        ("prometheus", True), ("nvml", True), ("host", True), ("engine", True),
    }  # fmt: skip
    assert len(by_host(snapshot, "host_gpus")) == len(MACHINES)


def test_a_past_moment_is_asked_of_prometheus(server, fleet_of):
    fleet = fleet_of(server)
    fleet.look(MS)
    fleet.start()
    early = MS - 4 * 60_000  # before the alerts
    snapshot = fleet.at(early).result(10)
    assert (snapshot.time, snapshot.findings) == (early, ())
    assert len(by_host(snapshot, "host_gpus")) == len(MACHINES)


def test_two_clusters_with_the_same_host_names_are_told_apart(fleet_of):
    made = page(NOW, [0, fleet_data.STORM], gpus=2, cluster="east")
    for name, found in page(NOW, [0, fleet_data.STORM], gpus=4, cluster="west").families.items():
        made.families[name] += [({**labels, "instance": "w" + labels["instance"]}, points) for labels, points in found]
    server = PrometheusLike(store_of(made))
    try:
        fleet = fleet_of(server)
        snapshot = fleet.explain(fleet.look(MS)).snapshot
        gpus = {(dict(k)["cluster"], dict(k)["host"]): v for k, v in snapshot.answer("host_gpus").samples}
        assert gpus == {("east", "gpu-000"): 2, ("east", STORM): 2, ("west", "gpu-000"): 4, ("west", STORM): 4}
        assert sorted(found.labels["cluster"] for found in snapshot.findings) == ["east", "west"]
        assert all(len(found.evidence) > 3 for found in snapshot.findings)  # explained each with its own series
        fleet.look_at(("west", STORM))
        assert len(fleet.look(MS).snapshot.answer("gpu_busy").samples) == 4
        east = fleet_of(server, matchers=(("cluster", "east"),)).look(MS).snapshot
        assert {dict(labels)["cluster"] for labels, _ in east.answer("host_gpus").samples} == {"east"}
        assert [found.labels["cluster"] for found in east.findings] == ["east"]
    finally:
        server.close()


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        ((401, "text/plain", b"no"), "unauthorized", "HTTP 401"),
        ((503, "text/plain", b"starting up"), "failed", "HTTP 503"),
        ((200, "text/html", b"<html>log in</html>"), "not_metrics", "text/html"),
    ],
)
def test_a_prometheus_that_answers_nothing_is_said_and_nothing_is_judged(server, fleet_of, answer, reason, words):
    server.fault = lambda _query: answer
    look = fleet_of(server).look(MS)
    (state,) = look.snapshot.sources
    assert (state.kind, state.up, state.reason, state.age) == ("prometheus", False, reason, None)
    assert words in state.detail
    assert not look.judged
    assert look.snapshot.answers == {}


def test_a_machine_whose_last_scrape_failed_is_lost_at_once_and_has_no_figures(fleet_of):
    store = store_of(page(NOW, [0, fleet_data.STORM], gpus=2))
    store.mark_stale("10.0.0.0:19400", MS + 15_000)  # what Prometheus writes where a scrape fails
    server = PrometheusLike(store)
    try:
        before = fleet_of(server).look(MS + 14_000).snapshot
        assert lost_machines(before) == {}
        assert by_host(before, "host_generation_rate")[host_name(0)] == pytest.approx(2100)
        snapshot = fleet_of(server).look(MS + 17_000).snapshot
        assert lost_machines(snapshot) == {("", host_name(0)): 17.0}
        gone = next(machine for machine in machines(snapshot, ()) if machine.key[1] == host_name(0))
        assert set(gone.figures) == {"host_last_seen"}  # above all no rate of the time when it was there
        assert machine_line(gone, [gone], 80)[-1][0] == "not scraped for 17 s"
        assert set(by_host(snapshot, "host_generation_rate")) == {STORM}
        server.fault = lambda query: (
            (422, "text/plain", b"") if query == "max by (cluster, host) (gpuwatch_build_info)" else None
        )
        assert lost_machines(fleet_of(server).look(MS + 17_000).snapshot) == {}  # no answer is not absence
    finally:
        server.close()


def test_old_figures_stay_with_their_time_while_prometheus_is_down_and_it_is_asked_less_and_less(server, fleet_of):
    fleet = fleet_of(server)
    fleet.look(MS)
    server.fault = lambda _query: (503, "text/plain", b"busy")
    pauses = []
    for number in range(1, 8):
        look = fleet.look(MS + number * 5000)
        pauses.append(fleet._pause())
    assert look.snapshot.time == MS
    assert len(look.snapshot.findings) == 5
    assert look.snapshot.sources[0].age == 35.0
    assert pauses[:4] == [10.0, 20.0, 40.0, LONGEST_INTERVAL]
    server.fault = lambda _query: None
    fleet.look(MS + 60_000)
    assert fleet._pause() == 5.0


def test_a_missing_figure_is_named_with_its_reason(server, fleet_of):
    server.fault = lambda query: (422, "text/plain", b"too many samples") if "power_watts" in query else None
    look = fleet_of(server).look(MS)
    (state,) = look.snapshot.sources
    assert state.up
    assert state.detail.startswith("host_gpu_power: ")
    assert "HTTP 422" in state.detail
    assert "HTTP 422" in look.snapshot.answer("host_gpu_power").error
    assert len(by_host(look.snapshot, "host_gpus")) == len(MACHINES)


def test_a_slow_prometheus_is_called_slow(server, fleet_of):
    server.delay = 0.45
    look = fleet_of(server, timeout=3.0).look(MS)  # 19 queries in 6 threads: four rounds of 0.45 s
    assert look.snapshot.sources[0].detail.startswith("slow: answers took ")


def test_the_rules_of_prometheus_are_shown_with_their_errors(server, fleet_of):
    snapshot = fleet_of(server).look(MS).snapshot
    assert [(rule.name, rule.status, rule.firing) for rule in snapshot.rules] == [
        ("GpuwatchKvPreemptionStorm", "firing", 1),
        ("GpuwatchGpuLost", "error", 0),
    ]
    assert snapshot.problems == ("rule GpuwatchGpuLost: many-to-many matching not allowed",)


def test_no_rules_and_no_alerts_is_not_healthy(fleet_of):
    server = PrometheusLike(store_of(page(NOW, [0])), rules={"groups": []})
    try:
        look = fleet_of(server).look(MS)
        assert not look.judged
        assert "lists no rule named Gpuwatch" in look.snapshot.problems[0]
    finally:
        server.close()


def test_a_server_without_the_rules_endpoint_says_so(server, fleet_of):
    server.fault = lambda query: (404, "text/plain", b"no") if query.endswith("/rules") else None
    snapshot = fleet_of(server).look(MS).snapshot
    assert snapshot.problems[0].startswith("whether gpuwatch's rules are loaded cannot be told: ")
    assert len(snapshot.findings) == 5


def test_alerts_that_cannot_be_asked_are_a_problem_and_what_was_explained_is_not_forgotten(server, fleet_of):
    fleet = fleet_of(server)
    explained = finding(fleet.explain(fleet.look(MS)).snapshot, "gpu_lost").cause
    server.fault = lambda query: (422, "text/plain", b"too many samples") if query.startswith("ALERTS{") else None
    look = fleet.look(MS)
    assert not look.judged
    assert look.snapshot.findings == ()
    assert look.snapshot.problems[0].startswith("which alerts fire cannot be told: ")
    assert "HTTP 422" in look.snapshot.problems[0]
    server.fault = lambda _query: None
    fleet.look(MS)  # a query that failed rests for a look
    assert finding(fleet.look(MS).snapshot, "gpu_lost").cause == explained


def test_the_label_of_the_configuration_tells_clusters_apart(fleet_of):
    made = page(NOW, [0, fleet_data.STORM], gpus=2)
    for family in made.families.values():
        family[:] = [({**labels, "site": "east"}, points) for labels, points in family]
    server = PrometheusLike(store_of(made))
    try:
        fleet = fleet_of(server, cluster_label="site")
        snapshot = fleet.look(MS).snapshot
        rows = findings(snapshot)
        assert [machine.key for machine in machines(snapshot, rows)] == [("east", STORM), ("east", "gpu-000")]
        fleet.look_at(("east", STORM))
        model = build(fleet.look(MS).snapshot, History(), Quiet(), live=False)
        assert [row.finding.id for row in model.findings] == ["kv_preemption_storm"]
    finally:
        server.close()


def test_snapshots_come_by_themselves_and_the_explained_ones_follow(server, fleet_of):
    fleet = fleet_of(server)
    got, arrived = [], threading.Event()

    def take(snapshot):
        got.append(snapshot)
        if len(got) >= 2:
            arrived.set()

    fleet.subscribe(take)
    fleet.start()
    assert arrived.wait(60)
    assert "not worked out yet" in finding(got[0], "gpu_lost").cause
    assert "dropped off" in finding(got[1], "gpu_lost").cause
    fleet.focus(("", STORM))
    wait_until(lambda: got[-1].focus == ("", STORM))


def test_stopping_does_not_wait_for_a_query_that_hangs(server, fleet_of):
    server.delay = 20
    fleet = fleet_of(server)
    fleet.start()
    wait_until(lambda: server.asked)
    begun = time.monotonic()
    fleet.stop()
    assert time.monotonic() - begun < 12


def test_login_and_headers_reach_the_server(server, rules, tmp_path):
    from gpuwatch.pipeline.fleet.asking import Asker  # noqa: PLC0415  # beside its only use
    from gpuwatch.promql.remote import RemoteQuerier  # noqa: PLC0415

    (tmp_path / "token").write_text("abc\n")
    config = EndpointConfig(server.url, token_file=str(tmp_path / "token"), headers=(("X-Scope-OrgID", "team"),))
    asker = Asker(lambda: RemoteQuerier.of(config), 1)
    asker.ask({"x": lambda querier: querier.instant("vector(1)", MS)}, 5)
    asker.close()
    assert server.headers[0]["Authorization"] == "Bearer abc"
    assert server.headers[0]["X-Scope-OrgID"] == "team"


@pytest.mark.parametrize(("scrapes", "seconds"), [(20, 15), (300, 1), (None, 15), (0, 15), (5, 60), (10, 30)])
def test_the_scrape_interval_follows_from_the_number_of_samples(scrapes, seconds):
    assert scrape_seconds(scrapes) == seconds


def test_rates_look_at_four_scrapes_and_at_a_minute_at_least():
    often, seldom = Phrasing(scrape=5).of_fleet(), Phrasing(scrape=60).of_machine(("", "h"))
    assert "[60s]" in often["host_generation_rate"]
    assert "[240s]" in seldom["preemption_rate"]  # the catalogue's own minute would hold one sample
    assert "$__" not in "".join([*often.values(), *seldom.values()])
    assert "by (cluster, host) (gpuwatch_gpu_info)" in often["host_gpus"]


def test_a_storm_on_a_machine_with_sixteen_gpus_is_explained_and_no_question_is_put_twice(fleet_of):
    server = PrometheusLike(store_of(page(NOW, [fleet_data.STORM], gpus=16)))
    try:
        fleet = fleet_of(server)
        look = fleet.look(MS)
        server.asked.clear()
        (finding,) = fleet.explain(look).snapshot.findings
        assert len(finding.evidence) > 3
        assert len(server.asked) == len(set(server.asked))
    finally:
        server.close()
