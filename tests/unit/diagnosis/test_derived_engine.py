from __future__ import annotations

import math

import pytest

from gpuwatch.model import Batch, Reason, series
from gpuwatch.sources.derived.derive import Derived
from gpuwatch.sources.derived.engine import PageRows, engine_rows
from tests.unit.diagnosis.storms import IDENTITY, KEYS, START, VLLM_0_10_2, VLLM_0_31_0, Page, batch, keys, read, values

TARGET = "engine:127.0.0.1:8000"
EVICTIONS = "gpuwatch_engine_evictions_total"
SINCE_TOKEN = "gpuwatch_engine_seconds_since_token"
FROZEN = "gpuwatch_engine_page_frozen_seconds"
LENGTH = "gpuwatch_engine_request_length_seen_tokens"


class Feed:
    """Feeds pages given as changes of a base page, one second apart unless told otherwise."""

    def __init__(self) -> None:
        self.derived = Derived("h")
        self.page = Page(0, 0, 0, 36, 0, 0, 0, 0, 0)
        self.out = None

    def __call__(self, after: int = 1, **changes) -> Feed:
        self.page = self.page._replace(at=self.page.at + after, **changes)
        self.out = self.derived.update(START + self.page.at * 1000, [batch(self.page)])
        return self

    def fail(self, reason: Reason = Reason.TIMEOUT, after: int = 1) -> Feed:
        self.page = self.page._replace(at=self.page.at + after)
        time = START + self.page.at * 1000
        self.out = self.derived.update(time, [Batch(TARGET, time, up=False, reason=reason)])
        return self

    def __getitem__(self, name: str) -> float | None:
        return read(self.out, name)


def evictions_after(pages):
    derived, seen = Derived("h"), {}
    for page in pages:
        out = derived.update(START + page.at * 1000, [batch(page)])
        seen[page.at] = read(out, EVICTIONS)
    return seen


def every_second(pages):
    """A captured storm seen once a second: a page holds until the next one."""
    return [[p for p in pages if p.at <= second][-1]._replace(at=second) for second in range(pages[-1].at + 1)]


def test_the_storm_of_0_10_2_has_three_evictions_and_each_is_counted_when_it_was_not_healed_a_second_later():
    # Running falls 7 -> 6 -> 5 -> 4 at 6, 24 and 30 s while nothing finishes; the engine's own counter stays at 0.
    seen = evictions_after(every_second(VLLM_0_10_2))
    assert [second for second in range(1, 37) if seen[second] > seen[second - 1]] == [7, 25, 31]
    assert seen[36] == 3
    assert evictions_after(VLLM_0_10_2) == {0: 0, 3: 0, 6: 0, 12: 1, 18: 1, 24: 1, 30: 2, 36: 3}


def test_the_storm_of_0_31_0_is_seen_ten_seconds_before_the_engine_counts_one():
    # 5 -> 3 -> 2 at 12 and 18 s, then two requests finish and others take their places: a lower bound.
    seen = evictions_after(every_second(VLLM_0_31_0))
    assert (seen[12], seen[13], seen[18], seen[19], seen[36]) == (0, 2, 2, 3, 3)
    assert next(page.at for page in VLLM_0_31_0 if page.preemptions) == 24


def test_the_counter_is_there_at_zero_from_the_first_page():
    assert Feed()()[EVICTIONS] == 0


@pytest.mark.parametrize("reason", range(3))
def test_a_request_that_finishes_for_any_reason_is_no_eviction(reason):
    derived = Derived("h")
    before, after = values(Page(0, 5, 3, 30, 0, 0, 100, 100, 5)), values(Page(1, 4, 3, 25, 0, 0, 100, 120, 5))
    after[10 + reason] += 1
    derived.update(START, [Batch(TARGET, START, KEYS, before)])
    out = derived.update(START + 1000, [Batch(TARGET, START + 1000, KEYS, after)])
    assert read(out, EVICTIONS) == 0


def test_clients_that_disconnect_leave_no_queue_behind_and_are_no_evictions():
    feed = Feed()(running=6, waiting=10, used_blocks=36)
    assert feed(running=0, waiting=0, used_blocks=0)[EVICTIONS] == 0


def test_a_stop_string_that_the_front_end_sees_one_page_earlier_is_no_eviction():
    feed = Feed()(running=5, waiting=0)
    feed(finished=1)
    assert feed(running=4)[EVICTIONS] == 0


