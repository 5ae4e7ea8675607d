from __future__ import annotations

import gzip
import json
from itertools import pairwise

import pytest
from unit.pipeline import scenario
from unit.report.runs import START

from gpuwatch.alerts.rulefile import RuleSet, load, shipped_paths
from gpuwatch.diagnosis.finding import Advice, Evidence, Finding, NotEnough
from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.pipeline.run_data import collect
from gpuwatch.pipeline.verdicts import Verdicts, digest, read
from gpuwatch.recording import Header, Keep, Reader, Writer


@pytest.fixture(scope="module")
def rules():
    return load(shipped_paths())


@pytest.fixture(scope="module")
def stormy(tmp_path_factory, rules):
    """A recording as a live run writes it: a storm, and half a minute of rest after it."""
    path = tmp_path_factory.mktemp("live") / "storm.rec"
    writer = Writer(path, Header("node", scenario.START, 1.0, "test"))
    ticks = scenario.storm()
    rest = [
        (ticks[-1][0] + 1000 * second, [scenario.page(len(ticks) + second, scenario.STORM[-1])]) for second in range(30)
    ]
    pipeline = Pipeline(Settings("node"), rules, scenario.START)
    for time, batches in [(ticks[0][0], [scenario.LAUNCH, *ticks[0][1]]), *ticks[1:], *rest[1:]]:
        pipeline.tick(time, batches, writer)
    writer.close()
    return path


def lines(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def brief(data):
    return [(f.id, f.severity, f.title, f.caused_by, f.state, f.since, f.labels) for f in data.findings]


def test_what_was_found_live_is_what_a_replay_finds(stormy, rules):
    live, replayed = collect(stormy, rules), collect(stormy, rules, replayed=True)
    assert brief(live) == brief(replayed)
    assert live.episodes == replayed.episodes
    assert "kv_preemption_storm" in [finding.id for finding in live.findings]
    assert live.not_enough == replayed.not_enough != ()
    assert live.engines == replayed.engines


def test_lines_come_at_the_start_at_changes_and_every_ten_seconds(stormy):
    found = [line for line in lines(stormy) if "found" in line]
    assert found[0]["found"] == scenario.START
    assert found[0]["findings"] == []
    assert found[0]["not_enough"]
    states = [[finding["id"] for finding in line["findings"]] for line in found]
    for before, after in pairwise(found[1:]):
        same = [f["id"] for f in before["findings"]] == [f["id"] for f in after["findings"]]
        assert not same or after["found"] - before["found"] >= 10_000 or "not_enough" in after
    assert ["kv_preemption_storm" in ids for ids in states].count(True) >= 2


def test_other_rules_are_not_believed(stormy, rules):
    assert collect(stormy, RuleSet()).findings == ()


def test_a_recording_without_such_lines_is_replayed(stormy, tmp_path, rules):
    path = tmp_path / "old.rec"
    text = b"\n".join(json.dumps(line).encode() for line in lines(stormy) if "found" not in line) + b"\n"
    path.write_bytes(gzip.compress(text))
    assert brief(collect(path, rules)) == brief(collect(stormy, rules))


@pytest.mark.parametrize("damage", [{"findings": 3}, {"findings": [{}]}, {"by": "0.0.0"}, {"not_enough": [1]}])
def test_a_damaged_line_leads_to_a_replay(stormy, tmp_path, rules, damage):
    path = tmp_path / "odd.rec"
    text = b"\n".join(json.dumps(line | damage if "found" in line else line).encode() for line in lines(stormy)) + b"\n"
    path.write_bytes(gzip.compress(text))
    assert brief(collect(path, rules)) == brief(collect(stormy, rules))


def test_each_part_says_it_anew(tmp_path, rules):
    path = tmp_path / "a.rec"
    writer = Writer(path, Header("node", START, 1.0, "test"), Keep(seconds=480))
    pipeline = Pipeline(Settings("node"), rules, START)
    for second in range(0, 200, 5):
        pipeline.tick(START + 1000 * second, [scenario.page(second, scenario.STORM[0])], writer)
    writer.close()
    parts = sorted(path.parent.glob("a.rec*"))
    assert len(parts) >= 3
    for part in parts:
        assert next(line for line in lines(part) if "found" in line)["not_enough"]
    assert collect(path, rules).ticks == 40


def test_a_finding_comes_back_as_it_was(tmp_path):
    finding = Finding(
        "queue_growth", "warning", "t", "c", 0.5,
        (Evidence("e", "log", 3, "n", float("inf"), "bytes"), Evidence("f", value="x")),
        (Advice("a", "--flag", None, "2"),), "kv_preemption_storm", "firing", START, None, {"server": "s"},
    )  # fmt: skip
    missing = NotEnough("cpu_bound", "a log", {"server": "s"})
    path = tmp_path / "a.rec"
    writer = Writer(path, Header("node", START, 1.0, "test"))
    writer.tick(START)
    Verdicts(RuleSet()).note(writer, START, [finding], (missing,), first=True)
    writer.tick(START + 1000)
    writer.close()
    _, tick = Reader(path).ticks()
    time, (back,), not_enough = read(tick.found, digest(RuleSet()))
    assert (time, not_enough) == (START, (missing,))
    assert back.evidence[0].value == "inf"
    assert (back.id, back.labels, back.advice, back.evidence[1]) == (
        finding.id, finding.labels, finding.advice, finding.evidence[1],
    )  # fmt: skip


def test_what_was_found_at_the_last_tick_is_known(tmp_path):
    path = tmp_path / "a.rec"
    writer = Writer(path, Header("node", START, 1.0, "test"))
    writer.tick(START)
    writer.found(START, {"x": 1})
    writer.close()
    reader = Reader(path)
    assert [tick.found for tick in reader.ticks()] == [None]
    assert reader.found == {"found": START, "x": 1}
