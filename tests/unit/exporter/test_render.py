from __future__ import annotations

import gzip
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString
from unit.exporter.conftest import START, columns_of

from gpuwatch.exporter.collector import GpuwatchCollector
from gpuwatch.exporter.exposition import Exposition
from gpuwatch.exporter.families import family_of
from gpuwatch.exporter.render import Renderer, number
from gpuwatch.model import series
from gpuwatch.series import METRICS
from gpuwatch.store import Store

PROMTOOL = Path(__file__).resolve().parents[3] / ".cache" / "prometheus" / "usr" / "bin" / "promtool"
PAGES = [
    ("vllm-0.32.0-storm.txt",),
    ("vllm-0.32.0-two-ranks.txt", "sglang-0.5.23-two-ranks.txt"),
    ("vllm-0.6.4-v0.txt", "vllm-0.10.2-storm.txt", "sglang-0.4.6.txt"),
    (),
]


def registry(columns):
    made = CollectorRegistry()
    made.register(GpuwatchCollector(lambda: columns))
    return made


@pytest.mark.parametrize("pages", PAGES)
def test_the_text_page_is_byte_for_byte_what_prometheus_client_writes_for_our_collector(pages):
    columns = columns_of(*pages)
    assert Renderer("text").page(columns) == generate_latest(registry(columns))


@pytest.mark.parametrize("pages", PAGES)
def test_the_openmetrics_page_is_byte_for_byte_what_prometheus_client_writes_for_our_collector(pages):
    columns = columns_of(*pages)
    assert Renderer("openmetrics").page(columns) == openmetrics_latest(registry(columns))


@pytest.mark.parametrize("pages", PAGES)
def test_both_pages_hold_every_series_of_the_vocabulary_with_its_value_and_nothing_else(pages):
    columns = columns_of(*pages)
    want = {}
    for column in columns:
        for key, value in zip(column.labels, column.values.tolist(), strict=True):
            if family_of(dict(key)["__name__"]) is not None:
                want[tuple(sorted(dict(key).items()))] = value
    for form, parse in (("text", text_string_to_metric_families), ("openmetrics", parse_openmetrics)):
        page = Renderer(form).page(columns).decode()
        found = {}
        for family in parse(page):
            for sample in family.samples:
                found[tuple(sorted({**sample.labels, "__name__": sample.name}.items()))] = sample.value
        assert found == want, form
        assert "ALERTS" not in page
        assert "job:recorded" not in page


def test_promtool_finds_nothing_to_complain_about():
    page = Renderer("text").page(columns_of("vllm-0.32.0-storm.txt", "sglang-0.5.23-two-ranks.txt"))
    if PROMTOOL.exists():
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    names = [family.name for family in text_string_to_metric_families(page.decode())]
    assert len(names) == len(set(names)) > 30


def test_histograms_are_one_family_with_ascending_buckets_count_and_sum():
    families = {
        family.name: family
        for family in text_string_to_metric_families(
            Renderer("text").page(columns_of("vllm-0.32.0-two-ranks.txt")).decode()
        )
    }
    family = families["gpuwatch_engine_time_to_first_token_seconds"]
    assert family.type == "histogram"
    ranks = {sample.labels["dp_rank"] for sample in family.samples}
    assert ranks == {"0", "1"}
    for rank in ranks:
        own = [sample for sample in family.samples if sample.labels["dp_rank"] == rank]
        bounds = [float(sample.labels["le"]) for sample in own if "le" in sample.labels]
        assert bounds == sorted(bounds)
        assert bounds[-1] == math.inf
        assert [sample.name.rpartition("_")[2] for sample in own[-2:]] == ["count", "sum"]


