"""From snapshots to rows and lines, without an application."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpuwatch.diagnosis.finding import Finding
from gpuwatch.model import LogLine, series
from gpuwatch.snapshot import Answer, Recording, RuleView, SourceState
from gpuwatch.tui.draw import engine_details, frame, gpu_details
from gpuwatch.tui.draw import engines as draw_engines
from gpuwatch.tui.draw import findings as draw_findings
from gpuwatch.tui.draw import gpus as draw_gpus
from gpuwatch.tui.draw import logs as draw_logs
from gpuwatch.tui.draw import rules as draw_rules
from gpuwatch.tui.history import History
from gpuwatch.tui.text import line_width, plain
from gpuwatch.tui.view.build import build
from gpuwatch.tui.view.engines import Rank
from gpuwatch.tui.view.findings import as_text, findings
from gpuwatch.tui.view.gpus import nvml_problem, short_name
from gpuwatch.tui.view.logs import filtered
from gpuwatch.tui.view.model import Quiet
from gpuwatch.tui.view.rules import rules
from gpuwatch.tui.view.status import Pulse, banner, conclusion, recording_text, sources_text, state_text
from tests.unit.tui import scenes


def model_of(snapshot, history=None):
    return build(snapshot, history or History(), Quiet(), live=True)


def texts(lines):
    return [plain(line).rstrip() for line in lines]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 80G"),
        ("NVIDIA A100-SXM4-80GB", "A100 80G"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA GB10", "GB10"),
        ("", ""),
    ],
)
def test_product_names_are_shortened(name, short):
    assert short_name(name) == short


def test_a_gpu_line_says_index_name_memory_peak_busy_and_power():
    gpu = model_of(scenes.storm()).gpus[0]
    line = plain(draw_gpus.gpu_line(gpu, 79, 8))
    assert line.startswith("  0 H100 80G ▕█")
    assert line.endswith("▏  74.1/79.6 GiB pk  77.8  97 % 612 W")
    assert "╎" in line
    assert line_width(draw_gpus.gpu_line(gpu, 79, 8)) == 79
    wide = plain(draw_gpus.gpu_line(gpu, 139, 8))
    assert "74.1 / 79.6 GiB  peak  77.8  busy  97 %  1,755 MHz  612 W  64 °C" in wide


def test_small_parts_of_the_legend_have_their_unit_instead_of_reading_zero():
    scene = scenes.Scene()
    scene.gpu(0)
    scene.on_gpu(0, held=73.6)
    scene.server()
    scene.rank(kv_usage=0.0002)
    gpus = model_of(scenes.snapshot(scene)).gpus
    line = plain(draw_gpus.legend(gpus, gpus[0], 199))
    assert "KV used 10 MiB" in line  # 0.0002 of 50.1 GiB
    assert "KV free 50.1" in line
    assert " 0.0" not in line


def test_the_legend_gives_the_amounts_of_the_selected_gpu():
    gpus = model_of(scenes.storm()).gpus
    wide = plain(draw_gpus.legend(gpus, gpus[1], 199))
    # GPU 1 holds 73.5 GiB of the engine: 16 + 50.1 x 0.9746 + 50.1 x 0.0254 + 3.4 + 1.7, the rest is 2.3.
    assert wide == (
        "  GPU 1  █ weights 16.0   ▓ KV used 48.8   ░ KV free 1.3   ▒ activations+graphs 5.1   "
        "c context+comms 2.3   ? unexplained 0.5   r driver 0.5   · free 5.1"
    )
    narrow = draw_gpus.legend(gpus, gpus[0], 79)
    assert line_width(narrow) <= 79
    assert "█ weights 16.0 ▓ KV 48.8 ░ 1.3" in plain(narrow)


def test_a_gpu_whose_figures_are_late_is_not_said_to_hang():
    scene = scenes.Scene()
    scene.add("gpu_state", 1, **scenes.gpu_labels(0), state="late")
    (late,) = model_of(scenes.snapshot(scene)).gpus
    assert late.problem == "GPU 0 gives no new figures: the NVML worker may wait for a processor"


def test_hung_and_lost_gpus_say_so_and_the_others_keep_their_figures():
    gpus = model_of(scenes.troubled()).gpus
    assert [gpu.problem for gpu in gpus] == [
        "",
        "GPU 1 has not answered for 12 s",
        "GPU 2 is lost: GPU has fallen off the bus",
        "",
        "",
    ]
    lines = [plain(draw_gpus.gpu_line(gpu, 110, 8)) for gpu in gpus]
    assert "✗ GPU 1 has not answered for 12 s" in lines[1]
    assert "74.1 / 79.6 GiB" in lines[0]
    assert "▲ power 35 %" in lines[4]
    assert "● Xid 79" in lines[4]
    small = plain(draw_gpus.gpu_line(gpus[4], 79, 8))
    assert small.endswith("97 % ▲ power 35 % ● Xid 79")


def test_what_a_gpu_does_not_support_is_named_with_the_reason_and_a_real_zero_stays_a_zero():
    gpu = model_of(scenes.troubled()).gpus[3]
    line = plain(draw_gpus.gpu_line(gpu, 110, 8))
    assert "memory n/a (not supported)" in line
    assert "busy   0 %" in line
    assert "0.0" not in line
    shown = texts(gpu_details.figures(gpu, 100))
    assert " memory used          n/a (not supported) memory in use" in shown
    assert any(text.startswith(" busy                 0 %") for text in shown)
    assert any(text.startswith(" SM clock             n/a ") for text in shown)


def test_a_gpu_that_stops_answering_keeps_its_last_figures_with_their_age():
    history = History()
    for second in range(40):
        model = model_of(scenes.fading(scenes.START + 60_000 + second * 1000), history)
    gpu = model.gpus[1]
    assert gpu.stale == 10.0
    assert gpu.get("gpu_memory_used") == 74.0 * scenes.GIB
    assert "✗ GPU 1 has not answered for 10 s, figures 10 s old" in plain(draw_gpus.gpu_line(gpu, 110, 8))
    assert {tone for text, tone in draw_gpus.bar(gpu, 40) if text[0] in "█▓"} == {"stale"}
    assert model.gpus[0].stale is None


def test_an_engine_that_stops_answering_keeps_its_last_figures_with_their_age():
    history = History()
    for second in range(40):
        model = model_of(scenes.fading(scenes.START + 60_000 + second * 1000), history)
    engine = model.engines[0]
    assert engine.stale == 10.0
    heading = plain(draw_engines.heading_lines(engine, 139)[0])
    assert "✗ no answer for 10 s: unreachable: connection refused, figures 10 s old" in heading
    assert engine.ranks[0].get("kv_usage") == scenes.STORM_RANK["kv_usage"]


def test_figures_older_than_a_quarter_of_an_hour_are_not_shown_any_more():
    history = History()
    model_of(scenes.storm(scenes.START), history)
    model = model_of(scenes.silent_engine(scenes.START + 901_000), history)
    assert model.engines[0].stale is None
    assert model.engines[0].ranks == ()


def test_all_gpus_stay_when_nvml_as_a_whole_is_gone():
    history = History()
    model_of(scenes.storm(), history)
    gone = scenes.silent_engine(scenes.START + 70_000)
    gone = replace(
        gone,
        answers={},
        sources=(
            SourceState("nvml", "nvml", up=False, reason="driver_mismatch", detail="driver 570, library 575", age=9.0),
        ),
    )
    model = model_of(gone, history)
    assert nvml_problem(gone) == "NVML: driver was replaced: driver 570, library 575 for 9 s"
    assert [(gpu.index, gpu.stale) for gpu in model.gpus] == [("0", 10.0), ("1", 10.0)]


def test_an_engine_block_has_pool_rates_latencies_and_no_invented_prefix_hits():
    model = model_of(scenes.storm())
    rows = [plain(line) for _, line in draw_engines.overview(model, 109, 99)]
    assert rows[0].startswith("─ vLLM 0.32  tiny-llama  :8000  TP2  context 4,096 ──")
    assert "97 %  4,990 of 5,120 tokens" in rows[1]
    assert "prompt" in rows[2]
    assert "60 tok/s" in rows[2]
    assert "155 tok/s" in rows[2]
    assert "evicted" in rows[3]
    assert "0.50 /s" in rows[3]
    assert "0.42 /s" in rows[3]
    assert "running    3   waiting 13 (capacity)" in rows[4]
    latencies = " ".join(rows[4:])
    for text in ("TTFT p50 18 s   p95 41 s", "ITL p50 9 ms   p95 212 ms", "queue p95 38 s", "prefix hits n/a"):
        assert text in latencies


def test_prefix_hits_are_off_where_caching_is_off_and_zero_only_when_measured():
    def shown(**figures):
        scene = scenes.Scene()
        scene.rank(running=1, **figures)
        model = model_of(scenes.snapshot(scene))
        return "\n".join(plain(line) for _, line in draw_engines.overview(model, 79, 99))

    assert "prefix hits off" in shown(prefix_enabled=0)
    assert "prefix hits 0 %" in shown(prefix_enabled=1, prefix_hit_ratio=0.0)
    assert "prefix hits n/a" in shown(prefix_enabled=1)
    assert "prefix hits n/a" in shown(prefix_hit_ratio=math.nan)


def test_an_engine_that_reports_almost_nothing_shows_no_zeros():
    scene = scenes.Scene()
    scene.rank(running=0)
    model = model_of(scenes.snapshot(scene))
    rows = [plain(line) for _, line in draw_engines.overview(model, 79, 99)]
    text = "\n".join(rows[1:])
    assert text.count("n/a") >= 9
    assert "running    0" in text
    assert " 0 " not in text.replace("running    0", "")
    assert "pool size n/a" in text


def test_ranks_are_rows_and_their_ratios_are_never_combined():
    model = model_of(scenes.two_ranks())
    rows = [plain(line) for _, line in draw_engines.overview(model, 109, 99)]
    assert "DP2" in rows[0]
    assert rows[2].split()[:4] == ["dp0", "97", "%", "3"]
    assert rows[3].split()[:4] == ["dp1", "31", "%", "12"]
    assert not any("64 %" in row for row in rows)
    gpu = model.gpus[0]
    assert {part.kind for part in gpu.parts} >= {"kv_pool"}
    assert "kv_used" not in {part.kind for part in gpu.parts}


def test_several_engines_share_a_table_where_there_is_little_room():
    model = model_of(scenes.several_engines())
    rows = [plain(line) for _, line in draw_engines.overview(model, 99, 6)]
    assert len(rows) == 5
    assert [row.split()[0] for row in rows[2:]] == [":8000", ":8001", ":8002"]
    assert "SGLang 0.5." in rows[3]
    blocks = [plain(line) for _, line in draw_engines.overview(model, 99, 60)]
    assert sum("KV pool" in row for row in blocks) == 3


def test_an_engine_without_tokens_says_for_how_long():
    scene = scenes.Scene()
    scene.rank(running=3, seconds_since_token=42.0)
    rows = [plain(line) for _, line in draw_engines.overview(model_of(scenes.snapshot(scene)), 79, 99)]
    assert any("no token for 42 s" in row for row in rows)


def test_an_engine_known_only_by_its_source_says_why_there_is_nothing():
    engine = model_of(scenes.silent_engine(age=None)).engines[0]
    assert engine.problem == "has not answered yet: unreachable: connection refused"
    ok = scenes.snapshot(scenes.Scene(), sources=scenes.sources())
    assert model_of(ok).engines[0].problem == "no data yet"


def test_the_gravest_cause_comes_first_and_symptoms_follow_it():
    rows = findings(scenes.storm())
    assert [(row.finding.id, row.depth) for row in rows] == [
        ("kv_preemption_storm", 0),
        ("queue_growth", 1),
        ("throughput_collapse", 1),
        ("gpu_headroom_low", 0),
    ]
    assert [row.where for row in rows] == [":8000", ":8000", ":8000", "GPU 0"]


def test_a_symptom_goes_to_the_cause_on_the_same_server():
    def storm(server):
        return Finding("kv_preemption_storm", "critical", "t", "c", 1, (), labels={"server": server})

    symptom = Finding(
        "queue_growth", "warning", "t", "c", 1, (), caused_by="kv_preemption_storm", labels={"server": "b:1"}
    )
    orphan = replace(symptom, id="x", caused_by="nobody")
    rows = findings(scenes.storm(findings=(symptom, orphan, storm("a:1"), storm("b:1"))))
    assert [(row.finding.id, row.where, row.depth) for row in rows] == [
        ("kv_preemption_storm", "a:1", 0),
        ("kv_preemption_storm", "b:1", 0),
        ("queue_growth", "b:1", 1),
        ("x", "b:1", 0),
    ]


def test_findings_that_cause_each_other_are_still_all_shown():
    a = Finding("a", "info", "t", "c", 1, (), caused_by="b")
    b = Finding("b", "info", "t", "c", 1, (), caused_by="a")
    assert {row.finding.id for row in findings(scenes.storm(findings=(a, b)))} == {"a", "b"}


def test_silenced_findings_sink_until_their_time_is_over():
    storm = scenes.storm()
    key = storm.findings[0].key
    rows = findings(storm, frozenset(), {key: storm.time + 1})
    assert [row.finding.id for row in rows][:2] == ["gpu_headroom_low", "kv_preemption_storm"]
    assert "silenced" in plain(draw_findings.head_line(rows[1], 120))
    assert findings(storm, frozenset(), {key: storm.time})[0].finding.id == "kv_preemption_storm"


def test_the_overview_shows_cause_advice_and_symptoms_of_a_finding():
    rows = [plain(line).rstrip() for _, line in draw_findings.overview(model_of(scenes.storm()), 120, 40)]
    assert (
        rows[0] == " ● 22:13:51  kv_preemption_storm   :8000 requests are thrown out of the KV pool and computed again"
    )
    assert rows[1].strip().startswith("26 evictions in 60 s: the pool of 5,120 tokens holds 2.4 requests")
    assert any(
        row.strip() == "· Overriding num_gpu_blocks=5721 with num_gpu_blocks_override=40  [/var/log/vllm.log:41]"
        for row in rows
    )
    assert "           → --num-gpu-blocks-override 40 · remove it: memory profiling found room for 5,721 blocks" in rows
    assert "           → --max-num-seqs 16 → 2 · if the pool has to stay this small" in rows
    assert any(row.startswith("   22:13:58  ↳ ▲ queue_growth") for row in rows)
    assert rows[-1] == " ? not judged: prefix_cache_collapse: needs prefix cache counters"


def test_with_little_room_evidence_goes_before_causes_do():
    rows = [plain(line) for _, line in draw_findings.overview(model_of(scenes.storm()), 100, 9)]
    assert not any("·  " in row or "[nvml]" in row for row in rows)
    assert any("--num-gpu-blocks-override" in row for row in rows)


def test_the_details_of_a_finding_hold_everything():
    row = findings(scenes.storm())[0]
    text = "\n".join(texts(draw_findings.details(row, 100)))
    for part in (
        "● critical, firing since 22:13:51   confidence 95 %",
        "about :8000",
        "gpuwatch_engine_evictions_total · 26 · 127.0.0.1:8000/metrics",
        "/var/log/vllm.log:41",
        "→ --max-num-seqs 16 → 2",
        "gpuwatch rules explain kv_preemption_storm",
        "server=127.0.0.1:8000",
    ):
        assert part in text
    bare = replace(row, finding=replace(row.finding, evidence=(), advice=()))
    assert "none: the cause is not certain enough" in "\n".join(texts(draw_findings.details(bare, 100)))


def test_a_copied_finding_is_plain_text_with_evidence_and_advice():
    text = as_text(findings(scenes.storm())[0])
    assert text.splitlines()[0] == (
        "critical: kv_preemption_storm: requests are thrown out of the KV pool and computed again (:8000)"
    )
    assert "evidence: Overriding num_gpu_blocks=5721 with num_gpu_blocks_override=40 [/var/log/vllm.log:41]" in text
    assert "advice: --max-num-seqs 16 → 2: if the pool has to stay this small" in text
    assert text.endswith("runbook: gpuwatch rules explain kv_preemption_storm")


def test_no_finding_is_only_called_healthy_when_every_rule_was_evaluated():
    def said(statuses, **down):
        views = tuple(RuleView(f"r{i}", "x", "info", status, "e", "f") for i, status in enumerate(statuses))
        snapshot = scenes.snapshot(scenes.Scene(), rules=views, sources=scenes.sources(**down))
        return conclusion(replace(snapshot, answers={"a": Answer()}), ())[:2]

    assert said(["ok", "ok"]) == ("✓", "no findings: 2 rules evaluated, all quiet")
    assert said(["ok", "not_evaluable"]) == ("·", "1 of 2 rules find nothing; 1 cannot be evaluated (key 7)")
    assert said(["not_evaluable", "error"])[0] == "?"
    assert said([]) == ("◌", "nothing to judge yet")
    assert said(["ok"], engine={"up": False}) == ("·", "1 of 1 rule find nothing; 1 source not answering")


def test_rules_are_sorted_by_what_needs_a_look_and_carry_their_readings():
    rows = rules(scenes.storm())
    assert [row.status for row in rows] == [
        "firing", "firing", "pending", "error", "cannot evaluate", "quiet", "quiet"
    ]  # fmt: skip
    assert [row.reading for row in rows[:2]] == ["26 / 5, 2 of 2", "0.07 / 0"]
    header, lines = draw_rules.table(scenes.storm(), 139)
    assert plain(header).split() == ["state", "rule", "severity", "value", "/", "threshold", "detail"]
    assert "needs gpuwatch_engine_prefix_cache_hits_total" in plain(lines[4][1])
    detail = "\n".join(texts(draw_rules.details(rows[0], 120)))
    assert "✓ holds: increase(…[1m]) > 5 · nearest value 26 · threshold 5" in detail


def test_the_header_says_what_is_watched_and_how_fresh_it_is():
    model = model_of(scenes.storm())
    line = plain(frame.header(model, 110)[0])
    assert line.startswith(" gpuwatch  node-07     ● live 1.0 s     2 GPUs · 1 engine · log ✓")
    assert line.endswith("22:14:20 ")
    assert line_width(frame.header(model, 80)[0]) == 80


@pytest.mark.parametrize("width", [80, 140])
def test_the_header_keeps_state_and_time_with_a_very_long_host_name(width):
    snapshot = replace(scenes.storm(recording=Recording("x.rec", 12 * 1024**2)), host="host-" + "x" * 200)
    (line,) = frame.header(model_of(snapshot), width)
    text = plain(line)
    assert line_width(line) == width
    assert "● live 1.0 s" in text
    assert "rec ●" in text
    assert text.endswith("22:14:20 ")


def test_the_state_distinguishes_starting_live_late_and_paused():
    storm = scenes.storm()
    assert state_text(None, Pulse())[1] == "starting"
    assert state_text(storm, Pulse(newest=storm.time))[1] == "live 1.0 s"
    assert state_text(storm, Pulse(newest=storm.time, silent=8.2))[1] == "no data for 8 s"
    assert state_text(storm, Pulse(newest=storm.time, silent=2.9))[1] == "live 1.0 s"
    assert state_text(storm, Pulse(paused=True, newest=storm.time + 36_000))[1] == "paused -36 s"
    assert state_text(replace(storm, mode="attached"), Pulse())[1] == "attached 1.0 s"


def test_a_demo_and_a_replay_name_themselves_and_a_live_run_does_not():
    assert banner(scenes.demo()) == "DEMO: recorded run, simulated GPUs  1 min 12 s of 5 min"
    replay = scenes.storm(mode="replay", recording=Recording("/tmp/x\x1b[2J.rec", position=3, length=60))
    assert banner(replay) == "REPLAY: /tmp/x·[2J.rec  3.0 s of 1 min"
    fast = scenes.storm(mode="replay", recording=Recording("x.rec", position=3, length=60, speed=16.0))
    assert banner(fast) == "REPLAY: x.rec  3.0 s of 1 min  16 times as fast"
    assert banner(scenes.storm()) == ""


def test_a_recording_in_progress_and_its_failure_are_shown():
    assert recording_text(scenes.storm()) == ("", "")
    assert recording_text(scenes.storm(recording=Recording("x", 3 * 1024**2)))[0] == "rec ● 3 MiB"
    assert recording_text(scenes.storm(recording=Recording("x", 0, "disk full")))[0] == "rec ✗"
    assert recording_text(scenes.demo()) == ("", "")


def test_sources_that_do_not_answer_are_named():
    def said(*sources):
        return [text for text, _ in sources_text(scenes.snapshot(None, sources=sources))]

    down = [SourceState("engine", f"engine:10.0.0.1:{port}", up=False, server=f"10.0.0.1:{port}") for port in range(3)]
    assert said(*scenes.sources()) == ["log ✓"]
    assert said(*scenes.sources(log={"up": False}), down[0]) == ["log ✗", ":0 ✗"]
    assert said(*down) == ["3 sources ✗"]


def test_an_empty_machine_gets_what_was_looked_for_and_the_way_to_the_demo():
    text = "\n".join(texts(frame.empty_machine(scenes.empty(), 100, demo=True)))
    for what, why in scenes.LOOKED_FOR:
        assert what in text
        assert why in text
    assert "press d to see a recorded run with simulated GPUs" in text
    assert "press d" not in "\n".join(texts(frame.empty_machine(scenes.empty(), 100, demo=False)))


def test_log_lines_are_filtered_by_all_words_in_any_case():
    lines = scenes.log_lines(number=10)
    assert len(filtered(lines, "")) == 10
    assert [line.line for line in filtered(lines, "KV cache PREEMPTED")] == [102, 107]
    assert [line.line for line in filtered(lines, "error")] == [104, 109]
    assert [line.line for line in filtered(lines, "", hits_only=True)] == [102, 107]
    assert filtered(lines, "nothing like this") == []


def test_a_recognised_log_line_carries_a_mark_and_its_meaning():
    line = scenes.log_lines(number=3)[2]
    shown = plain(draw_logs.log_line(line, 90, 0))
    assert shown.startswith("▶22:13:22 WARN  preemption: Sequence group 7")
    assert plain(draw_logs.log_line(replace(line, event=""), 90, 0)).startswith(" 22:13:22 WARN  Sequence")


def test_answers_of_other_labels_do_not_leak_into_a_row():
    snapshot = scenes.storm()
    foreign = ((series("", host="other", uuid=scenes.uuid(0), gpu="0"), 1.0),)
    used = snapshot.answers["gpu_memory_used"].samples
    snapshot = replace(snapshot, answers={**snapshot.answers, "gpu_memory_used": Answer((*used, *foreign))})
    model = model_of(snapshot)
    assert [(gpu.host, gpu.index) for gpu in model.gpus] == [("node-07", "0"), ("node-07", "1"), ("other", "0")]
    assert model.gpus[0].get("gpu_memory_used") == 74.1 * scenes.GIB


def test_a_rank_that_is_gone_does_not_stay_because_its_rates_look_back():
    scene = scenes.Scene()
    scene.server()
    scene.rank(dp="0", running=2.0, kv_usage=0.5)
    scene.add("eviction_rate", 0.1, **scenes.rank_labels(dp="1"))
    scene.add("ttft_p95", 0.2, **scenes.rank_labels(dp="1"))
    (engine,) = model_of(scenes.snapshot(scene)).engines
    assert [rank.dp_rank for rank in engine.ranks] == ["0"]


def test_latencies_that_look_back_are_not_shown_of_a_server_that_does_not_answer():
    scene = scenes.Scene()
    scene.add("ttft_p95", 0.2, **scenes.rank_labels())
    down = {"engine": {"up": False, "reason": "failed", "detail": "the page is no metrics page"}}
    (engine,) = model_of(scenes.snapshot(scene, sources=scenes.sources(**down))).engines
    assert engine.ranks == ()
    assert "the page is no metrics page" in engine.problem


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("(EngineCore_DP0 pid=32) ERROR 11-30 00:38:44 [core.py:700] boom", "boom"),
        ("[2026-02-01 10:00:00 DP1 TP0] Prefill batch, #new-seq: 1", "DP1 TP0 Prefill batch, #new-seq: 1"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("INFO 11-30 00:38:44 [core.py:700] ", "INFO 11-30 00:38:44 [core.py:700] "),
    ],
)
def test_a_log_line_is_listed_without_what_engines_print_before_it_and_whole_in_its_details(text, shown):
    line = LogLine("vllm.log", 7, scenes.START, "ERROR", text)
    assert plain(draw_logs.log_line(line, 120, 0)).rstrip().endswith(shown.rstrip())
    assert ("core.py" in plain(draw_logs.log_line(line, 120, 0))) == ("core.py" in shown)
    assert text.strip() in "\n".join(texts(draw_logs.details(line, 120)))


@pytest.mark.parametrize(("each", "whole"), [(38, True), (24, False)])
def test_the_heading_of_a_chart_is_not_cut_in_its_largest_value(each, whole):
    model = model_of(scenes.storm())
    heads = [head for head, _, _ in engine_details.chart_blocks(model, model.engines[0].ranks[0], each, 3)]
    generation = next(head for head in heads if head.startswith("generation"))
    assert ("max" in generation) is whole
    assert all(len(head) <= each for head in heads)


def test_a_gpu_that_needs_a_reset_is_not_said_to_be_reset():
    scene = scenes.Scene()
    scene.add("gpu_state", 1, **scenes.gpu_labels(0), state="resetting")
    (gpu,) = model_of(scenes.snapshot(scene)).gpus
    assert gpu.problem == "GPU 0 needs a reset"


def test_what_the_selected_gpu_does_not_tell_has_one_sign_in_the_legend():
    scene = scenes.Scene()
    scene.gpu(0)
    scene.on_gpu(0, held=73.6)
    scene.server()
    scene.rank(kv_usage=0.5)
    scene.add("gpu_state", 1, **scenes.gpu_labels(1), state="ok")
    gpus = model_of(scenes.snapshot(scene)).gpus
    line = plain(draw_gpus.legend(gpus, gpus[1], 199))
    assert "weights n/a" in line
    assert "free n/a" in line
    assert " -" not in line


def test_a_latency_in_the_first_bucket_is_shown_as_no_higher_than_its_end():
    key = ("node", "127.0.0.1:8000", "vllm", "tiny", "0")
    rank = Rank(key, "tiny", "0", {"queue_p95": 0.285, "queue_p95_at_most": 0.3, "ttft_p95": 0.19})
    assert (rank.latency("queue_p95"), rank.latency("ttft_p95"), rank.latency("itl_p50")) == (
        "≤300 ms",
        "190 ms",
        "n/a",
    )
