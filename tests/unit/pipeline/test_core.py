from __future__ import annotations

from dataclasses import replace

import pytest
from unit.pipeline import scenario
from unit.pipeline.scenario import HOST, LAUNCH, SERVER, START, down, page, storm

from gpuwatch.alerts.rulefile import RuleSet, load, shipped_paths
from gpuwatch.model import LogLine
from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.pipeline.replay import replay
from gpuwatch.recording import Header, Reader, Writer


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    return load(shipped_paths())


@pytest.fixture
def pipeline(rules):
    return Pipeline(Settings(HOST), rules, START)


def ids(result):
    return [finding.id for finding in result.findings]


def run(pipeline, ticks, writer=None):
    return [pipeline.tick(time, batches, writer) for time, batches in ticks]


def test_a_storm_is_found_before_the_engines_own_counter_moves(pipeline):
    results = run(pipeline, [(START - 1, [LAUNCH]), *storm()])
    first = next(result.time for result in results if "kv_preemption_storm" in ids(result))
    counter_moves = START + 1000 * (10 + 7)
    assert first < counter_moves
    assert ids(results[-1])[0] == "kv_preemption_storm"


def test_the_storms_advice_names_the_forced_pool_first_with_the_values_of_the_launch(pipeline):
    finding = run(pipeline, [(START - 1, [LAUNCH]), *storm()])[-1].findings[0]
    assert (finding.advice[0].flag, finding.advice[0].current) == ("--num-gpu-blocks-override", "40")
    sequences = next(item for item in finding.advice if item.flag == "--max-num-seqs")
    assert sequences.current == "16"
    # 5,120 tokens over the 1,100 or so that each of the four running requests held
    assert 1 <= int(sequences.proposed or "") <= 4


def test_an_engine_that_stops_answering_is_reported_and_its_figures_vanish(pipeline):
    ticks = [(START + 1000 * s, [page(s, scenario.STORM[0])]) for s in range(5)]
    ticks += [(START + 1000 * s, [down(s)]) for s in range(5, 40)]
    result = run(pipeline, ticks)[-1]
    assert "engine_down" in ids(result)
    assert pipeline.snapshot(result).answer("kv_usage").samples == ()


def test_a_source_that_goes_silent_is_late_after_ten_seconds_and_its_series_end(pipeline):
    run(pipeline, [(START, [page(0, scenario.STORM[1])])])
    for second in range(1, 13):
        result = pipeline.tick(START + 1000 * second, [])
    (state,) = pipeline.source_states(result.time)
    assert (state.up, state.reason, state.age) == (False, "hung", 12.0)
    assert pipeline.snapshot(result).answer("running").samples == ()


def test_a_source_is_not_late_because_nobody_looked_for_a_while(pipeline):
    run(pipeline, [(START + 1000 * s, [page(s, scenario.STORM[1])]) for s in range(3)])
    result = pipeline.tick(START + 62_000, [])  # the machine slept
    assert pipeline.source_states(result.time)[0].up
    for second in range(63, 75):
        result = pipeline.tick(START + 1000 * second, [])
    (state,) = pipeline.source_states(result.time)
    assert (state.up, state.reason) == (False, "hung")  # eleven seconds in which we looked


def test_the_snapshot_answers_the_catalogue_with_labels(pipeline):
    result = run(pipeline, storm())[-1]
    snapshot = pipeline.snapshot(result)
    assert snapshot.answer("kv_usage").get(server=SERVER) == 0.33
    assert snapshot.answer("kv_tokens").get(server=SERVER) == 5120.0
    assert snapshot.answer("gpu_memory_used").samples == ()
    assert not [name for name, answer in snapshot.answers.items() if answer.error]


def test_numeric_facts_become_series_of_the_scraped_engine(pipeline):
    result = run(pipeline, [(START - 1, [LAUNCH]), *storm()])[-1]
    assert pipeline.snapshot(result).answer("max_num_seqs").get(server=SERVER) == 16.0


def test_what_the_page_gives_itself_is_not_given_twice(pipeline):
    own = scenario.series("gpuwatch_engine_config_max_num_seqs", **scenario.SERVER_LABELS)
    batch = page(0, scenario.STORM[0])
    batch = replace(batch, keys=(*batch.keys, own), values=(*batch.values, 8.0))
    result = run(pipeline, [(START - 1, [LAUNCH]), (START, [batch])])[-1]
    assert [value for _, value in pipeline.snapshot(result).answer("max_num_seqs").samples] == [8.0]


def test_the_past_can_be_asked_for_as_far_as_it_is_kept(rules):
    pipeline = Pipeline(Settings(HOST, history_ms=10_000), rules, START)
    run(pipeline, storm())
    last = START + 1000 * 18
    assert pipeline.at(last - 5000).answer("running").get(server=SERVER) == 4.0
    with pytest.raises(LookupError):
        pipeline.at(last - 11_000)
    with pytest.raises(LookupError):
        pipeline.at(last + 5000)


def test_a_replay_comes_to_the_same_findings_at_the_same_times(tmp_path, rules):
    live = Pipeline(Settings(HOST), rules, START)
    path = tmp_path / "storm.rec"
    writer = Writer(path, Header(HOST, START, 1.0, "test"))
    seen = run(live, [(START - 1, [LAUNCH]), *storm(), *[(START + 1000 * s, [down(s)]) for s in range(19, 60)]], writer)
    writer.close()
    again = list(replay(path, rules))
    assert [r.time for r in again] == [r.time for r in seen]
    assert [r.findings for r in again] == [r.findings for r in seen]
    assert any("engine_down" in ids(r) for r in again)


def test_a_recording_that_starts_late_carries_the_facts_known_by_then(tmp_path, rules):
    pipeline = Pipeline(Settings(HOST), rules, START)
    run(pipeline, [(START - 1, [LAUNCH]), *storm()[:10]])
    writer = Writer(tmp_path / "late.rec", Header(HOST, START, 1.0, "test"))
    run(pipeline, storm()[10:], writer)
    writer.close()
    first = next(Reader(tmp_path / "late.rec").ticks())
    assert {fact.key for fact in first.batches[0].facts} >= {"max_num_seqs", "kv.blocks_override"}


def test_log_lines_reach_the_snapshot_newest_last(pipeline):
    line = LogLine("vllm.log", 1, START, "INFO", "hello")
    batch = scenario.Batch("log:vllm.log", START, lines=(line, replace(line, line=2, text="again")))
    result = run(pipeline, [(START, [batch])])[-1]
    assert [item.text for item in pipeline.snapshot(result).lines] == ["hello", "again"]


def test_a_moment_that_is_not_kept_says_how_far_back_one_can_look(pipeline):
    run(pipeline, [(START, []), (START + 1000, [])])
    with pytest.raises(LookupError, match=r"the oldest is 30 s away$"):
        pipeline.at(START - 30_000)
    with pytest.raises(LookupError, match=rf"the oldest is of {START}$"):
        pipeline.at(0)
