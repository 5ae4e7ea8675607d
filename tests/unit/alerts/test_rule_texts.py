"""The description of every shipped alert carries what gpuwatch itself says, and nothing where it says nothing."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.model import series
from gpuwatch.promql import templates
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.store import Store

ROOT = Path(__file__).resolve().parents[3]
TOOL = runpy.run_path(str(ROOT / "tests/tools/rule_annotations.py"))
RULES = load(shipped_paths()).alerts
PLACE = {"host": "h", "server": "127.0.0.1:8000", "uuid": "GPU-1", "gpu": "1"}


def rendered(rule, *infos):
    store = Store()
    keys = tuple(series("gpuwatch_finding_info", **info) for info in infos)
    if keys:
        store.append("findings", 1000, keys, (1.0,) * len(keys))
    template = templates.parse(rule.annotations["description"])
    return template.render(series("x", **PLACE), 2.0, LocalQuerier(store), 1000, {})


@pytest.mark.parametrize("path", shipped_paths(), ids=lambda path: path.name)
def test_a_rule_file_is_what_the_tool_makes_of_it(path):
    text = path.read_text(encoding="utf-8")
    assert TOOL["annotated"](text, path.name) == text, "run: python tests/tools/rule_annotations.py"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_template_of_a_shipped_rule_can_be_parsed(rule):
    for text in (*rule.labels.values(), *rule.annotations.values()):
        assert templates.parse(text).text == text


def test_loading_the_shipped_rules_parses_no_template():
    before = templates.parse.cache_info()
    load(shipped_paths())
    assert templates.parse.cache_info() == before


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_cause_and_change_of_the_same_finding_follow_the_description(rule):
    info = {"id": rule.id, "host": "h", "server": PLACE["server"], "uuid": "GPU-1", "cause": "It is full."}
    plain = rendered(rule)
    assert "Cause" not in plain
    assert rendered(rule, info) == f"{plain} Cause: It is full."
    advised = {**info, "advice": "admit fewer", "flag": "--max-num-seqs", "from": "16", "to": "2"}
    assert rendered(rule, advised) == f"{plain} Cause: It is full. Change: --max-num-seqs 16 → 2: admit fewer"
    del advised["from"]
    assert rendered(rule, advised).endswith("Change: --max-num-seqs → 2: admit fewer")
    assert rendered(rule, {**info, "advice": "reboot"}).endswith("Change: reboot")


@pytest.mark.parametrize("other", [{"id": "x"}, {"host": "g"}, {"server": "127.0.0.1:8001"}, {"uuid": "GPU-2"}])
def test_what_is_said_about_another_thing_is_not_taken(other):
    rule = RULES[0]
    info = {"id": rule.id, "host": "h", "server": PLACE["server"], "uuid": "GPU-1", "cause": "It is full.", **other}
    assert rendered(rule, info) == rendered(rule)


def test_a_description_that_the_tool_cannot_read_is_refused():
    with pytest.raises(SystemExit, match="not one line in single quotes"):
        TOOL["annotated"]("  diagnosis: x\n  description: >-\n    text\n", "a.yml")
    with pytest.raises(SystemExit, match="without a diagnosis before it"):
        TOOL["annotated"]("  description: 'text'\n", "a.yml")
