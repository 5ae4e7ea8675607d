"""Machines of one name in two clusters of one Prometheus: no shipped rule takes one for the other.

The label is added by whoever scrapes; where no series has it, a missing label equals a missing one.
"""

from __future__ import annotations

import pytest
import yaml

from gpuwatch.alerts.inhibition import alertmanager_yaml
from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.alerts.ruletest import run_file
from gpuwatch.promql.nodes import Aggregate, Binary, walk

RULES = load(shipped_paths()).alerts
TESTS = sorted(shipped_paths()[0].parent.glob("tests/*_15s.yml"))


def groupings(rule):
    """The label lists by which a rule joins or aggregates: (labels, whether they are kept)."""
    for node in walk(rule.plan.root):
        if isinstance(node, Aggregate):
            yield node.labels, not node.without
        elif isinstance(node, Binary):
            yield node.matching.labels, node.matching.on


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_joins_and_aggregates_within_one_cluster(rule):
    for labels, kept in groupings(rule):
        assert ("cluster" in labels) == kept, f"{rule.name}: {labels}"
        assert not kept or "host" in labels, f"{rule.name}: {labels}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_description_tells_the_cause_of_the_same_cluster(rule):
    assert "cluster=%q,host=%q," in rule.annotations["description"]
    assert '(or $labels.cluster "") (or $labels.host "")' in rule.annotations["description"]


def test_alertmanager_mutes_nothing_in_another_cluster():
    for row in yaml.safe_load(alertmanager_yaml())["inhibit_rules"]:
        assert "cluster" in row["equal"]


def in_clusters(case, clusters):
    """A case of a rule test whose machine is there once in each cluster."""
    twice = dict(case, input_series=[], alert_rule_test=[])
    for cluster in clusters:
        for given in case["input_series"]:
            name, _, labels = given["series"].partition("{")
            own = f'{name}{{cluster="{cluster}",{labels}' if labels else f'{name}{{cluster="{cluster}"}}'
            twice["input_series"].append({**given, "series": own})
    for check in case["alert_rule_test"]:
        alerts = [
            {**alert, "exp_labels": {**alert["exp_labels"], "cluster": cluster}}
            for cluster in clusters
            for alert in check.get("exp_alerts") or ()
        ]
        twice["alert_rule_test"].append({**check, "exp_alerts": alerts})
    return twice


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_two_machines_of_one_name_in_two_clusters_raise_what_each_would_alone(path, tmp_path):
    book = yaml.safe_load(path.read_text(encoding="utf-8"))
    own = [case for case in book["tests"] if 'cluster="' not in str(case["input_series"])]
    book["tests"] = [in_clusters(case, ("eu-1", "us-1")) for case in own]
    book["rule_files"] = [str(path.parent / name) for name in book["rule_files"]]
    copied = tmp_path / path.name
    copied.write_text(yaml.safe_dump(book), encoding="utf-8")
    verdict = run_file(copied)
    assert verdict.passed, (verdict.problems, verdict.failures[:3])
    assert verdict.checked
