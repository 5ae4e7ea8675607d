from __future__ import annotations

import json
import math
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.tui import scenes

from gpuwatch.diagnosis.finding import Advice, Evidence, Finding, NotEnough
from gpuwatch.exporter.snapshot_json import SCHEMA, SnapshotError, decode, encode
from gpuwatch.model import Absence, Fact, LogLine, Reason
from gpuwatch.snapshot import Answer, Recording, RuleView, Snapshot, SourceState

NUMBERS = st.floats(allow_nan=False)
TEXT = st.text(max_size=12)
INTS = st.integers(-(2**53), 2**53)
NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=6)
LABELS = st.dictionaries(NAMES, st.text(min_size=1, max_size=8), max_size=3)
SERIES = LABELS.map(lambda labels: tuple(sorted(labels.items())))
SCALARS = NUMBERS | TEXT | st.none() | INTS | st.booleans()
SMALL = {"max_size": 2}

ANSWERS = st.builds(Answer, st.lists(st.tuples(SERIES, NUMBERS), **SMALL).map(tuple), TEXT)
EVIDENCE = st.builds(Evidence, TEXT, TEXT, st.none() | INTS, TEXT, NUMBERS | TEXT | st.none(), TEXT)
ADVICE = st.builds(Advice, TEXT, TEXT, st.none() | TEXT, st.none() | TEXT)
FINDINGS = st.builds(
    Finding,
    TEXT,
    st.sampled_from(["info", "warning", "critical"]),
    TEXT,
    TEXT,
    NUMBERS,
    st.lists(EVIDENCE, **SMALL).map(tuple),
    st.lists(ADVICE, **SMALL).map(tuple),
    st.none() | TEXT,
    st.sampled_from(["pending", "firing", "resolved"]),
    INTS,
    st.none() | INTS,
    LABELS,
)
RULES = st.builds(
    RuleView,
    TEXT,
    TEXT,
    TEXT,
    st.sampled_from(["ok", "pending", "firing", "not_evaluable", "error"]),
    TEXT,
    TEXT,
    TEXT,
    st.lists(st.tuples(TEXT, NUMBERS, NUMBERS), **SMALL).map(tuple),
    INTS,
    INTS,
)
SOURCES = st.builds(SourceState, TEXT, TEXT, st.booleans(), TEXT, TEXT, st.none() | NUMBERS, TEXT, TEXT, TEXT)
SNAPSHOTS = st.builds(
    Snapshot,
    INTS,
    INTS,
    TEXT,
    st.sampled_from(["live", "demo", "replay", "attached", "prometheus"]),
    NUMBERS,
    st.dictionaries(NAMES, ANSWERS, **SMALL),
    st.lists(FINDINGS, **SMALL).map(tuple),
    st.lists(st.builds(NotEnough, TEXT, TEXT, LABELS), **SMALL).map(tuple),
    st.lists(RULES, **SMALL).map(tuple),
    st.lists(SOURCES, **SMALL).map(tuple),
    st.lists(st.builds(Absence, SERIES, st.sampled_from(Reason), TEXT), **SMALL).map(tuple),
    st.lists(st.builds(LogLine, TEXT, INTS, INTS, TEXT, TEXT, TEXT), **SMALL).map(tuple),
    st.lists(
        st.builds(Fact, TEXT, SCALARS.filter(lambda x: x is not None), TEXT, st.none() | INTS, st.none() | INTS, TEXT),
        **SMALL,
    ).map(tuple),
    st.none() | st.builds(Recording, TEXT, INTS, TEXT, NUMBERS, NUMBERS, st.booleans()),
    st.lists(st.tuples(TEXT, TEXT), **SMALL).map(tuple),
    st.lists(TEXT, **SMALL).map(tuple),
    st.none() | st.tuples(TEXT, TEXT),
    TEXT,
)


@given(SNAPSHOTS)
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_read_back(snapshot):
    assert decode(encode(snapshot)) == snapshot


@pytest.mark.parametrize("name", ["storm", "calm", "two_ranks", "sixteen", "troubled", "empty", "hostile", "demo"])
def test_what_the_screen_is_tested_with_looks_the_same_afterwards(name):
    snapshot = getattr(scenes, name)()
    back = decode(encode(snapshot))
    assert back == snapshot


