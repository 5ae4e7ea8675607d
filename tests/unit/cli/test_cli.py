from __future__ import annotations

import json
import logging
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpuwatch import cli
from gpuwatch.cli import _Output
from gpuwatch.cli.output import finding_lines, ranked, report_json
from gpuwatch.diagnosis.finding import Advice, Evidence, Finding, NotEnough
from gpuwatch.recording import Reader

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "tests" / "fixtures" / "pages"
FINDING_KEYS = {
    "id", "severity", "title", "cause", "confidence", "evidence", "advice", "caused_by", "state", "since", "until",
    "labels",
}  # fmt: skip


def gpuwatch(*args, timeout=150, **env):
    return subprocess.run(
        [sys.executable, "-m", "gpuwatch", *map(str, args)], cwd=ROOT, capture_output=True, text=True,
        timeout=timeout, env={**os.environ, **env}, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


@pytest.fixture
def alone(tmp_path):
    """A configuration that looks at nothing of this machine."""
    path = tmp_path / "alone.toml"
    path.write_text('gpus = false\ndiscovery = false\nkernel_log = "off"\n')
    return path


@pytest.fixture
def server():
    """Serves a real page of a healthy vLLM server."""
    body = (PAGES / "vllm-0.31.0-healthy.txt").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found = self.path == "/metrics"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body if found else b"")

        def log_message(self, *args):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()
    thread.join(5)


def test_help_names_every_command_and_the_exit_codes():
    done = gpuwatch("--help")
    assert done.returncode == 0
    for word in ("tui", "check", "doctor", "rules", "130  interrupted"):
        assert word in done.stdout


def test_help_needs_none_of_the_heavy_libraries():
    code = "import sys; from gpuwatch.cli import build_parser; build_parser(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"numpy", "textual", "requests", "promql_parser", "psutil", "yaml"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["check", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["check", "--for", "soon"], "argument --for: invalid float value: 'soon'"),
        (["check", "--for", "0"], "--for is 0; allowed: 1 to 86400 seconds"),
        (["check", "--engine", "ftp://h"], "allowed: http://HOST:PORT or https://HOST:PORT"),
        (["check", "--interval", "0"], "key 'interval' is 0.0; allowed: a number from 0.2 to 60"),
        (["check", "--config", "/no/such.toml"], "/no/such.toml: No such file or directory"),
        (["check", "--record", "/no/such/folder/x.rec"], "/no/such/folder/x.rec: No such file or directory"),
        (["tui"], "the screen needs a terminal"),
        (["tui", "--demo", "--replay", "x"], "--demo and --replay exclude each other"),
        (["tui", "--replay", "/etc/hostname"], "/etc/hostname: not a gpuwatch recording"),
        (["tui", "--demo", "--record", "x"], "--record needs something live"),
    ],
)
def test_wrong_usage_is_one_line_on_stderr_and_exit_code_2(args, message):
    done = gpuwatch(*args)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_nothing_to_judge_is_exit_code_3(alone):
    done = gpuwatch("check", "--for", 1, "--config", alone, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 3
    assert report["findings"] == []
    assert {"id": "gpu_lost", "missing": "no GPU is seen", "labels": {}} in report["not_enough_evidence"]


def test_a_healthy_engine_is_exit_code_0_and_named_with_its_version(alone, server):
    done = gpuwatch("check", "--for", 3, "--config", alone, "--engine", server, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["schema"], report["findings"]) == (0, 1, [])
    engine = next(item for item in report["inputs"] if item["kind"] == "engine")
    assert (engine["path"], engine["up"], engine["engine"]) == (server.removeprefix("http://"), True, "vllm")


def test_an_engine_that_never_answered_is_no_verdict_and_says_why(alone):
    done = gpuwatch("check", "--for", 2, "--config", alone, "--engine", "http://127.0.0.1:9", "--json")
    engine = next(item for item in json.loads(done.stdout)["inputs"] if item["kind"] == "engine")
    assert done.returncode == 3
    assert (engine["up"], engine["reason"]) == (False, "unreachable")
    assert "127.0.0.1:9" in engine["detail"]


def test_the_json_of_findings_has_exactly_the_documented_keys():
    finding = Finding(
        "tp_imbalance", "warning", "title", "cause", 0.5, (Evidence("seen", "metrics", None, "m", 1.0, "bytes"),),
        (Advice("do", "--flag", "1", "2"),), since=1000, labels={"uuid": "GPU-1"},
    )  # fmt: skip
    report = report_json([], [finding], [NotEnough("gpu_lost", "needs x", {"host": "h"})])
    (shown,) = report["findings"]
    assert set(report) == {"schema", "inputs", "findings", "not_enough_evidence", "problems"}
    assert set(shown) == FINDING_KEYS
    assert shown["evidence"] == [
        {"source": "metrics", "line": None, "text": "seen", "name": "m", "value": 1.0, "unit": "bytes"}
    ]
    assert shown["advice"] == [{"text": "do", "flag": "--flag", "from": "1", "to": "2"}]
    assert report["not_enough_evidence"] == [{"id": "gpu_lost", "missing": "needs x", "labels": {"host": "h"}}]


def test_symptoms_follow_their_cause_and_the_worst_cause_comes_first_even_when_it_is_over():
    labels = {"host": "h", "server": "s", "model_name": "m", "dp_rank": "0"}

    def made(id_, severity, since, state="firing"):
        return Finding(id_, severity, id_, "", 1.0, (), since=since, state=state, labels=labels)

    findings = [
        made("gpu_headroom_low", "warning", 1),
        made("queue_growth", "warning", 9),
        made("kv_preemption_storm", "critical", 5, "resolved"),
        made("prefix_cache_zero_hit", "info", 0),
    ]
    assert [(finding.id, finding.caused_by, finding.state) for finding in ranked(findings)] == [
        ("kv_preemption_storm", None, "resolved"),
        ("queue_growth", "kv_preemption_storm", "firing"),
        ("gpu_headroom_low", None, "firing"),
        ("prefix_cache_zero_hit", None, "firing"),
    ]


def test_ctrl_c_ends_at_once_with_exit_code_130_although_an_engine_hangs(alone):
    with socket.create_server(("127.0.0.1", 0)) as engine:
        engine.settimeout(60)
        url = f"http://127.0.0.1:{engine.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuwatch", "check", "--for", "600", "--config", alone, "--engine", url],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        connection, _ = engine.accept()
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        connection.close()
    assert process.returncode == 130
    assert time.monotonic() - begun < 20
    assert "Traceback" not in err


