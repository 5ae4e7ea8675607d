from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuwatch.alerts.rulefile import load
from gpuwatch.dashboards import DASHBOARDS, files
from gpuwatch.dashboards.model import Limit
from gpuwatch.queries import CATALOGUE

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def made():
    return files(load(sorted((ROOT / "rules").glob("*.yml"))))


def test_the_committed_files_are_what_the_builder_and_the_rules_give(made):
    """`make dashboards` writes them again."""
    committed = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "dashboards").glob("*.json")}
    assert sorted(committed) == sorted(made)
    for name, text in made.items():
        assert committed[name] == text, f"dashboards/{name} is out of date: run `make dashboards`"


def test_every_query_of_a_panel_is_in_the_catalogue():
    for board in DASHBOARDS:
        for row in board.rows:
            for panel in row.panels:
                assert {series.query for series in panel.series} <= CATALOGUE.keys(), panel.title


def test_every_threshold_belongs_to_a_rule_that_ships():
    limits = {
        limit.alert
        for board in DASHBOARDS
        for row in board.rows
        for panel in row.panels
        for limit in (*panel.limits, *(limit for column in panel.columns for limit in column.limits))
        if isinstance(limit, Limit)
    }
    rules = load(sorted((ROOT / "rules").glob("*.yml")))
    assert limits
    assert limits <= {rule.name for rule in rules.alerts}


def test_uids_and_titles_are_those_that_links_and_people_know(made):
    found = {name: (json.loads(text)["uid"], json.loads(text)["title"]) for name, text in made.items()}
    assert found == {
        "gpuwatch-fleet.json": ("gpuwatch-fleet", "gpuwatch / fleet"),
        "gpuwatch-engine.json": ("gpuwatch-engine", "gpuwatch / engine"),
        "gpuwatch-ledger.json": ("gpuwatch-ledger", "gpuwatch / GPU memory ledger"),
        "gpuwatch-findings.json": ("gpuwatch-findings", "gpuwatch / findings"),
    }


def test_the_pool_is_coloured_from_the_threshold_of_its_rule(made):
    (panel,) = [p for p in json.loads(made["gpuwatch-fleet.json"])["panels"] if p["title"] == "KV pool in use"]
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps == [{"color": "green", "value": None}, {"color": "yellow", "value": 0.85}]
    assert "Coloured from 85 %: the threshold of GpuwatchKvPoolSaturated." in panel["description"]


def test_headroom_is_bad_below_its_threshold(made):
    panels = json.loads(made["gpuwatch-ledger.json"])["panels"]
    (panel,) = [p for p in panels if p["title"] == "Headroom at the last peak"]
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps == [{"color": "red", "value": None}, {"color": "green", "value": 0.02}]
