from __future__ import annotations

import time
from dataclasses import replace

import pytest
from unit.pipeline import scenario
from unit.report.runs import GIB, LAUNCH, SERVER, START, card, page, record, steady

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.diagnosis.finding import Finding, NotEnough
from gpuwatch.model import Batch, Fact, Reason, series
from gpuwatch.pipeline.run_data import Collector, collect
from gpuwatch.pipeline.run_starts import Starts
from gpuwatch.pipeline.run_windows import MOST_POINTS, MOST_WINDOWS, EngineBook, Points, rows_of
from gpuwatch.pipeline.unjudged import Unjudged
from gpuwatch.recording import Header, Tick
from gpuwatch.report.figures import added_seconds, for_plot
from gpuwatch.report.load import marks_of
from gpuwatch.report.run_report import verdict, when

KEYS_OF_NOTHING = (series("gpuwatch_engine_up", host="node", server="127.0.0.1:8000"),)


@pytest.fixture(scope="module")
def rules():
    return load(shipped_paths())


def book(ticks, width=2000):
    """Return the windows of an engine whose pages are given as (second, fields)."""
    kept = EngineBook(width, 10_000)
    for second, fields in ticks:
        batch = page(second, **fields)
        ((_, rows),) = rows_of(batch).items()
        kept.take(batch.time, rows, batch.values)
    return kept.windows()


def test_the_increases_of_a_window_are_those_between_its_samples():
    windows = book(
        [(0, {"tokens": 50}), (1, {"tokens": 80}), (2, {"tokens": 150}), (3, {"tokens": 160}), (4, {"tokens": 200})]
    )
    assert [(window.start - START, window.end - START) for window in windows] == [(0, 2000), (2000, 4000)]
    assert [window.counted["generation_tokens"] for window in windows] == [100, 50]


def test_a_counter_that_starts_anew_counts_from_zero():
    (window,) = book([(0, {"tokens": 1000}), (1, {"tokens": 1040}), (2, {"tokens": 30})])
    assert window.counted["generation_tokens"] == 70


def test_a_counter_that_appears_with_its_first_event_counts_from_zero():
    kept = EngineBook(2000, 10_000)
    for second in range(5):
        batch = page(second, tokens=64, prompt=500)
        if second < 2:
            batch = replace(batch, keys=batch.keys[:3], values=batch.values[:3])
        ((_, rows),) = rows_of(batch).items()
        kept.take(batch.time, rows, batch.values)
    counted = [window.counted for window in kept.windows()]
    assert [each["generation_tokens"] for each in counted] == [64, 0]
    assert [each["prompt_tokens"] for each in counted] == [500, 0]


def test_what_counted_before_the_first_sample_and_during_a_hole_is_in_no_window():
    windows = book([(0, {"tokens": 900}), (2, {"tokens": 900}), (60, {"tokens": 5000}), (62, {"tokens": 5007})])
    assert [window.counted["generation_tokens"] for window in windows] == [0, 7]


@pytest.mark.parametrize(("silent", "tokens"), [(False, 80), (True, 16)])
def test_an_engine_whose_page_was_empty_before_has_all_that_it_counted(tmp_path, rules, silent, tokens):
    empty = replace(page(0), keys=KEYS_OF_NOTHING, values=(1.0,))
    ticks = [(second, [replace(empty, time=START + 1000 * second)]) for second in range(3)]
    if silent:  # it started anew in between: what it counted before that sample is not known
        ticks[2] = (2, [scenario.down(2)])
    ticks += [(second, [page(second, tokens=tokens)]) for second, tokens in ((3, 64), (4, 70), (5, 80))]
    (engine,) = collect(record(tmp_path / "a.rec", ticks), rules).engines
    assert sum(window.counted["generation_tokens"] for window in engine.windows) == tokens


def test_the_short_end_of_a_run_is_part_of_its_last_window():
    windows = book([(0, {}), (1, {"tokens": 10}), (2, {"tokens": 20}), (2.5, {"tokens": 900, "running": 9})])
    assert [(window.start - START, window.end - START) for window in windows] == [(0, 2500)]
    assert windows[0].counted["generation_tokens"] == 900
    assert windows[0].running == (4 + 4 + 4 + 9) / 4


