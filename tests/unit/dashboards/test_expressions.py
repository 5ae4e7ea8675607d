from __future__ import annotations

import pytest

from gpuwatch.dashboards.expressions import for_panel, for_table, labels_of, metrics_of
from gpuwatch.model import series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.queries import CATALOGUE, OVERVIEWS
from gpuwatch.store import Store

GIB = 2**30


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


class Card:
    """A store with one engine on one GPU; answers the queries of the memory ledger in GiB."""

    def __init__(self, held, stated, *, ranks=1, visible=True):
        store = Store()
        gpu = {"host": "h", "uuid": "u", "gpu": "0"}
        engine = {"host": "h", "server": "s", "engine_kind": "vllm"}
        rows = [(series("gpuwatch_gpu_engine", **gpu, server="s", basis="process"), 1.0)]
        if visible:
            rows.append((series("gpuwatch_gpu_memory_engine_bytes", **gpu, server="s"), held * GIB))
        rows += [(series(f"gpuwatch_engine_config_{k}_bytes", **engine), v * GIB) for k, v in stated.items()]
        for rank in range(ranks):
            labels = {**engine, "model_name": "m", "dp_rank": str(rank)}
            rows.append((series("gpuwatch_engine_kv_cache_usage_ratio", **labels), 0.25))
        keys, values = zip(*rows, strict=True)
        store.append("t", 1000, keys, values)
        self.querier = LocalQuerier(store)

    def ledger(self):
        found = {}
        for name in ("weights", "kv_used", "kv_free", "kv_pool", "graphs", "engine_rest"):
            for labels, value in self.querier.instant(OVERVIEWS[f"ledger_{name}"].expr("1m"), 1000).items():
                assert dict(labels)["uuid"] == "u"
                found[name] = value / GIB
        return found


def test_an_engine_is_divided_into_what_it_states_and_the_rest():
    card = Card(70, {"weights": 20, "kv_cache": 40, "graph": 1})
    assert card.ledger() == {"weights": 20, "kv_used": 10, "kv_free": 30, "graphs": 1, "engine_rest": 9}


def test_the_pool_of_several_ranks_is_not_divided_by_a_usage_that_is_not_its_own():
    card = Card(70, {"weights": 20, "kv_cache": 40}, ranks=2)
    assert card.ledger() == {"weights": 20, "kv_pool": 40, "engine_rest": 10}


def test_an_engine_that_states_more_than_it_holds_is_not_divided():
    card = Card(10, {"weights": 20, "kv_cache": 40})
    assert card.ledger() == {"engine_rest": 10}


def test_an_engine_that_states_nothing_is_all_rest():
    assert Card(30, {}).ledger() == {"engine_rest": 30}


def test_an_engine_whose_memory_is_not_visible_has_no_parts():
    assert Card(0, {"weights": 20, "kv_cache": 40}, visible=False).ledger() == {}


@pytest.mark.parametrize("name", ["fleet_critical", "fleet_warnings", "fleet_infos", "fleet_engines_silent"])
def test_a_count_is_zero_only_where_gpuwatch_is_seen(name):
    empty = LocalQuerier(Store())
    assert dict(empty.instant(CATALOGUE[name].expr("1m"), 1000).items()) == {}
    store = Store()
    store.append("t", 1000, (series("gpuwatch_build_info", host="h", version="1"),), [1.0])
    assert dict(LocalQuerier(store).instant(CATALOGUE[name].expr("1m"), 1000).items()) == {(): 0.0}
