"""The pages of a daemon on eight fake GPUs, judged by promtool, and scraped over TLS with a password by Prometheus."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import bcrypt
from fakenvml.machine import FakeNvml
from prometheus_server import ROOT, binaries
from services import Program, free_port, get, wait_for

GPUS = 8
GAUGES = (
    "memory_used_bytes",
    "memory_free_bytes",
    "busy_ratio",
    "power_watts",
    "temperature_celsius",
    "sm_clock_hertz",
)


def serve(folder, *options):
    """Return the command of a daemon, and its ``host:port``."""
    address = f"127.0.0.1:{free_port()}"
    config = folder / "gpuwatch.toml"
    config.write_text('host = "node"\ndiscovery = false\nkernel_log = "off"\n')
    command = [sys.executable, "-m", "gpuwatch", "serve", "--config", config, "--listen", address]
    command += ["--state", folder / "state.json", *options]
    return command, address


def test_promtool_accepts_the_page_of_a_machine_and_sigterm_ends_it_in_two_seconds(tmp_path):
    _, promtool = binaries()
    fake = FakeNvml(tmp_path / "gpus", gpus=GPUS)
    command, address = serve(tmp_path)
    daemon = Program(
        command, tmp_path / "serve.log", f"http://{address}/-/ready", {**fake.env(), "PYTHONPATH": str(ROOT)}
    )

    def eight():
        text = get(f"http://{address}/metrics")
        return text if text.count(b"\ngpuwatch_gpu_memory_used_bytes{") == GPUS else None

    try:
        page = wait_for(eight, 30, "eight GPUs on the page")
        for name in GAUGES:
            assert len(re.findall(rb"^gpuwatch_gpu_%s{" % name.encode(), page, re.MULTILINE)) == GPUS, name
        done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, b"")
        begun = time.monotonic()
        daemon.stop()
        took = time.monotonic() - begun
        print(f"ended {took:.2f} s after SIGTERM")
        assert took < 4  # two seconds on a machine that does nothing else
    finally:
        daemon.stop()


def test_prometheus_scrapes_it_over_tls_with_a_password(tmp_path):
    prometheus, promtool = binaries()
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    certificate += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", "web.pem", "-keyout", "web.key"]
    subprocess.run(certificate, cwd=tmp_path, check=True, capture_output=True)
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()
    web = tmp_path / "web.yml"
    web.write_text(
        "tls_server_config: {cert_file: web.pem, key_file: web.key}\nbasic_auth_users:\n  prometheus: " + hashed + "\n"
    )
    # the same file is good for Prometheus itself
    checked = subprocess.run([promtool, "check", "web-config", web], capture_output=True, timeout=30, check=False)
    assert checked.returncode == 0, checked.stderr

    fake = FakeNvml(tmp_path / "gpus", gpus=2)
    command, address = serve(tmp_path, "--web-config", web)
    job = {
        "job_name": "gpuwatch",
        "scheme": "https",
        "scrape_interval": "1s",
        "tls_config": {"ca_file": str(tmp_path / "web.pem")},
        "static_configs": [{"targets": [address]}],
    }
    jobs = [
        {**job, "basic_auth": {"username": "prometheus", "password": "secret"}},
        {**job, "job_name": "stranger", "basic_auth": {"username": "prometheus", "password": "guess"}},
    ]
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": jobs}))
    port = free_port()
    server = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    server += [f"--web.listen-address=127.0.0.1:{port}"]
    daemon = subprocess.Popen(list(map(str, command)), cwd=ROOT, env={**os.environ, **fake.env()})
    program = Program(server, tmp_path / "prometheus.log", f"http://127.0.0.1:{port}/-/ready")

    def query(expr):
        data = json.loads(get(f"http://127.0.0.1:{port}/api/v1/query?query={expr}"))["data"]["result"]
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in data}

    try:
        wait_for(lambda: list(query('up{job="gpuwatch"}').values()) == [1.0], 60, "a good scrape")
        wait_for(lambda: list(query('up{job="stranger"}').values()) == [0.0], 60, "a refused scrape")
        used = wait_for(lambda: len(found := query("gpuwatch_gpu_memory_used_bytes")) == 2 and found, 30, "both GPUs")
        assert all(value > 0 for value in used.values())
        assert query("count(gpuwatch_gpu_info)")
    finally:
        program.stop()
        daemon.terminate()
        daemon.wait(20)
