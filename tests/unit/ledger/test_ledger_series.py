"""The ledger's series, made of the batches of NVML, an engine's page and the settings of its log."""

from __future__ import annotations

import pytest

from gpuwatch.ledger.reconcile import COMPONENTS
from gpuwatch.model import Batch, Fact, Reason, label, name_of, series
from gpuwatch.sources.derived.ledger import Ledger

GIB = 2**30
SERVER = {"host": "h", "server": "a:1"}
STATED = {"weights": 16.0, "kv_cache": 50.0, "activation_peak": 3.0, "graph": 2.0}


class Machine:
    """One GPU and one engine, told to a `Ledger` second by second; amounts in GiB."""

    def __init__(self):
        self.ledger = Ledger()
        self.keys = {}
        self.time = 0

    def tick(self, *batches, seconds=1.0):
        self.time += int(seconds * 1000)
        made = self.ledger.update(self.time, [self._now(batch) for batch in batches])
        rows = list(zip(made.keys, made.values, strict=True))
        self.growth = next((value / GIB for key, value in rows if name_of(key) == "gpuwatch_ledger_growth_bytes"), None)
        return {label(key, "component"): value / GIB for key, value in rows if label(key, "component")}

    def _now(self, batch):
        return batch if not batch.up else Batch(batch.target, self.time, batch.keys, batch.values, facts=batch.facts)

    def _batch(self, target, rows, facts=()):
        keys = tuple(rows)
        keys = self.keys.setdefault((target, keys), keys)  # a source gives the same object while nothing changes
        return Batch(target, 0, keys, list(rows.values()), facts=facts)

    def nvml(self, used=75.0, held=73.0, other=1.0, engine=1.0, server="a:1"):
        gpu = {"host": "h", "uuid": "u", "gpu": "0"}
        figures = {"total": 80.0, "used": used, "reserved": 0.5, "free": 79.5 - used, "other": other}
        rows = {
            series(f"gpuwatch_gpu_memory_{name}_bytes", **gpu): value * GIB
            for name, value in figures.items()
            if value is not None
        }
        if held is not None:
            rows[series("gpuwatch_gpu_memory_engine_bytes", **gpu, server=server)] = held * GIB
        rows[series("gpuwatch_gpu_engine", **gpu, server=server, basis="process")] = engine
        return self._batch("nvml", rows)

    def page(self, *usage, facts=()):
        rows = {
            series("gpuwatch_engine_kv_cache_usage_ratio", **SERVER, dp_rank=str(rank) if len(usage) > 1 else ""): value
            for rank, value in enumerate(usage)
        }
        return self._batch("engine:a:1", rows, facts)

    def settings(self, **stated):
        rows = {series(f"gpuwatch_engine_config_{k}_bytes", **SERVER): v * GIB for k, v in (stated or STATED).items()}
        return self._batch("config", rows)


@pytest.fixture
def machine():
    return Machine()


def test_a_card_is_divided_among_all_that_is_known_and_sums_to_its_size(machine):
    parts = machine.tick(machine.nvml(), machine.page(0.8), machine.settings())
    assert parts == pytest.approx(
        {"weights": 16, "kv_used": 40, "kv_free": 10, "work": 5, "rest": 2, "other": 1, "unexplained": 1,
         "reserved": 0.5, "free": 4.5}
    )  # fmt: skip
    assert sum(parts.values()) == pytest.approx(80)
    assert set(parts) < set(COMPONENTS)


def test_the_keys_stay_the_same_object_while_the_components_do(machine):
    first = machine.ledger.update(1000, [machine.nvml(), machine.page(0.8), machine.settings()])
    second = machine.ledger.update(2000, [machine.nvml(used=76.0), machine.page(0.9)])
    assert second.keys is first.keys
    assert second.values != first.values


def test_a_target_without_a_batch_in_this_tick_keeps_its_last_word(machine):
    machine.tick(machine.nvml(), machine.page(0.8), machine.settings())
    assert machine.tick(machine.nvml(used=76.0))["kv_used"] == pytest.approx(40)


def test_several_data_parallel_ranks_leave_the_pool_whole(machine):
    parts = machine.tick(machine.nvml(), machine.page(0.8, 0.2), machine.settings())
    assert parts["kv_pool"] == 50
    assert "kv_used" not in parts


def test_an_engine_that_stops_answering_has_a_pool_of_unknown_use(machine):
    machine.tick(machine.nvml(), machine.page(0.8), machine.settings())
    gone = Batch("engine:a:1", 0, up=False, reason=Reason.UNREACHABLE)
    assert machine.tick(machine.nvml(), gone)["kv_pool"] == 50


def test_an_engine_that_no_process_table_shows_is_taken_at_its_word(machine):
    parts = machine.tick(machine.nvml(held=None, other=None), machine.page(0.8), machine.settings())
    assert parts["unexplained"] == pytest.approx(75 - 16 - 50 - 5)
    assert "rest" not in parts
    assert "other" not in parts


def test_an_engine_without_a_log_is_one_piece(machine):
    parts = machine.tick(machine.nvml(), machine.page(0.8))
    assert parts["engine"] == 73
    assert not {"weights", "kv_used", "kv_pool", "rest"} & set(parts)


def test_a_card_whose_used_memory_cannot_be_read_has_no_ledger(machine):
    gpu = {"host": "h", "uuid": "u", "gpu": "0"}
    total_only = Batch("nvml", 0, (series("gpuwatch_gpu_memory_total_bytes", **gpu),), [80 * GIB])
    assert machine.tick(total_only, machine.page(0.8), machine.settings()) == {}


