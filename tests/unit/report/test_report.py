from __future__ import annotations

import gzip
import json
import lzma
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from unit.report.runs import GIB, START, page, record, run, steady, window

from gpuwatch.cli import main
from gpuwatch.diagnosis.finding import Advice, Evidence, Finding, NotEnough
from gpuwatch.report import html, markdown, probes, run_report, svg
from gpuwatch.report.data import Curve, EngineRun, EngineStart, GpuRun, RunData, Setting
from gpuwatch.report.document import Document, Figure, Heading, Items, Lines, Table, Text
from gpuwatch.report.probes import ProbeData, ProbeFileError, read
from gpuwatch.report.run_report import verdict
from gpuwatch.report.starts import pooled

HOSTILE = "<script>alert(1)</script>\x1b[31m|`*_[x](http://e.example)"

STORM = Finding(
    id="kv_preemption_storm",
    severity="critical",
    title="Requests are thrown out",
    cause="The pool holds 2 requests.",
    confidence=0.9,
    evidence=(Evidence("26 preemptions in 60 s", "vllm.log", 58),),
    advice=(Advice("admit only what fits", "--max-num-seqs", "16", "2"),),
    state="resolved",
    since=START + 20_000,
    until=START + 61_000,
    labels={"server": "127.0.0.1:8000"},
)
SYMPTOM = replace(
    STORM,
    id="queue_growth",
    severity="warning",
    title="The queue grows",
    caused_by="kv_preemption_storm",
    advice=(Advice("add replicas"),),
)


