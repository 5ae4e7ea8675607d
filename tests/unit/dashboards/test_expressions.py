from __future__ import annotations

import pytest

from gpuwatch.dashboards.expressions import for_panel, for_table, labels_of, metrics_of
from gpuwatch.ledger.reconcile import COMPONENTS
from gpuwatch.model import series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.queries import CATALOGUE, OVERVIEWS
from gpuwatch.store import Store


def test_a_selector_gets_the_variables_that_are_its_labels():
    assert for_panel("gpuwatch_gpu_power_watts", ["host", "server", "gpu"]) == (
        'gpuwatch_gpu_power_watts{host=~"$host", gpu=~"$gpu"}'
    )


def test_matchers_that_are_there_stay():
    assert for_panel('sum(gpuwatch_source_up{source="engine"})', ["host"]) == (
        'sum(gpuwatch_source_up{source="engine", host=~"$host"})'
    )


def test_parts_of_a_histogram_have_the_labels_of_the_histogram():
    found = for_panel("rate(gpuwatch_engine_queue_time_seconds_bucket[$__rate_interval])", ["server"])
    assert found == 'rate(gpuwatch_engine_queue_time_seconds_bucket{server=~"$server"}[$__rate_interval])'


def test_a_fixed_window_of_a_rate_grows_with_the_range_and_others_stay():
    found = for_panel("rate(gpuwatch_engine_evictions_total[1m]) > max_over_time(gpuwatch_gpu_power_watts[1m])", [])
    assert found == (
        "rate(gpuwatch_engine_evictions_total[$__rate_interval]) > max_over_time(gpuwatch_gpu_power_watts[1m])"
    )


def test_alerts_are_narrowed_by_host_only():
    assert for_panel('ALERTS{alertstate="firing"}', ["host", "server"]) == (
        'ALERTS{alertstate="firing", host=~"$host"}'
    )
    assert labels_of("ALERTS") == ("host",)


def test_a_table_keeps_the_labels_of_its_rows_only_and_begins_with_the_largest():
    assert for_table("gpuwatch_gpu_power_watts", ["host"], ["host", "gpu"]) == (
        'sort_desc(max by (host, gpu) (gpuwatch_gpu_power_watts{host=~"$host"}))'
    )


def test_series_are_named_once_in_their_order():
    expr = "gpuwatch_b_x / (gpuwatch_a > 0) + gpuwatch_b_x"
    assert metrics_of(expr) == ("gpuwatch_b_x", "gpuwatch_a")


def test_each_component_of_the_memory_ledger_has_a_query():
    selectors = {f'gpuwatch_ledger_bytes{{component="{component}"}}' for component in COMPONENTS}
    assert {query.expr("1m") for name, query in OVERVIEWS.items() if name.startswith("ledger_")} == selectors


@pytest.mark.parametrize("name", ["fleet_critical", "fleet_warnings", "fleet_infos", "fleet_engines_silent"])
def test_a_count_is_zero_only_where_gpuwatch_is_seen(name):
    empty = LocalQuerier(Store())
    assert dict(empty.instant(CATALOGUE[name].expr("1m"), 1000).items()) == {}
    store = Store()
    store.append("t", 1000, (series("gpuwatch_build_info", host="h", version="1"),), [1.0])
    assert dict(LocalQuerier(store).instant(CATALOGUE[name].expr("1m"), 1000).items()) == {(): 0.0}


def test_reasons_that_lower_the_clocks_at_the_same_time_do_not_add_up():
    gpu = {"host": "h", "uuid": "GPU-0", "gpu": "0"}
    keys = (
        series("gpuwatch_gpu_throttle_seconds_total", **gpu, reason="power"),
        series("gpuwatch_gpu_throttle_seconds_total", **gpu, reason="thermal"),
        series("gpuwatch_gpu_engine", **gpu, server="s", basis="process"),
    )
    store = Store()
    for second in range(61):
        store.append("t", second * 1000, keys, [0.75 * second, 0.5 * second, 1.0])
    (value,) = LocalQuerier(store).instant(CATALOGUE["engine_gpu_throttle"].expr("1m"), 60_000).items()
    assert value[1] == pytest.approx(0.75)