def test_numbers_that_json_does_not_have_come_back_as_numbers():
    labels = (("a", "b"),)
    values = (math.inf, -math.inf, math.nan)
    snapshot = Snapshot(
        1,
        1,
        "h",
        "live",
        1.0,
        answers={"q": Answer(tuple((labels, value) for value in values))},
        facts=tuple(Fact("k", value, "s") for value in (*values, "NaN", "+Inf")),
        sources=(SourceState("nvml", "nvml", up=True, age=math.inf),),
    )
    document = encode(snapshot)
    json.loads(document, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    back = decode(document)
    assert [value for _, value in back.answers["q"].samples][:2] == [math.inf, -math.inf]
    assert math.isnan(back.answers["q"].samples[2][1])
    assert [fact.value for fact in back.facts][:2] == [math.inf, -math.inf]
    assert math.isnan(back.facts[2].value)
    assert [fact.value for fact in back.facts][3:] == ["NaN", "+Inf"]
    assert back.sources[0].age == math.inf


def test_a_log_line_that_is_no_utf8_survives():
    snapshot = Snapshot(1, 1, "h", "live", 1.0, lines=(LogLine("a\udcff", 1, 2, "", "b\udcfe"),))
    assert decode(encode(snapshot)) == snapshot


def test_the_document_names_its_schema_and_writes_findings_as_check_does():
    advice = Advice("fewer", "--max-num-seqs", "16", "2")
    finding = Finding("kv_preemption_storm", "critical", "t", "c", 0.9, (Evidence("seen", value=1.5),), (advice,))
    data = json.loads(encode(Snapshot(1, 1, "h", "live", 1.0, findings=(finding,))))
    assert data["schema"] == SCHEMA == 1
    assert data["gpuwatch"]
    assert data["findings"][0]["advice"] == [{"text": "fewer", "flag": "--max-num-seqs", "from": "16", "to": "2"}]
    assert set(data["findings"][0]) == {
        "id", "severity", "title", "cause", "confidence", "evidence", "advice", "caused_by", "state", "since", "until",
        "labels",
    }  # fmt: skip


def test_unknown_keys_are_left_out_and_missing_ones_take_their_default():
    snapshot = decode('{"schema": 1, "time": 5, "started": 4, "host": "h", "mode": "live", "interval": 2, "new": [1]}')
    assert snapshot == Snapshot(5, 4, "h", "live", 2.0)


BASE = b'{"schema": 1, "time": 1, "started": 1, "host": "h", "mode": "live", "interval": 1, '


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"<html>", "the answer is not JSON"),
        (b"\xff\xfe", "the answer is not JSON"),
        (b"[" * 100_000, "the answer is not JSON"),
        (b"[]", "the answer is no snapshot of gpuwatch"),
        (b"{}", "the answer is no snapshot of gpuwatch"),
        (b'{"schema": 2, "gpuwatch": "9.9"}', "gpuwatch 9.9 answers with snapshots of schema 2; this is gpuwatch "),
        (b'{"schema": 1}', "the snapshot is damaged: TypeError"),
        (
            b'{"schema": 1, "time": 1, "started": 1, "host": "h", "mode": "sideways", "interval": 1}',
            "the snapshot is damaged: ValueError: 'sideways' is none of live, demo",
        ),
        (
            b'{"schema": 1, "time": "now", "started": 1, "host": "h", "mode": "live", "interval": 1}',
            "the snapshot is damaged: TypeError: time is no int",
        ),
        (
            BASE + b'"findings": [{"id": 7}]}',
            "the snapshot is damaged: TypeError: id is no str",
        ),
        (
            BASE + b'"answers": {"q": {"samples": [[[], 1]]}}}',
            "the snapshot is damaged: AttributeError",
        ),
        (
            BASE + b'"answers": {"q": {"samples": [[{}, "many"]]}}}',
            "the snapshot is damaged: KeyError",
        ),
    ],
)
def test_what_is_no_snapshot_is_one_line(document, message):
    with pytest.raises(SnapshotError) as error:
        decode(document)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