def test_a_short_end_after_a_hole_stands_alone():
    windows = book([(0, {}), (2, {"tokens": 20}), (60, {"tokens": 20}), (60.5, {"tokens": 50})])
    assert [(window.end - START, window.counted["generation_tokens"]) for window in windows] == [
        (2000, 20),
        (60_500, 30),
    ]


def test_work_in_the_last_seconds_of_a_long_run_is_not_lost():
    # 4 h and 1 min: windows are 32 s long by then, and the last 14 s are less than half of one.
    last = 4 * 3600 + 60
    windows = book(
        [(second, {"running": 0, "tokens": 1000 * max(0, second - last + 14)}) for second in range(last + 1)]
    )
    assert sum(window.counted["generation_tokens"] for window in windows) == 14_000
    assert added_seconds(windows) == last


def test_asking_twice_for_the_windows_gives_the_same():
    kept = EngineBook(2000, 10_000)
    for second in (0, 2, 2.5):
        batch = page(second, tokens=round(10 * second))
        ((_, rows),) = rows_of(batch).items()
        kept.take(batch.time, rows, batch.values)
    assert kept.windows() == kept.windows()


def test_the_mean_of_a_gauge_is_that_of_all_samples_and_not_of_the_thinned_curve():
    points = Points()
    for second in range(3600):
        points.add(second * 1000, 1.0 if second % 8 == 0 else 0.0)
    assert points.mean == 450 / 3600  # 12.5 %
    assert len(points.curve().times) <= 2 * MOST_POINTS
    assert Points().mean is None


def test_a_gpu_that_is_busy_one_second_of_eight_is_busy_an_eighth_of_a_long_run(tmp_path, rules):
    ticks = []
    for second in range(1600):
        batch = card(second, 60 * GIB)
        ticks.append((second, [replace(batch, values=(*batch.values[:-1], 1.0 if second % 8 == 0 else 0.0))]))
    (gpu,) = collect(record(tmp_path / "a.rec", ticks), rules).gpus
    assert gpu.busy_mean == 0.125


def test_what_came_during_a_gap_belongs_to_the_whole_gap():
    windows = book([(0, {}), (2, {"tokens": 20}), (12, {"tokens": 120})])
    assert windows[-1].seconds == 10
    assert windows[-1].counted["generation_tokens"] == 100


def test_what_came_while_nothing_was_sampled_for_long_belongs_to_no_window():
    windows = book([(0, {}), (2, {"tokens": 20}), (13, {"tokens": 1120}), (15, {"tokens": 1140})])
    assert [(window.start - START, window.end - START) for window in windows] == [(0, 2000), (13_000, 15_000)]
    assert [window.counted["generation_tokens"] for window in windows] == [20, 20]


def test_a_long_run_with_a_hole_has_wider_windows_on_either_side_of_it():
    seconds = [*range(2 * MOST_WINDOWS + 1), *range(9000, 9000 + 2 * MOST_WINDOWS + 1)]
    windows = book([(second, {"tokens": second}) for second in seconds])
    assert len(windows) <= MOST_WINDOWS + 1
    assert added_seconds(windows) == 4 * MOST_WINDOWS
    assert sum(window.counted["generation_tokens"] for window in windows) == 4 * MOST_WINDOWS


def test_reasons_are_added_up_and_histograms_kept_by_bound():
    (window,) = book(
        [
            (0, {}),
            (1, {"stop": 3, "length": 1, "fast": 30, "slow": 10}),
            (2, {"stop": 5, "length": 2, "fast": 60, "slow": 20}),
        ]
    )
    assert window.counted["finished"] == 7
    itl = window.histograms["itl"]
    assert itl.counts == (0, 60, 60, 80, 80)
    assert itl.total == pytest.approx(0.008 * 60 + 0.03 * 20)


def test_gauges_are_means_over_the_samples():
    (window,) = book([(0, {"running": 1}), (1, {"running": 3}), (2, {"running": 5})])
    assert window.running == 3


