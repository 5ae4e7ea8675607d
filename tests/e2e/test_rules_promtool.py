"""Our rule engine and rule tests against promtool 2.42: the same alerts, the same verdicts, the same refusals."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from gpuwatch.alerts import rulefile, testfile
from gpuwatch.alerts.engine import RuleEngine
from gpuwatch.alerts.ruletest import Feed, run_file
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.store import Store

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("GPUWATCH_CACHE", ROOT / ".cache")) / "prometheus/usr/bin"
PROMTOOL = shutil.which("promtool", path=f"{FOLDER}:{os.environ['PATH']}") or ""
RULE_TESTS = sorted((ROOT / "rules" / "tests").glob("*.yml"))

STEPS = 180


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL, "promtool is missing: tests/e2e/fetch.sh prometheus"
    return subprocess.run(
        [PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False, cwd="/"
    )


def random_values(rng: random.Random) -> str:
    words: list[str] = []
    points = 0
    while points < STEPS:
        count = rng.randint(1, 25)
        kind = rng.random()
        if kind < 0.12:
            words.append(f"_x{count}")
        elif kind < 0.18:
            words.append("stale")
            count = 1
        elif kind < 0.6:
            words.append(f"{rng.choice([0, 1, 5, 0.25])}+{rng.choice([0, 1, 0.5, 2])}x{count - 1}")
        else:
            words.append(f"{rng.choice([0, 1, 2.5, 1e6, 0.125])}x{count - 1}")
        points += count
    return " ".join(words)


# Values read as they are may be printed in every way; computed ones are rounded, because the last bit may differ.
PLAIN = ["m > 1", "m == 0", "max by (instance) (m) > 3", "m > 1e5", "sum(m) > 10", "min_over_time(m[10s]) < 0.5"]
COMPUTED = [
    "rate(c_total[30s]) > 0.4",
    "avg_over_time(m[20s]) > 2.1",
    "m > 1 and on (instance) rate(c_total[1m]) > 0",
    "deriv(m[15s]) > 0.51",
    "increase(c_total[20s]) > 5",
    "changes(m[30s]) > 3",
    'absent(m{gpu="7"})',
    "max_over_time(rate(c_total[30s])[20s:]) > 0.9",
    'm{gpu="0"} / on (instance) m{gpu="1"} > 1.3',
    "m unless on (instance) c_total > 2",
]
TEMPLATES = [
    "{{ $labels.instance }} v={{ $value }}",
    "{{ $value | humanize }}",
    "{{ $value | humanizePercentage }}",
    "{{ $value | humanize1024 }}",
    "{{ $value | humanizeDuration }}",
    '{{ with query "m" }}{{ . | sortByLabel "instance" | first | label "instance" }}{{ end }}',
    '{{ range query (printf "m{gpu=%q}" .Labels.gpu) | sortByLabel "instance" }}[{{ .Value }}]{{ else }}none{{ end }}',
    '{{ if eq $labels.gpu "1" }}one{{ else }}other{{ end }}',
]
ROUNDED = ['{{ printf "%.7f" $value }} on {{ .Labels.instance }}', '{{ $value | printf "%.7f" }}']


def random_rules(rng: random.Random) -> list[dict]:
    rules: list[dict] = [{"record": "rec:m", "expr": "sum by (instance) (m)", "labels": {"kind": "sum"}}]
    for number, expr in enumerate([*PLAIN, *COMPUTED] * 2):
        template = rng.choice(TEMPLATES if expr in PLAIN else ROUNDED)
        rule = {
            "alert": f"A{number}",
            "expr": expr,
            "labels": {"severity": "x", "v": "{{ $labels.gpu }}"},
            "annotations": {"summary": template, "fixed": "text"},
        }
        if rng.random() < 0.8:
            rule["for"] = f"{rng.choice([1, 3, 7, 15, 30])}s"
        if rng.random() < 0.6:
            rule["keep_firing_for"] = f"{rng.choice([2, 5, 12, 40])}s"
        rules.append(rule)
    rules.append({"alert": "FromRecord", "expr": "rec:m > 2", "for": "4s"})
    rules.append({"alert": "FromAlerts", "expr": 'count by (instance) (ALERTS{alertstate="firing"}) > 5'})
    return rules


def random_series(rng: random.Random) -> list[dict]:
    names = [f'm{{instance="h{host}",gpu="{gpu}"}}' for host in range(3) for gpu in range(2)]
    names += [f'c_total{{instance="h{host}"}}' for host in range(3)]
    return [{"series": name, "values": random_values(rng)} for name in names]


def predicted(test_path: Path) -> dict[tuple[str, int], list[dict]]:
    """Return, by alert name and second, the firing alerts that our engine sees."""
    file = testfile.read(test_path)
    assert file.problems == ()
    (test,) = file.tests
    store = Store(retention_ms=STEPS * 1000 + 600_000, expected_interval_ms=1000)
    querier = LocalQuerier(store, semantics="2", default_step_ms=file.evaluation_interval)
    engine = RuleEngine(rulefile.load(user=file.rule_files), querier, store, statuses=False)
    feed = Feed(store, test.series, test.interval)
    found: dict[tuple[str, int], list[dict]] = {}
    for second in range(STEPS):
        feed.until(second * 1000)
        evaluation = engine.tick(second * 1000)
        assert evaluation.errors == ()
        for alert in evaluation.alerts:
            if alert.state == "firing":
                labels = {key: value for key, value in alert.labels if key != "alertname"}
                found.setdefault((alert.name, second), []).append(
                    {"exp_labels": labels, "exp_annotations": dict(alert.annotations)}
                )
    return found


def write_random_test(folder: Path, seed: int, every: int = 1) -> tuple[Path, int]:
    """Write random rules and a test that expects what our engine predicts, checked every so many seconds.

    Also return how many firing alerts were seen.
    """
    rng = random.Random(seed)
    rules = random_rules(rng)
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    test = {"interval": "1s", "input_series": random_series(rng)}
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1s", "tests": [test]}
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(document))
    found = predicted(path)
    names = [rule["alert"] for rule in rules if "alert" in rule]
    test["alert_rule_test"] = [
        {"eval_time": f"{second}s", "alertname": name, "exp_alerts": found.get((name, second), [])}
        for second in range(0, STEPS, every)
        for name in names
    ]
    path.write_text(yaml.safe_dump(document))
    return path, sum(map(len, found.values()))


@pytest.mark.parametrize("seed", range(3))
def test_promtool_sees_the_alerts_that_we_see(tmp_path, seed):
    path, count = write_random_test(tmp_path, seed)
    assert count > 1_000
    done = promtool("test", "rules", path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    result = run_file(path)
    assert result.passed, result.failures[:3]
    assert result.checked == STEPS * (len(PLAIN + COMPUTED) * 2 + 2)


def test_both_refuse_one_wrong_expectation_among_hundreds(tmp_path):
    path, _ = write_random_test(tmp_path, 7, every=10)
    document = yaml.safe_load(path.read_text())
    cases = [case for case in document["tests"][0]["alert_rule_test"] if case["exp_alerts"]]
    cases[len(cases) // 2]["exp_alerts"][0]["exp_annotations"]["fixed"] = "other"
    path.write_text(yaml.safe_dump(document))
    assert promtool("test", "rules", path).returncode == 1
    result = run_file(path)
    assert len(result.failures) == 1
    assert "- " in result.failures[0].message
    assert "fixed: other" in result.failures[0].message


@pytest.fixture(scope="module")
def said_by_promtool(request):
    """What promtool says of each file that is asked for; two at a time, since one uses little more than a core."""
    name = "test_shipped_rule_tests_pass_in_both_engines"
    paths = [item.callspec.params["path"] for item in request.session.items if item.originalname == name]
    with ThreadPoolExecutor(2) as pool:
        yield {path: pool.submit(promtool, "test", "rules", path) for path in paths}


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: path.name)
def test_shipped_rule_tests_pass_in_both_engines(path, said_by_promtool):
    result = run_file(path)
    assert result.passed, "\n".join(map(str, (*result.problems, *result.failures)))
    assert result.checked > 0
    done = said_by_promtool[path].result()
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_shipped_rule_tests():
    assert RULE_TESTS


def test_promtool_accepts_the_shipped_rules():
    done = promtool("check", "rules", *rulefile.shipped_paths())
    assert done.returncode == 0, done.stdout + done.stderr


def refused_files() -> list[tuple[str, str]]:
    """Return the refused rule files of the unit tests."""
    path = ROOT / "tests" / "unit" / "alerts" / "test_rulefile.py"
    spec = importlib.util.spec_from_file_location("refused_rule_files", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.REFUSED


@pytest.mark.parametrize(("content", "reason"), refused_files(), ids=range(len(refused_files())))
def test_prometheus_refuses_the_rule_files_that_we_refuse(tmp_path, content, reason):
    path = tmp_path / "r.yml"
    path.write_text(content)
    done = promtool("check", "rules", path)
    ours_only = (
        "@ modifier",
        "name and labels are those",
        "limit must be a whole number of series (0: none), not '-1'",
    )
    if any(text in reason for text in ours_only):
        assert done.returncode == 0
    else:
        assert done.returncode != 0, done.stdout


TEST = """\
rule_files: [rules.yml]
evaluation_interval: 30s
group_eval_order: [second, first]
tests:
  - interval: 10s
    name: group order, times between evaluations, sums
    external_labels: {cluster: c1}
    external_url: http://p:9
    input_series:
      - {series: 'm{a="1"}', values: '1+1x20'}
      - {series: 'm{a="2"}', values: '_x3 5 stale 6x5'}
    alert_rule_test:
      - eval_time: 59s
        alertname: Late
        exp_alerts:
          - {exp_labels: {a: '1', cluster: c1}, exp_annotations: {text: 'value 4', at: 'http://p:9/graph'}}
          - {exp_labels: {a: '2', cluster: c1}, exp_annotations: {text: 'value 5', at: 'http://p:9/graph'}}
      - eval_time: 1m
        alertname: Late
        exp_alerts:
          - {exp_labels: {a: '1', cluster: c1}, exp_annotations: {text: 'value 7', at: 'http://p:9/graph'}}
          - {exp_labels: {a: '2', cluster: c1}, exp_annotations: {text: 'value 6', at: 'http://p:9/graph'}}
      - {eval_time: 1m, alertname: Nothing}
    promql_expr_test:
      - {expr: 'm', eval_time: 30s, exp_samples: [{labels: 'm{a="1"}', value: 4}, {labels: 'm{a="2"}', value: 5}]}
      - {expr: 'm', eval_time: 40s, exp_samples: [{labels: 'm{a="1"}', value: 5}]}
      - {expr: 'm{a="1"}', eval_time: 85s, exp_samples: [{labels: 'm{a="1"}', value: 7}]}
      - {expr: 'sum(m)', eval_time: 1m, exp_samples: [{labels: '{}', value: 13}]}
      - {expr: 'from:second', eval_time: 1m, exp_samples: [{labels: 'from:second{a="1"}', value: 4}]}
      - {expr: 'm > 100', eval_time: 1m}
      - {expr: '0.1 + 0.2', eval_time: 0s, exp_samples: [{value: 0.30000000000000004}]}
