"""Muting of symptoms, from Alertmanager's documented semantics and ``inhibit/inhibit.go`` (0.25)."""

from __future__ import annotations

import pytest
import yaml

from gpuwatch.alerts.inhibition import RULES, InhibitRule, Matcher, alertmanager_yaml, from_table, inhibit
from gpuwatch.alerts.inhibitions import INHIBITIONS, Inhibition
from gpuwatch.alerts.state import Alert

CAUSE = (Matcher("diagnosis", "=", "cause"),)
SYMPTOM = (Matcher("diagnosis", "=~", "symptom|other"),)
BY_HOST = InhibitRule(CAUSE, SYMPTOM, ("host",))


def alert(name: str, state: str = "firing", **labels: str) -> Alert:
    pairs = tuple(sorted({"alertname": name, **labels}.items()))
    return Alert(name, pairs, 1.0, state, 0)


def muted(alerts: list[Alert], *rules: InhibitRule) -> dict[str, str]:
    return {found.name: found.inhibited_by for found in inhibit(alerts, rules)}


def test_a_firing_cause_mutes_its_symptom_where_the_equal_labels_agree():
    found = muted(
        [
            alert("C", diagnosis="cause", host="a"),
            alert("Here", diagnosis="symptom", host="a"),
            alert("There", diagnosis="symptom", host="b"),
            alert("Unrelated", diagnosis="third", host="a"),
        ],
        BY_HOST,
    )
    assert found == {"C": "", "Here": "C", "There": "", "Unrelated": ""}


@pytest.mark.parametrize("state", ["pending", "resolved"])
def test_only_a_firing_cause_mutes(state):
    found = muted([alert("C", state, diagnosis="cause", host="a"), alert("S", diagnosis="symptom", host="a")], BY_HOST)
    assert found["S"] == ""


def test_a_pending_symptom_is_marked_and_a_resolved_one_is_not():
    found = muted(
        [
            alert("C", diagnosis="cause", host="a"),
            alert("P", "pending", diagnosis="symptom", host="a"),
            alert("R", "resolved", diagnosis="symptom", host="a"),
        ],
        BY_HOST,
    )
    assert (found["P"], found["R"]) == ("C", "")


@pytest.mark.parametrize("storm", ["kv_preemption_storm", "sglang_retraction_storm"])
def test_a_storm_is_not_muted_by_a_pool_that_is_smaller_than_the_longest_request(storm):
    here = {"host": "a", "server": "s:1", "model_name": "m"}
    found = muted(
        [
            alert("Small", diagnosis="max_model_len_exceeds_kv", **here),
            alert("Storm", diagnosis=storm, **here),
            alert("Queue", diagnosis="queue_growth", **here),
            alert("Elsewhere", diagnosis=storm, **here | {"server": "s:2"}),
        ],
        *RULES,
    )
    assert found == {"Small": "", "Storm": "", "Queue": "Storm", "Elsewhere": ""}


def test_labels_missing_on_both_sides_are_equal():
    assert muted([alert("C", diagnosis="cause"), alert("S", diagnosis="symptom")], BY_HOST)["S"] == "C"


def test_a_label_missing_on_one_side_is_not_equal_to_a_value():
    assert muted([alert("C", diagnosis="cause"), alert("S", diagnosis="symptom", host="a")], BY_HOST)["S"] == ""


def test_without_equal_labels_a_cause_mutes_everywhere():
    rule = InhibitRule(CAUSE, SYMPTOM, ())
    assert muted([alert("C", diagnosis="cause", host="a"), alert("S", diagnosis="symptom", host="b")], rule)["S"] == "C"


def test_an_alert_on_both_sides_does_not_mute_itself_or_another_such_alert():
    both = InhibitRule((Matcher("severity", "=", "critical"),), (Matcher("severity", "=~", "critical|warning"),), ())
    found = muted(
        [alert("One", severity="critical"), alert("Two", severity="critical"), alert("Low", severity="warning")], both
    )
    assert (found["One"], found["Two"], found["Low"]) == ("", "", "One")