@given(st.floats())
def test_numbers_are_written_as_prometheus_client_writes_them(value):
    assert number(value) == floatToGoString(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (999_999.0, "999999.0"),
        (1_000_000.0, "1e+06"),
        (1_234_567.5, "1.2345675e+06"),
        (85_899_345_920.0, "8.589934592e+10"),
        (1e22, "1e+22"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_some_numbers_by_hand(value, text):
    assert number(value) == text


def store_with(values, name="gpuwatch_gpu_power_watts"):
    store = Store()
    keys = tuple(series(name, host="n", uuid=f"GPU-{i}", gpu=str(i)) for i in range(len(values)))
    store.append("nvml", START, keys, values)
    return store, keys


def test_a_later_page_shows_changed_values_new_series_and_no_ended_ones():
    store, keys = store_with([1.0, 2.0])
    renderer = Renderer("text")
    assert b'gpu="0",host="n",uuid="GPU-0"} 1.0\n' in renderer.page(store.columns(START))
    store.append("nvml", START + 1000, keys, [1.0, 3.5])
    page = renderer.page(store.columns(START + 1000))
    assert b'uuid="GPU-0"} 1.0\n' in page
    assert b'uuid="GPU-1"} 3.5\n' in page
    store.append("nvml", START + 2000, keys[:1], [7.0])
    page = renderer.page(store.columns(START + 2000))
    assert b'uuid="GPU-0"} 7.0\n' in page
    assert b"GPU-1" not in page
    store.append("nvml", START + 3000, keys, [7.0, 8.0])
    assert b'uuid="GPU-1"} 8.0\n' in renderer.page(store.columns(START + 3000))
    store.mark_stale("nvml", START + 4000)
    assert renderer.page(store.columns(START + 4000)) == b""


def test_a_nan_that_is_a_value_is_exported_and_a_stale_marker_is_not():
    store, keys = store_with([math.nan, 1.0])
    assert b'uuid="GPU-0"} NaN\n' in Renderer("text").page(store.columns(START))
    store.append("nvml", START + 1, keys[1:], [1.0])
    assert b"GPU-0" not in Renderer("text").page(store.columns(START + 1))


def test_a_target_that_was_silent_for_longer_than_the_lookback_is_not_exported():
    store, _ = store_with([1.0])
    assert store.columns(START + 299_999)
    assert store.columns(START + 300_000) == ()


def test_columns_are_copies_that_later_writes_do_not_change():
    store, keys = store_with([1.0])
    columns = store.columns(START)
    store.append("nvml", START + 1, keys, [2.0])
    assert columns[0].values.tolist() == [1.0]
    assert store.columns(START + 1)[0].labels is columns[0].labels


def test_a_label_value_that_is_no_utf8_text_does_not_break_the_page():
    store = Store()
    store.append("log:x", START, (series("gpuwatch_log_lines_total", host="n", log="/tmp/\udcff.log"),), [1.0])
    columns = store.columns(START)
    page = Renderer("text").page(columns)
    assert b'log="/tmp/?.log"' in page
    assert page == generate_latest(registry(columns))


def test_the_collector_names_its_families_before_it_has_values():
    made = CollectorRegistry()
    made.register(GpuwatchCollector(tuple))
    assert generate_latest(made) == b""
    with pytest.raises(ValueError, match="gpuwatch_gpu_power_watts"):
        Gauge("gpuwatch_gpu_power_watts", "ours", registry=made)


def test_a_page_is_rendered_once_per_tick_and_format():
    exposition = Exposition()
    columns = columns_of("vllm-0.32.0-storm.txt")
    exposition.update(columns)
    page = exposition.page("text")
    assert exposition.page("text") is page
    zipped = exposition.page("text", gzip=True)
    assert exposition.page("text", gzip=True) is zipped
    assert gzip.decompress(zipped) == page
    assert len(zipped) < len(page) / 4
    exposition.update(columns_of("vllm-0.32.0-storm.txt", time=START + 1000))
    assert exposition.page("text") is not page
    assert exposition.page("text") == page


def test_before_the_first_tick_a_page_is_empty():
    assert Exposition().page("text") == b""
    assert Exposition().page("openmetrics") == b"# EOF\n"


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_every_family_of_the_vocabulary_can_be_exported(metric):
    labels = dict.fromkeys(metric.labels, "x")
    parts = [""] if metric.kind != "histogram" else ["_bucket", "_count", "_sum"]
    store = Store()
    keys = [series(metric.name + part, **labels, **({"le": "+Inf"} if part == "_bucket" else {})) for part in parts]
    store.append("t", START, tuple(keys), np.ones(len(keys)).tolist())
    columns = store.columns(START)
    assert Renderer("text").page(columns) == generate_latest(registry(columns))
    assert Renderer("openmetrics").page(columns) == openmetrics_latest(registry(columns))
    families = list(parse_openmetrics(Renderer("openmetrics").page(columns).decode()))
    assert [family.type for family in families] == [metric.kind]
