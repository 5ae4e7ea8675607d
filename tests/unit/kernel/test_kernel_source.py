"""The kernel's log, read from pipes that hold records of /dev/kmsg, from the device itself, and through journalctl."""

# ruff: noqa: E501  # lines of logs are as long as they are

from __future__ import annotations

import os
import stat
import time

import pytest

from gpuwatch.clock import ManualClock, SystemClock
from gpuwatch.model import Reason, label, name_of
from gpuwatch.sources.kernel.inputs import KmsgInput, parse_record
from gpuwatch.sources.kernel.source import KernelSource
from gpuwatch.sources.nvml.attribution import EngineProcess

NOW = 1_760_000_000_000
XID = "NVRM: Xid (PCI:0000:19:00): 79, pid=1234, name=VLLM::EngineCor, GPU has fallen off the bus."
OOM = (
    "Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:912345kB, anon-rss:1024kB, file-rss:512kB, "
    "shmem-rss:256kB, UID:0 pgtables:1kB oom_score_adj:0"
)
SUMMARY = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/pod,task_memcg=/pod/a,task=VLLM::EngineCor,pid=4711,uid=0"


@pytest.fixture
def clock():
    """A machine that has run for 1,000 seconds."""
    made = ManualClock(NOW - 1_000_000)
    made.advance(1000)
    return made


class Pipe:
    """A named pipe with the device's records; one writer stays, so that its end is not an end of the log."""

    def __init__(self, path):
        os.mkfifo(path)
        self.path = str(path)
        self.reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.writer = os.open(self.path, os.O_WRONLY)
        self.sequence = 0

    def say(self, *messages, micros=900_000_000):
        for message in messages:
            self.sequence += 1
            record = f"4,{self.sequence},{micros},-;{message}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:19:00.0\n"
            os.write(self.writer, record.encode())


@pytest.fixture
def pipe(tmp_path):
    made = Pipe(tmp_path / "kmsg")
    yield made
    os.close(made.reader)
    os.close(made.writer)


@pytest.fixture
def source(clock):
    made = []

    def start(path, way="kmsg", **options):
        made.append(KernelSource("node-1", clock, way=way, path=str(path), **options))
        return made[-1]

    yield start
    for each in made:
        each.close()


def counts(batch):
    return {
        label(key, "event"): value for key, value in zip(batch.keys, batch.values, strict=True) if label(key, "event")
    }


def test_a_record_is_taken_apart_and_its_escapes_are_undone():
    assert parse_record(rb"6,339,5140900,-;NVRM: a\x09b; c") == (5_140_900, "NVRM: a\tb; c")
    assert parse_record(rb"4,1,7,-,caller=T12;text") == (7, "text")
    for line in (b" SUBSYSTEM=pci", b"", b"nonsense", b"6,1;x"):
        assert parse_record(line) is None


def test_what_was_in_the_log_before_is_told_but_not_counted(pipe, source):
    pipe.say(XID)
    batch = source(pipe.path).poll()
    assert batch.up
    assert counts(batch) == {"xid": 0, "gpu_lost": 0, "driver_error": 0, "out_of_memory_killed": 0}
    assert batch.events == ()
    (fact,) = batch.facts
    assert (fact.key, fact.value) == ("past.xid", XID)
    assert fact.time == NOW - 100_000  # 900 s after boot, and the machine has run for 1,000 s


def test_new_lines_are_counted_as_events_and_shown(pipe, source):
    kernel = source(pipe.path)
    kernel.poll()
    pipe.say(
        XID,
        "NVRM: GPU at PCI:0000:19:00 has fallen off the bus.",
        "NVRM: API mismatch: the client has the version 570.1, but this kernel module has the version 580.2.",
        "NVRM: GPU 0000:19:00.0: RmInitAdapter failed! (0x26:0x56:1482)",
        "usb 1-1: new high-speed USB device number 2",
    )
    batch = kernel.poll()
    assert counts(batch) == {"xid": 1, "gpu_lost": 1, "driver_error": 2, "out_of_memory_killed": 0}
    assert [event.event for event in batch.events] == ["xid", "gpu_lost", "driver_error", "driver_error"]
    assert batch.events[0].field("code") == "79"
    assert batch.events[0].time == NOW
    assert len(batch.lines) == 4
    assert dict(zip(map(name_of, batch.keys), batch.values, strict=True))["gpuwatch_kernel_lines_total"] == 5


