"""Files of one incident are joined on time; a recording comes to the findings that were there live."""

from __future__ import annotations

import gzip
import io
import os
import sys
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from unit.pipeline import scenario

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.cli.tui import DEMO
from gpuwatch.model import NAME, name_of
from gpuwatch.pipeline.postmortem import in_order, investigate, join, natural
from gpuwatch.pipeline.replay import replay
from gpuwatch.recording import Header, Reader, Writer
from gpuwatch.sources.files.read import read_file

OOM = (
    "CUDA out of memory. Tried to allocate 3.82 GiB. GPU 0 has a total capacity of 79.14 GiB of which 3.02 GiB is free."
)


def local(*moment):
    return round(datetime(*moment).astimezone().timestamp() * 1000)


NOW = local(2026, 11, 29, 12)
LATER = 1_795_978_030_013 + 86_400_000
"""A day after the recorded run."""
CUT = "the end is missing; read up to the last complete tick"


@pytest.fixture
def put(tmp_path):
    def write(name, text, modified=None):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        if modified is not None:
            os.utime(path, (modified, modified))
        return str(path)

    return write


@cache
def rules():
    return load(shipped_paths())


@pytest.fixture
def storm(tmp_path):
    """The first ticks of the recorded run: a storm begins in them."""
    path = tmp_path / "storm.rec"
    reader = Reader(DEMO)
    writer = Writer(path, reader.header)
    for tick in islice(reader.ticks(), 24):
        for batch in tick.batches:
            writer.write(batch)
        writer.tick(tick.time)
    writer.close()
    return path


def texts(*paths):
    return [read_file(path, NOW) for path in paths]


def test_events_of_several_files_are_in_the_order_of_time(put):
    log = put(
        "log",
        f"INFO 11-29 10:00:00 [a.py:1] x\nERROR 11-29 10:00:09 [a.py:1] {OOM}\nERROR 11-29 10:00:30 [a.py:1] {OOM}\n",
    )
    kernel = put("kernel", "[Sun Nov 29 10:00:05 2026] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")
    bare = put("bare", f"{OOM}\n")
    incident = join(texts(log, kernel, bare))
    assert [(event.event, Path(event.source).name) for event in incident.events] == [
        ("torch_oom", "bare"),
        ("xid", "kernel"),
        ("torch_oom", "log"),
        ("torch_oom", "log"),
    ]
    assert [given.kind for given in incident.inputs] == ["engine_log", "dmesg", "engine_log"]


def test_a_launch_command_is_an_input_of_its_own(put):
    incident = join(texts(put("log", OOM)), "vllm serve m --max-num-seqs 8")
    assert [(given.path, given.kind, given.engine) for given in incident.inputs[1:]] == [("--flags", "flags", "vllm")]
    facts = {fact.key: (fact.value, fact.source, fact.line) for fact in incident.facts}
    assert facts["command"] == ("vllm serve m --max-num-seqs 8", "--flags", 1)
    assert facts["max_num_seqs"] == (8, "--flags", 1)


PAGE = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} %d.0\n'


def running(incident):
    return [
        (v, time) for _, labels, v, time in incident.samples if name_of(labels) == "gpuwatch_engine_requests_running"
    ]


def test_pages_that_were_written_apart_have_the_times_of_their_files(put):
    paths = [put("b", PAGE % 5, 1_700_000_010), put("a", PAGE % 9, 1_700_000_020), put("c", PAGE % 3, 1_700_000_000)]
    assert running(join(in_order(texts(*paths)))) == [
        (3, 1_700_000_000_000),
        (5, 1_700_000_010_000),
        (9, 1_700_000_020_000),
    ]


def test_pages_that_were_copied_together_have_the_order_of_their_names_and_no_time(put):
    paths = [put(f"page_{n}.txt", PAGE % n, 1_700_000_000 + n / 1000) for n in (10, 9, 2)]
    assert running(join(in_order(texts(*paths)))) == [(2, 0), (9, 0), (10, 0)]
    series = {labels for _, labels, _, _ in join(in_order(texts(*paths))).samples if "running" in dict(labels)[NAME]}
    assert len(series) == 1


def test_names_are_sorted_by_the_numbers_in_them():
    names = ["m_10.txt", "m_9.txt", "a", "m_9b.txt", "10"]
    assert sorted(names, key=natural) == ["10", "a", "m_9.txt", "m_9b.txt", "m_10.txt"]


