"""A user's own rule files in a running pipeline: they override, they are explained, and broken ones stop nothing."""

from __future__ import annotations

from textwrap import dedent

import pytest

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.model import Batch, series
from gpuwatch.pipeline.core import Pipeline, Settings

START = 1_700_000_000_000
HOST, SERVER = "h", "s:8000"
ENGINE = {"host": HOST, "server": SERVER, "engine_kind": "vllm", "model_name": "tiny"}
PAGE = {
    series("gpuwatch_engine_kv_cache_usage_ratio", **ENGINE): 0.9,
    series("gpuwatch_engine_requests_running", **ENGINE): 8.0,
    series("gpuwatch_engine_requests_waiting", **ENGINE): 4.0,
    series("gpuwatch_engine_evictions_total", **ENGINE): 0.0,
    series("gpuwatch_engine_preemptions_total", **ENGINE): 0.0,
}


def write(folder, name, text):
    path = folder / name
    path.write_text(dedent(text))
    return path


def run(paths, seconds=100, page=PAGE):
    """Run the shipped rules with those of `paths` over a page whose tokens grow; return the pipeline and its result."""
    pipeline = Pipeline(Settings(HOST), load(shipped_paths(), paths), START)
    keys = (*page, series("gpuwatch_engine_generation_tokens_total", **ENGINE))
    for second in range(0, seconds, 5):
        now = START + 1000 * second
        values = [*page.values(), 100.0 * second]
        result = pipeline.tick(now, [Batch(f"engine:{SERVER}", now, keys, values)])
    return pipeline, result


def ids(result):
    return [finding.id for finding in result.findings]


def test_the_shipped_rule_finds_what_the_overriding_tests_change():
    _, result = run([])
    assert ids(result) == ["kv_pool_saturated"]


def test_a_rule_of_a_shipped_name_takes_its_place(tmp_path):
    own = """\
        groups:
          - name: own
            rules:
              - alert: GpuwatchKvPoolSaturated
                expr: avg_over_time(gpuwatch_engine_kv_cache_usage_ratio[1m]) >= 0.95
                labels: {severity: info, diagnosis: kv_pool_saturated}
        """
    pipeline, result = run([write(tmp_path, "own.yml", own)])
    assert ids(result) == []
    (rule,) = [rule for rule in pipeline.rules.alerts if rule.name == "GpuwatchKvPoolSaturated"]
    assert (rule.shipped, rule.file) == (False, str(tmp_path / "own.yml"))


def test_a_rule_that_keeps_the_id_keeps_the_explanation(tmp_path):
    own = """\
        groups:
          - name: own
            rules:
              - alert: GpuwatchKvPoolSaturated
                expr: avg_over_time(gpuwatch_engine_kv_cache_usage_ratio[1m]) >= 0.5
                labels: {severity: info, diagnosis: kv_pool_saturated}
        """
    _, result = run([write(tmp_path, "own.yml", own)])
    (finding,) = result.findings
    assert (finding.id, finding.severity) == ("kv_pool_saturated", "info")
    assert "KV usage was 90 %" in finding.evidence[0].text


def test_a_rule_of_ones_own_says_what_its_annotations_say(tmp_path):
    own = """\
        groups:
          - name: own
            rules:
              - record: own:waiting
                expr: sum by (host, server) (gpuwatch_engine_requests_waiting)
              - alert: TooManyWait
                expr: own:waiting > 3
                labels: {severity: warning}
                annotations: {summary: Too many wait, description: '{{ $value | printf "%.0f" }} requests wait'}
        """
    _, result = run([write(tmp_path, "own.yml", own)])
    finding = result.findings[0]
    assert (finding.id, finding.title, finding.cause) == ("TooManyWait", "Too many wait", "4 requests wait")
    assert finding.labels == {"host": HOST, "server": SERVER}


