"""The ledger of a running engine: divided, predicted, recorded and replayed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from unit.pipeline.scenario import HOST, SERVER, SERVER_LABELS, START, STORM, page

from gpuwatch.alerts.rulefile import RuleSet
from gpuwatch.exporter.snapshot_json import decode, encode
from gpuwatch.model import Batch, Fact, label, series
from gpuwatch.pipeline.core import Pipeline, Settings
from gpuwatch.recording import Header, Reader, Writer

GIB = 2**30
GPU = {"host": HOST, "uuid": "GPU-1", "gpu": "0"}
NVML_KEYS = (
    series("gpuwatch_gpu_memory_total_bytes", **GPU),
    series("gpuwatch_gpu_memory_used_bytes", **GPU),
    series("gpuwatch_gpu_memory_free_bytes", **GPU),
    series("gpuwatch_gpu_memory_engine_bytes", **GPU, server=SERVER),
    series("gpuwatch_gpu_engine", **GPU, server=SERVER, basis="process"),
)
BY = "command line of process 7"
MODEL = Fact("model", "Qwen/Qwen3-8B", BY, server=SERVER)
STATED = (
    Fact("weights.bytes", 15.27 * GIB, "vllm.log", 20, server=SERVER),
    Fact("kv.bytes", 48.0 * GIB, "vllm.log", 21, server=SERVER),
)


def card(second=0, total=80.0):
    figures = (total, 70.0, total - 70.0, 69.0)
    return Batch("nvml", START + 1000 * second, NVML_KEYS, (*(GIB * value for value in figures), 1.0))


def launch(*facts):
    return Batch(f"launch:{SERVER}", START, facts=facts)


@pytest.fixture
def pipeline():
    return Pipeline(Settings(HOST), RuleSet(), START)


def tick(pipeline, second, *batches):
    return pipeline.tick(START + 1000 * second, batches)


def predicted(pipeline, result):
    samples = pipeline.snapshot(result).answer("ledger_predicted").samples
    return {label(labels, "component"): value for labels, value in samples}


def test_weights_and_pool_of_a_known_model_are_predicted_for_the_card(pipeline):
    result = tick(pipeline, 0, launch(MODEL), page(0, STORM[0]), card())
    found = predicted(pipeline, result)
    # 8.19 billion parameters in 16 bits
    assert found["weights"] / GIB == pytest.approx(15.27, rel=0.01)
    # vLLM 0.32: 0.92 of the card, less weights, activations and graphs
    assert found["kv_pool"] == pytest.approx(0.92 * 80 * GIB - found["weights"] - found["work"], rel=0.001)
    labels = pipeline.snapshot(result).answer("ledger_predicted").samples[0][0]
    assert {key: label(labels, key) for key in SERVER_LABELS} == SERVER_LABELS


def test_facts_that_come_later_change_the_prediction(pipeline):
    tick(pipeline, 0, launch(MODEL), page(0, STORM[0]), card())
    half = launch(Fact("memory_fraction", 0.46, BY, server=SERVER), Fact("tp", 2, BY, server=SERVER))
    found = predicted(pipeline, tick(pipeline, 1, half, page(1, STORM[0]), card(1)))
    assert found["weights"] / GIB == pytest.approx(15.27 / 2, rel=0.01)
    assert found["kv_pool"] < 0.46 * 80 * GIB
    card_as_the_engine_saw_it = launch(Fact("gpu.total_bytes", 40.0 * GIB, "vllm.log", 9, server=SERVER))
    found = predicted(pipeline, tick(pipeline, 2, card_as_the_engine_saw_it, page(2, STORM[0]), card(2)))
    assert found["kv_pool"] < 0.46 * 40 * GIB


@pytest.mark.parametrize(
    "facts",
    [
        (),
        (replace(MODEL, value="who/knows"),),
        (replace(MODEL, source=f"http://{SERVER}/v1/models"),),  # nothing tells how it was launched
        (replace(MODEL, value="who/knows"), Fact("model.config", "[1]", "config.json", server=SERVER)),
        (replace(MODEL, value="who/knows"), Fact("model.config", '{"hidden_size": "x"}', "c", server=SERVER)),
    ],
)
def test_what_is_not_known_is_not_predicted(pipeline, facts):
    assert predicted(pipeline, tick(pipeline, 0, launch(*facts), page(0, STORM[0]), card())) == {}


def test_without_the_size_of_the_card_nothing_is_predicted(pipeline):
    assert predicted(pipeline, tick(pipeline, 0, launch(MODEL), page(0, STORM[0]))) == {}


def test_an_engine_that_is_no_longer_followed_has_no_prediction(pipeline):
    tick(pipeline, 0, launch(MODEL), page(0, STORM[0]), card())
    pipeline.forget(f"engine:{SERVER}", START + 500)
    assert predicted(pipeline, tick(pipeline, 1, card(1))) == {}


def divided(snapshot):
    return {label(labels, "component"): value / GIB for labels, value in snapshot.answer("gpu_ledger").samples}


def test_statements_of_the_log_divide_what_the_driver_counts(pipeline):
    result = tick(pipeline, 0, launch(MODEL, *STATED), page(0, STORM[1]), card())
    assert divided(pipeline.snapshot(result)) == pytest.approx(
        {"weights": 15.27, "kv_used": 48 * 0.92, "kv_free": 48 * 0.08, "rest": 69 - 63.27, "unexplained": 1, "free": 10}
    )


def test_a_recording_and_a_remote_screen_show_the_same_ledger(pipeline, tmp_path):
    path = tmp_path / "run.rec"
    writer = Writer(path, Header(HOST, START, 1.0, "test"))
    result = pipeline.tick(START, [launch(MODEL, *STATED), page(0, STORM[1]), card()], writer)
    writer.close()
    snapshot = pipeline.snapshot(result)
    reader = Reader(path)
    replayed = Pipeline(Settings(HOST, "replay"), RuleSet(), START)
    again = [replayed.snapshot(replayed.tick(tick.time, tick.batches)) for tick in reader.ticks()]
    for seen in (again[-1], decode(encode(snapshot))):
        assert divided(seen) == divided(snapshot)
        assert len(seen.answer("ledger_predicted").samples) == 4
        assert seen.answer("ledger_predicted") == snapshot.answer("ledger_predicted")


def test_who_watches_no_engine_does_without_the_arithmetic_of_predictions():
    code = "import sys, gpuwatch.pipeline.core; print(sorted(m for m in sys.modules if 'gpuwatch.ledger.p' in m))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == "[]"
