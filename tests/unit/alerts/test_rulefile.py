"""Rule files: what Prometheus 2.42 accepts is read, everything else is refused with file, line, rule and reason."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from gpuwatch.alerts.rulefile import RULE_KEYS, AlertRule, RecordRule, load, shipped_paths

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(dedent(content))
    return path


def problems(folder: Path, content: str, *, shipped: bool = False) -> list[str]:
    path = write(folder, "r.yml", content)
    rules = load([path]) if shipped else load(user=[path])
    if rules.problems and shipped:
        assert rules.rules == ()
    return [str(problem).removeprefix(f"{folder}/") for problem in rules.problems]


def test_every_key_is_read(tmp_path):
    path = write(
        tmp_path,
        "r.yml",
        """\
        groups:
          - name: g
            limit: 5
            rules:
              - alert: Hot
                expr: |
                  temperature > 90
                for: 1m30s
                keep_firing_for: 15s
                labels: {severity: warning, diagnosis: heat, gpu: 'GPU {{ $labels.gpu }}'}
                annotations: {summary: 'it is {{ $value | humanize }}'}
              - record: job:heat:max
                expr: max by (job) (temperature)
                labels: {unit: celsius}
        """,
    )
    rules = load([path])
    assert rules.problems == rules.warnings == ()
    (group,) = rules.groups
    assert (group.name, group.limit, group.file) == ("g", 5, str(path))
    hot, record = group.rules
    assert isinstance(hot, AlertRule)
    assert (hot.name, hot.expr, hot.hold, hot.keep) == ("Hot", "temperature > 90", 90_000, 15_000)
    assert (hot.id, hot.severity, hot.line, hot.shipped) == ("heat", "warning", 5, True)
    assert hot.labels["gpu"] == "GPU {{ $labels.gpu }}"
    assert hot.annotations == {"summary": "it is {{ $value | humanize }}"}
    assert isinstance(record, RecordRule)
    assert (record.name, record.labels, record.line) == ("job:heat:max", {"unit": "celsius"}, 12)
    assert rules.alerts == (hot,)


def test_scalars_need_no_quotes_and_null_is_unset(tmp_path):
    content = """\
        groups:
          - name: 1
            rules:
              - {alert: yes, expr: 1, for: 0, labels: {a: 5, b: true, c: ~}, annotations: ~}
        """
    rules = load(user=[write(tmp_path, "r.yml", content)])
    assert rules.problems == ()
    (rule,) = rules.alerts
    assert (rule.name, rule.expr, rule.hold, rule.annotations) == ("yes", "1", 0, {})
    assert rule.labels == {"a": "5", "b": "true", "c": ""}


@pytest.mark.parametrize("content", ["", "groups:\n", "groups: []\n", "groups: [{name: g}]\n"])
def test_files_without_rules_are_fine(tmp_path, content):
    rules = load(user=[write(tmp_path, "r.yml", content)])
    assert (rules.rules, rules.problems) == ((), ())


RULE = "groups: [{{name: g, rules: [{{{}}}]}}]\n"

REFUSED = [
    ("group: []\n", "r.yml:1: unknown key 'group' in the rule file; allowed are: groups"),
    ("groups: 5\n", "r.yml:1: groups must be a list, not the text '5'"),
    ("[1]\n", "r.yml:1: the rule file must be a mapping of keys to values, not a list"),
    ("groups: [x]\n", "r.yml:1: a group must be a mapping of keys to values, not the text 'x'"),
    ("groups: [{rules: []}]\n", "r.yml:1: a group must have a name"),
    (
        "groups:\n- name: g\n  query_offset: 5s\n",
        "r.yml:3: unknown key 'query_offset' in a group; allowed are: name, interval, limit, rules",
    ),
    ("groups: [{name: g, interval: x}]\n", "r.yml:1: interval: 'x' is not a duration"),
    ("groups: [{name: g, limit: many}]\n", "limit must be a whole number of series (0: none), not 'many'"),
    ("groups: [{name: g, limit: -1}]\n", "limit must be a whole number of series (0: none), not '-1'"),
    ("groups:\n- name: g\n- name: g\n", "r.yml:3: group 'g' is already defined at line 2"),
    ("groups: [{name: g, name: h}]\n", "'name' is given twice in a group"),
    ("groups: [{name: g, rules: {}}]\n", "rules of group 'g' must be a list, not a mapping"),
    (RULE.format("expr: '1'"), "r.yml:1: a rule of group 'g' must set 'alert' or 'record'"),
    (RULE.format("alert: A, record: b, expr: '1'"), "rule A: only one of 'alert' and 'record' may be set"),
    (RULE.format("alert: A"), "r.yml:1: rule A: 'expr' must be set"),
    (RULE.format("alert: A, expr: ' '"), "rule A: 'expr' must be set"),
    (RULE.format("alert: A, expr: 'm >'"), "rule A: expr: m >"),
    (RULE.format("alert: A, expr: 'm @ 5m'"), "rule A: expr: m @ 5m: a duration such as 5m"),
    (RULE.format("alert: A, expr: [m]"), "rule A: expr must be text, not a list"),
    (
        RULE.format("alert: A, expr: '1', four: 5s"),
        f"unknown key 'four' in a rule of group 'g'; allowed are: {', '.join(RULE_KEYS)}",
    ),
    (RULE.format("alert: A, expr: '1', for: 5 minutes"), "rule A: for: '5 minutes' is not a duration; allowed are"),
    (RULE.format("alert: A, expr: '1', for: 90"), "rule A: for: '90' is not a duration"),
    (RULE.format("alert: A, expr: '1', keep_firing_for: 1.5s"), "rule A: keep_firing_for: '1.5s' is not a duration"),
    (RULE.format("alert: A, expr: '1', labels: [a]"), "rule A: labels must be a mapping of keys to values, not a list"),
    (RULE.format("alert: A, expr: '1', labels: {a-b: c}"), "rule A: 'a-b' is not allowed as label name"),
    (RULE.format("alert: A, expr: '1', labels: {__name__: c}"), "rule A: '__name__' is not allowed as label name"),
    (RULE.format("alert: A, expr: '1', labels: {a: [b]}"), "rule A: labels 'a' must be text, not a list"),
    (RULE.format("alert: A, expr: '1', annotations: {1a: c}"), "rule A: '1a' is not allowed as annotation name"),
    (RULE.format("alert: A, expr: '1', annotations: {a: '{{ $value'}"), "rule A: annotation 'a': "),
    (RULE.format("alert: A, expr: '1', labels: {a: '{{ nosuch }}'}"), "rule A: label 'a': "),
    (RULE.format("record: 'a b', expr: '1'"), "rule a b: 'a b' is not a metric name"),
    (RULE.format("record: a, expr: '1', for: 5s"), "rule a: 'for' is not allowed here; a recording rule may have"),
    (RULE.format("record: a, expr: '1', keep_firing_for: 5s"), "rule a: 'keep_firing_for' is not allowed here"),
    (RULE.format("record: a, expr: '1', annotations: {b: c}"), "rule a: 'annotations' are not allowed here"),
    (
        "groups:\n- name: g\n  rules:\n  - {alert: A, expr: '1'}\n  - {alert: A, expr: '2'}\n",
        "r.yml:5: rule A: the name and labels are those of the rule at ",
    ),
]


@pytest.mark.parametrize(("content", "expected"), REFUSED, ids=range(len(REFUSED)))
def test_wrong_file_is_refused(tmp_path, content, expected):
    found = problems(tmp_path, content)
    assert len(found) == 1, found
    assert expected in found[0]
    assert found[0].startswith("r.yml:")
    assert "\n" not in found[0]


def test_all_problems_of_a_file_are_listed_with_their_lines(tmp_path):
    found = problems(
        tmp_path,
        """\
        groups:
          - name: g
            rules:
              - alert: A
                expr: 'm >'
                for: soon
                labels:
                  ok: yes
                  not-ok: 'x'
              - alert: B
                expr: 'm > 1'
                anotations: {}
        """,
    )
    assert [problem.split(": ")[0] for problem in found] == ["r.yml:5", "r.yml:9", "r.yml:6", "r.yml:12"]


def test_rules_of_one_name_may_differ_in_labels(tmp_path):
    content = """\
        groups:
          - name: g
            rules:
              - {alert: A, expr: m > 1, labels: {severity: warning}}
              - {alert: A, expr: m > 2, labels: {severity: critical}}
              - {record: A, expr: m, labels: {severity: warning}}
        """
    assert problems(tmp_path, content) == []


def test_the_same_rule_in_two_files_of_a_layer_refuses_the_second_file(tmp_path):
    one = write(tmp_path, "1.yml", RULE.format("alert: A, expr: '1'"))
    two = write(tmp_path, "2.yml", RULE.format("alert: A, expr: '2'"))
    rules = load(user=[one, two])
    assert [rule.expr for rule in rules.rules] == ["1"]
    (problem,) = rules.problems
    assert (problem.file, problem.rule) == (str(two), "A")
    assert f"the rule at {one}:1" in problem.message


def test_a_merge_key_adds_what_a_mapping_does_not_have_itself(tmp_path):
    path = write(
        tmp_path,
        "r.yml",
        """\
        groups:
          - name: g
            rules:
              - &a {alert: A, expr: up, for: 5m, labels: &l {severity: warning, a: b}, annotations: {s: x}}
              - {<<: *a, alert: B}
              - {<<: *a, alert: C, for: , labels: {severity: info, <<: [*l, {z: q, a: no}], u: v}}
              - {<<: [{<<: {for: 1m}}, {for: 2m}], alert: D, expr: up}
        """,
    )
    rules = load(user=[path])
    assert rules.problems == rules.warnings == ()
    _, b, c, d = rules.alerts
    assert (b.name, b.expr, b.hold, b.labels, b.annotations) == (
        *("B", "up", 300_000, {"severity": "warning", "a": "b"}, {"s": "x"}),
    )
    assert (c.hold, c.labels) == (0, {"severity": "info", "u": "v", "a": "b", "z": "q"})
    assert (d.hold, d.labels) == (60_000, {})


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("{<<: {bad: x}, alert: C, expr: up}", "unknown key 'bad' in a rule of group 'g'"),
        ("{<<: 5, alert: C, expr: up}", "'<<' must have a mapping or a list of mappings, not the text '5'"),
        ("{alert: C, expr: up, labels: {<<: [5]}}", "'<<' must have a mapping or a list of mappings, not the text '5'"),
        ("{alert: C, expr: up, labels: {<<: }}", "'<<' must have a mapping or a list of mappings, not the text ''"),
        ("{<<: {for: 1m}, <<: {for: 2m}, alert: C, expr: up}", "'<<' is given twice in one mapping"),
        ("{'<<': {for: 1m}, alert: C, expr: up}", "unknown key '<<' in a rule of group 'g'"),
        ("{alert: C, expr: up, labels: &self {<<: *self, a: b}}", "'<<' names a mapping that it is part of"),
    ],
)
def test_a_wrong_merge_key_is_refused(tmp_path, rule, why):
    (problem,) = problems(tmp_path, f"groups:\n- name: g\n  rules:\n  - {rule}\n")
    assert why in problem
    assert problem.startswith("r.yml:4: ")


@pytest.mark.parametrize(
    ("content", "line", "names"),
    [
        ("{}---\ngroups: []\n", 6, ["A"]),
        ("{}---\nnonsense: [1\n", 6, ["A"]),
        ("---\n---\n{}", 3, []),
        ("{}---\n---\n", 0, ["A"]),
    ],
)
def test_only_the_first_document_is_read_as_in_prometheus_and_a_warning_says_so(tmp_path, content, line, names):
    rule = "groups:\n- name: g\n  rules:\n  - {alert: A, expr: up}\n"
    rules = load(user=[write(tmp_path, "r.yml", content.replace("{}", rule))])
    assert rules.problems == ()
    assert [rule.name for rule in rules.rules] == names
    assert [warning.line for warning in rules.warnings] == [line] * bool(line)
    assert all("only the first YAML document is read" in warning.message for warning in rules.warnings)


def test_an_interval_is_refused_in_shipped_rules_and_ignored_in_a_user_s(tmp_path):
    content = "groups:\n- name: g\n  interval: 30s\n  rules: [{alert: A, expr: '1'}]\n"
    assert problems(tmp_path, content, shipped=True) == [
        "r.yml:3: group 'g' has an interval; shipped rules are evaluated at every tick"
    ]
    rules = load(user=[tmp_path / "r.yml"])
    assert [rule.name for rule in rules.rules] == ["A"]
    (warning,) = rules.warnings
    assert (
        str(warning) == f"{tmp_path}/r.yml:3: the interval of group 'g' is ignored: rules are evaluated at every tick"
    )


def test_a_user_s_rule_replaces_every_shipped_rule_of_its_name(tmp_path):
    shipped = write(
        tmp_path,
        "shipped.yml",
        """\
        groups:
          - name: g
            rules:
              - {alert: A, expr: m > 1, labels: {severity: warning}}
              - {alert: A, expr: m > 2, labels: {severity: critical}}
              - {alert: B, expr: m > 3}
        """,
    )
    own = write(tmp_path, "own.yml", RULE.format("alert: A, expr: m > 9"))
    rules = load([shipped], [own])
    assert [(rule.name, rule.expr, rule.shipped) for rule in rules.rules] == [
        ("B", "m > 3", True),
        ("A", "m > 9", False),
    ]


def test_a_broken_user_file_takes_nothing_else_down(tmp_path):
    shipped = write(tmp_path, "shipped.yml", RULE.format("alert: A, expr: '1'"))
    broken = write(
        tmp_path,
        "broken.yml",
        "groups:\n- name: g\n  rules:\n  - {alert: A, expr: '2'}\n  - {alert: B, expr: '('}\n",
    )
    good = write(tmp_path, "good.yml", RULE.format("alert: C, expr: '3'"))
    rules = load([shipped], [broken, tmp_path / "none.yml", good])
    assert [(rule.name, rule.expr) for rule in rules.rules] == [("A", "2"), ("C", "3")]
    assert [problem.file for problem in rules.problems] == [str(broken), str(tmp_path / "none.yml")]


def test_a_folder_in_place_of_a_file_is_a_problem_not_a_crash(tmp_path):
    rules = load(user=[tmp_path])
    assert [problem.message for problem in rules.problems] == ["cannot be read: Is a directory"]


def test_the_shipped_rules_load():
    paths = shipped_paths()
    assert paths
    rules = load(paths)
    assert rules.problems == rules.warnings == ()
    assert rules.alerts


@pytest.mark.parametrize(
    ("expr", "what"),
    [("up[5m]", "a range vector"), ("up[5m:1m]", "a range vector"), ("'text'", "a string")],
)
def test_an_expression_that_gives_no_instant_vector_is_refused(tmp_path, expr, what):
    path = tmp_path / "r.yml"
    path.write_text(f'groups: [{{name: g, rules: [{{alert: A, expr: "{expr}"}}]}}]')
    (problem,) = load([path]).problems
    assert problem.message == f"expr: it is {what}; allowed are an instant vector and a scalar"