def test_what_cannot_be_read_is_told_and_the_rest_is_judged(put, tmp_path):
    result = investigate([put("log", OOM), str(tmp_path), put("empty", b"")], "", NOW, rules)
    assert [given.kind for given in result.inputs] == ["engine_log"]
    assert [why for _, why in result.refused] == ["is a folder; name the files in it", "is empty"]
    assert result.findings


def test_a_file_that_is_named_twice_is_read_once(put):
    path = put("log", OOM)
    assert len(investigate([path, path], "", NOW, rules).inputs) == 1


def test_every_finding_of_files_has_evidence_with_its_place(put):
    log = put("log", f"ERROR 11-29 10:00:09 [a.py:1] torch.OutOfMemoryError: {OOM}\n")
    for finding in investigate([log], "", NOW, rules).findings:
        assert any(item.source == log and item.line == 1 for item in finding.evidence)


@pytest.mark.parametrize(
    "text",
    [
        "It was the best of times, it was the worst of times.\n" * 200,
        '10.0.0.1 - - [29/Nov/2026:10:00:00 +0000] "GET /error HTTP/1.1" 500 612 "-" "killed OOM Xid"\n' * 200,
        "2026-11-29 10:00:00,123 INFO com.example.Main - Traceback of nothing, out of memory of nothing\n" * 200,
        '{"level":"info","msg":"started","port":8080}\n' * 200,
        "a,b,c\n1,2,3\n4,5,6\n",
    ],
    ids=["novel", "nginx", "java", "json", "csv"],
)
def test_files_of_something_else_give_no_finding(put, text):
    result = investigate([put("file", text)], "", NOW, rules)
    assert result.findings == ()
    assert [given.kind for given in result.inputs] == ["unknown"]


def test_a_recording_gives_the_findings_that_were_there_live(storm):
    live = {f.id for result in replay(storm, rules()) for f in result.findings if f.state != "pending"}
    result = investigate([str(storm)], "", LATER, rules)
    assert [(given.kind, given.engine, given.note) for given in result.inputs] == [("recording", "vllm", "")]
    assert {finding.id for finding in result.findings} == live
    assert result.findings[0].id == "kv_preemption_storm"


def test_a_recording_through_a_pipe_or_packed_otherwise_is_the_same(storm, put, monkeypatch, tmp_path):
    plain = gzip.decompress(storm.read_bytes())

    class Stdin:
        buffer = io.BufferedReader(io.BytesIO(gzip.compress(plain)))

    monkeypatch.setattr(sys, "stdin", Stdin)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    for path in ("-", put("unpacked", plain)):
        result = investigate([path], "", NOW, rules)
        assert result.findings[0].id == "kv_preemption_storm"
        assert result.inputs[0].kind == "recording"
    assert not list((tmp_path / "scratch").iterdir())


def test_a_recording_without_a_complete_tick_says_so(put):
    header = gzip.decompress(Path(DEMO).read_bytes()).split(b"\n")[0]
    result = investigate([put("cut", gzip.compress(header + b"\n"))], "", LATER, rules)
    assert [given.note for given in result.inputs] == ["holds no complete tick"]
    assert result.findings == ()


def test_a_recording_that_is_cut_or_from_the_future_is_judged_and_says_so(storm, put):
    path = put("cut.rec", storm.read_bytes()[:-30])
    result = investigate([path], "", LATER - 100 * 86_400_000, rules)
    assert [given.note for given in result.inputs] == [
        f"it begins 99 days from now: one of the two clocks is wrong; {CUT}"
    ]
    assert result.findings[0].id == "kv_preemption_storm"


def test_progress_is_told_with_the_size_of_the_file(put):
    steps = []
    path = put("log", "INFO 11-29 10:00:00 [a.py:1] x\n" * 100_000)
    investigate([path], "", NOW, rules, lambda *step: steps.append(step))
    size = Path(path).stat().st_size
    assert {step[0] for step in steps} == {path}
    assert steps[-1][1:] == (size, size)
    assert len(steps) >= 3


def test_what_a_recording_could_not_be_judged_on_at_its_end_is_said_though_it_was_before(tmp_path):
    path = tmp_path / "end.rec"
    writer = Writer(path, Header("node", scenario.START, 1.0, "test"))
    for second in range(60):
        writer.write(scenario.page(second, scenario.STORM[0]) if second < 50 else scenario.down(second))
        writer.tick(scenario.START + 1000 * second)
    writer.close()
    missing = {item.id: item.missing for item in investigate([str(path)], "", LATER, rules).not_enough}
    assert missing["queue_growth"] == "judged before, and not at the end: the engine does not answer"
    assert "judged before" not in missing["gpu_lost"]
