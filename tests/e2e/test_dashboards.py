from __future__ import annotations

import json
import re

import board_data
import pytest
from board_query import answer, filled, legend, lines_of, panels_of
from prometheus_server import ROOT, PrometheusServer

from gpuwatch.series import METRICS

DOCUMENTS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "dashboards").glob("*.json"))}
PANELS = [(name, panel) for name, document in DOCUMENTS.items() for panel in panels_of(document)]
VARIABLES = [
    (name, variable)
    for name, document in DOCUMENTS.items()
    for variable in document["templating"]["list"]
    if variable["type"] == "query"
]
STORM = 900
"""Seconds after the start at which one engine is in the middle of its storm."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A Prometheus with half an hour of four machines, and the first and last second."""
    folder = tmp_path_factory.mktemp("boards")
    history, start, end = board_data.whole_history(folder)
    server = PrometheusServer(folder, "".join(history.lines()))
    yield server, start / 1000, end / 1000
    server.stop()


def ids(items):
    return [f"{name}-{item.get('title') or item.get('name')}" for name, item in items]


def test_there_are_four_dashboards():
    assert sorted(DOCUMENTS) == ["gpuwatch-engine", "gpuwatch-findings", "gpuwatch-fleet", "gpuwatch-ledger"]


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=ids(PANELS))
def test_every_query_of_a_panel_has_data_and_tells_its_series_apart(recorded, name, panel):
    server, start, end = recorded
    for target in panel["targets"]:
        expr = filled(target["expr"], DOCUMENTS[name])
        found = answer(server, expr, start, end)
        assert found, expr
        labels = {label for one in found for label in one["metric"]}
        if "ALERTS{" in expr:  # an alert has the labels of its rule's series: not every rule fires here
            labels |= {label for metric in METRICS.values() for label in metric.labels}
        pattern = target["legendFormat"]
        assert set(re.findall(r"\{\{(\w+)\}\}", pattern)) <= labels, (pattern, labels)
        if target["format"] == "time_series":
            names = [legend(pattern, one["metric"]) for one in found]
            assert all(names), pattern
            assert len(set(names)) == len(names), f"{target['refId']}: two series have one name: {sorted(names)}"


@pytest.mark.parametrize(("name", "variable"), VARIABLES, ids=ids(VARIABLES))
def test_every_variable_has_values_and_is_narrowed_by_those_before_it(recorded, name, variable):
    server, start, end = recorded
    source, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()

    def values(**chosen):
        selector = filled(source, DOCUMENTS[name], chosen)
        said = server.get(
            f"/api/v1/label/{label}/values", **{"match[]": selector, "start": str(start), "end": str(end)}
        )
        assert said["status"] == "success", said
        return said["data"]

    everything = values()
    assert (
        everything
        == {
            "cluster": ["eu-1", "us-2"],
            "host": ["demo", "node-01", "node-02", "node-03"],
            "server": ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.2:8001", "10.0.0.3:30000", "127.0.0.1:8000"],
            "model_name": ["gpt-oss-120b", "llama-3.3-70b", "qwen3-32b", "tiny-llama"],
            "gpu": list("01234567"),
        }[label]
    )
    if "$cluster" in source:
        narrowed = {"server": ["127.0.0.1:8000"], "model_name": ["tiny-llama"], "gpu": ["0", "1"], "host": ["demo"]}
        assert values(cluster="us-2") == narrowed[label]
    if "$host" in source:
        narrowed = {"server": ["10.0.0.3:30000"], "model_name": ["gpt-oss-120b"], "gpu": list("0123")}
        assert values(host="node-03") == narrowed[label]


def test_a_chosen_engine_is_the_only_one_on_its_dashboard(recorded):
    server, start, end = recorded
    document = DOCUMENTS["gpuwatch-engine"]
    chosen = {"host": "node-02", "server": "10.0.0.2:8000", "model_name": ".*"}
    seen = set()
    for panel in panels_of(document):
        for target in panel["targets"]:
            for one in answer(server, filled(target["expr"], document, chosen), start, end):
                seen.add((one["metric"].get("host"), one["metric"].get("server")))
    assert seen == {("node-02", "10.0.0.2:8000")}


def test_the_parts_of_the_memory_ledger_add_up_to_the_cards(recorded):
    server, start, _ = recorded
    document = DOCUMENTS["gpuwatch-ledger"]
    bars = next(panel for panel in panels_of(document) if panel["type"] == "barchart")
    moment = start + STORM
    added: dict[str, float] = {}
    for target in bars["targets"]:
        for one in answer(server, filled(target["expr"], document), moment, moment):
            bar = one["metric"]["bar"]
            added[bar] = added.get(bar, 0.0) + float(one["values"][0][1])
    cards = answer(server, "gpuwatch_gpu_memory_total_bytes", moment, moment)
    totals = {f"eu-1 {c['metric']['host']} gpu {c['metric']['gpu']}": float(c["values"][0][1]) for c in cards}
    assert len(totals) == 20  # the demo's machine is recorded at the end only
    assert added == pytest.approx(totals, rel=1e-6)


def test_the_storm_is_on_the_dashboards_while_it_lasts(recorded):
    server, start, _ = recorded
    moment = start + STORM
    fleet, findings = DOCUMENTS["gpuwatch-fleet"], DOCUMENTS["gpuwatch-findings"]

    def panel(document, title):
        return next(one for one in panels_of(document) if one["title"] == title)

    table = lines_of(server, fleet, panel(fleet, "Findings"), start, moment)
    (critical,) = lines_of(server, fleet, panel(fleet, "Critical findings"), start, moment)
    # A text that was refreshed stays beside the new one for five minutes: OpenMetrics has no stale markers.
    rows = [row.labels for row in table if row.labels["severity"] == "critical"]
    assert critical.values == [float(len(rows))]
    assert {(row["id"], row["host"], row["server"]) for row in rows} == {
        ("kv_preemption_storm", "node-02", "10.0.0.2:8000")
    }
    storm = next(row.labels for row in table if row.labels["id"] == "kv_preemption_storm")
    assert (storm["server"], storm["flag"], storm["from"]) == ("10.0.0.2:8000", "--max-num-seqs", "64")
    assert storm["severity"] == "critical"
    alerts = lines_of(server, findings, panel(findings, "Alerts over time"), moment, moment)
    firing = [
        line.labels["alertname"]
        for line in alerts
        if line.labels.get("server") == "10.0.0.2:8000" and line.values == [4.0]
    ]
    assert "GpuwatchKvPreemptionStorm" in firing
    (annotation,) = [one for one in fleet["annotations"]["list"] if one["name"] == "Firing alerts"]
    marked = answer(server, filled(annotation["expr"], fleet), moment, moment)
    assert "GpuwatchKvPreemptionStorm" in {one["metric"]["alertname"] for one in marked}


def test_zero_findings_are_told_from_no_gpuwatch(recorded):
    server, start, _ = recorded
    fleet = DOCUMENTS["gpuwatch-fleet"]
    panel = next(one for one in panels_of(fleet) if one["title"] == "Critical findings")
    expr = panel["targets"][0]["expr"]
    (quiet,) = answer(server, filled(expr, fleet, {"host": "node-03"}), start + STORM, start + STORM)
    assert quiet["values"][0][1] == "0"
    assert answer(server, filled(expr, fleet, {"host": "nowhere"}), start + STORM, start + STORM) == []
