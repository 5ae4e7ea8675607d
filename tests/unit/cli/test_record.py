"""``gpuwatch record`` as people run it, and what of a recording other commands keep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwatch.cli import main
from gpuwatch.cli.watching import duration, size
from gpuwatch.recording import Header, Reader, Writer, parts_of

ROOT = Path(__file__).resolve().parents[3]
LOG = ROOT / "tests" / "fixtures" / "logs" / "vllm_0_31_0_killed.log"
QUIET = 'host = "node"\ngpus = false\ndiscovery = false\nkernel_log = "off"\ninterval = 0.2\n'


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "gpuwatch.toml"
    path.write_text(QUIET)
    return path


def start(*words, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "gpuwatch", "record", *map(str, words)], cwd=cwd, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def until(wanted, seconds=60):
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ticks_in(path):
    try:
        return sum(1 for _ in Reader(path).ticks())
    except Exception:  # noqa: BLE001  # not there yet
        return 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_a_recording_that_is_whole(tmp_path, config, number, code):
    path = tmp_path / "run.rec"
    process = start(path, "--config", config, "--log", LOG, cwd=tmp_path)
    assert process.stderr.readline() == f"gpuwatch: recording to {path}; Ctrl-C ends it\n"
    until(lambda: {batch.target for tick in Reader(path).ticks() for batch in tick.batches} >= {f"log:{LOG}", "own"})
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    reader = Reader(path)
    ticks = list(reader.ticks())
    assert reader.cut == ""
    assert (reader.header.host, reader.header.interval, reader.header.history_ms) == ("node", 0.2, 900_000)
    assert out.startswith(f"{path}: {len(ticks)} ticks in ")
    assert {batch.target for tick in ticks for batch in tick.batches} >= {f"log:{LOG}", "own"}


def test_it_ends_after_the_time_that_was_asked_for_and_says_what_it_has_as_json(tmp_path, config):
    path = tmp_path / "run.rec"
    process = start(path, "--config", config, "--log", LOG, "--for", "1", "--json", "--quiet", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    said = json.loads(out)
    assert (said["schema"], said["recording"], said["problems"]) == (1, str(path), [])
    assert said["bytes"] == path.stat().st_size
    assert said["ticks"] == ticks_in(path) > 1
    assert ("log", True) in {(source["kind"], source["up"]) for source in said["sources"]}


def test_a_recording_of_nothing_is_exit_code_3(tmp_path, config):
    process = start("run.rec", "--config", config, "--for", "1", cwd=tmp_path)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "nothing to see was recorded: no GPU, engine or log answered" in out


def test_append_goes_on_after_a_kill(tmp_path, config):
    path = tmp_path / "run.rec"
    process = start(path, "--config", config, "--log", LOG, cwd=tmp_path)
    until(lambda: ticks_in(path) >= 2)
    process.kill()
    process.communicate(timeout=60)
    before = ticks_in(path)
    refused = start(path, "--config", config, cwd=tmp_path)
    assert refused.communicate(timeout=60) == ("", f"gpuwatch record: {path}: exists already; choose another name\n")
    assert refused.returncode == 2
    again = start(path, "--config", config, "--log", LOG, "--append", "--for", "1", cwd=tmp_path)
    again.communicate(timeout=60)
    assert again.returncode == 0
    assert len(parts_of(path)) == 2
    assert ticks_in(path) > before
    assert ticks_in(parts_of(path)[0]) == before


def test_two_recorders_cannot_share_a_file(tmp_path, config, capsys):
    path = tmp_path / "run.rec"
    writer = Writer(path, Header("node", 1, 1.0, "test"))
    assert main(["record", str(path), "--append", "--config", str(config)]) == 2
    writer.close()
    assert capsys.readouterr().err == (f"gpuwatch record: {path}: another gpuwatch writes to it; choose another name\n")


@pytest.mark.parametrize(
    ("text", "count"),
    [("1M", 10**6), ("500M", 5 * 10**8), ("2G", 2 * 10**9), ("1.5GB", 1_500_000_000), ("5000k", 5 * 10**6)],
)
def test_sizes(text, count):
    assert size(text) == count


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("12h", 43_200), ("7d", 604_800), ("60s", 60)])
def test_durations(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "0M", "1K", "nan", "-1G", "1e9M", "2000T", "G", "1 000M"])
def test_a_size_that_is_none_is_refused_with_what_is_allowed(text, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["record", str(tmp_path / "x.rec"), f"--record-size={text}"])
    assert left.value.code == 2
    assert f"{text!r}: allowed: 1M to 1000T, such as 500M or 2G" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "5", "10s", "-1h", "1w", "99999d"])
def test_a_duration_that_is_none_is_refused_with_what_is_allowed(text, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["record", str(tmp_path / "x.rec"), f"--record-age={text}"])
    assert left.value.code == 2
    assert f"{text!r}: allowed: 1m to 3650d, such as 90m, 12h or 7d" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "tui", "serve"])
def test_a_limit_without_a_recording_is_refused(command, capsys):
    assert main([command, "--record-size", "1G"]) == 2
    assert capsys.readouterr().err == (
        f"gpuwatch {command}: --record-size and --record-age need a recording: name its file with --record FILE\n"
    )
