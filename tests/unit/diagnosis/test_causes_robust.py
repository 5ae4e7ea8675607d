"""Whatever stands in files: causes are judged without an error, and none without evidence."""

from __future__ import annotations

import random
import re

import pytest

from gpuwatch.diagnosis.causes import judge
from gpuwatch.diagnosis.causes.course import courses
from gpuwatch.diagnosis.causes.incident import Incident, Input
from gpuwatch.diagnosis.causes.view import View
from gpuwatch.engines.facts import FACTS
from gpuwatch.engines.flags import FLAGS
from gpuwatch.engines.logs import PATTERNS
from gpuwatch.model import Fact, LogEvent, series
from gpuwatch.series import METRICS

GROUPS: dict[str, list[tuple[str, list[str]]]] = {}
for pattern in PATTERNS:
    event = "stats" if pattern.kind == "stats" else pattern.event
    if event:
        GROUPS.setdefault(event, []).append((pattern.name, sorted(re.compile(pattern.regex).groupindex)))
KEYS = [
    *FACTS,
    *sorted(f"flag.{name}" for table in FLAGS.values() for name in table),
    *("weights.bytes.TP0", "weights.bytes.TP1", "kv.bytes.TP0", "kv.bytes.TP1", "page.names"),
]
VALUES = [0, 1, -1, 8, 16.5, 0.9, True, False, 2**33, float("inf"), "", "x", "None", "auto", "vllm", "sglang", "fp8"]
VALUES += ["0.6.5", "0.24.0", 'vllm serve m --foo --gpu-memory-utilization 0.5 "unclosed']
TEXTS = ["", "0", "1", "-1", "16", "0.5", "1e9", "137", "9" * 30, "x", ".", "None", "16.00 GiB", "1.00 MiB", "SIGKILL"]
TEXTS += ["VLLM::EngineCore", "pid,rss,args", "  12 5000 VLLM::Worker_TP0", "index, memory.used [MiB]", "0, [N/A]"]
LINES = ["", "died unexpectedly", "Input prompt (", "out of memory", "fatal error"]
FILES = ["a.log", "b.txt", "--flags"]


def incident(rng: random.Random) -> Incident:
    files = FILES[: rng.randint(1, 3)]
    line = [0, *range(1, 300)]
    facts = [Fact(rng.choice(KEYS), rng.choice(VALUES), rng.choice(files), rng.choice(line)) for _ in range(20)]
    events = []
    for _ in range(rng.randint(0, 25)):
        name = rng.choice(sorted(GROUPS))
        pattern, groups = rng.choice(GROUPS[name])
        fields = [(group, rng.choice(TEXTS)) for group in groups if rng.random() < 0.7]
        fields += [("pattern", pattern)] if name == "stats" else []
        events.append(LogEvent(name, rng.choice(LINES), rng.choice(files), rng.choice(line), 0, "", tuple(fields)))
    samples = []
    for _ in range(rng.randint(0, 20)):
        labels = {"gpu": rng.choice("01"), "pid": rng.choice("78"), "dp_rank": rng.choice(["", "0", "1"])}
        value = rng.choice([0.0, 1.0, 0.95, 5e9, -1.0, float("nan")])
        samples.append((rng.choice(files), series(rng.choice(sorted(METRICS)), **labels), value, rng.choice([0, 5000])))
    config = rng.choice([None, {}, {"max_position_embeddings": "x"}, {"num_key_value_heads": 1, "rope_scaling": "x"}])
    kinds = ["metrics", "engine_log", "kubernetes", "flags"]
    inputs = tuple(Input(name, rng.choice(kinds)) for name in files)
    return Incident(inputs, tuple(facts), tuple(events), tuple(samples), config)


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_of_lines_facts_and_samples_is_judged(seed):
    rng = random.Random(seed)
    for _ in range(15):
        findings, not_enough = judge(incident(rng))
        assert len({finding.id for finding in findings}) == len(findings)
        for finding in findings:
            assert finding.evidence
            assert finding.advice
            assert 0 < finding.confidence < 1
        assert all(each.missing for each in not_enough)


def test_nothing_at_all_has_no_finding():
    assert judge(Incident((), (), ())) == ((), ())


def test_the_course_of_the_load_is_worked_out_once_for_a_view():
    lines = tuple(
        LogEvent("stats", "", "a.log", at, at * 1000, "", (("pattern", "stats"), ("run", "3"), ("kv", "50.0")))
        for at in range(3)
    )
    view = View(Incident((), (), lines))
    (course,) = courses(view)
    assert [point.running for point in course.points] == [3.0, 3.0, 3.0]
    assert courses(view) is courses(view)