def test_what_an_engine_does_not_have_is_missing_and_not_zero():
    (window,) = book([(0, {}), (1, {}), (2, {})])
    assert "prefix_queries" not in window.counted
    assert window.counted["preemptions"] == 0
    assert "queue" not in window.histograms


def test_a_long_run_has_wider_windows_and_loses_nothing():
    seconds = 4 * 2 * MOST_WINDOWS
    windows = book([(second, {"tokens": second}) for second in range(seconds + 1)])
    assert MOST_WINDOWS / 2 <= len(windows) <= MOST_WINDOWS
    assert added_seconds(windows) == seconds
    assert sum(window.counted["generation_tokens"] for window in windows) == seconds


def test_a_thinned_curve_keeps_its_extremes():
    points = Points()
    for second in range(10_000):
        points.add(second * 1000, 99.0 if second == 4321 else -7.0 if second == 777 else 5.0)
    curve = points.curve()
    assert len(curve.times) <= 2 * MOST_POINTS
    pairs = dict(zip(curve.times, curve.values, strict=True))
    assert (pairs[4_321_000], pairs[777_000]) == (99.0, -7.0)


def test_a_recording_becomes_a_run(tmp_path, rules):
    data = collect(record(tmp_path / "a.rec", steady(30), note="first try"), rules)
    assert (data.name, data.host, data.seconds, data.ticks, data.note, data.cut) == (
        "a.rec",
        "node",
        30,
        31,
        "first try",
        "",
    )
    (engine,) = data.engines
    assert (engine.kind, engine.model, engine.version, engine.tensor_parallel, engine.limit) == (
        "vllm",
        "tiny",
        "0.32.0",
        2,
        16,
    )
    assert sum(window.counted["generation_tokens"] for window in engine.windows) == 3000
    assert engine.curves["running"].values == (4.0,) * 31
    flags = {setting.name: setting for setting in engine.settings}
    assert flags["--max-num-seqs"].value == "16"
    assert flags["version"].source == "vllm.log:21"


def told(second, target, *facts):
    """A batch of facts (key, value, source, line) about the engine."""
    made = (Fact(key, value, source, line, server=SERVER) for key, value, source, line in facts)
    return Batch(target, START + 1000 * second, facts=tuple(made))


def launch(second, process, seqs):
    return told(second, f"launch:{SERVER}", ("flag.max-num-seqs", seqs, f"command line of process {process}", None))


def log(second, name, seqs, line=4):
    facts = (("started", "banner", name, line), ("flag.max-num-seqs", seqs, name, None if line is None else line + 4))
    return told(second, f"log:{name}", *facts)


def gone(second):
    return Batch(f"engine:{SERVER}", START + 1000 * second, up=False, reason=Reason.UNREACHABLE)


def again(second, tokens=0):
    """The page after a restart."""
    fact = Fact("engine_restarted", "process_start_time_seconds changed", "page", server=SERVER)
    return replace(page(second, tokens=tokens), facts=(fact,))


@pytest.mark.parametrize(
    "second",
    [
        lambda at: (launch(at, 8, 2), log(at + 1, "b.log", 2), again(at + 3)),
        lambda at: (launch(at, 8, 2), again(at + 3)),
        lambda at: (log(at, "b.log", 2), launch(at + 1, 8, 2), again(at + 3)),
        lambda at: (log(at, "a.log", 2, line=90), again(at + 3)),
        lambda at: (log(at, "a.log", 2), again(at + 3)),  # the log was emptied
        lambda at: (log(at, "a.log", 2), page(at + 3)),
        lambda at: (log(at, "a.log", 2, line=None), again(at + 3)),
        lambda at: (log(at, "b.log", 2), again(at + 3)),
    ],
)
def test_a_second_start_counts_once_however_it_shows_and_has_its_own_flags(tmp_path, rules, second):
    first = [(0, [launch(0, 7, 16), log(0, "a.log", 16), page(0)]), *((n, [page(n, tokens=n)]) for n in (1, 2, 3))]
    later = [(round((batch.time - START) / 1000), [batch]) for batch in second(5)]
    path = record(tmp_path / "a.rec", [*first, (4, [gone(4)]), *later, (9, [page(9, tokens=8)])])
    (engine,) = collect(path, rules).engines
    assert [(start.begun - START, start.served) for start in engine.starts] == [
        (0, (START, START + 3000)),
        (5000, (START + 8000, START + 9000)),
    ]
    flags = [{item.name: item.value for item in start.flags} for start in engine.starts]
    assert [known["--max-num-seqs"] for known in flags] == ["16", "2"]