"""
RULES = """\
groups:
  - name: first
    interval: 5m
    rules:
      - record: of:first
        expr: m{a="1"}
      - alert: Late
        expr: m > 3
        labels: {cluster: '{{ $externalLabels.cluster }}'}
        annotations: {text: 'value {{ $value }}', at: '{{ $externalURL }}/graph'}
  - name: second
    rules:
      - record: from:second
        expr: of:first
"""


def verdicts(folder: Path, test: str) -> tuple[bool, bool]:
    """Return whether promtool and we accept a test of the rules above."""
    (folder / "rules.yml").write_text(RULES)
    path = folder / "test.yml"
    path.write_text(test)
    return promtool("test", "rules", path).returncode == 0, run_file(path).passed


def test_a_file_with_every_feature_passes_in_both(tmp_path):
    assert verdicts(tmp_path, TEST) == (True, True), "\n".join(map(str, run_file(tmp_path / "test.yml").failures))


CHANGES = [
    ("value 7", "value 8"),
    ("external_url: http://p:9", "external_url: http://p:8"),
    ("{a: '2', cluster: c1}", "{a: '3', cluster: c1}"),
    ("{eval_time: 1m, alertname: Nothing}", "{eval_time: 1m, alertname: Late}"),
    ("alertname: Nothing}", "alertname: Nothing, exp_alerts: [{}]}"),
    ("{eval_time: 1m, alertname: Nothing}", "{eval_time: 1m}"),
    ("value: 13", "value: 14"),
    ("labels: '{}'", "labels: '{a=\"1\"}'"),
    ("m > 100", "m > 2"),
    ("m > 100", "m >"),
    ("0.30000000000000004", "0.31"),
    ("'1+1x20'", "'1+2x20'"),
    ("'1+1x20'", "'1+1'"),
    ("'1+1x20'", "'one'"),
    ('m{a="2"}', "m{a=2}"),
    ("_x3 5 stale", "_x3 5 5"),
    ("interval: 10s", "interval: soon"),
    ("eval_time: 59s", "eval_time: 59"),
    ("[second, first]", "[first, second]"),
    ("[second, first]", "[first, first]"),
    ("rule_files: [rules.yml]", "rule_files: []"),
    ("external_labels: {cluster: c1}", "external_labels: {cluster: c2}"),
    ("    name: group", "    nickname: group"),
    ("evaluation_interval: 30s", "evaluation_interval: 30s\nfuzzy_compare: true"),
    ("exp_annotations: {text: 'value 4'", "exp_annotation: {text: 'value 4'"),
    ("tests:", "test:"),
]


@pytest.mark.parametrize(("before", "after"), CHANGES, ids=range(len(CHANGES)))
def test_a_changed_file_fails_in_both(tmp_path, before, after):
    assert before in TEST
    assert verdicts(tmp_path, TEST.replace(before, after, 1)) == (False, False)


def test_a_rule_that_fails_while_it_is_evaluated_fails_the_test_in_both(tmp_path):
    (tmp_path / "rules.yml").write_text(
        "groups: [{name: g, rules: [{alert: A, expr: a / on (x) b}, {alert: B, expr: a}]}]"
    )
    path = tmp_path / "test.yml"
    path.write_text(
        """\
rule_files: [rules.yml]
tests:
  - input_series:
      - {series: 'a{x="1"}', values: '1 1'}
      - {series: 'b{x="1",y="1"}', values: '_ 1'}
      - {series: 'b{x="1",y="2"}', values: '_ 1'}
    alert_rule_test:
      - {eval_time: 1m, alertname: B, exp_alerts: [{exp_labels: {x: '1'}}]}
"""
    )
    done = promtool("test", "rules", path)
    assert (done.returncode, run_file(path).passed) == (1, False), done.stdout