class Page(HTMLParser):
    """The parts of a page that a test asks about."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


def full(**changes):
    """A run with everything that a report can show."""
    base = run("load.rec", seed=1, flags=(("--max-num-seqs", "16"),), findings=(STORM, SYMPTOM))
    (engine,) = base.engines
    times = tuple(START + 1000 * second for second in range(300))
    curves = {name: Curve(times, tuple(float(second % 7) for second in range(300))) for name in ("running", "waiting")}
    levels = tuple(window(number, running=[1, 2, 4, 8][number % 4]) for number in range(60))
    gpu = GpuRun(
        "0", "GPU-1", "H100", "580.95", 80 * GIB, Curve(times, (60 * GIB,) * 300), 64 * GIB, START + 17_000,
        (("weights", 16 * GIB), ("kv_used", 40 * GIB), ("free", 24 * GIB)), (("reserved", GIB),),
    )  # fmt: skip
    return replace(
        base,
        engines=(replace(engine, curves=curves, windows=levels),),
        gpus=(gpu,),
        not_enough=(NotEnough("tp_straggler", "a second GPU"),),
        **changes,
    )


def page_of(data, *probes):
    return html.write(run_report.build(data, probes, "gpuwatch 1"))


def test_a_page_needs_nothing_else():
    text = page_of(full())
    shown = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(shown.tags)
    assert not [item for item in shown.attributes if item[1] in ("src", "srcset", "data") or item[1].startswith("on")]
    assert all(value.startswith("#") for _, name, value in shown.attributes if name in ("href", "xlink:href"))
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_each_section_is_there_and_the_menu_leads_to_it():
    shown = Page(page_of(full()))
    anchors = {value for _, name, value in shown.attributes if name == "id"}
    assert {value[1:] for tag, name, value in shown.attributes if tag == "a" and name == "href"} == anchors
    for section in (
        "What to change next", "What ran", "Findings", "Load and latency", "Against concurrency", "GPU memory",
        "Memory ledger at the peak", "Flags and versions", "Could not be judged",
    ):  # fmt: skip
        assert section in shown.words


def test_every_picture_is_well_formed():
    text = page_of(full())
    pictures = text.split("<svg")[1:]
    assert len(pictures) >= 9
    for picture in pictures:
        ET.fromstring("<svg" + picture.split("</svg>")[0] + "</svg>")


def test_the_verdict_names_the_worst_finding_with_its_time():
    assert run_report.verdict(full()).text.startswith("Critical: kv_preemption_storm, 0:20 to 1:01.")


def test_nothing_found_and_nothing_judged_are_different_verdicts():
    fine = run_report.verdict(run("a", seed=1))
    assert (fine.tone, fine.text) == ("good", "Nothing wrong was found in 5 min with 1 engine.")
    nothing = run_report.verdict(RunData("a", "node", START, START, 1.0, 1, "test"))
    assert (nothing.tone, "Nothing was judged" in nothing.text) == ("warning", True)


def test_advice_of_symptoms_is_left_to_their_cause():
    (items,) = [block for block in run_report.build(full()).blocks if isinstance(block, Items)]
    assert items.items == ("--max-num-seqs 16 → 2: admit only what fits (kv_preemption_storm)",)


def test_foreign_text_can_do_no_harm_in_a_page():
    finding = replace(STORM, title=HOSTILE, cause=HOSTILE, labels={"server": HOSTILE})
    engine = replace(full().engines[0], model=HOSTILE, settings=(Setting("--model", HOSTILE, HOSTILE),))
    data = replace(full(), name=HOSTILE, host=HOSTILE, note=HOSTILE, findings=(finding,), engines=(engine,))
    text = page_of(data)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "script" not in Page(text).tags


def test_foreign_text_can_do_no_harm_in_markdown():
    data = replace(full(), host=HOSTILE, findings=(replace(STORM, title=HOSTILE),))
    text = markdown.write(run_report.build(data))
    assert "<script" not in text.replace("\\<", "")
    assert not re.search(r"(?<!\\)[\]\[<`]", re.sub(r"</?sub>|`[a-z_]+`", "", text))
    assert "\x1b" not in text
    assert "\\|" in text


def test_keys_and_prompts_are_cut_out_of_both_forms():
    leaky = replace(
        STORM, cause='it said "prompt": "my secret plan"', evidence=(Evidence("api_key=sk-abcdefghijklmnopqrst"),)
    )
    document = run_report.build(full(), (), "")
    document = replace(document, blocks=(*document.blocks, Text("Bearer abcdefghijklmnopqrstuvwxyz")))
    data = replace(full(), findings=(leaky,))
    for text in (page_of(data), markdown.write(run_report.build(data)), html.write(document), markdown.write(document)):
        assert "secret plan" not in text
        assert "abcdefghijklmnopqrst" not in text


def test_markdown_keeps_each_table_whole():
    text = markdown.write(
        Document("t", "s", (Heading("h"), Table(("a", "b"), (("1|2", "x"), ("y", "z")), 1), Lines(("```",))))
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows == ["| a | b |", "|---|---:|", "| 1\\|2 | x |", "| y | z |"]
    assert text.count("```") == 2


def test_a_picture_is_a_row_of_characters_in_markdown():
    text = markdown.write(
        Document("t", "s", (Figure("Tokens", "<svg></svg>", (), (("all", "▁█ 0 to 5"),)), Figure("none", "<svg/>")))
    )
    assert "| all | ▁█ 0 to 5 |" in text
    assert "svg" not in text


def test_an_engine_without_work_says_so():
    data = replace(run("a", seed=1), engines=(EngineRun("h:1", "0", "vllm", "m", ""),))
    assert "had nothing to do" in page_of(data)


def test_a_line_is_broken_where_nothing_was_seen():
    points = tuple((float(x), 1.0) for x in (0, 1, 2, 3, 30, 31, 32))
    assert [len(part) for part in svg.stretches(points)] == [4, 3]
    assert [len(part) for part in svg.stretches([(0.0, 1.0), (1.0, float("inf")), (2.0, 1.0)])] == [1, 1]


@pytest.mark.parametrize(
    ("highest", "unit", "last", "count"),
    [
        (97.0, "count", 100, 5),
        (0.0, "count", 1, 5),
        (1.0, "ratio", 1.0, 5),
        (80 * GIB, "bytes", 80 * GIB, 5),
        (7.3, "seconds", 8, 5),
    ],
)
def test_an_axis_has_round_ticks_that_reach_the_highest_value(highest, unit, last, count):
    ticks = svg.y_ticks(highest, unit)
    assert (ticks[0], ticks[-1], len(ticks)) == (0, last, count)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61, "1:01"), (3725, "1:02:05")])
def test_times_since_the_start(seconds, text):
    assert svg.clock_text(seconds) == text


def test_a_sparkline_shows_the_highest_of_each_part():
    assert svg.sparkline([0, 1, 2, 4, 8]) == "▁▁▂▄█"
    assert len(svg.sparkline([1.0] * 1000)) <= 41
    assert svg.sparkline([]) == ""


RESULT = {
    "schema": 1,
    "probe": "ramp",
    "server": {"url": "http://127.0.0.1:8000", "engine": "vllm", "version": "0.32.0", "model": "tiny"},
    "started": 1_700_000_000,
    "complete": False,
    "stopped_because": "the deadline came",
    "facts": [{"name": "breaking_point", "value": 5120, "unit": "tokens"}],
    "rows": [
        {"prompt_tokens": 1024 * 2**step, "concurrency": concurrency, "ttft_s": 0.1 * 2**step, "preemptions": None}
        for step in range(3)
        for concurrency in (1, 4)
    ],
    "findings": [{"id": "silent_truncation", "severity": "warning", "title": "Prompts are cut", "cause": "Counted."}],
    "conclusion": ["The pool ends at 5,120 tokens."],
    "advice": [{"text": "a larger pool", "flag": "--max-model-len", "from": "4096", "to": "2048"}],
    "drawing": ["▁▃█"],
}


def test_the_result_of_a_probe_is_shown(tmp_path):
    path = tmp_path / "ramp.json"
    path.write_text(json.dumps(RESULT))
    shown = Page(page_of(full(), read(path))).text
    for part in (
        "Probe ramp", "Not complete: the deadline came", "The pool ends at 5,120 tokens.", "5,120 tokens",
        "silent_truncation: Prompts are cut. Counted.", "Time to first token by prompt length in tokens",
        "concurrency 4", "▁▃█", "--max-model-len 4096 → 2048: a larger pool (probe ramp)", "400 ms",
    ):  # fmt: skip
        assert part in shown, part
    assert "preemptions" not in shown.split("Probe ramp")[1].split("Flags")[0]  # nothing is known of it in any row


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not the result of a probe"),
        ('{"probe": "ramp", "schema": 2}', "schema 2; this program reads schema 1"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_result_of_a_probe_is_refused(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ProbeFileError, match=message):
        read(path)


def probed(**changes):
    finding = {"severity": "critical", "title": "It does not fit", "cause": "Too long."}
    finding |= {"id": "max_model_len_exceeds_kv", "advice": [{"text": "or accept less", "flag": "--max-model-len"}]}
    return ProbeData("ramp", RESULT | {"findings": [finding], "advice": [], **changes})


def test_findings_of_probes_count_in_the_verdict_and_their_advice_is_read():
    quiet = full(findings=())
    text = verdict(quiet, (probed(), probed())).text
    assert text == "Critical: max_model_len_exceeds_kv, found by probe ramp. It does not fit."
    assert probes.advice((probed(),)) == ["--max-model-len: accept less (probe ramp)"]
    known = full()
    (worst,) = {finding.severity for finding in known.findings if finding.severity == "critical"} or {"warning"}
    assert ("found by probe" in verdict(known, (probed(),)).text) == (worst == "warning")
    assert verdict(quiet, (probed(findings=[]),)).tone == "good"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"facts": [{"name": "verdict", "value": "fails", "unit": ""}], "conclusion": ["The model fails: 0 of 56."]},
            "Probe ramp: The model fails: 0 of 56.",
        ),
        (
            {
                "facts": [{"name": "broke_how_at_1", "value": "failed", "unit": ""}],
                "conclusion": ["The server failed."],
            },
            "Probe ramp: The server failed.",
        ),
        ({"facts": [], "stopped_because": "the server is gone"}, "Probe ramp ended early: the server is gone."),
        ({"facts": [{"name": "verdict", "value": "passes", "unit": ""}]}, ""),
        ({"facts": [{"name": "broke_how_at_3", "value": "queued", "unit": ""}]}, ""),
    ],
)
def test_what_a_probe_says_against_the_model_is_in_a_verdict_that_finds_nothing_else(changes, words):
    text = verdict(full(findings=()), (probed(findings=[], **changes),))
    assert text.tone == ("warning" if words else "good")
    assert ("in the recording" in text.text, words in text.text) == (bool(words), True)


def test_a_finding_that_began_while_a_probe_ran_is_named_and_its_advice_comes_last():
    found = replace(STORM, severity="info", since=START + 20_000)
    inside = probed(started=START / 1000 + 10, seconds=15.0)
    text = markdown.write(run_report.build(full(findings=(found,)), (inside,)))
    assert "begun while probe ramp ran: its requests may be the cause" in text
    items = [line for line in text.splitlines() if line[:2] in ("1.", "2.")]
    assert "accept less (probe ramp)" in items[0]
    assert "begun while probe ramp ran" in items[1]
    for outside in ({"seconds": 9.0}, {}):
        data = probed(started=START / 1000 + 10, **outside)
        assert "begun while" not in markdown.write(run_report.build(full(findings=(found,)), (data,)))


def test_latencies_within_the_first_bucket_are_bounds_with_a_mean_and_are_not_plotted():
    data = run("quick", seed=1, ttft=0.025)
    text = markdown.write(run_report.build(data))
    assert "| time to first token | p50 ≤ 100 ms, p95 ≤ 100 ms, p99 ≤ 100 ms, mean 25 ms (240 observed) |" in text
    figures = [block for block in run_report.build(data).blocks if isinstance(block, Figure)]
    (plotted,) = (block for block in figures if block.caption == "Time to first token")
    assert [label for label, _ in plotted.text] == ["mean"]
    assert "| ≤ 100 ms | ≤ 100 ms |" in next(line for line in text.splitlines() if line.startswith("| 5-8 |"))


def test_each_start_of_an_engine_is_listed_with_its_flags_and_the_time_in_which_it_answered():
    base = full()
    starts = (
        EngineStart(START, (START + 2000, START + 60_000), (Setting("--max-num-seqs", "16"),)),
        EngineStart(START + 80_000, None, (Setting("--max-num-seqs", "2"), Setting("--enforce-eager", ""))),
    )
    text = markdown.write(run_report.build(replace(base, engines=(replace(base.engines[0], starts=starts),))))
    assert "| start 1 | answered from 0:02 to 1:00: --max-num-seqs 16 |" in text
    assert "| start 2 | from 1:20, never answered: --max-num-seqs 2 --enforce-eager |" in text
    assert (
        "was started 2 times, with other flags (--max-num-seqs 16 → 2; --enforce-eager not given → given): it "
        "answered in one of them only." in text
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("64", "128", "64"), "with other flags (--max-num-seqs 64 → 128 → 64): load"),
        (("64", "64", "128"), "with other flags (--max-num-seqs 64 → 128): load"),
        (("64", "", "64"), "with the same flags as far as was seen; flags not known of 1: load"),
        (("", "", "64"), "with flags that are known of one of them: load"),
        (("", "", ""), "with flags that are known of none of them: load"),
    ],
)
def test_flags_of_a_start_that_are_not_known_are_not_called_absent(values, said):
    starts = tuple(
        EngineStart(START, (START, START + 1000), (Setting("--max-num-seqs", value),) if value else ())
        for value in values
    )
    engine = full().engines[0]
    ranks = tuple(replace(engine, rank=rank, starts=starts) for rank in "012")
    (text,) = pooled(ranks)
    assert text.startswith(f"{engine.server} was started 3 times, {said}")
    written = markdown.write(run_report.build(replace(full(), engines=ranks)))
    assert written.count("| start 1 |") == 1


def test_what_was_judged_before_the_end_is_told_apart_from_what_never_was():
    data = replace(full(), not_at_end=(NotEnough("queue_growth", "does not answer"),))
    text = markdown.write(run_report.build(data))
    assert "| tp\\_straggler | a second GPU |" in text
    assert "Judged before, and not at the end any more (does not answer): queue\\_growth." in text
    assert "| queue\\_growth" not in text


def test_ticks_of_an_axis_are_written_in_full():
    assert [svg.tick_text(value, "tokens/s", 20_000) for value in (0, 2500, 12_500, 20_000)] == [
        "0",
        "2,500",
        "12,500",
        "20,000",
    ]


def test_figures_that_a_ramp_made_itself_are_named_where_it_ran_in_the_recording():
    rows = [{"concurrency": 1, "prompt_tokens": 1024}, {"concurrency": 4, "prompt_tokens": 1024}]
    inside, outside = START / 1000 + 10, START / 1000 - 10
    text = Page(page_of(full(), probed(started=inside, rows=rows))).text
    assert "Probe ramp ran during this recording." in text
    assert "not in requests finished and arrival to last token" in text
    for other in (
        probed(started=outside, rows=rows),
        probed(started=inside, rows=rows[:1]),
        ProbeData("prefix", probed(started=inside, rows=rows).data),
        probed(started=None, rows=rows),
    ):
        assert "ran during this recording" not in Page(page_of(full(), other)).text


def test_a_flag_without_a_value_keeps_its_name_and_an_advice_stands_once():
    item = {"text": "make the pool larger", "flag": "--gpu-memory-utilization", "from": None, "to": None}
    other = {"text": "accept less", "flag": "--max-model-len", "from": "4096", "to": "2048"}
    data = probed(findings=[{"id": "x", "severity": "warning", "advice": [item]}], advice=[item, other])
    assert probes.advice((data,)) == [
        "--gpu-memory-utilization: make the pool larger (probe ramp)",
        "--max-model-len 4096 → 2048: accept less (probe ramp)",
    ]


@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_a_recording_that_is_not_packed_or_packed_otherwise_is_read(tmp_path, capsys, pack):
    packed = record(tmp_path / "a.rec", steady(5)).read_bytes()
    (tmp_path / "b.rec").write_bytes(pack(gzip.decompress(packed)))
    assert main(["report", str(tmp_path / "b.rec")]) == 0
    out = capsys.readouterr().out
    assert "b.rec" in out.splitlines()[0]
    assert "gpuwatch-" not in out


@pytest.mark.parametrize(
    "damage", [{"facts": [1, ["a"], {}]}, {"rows": [1, {}]}, {"server": None}, {"advice": [3]}, {"started": "x"}]
)
def test_a_result_with_odd_parts_is_shown_without_them(tmp_path, damage):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(RESULT | damage))
    assert "Probe ramp" in page_of(full(), read(path))


@pytest.mark.parametrize("number", ["1e20", "NaN", "-1e18", "Infinity", "1" + 400 * "0"])
def test_numbers_of_a_probe_that_say_nothing_are_not_shown_and_do_no_harm(tmp_path, number):
    path = tmp_path / "x.json"
    odd = {"started": "ODD", "rows": [*RESULT["rows"], {**RESULT["rows"][0], "ttft_s": "ODD", "prompt_tokens": "ODD"}]}
    path.write_text(json.dumps(RESULT | odd).replace('"ODD"', number))
    page = page_of(full(), read(path))
    assert "Probe ramp" in page
    for picture in page.split("<svg")[1:]:
        assert "nan" not in picture.split("</svg>")[0]
        ET.fromstring("<svg" + picture.split("</svg>")[0] + "</svg>")


def test_json_has_the_results_of_probes(tmp_path, capsys):
    path = tmp_path / "ramp.json"
    path.write_text(json.dumps(RESULT)[:-1] + ', "odd": NaN}')
    recording = str(record(tmp_path / "a.rec", steady(5)))
    assert main(["report", recording, "--probe", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["probes"] == [RESULT | {"odd": None}]
    assert main(["report", recording, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["probes"] == []


def test_times_of_a_report_have_their_zone(monkeypatch):
    monkeypatch.setenv("TZ", "UTC-3")
    time.tzset()
    try:
        text = markdown.write(run_report.build(run("a", seed=1), (probed(started=START / 1000),)))
    finally:
        monkeypatch.undo()
        time.tzset()
    # 1,700,000,000 s is 2023-11-14 22:13:20 UTC, three hours later there; the run has five minutes.
    assert "2023-11-15 01:13:20 +0300 to 01:18:20 +0300" in text
    assert text.count("2023-11-15 01:13:20 +0300") == 3  # head, what ran, the probe


def test_the_command_writes_a_page_and_markdown(tmp_path, capsys):
    recording = str(record(tmp_path / "a.rec", steady(20)))
    assert main(["report", recording, "-o", str(tmp_path / "a.html")]) == 0
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["report", recording]) == 0
    assert capsys.readouterr().out.startswith("# gpuwatch report: a.rec\n")
    assert not list(tmp_path.glob(".*"))


def test_the_command_counts_what_a_person_would(tmp_path, capsys):
    # 20 s at 100 tokens a second, of which 2 prompt tokens each: 2,000 generated and 4,000 prompt tokens.
    main(["report", str(record(tmp_path / "a.rec", steady(20)))])
    text = capsys.readouterr().out
    assert "| generated tokens | 2,000, 100 tok/s while it had work |" in text
    assert "| prompt tokens | 4,000, 200 tok/s while it had work |" in text
    assert "| requests finished | 16 |" in text
    assert "p50 8 ms" in text  # 5 ms + half of the bucket of 5 to 10 ms: 7.5


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{rec}", "-o", "{dir}/a.pdf"], 2, "must end in .html or .md"),
        (["{rec}", "-o", "{dir}/no/a.html"], 2, "does not exist"),
        (["{rec}", "-o", "{dir}/there.md"], 2, "exists already"),
        (["{dir}/none.rec"], 2, "No such file"),
        (["{dir}/there.md"], 2, "not a gpuwatch recording"),
        (["{rec}", "--probe", "{dir}/there.md"], 2, "not JSON"),
        (["{dir}/empty.rec", "-o", "{dir}/e.html"], 3, "holds no complete tick"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(tmp_path, capsys, arguments, code, message):
    recording = record(tmp_path / "a.rec", steady(2))
    record(tmp_path / "empty.rec", [])
    (tmp_path / "there.md").write_text("mine")
    assert main(["report", *(part.format(rec=recording, dir=tmp_path) for part in arguments)]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (tmp_path / "there.md").read_text() == "mine"
    assert not (tmp_path / "e.html").exists()


def test_force_replaces_a_file(tmp_path):
    recording = record(tmp_path / "a.rec", steady(2))
    (tmp_path / "a.md").write_text("old")
    assert main(["report", str(recording), "-o", str(tmp_path / "a.md"), "--force"]) == 0
    assert (tmp_path / "a.md").read_text().startswith("# gpuwatch report")


def test_json_has_findings_totals_and_peaks(tmp_path, capsys):
    assert main(["report", str(record(tmp_path / "a.rec", steady(20))), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == 1
    assert data["run"]["seconds"] == 20
    (engine,) = data["engines"]
    assert engine["generation_tokens"] == 2000
    assert engine["generation_tokens_per_second"] == 100
    assert engine["latency"]["itl"]["p50"] == pytest.approx(0.0075)
    assert data["gpus"][0]["peak_bytes"] == 64 * GIB
    assert data["findings"] == []


def test_a_report_of_a_cut_recording_says_so_in_it(tmp_path, capsys):
    path = record(tmp_path / "a.rec", steady(10))
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["report", str(path)]) == 0
    shown = capsys.readouterr()
    assert "The recording ends early" in shown.out
    assert "a.rec" in shown.err


def test_an_engine_that_is_seen_once_has_no_figures(tmp_path, capsys):
    assert main(["report", str(record(tmp_path / "a.rec", [(0, [page(0)])]))]) == 0
    assert "had nothing to do" in capsys.readouterr().out
