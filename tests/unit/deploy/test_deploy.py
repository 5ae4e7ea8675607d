"""The files of deploy/ fit the program: options, keys, ports, and the table of causes and symptoms."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from gpuwatch.alerts.ruletest import run_file
from gpuwatch.cli import build_parser
from gpuwatch.config import load
from gpuwatch.pipeline.fleet.views import PREFIX

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
SLURM = DEPLOY / "slurm"
PORT = "19400"


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def gpuwatch_container(name):
    for document in documents(name):
        if document["kind"] in ("DaemonSet", "Deployment"):
            pod = document["spec"]["template"]["spec"]
            return pod, next(one for one in pod["containers"] if one["name"] == "gpuwatch")
    raise LookupError(name)


def test_the_alertmanager_example_is_what_its_generator_writes():
    generator = runpy.run_path(str(ROOT / "tests/tools/alertmanager_config.py"))
    assert (DEPLOY / "alertmanager/alertmanager.yml").read_text() == generator["text"]()


NOT_SCRAPED = """\
rule_files: [{rules}]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - {{series: 'up{{job="gpuwatch", instance="node-a:19400"}}', values: '1x40'}}
      - {{series: 'up{{job="gpuwatch", instance="node-b:19400"}}', values: '1x4 0x36'}}
      - {{series: 'up{{job="others", instance="node-c:9100"}}', values: '0x40'}}
    alert_rule_test:
      - {{alertname: GpuMachineNotScraped, eval_time: 2m, exp_alerts: []}}
      - alertname: GpuMachineNotScraped
        eval_time: 2m15s
        exp_alerts:
          - exp_labels: {{severity: critical, job: gpuwatch, instance: 'node-b:19400'}}
            exp_annotations: {{summary: 'gpuwatch on node-b:19400 does not answer', description: '{described}'}}
      - {{alertname: GpuMachinesNotConfigured, eval_time: 9m, exp_alerts: []}}