def test_an_xid_of_a_known_card_is_handed_on_and_not_counted_twice(pipe, source):
    told = []

    def saw(address, code, moment):
        told.append((address, code, moment))
        return True

    kernel = source(pipe.path, saw_xid=saw)
    kernel.poll()
    pipe.say(XID, "NVRM: Xid (PCI:0000:19:00.0): 31, pid='<unknown>', name=<unknown>, Ch 00000008")
    batch = kernel.poll()
    assert told == [("0000:19:00", 79, NOW), ("0000:19:00", 31, NOW)]
    assert "gpuwatch_gpu_xid_errors_total" not in set(map(name_of, batch.keys))


def test_an_xid_of_a_card_that_nobody_knows_is_counted_under_its_address_from_zero(pipe, source):
    kernel = source(pipe.path)
    kernel.poll()
    pipe.say(XID)
    seen = []
    for _ in range(2):
        batch = kernel.poll()
        seen.append(
            [(dict(key), value) for key, value in zip(batch.keys, batch.values, strict=True)
             if name_of(key) == "gpuwatch_gpu_xid_errors_total"]
        )  # fmt: skip
    ((labels, first),), ((_, second),) = seen
    assert (labels["gpu"], labels["uuid"], labels["xid"]) == ("0000:19:00", "PCI:0000:19:00", "79")
    assert (first, second) == (0, 1)


