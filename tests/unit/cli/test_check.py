"""What ``gpuwatch check`` takes for a verdict, and what it says of sources that gave none."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.cli import UsageError, check, watching
from gpuwatch.cli.doctor import _engine
from gpuwatch.clock import SystemClock
from gpuwatch.config import Config, EngineConfig, LogConfig
from gpuwatch.diagnosis.finding import Finding, NotEnough
from gpuwatch.model import Reason, SourceError
from gpuwatch.snapshot import SourceState
from gpuwatch.sources.engine.source import EngineTarget
from gpuwatch.sources.logs.commands import StdinInput
from gpuwatch.sources.logs.lines import LogLimits
from tests.unit.cli.test_cli import alone, server  # noqa: F401  # fixtures

ROOT = Path(__file__).resolve().parents[3]
NVML = SourceState("nvml", "nvml", up=True, age=0.1, detail="nvmlInit has not returned for 4 s", reason="hung")
SLOW = SourceState("engine", "127.0.0.1:8000", up=False, reason="never_seen", detail="no answer yet")
LOG = SourceState("log", "stdin", up=True, age=0.1)


def report(capsys, seen, **options):
    """Return the exit code and what was printed."""
    args = argparse.Namespace(**{"json": False, "quiet": False, "verbose": False, "fail_on": "critical"} | options)
    code = check._report(args, seen, [])
    return code, capsys.readouterr().out


def seen_of(*sources, readable=False, empty=()):
    seen = check.Seen()
    seen.sources, seen.readable, seen.empty_logs = sources, readable, set(empty)
    return seen


def test_an_nvml_that_hangs_is_no_verdict_and_says_what_hangs(capsys):
    code, out = report(capsys, seen_of(NVML))
    assert code == 3
    assert out.startswith("nvml: nvmlInit has not returned for 4 s")


def test_an_nvml_that_hangs_with_a_finding_about_it_is_a_verdict(capsys):
    seen = seen_of(NVML)
    seen.findings["x"] = Finding("driver_unresponsive", "critical", "t", "c", 1.0, ())
    assert report(capsys, seen)[0] == 1


def test_a_gpu_that_was_read_is_a_verdict_and_its_troubles_are_told(capsys):
    code, out = report(capsys, seen_of(NVML, readable=True))
    assert code == 0
    assert "nvmlInit" in out


def test_a_log_without_a_line_is_no_verdict(capsys):
    assert report(capsys, seen_of(LOG, empty=["stdin"]))[0] == 3
    assert report(capsys, seen_of(LOG))[0] == 0


def test_a_source_without_an_answer_is_named_and_what_needs_it_was_watched_too_short(capsys):
    seen = seen_of(SLOW)
    seen.not_enough = (NotEnough("queue_growth", "no engine is seen"), NotEnough("gpu_lost", "no GPU is seen"))
    code, out = report(capsys, seen, verbose=True)
    assert code == 3
    assert "engine 127.0.0.1:8000: never_seen: no answer yet" in out
    assert "queue_growth: watched too short: no answer of 127.0.0.1:8000 yet" in out
    assert "gpu_lost: no GPU is seen" in out


def test_an_engine_asked_for_by_name_that_never_answers_is_not_fine_beside_gpus_that_are(capsys):
    refused = SourceState("engine", "127.0.0.1:28799", up=False, reason="refused", detail="nothing listens there")
    seen = seen_of(NVML, refused, readable=True)
    assert report(capsys, seen)[0] == 0  # found by gpuwatch itself: nobody counts on it
    seen.named = frozenset({("engine", "127.0.0.1:28799")})
    code, out = report(capsys, seen)
    assert code == 3
    assert "engine 127.0.0.1:28799 was not judged: it never answered with anything that could be read (refused:" in out
    code, out = report(capsys, seen, json=True)
    assert code == 3
    (problem,) = json.loads(out)["problems"]
    assert problem.startswith("engine 127.0.0.1:28799 was not judged: it never answered")
    assert problem.endswith("(refused: nothing listens there)")
    seen.findings["x"] = Finding("gpu_lost", "critical", "t", "c", 1.0, ())
    assert report(capsys, seen)[0] == 1  # what was found outranks what is not known


def test_a_log_that_is_named_with_its_engine_or_is_standard_input_counts_as_named_and_each_has_a_line(capsys):
    config = Config(
        engines=(EngineConfig(url="http://127.0.0.1:1", log="/no/such.log"),), logs=(LogConfig(source="-"),)
    )
    logs = [SourceState("log", name, up=False, reason="not_found", detail="no") for name in ("/no/such.log", "stdin")]
    seen = seen_of(NVML, *logs, readable=True)
    seen.named = check._named(config)
    code, out = report(capsys, seen)
    assert code == 3
    assert [line for line in out.splitlines() if "was not judged" in line] == [
        f"log {name} was not judged: it never answered with anything that could be read (not_found: no)"
        for name in ("/no/such.log", "stdin")
    ]


def test_an_engine_that_answered_once_was_judged(capsys):
    gone = SourceState("engine", "127.0.0.1:28799", up=False, reason="refused", detail="gone", age=20.0)
    seen = seen_of(NVML, gone, readable=True)
    seen.named = frozenset({("engine", "127.0.0.1:28799")})
    assert report(capsys, seen)[0] == 0


def test_a_driver_that_never_answered_is_not_up(capsys):
    for readable, up in ((False, False), (True, True)):
        _, out = report(capsys, seen_of(NVML, readable=readable), json=True)
        assert json.loads(out)["inputs"][0]["up"] is up


def test_the_figures_of_gpuwatch_itself_are_no_input(capsys):
    own = SourceState("own", "own", up=True, age=0.1)
    out = report(capsys, seen_of(LOG, own), json=True)[1]
    assert [given["kind"] for given in json.loads(out)["inputs"]] == ["engine_log"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("docker:", "--log 'docker:': allowed is docker:NAME, the name or id of a container"),
        ("journal:--help", "--log 'journal:--help': allowed is journal:UNIT, such as journal:vllm.service"),
        ("k8s:bad", "--log 'k8s:bad': allowed is k8s:NAMESPACE/POD or k8s:NAMESPACE/POD/CONTAINER"),
        ("", "--log is empty; allowed: a file, -, journal:UNIT, docker:NAME or k8s:NAMESPACE/POD"),
        ("/", "--log /: is a folder; allowed: a file, -, journal:UNIT, docker:NAME or k8s:NAMESPACE/POD"),
    ],
)
def test_a_log_that_cannot_be_one_is_wrong_usage(spec, message):
    args = argparse.Namespace(config=None, engine=[], interval=None, log=[spec])
    with pytest.raises(UsageError) as refused:
        watching.config_of(args)
    assert str(refused.value) == message


@pytest.mark.parametrize("spec", ["-", "docker:vllm", "journal:vllm.service", "k8s:prod/vllm-0", "/no/such/file.log"])
def test_a_log_that_may_come_is_accepted(spec):
    args = argparse.Namespace(config=None, engine=[], interval=None, log=[spec])
    assert [log.source for log in watching.config_of(args).logs] == [spec]


@pytest.mark.parametrize(
    ("head", "binary"),
    [
        (b"\x7fELF\x02\0\0", True),
        (bytes(range(256)) * 16, True),
        ("INFO started\n".encode("utf-16-le") * 40, True),
        (b"\0\0\0INFO 01-02 started\n", False),
        (b"INFO 01-02 started\n" * 20 + b"a zero \0 in a line\n", False),
        (b"INFO started\n" + bytes(3000) + b"INFO after the crash\n", False),
        (b"INFO started\n", False),
    ],
)
def test_a_program_is_no_log_and_one_with_zeros_of_a_cut_or_a_crash_is(head, binary, tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes(head)
    if not binary:
        assert watching._log_of(str(path)) == str(path)
        return
    with pytest.raises(UsageError, match="is binary data, not a log; allowed: a file, -"):
        watching._log_of(str(path))


def test_standard_input_that_ends_without_a_line_is_not_read():
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  # a descriptor is wanted
        source = StdinInput(SystemClock(), LogLimits(), nothing.fileno())
        for _ in range(2):
            with pytest.raises(SourceError) as refused:
                source.read()
            assert refused.value.reason is Reason.NOT_FOUND


def test_a_complete_page_is_not_blamed_for_what_is_optional(server):  # noqa: F811  # the fixture
    checks = list(_engine(EngineTarget(server), Config(), SystemClock()))
    assert checks[0].status == "ok"
    assert [check.detail for check in checks if check.detail.startswith("the page has none of")] == []


def test_what_the_server_of_a_log_died_of_before_the_watch_is_found(alone, tmp_path):  # noqa: F811  # the fixture
    log = tmp_path / "dead.log"
    log.write_text("vllm: error: unrecognized arguments: --chunked-prefill-size 8192\n")
    command = [sys.executable, "-m", "gpuwatch", "check", "--for", "5", "--config", str(alone), "--log", str(log)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert "flag_unknown" in done.stdout
    assert f"log {log}: its server was gone before the watch began" in done.stdout
    assert done.returncode == 1


def test_rules_that_fail_while_they_run_are_told_with_file_and_line(alone, tmp_path):  # noqa: F811  # the fixture
    log = tmp_path / "server.log"
    log.write_text("INFO 01-01 00:00:00 [api_server.py:1] vLLM API server version 0.11.0\n")
    (tmp_path / "mine.yml").write_text(
        "groups:\n  - name: mine\n    rules:\n"
        "      - alert: Fails\n"
        "        expr: vector(1) * on (a) (vector(1) or label_replace(vector(1), 'b', 'c', '', ''))\n"
        "      - alert: Fires\n        expr: vector(1)\n        labels: {severity: info}\n"
        "        annotations: {summary: '{{ index $labels 5 }}'}\n"
    )
    config = tmp_path / "own.toml"
    config.write_text(alone.read_text() + '\nrules = ["mine.yml"]\n')
    command = [sys.executable, "-m", "gpuwatch", "check", "--for", "3", "--config", str(config), "--log", str(log)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    own = tmp_path / "mine.yml"
    assert f"gpuwatch check: {own}:4: rule Fails: " in done.stderr
    assert f"gpuwatch check: {own}:6: rule Fires: annotation 'summary': " in done.stderr
    assert "Fires: " in done.stdout
    (tmp_path / "mine.yml").unlink()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert f"key 'rules': {own} does not exist" in done.stderr
