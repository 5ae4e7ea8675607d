"""``gpuwatch rules``: what it prints and how it exits."""

from __future__ import annotations

import argparse
import json
import os

import pytest

from gpuwatch import cli
from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.cli import rules
from gpuwatch.cli.rules_actions import first_paragraph, section

GOOD = "groups: [{name: g, rules: [{alert: Hot, expr: temperature > 90, for: 1m, labels: {severity: info}}]}]\n"
BAD = "groups: [{name: g, rules: [{alert: Hot, expr: 'temperature >', for: soon}]}]\n"
TEST = """\
rule_files: [good.yml]
tests:
  - input_series: [{series: temperature, values: 95x5}]
    alert_rule_test: [{eval_time: 2m, alertname: Hot, exp_alerts: [{exp_labels: {severity: %s}}]}]
"""


@pytest.fixture
def files(tmp_path):
    contents = {
        "good.yml": GOOD,
        "bad.yml": BAD,
        "pass.yml": TEST % "info",
        "fail.yml": TEST % "other",
        "config.toml": f'rules = ["{tmp_path}/good.yml"]\n',
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    cli.add_common(parser)
    rules.add_arguments(parser)
    return rules.run(parser.parse_args([str(argument) for argument in arguments]))


def test_check_of_a_good_file(files, capsys):
    assert run("check", files / "good.yml") == 0
    assert capsys.readouterr().out == "1 rule in 1 file: fine\n"


def test_check_lists_every_problem_on_stderr(files, capsys):
    assert run("check", files / "good.yml", files / "bad.yml", files / "none.yml") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.removeprefix(f"{files}/")[:24] for line in err.splitlines()] == [
        "bad.yml:1: rule Hot: exp",
        "bad.yml:1: rule Hot: for",
        "none.yml: cannot be read",
    ]


def test_check_without_a_file_checks_the_rules_in_use(capsys):
    assert run("check") == 0
    assert capsys.readouterr().out.endswith(": fine\n")


def test_check_counts_the_files_that_were_read(files, capsys):
    (files / "empty.yml").write_text("groups: []\n")
    assert run("check", files / "empty.yml") == 0
    assert run("check", files / "empty.yml", files / "good.yml") == 0
    assert capsys.readouterr().out == "0 rules in 1 file: fine\n1 rule in 2 files: fine\n"


def test_check_reads_standard_input(files, capsys):
    kept = os.dup(0)
    try:
        for name, code in (("good.yml", 0), ("bad.yml", 2)):
            with (files / name).open() as text:
                os.dup2(text.fileno(), 0)
            assert run("check", "-") == code
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    out, err = capsys.readouterr()
    assert out == "1 rule in 1 file: fine\n"
    assert err.startswith("/dev/stdin:1: rule Hot: expr: temperature >: ")


def test_check_warns_of_a_severity_that_no_finding_has(files, capsys):
    text = GOOD.replace("severity: info", "severity: page")
    (files / "page.yml").write_text(text)
    assert run("check", files / "page.yml") == 0
    out, err = capsys.readouterr()
    assert out == "1 rule in 1 file: fine\n"
    assert "page.yml:1: rule Hot: severity 'page' is shown as a warning" in err
    assert "known are critical, warning, info" in err
    (files / "page.yml").write_text(GOOD.replace("severity: info", "severity: '{{ $labels.how }}'"))
    assert run("check", files / "page.yml") == 0
    assert capsys.readouterr().err == ""


def test_check_as_json(files, capsys):
    assert run("--json", "check", files / "bad.yml") == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["schema"], found["rules"], err) == (1, 0, "")
    assert [(item["line"], item["rule"]) for item in found["problems"]] == [(1, "Hot"), (1, "Hot")]


def test_list_shows_the_user_s_rules_over_the_shipped_ones(files, capsys):
    assert run("list", "--config", files / "config.toml") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["RULE", "SEVERITY", "FOR", "FINDING", "FILE"]
    assert lines[-1].split() == ["Hot", "info", "1m", str(files / "good.yml")]
    assert len(lines) == 2 + len(load(shipped_paths()).rules)


def test_the_environment_names_the_configuration_too(files, capsys, monkeypatch):
    monkeypatch.setenv("GPUWATCH_CONFIG", str(files / "config.toml"))
    assert run("list") == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "Hot"


