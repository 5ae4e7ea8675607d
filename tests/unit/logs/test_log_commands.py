"""Journals, containers and pods are read through real child processes: small programs that stand in for the tools."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import os
import stat
import time
from datetime import datetime, timezone

import psutil
import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.model import Reason, SourceError, label, name_of
from gpuwatch.sources.logs.commands import command_for
from gpuwatch.sources.logs.source import LogSource

NOW = round(datetime(2025, 11, 30, 12, 0, 0, tzinfo=timezone.utc).timestamp() * 1000)
DEAD = "(APIServer pid=1) ERROR 11-30 12:00:01 [c.py:1] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."
LONG = "exec sleep 60"


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Put a shell script on PATH under a tool's name; it notes its arguments and the number of its starts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))

    def make(name, body):
        path = folder / name
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> "$NOTES"\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return tmp_path / "notes"

    return make


@pytest.fixture
def source(clock):
    made = []

    def start(spec, **options):
        made.append(LogSource(spec, "node-1", clock, **options))
        return made[-1]

    yield start
    for each in made:
        each.close()


def poll_until(log, wanted, seconds=30.0):
    """Poll like a pipeline does, only faster, until `wanted` says yes; return the batches."""
    batches = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        batches.append(log.poll())
        if wanted(batches):
            return batches
        time.sleep(0.01)
    raise AssertionError(batches[-1])


def lines(batches):
    return [line.text for batch in batches for line in batch.lines]


def dead(batch):
    return next(
        value
        for key, value in zip(batch.keys, batch.values, strict=True)
        if name_of(key) == "gpuwatch_log_events_total" and label(key, "event") == "engine_dead"
    )


def test_a_container_is_followed_and_only_new_lines_count(tool, source):
    old = "2025-11-30T11:59:50.000000001Z " + DEAD
    new = "2025-11-30T12:00:01.000000002Z " + DEAD
    notes = tool("docker", f"echo '{old}'; echo '{new}' >&2; {LONG}")
    log = source("docker:vllm-1")
    batches = poll_until(log, lambda seen: len(lines(seen)) == 2)
    assert notes.read_text() == "logs --follow --timestamps --tail 2000 vllm-1\n"
    assert log.target == "log:docker:vllm-1"
    assert sum(len(batch.events) for batch in batches) == 1
    assert dead(log.poll()) == 1.0
    facts = {fact.key for batch in batches for fact in batch.facts}
    assert "past.engine_dead" in facts


def test_a_journal_is_followed_with_its_continuation_lines(tool, source):
    body = (
        "echo '2025-11-30T11:00:00.000000+0000 gpu-1 vllm[77]: EngineCore failed to start.'\n"
        "echo '                                 EngineCore failed to start.'\n"
        "echo '2025-11-30T13:00:05.000000+0100 gpu-1 vllm[77]: EngineCore failed to start.'\n" + LONG
    )
    notes = tool("journalctl", body)
    log = source("journal:vllm.service")
    batches = poll_until(log, lambda seen: len(lines(seen)) == 3)
    assert notes.read_text() == "-u vllm.service -o short-iso-precise -f -n 2000 --no-pager\n"
    assert [event.event for batch in batches for event in batch.events] == ["engine_start_failed"]


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        ("k8s:prod/vllm-0", "logs --follow --timestamps --tail=2000 --namespace=prod vllm-0"),
        ("k8s:prod/vllm-0/server", "logs --follow --timestamps --tail=2000 --namespace=prod vllm-0 --container=server"),
    ],
)
def test_a_pod_is_followed(tool, source, spec, arguments):
    notes = tool("kubectl", f"echo '2025-11-30T12:00:01.000000000Z INFO 11-30 12:00:01 [a.py:1] hi'; {LONG}")
    poll_until(source(spec), lambda seen: len(lines(seen)) == 1)
    assert notes.read_text() == arguments + "\n"


@pytest.mark.parametrize(
    "spec",
    [
        "docker:",
        "docker:x; rm -rf /",
        "docker:--help",
        "docker:$(id)",
        "journal:-f",
        "journal:a b",
        "journal:",
        "k8s:vllm-0",
        "k8s:prod/vllm-0/a/b",
        "k8s:-n/x",
        "k8s:Prod/x",
    ],
)
def test_a_name_that_no_tool_could_know_is_refused_in_one_line(source, spec):
    batch = source(spec).poll()
    assert (batch.up, batch.reason) == (False, Reason.FAILED)
    assert "allowed is" in batch.detail
    assert "\n" not in batch.detail


@pytest.mark.parametrize("spec", ["/var/log/vllm.log", "server.log", "C:log", "other:thing"])
def test_everything_else_is_a_file(spec):
    assert command_for(spec, 10) is None


def test_a_missing_program_says_so(source, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    batch = source("k8s:prod/vllm-0").poll()
    assert (batch.up, batch.reason) == (False, Reason.NOT_FOUND)
    assert batch.detail == "pod prod/vllm-0: the program kubectl is not on PATH"


def test_a_program_that_cannot_be_run_says_so(tool, source, tmp_path):
    tool("docker", LONG)
    (tmp_path / "bin" / "docker").write_text("#!/nonexistent/interpreter\n")
    batch = source("docker:x").poll()
    assert (batch.up, batch.reason) == (False, Reason.FAILED)
    assert batch.detail == "docker: No such file or directory"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Error response from daemon: No such container: gone", Reason.NOT_FOUND),
        ("permission denied while trying to connect to the Docker daemon socket", Reason.NO_PERMISSION),
        ("something else", Reason.FAILED),
    ],
)
def test_a_program_that_fails_gives_its_last_words_and_is_tried_again_later(tool, source, clock, message, reason):
    notes = tool("docker", f"echo '{message}' >&2; exit 1")
    log = source("docker:gone")
    batches = poll_until(log, lambda seen: "ended" in seen[-1].detail)
    assert batches[-1].reason is reason
    assert batches[-1].detail == f"container gone: docker ended with status 1: {message}"
    for _ in range(5):
        assert not log.poll().up
    assert notes.read_text().count("logs") == 1
    clock.advance(1.1)
    poll_until(log, lambda _: notes.read_text().count("logs") == 2)
    poll_until(log, lambda seen: "ended" in seen[-1].detail)
    clock.advance(1.1)
    assert not log.poll().up
    assert notes.read_text().count("logs") == 2


def test_the_error_of_a_program_is_no_line_of_the_log_and_the_log_is_down_from_the_first_poll_on(tool, source, clock):
    error = "Error response from daemon: No such container: nope"
    notes = tool("docker", f"echo '{error}' >&2; echo 'Run docker logs --help for more' >&2; exit 1")
    log = source("docker:nope")
    batches = []
    for start in range(1, 4):
        batches += poll_until(
            log, lambda seen, start=start: notes.exists() and notes.read_text().count("logs") == start
        )
        batches += poll_until(log, lambda seen: error in seen[-1].detail)
        batches.append(log.poll())
        clock.advance(5)
    assert not any(batch.up for batch in batches)
    assert lines(batches) == []
    assert [batch.events for batch in batches if batch.events] == []
    assert {batch.reason for batch in batches} <= {Reason.NEVER_SEEN, Reason.NOT_FOUND}
    assert "has been started and has said nothing yet" in batches[0].detail or error in batches[0].detail


def test_a_log_that_is_started_again_is_up_when_a_new_line_comes_and_not_for_its_old_ones(tool, source, clock):
    stamp = "2025-11-30T12:00:0{}.000000000Z "
    tool(
        "docker",
        f"echo '{stamp.format(1)}line 1'; [ \"$(wc -l < \"$NOTES\")\" -gt 2 ] && echo '{stamp.format(2)}line 2' && {LONG}",
    )
    log = source("docker:x")
    poll_until(log, lambda seen: not seen[-1].up and "ended" in seen[-1].detail)
    clock.advance(1.1)
    again = [log.poll() for _ in range(30) if not time.sleep(0.01)]
    assert not any(batch.up for batch in again)
    clock.advance(2.1)
    batches = poll_until(log, lambda seen: seen[-1].up)
    assert [text.split("Z ")[1] for text in lines(batches)] == ["line 2"]


def test_a_quiet_container_is_followed_once_the_program_has_run_for_a_while(tool, source, clock):
    notes = tool("docker", LONG)
    log = source("docker:quiet")
    poll_until(log, lambda _: notes.exists())
    assert (log.poll().up, log.poll().reason) == (False, Reason.NEVER_SEEN)
    clock.advance(3.1)
    assert log.poll().up


def test_after_a_restart_no_line_is_read_twice(tool, source, clock):
    stamp = "2025-11-30T12:00:0{}.000000000Z "
    first = "".join(f"echo '{stamp.format(n)}line {n}';" for n in (1, 2))
    tool("docker", f'{first} [ "$(wc -l < "$NOTES")" -gt 1 ] && {{ echo "{stamp.format(3)}line 3"; {LONG}; }}; exit 0')
    log = source("docker:x")
    batches = poll_until(log, lambda seen: "ended" in seen[-1].detail)
    clock.advance(1.1)
    batches += poll_until(log, lambda seen: len(lines(seen)) > 0)
    assert [text.split("Z ")[1] for text in lines(batches)] == ["line 1", "line 2", "line 3"]


def children():
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def test_closing_ends_the_program_at_once_and_again_does_nothing(tool, source):
    tool("docker", f"echo '2025-11-30T12:00:01.000000000Z x'; {LONG}")
    log = source("docker:x")
    poll_until(log, lambda seen: len(lines(seen)) == 1)
    before = len(children())
    begun = time.monotonic()
    log.close()
    assert time.monotonic() - begun < 5.0
    assert len(children()) == before - 1
    log.close()


def test_a_program_that_ignores_the_request_to_end_is_killed(tool, source):
    tool("docker", "trap '' TERM; echo '2025-11-30T12:00:01.000000000Z x'; while :; do sleep 0.05; done")
    log = source("docker:x")
    poll_until(log, lambda seen: len(lines(seen)) == 1)
    before = len(children())
    begun = time.monotonic()
    log.close()
    assert time.monotonic() - begun < 10.0
    assert len(children()) == before - 1


def test_a_wrong_spec_is_an_error_for_whoever_asks_first():
    with pytest.raises(SourceError, match="allowed is docker:NAME"):
        command_for("docker:a b", 10)


def test_all_lines_of_an_error_are_told_the_error_first(tool, source, clock):
    tool(
        "kubectl", "echo 'memcache.go: retrying'; echo 'error: no server'; echo 'did you name the right host?'; exit 1"
    )
    batches = poll_until(source("k8s:prod/vllm-0"), lambda batches: batches[-1].reason is Reason.FAILED)
    assert batches[-1].detail == (
        "pod prod/vllm-0: kubectl ended with status 1: "
        "error: no server; memcache.go: retrying; did you name the right host?"
    )