def test_a_failed_poll_of_nvml_ends_the_ledger(machine):
    machine.tick(machine.nvml(), machine.page(0.8), machine.settings())
    assert machine.tick(Batch("nvml", 0, up=False, reason=Reason.HUNG)) == {}
    machine.ledger.forget("nvml")
    assert machine.tick(machine.page(0.8)) == {}


def test_a_card_of_which_nothing_is_heard_any_more_has_no_ledger(machine):
    machine.tick(machine.nvml(), machine.page(0.8), machine.settings())
    machine.ledger.lose("nvml")
    assert machine.tick(machine.page(0.8)) == {}
    assert machine.tick(machine.nvml())["weights"] == 16


def test_growth_is_counted_from_a_minute_after_the_engine_began_to_serve(machine):
    machine.tick(machine.nvml(used=70.0, held=68.0))
    assert machine.growth is None  # the engine does not answer yet
    machine.tick(machine.nvml(used=74.0, held=72.0), machine.page(0.1))
    machine.tick(machine.nvml(used=75.0, held=73.0), machine.page(0.1), seconds=59)
    assert machine.growth is None
    machine.tick(machine.nvml(used=75.0, held=73.0), machine.page(0.1))
    assert machine.growth == 0
    machine.tick(machine.nvml(used=76.5, held=74.5), machine.page(0.9), seconds=3600)
    assert machine.growth == pytest.approx(1.5)
    machine.tick(machine.nvml(used=74.0, held=72.0), machine.page(0.0), seconds=1)
    assert machine.growth == pytest.approx(-1)


def served(machine, **more):
    """Let the engine serve for a minute."""
    machine.tick(machine.nvml(**more), machine.page(0.1))
    machine.tick(machine.nvml(**more), machine.page(0.1), seconds=60)


def test_a_foreign_process_is_no_growth(machine):
    served(machine)
    machine.tick(machine.nvml(used=78.0, other=4.0), machine.page(0.1))
    assert machine.growth == 0


def test_one_failed_poll_is_no_restart(machine):
    served(machine)
    machine.tick(machine.nvml(used=76.0, held=74.0), Batch("engine:a:1", 0, up=False, reason=Reason.TIMEOUT))
    assert machine.growth == pytest.approx(1)
    machine.tick(machine.nvml(used=76.0, held=74.0), machine.page(0.1))
    assert machine.growth == pytest.approx(1)


def test_a_restart_begins_anew(machine):
    served(machine)
    restarted = (Fact("engine_restarted", "process start", "a:1/metrics", server="a:1"),)
    machine.tick(machine.nvml(used=77.0, held=75.0), machine.page(0.1, facts=restarted))
    assert machine.growth is None
    machine.tick(machine.nvml(used=77.0, held=75.0), machine.page(0.1), seconds=60)
    assert machine.growth == 0


def test_other_engines_on_the_card_begin_anew_after_ten_seconds(machine):
    served(machine)
    machine.tick(machine.nvml(engine=0.0))
    assert machine.growth is None
    machine.tick(machine.nvml(engine=0.0), seconds=10)
    machine.tick(machine.nvml(), machine.page(0.1))
    assert machine.growth is None
    machine.tick(machine.nvml(), machine.page(0.1), seconds=60)
    assert machine.growth == 0


def test_an_engine_that_a_look_at_the_processes_misses_for_a_moment_begins_nothing_anew(machine):
    served(machine)
    for _ in range(9):
        machine.tick(machine.nvml(used=76.0, held=74.0, engine=0.0), machine.page(0.1))
        assert machine.growth is None
    machine.tick(machine.nvml(used=76.0, held=74.0), machine.page(0.1))
    assert machine.growth == pytest.approx(1)


def test_what_an_engine_holds_that_is_not_polled_is_no_growth(machine):
    def both(b, used):
        batch = machine.nvml(used=used, held=40.0)
        gpu = {"host": "h", "uuid": "u", "gpu": "0"}
        more = {series("gpuwatch_gpu_engine", **gpu, server="b:1", basis="process"): 1.0}
        if b is not None:
            more[series("gpuwatch_gpu_memory_engine_bytes", **gpu, server="b:1")] = b * GIB
        return machine._batch("nvml", dict(zip(batch.keys, batch.values, strict=True)) | more)

    machine.tick(both(20.0, 62.0), machine.page(0.1))
    machine.tick(both(20.0, 62.0), machine.page(0.1), seconds=60)
    assert machine.growth == 0
    machine.tick(both(25.0, 67.5), machine.page(0.1))
    assert machine.growth == pytest.approx(0.5)
    machine.tick(both(None, 67.5), machine.page(0.1))
    assert machine.growth is None  # how much of it is that engine's is not known


def test_the_smallest_card_of_an_engine_is_its_capacity(machine):
    machine.tick(machine.nvml())
    assert machine.ledger.capacities() == {("h", "a:1"): 80 * GIB}
    machine.tick(machine.nvml(engine=0.0))
    assert machine.ledger.capacities() == {}


def test_what_an_engine_states_and_does_not_hold_is_a_series_of_its_own(machine):
    def missing(*batches):
        made = machine.ledger.update(1000, batches)
        rows = zip(made.keys, made.values, strict=True)
        return [(label(key, "uuid"), value / GIB) for key, value in rows if "missing" in name_of(key)]

    assert missing(machine.nvml(), machine.page(0.8), machine.settings()) == [("u", 0)]
    asleep = machine.nvml(used=5.0, held=4.0)
    assert missing(asleep, machine.page(0.0), machine.settings()) == [("u", 16 + 50 - 4)]
    assert machine.tick(asleep)["engine"] == 4
    hidden = Machine()
    made = hidden.ledger.update(1000, [hidden.nvml(held=None), hidden.page(0.8), hidden.settings()])
    assert not [key for key in made.keys if "missing" in name_of(key)]
