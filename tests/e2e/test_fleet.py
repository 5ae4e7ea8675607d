"""Three daemons with different fake GPUs behind a real Prometheus, and behind VictoriaMetrics with vmalert."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from fakenvml.machine import FakeNvml
from prometheus_server import CACHE, ROOT
from services import Program, check, free_port, get, gpuwatch_serve, prometheus, victoria, wait_for

GPUS = {"node-a": 2, "node-b": 4, "node-c": 1}


class Daemons:
    def __init__(self, folder):
        self.fakes = {host: FakeNvml(folder / f"{host}-gpus", gpus=number) for host, number in GPUS.items()}
        self.programs, self.targets = {}, []
        for host, fake in self.fakes.items():
            program, address = gpuwatch_serve(folder / host, host, env=fake.env())
            self.programs[host] = program
            self.targets.append(address)

    def stop(self):
        for program in self.programs.values():
            program.stop()


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    running = Daemons(tmp_path_factory.mktemp("daemons"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory, daemons):
    program, url = prometheus(tmp_path_factory.mktemp("prometheus"), daemons.targets)
    yield url
    program.stop()


def instant(url, query):
    answer = json.loads(get(f"{url}/api/v1/query?query={query}"))
    return {one["metric"].get("host", ""): float(one["value"][1]) for one in answer["data"]["result"]}


def all_scraped(url):
    return instant(url, "count%20by%20(host)(gpuwatch_gpu_info)") == GPUS


def findings(report):
    return {(found["id"], found["labels"].get("host")) for found in report["findings"] if found["state"] == "firing"}


def test_a_healthy_fleet_is_judged_and_has_no_finding_above_info(daemons, server):
    wait_for(lambda: all_scraped(server), 60, "all machines scraped")
    code, report = check("--prometheus", server)
    assert (code, report["problems"]) == (0, [])
    assert [found for found in report["findings"] if found["severity"] != "info"] == []
    assert report["inputs"][0]["up"]


def test_a_gpu_that_is_lost_is_the_finding_of_its_machine_as_soon_as_prometheus_says_so(daemons, server):
    wait_for(lambda: all_scraped(server), 60, "all machines scraped")
    daemons.fakes["node-b"].set(2, dev_err=15)
    wait_for(
        lambda: instant(server, 'ALERTS{diagnosis="gpu_lost",alertstate="firing"}'.replace('"', "%22")), 90, "alert"
    )
    code, report = check("--prometheus", server)
    assert code == 1
    assert ("gpu_lost", "node-b") in findings(report)
    lost = next(found for found in report["findings"] if found["id"] == "gpu_lost")
    assert lost["labels"]["uuid"] == FakeNvml.uuid(2)
    # The daemon's own words, which came as gpuwatch_finding_info, and evidence found over HTTP.
    _, own = check("--attach", "http://" + daemons.targets[1], "--for", "2")
    said = next(found for found in own["findings"] if found["id"] == "gpu_lost")
    assert lost["cause"] == said["cause"]
    assert len(lost["evidence"]) >= 2
    assert {key: lost["labels"][key] for key in said["labels"]} == said["labels"]
    daemons.fakes["node-b"].unset(2, "dev_err")


def test_a_machine_that_was_killed_is_lost_and_comes_back(daemons, server, tmp_path):
    wait_for(lambda: "node-c" in instant(server, "gpuwatch_build_info"), 60, "scraped")
    daemons.programs["node-c"].stop(signal.SIGKILL)
    wait_for(lambda: "node-c" not in instant(server, "gpuwatch_build_info"), 60, "gone")
    _, report = check("--prometheus", server)
    assert report["inputs"][0]["up"]
    assert [said for said in report["problems"] if said.startswith("host node-c: not scraped for ")]
    daemons.programs["node-c"].start()
    wait_for(lambda: "node-c" in instant(server, "gpuwatch_build_info"), 60, "back")


def test_a_prometheus_that_is_killed_is_one_clear_line_and_three(tmp_path, daemons):
    program, url = prometheus(tmp_path, daemons.targets)
    program.stop(signal.SIGKILL)
    done = subprocess.run(
        [sys.executable, "-m", "gpuwatch", "check", "--prometheus", url], cwd=ROOT, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "refused" in done.stdout
    assert done.stderr == ""


def test_victoriametrics_with_vmalert_serves_as_well(tmp_path, daemons):
    server, url = victoria(tmp_path / "vm", daemons.targets)
    port = free_port()
    try:
        wait_for(lambda: all_scraped(url), 90, "all machines scraped by VictoriaMetrics")
        code, report = check("--prometheus", url)
        assert code == 3  # figures, but no rules: nothing is judged
        assert report["inputs"][0]["up"]
        assert "lists no rule named Gpuwatch" in report["problems"][0]
        daemons.fakes["node-a"].set(0, dev_err=15)
        command = [
            CACHE / "victoria/usr/bin/vmalert", *(f"-rule={path}" for path in usable_rules(tmp_path)),
            f"-datasource.url={url}", f"-remoteWrite.url={url}", f"-remoteRead.url={url}", "-notifier.url=http://127.0.0.1:9",
            f"-httpListenAddr=127.0.0.1:{port}", "-evaluationInterval=5s", "-remoteWrite.flushInterval=1s",
        ]  # fmt: skip
        vmalert = Program(command, tmp_path / "vmalert.log", f"http://127.0.0.1:{port}/health")
        try:
            wanted = 'ALERTS{diagnosis="gpu_lost",alertstate="firing"}'.replace('"', "%22")
            wait_for(lambda: instant(url, wanted), 90, "alert of vmalert")
            code, report = check("--prometheus", url)
            assert code == 1
            assert ("gpu_lost", "node-a") in findings(report)
            lost = next(found for found in report["findings"] if found["id"] == "gpu_lost")
            assert len(lost["evidence"]) >= 2
        finally:
            vmalert.stop()
    finally:
        daemons.fakes["node-a"].unset(0, "dev_err")
        server.stop()


def usable_rules(folder):
    """Return the shipped rules without `keep_firing_for`, which this old vmalert (1.79) does not know yet."""
    out = folder / "rules"
    out.mkdir()
    for path in sorted((ROOT / "rules").glob("*.yml")):
        lines = [line for line in path.read_text().splitlines() if "keep_firing_for:" not in line]
        (out / path.name).write_text("\n".join(lines) + "\n")
    return sorted(out.glob("*.yml"))