def starts_of(batches):
    """Return begin, end of service and flags of each start, in seconds."""
    starts = Starts()
    for batch in batches:
        starts.take(batch, batch.time)
    return [
        ((start.begun - START) // 1000, start.served and (start.served[1] - START) // 1000,
         [item.value for item in start.flags if item.name == "--max-num-seqs"])
        for start in starts.of(SERVER)
    ]  # fmt: skip


def test_the_flags_of_two_starts_in_the_journal_which_has_no_lines_are_those_of_each():
    unit = (log(0, "journal:vllm", 16, None), page(1), gone(4), log(5, "journal:vllm", 2, None), again(8))
    assert starts_of(unit) == [(0, 1, ["16"]), (5, 8, ["2"])]


@pytest.mark.parametrize("sign", [again, page])
@pytest.mark.parametrize("tells", [lambda at: log(at, "a.log", 2), lambda at: launch(at, 8, 2)])
def test_what_tells_first_of_the_restart_says_nothing_of_the_start_before(tells, sign):
    assert starts_of([page(0), page(3), gone(4), tells(5), sign(8)]) == [(0, 3, []), (5, 8, ["2"])]


def test_starts_that_the_page_tells_of_in_the_same_words_are_all_counted():
    ticks = [page(0), gone(1), again(2), gone(3), again(4), gone(5), again(6)]
    assert [begun for begun, _, _ in starts_of(ticks)] == [0, 2, 4, 6]


def test_a_second_first_line_and_what_a_part_of_a_recording_repeats_are_no_starts():
    banner = told(0, "log:a.log", ("started", "banner", "a.log", 3))
    batches = [banner, told(1, "log:a.log", ("started", "api", "a.log", 9)), log(2, "a.log", 16, 9), page(3)]
    assert starts_of(batches) == []
    known = Fact("engine_restarted", "counter fell", "page", time=START - 9000, server=SERVER)
    repeated = [replace(page(4), facts=(known,)), replace(log(5, "a.log", 16, 9), target="nvml")]
    mixed = replace(log(6, "a.log", 16, 9), facts=(*launch(6, 7, 16).facts, *log(6, "a.log", 16, 9).facts))
    assert starts_of([*batches, *repeated, mixed]) == []


def test_an_older_run_in_a_log_that_is_read_in_two_steps_is_no_start_of_this_recording():
    def old(second, seqs, written):
        batch = log(second, "docker:vllm", seqs, None)
        return replace(batch, facts=(replace(batch.facts[0], time=START + 1000 * written), *batch.facts[1:]))

    assert starts_of([page(0), old(0, 2, -900), old(1, 16, -300), page(2)]) == []


def test_each_model_at_an_address_has_its_own_starts_and_flags(tmp_path, rules):
    def other(batch):
        keys = tuple(tuple((key, "big" if key == "model_name" else value) for key, value in row) for row in batch.keys)
        return replace(batch, keys=keys)

    ticks = [(0, [launch(0, 7, 16), page(0)]), *((n, [page(n, tokens=n * 50)]) for n in (1, 2, 3)), (4, [gone(4)])]
    ticks += [(5, [launch(5, 8, 2)]), (8, [other(again(8))]), *((n, [other(page(n))]) for n in (9, 10, 11))]
    data = collect(record(tmp_path / "a.rec", ticks), rules)
    flags = {engine.model: {item.name: item.value for item in engine.settings} for engine in data.engines}
    assert flags["tiny"] == {"--max-num-seqs": "16"}
    assert flags["big"]["--max-num-seqs"] == "2"
    assert [engine.starts for engine in data.engines] == [(), ()]
    assert f"{SERVER} was started 2 times, with vllm big and vllm tiny: each has figures of its own" in data.problems