BROKEN = [
    ("groups: [", "1.yml:2: is not valid YAML"),
    ("groups:\n- name: g\n  rules:\n  - {alert: A, expr: '1', fore: 5s}\n", "1.yml:4: unknown key 'fore'"),
    (
        "groups:\n- name: g\n  rules:\n  - {alert: A, expr: 'vector(1) > 2'}\n  - {alert: A, expr: '2'}\n",
        "1.yml:5: rule A: the name and labels are those of the rule at",
    ),
    ("groups:\n- name: g\n  rules:\n  - {alert: A, expr: 'rate(x)'}\n", "1.yml:4: rule A: expr: rate(x)"),
    (
        'groups:\n- name: g\n  rules:\n  - alert: A\n    expr: x{server=~"(?=a)b"}\n',
        '1.yml:5: rule A: expr: x{server=~"(?=a)b"}: illegal regex',
    ),
    (
        'groups:\n- name: g\n  rules:\n  - alert: A\n    expr: x{server=~"(a)\\\\1"}\n',
        "1.yml:5: rule A: expr: x{server=~",
    ),
    (
        "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: '1'\n    annotations: {s: '{{ $value | nosuch }}'}\n",
        "1.yml:6: rule A: annotation 's'",
    ),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN, ids=range(len(BROKEN)))
def test_a_file_that_is_refused_is_named_with_its_line_and_everything_else_runs_on(tmp_path, text, expected):
    good = "groups: [{name: g, rules: [{alert: Mine, expr: gpuwatch_engine_requests_waiting > 3}]}]\n"
    paths = [tmp_path / "1.yml", tmp_path / "2.yml"]
    paths[0].write_text(text)
    paths[1].write_text(good)
    pipeline, result = run(paths)
    (problem,) = pipeline.problems(result)
    assert problem.removeprefix(f"{tmp_path}/").startswith(expected)
    assert "\n" not in problem
    assert ids(result) == ["Mine", "kv_pool_saturated"]


def test_the_good_rules_of_a_file_with_a_wrong_one_are_used(tmp_path):
    text = """\
        groups:
          - name: own
            rules:
              - {alert: Mine, expr: gpuwatch_engine_requests_waiting > 3}
              - {alert: GpuwatchKvPoolSaturated, expr: gpuwatch_engine_requests_waiting >}
              - {alert: Other, expr: gpuwatch_engine_requests_waiting > 3}
        """
    pipeline, result = run([write(tmp_path, "1.yml", text)], 10)
    (problem,) = pipeline.problems(result)
    assert problem.startswith(f"{tmp_path}/1.yml:5: rule GpuwatchKvPoolSaturated: expr: ")
    assert sorted(ids(result)) == ["Mine", "Other"]
    (shipped,) = [rule for rule in pipeline.rules.alerts if rule.name == "GpuwatchKvPoolSaturated"]
    assert shipped.shipped


FAILING = [
    ("on (host) requests", "gpuwatch_engine_requests_waiting * on (host) gpuwatch_engine_requests_running", "many"),
    ("a series for each of 10,000", "count by (n) (many)", "gives 10,000 series; at most 1,000 are allowed"),
]


@pytest.mark.parametrize(("why", "expr", "message"), FAILING, ids=[row[0] for row in FAILING])
def test_a_rule_that_fails_at_run_time_is_named_with_its_line_and_everything_else_runs_on(tmp_path, why, expr, message):
    text = f"groups:\n- name: g\n  rules:\n  - alert: Bad\n    expr: {expr}\n  - alert: Mine\n    expr: vector(1) > 0\n"
    more = {series("many", n=str(number)): 1.0 for number in range(10_000)} if "many" in expr else {}
    two = {series("gpuwatch_engine_requests_running", **ENGINE, dp_rank=str(rank)): 1.0 for rank in range(2)}
    pipeline, result = run([write(tmp_path, "1.yml", text)], 70, PAGE | more | two)
    (error,) = pipeline.problems(result)
    assert error.startswith(f"{tmp_path}/1.yml:4: rule Bad: ")
    assert message in error
    assert "Mine" in ids(result)
    assert "Bad" in [item.id for item in result.not_enough]


def test_a_template_that_fails_at_run_time_is_named_and_the_alert_still_fires(tmp_path):
    text = """\
        groups:
          - name: g
            rules:
              - alert: Mine
                expr: gpuwatch_engine_requests_waiting > 3
                annotations: {summary: '{{ query "gpuwatch_engine_requests_waiting * on (host) up" | first | value }}'}
        """
    pipeline, result = run([write(tmp_path, "1.yml", text)])
    (error,) = pipeline.problems(result)
    assert "1.yml:4: rule Mine: annotation 'summary'" in error
    assert "Mine" in ids(result)