@pytest.mark.parametrize("module", ["gpuwatch.cli", "gpuwatch.cli.report", "gpuwatch.cli.compare"])
def test_ctrl_c_while_modules_are_loaded_is_exit_code_130_without_a_traceback(module):
    program = f"""
import sys, importlib.abc
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from gpuwatch.__main__ import main
sys.exit(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_doctor_says_in_json_what_was_looked_at(alone, server):
    done = gpuwatch("doctor", "--json", "--config", alone, "--engine", server)
    checks = json.loads(done.stdout)["checks"]
    assert done.returncode == 0
    assert {check["area"] for check in checks} >= {"program", "rules", "engine", "host"}
    assert all(set(check) == {"area", "what", "status", "detail", "fix"} for check in checks)
    engine = next(check for check in checks if check["area"] == "engine")
    assert engine["status"] == "ok"
    assert [check for check in checks if check["what"] == "kernel log"] == []


def test_doctor_reads_the_kernel_log_or_says_why_not(tmp_path):
    path = tmp_path / "kernel.toml"
    path.write_text('discovery = false\ngpus = false\nkernel_log = "kmsg"\n')
    checks = json.loads(gpuwatch("doctor", "--json", "--config", path).stdout)["checks"]
    (kernel,) = [check for check in checks if check["what"] == "kernel log"]
    assert kernel["status"] in ("ok", "missing")
    assert kernel["detail"]


def test_doctor_exits_with_3_where_there_is_neither_gpu_nor_engine(alone):
    assert gpuwatch("doctor", "--quiet", "--config", alone).returncode == 3


def test_a_recording_of_a_check_is_readable(alone, server, tmp_path):
    path = tmp_path / "run.rec"
    done = gpuwatch("check", "--for", 3, "--config", alone, "--engine", server, "--record", path)
    assert done.returncode == 0
    ticks = list(Reader(path).ticks())
    assert len(ticks) >= 2
    assert any(batch.target.startswith("engine:") for tick in ticks for batch in tick.batches)


def test_values_that_json_does_not_have_become_texts():
    finding = Finding("x", "info", "t", "c", 1.0, (Evidence("a", value=math.inf), Evidence("b", value=math.nan)))
    values = [item["value"] for item in report_json([], [finding], [])["findings"][0]["evidence"]]
    assert values == ["+Inf", "NaN"]


def test_names_from_outside_cannot_steer_the_terminal():
    labels = {"model_name": "m\x1b]0;PWN\x07\x1b[2J\nx"}
    finding = Finding("x", "info", "t", "cause \x1b[31mred", 1.0, (Evidence("seen \x9b2J"),), labels=labels)
    text = "\n".join(finding_lines(finding))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "cause red" in text


def test_two_engines_of_one_address_are_refused(alone):
    done = gpuwatch("check", "--config", alone, "--engine", "http://127.0.0.1:9/a", "--engine", "http://127.0.0.1:9")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "127.0.0.1:9 is named more than once" in done.stderr


def test_a_rule_file_that_is_refused_is_told_in_json_and_the_other_rules_run(tmp_path):
    rules = tmp_path / "mine.yml"
    rules.write_text("groups: [{name: g, rules: [{alert: A, expr: 'up >'}]}]\n")
    config = tmp_path / "c.toml"
    config.write_text(f'gpus = false\ndiscovery = false\nrules = ["{rules}"]\n')
    report = json.loads(gpuwatch("check", "--for", 1, "--config", config, "--json").stdout)
    assert len(report["problems"]) == 1
    assert report["problems"][0].startswith(f"{rules}:1")
    assert report["not_enough_evidence"]


def test_a_rule_that_fails_while_it_runs_is_not_taken_for_healthy(tmp_path):
    rules = tmp_path / "mine.yml"
    expr = "gpuwatch_source_up + on () gpuwatch_source_poll_seconds"
    rules.write_text(f"groups: [{{name: g, rules: [{{alert: Mine, expr: '{expr}'}}]}}]\n")
    config = tmp_path / "c.toml"
    config.write_text(f'gpus = false\ndiscovery = false\nrules = ["{rules}"]\n')
    report = json.loads(gpuwatch("check", "--for", 3, "--config", config, "--json").stdout)
    (failing,) = [item for item in report["not_enough_evidence"] if item["id"] == "Mine"]
    assert "the rule fails" in failing["missing"]


@pytest.mark.parametrize("target", ["/dev/full", None])
def test_output_that_cannot_be_written_is_one_line_and_no_traceback(alone, target):
    redirect = f">{target}" if target else ">&-"
    command = f"{sys.executable} -m gpuwatch doctor --config {alone} {redirect}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if target else 3)


@pytest.mark.parametrize("options", [[], ["--json"], ["-v"]])
def test_a_reader_that_went_away_does_not_hide_a_critical_finding(tmp_path, options):
    rules = tmp_path / "r.yml"
    rules.write_text("groups: [{name: g, rules: [{alert: Mine, expr: vector(1), labels: {severity: critical}}]}]\n")
    log = tmp_path / "engine.log"
    log.write_text("INFO 01-01 00:00:00 [api_server.py:1] a line\n")
    config = tmp_path / "c.toml"
    config.write_text(f'gpus = false\ndiscovery = false\nkernel_log = "off"\nrules = ["{rules}"]\n')
    gone, ours = os.pipe()
    os.close(gone)
    command = [sys.executable, "-m", "gpuwatch", "check", "--for", "3", "--config", config, "--log", log, *options]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=ours, stderr=subprocess.PIPE, text=True, timeout=150, check=False
        )
    finally:
        os.close(ours)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


def test_a_long_output_ends_with_its_reader_and_a_printed_one_goes_nowhere():
    gone, ours = os.pipe()
    os.close(gone)
    with os.fdopen(ours, "w", encoding="utf-8") as stream:
        output = _Output(stream)
        with pytest.raises(BrokenPipeError):
            output.writelines("x" * 1000 for _ in range(1000))
        print("y" * 100_000, file=output, flush=True)
        output.writelines("x" * 1000 for _ in range(1000))


def test_a_terminal_without_utf8_gets_question_marks(alone):
    done = gpuwatch("doctor", "--config", alone, PYTHONIOENCODING="ascii")
    assert done.returncode == 3
    assert "? gpuwatch" in done.stdout


def test_a_recording_that_stops_on_a_full_disk_is_told(alone, tmp_path):
    path = tmp_path / "run.rec"
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)); "
        "from gpuwatch.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "check", "--for", "3", "--json", "--config", alone, "--record", path],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert f"{path}: File too large; recording stopped" in done.stderr
    assert json.loads(done.stdout)["problems"] == [f"{path}: File too large; recording stopped"]


def test_what_a_server_says_reaches_stderr_without_control_characters():
    said = logging.LogRecord("x", logging.ERROR, "x", 1, "%s", ("HTTP 500: bad \x1b[31mred\x07\nnext",), None)
    assert cli._Clean("gpuwatch: %(message)s").format(said) == "gpuwatch: HTTP 500: bad red\nnext"