def test_an_xid_of_a_mig_instance_is_its_cards_and_one_that_asks_for_nothing_is_none(pipe, source):
    seen = []
    kernel = source(pipe.path, saw_xid=lambda address, code, time: seen.append((address, code)) or True)
    kernel.poll()
    pipe.say(
        "NVRM: Xid (PCI:0000:19:00 GPU-I:03): 94, pid=7, name=x, Contained: SM (0x1)",
        "NVRM: Xid (PCI:0000:19:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        "NVRM: Xid (PCI:0000:19:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "nvidia-nvswitch1: SXid (PCI:0000:05:00.0): 22013, Fatal, Link 07 Minion Link DLREQ interrupt",
    )
    assert [event.event for event in kernel.poll().events] == ["xid", "xid"]
    assert seen == [("0000:19:00", 94), ("0000:19:00", 154)]


def test_a_killed_process_carries_its_memory_its_limit_and_its_engine(pipe, source):
    engines = lambda: [EngineProcess("127.0.0.1:8000", 4700, frozenset({4700, 4711}))]  # noqa: E731
    kernel = source(pipe.path, engines=engines)
    kernel.poll()
    pipe.say(SUMMARY, OOM)
    (event,) = kernel.poll().events
    assert (event.event, event.server) == ("out_of_memory_killed", "127.0.0.1:8000")
    assert event.field("resident") == str((1024 + 512 + 256) * 1024)
    assert (event.field("constraint"), event.field("group")) == ("CONSTRAINT_MEMCG", "/pod/a")
    assert (event.field("pid"), event.field("name")) == ("4711", "VLLM::EngineCor")


def test_control_characters_and_secrets_do_not_pass(pipe, source):
    kernel = source(pipe.path)
    kernel.poll()
    pipe.say(r"NVRM: Xid (PCI:0000:19:00): 13, pid=7, name=\x1b[31mx --api-key=sk-abcdefghijklmnopqrst, text")
    (line,) = kernel.poll().lines
    assert "\x1b" not in line.text
    assert "sk-abcdef" not in line.text


def test_a_record_that_comes_in_pieces_is_put_together(pipe, clock):
    reader = KmsgInput(clock, pipe.path)
    assert reader.read() == []
    os.write(pipe.writer, b"4,1,7,-;NVRM: first ha")
    assert reader.read() == []
    os.write(pipe.writer, b"lf\n KEY=x\n4,2,8,-;second\n")
    assert [line.text for line in reader.read()] == ["NVRM: first half", "second"]
    reader.close()


def test_a_missing_device_says_so(tmp_path, source):
    batch = source(tmp_path / "nothing").poll()
    assert not batch.up
    assert batch.reason is Reason.NOT_FOUND
    assert batch.detail == f"{tmp_path}/nothing: No such file or directory"


def test_a_device_that_may_not_be_read_says_who_may(tmp_path, source, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    batch = source(tmp_path / "kmsg").poll()
    assert batch.reason is Reason.NO_PERMISSION
    assert "kernel.dmesg_restrict" in batch.detail
    assert "CAP_SYSLOG" in batch.detail


def test_a_device_that_comes_back_is_read_again_without_counting_old_lines(tmp_path, source):
    path = tmp_path / "kmsg"
    kernel = source(path)
    assert not kernel.poll().up
    path.write_bytes(f"4,1,7,-;{XID}\n".encode())
    batch = kernel.poll()
    assert batch.up
    assert counts(batch)["xid"] == 0


def test_closed_is_closed(pipe, source):
    kernel = source(pipe.path)
    kernel.poll()
    kernel.close()
    kernel.close()
    assert kernel.poll().detail == "the kernel log is closed"


def journal(tmp_path, monkeypatch, body):
    program = tmp_path / "journalctl"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" > "{tmp_path}/arguments"\n{body}\nexec sleep 60\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def until(kernel, wanted, clock, seconds=20.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        batch = kernel.poll()
        if wanted(batch):
            return batch
        clock.advance(1.0)
        time.sleep(0.02)
    pytest.fail(f"never happened: {batch}")


def test_the_journal_is_followed_where_the_device_may_not_be_read(tmp_path, source, clock, monkeypatch):
    old, new = "2025-10-09T08:00:00.000000+00:00", "2025-10-09T08:53:21.000000+00:00"
    journal(tmp_path, monkeypatch, f'echo "{old} node kernel: {XID}"\necho "{new} node kernel: {XID}"')
    kernel = source(tmp_path / "nothing", way="auto")
    batch = until(kernel, lambda batch: batch.up and batch.events, clock)
    assert counts(batch)["xid"] == 1
    assert [fact.key for fact in batch.facts] == ["past.xid"]
    assert (tmp_path / "arguments").read_text() == "-k -o short-iso-precise -f -n 2000 --no-pager\n"


def test_what_the_journal_says_after_the_clock_was_set_back_is_not_taken_for_the_past(
    tmp_path, source, clock, monkeypatch
):
    new = "2025-10-09T07:53:21.000000+00:00"  # a second after the start, by a clock that is an hour behind since
    journal(tmp_path, monkeypatch, f'echo "{new} node kernel: {XID}"')
    kernel = source(tmp_path / "nothing", way="auto")
    clock.step_back(3600)
    batch = until(kernel, lambda batch: batch.up and (batch.events or batch.facts), clock)
    assert counts(batch)["xid"] == 1
    assert batch.facts == ()


@pytest.mark.parametrize(
    "words",
    ["No journal files were found.", "No journal files were opened due to insufficient permissions."],
)
def test_a_journal_that_shows_nothing_is_not_taken_for_a_quiet_one(tmp_path, source, clock, monkeypatch, words):
    journal(tmp_path, monkeypatch, f'echo "{words}" >&2')
    kernel = source(tmp_path / "nothing", way="auto")
    batch = until(kernel, lambda batch: words in batch.detail, clock)
    assert not batch.up
    assert f"journalctl -k shows nothing: {words}" in batch.detail


def test_the_device_of_this_machine_is_read():
    kernel = KernelSource("node-1", SystemClock(), way="kmsg")
    batch = kernel.poll()
    kernel.close()
    assert batch.up or batch.reason in (Reason.NO_PERMISSION, Reason.NOT_FOUND)