def test_an_eviction_is_counted_although_new_requests_arrive_at_the_same_time():
    feed = Feed()(running=5, waiting=2)
    assert feed(running=4, waiting=9)(after=2)[EVICTIONS] == 1


def test_a_finish_beside_an_eviction_is_told_apart():
    feed = Feed()(running=8, waiting=2)
    assert feed(running=5, waiting=4, finished=1)(after=2)[EVICTIONS] == 2


def test_clients_that_time_out_and_send_again_are_no_evictions():
    # Four of 16 give up every 10 s; their requests join the queue and their places are filled within two seconds.
    feed = Feed()(running=16, waiting=20)
    for _ in range(5):
        feed(running=12, waiting=24, used_blocks=37)(running=16, waiting=20)(after=8)
    assert feed[EVICTIONS] == 0
    feed(running=12, waiting=24)(running=13, waiting=23)(running=16, waiting=20)(after=7)
    assert feed[EVICTIONS] == 0


@pytest.mark.parametrize(
    "refill",
    [
        pytest.param(((6, 4), (14, 11), (20, 15), (27, 21), (32, 25)), id="all 32, some are in again"),
        pytest.param(((0, 0), (0, 0), (6, 4), (14, 11), (20, 15)), id="all 32"),
        pytest.param(((16, 16), (16, 16), (19, 18), (24, 22), (32, 28)), id="half of them"),
    ],
)
def test_clients_that_give_up_all_at_once_and_send_again_are_no_evictions_however_slowly_they_are_admitted(refill):
    # 32 requests of one block each and a queue of 28: the pool of 39 blocks was never full, and is free afterwards.
    feed = Feed()(running=32, waiting=28, used_blocks=33)
    for running, used in refill:
        feed(running=running, waiting=60 - running, used_blocks=used)
    assert feed()()()[EVICTIONS] == 0


@pytest.mark.parametrize(
    ("changes", "evictions"),
    [
        # Eight requests held 37 of 39 blocks: two means of them are 9.25.
        pytest.param({"used_blocks": 28}, 2, id="72 % of the pool is used"),
        pytest.param({"used_blocks": 27}, 0, id="12 blocks are free"),
        pytest.param({"used_blocks": 27, "generation_tokens": 384}, 2, id="three blocks were generated meanwhile"),
        pytest.param({"used_blocks": 27, "prompt_tokens": 384}, 2, id="three blocks were computed meanwhile"),
        pytest.param({"used_blocks": 27, "prompt_tokens": 128}, 0, id="one block was computed meanwhile"),
        pytest.param({"used_blocks": 21, "running": 5, "finished": 1}, 2, id="one finished: 18.5 may be free"),
        pytest.param({"used_blocks": 20, "running": 5, "finished": 1}, 0, id="one finished, and 19 are free"),
        pytest.param({"used_blocks": 10, "preemptions": 1}, 1, id="the engine counted one of them meanwhile"),
        pytest.param({"used_blocks": 10, "running": 7, "waiting": 5}, 1, id="a single one may have held a long prompt"),
    ],
)
def test_several_evictions_leave_no_more_room_than_the_last_victim_held(changes, evictions):
    feed = Feed()(running=8, waiting=4, used_blocks=37)
    assert feed(**{"running": 6, "waiting": 6, **changes})()()[EVICTIONS] == evictions


def test_a_long_prompt_that_is_thrown_out_among_short_ones_leaves_a_pool_with_room():
    # Of 23 requests in a full pool two are thrown out, one of which held 13 of the 39 blocks.
    feed = Feed()(running=23, waiting=18, used_blocks=39)
    assert feed(running=21, waiting=24, used_blocks=25)()()[EVICTIONS] == 2


def test_places_that_are_filled_in_part_leave_the_rest_as_evictions():
    feed = Feed()(running=16, waiting=20)(running=12, waiting=24)(running=14, waiting=22)
    assert feed()()[EVICTIONS] == 2


def test_a_place_that_is_empty_because_its_new_request_finished_is_no_eviction():
    feed = Feed()(running=16, waiting=20)(running=12, waiting=24)(running=15, waiting=20, finished=1)
    assert feed()()[EVICTIONS] == 0


def test_a_victim_that_runs_again_at_once_is_counted_by_the_movement_of_the_engines_own_counter():
    feed = Feed()(running=16, waiting=20)(running=14, waiting=22)
    assert feed(running=16, waiting=20, preemptions=2)()[EVICTIONS] == 2