def test_list_as_json(files, capsys):
    assert run("list", "--json", "--config", files / "config.toml") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rules"][-1] == {
        "type": "alerting",
        "name": "Hot",
        "expr": "temperature > 90",
        "labels": {"severity": "info"},
        "group": "g",
        "file": str(files / "good.yml"),
        "line": 1,
        "shipped": False,
        "id": "",
        "severity": "info",
        "for": 60.0,
        "keep_firing_for": 0.0,
    }
    assert found["problems"] == found["warnings"] == []


@pytest.mark.parametrize(
    ("names", "code", "last"),
    [
        (["pass.yml"], 0, "pass.yml: 1 check passed"),
        (["pass.yml", "fail.yml"], 1, "fail.yml: FAILED, 1 of 1 check"),
        (["good.yml"], 2, ""),
    ],
)
def test_test_exits_with_the_verdict(files, capsys, names, code, last):
    assert run("test", *(files / name for name in names)) == code
    assert capsys.readouterr().out.splitlines()[-1:] == ([str(files / last)] if last else [])


def test_test_as_json(files, capsys):
    assert run("test", files / "fail.yml", "--json") == 1
    (result,) = json.loads(capsys.readouterr().out)["files"]
    assert (result["passed"], result["checked"], result["problems"]) == (False, 1, [])
    assert 'severity="other"' in result["failures"][0]["message"]


def test_quiet_prints_failures_only(files, capsys):
    assert run("test", "--quiet", files / "pass.yml") == 0
    assert run("check", "--quiet", files / "good.yml") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("by", ["name", "id"])
def test_explain_says_what_a_rule_needs(capsys, by):
    rule = next(rule for rule in load(shipped_paths()).alerts if rule.id == "kv_preemption_storm")
    assert run("explain", rule.name if by == "name" else rule.id) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == [rule.name, "critical", "kv_preemption_storm"]
    assert "gpuwatch_engine_evictions_total  running requests that left without finishing" in out
    assert "docs/runbook.md#kv_preemption_storm" in out


def test_explain_as_json(files, capsys):
    assert run("explain", "Hot", "--json", "--config", files / "config.toml") == 0
    (rule,) = json.loads(capsys.readouterr().out)["rules"]
    assert rule["needs"] == [["temperature"]]
    assert rule["comparisons"] == ["temperature > 90"]
    assert (rule["metrics"], rule["runbook"]) == ({"temperature": ""}, "")


def test_explain_of_an_unknown_name_suggests_a_close_one():
    with pytest.raises(cli.UsageError, match=r"'kv_preemtion_storm'; did you mean .*kv_preemption_storm"):
        run("explain", "kv_preemtion_storm")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# R\n\n## `heat`\n\n**What it means.** It is\nhot.\n\n**Confirm.** no\n", "It is hot."),
        ("## heat\nOne line.\n\n## next\n", "One line."),
        ("## heat\n\n## next\n\nText.\n", ""),
        ("## heat_wave\n\nText.\n", ""),
        ("heat\n\nText.\n", ""),
        ("", ""),
    ],
)
def test_first_paragraph_of_a_section(text, expected):
    assert first_paragraph(text, "heat") == expected


def test_the_meaning_comes_from_the_runbook(capsys):
    assert run("explain", "kv_preemption_storm", "--json") == 0
    rule = json.loads(capsys.readouterr().out)["rules"][0]
    assert rule["runbook"].startswith("The KV pool is exhausted. ")
    assert rule["title"]


RUNBOOK = "# R\n\n## `heat`\n\nHot.\n\n### More\n\nVery.\n\n## cold\n\nBrr.\n"


@pytest.mark.parametrize(
    ("finding", "expected"),
    [("heat", "Hot.\n\n### More\n\nVery."), ("More", "Very."), ("cold", "Brr."), ("he", ""), ("", "")],
)
def test_a_section_goes_on_to_the_next_heading_of_its_level(finding, expected):
    assert section(RUNBOOK, finding) == expected


def test_explain_prints_what_the_runbook_says_once_for_all_rules_of_a_finding(capsys):
    assert run("explain", "sglang_retraction_storm") == 0
    out = capsys.readouterr().out
    assert out.count("GpuwatchSglangRetractionStorm") == 1
    assert out.count("**Confirm by hand.**") == 1
    assert out.index("GpuwatchSglangRetractionLogged") < out.index("**Confirm by hand.**")
