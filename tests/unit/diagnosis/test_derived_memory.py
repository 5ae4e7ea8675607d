from __future__ import annotations

import time as wall

import pytest

from gpuwatch.model import Batch, Reason, series
from gpuwatch.sources.derived.derive import Derived
from tests.unit.diagnosis.storms import KEYS, START, VLLM_0_31_0, read, values

GIB = 1 << 30
GPU = {"host": "h", "uuid": "GPU-a", "gpu": "0"}
MEMORY = tuple(
    series("gpuwatch_gpu_memory_" + name, **GPU) for name in ("used_bytes", "used_low_bytes", "used_high_bytes")
)
PLACED = series("gpuwatch_gpu_engine", **GPU, server="127.0.0.1:8000", basis="process")
OTHER = series("gpuwatch_gpu_engine", **GPU, server="127.0.0.1:8001", basis="process")
PEAK = "gpuwatch_gpu_memory_peak_bytes"
STEP = "gpuwatch_gpu_memory_step_bytes"
TRANSIENT = "gpuwatch_gpu_memory_transient_bytes"
ENGINE = "engine:127.0.0.1:8000"


class Card:
    """One GPU whose used memory is given tick by tick as (used, low, high) in GiB, or one number for all three."""

    def __init__(self) -> None:
        self.derived, self.second, self.out = Derived("h"), 0, None

    def __call__(self, *readings, engine=True, others=(), every: int = 1) -> Card:
        for reading in readings:
            used, low, high = reading if isinstance(reading, tuple) else (reading,) * 3
            now = START + self.second * 1000
            keys, row = (*MEMORY, PLACED, *others), [used * GIB, low * GIB, high * GIB, 1.0, *(1.0 for _ in others)]
            page = Batch(ENGINE, now, KEYS, values(VLLM_0_31_0[2]))
            if not engine:
                page = Batch(ENGINE, now, up=False, reason=Reason.UNREACHABLE)
            self.out = self.derived.update(now, [page, Batch("nvml", now, keys, row)])
            self.second += every
        return self

    def __getitem__(self, name: str) -> float | None:
        value = read(self.out, name)
        return None if value is None else value / GIB


def test_a_peak_between_two_ticks_is_held_for_a_minute():
    card = Card()(70, (70, 70, 78), *[70] * 58)
    assert card[PEAK] == 78
    assert card(70)[PEAK] == 78
    assert card(70)[PEAK] == 70


def test_a_step_is_the_rise_above_the_level_before_it():
    assert Card()(70, 70, (75, 70, 78))[STEP] == 8


def test_memory_that_grows_steadily_makes_no_step_of_a_minute():
    # 80 MiB a second are 4.6 GiB in a minute, and 0.78 GiB in ten seconds.
    assert Card()(*(70 + 0.078125 * second for second in range(120)))[STEP] == pytest.approx(0.78125)


@pytest.mark.parametrize(
    ("readings", "step"),
    [
        pytest.param((*[70] * 20, *[72] * 20, 74), 4, id="two parts, half of it at once"),
        pytest.param((*[70] * 18, *[72] * 18, *[74] * 18, 76), 2, id="three parts, none of them half"),
        pytest.param((70, 71, 72, 73, 74, 75, 76, 77, 78), 8, id="eight chunks in eight seconds"),
        pytest.param((*[70] * 20, 75, 70, *[72] * 9, 77), 7, id="from the floor of the ten seconds before"),
    ],
)
def test_a_step_came_at_once_for_a_good_part(readings, step):
    assert Card()(*readings)[STEP] == step


def test_a_step_between_readings_that_are_far_apart_is_one():
    assert Card()(70, 70, 76, every=20)[STEP] == 6


def test_a_fall_within_one_tick_is_no_step():
    assert Card()(78, (70, 70, 78), 70)[STEP] == 0


def test_a_pool_that_was_allocated_before_the_engine_answered_is_no_step():
    card = Card()(1, 20, 73, engine=False)
    assert card[STEP] is None
    assert card(73.6, 73.6)[STEP] == 0
    assert card((77, 73.6, 77))[STEP] == pytest.approx(3.4)


def test_memory_that_comes_back_when_an_engine_wakes_up_is_no_step():
    asleep = series("gpuwatch_engine_asleep", **{key: value for key, value in KEYS[0] if key != "__name__"})
    derived, keys, steps = Derived("h"), (*KEYS, asleep), []
    for second, (used, sleeps) in enumerate([(78, 0), (78, 0), (5, 1), (5, 1), (78, 1), (78, 0), (79, 0)]):
        now = START + 1000 * second
        page = Batch(ENGINE, now, keys, [*values(VLLM_0_31_0[2]), float(sleeps)])
        card = Batch("nvml", now, (*MEMORY, PLACED), [*[float(used * GIB)] * 3, 1.0])
        steps.append(read(derived.update(now, [page, card]), STEP))
    assert steps == [0, 0, None, None, None, 0, GIB]


def test_a_second_engine_that_loads_its_weights_is_no_step_of_the_first():
    card = Card()(30, 30)
    card(40, 60, others=(OTHER,))
    assert card[STEP] is None