def test_requests_swapped_to_the_host_are_evictions_too():
    identity = dict(IDENTITY)
    own = (*KEYS, series("gpuwatch_engine_requests_swapped", **identity))
    derived = Derived("h")
    derived.update(START, [Batch(TARGET, START, own, [*values(Page(0, 40, 0, 39, 0, 0, 0, 0, 0)), 0])])
    later = START + 1000
    out = derived.update(later, [Batch(TARGET, later, own, [*values(Page(1, 37, 0, 38, 0, 0, 0, 0, 0)), 3])])
    last = Batch(TARGET, later + 2000, own, [*values(Page(3, 37, 0, 38, 0, 0, 0, 0, 0)), 3])
    assert read(out, EVICTIONS) == 0
    assert read(derived.update(later + 2000, [last]), EVICTIONS) == 3


def test_a_missed_scrape_invents_no_eviction_and_loses_none():
    feed = Feed()(running=6, waiting=10).fail().fail()
    assert feed(running=6, waiting=10)[EVICTIONS] == 0
    feed.fail()
    assert feed(running=4, waiting=12).fail()()[EVICTIONS] == 2


def test_pages_more_than_a_minute_apart_are_not_compared():
    feed = Feed()(running=6, waiting=1)
    assert feed(after=61, running=1, waiting=6)[EVICTIONS] == 0


def test_a_restart_is_no_eviction_and_the_counter_goes_on():
    feed = Feed()(running=6, waiting=10, generation_tokens=500, prompt_tokens=900)
    assert feed(running=4, waiting=12)(after=2)[EVICTIONS] == 2
    feed.fail(Reason.UNREACHABLE)
    # The new process has a queue before it has run anything.
    assert feed(after=20, running=0, waiting=16, generation_tokens=0, prompt_tokens=0)[EVICTIONS] == 2
    feed(running=6, waiting=10)
    assert feed(running=5, waiting=11)(after=2)[EVICTIONS] == 3


def test_a_fall_just_before_a_restart_is_not_counted_after_it():
    feed = Feed()(running=6, waiting=10, generation_tokens=500)(running=4, waiting=12)
    assert feed(running=0, waiting=16, generation_tokens=0)(after=2)[EVICTIONS] == 0


def test_without_finished_requests_nothing_is_derived():
    own = keys(reasons=())
    derived = Derived("h")
    for time, running, waiting in ((START, 6, 2), (START + 1000, 4, 4)):
        page = values(Page(0, running, waiting, 30, 0, 0, 0, 0, 0))[: len(own)]
        out = derived.update(time, [Batch(TARGET, time, own, page)])
    assert read(out, EVICTIONS) is None


def test_data_parallel_ranks_are_counted_apart():
    ranks = [keys({**IDENTITY, "dp_rank": str(rank)}) for rank in range(2)]
    own = (*ranks[0], *ranks[1])
    derived = Derived("h")
    quiet = values(Page(0, 6, 2, 30, 0, 0, 0, 0, 0))
    for time, running, waiting in ((START, 6, 2), (START + 1000, 3, 5), (START + 3000, 3, 5)):
        out = derived.update(
            time, [Batch(TARGET, time, own, [*quiet, *values(Page(0, running, waiting, 30, 0, 0, 0, 0, 0))])]
        )
    assert read(out, EVICTIONS, dp_rank="0") == 0
    assert read(out, EVICTIONS, dp_rank="1") == 3


def test_sglang_gauges_are_refreshed_late_and_are_not_compared():
    own = keys({**IDENTITY, "engine_kind": "sglang"}, names=tuple(n for n in ("requests_running", "requests_waiting")))
    derived = Derived("h")
    for time, running, waiting in ((START, 6, 2), (START + 1000, 3, 5)):
        out = derived.update(time, [Batch(TARGET, time, own, [running, waiting, 0, 0, 0])])
    assert read(out, EVICTIONS) is None


def test_sglang_retractions_are_taken_from_its_own_counter_across_a_restart():
    own = keys({**IDENTITY, "engine_kind": "sglang"}, names=("requests_running", "preemptions_total"), reasons=())
    derived = Derived("h")
    seen = []
    for second, total in enumerate((7, 7, 9, 0, 2)):
        time = START + second * 1000
        seen.append(read(derived.update(time, [Batch(TARGET, time, own, [4, total])]), EVICTIONS))
    assert seen == [0, 0, 2, 2, 4]