"""
DESCRIBED = (
    "Prometheus cannot scrape node-b:19400 for a minute: the machine, its network or gpuwatch itself is down, and "
    "nothing is known of its GPUs and engines. On the machine: systemctl status gpuwatch."
)


def test_a_machine_that_does_not_answer_is_an_alert_of_the_example_beside_the_rules(tmp_path):
    file = tmp_path / "scraped_test.yml"
    file.write_text(NOT_SCRAPED.format(rules=DEPLOY / "prometheus/scraped.yml", described=DESCRIBED))
    result = run_file(file)
    assert ([str(failure) for failure in result.failures], result.problems, result.checked) == ([], (), 3)
    # By this name gpuwatch tells whether its own rules are loaded.
    rules = yaml.safe_load((DEPLOY / "prometheus/scraped.yml").read_text())["groups"][0]["rules"]
    assert not [rule["alert"] for rule in rules if rule["alert"].startswith(PREFIX)]


def commands():
    dockerfile = (DEPLOY / "container/Dockerfile").read_text()
    yield json.loads(re.search(r"^CMD (\[.*\])$", dockerfile, re.MULTILINE)[1])
    unit = (DEPLOY / "systemd/gpuwatch.service").read_text()
    yield re.search(r"^ExecStart=\S+ (.*)$", unit, re.MULTILINE)[1].split()
    for name in ("kubernetes/daemonset.yaml", "kubernetes/sidecar.yaml"):
        yield gpuwatch_container(name)[1]["args"]


@pytest.mark.parametrize("command", list(commands()), ids=["container", "systemd", "daemonset", "sidecar"])
def test_every_command_line_is_one_that_gpuwatch_takes(command):
    assert build_parser().parse_args(command).command == "serve"


def configurations():
    yield (DEPLOY / "systemd/gpuwatch.toml").read_text()
    for name in ("kubernetes/daemonset.yaml", "kubernetes/sidecar.yaml"):
        yield from (
            document["data"]["gpuwatch.toml"] for document in documents(name) if document["kind"] == "ConfigMap"
        )


@pytest.mark.parametrize("text", list(configurations()), ids=["systemd", "daemonset", "sidecar"])
def test_every_configuration_can_be_read_and_listens_on_the_port_that_is_scraped(text, tmp_path):
    file = tmp_path / "gpuwatch.toml"
    file.write_text(text)
    assert load(file).serve.listen.endswith(":" + PORT)


def test_one_port_everywhere():
    assert f"EXPOSE {PORT}" in (DEPLOY / "container/Dockerfile").read_text()
    for name in ("kubernetes/daemonset.yaml", "kubernetes/sidecar.yaml"):
        (port,) = gpuwatch_container(name)[1]["ports"]
        assert (port["name"], port["containerPort"]) == ("metrics", int(PORT))
    targets = yaml.safe_load((DEPLOY / "prometheus/targets.yml").read_text())
    assert all(target.endswith(":" + PORT) for group in targets for target in group["targets"])
    (endpoint,) = documents("kubernetes/podmonitor.yaml")[0]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"


def test_the_daemonset_sees_host_processes_and_has_no_privileges():
    pod, container = gpuwatch_container("kubernetes/daemonset.yaml")
    assert pod["hostPID"] is True
    security = container["securityContext"]
    assert security["runAsNonRoot"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert not security["allowPrivilegeEscalation"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]


def test_what_is_mounted_is_a_volume_and_what_is_monitored_exists():
    names = set()
    for name in ("kubernetes/daemonset.yaml", "kubernetes/sidecar.yaml"):
        pod, container = gpuwatch_container(name)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
        maps = {document["metadata"]["name"] for document in documents(name) if document["kind"] == "ConfigMap"}
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} == maps
        template = next(one for one in documents(name) if one["kind"] in ("DaemonSet", "Deployment"))["spec"][
            "template"
        ]
        names.add(template["metadata"]["labels"]["app.kubernetes.io/name"])
    (expression,) = documents("kubernetes/podmonitor.yaml")[0]["spec"]["selector"]["matchExpressions"]
    assert set(expression["values"]) == names


def test_the_image_holds_what_the_package_is_built_from():
    ignored = (DEPLOY / "container/Dockerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert kept >= {"gpuwatch", "rules", "dashboards", "docs/runbook.md", "pyproject.toml", "README.md", "LICENSE"}
    for name in kept:
        assert (ROOT / name).exists(), name


def test_every_link_of_the_readmes_leads_somewhere():
    for path in DEPLOY.rglob("README.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path}: {target}"


def test_the_command_that_makes_links_of_the_runbook_does_so_in_every_rule(tmp_path):
    (command,) = re.findall(r"^(sed .*)$", (DEPLOY / "prometheus/README.md").read_text(), re.MULTILINE)
    for path in (ROOT / "rules").glob("*.yml"):
        (tmp_path / path.name).write_text(path.read_text())
    subprocess.run(["sh", "-c", command.replace("/etc/prometheus/gpuwatch", str(tmp_path))], check=True, timeout=60)
    links = re.findall(r"runbook_url: (.*)", "".join(path.read_text() for path in tmp_path.glob("*.yml")))
    assert len(links) > 50
    assert all(link.startswith("https://wiki.example/gpuwatch/runbook#") for link in links)


class Node:
    """A made-up node: a `gpuwatch` that prints a prepared report, a `scontrol` that notes what it is told."""

    def __init__(self, folder):
        self.folder = folder
        self.told = folder / "told"
        gpuwatch = folder / "gpuwatch"
        gpuwatch.write_text(
            f'#!/bin/sh\ncase "$*" in record*) exec {sys.executable} -c \'import time; time.sleep(60)\' "$@";; '
            f"esac\n"
            f"cat {folder}/report.json\nexit $(cat {folder}/code)\n"
        )
        scontrol = folder / "scontrol"
        scontrol.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{self.told}\n')
        for program in (gpuwatch, scontrol):
            program.chmod(0o755)
        self.report()
        (folder / "code").write_text("0")

    def report(self, *ids, state="firing"):
        findings = [
            {"id": name, "state": state, "labels": {"gpu": "3"}, "cause": "GPU 3 has dropped off."} for name in ids
        ]
        (self.folder / "report.json").write_text(json.dumps({"schema": 1, "findings": findings}))

    def run(self, script, *, killed_after=False, **environment):
        """Run a script in a process group of its own; with `killed_after` end the group as slurmd does after it."""
        env = {
            **os.environ, "GPUWATCH": str(self.folder / "gpuwatch"), "SCONTROL": str(self.folder / "scontrol"),
            "SLURM_JOB_ID": "42", "SLURMD_NODENAME": "node-07", "GPUWATCH_RECORD": "", **environment,
        }  # fmt: skip
        words = ["sh", str(SLURM / script)]
        with subprocess.Popen(
            words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                said, complained = process.communicate(timeout=30)
            finally:
                if killed_after or process.poll() is None:
                    for number in (signal.SIGTERM, signal.SIGKILL):
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(process.pid, number)
                        time.sleep(0.01)
        return subprocess.CompletedProcess(words, process.returncode, said, complained)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_a_healthy_node_takes_the_job_and_is_not_drained_after_it(node):
    node.report("kv_preemption_storm", "engine_down")  # the job's own affairs
    for script in ("prolog.sh", "epilog.sh"):
        done = node.run(script)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not node.told.exists()


def test_a_lost_gpu_refuses_the_job_with_the_reason(node):
    node.report("gpu_lost")
    done = node.run("prolog.sh")
    assert done.returncode == 1
    assert done.stdout == "gpuwatch: gpu_lost GPU 3: GPU 3 has dropped off.\n"
    assert node.told.read_text().splitlines() == [
        "update", "NodeName=node-07", "State=DRAIN", "Reason=gpuwatch: gpu_lost GPU 3: GPU 3 has dropped off.",
    ]  # fmt: skip


def test_a_gpu_that_broke_during_the_job_drains_the_node_with_the_reason(node):
    node.report("xid_hardware")
    assert node.run("epilog.sh").returncode == 0
    assert node.told.read_text().splitlines() == [
        "update", "NodeName=node-07", "State=DRAIN", "Reason=gpuwatch: xid_hardware GPU 3: GPU 3 has dropped off.",
    ]  # fmt: skip


def test_a_trouble_that_is_over_drains_nothing(node):
    node.report("gpu_lost", state="resolved")
    assert node.run("prolog.sh").returncode == 0


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"labels": None}, "gpuwatch: gpu_lost: off the bus"),
        ({"labels": {"gpu": None}}, "gpuwatch: gpu_lost: off the bus"),
        ({"labels": {"gpu": 0}}, "gpuwatch: gpu_lost GPU 0: off the bus"),
        ({"cause": None}, "gpuwatch: gpu_lost GPU 1"),
        ({"cause": "off\nthe\tbus "}, "gpuwatch: gpu_lost GPU 1: off the bus"),
    ],
)
def test_a_report_that_says_less_still_gives_a_reason_that_can_be_read(node, odd, reason):
    lost = {"id": "gpu_lost", "state": "firing", "labels": {"gpu": "1"}, "cause": "off the bus", **odd}
    (node.folder / "report.json").write_text(json.dumps({"findings": ["gpu_lost", {}, {"id": ["x"]}, lost]}))
    done = node.run("prolog.sh")
    assert (done.returncode, done.stdout, done.stderr) == (1, reason + "\n", "")
    assert node.told.read_text().splitlines()[-1] == f"Reason={reason}"


@pytest.mark.parametrize("report", ["", "[]", '{"findings": null}', '{"findings": [{}]}'])
def test_a_check_that_did_not_run_says_nothing_about_the_node(node, report):
    (node.folder / "report.json").write_text(report)
    (node.folder / "code").write_text("2")
    assert node.run("prolog.sh").returncode == 0
    assert node.run("epilog.sh").returncode == 0
    assert not node.told.exists()


def running(pid):
    """Return the words of a program that runs, and none of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def wait(holds, otherwise):
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