def test_a_start_that_never_answers_has_nothing_of_the_one_before(tmp_path, rules):
    pool = told(1, "log:a.log", ("kv.tokens", 25_600, "a.log", 44))
    ticks = [(0, [launch(0, 7, 16), log(0, "a.log", 16), page(0)]), (1, [pool, page(1, tokens=1)]), (2, [gone(2)])]
    data = collect(record(tmp_path / "a.rec", [*ticks, (3, [launch(3, 8, 2)]), (4, [log(4, "b.log", 2)])]), rules)
    (engine,) = data.engines
    assert engine.starts[1].served is None
    assert "kv.tokens" not in {item.name for item in engine.settings}


def test_one_start_is_no_list_of_starts_though_two_logs_tell_of_it(tmp_path, rules):
    ticks = [(0, [page(0), launch(0, 7, 16)]), (1, [page(1), log(1, "a.log", 16)]), (2, [page(2), log(2, "b.log", 16)])]
    (engine,) = collect(record(tmp_path / "a.rec", [*ticks, (3, [launch(3, 7, 16), page(3)])]), rules).engines
    assert engine.starts == ()


def test_what_was_judged_at_any_tick_is_not_among_what_never_was():
    unjudged = Unjudged()
    down, cards = NotEnough("queue_growth", "does not answer", {"server": "a"}), NotEnough("gpu_lost", "no GPU is seen")
    broken = NotEnough("my_rule", "the rule fails: no such series")
    for missing in ((down, cards), (cards,), (down, cards, broken)):
        unjudged.saw(missing)
    assert (unjudged.throughout, unjudged.at_end) == ((cards, broken), (down,))


def test_keys_given_as_flags_are_cut_out(tmp_path, rules):
    data = collect(record(tmp_path / "a.rec", steady(3)), rules)
    assert "verysecret" not in repr(data)
    assert {setting.name: setting.value for setting in data.engines[0].settings}["--api-key"] == "<redacted>"


def test_the_peak_is_the_highest_that_was_seen_between_two_ticks(tmp_path, rules):
    (gpu,) = collect(record(tmp_path / "a.rec", steady(30)), rules).gpus
    assert (gpu.index, gpu.name, gpu.driver, gpu.total) == ("0", "H100", "580.95", 80 * GIB)
    assert (gpu.peak, gpu.peak_time) == (64 * GIB, START + 17_000)
    parts = dict(gpu.at_peak)
    assert parts["reserved"] == 0.5 * GIB
    assert sum(parts.values()) == pytest.approx(80 * GIB)


def test_findings_have_the_times_of_the_recording(tmp_path, rules):
    ticks = [((time - scenario.START) / 1000, batches) for time, batches in scenario.storm()]
    ticks[0][1].append(scenario.LAUNCH)
    data = collect(record(tmp_path / "storm.rec", ticks), rules)
    storm = next(finding for finding in data.findings if finding.id == "kv_preemption_storm")
    assert storm.state == "firing"
    assert 0 < storm.since - data.started <= 1000 * len(ticks)
    assert storm.evidence


def test_a_cut_recording_is_a_run_that_says_so(tmp_path, rules):
    path = record(tmp_path / "a.rec", steady(10))
    path.write_bytes(path.read_bytes()[:-20])
    data = collect(path, rules)
    assert data.cut
    assert data.ticks > 0


def test_a_recording_without_ticks_is_an_empty_run(tmp_path, rules):
    data = collect(record(tmp_path / "empty.rec", []), rules)
    assert (data.ticks, data.engines, data.gpus, data.seconds) == (0, (), (), 0)


def test_after_a_clock_went_back_time_goes_on(tmp_path, rules):
    ticks = [(second, [page(second, tokens=10 * second)]) for second in range(20, 31)]
    ticks += [(second, [page(second, tokens=300 + 10 * second)]) for second in range(1, 11)]
    data = collect(record(tmp_path / "a.rec", ticks), rules)
    assert data.seconds == pytest.approx(20, abs=2)
    assert any("the clock went back by 29 s" in problem for problem in data.problems)
    (engine,) = data.engines
    assert list(engine.curves["running"].times) == sorted(engine.curves["running"].times)
    assert all(window.seconds > 0 for window in engine.windows)


