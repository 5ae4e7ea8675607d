"""Evictions that only the KV pool shows: prompts thrown out half computed and admitted again at once."""

from __future__ import annotations

import pytest

from gpuwatch.model import Batch
from gpuwatch.sources.derived.derive import Derived
from gpuwatch.sources.derived.pool import Pool, PoolTrail
from tests.unit.diagnosis.storms import NAMES, START, Page, batch, keys, read, values

TARGET = "engine:127.0.0.1:8000"
EVICTIONS = "gpuwatch_engine_evictions_total"
# Two requests hold 20 of 39 usable blocks (128 tokens each), and their 2,500 tokens were counted. A third is computed:
# five blocks a second.
HELD = Page(0, 2, 3, 20, 0, 4, 2000, 500, 2)
GROWING = (20, 25, 30, 35, 39)


class Engine:
    def __init__(self, page: Page = HELD) -> None:
        self.derived = Derived("h")
        self.page = page
        self.out = self.derived.update(START, [batch(page)])

    def __call__(self, *used, after=1, **changes):
        """Show one page for each number of used blocks, `after` seconds apart."""
        for blocks in used:
            self.page = self.page._replace(at=self.page.at + after, used_blocks=blocks, **changes)
            self.out = self.derived.update(START + self.page.at * 1000, [batch(self.page)])
        return self

    @property
    def evictions(self):
        return read(self.out, EVICTIONS)


def filled(running=3):
    """An engine whose pool was filled by the third prompt a second ago."""
    return Engine()(*GROWING, running=running)


def test_a_prompt_that_is_thrown_out_half_computed_and_admitted_again_at_once_is_counted_each_time():
    engine = filled()
    assert engine(25, 30).evictions == 0
    assert engine(35).evictions == 1
    for loop in range(2, 6):
        assert engine(39, 25, 30, 35).evictions == loop


def test_pages_that_were_missed_in_between_lose_no_fall_that_is_still_to_be_seen():
    engine = Engine()(20, 30, 39, running=3, after=3)
    assert engine(25, 35, after=3).evictions == 1


def test_the_engines_own_counter_proves_it_at_once():
    assert filled()(25)(30, preemptions=1).evictions == 1


def test_an_eviction_that_both_the_places_and_the_pool_show_is_counted_once():
    engine = filled()(25, running=2, waiting=4)
    assert engine(26, 27, 28, 29).evictions == 1
    assert filled()(25, running=1, waiting=5)(26, 27, 28).evictions == 2


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"finished": 5}, id="a request finished"),
        pytest.param({"waiting": 2}, id="a client went away"),
        pytest.param({"prompt_tokens": 4000}, id="a prompt was done, and blocks left the sliding window"),
        pytest.param({"running": 0, "waiting": 6}, id="put to sleep"),
    ],
)
def test_a_fall_beside_an_end_is_no_eviction_of_the_pool(changes):
    engine = filled()(25, **changes)
    before = engine.evictions
    assert engine(30, running=3).evictions == before
    assert engine(35, 39).evictions == before == 0


def test_a_request_that_the_front_end_saw_ending_one_page_earlier_is_no_eviction():
    engine = Engine()(*GROWING[:-1], running=3)
    assert engine(39, finished=5)(25, 30, 35).evictions == 0


def test_a_prompt_that_ends_a_second_later_has_only_freed_what_left_its_window():
    assert filled()(25)(26, prompt_tokens=4500)(27, 28).evictions == 0


def test_the_tokens_of_a_client_that_gives_up_after_its_first_token_were_counted():
    engine = Engine(HELD._replace(running=4, used_blocks=38, prompt_tokens=4000))(38, 39, 39)
    assert engine(28, 36, 38, 39).evictions == 0


@pytest.mark.parametrize(("fall_to", "evictions"), [(31, 0), (30, 1)])
def test_a_fall_by_what_running_requests_free_as_they_run_is_none(fall_to, evictions):
    # Three requests may free and take two blocks each, and two more.
    assert filled()(fall_to, 34, 35).evictions == evictions


@pytest.mark.parametrize(("top", "evictions"), [(33, 0), (34, 1)])
def test_a_pool_that_could_not_have_been_full_by_then_threw_nothing_out(top, evictions):
    # Five blocks a second at most: 33 + 5 of 39 are 97 %, 34 + 5 are all.
    engine = Engine()(20, 24, 29, top, running=3)
    assert engine(22, 26, 30).evictions == evictions


@pytest.mark.parametrize(
    ("pages", "evictions"),
    [
        pytest.param((20, 28, 30, 32, 34), 0, id="it filled fast earlier only"),
        pytest.param((20, 25, 30, 35, 35), 1, id="it filled fast until a second before"),
    ],
)
def test_the_pool_was_at_its_end_if_it_would_have_been_full_at_the_speed_of_the_last_two_seconds(pages, evictions):
    assert Engine()(*pages, running=3)(22, 25, 27).evictions == evictions


@pytest.mark.parametrize(("last", "evictions"), [(27, 0), (28, 1)])
def test_a_page_long_before_the_pool_was_full_proves_nothing(last, evictions):
    # 27 of 39 blocks are 69 %; at 1.6 blocks a second and more the pool is full ten seconds later.
    engine = Engine()(10, after=10)(last, running=3, after=10)
    assert engine(17, 21, running=3, after=10).evictions == evictions


@pytest.mark.parametrize(("counted", "evictions"), [(1537, 0), (1536, 1)])
def test_half_of_what_is_gone_was_never_counted(counted, evictions):
    # The pool grew by 19 blocks (2,432 tokens) and lost 14 (1,792 tokens): 896 of them must not have been counted.
    assert filled()(39, generation_tokens=500 + counted)(25, 30, 35).evictions == evictions


@pytest.mark.parametrize(("fall", "found"), [(20, False), (21, True)])
def test_a_fall_by_less_than_a_hundredth_of_the_pool_is_none(fall, found):
    trail = PoolTrail()
    seen = [
        trail.update(Pool(1000 * second, 1, 4, 9, 500, 16.0 * used, used, 2000, 16))
        for second, used in enumerate((1900, 1950, 1999, 1999 - fall))
    ]
    assert seen == [False, False, False, found]


def test_an_engine_that_frees_blocks_with_room_to_spare_is_not_read_for_ten_minutes():
    engine = Engine()(20, 25, 30, running=3)
    engine(21, 22, 24)
    for _ in range(20):
        engine(29, 34, 39, 25, 26, 24)
    assert engine.evictions == 0
    for _ in range(8):
        engine(24, after=59)
    assert engine(29, 34, 39, 25, 26, 27).evictions == 0
    engine(24, after=50)
    assert engine(29, 34, 39, 25, 26, 27).evictions == 1


def test_a_restart_begins_anew():
    engine = filled()(20, prompt_tokens=0, generation_tokens=0, finished=0)
    assert engine(25, 30, 35, 39).evictions == 0
    assert engine(25, 30, 35).evictions == 1


def test_a_page_without_the_size_of_the_pool_is_not_read():
    own = keys(names=NAMES[:6])
    derived = Derived("h")
    for second, used in enumerate((20, *GROWING, 25, 30, 35, 39)):
        page = HELD._replace(at=second, used_blocks=used, running=3)
        row = [*values(page)[:6], *values(page)[10:]]
        out = derived.update(START + second * 1000, [Batch(TARGET, START + second * 1000, own, row)])
    assert read(out, EVICTIONS) == 0