def test_time_without_a_token_counts_only_while_requests_run():
    feed = Feed()()
    assert feed(after=30)[SINCE_TOKEN] == 0
    assert feed(running=2)[SINCE_TOKEN] == 0
    assert feed(after=5)[SINCE_TOKEN] == 5
    assert feed(after=5, generation_tokens=1)[SINCE_TOKEN] == 0
    assert feed(after=7)[SINCE_TOKEN] == 7
    assert feed(running=0)[SINCE_TOKEN] == 0


def test_a_page_is_frozen_only_while_requests_are_open():
    feed = Feed()(waiting=3, generation_tokens=10)
    feed()
    for _ in range(4):
        feed(after=10)
    assert feed[FROZEN] == 40
    assert feed(used_blocks=1)[FROZEN] == 0
    feed(waiting=0)
    assert feed(after=100)[FROZEN] == 0


def test_values_that_are_not_a_number_do_not_thaw_a_page():
    derived = Derived("h")
    page = values(Page(0, 1, 0, 5, 0, 0, 10, 10, 1))
    for second in (0, 1, 31):
        page[2] = float("nan")
        time = START + second * 1000
        out = derived.update(time, [Batch(TARGET, time, KEYS, list(page))])
    assert read(out, FROZEN) == 30


def test_request_length_is_a_lower_bound_from_blocks_held():
    # 28 of 39 usable blocks by 2 requests: 14 blocks each, the last of which may hold a single token.
    assert Feed()(running=2, used_blocks=28)[LENGTH] == pytest.approx(13 * 128 + 1)


def test_the_longest_length_is_remembered_for_five_minutes():
    feed = Feed()(running=2, used_blocks=28)
    assert feed(running=2, used_blocks=8)[LENGTH] == pytest.approx(13 * 128 + 1)
    feed(after=298, running=0, used_blocks=0)
    assert feed[LENGTH] == pytest.approx(13 * 128 + 1)
    assert feed(after=1)[LENGTH] == pytest.approx(3 * 128 + 1)
    assert feed(after=1)[LENGTH] is None


def test_an_engine_that_cannot_be_read_has_no_series_and_its_counter_goes_on_when_it_is_back():
    feed = Feed()(running=6, waiting=10, used_blocks=28)
    assert feed(running=4, waiting=12)()[EVICTIONS] == 2
    feed.fail()
    assert feed[EVICTIONS] is None
    assert feed[SINCE_TOKEN] is None
    assert feed[FROZEN] is None
    assert feed[LENGTH] is None
    assert feed()[EVICTIONS] == 2


def test_the_keys_are_the_same_object_while_nothing_comes_or_goes():
    feed = Feed()(running=1, used_blocks=5)
    first = feed.out.keys
    assert feed(running=2).out.keys is first


def test_a_rank_that_a_good_page_does_not_have_any_more_has_no_series():
    page = Page(0, 2, 0, 0, 0, 0, 0, 0, 0)
    derived = Derived("h")
    for second, rank in enumerate(("0", "1")):
        time, labels = START + second * 1000, keys({**IDENTITY, "dp_rank": rank})
        out = derived.update(time, [Batch(TARGET, time, labels, values(page))])
        assert {dict(labels)["dp_rank"] for labels in out.keys} == {rank}


def test_the_models_of_a_page_share_its_rows():
    keys = [
        series("gpuwatch_engine_requests_running", server="s", dp_rank=rank, model_name=f"m{number}")
        for rank in "01"
        for number in range(50)
    ]
    rows = list(engine_rows(keys).values())
    assert {id(row.page) for row in rows} == {id(rows[0].page), id(rows[-1].page)}
    assert [rows[0].page.rows, rows[-1].page.rows] == [list(range(50)), list(range(50, 100))]


def test_a_page_has_changed_at_the_first_look_and_when_a_value_is_another():
    page = PageRows([0, 2])
    looks = [(1, [1.0, 5.0, math.nan]), (2, [1.0, 6.0, math.nan]), (3, [1.0, 6.0, 2.0]), (4, [1.0, 6.0, 2.0])]
    assert [page.changed(time, values) for time, values in looks] == [True, False, True, False]
    assert [page.changed(4, []) for _ in range(2)] == [False, False]  # the other models of the page at the same scrape
