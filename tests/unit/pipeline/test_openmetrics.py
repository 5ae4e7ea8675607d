from __future__ import annotations

import math
from contextlib import closing

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpuwatch.alerts.rulefile import RuleSet
from gpuwatch.model import Batch, series
from gpuwatch.pipeline.openmetrics import History, replayed
from gpuwatch.recording import Header, RecordingError, Writer

NOW = 1_700_000_000_000
GPU = {"host": "h", "uuid": "u", "gpu": "0"}


def text(history):
    return "".join(history.lines())


def test_a_gauge_is_written_with_its_help_and_its_times_in_seconds():
    history = History()
    labels = series("gpuwatch_gpu_power_watts", **GPU)
    history.add(labels, NOW, 250.5)
    history.add(labels, NOW + 1500, 251)
    assert text(history) == (
        "# TYPE gpuwatch_gpu_power_watts gauge\n"
        "# HELP gpuwatch_gpu_power_watts power draw\n"
        'gpuwatch_gpu_power_watts{gpu="0",host="h",uuid="u"} 250.5 1700000000.000\n'
        'gpuwatch_gpu_power_watts{gpu="0",host="h",uuid="u"} 251.0 1700000001.500\n'
        "# EOF\n"
    )


def test_a_counter_family_has_no_total_in_its_name():
    history = History()
    history.add(series("gpuwatch_gpu_pcie_replays_total", **GPU), NOW, 3)
    assert text(history).splitlines()[::2] == [
        "# TYPE gpuwatch_gpu_pcie_replays counter",
        'gpuwatch_gpu_pcie_replays_total{gpu="0",host="h",uuid="u"} 3.0 1700000000.000',
    ]


def test_a_moment_of_a_histogram_stands_together_with_its_bounds_in_order():
    history = History()
    name = "gpuwatch_engine_queue_time_seconds"
    for time in (NOW, NOW + 1000):
        for le, value in (("+Inf", 5), ("10.0", 4), ("2.0", 1)):
            history.add(series(f"{name}_bucket", host="h", le=le), time, value)
        history.add(series(f"{name}_sum", host="h"), time, 12.5)
        history.add(series(f"{name}_count", host="h"), time, 5)
    lines = [line for line in text(history).splitlines() if not line.startswith("#")]
    moment = [
        f'{name}_bucket{{host="h",le="2.0"}} 1.0 ',
        f'{name}_bucket{{host="h",le="10.0"}} 4.0 ',
        f'{name}_bucket{{host="h",le="+Inf"}} 5.0 ',
        f'{name}_count{{host="h"}} 5.0 ',
        f'{name}_sum{{host="h"}} 12.5 ',
    ]
    assert lines == [line + "1700000000.000" for line in moment] + [line + "1700000001.000" for line in moment]


def test_another_parser_reads_the_same_values():
    history = History()
    samples = {
        series("gpuwatch_gpu_power_watts", **GPU): 250.5,
        series("gpuwatch_gpu_temperature_celsius", **GPU): math.inf,
        series("gpuwatch_gpu_xid_errors_total", **GPU, xid="79"): 2.0,
        series("gpuwatch_engine_info", host='a "quoted" \\ host', server="s"): 1.0,
        series("gpuwatch_engine_queue_time_seconds_bucket", host="h", le="+Inf"): 7.0,
        series("gpuwatch_engine_queue_time_seconds_count", host="h"): 7.0,
        series("gpuwatch_engine_queue_time_seconds_sum", host="h"): 1.25,
        series("ALERTS", alertname="A", alertstate="firing"): 1.0,
    }
    for labels, value in samples.items():
        history.add(labels, NOW, value)
    read = {
        series(sample.name, **sample.labels): (sample.value, float(sample.timestamp))
        for family in text_string_to_metric_families(text(history))
        for sample in family.samples
    }
    assert read == {labels: (value, NOW / 1000) for labels, value in samples.items()}


def test_a_sample_that_is_not_newer_is_left_out():
    history = History()
    labels = series("gpuwatch_gpu_power_watts", **GPU)
    for time in (NOW, NOW, NOW - 1000, NOW + 1):
        history.add(labels, time, 1.0)
    assert text(history).count("\ngpuwatch_gpu_power_watts{") == 2


def test_a_step_thins_each_series_out():
    history = History(step_ms=15_000)
    labels = series("gpuwatch_gpu_power_watts", **GPU)
    for second in range(31):
        history.add(labels, NOW + 1000 * second, float(second))
    values = [line.split()[1] for line in text(history).splitlines() if not line.startswith("#")]
    assert values == ["0.0", "15.0", "30.0"]


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "run.rec"
    writer = Writer(path, Header("h", NOW, 1.0, "test"))
    keys = (series("gpuwatch_gpu_power_watts", **GPU), series("gpuwatch_gpu_memory_used_bytes", **GPU))
    for second in range(3):
        kept = keys if second < 2 else keys[:1]
        writer.write(Batch("nvml", NOW + 1000 * second, kept, [100.0 + second, 5e9][: len(kept)]))
        writer.tick(NOW + 1000 * second + 250)
    writer.close()
    return path


def test_a_recording_gives_its_own_series_and_the_derived_ones(recording):
    history, cut = replayed(recording, RuleSet())
    lines = text(history).splitlines()
    assert cut == ""
    power = [line.split()[1:] for line in lines if line.startswith("gpuwatch_gpu_power_watts{")]
    assert power == [["100.0", "1700000000.000"], ["101.0", "1700000001.000"], ["102.0", "1700000002.000"]]
    assert sum(line.startswith("gpuwatch_gpu_memory_used_bytes{") for line in lines) == 2
    assert any(line.startswith("gpuwatch_gpu_memory_peak_bytes{") for line in lines)


def test_what_a_cut_recording_holds_is_given_with_the_reason(recording):
    recording.write_bytes(recording.read_bytes()[:-12])
    history, cut = replayed(recording, RuleSet())
    assert "end is missing" in cut
    assert history.series > 0


def test_what_comes_after_the_clock_was_set_back_goes_on_behind_what_was_there(tmp_path):
    path = tmp_path / "back.rec"
    with closing(Writer(path, Header("h", NOW, 1.0, "test"))) as writer:
        for second in range(6):
            time = NOW + 1000 * second - (3_600_000 if second > 2 else 0)
            writer.write(Batch("nvml", time, (series("gpuwatch_gpu_power_watts", **GPU),), [float(second)]))
            writer.tick(time + 250)
    history, cut = replayed(path, RuleSet())
    lines = text(history).splitlines()
    power = [line.split()[1:] for line in lines if line.startswith("gpuwatch_gpu_power_watts{")]
    assert power == [[f"{second}.0", f"170000000{second}.000"] for second in range(6)]
    assert (history.set_back, cut) == ([3_599_000], "")  # from 2 s to 3 s less an hour


def test_what_is_no_recording_is_refused(tmp_path):
    (tmp_path / "x").write_text("no")
    with pytest.raises(RecordingError, match="not a gpuwatch recording"):
        replayed(tmp_path / "x", RuleSet())