@pytest.fixture
def recorder(node):
    """Run a prolog that records to the folder, kill its process group as Slurm does after it, and return the number."""
    pids = []

    def start(**environment):
        env = {"GPUWATCH_RECORD": str(node.folder / "records"), **environment}
        assert node.run("prolog.sh", killed_after=True, **env).returncode == 0
        pids.append(int((node.folder / "records/job-42-node-07.pid").read_text()))
        wait(lambda: any("time.sleep" in word for word in running(pids[-1])), "the recorder was not started")
        return pids[-1]

    yield start
    for pid in pids:
        if running(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_recording_runs_from_prolog_to_epilog(node, recorder):
    folder = node.folder / "records"
    pid = recorder()
    assert node.run("epilog.sh", GPUWATCH_RECORD=str(folder)).returncode == 0
    assert not (folder / "job-42-node-07.pid").exists()
    wait(lambda: not running(pid), "the recorder still runs")


def test_a_recorder_that_is_slow_to_start_outlives_its_prolog_too(node, recorder):
    slow = node.folder / "slow"
    slow.mkdir()
    (slow / "setsid").write_text(f'#!/bin/sh\nsleep 0.5\nexec {shutil.which("setsid")} "$@"\n')
    (slow / "setsid").chmod(0o755)
    recorder(PATH=f"{slow}:{os.environ['PATH']}")


def test_a_job_that_is_queued_again_goes_on_with_its_recording_and_no_recorder_stays_for_ever(node, recorder):
    pid = recorder()
    words = running(pid)
    options = words[words.index("record") : -1]
    assert options == [
        "record", "--quiet", "--append", "--for", "604800", str(node.folder / "records/job-42-node-07.rec"),
    ]  # fmt: skip
    build_parser().parse_args(options)
    assert "90" in running(recorder(GPUWATCH_RECORD_SECONDS="90"))


def test_a_folder_that_cannot_be_written_costs_the_recording_and_not_the_job(node):
    (node.folder / "file").write_text("")
    begun = time.monotonic()
    assert node.run("prolog.sh", GPUWATCH_RECORD=str(node.folder / "file/records")).returncode == 0
    assert time.monotonic() - begun < 8


def test_the_recording_of_another_node_in_the_same_folder_is_left_alone(node, recorder):
    pid = recorder()
    environment = {"GPUWATCH_RECORD": str(node.folder / "records"), "SLURMD_NODENAME": "node-08"}
    assert node.run("epilog.sh", **environment).returncode == 0
    assert running(pid)


def test_a_number_that_belongs_to_another_process_now_is_left_alone(node):
    folder = node.folder / "records"
    folder.mkdir()
    (folder / "job-42-node-07.pid").write_text(str(os.getpid()))
    assert node.run("epilog.sh", GPUWATCH_RECORD=str(folder)).returncode == 0
    assert not (folder / "job-42-node-07.pid").exists()
