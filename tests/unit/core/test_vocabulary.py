from __future__ import annotations

import re

import pytest

from gpuwatch.model import NAME, label, name_of, series
from gpuwatch.queries import CATALOGUE
from gpuwatch.series import METRICS

BASE_UNITS = {"bytes", "seconds", "ratio", "watts", "joules", "hertz", "celsius"}


def test_a_series_is_sorted_and_has_no_empty_labels():
    labels = series("m", b="2", a="1", c="")
    assert labels == ((NAME, "m"), ("a", "1"), ("b", "2"))
    assert (name_of(labels), label(labels, "a"), label(labels, "c")) == ("m", "1", "")


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_names_follow_the_conventions_of_prometheus(metric):
    assert re.fullmatch(r"gpuwatch_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert metric.unit in BASE_UNITS | {"tokens", ""}
    if metric.unit in BASE_UNITS:
        assert metric.unit in metric.name
    assert metric.labels[0] == "host"
    assert len(set(metric.labels)) == len(metric.labels)
    assert metric.help
    assert not metric.help.endswith(".")


def test_every_query_uses_only_names_of_the_vocabulary():
    for query in CATALOGUE.values():
        for name in re.findall(r"gpuwatch_\w+", query.template):
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in METRICS or METRICS[family].kind == "histogram", (query.name, name)
