"""What ties the shipped rules to the vocabulary, the diagnoses and the runbook."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from gpuwatch.alerts.inhibitions import INHIBITIONS
from gpuwatch.alerts.ruletest import run_file
from gpuwatch.diagnosis.registry import DIAGNOSES
from gpuwatch.engines.events import EVENTS
from gpuwatch.engines.facts import FACTS
from gpuwatch.promql.analysis import selectors
from gpuwatch.series import METRICS
from tests.unit.diagnosis.watch import RULES

ROOT = Path(__file__).resolve().parents[3]
TEST_FILES = sorted((ROOT / "rules" / "tests").glob("*.yml"))
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
ALERTS = {rule.name: rule for rule in RULES.alerts}

# The severities that the product fixes; whatever is not named is a warning.
CRITICAL = {
    "kv_preemption_storm",
    "sglang_retraction_storm",
    "max_model_len_exceeds_kv",
    "allocator_fragmentation",
    "engine_down",
    "engine_stalled",
    "gpu_lost",
    "driver_unresponsive",
    "nccl_hang",
    "xid_hardware",
    "no_kv_blocks",
    "cudagraph_memory",
    "sampler_warmup_oom",
    "mm_profiling_memory",
    "weights_oom",
    "startup_gpu_shared",
    "port_in_use",
    "model_not_found",
    "dtype_unsupported",
    "driver_too_old",
    "flag_unknown",
    "prefill_activation_oom",
    "lora_memory",
    "spec_decode_memory",
    "gpu_out_of_memory",
    "sglang_kv_alloc_failure",
    "worker_died",
    "ray_host_oom",
    "k8s_oomkilled",
    "k8s_evicted",
}
INFO = {
    "kv_pool_saturated",
    "prefix_cache_zero_hit",
    "false_leak",
    "unified_memory",
    "wsl",
    "nvml_na",
    "container_pid_invisible",
}
REQUIRED = {
    "kv_preemption_storm",
    "kv_pool_saturated",
    "max_model_len_exceeds_kv",
    "prefill_memory_peak",
    "gpu_headroom_low",
    "tp_imbalance",
    "allocator_fragmentation",
    "prefix_cache_collapse",
    "prefix_cache_zero_hit",
    "engine_down",
    "gpu_lost",
    "driver_unresponsive",
    "source_degraded",
}


def metric_of(name: str):
    found = METRICS.get(name)
    if found is None:
        base, _, suffix = name.rpartition("_")
        found = METRICS.get(base)
        assert found is not None, name
        assert found.kind == "histogram", name
        assert suffix in ("bucket", "sum", "count"), name
    return found


def test_the_shipped_rules_load_without_a_problem_and_cover_what_was_asked_for():
    assert (RULES.problems, RULES.warnings) == ((), ())
    assert {rule.id for rule in RULES.alerts} >= REQUIRED


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.name)
def test_every_rule_test_passes_in_our_engine(path):
    result = run_file(path)
    assert result.checked > 0
    assert result.passed, "\n".join(map(str, (*result.problems, *result.failures)))


@pytest.mark.parametrize("interval", ["1s", "15s"])
def test_every_alert_has_a_firing_test_and_a_silent_twin_at_both_intervals(interval):
    fires, silent = set(), set()
    for path in TEST_FILES:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            if group["interval"] != interval:
                continue
            fired = {check["alertname"] for check in group["alert_rule_test"] if check["exp_alerts"]}
            asked = {check["alertname"] for check in group["alert_rule_test"]}
            fires |= fired
            silent |= asked - fired
    assert fires == set(ALERTS)
    assert silent == set(ALERTS)


@pytest.mark.parametrize("rule", RULES.alerts, ids=lambda rule: rule.name)
def test_each_alert_follows_the_conventions(rule):
    assert re.fullmatch(r"Gpuwatch([A-Z][a-z0-9]+)+", rule.name)
    assert set(rule.labels) == {"severity", "diagnosis"}
    assert set(rule.annotations) == {"summary", "description", "runbook_url"}
    assert rule.annotations["runbook_url"] == f"docs/runbook.md#{rule.id}"
    assert "{{" not in rule.annotations["summary"]
    value = re.findall(r"\{\{\s*\$value\s*([^}]*)\}\}", rule.annotations["description"])
    assert value
    assert all(action.strip().startswith("|") for action in value), "a raw value prints 1.000022e+06"
    assert rule.hold % 15_000 == 0
    assert rule.keep % 15_000 == 0


@pytest.mark.parametrize("rule", RULES.alerts, ids=lambda rule: rule.name)
def test_each_selector_names_a_series_that_a_source_can_emit(rule):
    for selector in selectors(rule.plan):
        metric = metric_of(selector.name)
        for matcher in selector.matchers:
            if matcher.name == "__name__":
                continue
            assert matcher.name in metric.labels, f"{selector.name} has no label {matcher.name}"
            if matcher.name == "event":
                assert matcher.value in EVENTS
            if matcher.name == "state":
                assert all(value in metric.help for value in matcher.value.split("|"))


def test_windows_are_a_minute_or_longer_and_groups_have_no_interval():
    for path in sorted((ROOT / "rules").glob("*.yml")):
        text = path.read_text(encoding="utf-8")
        for count, unit in re.findall(r"\[(\d+)([smh])\]", text):
            assert int(count) * {"s": 1, "m": 60, "h": 3600}[unit] >= 60, path.name
        for group in yaml.safe_load(text)["groups"]:
            assert set(group) == {"name", "rules"}
        assert not re.search(r"\b(up|job|instance)\b\s*[{=(]", text)


MILDER = {"GpuwatchMaxModelLenExceedsKv": "warning"}
"""Rules that see the harmless side of an id: here an engine that serves, and that no such request need ever reach."""


def test_rules_and_diagnoses_have_the_same_ids_and_severities():
    assert {rule.id for rule in RULES.alerts} == set(DIAGNOSES)
    for rule in RULES.alerts:
        expected = "critical" if rule.id in CRITICAL else "info" if rule.id in INFO else "warning"
        assert rule.severity == MILDER.get(rule.name, expected), rule.name
        assert DIAGNOSES[rule.id].severity == expected


def test_every_finding_has_a_section_in_the_runbook_and_every_section_its_parts():
    sections = dict(re.findall(r"^## `?(\w+)`?\n(.*?)(?=^## |\Z)", RUNBOOK, flags=re.MULTILINE | re.DOTALL))
    assert set(sections) >= set(DIAGNOSES)
    for id_ in DIAGNOSES:
        for part in ("**What it means.**", "**Confirm by hand.**", "**What to change.**", "**When it is harmless.**"):
            assert part in sections[id_], f"{id_} lacks {part}"


def test_the_runbook_asks_for_series_that_exist():
    for name in set(re.findall(r"\bgpuwatch_[a-z0-9_]+", RUNBOOK)):
        metric_of(name)


def test_every_cause_in_the_inhibition_table_is_a_finding_and_mutes_by_labels_that_alerts_have():
    for row in INHIBITIONS:
        assert row.cause in DIAGNOSES
        assert set(row.equal) <= {"cluster", "host", "server", "model_name", "dp_rank", "uuid", "log"}
        assert row.equal[:2] == ("cluster", "host"), row.cause


def test_what_warns_mutes_nothing_critical_and_no_host_mutes_an_engine_that_is_down():
    for row in INHIBITIONS:
        critical = {id_ for id_ in row.symptoms if id_ in DIAGNOSES and DIAGNOSES[id_].severity == "critical"}
        assert not critical or DIAGNOSES[row.cause].severity == "critical", (row.cause, critical)
        if "engine_down" in row.symptoms:
            assert "server" in row.equal or row.placed, row.cause


def constants():
    for path in sorted((ROOT / "gpuwatch" / "diagnosis").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, node.value


def test_the_diagnoses_ask_for_series_that_exist():
    known = EVENTS.keys() | DIAGNOSES.keys() | {name for name, _ in (("engine_kind", ""), ("model_name", ""))}
    asked = {
        value
        for _, value in constants()
        if re.fullmatch(r"(engine|gpu|log|host|source)_[a-z0-9_]*[a-z0-9]", value) and value not in known
    }
    assert len(asked) > 30
    for name in asked:
        metric_of("gpuwatch_" + name)


def test_the_diagnoses_ask_for_facts_that_a_log_can_tell():
    calls = re.compile(r"""(?:fact|number)\("([^"]+)"\)|config\("([^"]+)", "([^"]+)"\)""")
    found = set()
    for path in sorted((ROOT / "gpuwatch" / "diagnosis").glob("*.py")):
        for fact, series, other in calls.findall(path.read_text(encoding="utf-8")):
            found.add(fact or other)
            if series:
                assert f"gpuwatch_engine_config_{series}" in METRICS
    assert len(found) >= 8
    for key in found:
        assert key in FACTS or key.startswith("flag."), key