def test_memory_that_is_kept_after_a_peak_is_no_transient():
    assert Card()(60, 60, 78, 78, 78)[TRANSIENT] == 0


def test_memory_that_is_given_back_is_a_transient():
    assert Card()(60, 68, 60)[TRANSIENT] == 8
    assert Card()(60, (60, 60, 69), 60)[TRANSIENT] == 9


def test_a_transient_is_measured_from_the_higher_of_both_levels():
    assert Card()(60, 70, 66)[TRANSIENT] == 4
    assert Card()(66, 70, 60)[TRANSIENT] == 4


def test_a_constant_level_makes_neither_steps_nor_transients():
    card = Card()(*[73.6] * 200)
    assert (card[PEAK], card[STEP], card[TRANSIENT]) == (73.6, 0, 0)


def test_a_gpu_without_an_engine_has_no_step():
    derived = Derived("h")
    out = derived.update(START, [Batch("nvml", START, MEMORY, [GIB, GIB, GIB])])
    assert read(out, STEP) is None
    assert read(out, PEAK) == GIB


def test_used_memory_alone_is_enough_where_nothing_reads_at_10_hz():
    derived = Derived("h")
    for second, used in enumerate((60, 68, 60)):
        now = START + second * 1000
        page = Batch(ENGINE, now, KEYS, values(VLLM_0_31_0[2]))
        out = derived.update(now, [page, Batch("nvml", now, (MEMORY[0], PLACED), [used * GIB, 1.0])])
    assert read(out, PEAK) == 68 * GIB
    assert read(out, TRANSIENT) == 8 * GIB


def test_what_a_start_that_failed_took_and_gave_back_is_no_transient():
    card = Card()(1, 30, 69, 1, 1, 40, engine=False)
    assert (card[PEAK], card[TRANSIENT]) == (69, None)
    assert card(73.6)[TRANSIENT] == 0
    assert card((73.6, 73.6, 75), 73.6)[TRANSIENT] == pytest.approx(1.4)


def test_what_an_engine_gives_back_when_it_ends_is_no_transient():
    card = Card()(73.6, 73.6, (40, 40, 73.6))
    assert card[TRANSIENT] == 0
    assert card(1)[TRANSIENT] is None
    assert card(1, 40, engine=False)[TRANSIENT] is None


def test_an_engine_that_sleeps_without_a_word_makes_neither_steps_nor_transients():
    # 4 GiB are left of 66; it wakes up within 4 seconds. The low level leaves the window 60 seconds after second 30.
    card = Card()(*[66] * 20, *[4] * 10)
    assert (card[PEAK], card[STEP], card[TRANSIENT]) == (66, None, None)
    card(20, 40, 60, *[66] * 20, *[4] * 10, 20, 40, 60)
    assert (card[STEP], card[TRANSIENT]) == (None, None)
    card(*[66] * 60)
    assert (card[STEP], card[TRANSIENT]) == (0, 0)
    card((66, 66, 70), 66)
    assert (card[STEP], card[TRANSIENT]) == (4, 4)


def test_a_peak_of_less_than_half_of_what_is_used_is_one():
    assert Card()(40, 79, 40)[TRANSIENT] == 39
    assert Card()(39, 79, 39)[TRANSIENT] is None


def test_a_gpu_that_vanishes_takes_its_peaks_along():
    card = Card()(70, 78)
    now = START + 5000
    lost = (series("gpuwatch_gpu_state", **GPU, state="lost"),)
    assert read(card.derived.update(now, [Batch("nvml", now, lost, [1.0])]), PEAK) is None


def test_a_sampler_that_fails_takes_them_along_too():
    card = Card()(70, 78)
    now = START + 5000
    assert read(card.derived.update(now, [Batch("nvml", now, up=False, reason=Reason.HUNG)]), PEAK) is None


def test_the_levels_of_ticks_are_compared_across_a_missed_tick():
    card = Card()(60, every=15)(68, every=15)
    assert card(60)[TRANSIENT] == 8


def test_a_tick_of_eight_moving_gpus_and_one_engine_is_cheap():
    derived = Derived("h")
    gpus = [{"host": "h", "uuid": f"GPU-{index}", "gpu": str(index)} for index in range(8)]
    keys = tuple(
        series("gpuwatch_gpu_memory_" + name, **gpu)
        for gpu in gpus
        for name in ("used_bytes", "used_low_bytes", "used_high_bytes")
    )
    best = 1.0
    for second in range(120):
        now = START + second * 1000
        row = [float(GIB * (60 + (second * 7 + index) % 11)) for index in range(len(keys))]
        page = values(VLLM_0_31_0[3 + second % 4])
        batches = [Batch("nvml", now, keys, row), Batch(ENGINE, now, KEYS, page)]
        begun = wall.perf_counter()
        derived.update(now, batches)
        if second >= 60:
            best = min(best, wall.perf_counter() - begun)
    # Budget 0.3 ms; the bound leaves room for a machine that is busy with other things.
    assert best < 0.003