@pytest.mark.parametrize(("later", "words"), [(7230, "no samples for 2 h"), (30 + 86_400, "no samples for 1 d")])
def test_a_session_that_was_appended_later_adds_its_own_time_only(tmp_path, rules, later, words):
    ticks = steady(30) + [(later + second, batches) for second, batches in late(later)]
    data = collect(record(tmp_path / "a.rec", ticks), rules)
    (engine,) = data.engines
    assert sum(window.counted["generation_tokens"] for window in engine.windows) == 6000
    assert added_seconds(engine.windows) == data.sampled_seconds == 60
    (problem,) = data.problems
    assert problem.startswith(words)
    assert "after 0:30" in problem
    assert all(point.counted["generation_tokens"] == 100 * point.seconds for point in for_plot(engine.windows))
    assert "Nothing wrong was found in 1 min" in verdict(data).text


def late(start, seconds=30, rate=100):
    return [
        (second, [page(start + second, tokens=500_000 + rate * second), card(start + second, 60 * GIB)])
        for second in range(seconds + 1)
    ]


def test_an_engine_that_was_silent_for_long_while_others_were_not_is_named(tmp_path, rules):
    ticks = [(second, [card(second, GIB), *([page(second)] if not 10 < second < 50 else [])]) for second in range(61)]
    data = collect(record(tmp_path / "a.rec", ticks), rules)
    assert [problem.partition(":8000 ")[2][:8] for problem in data.problems] == ["for 40 s"]
    assert data.sampled_seconds == 60


def test_a_recording_from_the_future_says_so(tmp_path, rules):
    created = round((time.time() + 3 * 86_400 + 100) * 1000)
    data = collect(record(tmp_path / "a.rec", steady(3), created=created), rules)
    assert any("begins 3 days from now: one of the two clocks is wrong" in problem for problem in data.problems)


def test_sources_that_do_not_answer_are_named(tmp_path, rules):
    ticks = [(0, [LAUNCH, page(0), card(0, GIB)]), (1, [page(1), card(1, GIB)]), (2, [scenario.down(2), card(2, GIB)])]
    data = collect(record(tmp_path / "a.rec", ticks), rules)
    assert [(source.name, source.value) for source in data.silent] == [
        ("engine 127.0.0.1:8000", "unreachable: connection refused")
    ]


def test_a_source_whose_target_is_its_kind_is_named_once(tmp_path, rules):
    gone = Batch("nvml", START + 1000, up=False, reason=Reason.NO_DRIVER, detail="no NVIDIA driver")
    data = collect(record(tmp_path / "a.rec", [(0, [page(0)]), (1, [page(1), gone]), (2, [page(2)])]), rules)
    assert [source.name for source in data.silent] == ["nvml"]


def finding(state="firing", since=START):
    return Finding("queue_growth", "warning", "t", "c", 0.5, (), since=since, state=state)


def test_a_finding_that_comes_and_goes_is_there_in_episodes():
    collector = Collector(Header("node", START, 1.0, "test"))
    for second, findings in (
        (0, []),
        (1, [finding("pending")]),
        (2, [finding(since=START + 2000)]),
        (5, []),
        (9, [finding(since=START + 8000)]),
        (12, [finding("resolved", START + 8000)]),
        (20, [finding(since=START + 20_000)]),
    ):
        collector.take(Tick(START + 1000 * second, ()))
        collector.found(START + 1000 * second, findings)
    data = collector.result("a", "", Unjudged(), ())
    (known,) = data.findings
    assert (known.state, known.since) == ("firing", START + 2000)
    assert [(a - START, None if b is None else b - START) for a, b in data.times_of(known)] == [
        (2000, 5000), (8000, 12_000), (20_000, None),
    ]  # fmt: skip
    assert when(data, known) == "3 times from 0:02 to the end, 7 s in all"
    assert [(mark.start, mark.end) for mark in marks_of(data, None)] == [(2, 5), (8, 12), (20, 20)]
