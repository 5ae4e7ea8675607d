from __future__ import annotations

import re

import pytest

from gpuwatch.dashboards.expressions import for_bars, for_panel, for_table, labels_of, metrics_of
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


def test_alerts_are_narrowed_by_cluster_and_host_only():
    assert for_panel('ALERTS{alertstate="firing"}', ["cluster", "host", "server"]) == (
        'ALERTS{alertstate="firing", cluster=~"$cluster", host=~"$host"}'
    )
    assert labels_of("ALERTS") == ("cluster", "host")


def test_what_is_told_apart_by_host_is_told_apart_by_cluster():
    joined = "max by (host, uuid) (gpuwatch_gpu_power_watts) * on (host, uuid) group_right () gpuwatch_gpu_engine"
    assert for_panel(joined, []) == (
        "max by (cluster, host, uuid) (gpuwatch_gpu_power_watts) "
        "* on (cluster, host, uuid) group_right () gpuwatch_gpu_engine"
    )
    assert for_panel("count by (severity) (gpuwatch_finding_info)", []) == (
        "count by (severity) (gpuwatch_finding_info)"
    )


@pytest.fixture(scope="module")
def twins():
    """Answers of one machine name in two clusters: two GPUs in use by an engine in one, four in the other."""
    store = Store()
    for cluster, gpus in (("east", 2), ("west", 4)):
        machine = {"cluster": cluster, "host": "node-a"}
        rows = {series("gpuwatch_build_info", **machine, version="1"): 1.0}
        for number in range(gpus):
            card = {**machine, "gpu": str(number), "uuid": f"GPU-{number}"}
            rows[series("gpuwatch_gpu_info", **card)] = 1.0
            rows[series("gpuwatch_gpu_memory_used_bytes", **card)] = 10.0
            rows[series("gpuwatch_gpu_engine", **card, server="s", basis="process")] = 1.0
            rows[series("gpuwatch_ledger_bytes", **card, component="free")] = 5.0
        store.append(cluster, 1000, tuple(rows), list(rows.values()))
    return LocalQuerier(store)


def asked(querier, expr):
    expr = re.sub(r"\$\w+", ".*", expr)
    return {tuple(dict(labels).values()): value for labels, value in querier.instant(expr, 1000).items()}


def test_machines_of_one_name_in_two_clusters_are_two(twins):
    names = ["cluster", "host"]
    for_gpus = for_table(CATALOGUE["host_gpus"].template, names, names)
    assert asked(twins, for_gpus) == {("east", "node-a"): 2, ("west", "node-a"): 4}
    assert asked(twins, for_panel(CATALOGUE["fleet_hosts"].template, names)) == {(): 2}
    memory = twins.instant(for_panel(CATALOGUE["engine_gpu_memory"].template, []), 1000)
    assert len(memory.labels) == 6
    bars = for_bars(CATALOGUE["ledger_free"].template, names, ["cluster", "host", "gpu"])
    assert asked(twins, bars) == {(f"east node-a gpu {number}",): 5 for number in range(2)} | {
        (f"west node-a gpu {number}",): 5 for number in range(4)
    }


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
