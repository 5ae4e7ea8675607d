"""Our inhibition against a real Alertmanager: the same random rules and alerts must mute the same alerts."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwatch.alerts.inhibition import RULES, InhibitRule, Matcher, alertmanager_yaml, inhibit
from gpuwatch.alerts.state import Alert

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("GPUWATCH_CACHE", ROOT / ".cache")) / "prometheus/usr/bin"
ALERTMANAGER = shutil.which("prometheus-alertmanager", path=f"{FOLDER}:{os.environ['PATH']}") or ""
ROUTE = "route:\n  receiver: none\nreceivers:\n  - name: none\n"

NAMES = ("d", "host", "severity")
VALUES = ("1", "2", "3")


def random_matcher(rng: random.Random) -> Matcher:
    operator = rng.choice(("=", "=", "=", "!=", "=~", "!~"))
    value = rng.choice(VALUES) if operator in ("=", "!=") else rng.choice(("1|2", "[23]", "2?", ".+", "1"))
    return Matcher(rng.choice(NAMES), operator, value)


def random_rule(rng: random.Random) -> InhibitRule:
    source = tuple(random_matcher(rng) for _ in range(rng.randint(1, 2)))
    target = tuple(random_matcher(rng) for _ in range(rng.randint(1, 2)))
    return InhibitRule(source, target, tuple(rng.sample(NAMES, rng.randint(0, 2))))


def random_alert(rng: random.Random, number: int) -> Alert:
    labels = {name: rng.choice(VALUES) for name in NAMES if rng.random() < 0.8}
    pairs = tuple(sorted({"alertname": f"A{number}", **labels}.items()))
    return Alert(f"A{number}", pairs, 1.0, "firing", 0)


@pytest.fixture(scope="module")
def binary(tmp_path_factory) -> Path:
    """Alertmanager, able to run unpacked: Debian's build looks for its templates in one absolute folder only."""
    assert ALERTMANAGER, "prometheus-alertmanager is missing: tests/e2e/fetch.sh prometheus"
    built_in = b"/usr/share/prometheus/alertmanager"
    here = b"." + b"/" * (len(built_in) - 1)
    folder = tmp_path_factory.mktemp("alertmanager")
    program = folder / "alertmanager"
    program.write_bytes(Path(ALERTMANAGER).read_bytes().replace(built_in, here))
    program.chmod(0o755)
    for template in (FOLDER.parent / "share/prometheus/alertmanager").glob("*.tmpl"):
        shutil.copy(template, folder)
    return program


@contextmanager
def alertmanager(program: Path, folder: Path, config: str):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "am.yml").write_text(config)
    process = subprocess.Popen(
        [
            str(program),
            f"--config.file={folder / 'am.yml'}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        cwd=program.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    base = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                with urllib.request.urlopen(base + "/-/ready", timeout=2):
                    break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, process.stderr.read().decode()
                assert time.monotonic() < deadline, "Alertmanager did not become ready"
                time.sleep(0.05)
        yield base
    finally:
        process.kill()
        process.communicate()


def muted_by_alertmanager(base: str, alerts: list[Alert]) -> set[str]:
    body = json.dumps([{"labels": dict(alert.labels)} for alert in alerts]).encode()
    request = urllib.request.Request(
        base + "/api/v2/alerts", data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=10):
        pass
    muted: set[str] | None = None
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        time.sleep(0.3)
        with urllib.request.urlopen(base + "/api/v2/alerts", timeout=10) as response:
            found = json.load(response)
        before = muted
        muted = {item["labels"]["alertname"] for item in found if item["status"]["inhibitedBy"]}
        if len(found) == len(alerts) and muted == before:
            return muted
    raise AssertionError("Alertmanager did not settle")


@pytest.mark.parametrize("seed", range(6))
def test_the_same_alerts_are_muted(binary, tmp_path, seed):
    rng = random.Random(seed)
    rules = [random_rule(rng) for _ in range(4)]
    alerts = [random_alert(rng, number) for number in range(40)]
    ours = {alert.name for alert in inhibit(alerts, rules) if alert.inhibited_by}
    with alertmanager(binary, tmp_path, ROUTE + alertmanager_yaml(rules)) as base:
        assert muted_by_alertmanager(base, alerts) == ours
    assert ours


def test_the_shipped_rules_are_a_valid_configuration(tmp_path):
    config = tmp_path / "am.yml"
    config.write_text(ROUTE + alertmanager_yaml(RULES))
    amtool = shutil.which("amtool", path=f"{FOLDER}:{os.environ['PATH']}")
    assert amtool, "amtool is missing: tests/e2e/fetch.sh prometheus"
    done = subprocess.run(
        [amtool, "check-config", str(config)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{sum(not rule.placed for rule in RULES)} inhibit rules" in done.stdout
