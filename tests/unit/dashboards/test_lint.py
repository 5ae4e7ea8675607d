from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINT = runpy.run_path(str(ROOT / "tests" / "tools" / "lint_dashboards.py"))


def fleet():
    return json.loads((ROOT / "dashboards" / "gpuwatch-fleet.json").read_text(encoding="utf-8"))


def first(document, kind):
    return next(panel for panel in document["panels"] if panel["type"] == kind)


@pytest.mark.parametrize("path", sorted((ROOT / "dashboards").glob("*.json")), ids=lambda path: path.stem)
def test_no_dashboard_has_a_problem(path):
    assert LINT["problems"](json.loads(path.read_text(encoding="utf-8"))) == []


def expression(text):
    def change(document):
        first(document, "timeseries")["targets"][0]["expr"] = text

    return change


def variable(**changes):
    def change(document):
        next(v for v in document["templating"]["list"] if v["name"] == "server").update(changes)

    return change


def panel(**changes):
    return lambda document: first(document, "timeseries").update(changes)


def defaults(**changes):
    return lambda document: first(document, "timeseries")["fieldConfig"]["defaults"].update(changes)


def table_link(document):
    for override in first(document, "table")["fieldConfig"]["overrides"]:
        for prop in override["properties"]:
            if prop["id"] == "links":
                prop["value"][0]["url"] = "/d/elsewhere?${__url_time_range}"


HOST = 'cluster=~"$cluster", host=~"$host"'
BROKEN = {
    "uid": lambda document: document.update(uid="x"),
    "uneditable": lambda document: document.update(editable=True),
    "schema": lambda document: document.update(schemaVersion=12),
    "template-datasource: there": lambda document: document["templating"]["list"].pop(0),
    "template-datasource: server": variable(datasource={"type": "prometheus", "uid": "abc"}),
    "template-required-variables: server": variable(multi=False),
    "template-on-time-change-reload: server": variable(refresh=1),
    "template-label-promql: server: is not": variable(query="label_values(server)"),
    "template-label-promql: server: uses model_name": variable(
        query='label_values(gpuwatch_engine_requests_running{host=~"$host", model_name=~"$model_name"}, server)'
    ),
    "template-label-promql: server: target-required-matchers": variable(
        query='label_values(gpuwatch_source_up{source="engine"}, server)'
    ),
    "links: the links": lambda document: document["links"][0].update(keepTime=False),
    "links: the dashboard": lambda document: document.update(tags=[]),
    "links: Findings": table_link,
    "annotations": lambda document: document["annotations"]["list"].pop(1),
    "layout: two": lambda document: document["panels"][2].update(id=1),
    "layout: Warnings: lies": lambda document: document["panels"][2]["gridPos"].update(x=0),
    "layout: Warnings: is wider": lambda document: document["panels"][2]["gridPos"].update(x=23),
    "panel-title-description": panel(description=""),
    "panel-datasource": panel(datasource={"type": "prometheus", "uid": "abc"}),
    "panel-targets": panel(targets=[]),
    "panel-no-value": defaults(noValue=""),
    "panel-units": defaults(unit="furlong"),
    "target-promql": expression("gpuwatch_gpu_power_watts +"),
    "target-rate-interval: KV pool in use: A: rate": expression(
        f"rate(gpuwatch_process_cpu_seconds_total{{{HOST}}}[5m])"
    ),
    "target-rate-interval: KV pool in use: A: a sub": expression(
        f"max_over_time(gpuwatch_tick_seconds{{{HOST}}}[5m:1m])"
    ),
    "target-required-matchers": expression("gpuwatch_gpu_power_watts"),
    "target-required-matchers: KV pool in use: A: gpuwatch_tick_seconds compares": expression(
        f'gpuwatch_tick_seconds{{{HOST}, host!="$server"}}'
    ),
    "target-counter": expression(f"gpuwatch_process_cpu_seconds_total{{{HOST}}}"),
    "guarded-ratio": expression(f"gpuwatch_tick_seconds{{{HOST}}} / gpuwatch_tick_seconds{{{HOST}}}"),
    "cluster": expression(f"max by (host) (gpuwatch_tick_seconds{{{HOST}}})"),
    "cluster: KV pool in use: A: machines": expression(
        f"gpuwatch_tick_seconds{{{HOST}}} * on (host) gpuwatch_build_info{{{HOST}}}"
    ),
    "vocabulary": expression("gpuwatch_no_such_thing"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_the_linter_finds_what_is_broken(rule):
    document = fleet()
    BROKEN[rule](document)
    found = LINT["problems"](document)
    assert any(text.startswith(rule) for text in found), found


def test_a_legend_must_be_there():
    document = fleet()
    first(document, "timeseries")["targets"][0]["legendFormat"] = ""
    assert LINT["problems"](document) == ["target-legend: KV pool in use: A has no legend"]