def test_an_alert_on_both_sides_is_muted_by_one_that_is_only_a_source():
    rule = InhibitRule((Matcher("kind", "=~", "a|b"),), (Matcher("kind", "=~", "b|c"),), ())
    found = muted([alert("B", kind="b"), alert("A", kind="a")], rule)
    assert found == {"B": "A", "A": ""}


def test_a_muted_alert_still_mutes():
    first = InhibitRule((Matcher("d", "=", "1"),), (Matcher("d", "=", "2"),), ())
    second = InhibitRule((Matcher("d", "=", "2"),), (Matcher("d", "=", "3"),), ())
    assert muted([alert("A", d="1"), alert("B", d="2"), alert("C", d="3")], first, second) == {
        "A": "",
        "B": "A",
        "C": "B",
    }


def test_all_matchers_of_a_side_must_hold():
    rule = InhibitRule((*CAUSE, Matcher("severity", "!=", "info")), (*SYMPTOM, Matcher("team", "!~", "x.*")), ())
    causes = [alert("C", diagnosis="cause", severity="info")]
    assert muted([*causes, alert("S", diagnosis="symptom")], rule)["S"] == ""
    causes = [alert("C", diagnosis="cause", severity="critical")]
    found = muted([*causes, alert("S", diagnosis="symptom"), alert("T", diagnosis="symptom", team="xy")], rule)
    assert (found["S"], found["T"]) == ("C", "")


def test_a_regular_expression_matches_the_whole_value():
    rule = InhibitRule((Matcher("d", "=~", "caus"),), SYMPTOM, ())
    assert muted([alert("C", d="cause"), alert("S", diagnosis="symptom")], rule)["S"] == ""


def test_a_negative_matcher_holds_for_a_missing_label():
    assert Matcher("team", "!=", "x").matches(())
    assert Matcher("team", "=", "").matches(())
    assert Matcher("team", "=~", "x?").matches(())
    assert not Matcher("team", "!~", "x?").matches(())


def test_table_rows_mute_by_finding_id():
    rules = from_table([Inhibition("kv_preemption_storm", ("queue_growth", "head_of_line"), ("host", "server"))])
    storm = alert("Storm", diagnosis="kv_preemption_storm", host="n", server="s")
    found = muted(
        [
            storm,
            alert("Queue", diagnosis="queue_growth", host="n", server="s"),
            alert("Other", diagnosis="queue_growth", host="n", server="t"),
        ],
        *rules,
    )
    assert found == {"Storm": "", "Queue": "Storm", "Other": ""}


def test_no_shipped_cause_mutes_itself_or_its_own_cause():
    symptoms = {row.cause: set() for row in INHIBITIONS}
    for row in INHIBITIONS:
        symptoms[row.cause].update(row.symptoms)
    for cause, of_cause in symptoms.items():
        reached, todo = set(), list(of_cause)
        while todo:
            symptom = todo.pop()
            if symptom not in reached:
                reached.add(symptom)
                todo.extend(symptoms.get(symptom, ()))
        assert cause not in reached


def test_yaml_for_alertmanager_says_what_the_rules_say():
    text = alertmanager_yaml(
        [InhibitRule((Matcher("diagnosis", "=", "it's"),), (Matcher("diagnosis", "=~", 'a|"b"'),), ("host", "server"))]
    )
    assert yaml.safe_load(text) == {
        "inhibit_rules": [
            {
                "source_matchers": ['diagnosis="it\'s"'],
                "target_matchers": ['diagnosis=~"a|\\"b\\""'],
                "equal": ["host", "server"],
            }
        ]
    }


def test_in_alertmanager_nothing_is_muted_by_a_cause_in_another_cluster():
    """Two clusters may call machines and engines alike; the label is absent, and so equal, where there is one."""
    rules = yaml.safe_load(alertmanager_yaml([*RULES, InhibitRule(CAUSE, SYMPTOM, ("cluster", "host"))]))
    equal = [rule["equal"] for rule in rules["inhibit_rules"]]
    assert len(equal) > 20
    assert all(names.count("cluster") == 1 for names in equal)


def test_yaml_without_rules_is_an_empty_list():
    assert yaml.safe_load(alertmanager_yaml([])) == {"inhibit_rules": []}
