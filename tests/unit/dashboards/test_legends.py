"""A legend names every label that tells one series of its query from another."""

from __future__ import annotations

import re

import pytest

from gpuwatch.dashboards import DASHBOARDS
from gpuwatch.dashboards.expressions import labels_of, metrics_of
from gpuwatch.queries import CATALOGUE

FOLLOWS = {"engine_kind", "version", "basis", "uuid"}
"""Labels that a panel need not name: each follows from the others, but for a card that was swapped within the range."""

SERIES = [
    pytest.param(series, id=f"{board.uid}: {panel.title}: {series.query}")
    for board in DASHBOARDS
    for row in board.rows
    for panel in row.panels
    if panel.kind not in ("table", "barchart")
    for series in panel.series
    if not series.total and series.query != "alerts"
]


def told_apart_by(query):
    """Return the labels of which a query has a series for each value."""
    template = CATALOGUE[query].template
    outer = re.match(r"\(?(?:sum|max|min|count)(?: by \(([^)]*)\))? ?\(", template)
    if outer and "group_right" not in template:
        inner = (outer[1] or "").split(", ") if outer[1] else []
        return {*inner, *(["cluster"] if "host" in inner else [])}
    many = [metrics_of(template)[-1]] if "group_right" in template else metrics_of(template)
    labels = {label for name in many for label in labels_of(name)}
    return labels - FOLLOWS - ({"server"} if "target" in labels else set())


@pytest.mark.parametrize("series", SERIES)
def test_a_legend_tells_every_series_from_the_others(series):
    named = set(re.findall(r"{{(\w+)}}", series.legend))
    own = told_apart_by(series.query)
    assert own - named == set()


def test_engines_on_loopback_of_two_machines_have_two_legends():
    (busy,) = [param.values[0] for param in SERIES if param.id == "gpuwatch-engine: Busy: engine_gpu_busy"]
    (usage,) = [
        param.values[0] for param in SERIES if param.id == "gpuwatch-engine: Prefill, 95th percentile: prefill_p95"
    ]
    labels = {"cluster": "eu", "server": "127.0.0.1:8000", "model_name": "tiny", "dp_rank": "0", "gpu": "0"}

    def shown(series, host):
        return re.sub(r"{{(\w+)}}", lambda found: {**labels, "host": host}.get(found[1], ""), series.legend)

    assert shown(busy, "node-a") == "eu node-a 127.0.0.1:8000 gpu 0"
    assert shown(usage, "node-a") == "eu node-a 127.0.0.1:8000 tiny 0"
    assert shown(usage, "node-a") != shown(usage, "node-b")


def test_alerts_of_one_rule_on_two_cards_or_sources_have_two_legends():
    (alerts,) = [
        s
        for board in DASHBOARDS
        for row in board.rows
        for panel in row.panels
        for s in panel.series
        if s.query == "alerts"
    ]
    named = set(re.findall(r"{{(\w+)}}", alerts.legend))
    assert {"cluster", "host", "server", "model_name", "dp_rank", "uuid", "target", "log", "xid", "reason"} <= named
