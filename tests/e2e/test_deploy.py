"""The files of deploy/ read by the programs they are for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fakenvml.machine import FakeNvml
from prometheus_server import CACHE, ROOT, binaries

DEPLOY = ROOT / "deploy"
LINT = CACHE / "lint/bin"
MANIFESTS = ("daemonset.yaml", "sidecar.yaml")
RULES = sorted((ROOT / "rules").glob("*.yml"))


def run(*command, **options):
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=120, check=False, **options
    )


def succeeds(*command, **options):
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def linter(name):
    path = LINT / name
    assert path.exists(), f"{path} is missing: tests/e2e/fetch.sh lint"
    return path


def amtool():
    return binaries()[0].with_name("amtool")


def test_prometheus_takes_the_example_with_the_shipped_rules(tmp_path):
    text = (DEPLOY / "prometheus/prometheus.yml").read_text()
    text = text.replace("/etc/prometheus/gpuwatch/*.yml", f"{ROOT}/rules/*.yml")
    text = text.replace("/etc/prometheus/gpuwatch-targets", str(tmp_path / "targets"))
    (tmp_path / "prometheus.yml").write_text(text)
    (tmp_path / "targets").mkdir()
    shutil.copy(DEPLOY / "prometheus/targets.yml", tmp_path / "targets")
    said = succeeds(binaries()[1], "check", "config", tmp_path / "prometheus.yml")
    assert f"{len(RULES)} rule files found" in said
    succeeds(binaries()[1], "check", "rules", DEPLOY / "prometheus/scraped.yml")


def test_alertmanager_takes_the_example():
    said = succeeds(amtool(), "check-config", DEPLOY / "alertmanager/alertmanager.yml")
    assert "inhibit rules" in said
    assert "1 templates" in said


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (("severity=critical", "diagnosis=gpu_lost"), "gpuwatch"),
        (("severity=warning", "diagnosis=tp_imbalance"), "gpuwatch"),
        (("severity=info", "diagnosis=kv_pool_saturated"), "nobody"),
    ],
)
def test_what_is_only_worth_knowing_wakes_nobody(labels, receiver):
    config = DEPLOY / "alertmanager/alertmanager.yml"
    said = succeeds(amtool(), "config", "routes", "test", f"--config.file={config}", *labels)
    assert said.splitlines()[0].strip() == receiver


def test_the_text_of_a_notification_carries_cause_change_and_runbook(tmp_path):
    alert = {
        "status": "firing",
        "labels": {
            "diagnosis": "kv_preemption_storm", "severity": "critical", "host": "node-07", "server": "127.0.0.1:8000",
        },
        "annotations": {
            "summary": "Requests are thrown out of the KV pool", "cause": "The pool holds 2 requests; 16 are admitted.",
            "advice": "--max-num-seqs 16 → 2", "runbook_url": "docs/runbook.md#kv_preemption_storm",
        },
    }  # fmt: skip
    data = {"status": "firing", "alerts": [alert], "commonLabels": alert["labels"], "groupLabels": {}}
    (tmp_path / "data.json").write_text(json.dumps(data))
    said = succeeds(
        amtool(), "template", "render", f"--template.glob={DEPLOY}/alertmanager/gpuwatch.tmpl",
        '--template.text={{ template "gpuwatch.title" . }}|{{ template "gpuwatch.text" . }}',
        f"--template.data={tmp_path / 'data.json'}",
    )  # fmt: skip
    title, text = said.split("|", 1)
    assert title.strip() == "[CRITICAL] kv_preemption_storm on node-07"
    assert [line for line in text.splitlines() if line.strip()] == [
        "Requests are thrown out of the KV pool",
        "engine: 127.0.0.1:8000",
        "cause: The pool holds 2 requests; 16 are admitted.",
        "change: --max-num-seqs 16 → 2",
        "runbook: docs/runbook.md#kv_preemption_storm",
    ]


def test_an_alert_without_a_finding_has_a_text_too(tmp_path):
    labels = {"alertname": "GpuMachineNotScraped", "severity": "critical", "instance": "node-b:19400"}
    alert = {"status": "firing", "labels": labels, "annotations": {"summary": "it does not answer"}}
    data = {"status": "firing", "alerts": [alert], "commonLabels": labels, "groupLabels": {}}
    (tmp_path / "data.json").write_text(json.dumps(data))
    said = succeeds(
        amtool(), "template", "render", f"--template.glob={DEPLOY}/alertmanager/gpuwatch.tmpl",
        '--template.text={{ template "gpuwatch.title" . }}|{{ template "gpuwatch.text" . }}',
        f"--template.data={tmp_path / 'data.json'}",
    )  # fmt: skip
    assert said.strip() == "[CRITICAL] GpuMachineNotScraped on node-b:19400|it does not answer"


def test_systemd_takes_the_unit_and_finds_it_hardened(tmp_path):
    program = tmp_path / "gpuwatch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "gpuwatch.service"
    unit.write_text(
        (DEPLOY / "systemd/gpuwatch.service").read_text().replace("/opt/gpuwatch/bin/gpuwatch", str(program))
    )
    said = succeeds("systemd-analyze", "verify", unit)
    assert "gpuwatch.service" not in said, said
    said = succeeds("systemd-analyze", "security", "--offline=true", unit)
    exposure = float(re.search(r"exposure level for gpuwatch.service: ([\d.]+)", said)[1])
    assert exposure <= 3.0


def test_the_dockerfile_has_no_finding():
    assert succeeds(linter("hadolint"), DEPLOY / "container/Dockerfile").strip() == ""


def test_a_gpu_that_hangs_refuses_the_job_and_drains_the_node_with_the_time_that_slurm_gives(tmp_path):
    fake = FakeNvml(tmp_path / "gpus", gpus=2)
    fake.fail("nvmlDeviceGetMemoryInfo_v2", gpu=1, delay_ms=60_000)
    drain = tmp_path / "scontrol"
    drain.write_text('#!/bin/sh\necho "$@"\n')
    drain.chmod(0o755)
    program = Path(sys.executable).with_name("gpuwatch")
    env = {**os.environ, **fake.env(), "GPUWATCH": str(program), "SCONTROL": str(drain), "SLURMD_NODENAME": "node-07"}
    done = run("sh", DEPLOY / "slurm/prolog.sh", env=env)
    assert done.returncode == 1
    reason, told = done.stdout.splitlines()
    assert reason.startswith("gpuwatch: driver_unresponsive GPU 1: ")
    assert told == f"update NodeName=node-07 State=DRAIN Reason={reason}"


def test_the_scripts_have_no_finding():
    assert succeeds(linter("shellcheck"), *sorted((DEPLOY / "slurm").glob("*.sh"))).strip() == ""


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_takes_every_manifest(name):
    said = succeeds(linter("kubernetes-validate"), "--strict", DEPLOY / "kubernetes" / name)
    number = len(list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())))
    assert said.count("passed") == number


MODEL = """
import sys, yaml
from cloudcoil.models.prometheus_operator import v1
for document in yaml.safe_load_all(sys.stdin):
    model = getattr(v1, document["kind"]).model_validate(document)
    assert model.model_dump(by_alias=True, exclude_unset=True, mode="json") == document, "a key is not known"
"""


def test_the_prometheus_operator_takes_the_pod_monitor_and_the_wrapped_rules():
    wrapped = [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": f"gpuwatch-{path.stem}"},
            "spec": yaml.safe_load(path.read_text()),
        }
        for path in RULES
    ]
    monitor = yaml.safe_load((DEPLOY / "kubernetes/podmonitor.yaml").read_text())
    succeeds(linter("python"), "-c", MODEL, input=yaml.safe_dump_all([monitor, *wrapped]))
    monitor["spec"]["podMetricsEndpoints"][0]["intervall"] = "15s"
    assert run(linter("python"), "-c", MODEL, input=yaml.safe_dump(monitor)).returncode != 0


def test_the_package_can_be_built_from_what_the_image_copies(tmp_path):
    kept = [
        line[1:] for line in (DEPLOY / "container/Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    for name in kept:
        source, target = ROOT / name, tmp_path / "src" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    succeeds(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "out", tmp_path / "src")
    assert len(list((tmp_path / "out").glob("gpuwatch_llm-*.whl"))) == 1
