from __future__ import annotations

from dataclasses import replace

from unit.pipeline.scenario import HOST, LAUNCH, SERVER, START, storm

from gpuwatch.alerts.rulefile import load, shipped_paths
from gpuwatch.diagnosis.finding import Advice, Finding
from gpuwatch.model import series
from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.pipeline.finding_series import FindingSeries
from gpuwatch.series import METRICS

FINDING = Finding(
    "kv_preemption_storm",
    "critical",
    "title",
    "26 preemptions in 60 s",
    0.9,
    (),
    (Advice("first, in words"), Advice("then this", "--max-num-seqs", "16", "2")),
    labels={"server": SERVER, "uuid": "GPU-1", "model_name": "m", "host": "node-2"},
)


def texts(batch):
    return [dict(key) for key in batch.keys]


def test_a_firing_finding_is_a_series_with_cause_and_the_first_change():
    batch = FindingSeries("me").batch(START, [FINDING])
    assert batch.values == (1.0,)
    assert texts(batch) == [
        {
            "__name__": "gpuwatch_finding_info",
            "host": "node-2",
            "id": "kv_preemption_storm",
            "severity": "critical",
            "server": SERVER,
            "uuid": "GPU-1",
            "cause": "26 preemptions in 60 s",
            "flag": "--max-num-seqs",
            "from": "16",
            "to": "2",
            "advice": "then this",
        }
    ]
    assert set(texts(batch)[0]) - {"__name__"} == set(METRICS["gpuwatch_finding_info"].labels)


def test_the_text_of_the_first_second_is_replaced_after_20_s_and_stays_for_five_minutes_then():
    made = FindingSeries("me")
    first = made.batch(START, [FINDING])
    other = replace(FINDING, cause="30 preemptions in 60 s")
    assert made.batch(START + 19_999, [other]).keys is first.keys
    second = made.batch(START + 20_000, [other])
    assert texts(second)[0]["cause"] == "30 preemptions in 60 s"
    assert made.batch(START + 319_999, [FINDING]).keys is second.keys
    assert texts(made.batch(START + 320_000, [FINDING]))[0]["cause"] == "26 preemptions in 60 s"


def test_a_clock_that_was_set_back_refreshes_instead_of_freezing():
    made = FindingSeries("me")
    made.batch(START, [FINDING])
    later = replace(FINDING, cause="new")
    assert texts(made.batch(START - 60_000, [later]))[0]["cause"] == "new"


def test_a_finding_that_is_over_has_no_series_and_a_new_one_a_new_text():
    made = FindingSeries("me")
    made.batch(START, [FINDING])
    assert made.batch(START + 1, [replace(FINDING, state="resolved")]).keys == ()
    assert texts(made.batch(START + 2, [replace(FINDING, cause="again")]))[0]["cause"] == "again"


def test_texts_are_bounded_and_free_of_control_characters():
    long = replace(
        FINDING, cause="c\x1b[31m\n" + "x" * 5000, advice=(Advice("a" * 5000, "--f" * 500, "1" * 500, "2" * 500),)
    )
    labels = texts(FindingSeries("me").batch(START, [long]))[0]
    assert {name: len(labels[name]) for name in ("cause", "advice", "flag", "from", "to")} == {
        "cause": 400, "advice": 300, "flag": 80, "from": 80, "to": 80,
    }  # fmt: skip
    assert labels["cause"].startswith("cxxx")
    assert labels["cause"].endswith("…")


def test_two_findings_with_the_same_labels_are_one_series_and_many_are_cut_off():
    made = FindingSeries("me")
    twins = [replace(FINDING, labels={"server": "s", "dp_rank": rank}) for rank in "01"]
    assert len(made.batch(START, twins).keys) == 1
    many = [replace(FINDING, labels={"uuid": f"GPU-{i}"}) for i in range(300)]
    assert len(made.batch(START, many).keys) == 200


def test_the_pipeline_offers_it_to_queries_of_the_next_tick():
    pipeline = Pipeline(Settings(HOST), load(shipped_paths()), START)
    for time, batches in [(START - 1, [LAUNCH]), *storm()]:
        result = pipeline.tick(time, batches)
    found = pipeline.querier.instant('gpuwatch_finding_info{id="kv_preemption_storm"}', result.time)
    labels = dict(found.labels[0])
    assert labels["flag"] == "--num-gpu-blocks-override"
    assert labels["from"] == "40"
    assert labels["cause"] == result.findings[0].cause[:400] or labels["cause"]
    everything = {key for column in pipeline.store.columns(result.time) for key in column.labels if key}
    assert (
        series("gpuwatch_source_dropped_total", host=HOST, source="engine", target=SERVER, server=SERVER) in everything
    )
