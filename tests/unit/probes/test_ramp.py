"""The ramp, against a server whose limits are known."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from gpuwatch.model import series
from gpuwatch.probes import ramp
from gpuwatch.probes.client import Client, ProbeError, Server
from gpuwatch.probes.exchange import Reply
from gpuwatch.probes.limits import Pool, PoolSetting, read_pool, read_setting
from gpuwatch.probes.meter import Meter, Peaks, Reading
from gpuwatch.probes.ramp import RampOptions
from gpuwatch.probes.ramp_advice import larger
from gpuwatch.probes.ramp_verdict import findings
from gpuwatch.probes.run import GONE, INTERRUPTED, OUT_OF_TIME, Run
from gpuwatch.probes.stream import Events
from gpuwatch.probes.vocabulary import Vocabulary
from gpuwatch.probes.wave import _Hold, _Watch
from gpuwatch.probes.wave_judge import Seen, judge
from tests.unit.probes.engine import Engine, serving

GIB = 1 << 30


@contextmanager
def running(engine, **more):
    with serving(engine) as url:
        run = Run.begin(Client(url), **{"seconds": 120.0, **more})
        try:
            yield run
        finally:
            run.close()


def probed(engine, options, **more):
    with running(engine, **more) as run:
        return ramp.probe(run, options)


def lengths(engine):
    """Return the prompt lengths that the engine was asked for, but for those of the first look and the warm-up."""
    return [len(body["prompt"]) for body in engine.asked if len(body["prompt"]) > 64]


# What a wave says


def reply(first, ended, pieces=5, **more):
    times = tuple(first + (ended - first) * n / (pieces - 1) for n in range(pieces))
    counts = {"prompt_tokens": 1000, "completion_tokens": pieces} | more
    return Reply(ok=True, first_token=first, ended=ended, token_times=times, status=200, **counts)


POOL = Pool(tokens=5120, block=128, blocks=39)


def test_the_figures_of_a_wave():
    point = judge([reply(1.0, 3.0), reply(2.0, 4.0)], 1000, Seen(Peaks(kv_usage=0.4), 0, POOL))
    assert (point.outcome, point.concurrency, point.prompt_tokens) == ("ok", 2, 1000)
    assert (point.ttft, point.ttft_most) == (1.5, 2.0)
    assert point.prefill_rate == 1000.0  # 2,000 prompt tokens until the last first token at 2 s
    assert point.decode_rate == 2.0  # 4 tokens after the first in 2 s
    assert point.output_rate == 2.5  # 10 tokens in 4 s
    assert point.held_tokens == 1005


def test_requests_that_never_overlap_are_queued_when_the_pool_was_full():
    replies = [reply(1.0, 3.0), reply(3.5, 5.0)]
    # 39 blocks, 80 % used: 998 tokens are left, and a prompt of 1,000 takes 1,024
    full = judge(replies, 1000, Seen(Peaks(kv_usage=0.8), 0, POOL))
    assert full.outcome == "queued"
    assert full.broken
    assert full.prefill_rate is None
    # two prompts of 3,000 take 48 blocks, whatever a page says that lags
    long = [reply(1.0, 3.0, prompt_tokens=3000), reply(3.5, 5.0, prompt_tokens=3000)]
    beyond = judge(long, 3000, Seen(Peaks(kv_usage=0.0, running=1.0), 0, POOL, seats=1.0))
    assert beyond.outcome == "queued"


def test_a_limit_on_sequences_is_told_only_where_the_page_shows_it():
    replies = [reply(1.0, 3.0), reply(3.5, 5.0)]
    one = Peaks(kv_usage=0.5, running=1.0)
    seen = judge(replies, 1000, Seen(one, 0, POOL, seats=1.0))
    assert (seen.outcome, seen.broken) == ("sequences", False)
    assert "at most 1 ran" in seen.detail
    once = judge(replies, 1000, Seen(one, 0, POOL))  # requests waited in no two looks in a row
    assert (once.outcome, once.broken) == ("unclear", False)
    assert "that all ran at the same time is not shown" in once.detail
    lagging = judge(replies, 1000, Seen(Peaks(kv_usage=0.0, running=0.0), 0, POOL))
    assert lagging.outcome == "unclear"
    later = judge(replies, 1000, Seen(Peaks(kv_usage=0.5, running=2.0), 0, POOL, seats=1.0))
    assert later.outcome == "unclear"  # one place at first, two later
    unknown = judge(replies, 1000, Seen(Peaks()))
    assert (unknown.outcome, unknown.detail, unknown.broken) == ("apart", "no page that shows why", True)


def test_streams_that_overlap_show_nothing_where_they_were_read_late():
    def outcome(running, **more):
        return judge(replies, 1000, Seen(Peaks(kv_usage=0.3, running=running), 0, POOL, **more)).outcome

    replies = [reply(1.0, 3.0, completion_tokens=528), reply(2.0, 4.0, completion_tokens=40)]
    assert outcome(1.0) == "ok"
    # The first generated all that it was allowed while it was held, so it may have ended before the second began,
    assert outcome(1.0, allowance=528) == "unclear"
    assert outcome(1.0, allowance=528, seats=1.0) == "sequences"
    # unless the page shows both.
    assert outcome(2.0, allowance=528) == "ok"
    assert outcome(1.0, allowance=529) == "ok"
    # A look at the page when both had begun and none had ended decides.
    assert outcome(2.0, beside=2.0, allowance=528) == "ok"
    assert outcome(1.0, beside=1.0, allowance=529) == "unclear"


def test_waiting_beside_room_is_a_limit_on_sequences_from_the_second_look_in_a_row():
    def watching(generating):
        hold = _Hold(4, 8, 0.0)
        for index in range(generating):
            hold.enough(index)(1)
        return _Watch(hold, POOL, 1000, 200, None)

    def look(watch, running, waiting, usage):
        values = {"requests_running": running, "requests_waiting": waiting, "kv_cache_usage_ratio": usage}
        reading = Reading({series(f"gpuwatch_engine_{name}"): value for name, value in values.items()})
        watch.look(reading, 0.0)
        return watch.seats

    # 4,992 usable tokens, half of them used; a prompt of 1,000 with an answer of 200, and 200 more of each that runs
    watch = watching(3)
    assert look(watch, 2.0, 2.0, 0.5) is None
    assert look(watch, 3.0, 1.0, 0.5) is None  # one more was admitted: no limit yet
    assert look(watch, 3.0, 1.0, 0.5) == 3.0
    tight = watching(2)
    # 1,248 tokens are free: the prompt fits, but not with what the two that run and itself may still generate
    assert [look(tight, 2.0, 2.0, 0.75) for _ in range(3)] == [None] * 3
    empty = watching(0)
    assert [look(empty, 0.0, 2.0, 0.0) for _ in range(3)] == [None] * 3  # nothing runs yet
    # one of the two that run is at its prompt still: what it will hold is not in the page yet
    prefilling = watching(1)
    assert [look(prefilling, 2.0, 2.0, 0.2) for _ in range(3)] == [None] * 3


def test_the_page_at_the_moment_when_all_have_begun_says_how_many_run():
    hold = _Hold(2, 8, 0.5)
    watch = _Watch(hold, POOL, 1000, 200, None)
    page = Reading({series("gpuwatch_engine_requests_running"): 2.0})
    watch.look(page, time.monotonic())
    assert watch.beside is None  # none had begun
    for index in range(2):
        hold.enough(index)(8)
    watch.look(page, time.monotonic())
    assert watch.beside == 2.0
    late = _Hold(2, 8, 0.5)
    for index in range(2):
        late.enough(index)(8)
    late.ended(0)
    watch = _Watch(late, POOL, 1000, 200, None)
    watch.look(Reading({series("gpuwatch_engine_requests_running"): 1.0}), time.monotonic())
    assert watch.beside is None  # one had ended by then


def test_without_a_count_of_tokens_pieces_give_rates_only_where_one_is_one_token():
    replies = [reply(1.0, 3.0, completion_tokens=None), reply(2.0, 4.0)]
    single = judge(replies, 1000, Seen(Peaks(), 0, POOL))
    assert (single.decode_rate, single.output_rate, single.held_tokens, single.uncounted) == (2.0, 2.5, 1005, False)
    point = judge(replies, 1000, Seen(Peaks(), 0, POOL), single=False)
    assert (point.decode_rate, point.output_rate, point.held_tokens, point.uncounted) == (None, None, None, True)
    assert point.ttft == 1.5
    assert not judge(replies[1:], 1000, Seen(Peaks(), 0, POOL), single=False).uncounted


def test_the_rate_of_pieces_of_several_tokens_is_that_of_the_tokens_after_the_first_piece():
    events = Events()
    for second, made in ((1.0, 4), (2.0, 8), (3.0, 12)):
        usage = {"prompt_tokens": 9, "completion_tokens": made}
        document = {"choices": [{"text": "four tokens", "finish_reason": None}], "usage": usage}
        events.feed(f"data: {json.dumps(document)}\n".encode(), second)
        assert events.generated == made
    seen = Reply(
        ok=True,
        token_times=tuple(events.times),
        first_tokens=events.first_tokens,
        completion_tokens=events.count("completion_tokens"),
    )
    assert seen.decode_rate == 4.0  # 8 tokens in 2 s


def test_tokens_of_held_requests_are_counted_where_the_server_counts_as_it_goes():
    engine = Engine(lump=4, counts_along=True)
    result = probed(engine, RampOptions(concurrencies=(1, 2), first=256, longest=256, output=8))
    alone, both = result.rows
    assert alone["held_tokens"] == 256 + 8
    assert both["held_tokens"] % 4 == 0  # closed after a whole piece
    assert both["held_tokens"] >= 256 + 8
    assert all(row["decode_tokens_per_s"] > 0 and row["output_tokens_per_s"] > 0 for row in result.rows)
    assert "piece of its stream" not in " ".join(result.conclusion)
    assert len(lengths(engine)) == 3  # nothing is sent once more to be counted


def test_where_pieces_hold_several_tokens_and_are_not_counted_there_are_no_rates_of_held_requests():
    result = probed(Engine(lump=4), RampOptions(concurrencies=(1, 2), first=256, longest=256, output=8))
    alone, both = result.rows
    assert (alone["held_tokens"], alone["decode_tokens_per_s"] is None) == (264, False)
    assert (both["held_tokens"], both["decode_tokens_per_s"], both["output_tokens_per_s"]) == (None, None, None)
    assert "a piece of its stream may hold several" in " ".join(result.conclusion)


def test_the_kv_usage_of_one_request_is_a_look_at_its_whole_prompt():
    hold = _Hold(1, output=32, linger=0.5)
    check = hold.noticed(0)
    assert (check(1), hold.poke.is_set()) == (False, False)
    hold.seen(time.monotonic(), read=True)
    before = time.monotonic()
    assert (check(2), hold.poke.is_set()) == (False, True)
    hold.seen(before - 1, read=True)  # began before all was in the pool
    hold.seen(time.monotonic(), read=False)
    assert not hold.looked
    hold.seen(time.monotonic(), read=True)
    assert hold.looked
    late = _Hold(1, output=32, linger=0.5)
    late.noticed(0)(2)
    late.ended(0)
    late.seen(time.monotonic(), read=True)
    assert not late.looked
    # 399 usable blocks of 16: 2,048 tokens and the first one generated take 129 of them, with 32 more 131.
    row = probed(Engine(), RampOptions(concurrencies=(1,), first=2048, longest=2048, output=32)).rows[0]
    assert row["kv_usage_ratio"] in (None, *(pytest.approx(blocks / 399) for blocks in (129, 130, 131)))


def test_times_that_hold_the_holding_of_the_probe_are_named():
    engine = Engine(blocks=4000, sequences=2, limit=2048, prefill_rate=100_000.0)
    result = probed(engine, RampOptions(concurrencies=(4,), first=256, longest=256, output=8))
    # an eighth of 2,048 is what a request may generate while it is held
    assert "that the probe itself kept going, for up to 256 further tokens" in " ".join(result.conclusion)
    roomy = probed(Engine(), RampOptions(concurrencies=(2,), first=256, longest=256, output=8))
    assert "kept going" not in " ".join(roomy.conclusion)


def test_a_preemption_breaks_a_wave_in_which_every_request_was_answered():
    point = judge([reply(1.0, 3.0), reply(2.0, 4.0)], 1000, Seen(Peaks(), 2, POOL))
    assert (point.outcome, point.detail, point.broken) == ("preempted", "2 preemptions", True)


@pytest.mark.parametrize("kind", ["lost", "failed", "refused", "timeout"])
def test_one_bad_answer_breaks_a_wave(kind):
    bad = Reply(ok=False, kind=kind, error="why")
    point = judge([reply(1.0, 3.0), bad], 1000, Seen(Peaks(), 0, POOL))
    assert (point.outcome, point.detail) == (kind, "1 of 2: why")
    assert point.broken


def test_a_wave_that_the_probe_itself_ended_breaks_nothing():
    point = judge([Reply(ok=False, kind="timeout", error="x")], 1000, Seen(Peaks(), 0, POOL), over=OUT_OF_TIME)
    assert (point.outcome, point.broken) == ("stopped", False)


def test_an_answer_without_a_token_breaks_a_wave():
    ended = Reply(ok=True, status=200, started=0.0, ended=1.0, prompt_tokens=1000, completion_tokens=0)
    point = judge([reply(1.0, 3.0), ended], 1000, Seen(Peaks(), 0, POOL))
    assert (point.outcome, point.detail, point.broken) == ("ignored", "1 of 2: an answer without one token", True)


def test_prompts_of_which_fewer_tokens_are_counted_than_were_sent_break_a_wave():
    short = reply(1.0, 3.0, prompt_tokens=999)
    point = judge([short], 1000, Seen(Peaks(), 0, POOL), words=Vocabulary((7, 8)))
    assert (point.outcome, point.detail) == ("cut", "sent 1,000 tokens, the server counts 999")
    assert (point.prompt_tokens, point.counted_tokens) == (1000, 999)
    # Text is as long as its words usually are: a tenth less is no cut.
    assert judge([reply(1.0, 3.0, prompt_tokens=900)], 1000, Seen(Peaks(), 0, POOL)).outcome == "ok"
    assert judge([reply(1.0, 3.0, prompt_tokens=899)], 1000, Seen(Peaks(), 0, POOL)).outcome == "cut"
    assert judge([reply(1.0, 3.0, prompt_tokens=None)], 1000, Seen(Peaks(), 0, POOL)).outcome == "ok"


def test_a_length_that_is_a_guess_is_no_cut_and_gives_no_rate():
    guess = Vocabulary((), 1.3, measured=False)
    seen = judge([reply(1.0, 3.0, prompt_tokens=700)], 1000, Seen(Peaks(), 0, POOL), words=guess)
    assert (seen.outcome, seen.prompt_tokens) == ("ok", 700)
    blind = judge([reply(1.0, 3.0, prompt_tokens=None)], 1000, Seen(Peaks(), 0, POOL), words=guess)
    assert (blind.outcome, blind.ttft, blind.prefill_rate) == ("ok", 1.0, None)


def test_streams_that_were_held_back_break_nothing_and_have_no_times():
    replies = [reply(at, at + 0.0001, pieces=32) for at in (1.0, 2.0)]
    point = judge(replies, 1000, Seen(Peaks(), None, None))
    assert (point.outcome, point.buffered, point.broken) == ("ok", True, False)
    assert (point.ttft, point.ttft_most, point.prefill_rate, point.decode_rate) == (None,) * 4
    # but where the page shows that one waited, it did
    waited = Peaks(running=1.0)
    assert judge(replies, 1000, Seen(waited, 0, None)).outcome == "apart"


def test_a_refusal_that_names_a_longer_request_is_right_and_no_finding():
    def refuse(tokens, number):
        words = f"context length is 4096 tokens. However, you requested {4 * tokens} tokens (in the messages)"
        return (400, {"error": {"message": words}}) if tokens > 1024 else None

    result = probed(Engine(mishap=refuse), RampOptions(concurrencies=(1,), output=4, resolution=512))
    assert not result.findings
    text = " ".join(result.conclusion)
    assert "it does not count all of them" in text
    assert "figures give" not in text


@pytest.mark.parametrize(("mishap", "outcome"), [("half", "cut"), ("nothing", "ignored")])
def test_a_server_that_cuts_or_ignores_long_prompts_is_found_out(mishap, outcome):
    engine = Engine(mishap=lambda tokens, number: mishap if tokens > 1500 else None)
    result = probed(engine, RampOptions(concurrencies=(1,), output=4, resolution=256))
    assert (result.fact("broke_how_at_1"), result.fact("answered")) == (outcome, True)
    # It begins at 1,501: within 256 tokens, that is 1,501 to 1,756, and what goes well is not longer than 1,500.
    assert 1500 - 256 < result.fact("carried_at_1") <= 1500 < result.fact("broke_at_1") <= 1756
    (found,) = [finding for finding in result.findings if finding.id == "silent_truncation"]
    assert f"sent {result.fact('broke_at_1'):,} tokens" in found.evidence[0].text
    assert f"a prompt of {result.fact('carried_at_1'):,} tokens is counted whole" == found.evidence[1].text
    assert "without an error" in " ".join(result.conclusion)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_cut_of_less_than_a_tenth_shows_in_texts_of_other_lengths(concurrency):
    engine = Engine(takes_ids=False, limit=9000, blocks=4000, reads=3950)
    result = probed(engine, RampOptions(concurrencies=(concurrency,), output=4, resolution=256))
    # A word is a token: 4,096 words are counted as 3,950, within a tenth, but so is every longer text.
    assert result.fact(f"broke_how_at_{concurrency}") == "cut"
    assert 3950 - 256 <= result.fact(f"carried_at_{concurrency}") <= 3950 < result.fact(f"broke_at_{concurrency}")
    (found,) = [finding for finding in result.findings if finding.id == "silent_truncation"]
    assert found.evidence[0].text.endswith("the server counts 3,950")
    assert f"a prompt of {result.fact(f'carried_at_{concurrency}'):,} tokens is counted whole" == found.evidence[1].text


def test_a_refusal_that_is_found_by_halving_is_a_finding_with_its_value():
    engine = Engine(mishap=lambda tokens, number: 400 if tokens > 3000 else None)
    result = probed(engine, RampOptions(concurrencies=(1,), output=8, resolution=64))
    (found,) = [finding for finding in result.findings if finding.id == "context_refused"]
    real = int(found.advice[1].proposed)
    assert 3008 - 64 <= real <= 3008
    assert (found.advice[1].flag, found.advice[1].current) == ("--max-model-len", "4096")
    assert "the longest that was accepted; the limit was searched for to 64" in found.advice[0].text


def test_a_refused_login_ends_the_ramp_and_is_no_limit():
    engine = Engine(mishap=lambda tokens, number: 401 if tokens > 3000 else None)
    result = probed(engine, RampOptions(concurrencies=(1, 2), output=8))
    assert result.stopped_because == "the login was refused (HTTP 401: mishap 401)"
    assert (result.fact("broke_at_1"), result.fact("carried_at_1")) == (None, 2048)
    assert not result.findings


def test_the_pool_of_a_page_and_what_fits_into_it():
    engine = Engine(blocks=40, block=128)
    with serving(engine) as url:
        meter = Meter(url)
        pool = read_pool(meter.read(), "vllm")
        meter.close()
    assert pool == POOL  # one block of vLLM's is never given to a request
    assert pool.usable == 39 * 128
    assert pool.each(4) == 9 * 128
    assert pool.each(40) == 0
    assert pool.demand(129) == 256
    assert Pool(5120, 128, 39, ranks=2).each(4) == 19 * 128


# The search


def test_the_limit_of_the_pool_is_found_within_one_step_of_what_the_page_says():
    engine = Engine(blocks=40, block=128, sequences=16, prefill_rate=100_000.0, decode_seconds=0.01)
    result = probed(engine, RampOptions(concurrencies=(1, 4), output=8, ledger_tokens=6400.0))
    assert result.complete
    assert result.fact("kv_pool_tokens") == 5120
    assert result.fact("broke_at_1") is None
    assert result.fact("carried_at_1") == 4096 - 8
    # 39 usable blocks of 128 for four requests: 9 blocks, 1,152 tokens, 8 of them generated
    assert result.fact("expected_at_4") == 1144
    assert abs(result.fact("carried_at_4") - 1144) <= 2 * result.fact("resolution_at_4")
    assert result.fact("carried_at_4") < result.fact("broke_at_4")
    assert result.fact("broke_how_at_4") in ("queued", "preempted")
    assert any("within one step" in sentence for sentence in result.conclusion)
    assert any(
        "expects a KV pool of 6,400 tokens" in sentence and "(-20 %)" in sentence for sentence in result.conclusion
    )
    # 5,120 tokens hold one request of 4,096
    assert result.advice[0].flag == "--max-num-seqs"
    assert result.advice[0].proposed == "1"
    assert not result.findings


def test_a_pool_that_a_flag_limits_gets_advice_about_that_flag():
    more = {"block": 128, "sequences": 16, "prefill_rate": 100_000.0, "decode_seconds": 0.01}
    options = RampOptions(concurrencies=(4,), output=8, told={"kv.blocks_profiled": 4096.0})
    result = probed(Engine(blocks=40, override=40, **more), options)
    seats, pool = result.advice
    assert (seats.flag, seats.proposed) == ("--max-num-seqs", "1")
    # Four of 4,096 tokens are 128 blocks of 128, and one is kept back.
    assert (pool.flag, pool.current, pool.proposed) == ("--num-gpu-blocks-override", "40", "4096")
    assert "need 16,384 tokens, 129 blocks; the pool is limited by this flag: remove it, memory" in pool.text


@pytest.mark.parametrize(
    ("setting", "flag", "current", "proposed"),
    [
        (PoolSetting(override=40), "--num-gpu-blocks-override", "40", "(none)"),
        (PoolSetting(override=40, profiled=30), "--num-gpu-blocks-override", "40", "(none)"),
        # 5,120 tokens are 8 GiB, so 5,120 more of them are 8 GiB more: 0.1 of 80 GiB.
        (
            PoolSetting(pool_bytes=8 * GIB, fraction=0.8, free=9 * GIB, total=80 * GIB),
            "--gpu-memory-utilization",
            "0.8",
            "0.9",
        ),
        (
            PoolSetting(pool_bytes=8 * GIB, fraction=0.8, free=7 * GIB, total=80 * GIB),
            "--gpu-memory-utilization",
            "0.8",
            None,
        ),
        (
            PoolSetting(pool_bytes=8 * GIB, fraction=0.9, free=9 * GIB, total=80 * GIB),
            "--gpu-memory-utilization",
            "0.9",
            None,
        ),
        (PoolSetting(fraction=0.8, free=9 * GIB, total=80 * GIB), "--gpu-memory-utilization", "0.8", None),
        (
            PoolSetting(fixed_bytes=8 * GIB, free=9 * GIB, total=80 * GIB),
            "--kv-cache-memory-bytes",
            str(8 * GIB),
            str(16 * GIB),
        ),
        (PoolSetting(), "--gpu-memory-utilization", None, None),
    ],
)
def test_a_larger_pool_has_a_value_where_it_follows_from_figures(setting, flag, current, proposed):
    # 10,112 usable tokens are 79 blocks and the null block: twice the 40 blocks of the pool.
    item = larger(POOL, setting, 10_112, "make the pool larger", sglang=False)
    assert (item.flag, item.current, item.proposed) == (flag, current, proposed)


def test_free_memory_of_unequal_gpus_is_not_used():
    told = {"kv.bytes": 5.0, "memory_fraction": 0.9}
    equal = read_setting(None, told, {"0": (3.0, 10.0), "1": (4.0, 10.0)})
    assert (equal.free, equal.total, equal.pool_bytes, equal.fraction) == (6.0, 10.0, 5.0, 0.9)
    unequal = read_setting(None, told, {"0": (3.0, 10.0), "1": (4.0, 20.0)})
    assert (unequal.free, unequal.total) == (None, None)


def test_a_limit_on_sequences_is_not_taken_for_a_full_pool():
    engine = Engine(blocks=4000, sequences=2, limit=2048, prefill_rate=100_000.0)
    result = probed(engine, RampOptions(concurrencies=(4,), first=256, longest=256, output=8))
    assert [row["outcome"] for row in result.rows] == ["sequences"]
    assert any("--max-num-seqs" in sentence for sentence in result.conclusion)


def test_a_wave_that_fills_the_pool_with_as_many_as_ever_ran_is_limited_by_sequences():
    # 45 usable blocks of 16: 720 tokens. Two prompts of 256 leave no room for a third, but there never ran three.
    engine = Engine(blocks=46, block=16, sequences=2, limit=512, prefill_rate=100_000.0, decode_seconds=0.003)
    result = probed(engine, RampOptions(concurrencies=(4,), first=64, longest=256, output=8))
    assert [row["outcome"] for row in result.rows] == ["sequences"] * 3
    text = " ".join(result.conclusion)
    assert "4 requests at once: at most 2 ran at the same time" in text
    assert "go well" not in text
    assert "goes well" not in text
    assert "figures give" not in text
    assert (result.fact("carried_at_4"), result.fact("expected_at_4")) == (None, None)
    assert not result.advice


def test_requests_that_a_busy_server_takes_one_after_the_other_are_sent_again():
    # A pool of 51,184 tokens and 64 places: nothing but the first two waves' late start keeps two requests apart.
    engine = Engine(blocks=3200, limit=2048, prefill_rate=100_000.0, decode_seconds=0.001)
    waves, left, leave = [], [], engine.leave

    def late(tokens, number):
        """Let the second of the first two waves begin when the first one has ended."""
        if tokens > 64:
            waves.append(tokens)
            place = len(waves)
            while place in (2, 4) and len(left) < place - 1 and not engine.closed:
                time.sleep(0.01)

    def leaving(held):
        leave(held)
        left.extend([held] if waves else [])

    engine.mishap, engine.leave = late, leaving
    result = probed(engine, RampOptions(concurrencies=(2,), first=256, longest=256, output=8))
    assert [row["outcome"] for row in result.rows] == ["ok"]
    assert len(waves) == 6
    assert result.fact("carried_at_2") == 256


def test_waves_that_show_nothing_break_nothing_and_the_limit_of_the_pool_is_found_all_the_same():
    # 39 usable blocks of 128 for four requests: 1,152 tokens each. Nothing shorter than 1,000 runs side by side.
    engine = Engine(blocks=40, block=128, sequences=16, prefill_rate=100_000.0, decode_seconds=0.004)
    turn = threading.Lock()

    def alone(tokens, number):
        """Let short prompts begin one after the other, each when the one before has ended."""
        if 64 < tokens < 1000:
            turn.acquire()
            deadline = time.monotonic() + 20
            while engine.running and time.monotonic() < deadline and not engine.closed:
                time.sleep(0.005)
            threading.Timer(0.05, turn.release).start()

    engine.mishap = alone
    result = probed(engine, RampOptions(concurrencies=(4,), first=512, output=8))
    outcomes = {row["prompt_tokens"]: row["outcome"] for row in result.rows}
    assert outcomes[512] == "unclear"
    assert 1000 <= result.fact("carried_at_4") <= 1144 < result.fact("broke_at_4") <= 1280
    assert result.fact("broke_how_at_4") in ("queued", "preempted")
    assert any("of 512 tokens were answered" in sentence for sentence in result.conclusion)


def test_while_they_wait_requests_that_fit_generate_no_more_than_fits():
    # 63 usable blocks of 16 for three requests: 21 blocks, 336 tokens each; 300 and 8 leave 28 to generate meanwhile.
    engine = Engine(blocks=64, block=16, limit=4096, prefill_rate=100_000.0, decode_seconds=0.002)
    result = probed(engine, RampOptions(concurrencies=(3,), first=300, longest=300, output=8))
    assert [body["max_tokens"] for body in engine.asked if len(body["prompt"]) == 300][:3] == [36] * 3
    assert [(row["outcome"], row["preemptions"]) for row in result.rows] == [("ok", 0)]


def test_only_a_request_that_was_accepted_is_called_accepted():
    run = SimpleNamespace(server=Server("http://a", "vllm", max_model_len=4096), started=0.0)
    pool = Pool(2560, 128, 19)
    for accepted, words in (
        (0, "states a limit of 4,096"),
        (2432, "states a limit of"),
        (3000, "One of 3,000 is acce"),
    ):
        (finding,) = findings(run, pool, accepted)
        assert words in finding.cause
        assert ("accepted" in finding.cause) == (accepted == 3000)
        assert "accepted" not in finding.evidence[1].text


def test_where_no_request_is_answered_that_is_said():
    result = probed(Engine(mishap=lambda tokens, number: 400 if tokens > 10 else None), RampOptions((1,), output=8))
    assert result.fact("answered") is False
    assert "No request was answered" in " ".join(result.conclusion)
    with pytest.raises(ProbeError, match=r"--max-tokens 5,000: the server takes 4,096 tokens with the prompt"):
        probed(Engine(), RampOptions((1,), output=5000))


def test_a_cap_that_keeps_room_for_what_is_generated_while_waiting_says_so():
    engine = Engine(blocks=400, block=16, limit=512, prefill_rate=100_000.0)
    result = probed(engine, RampOptions(concurrencies=(2,), first=440, output=8))
    # 512 less 8 for the answer, and an eighth, 64, for what is generated meanwhile
    assert result.fact("carried_at_2") == 440
    assert "for the 64 tokens that a request may generate" in result.conclusion[0]
    assert "by the server's figures 504 tokens fit" in result.conclusion[0]


def test_what_can_never_fit_is_not_sent_and_is_a_finding():
    engine = Engine(blocks=20, block=128)
    result = probed(engine, RampOptions(concurrencies=(1,), output=16))
    # 19 usable blocks of 128: 2,432 tokens, less than the 4,096 that are accepted
    assert max(lengths(engine)) == 2432 - 16
    assert result.complete
    finding = result.findings[0]
    assert (finding.id, finding.severity) == ("max_model_len_exceeds_kv", "warning")
    assert (finding.advice[0].current, finding.advice[0].proposed) == ("4096", "2432")
    assert any("can never fit into the KV pool, and were not sent" in sentence for sentence in result.conclusion)


def test_to_the_end_the_longest_is_sent_all_the_same():
    engine = Engine(blocks=20, block=128, mishap=lambda tokens, number: 400 if tokens > 1500 else None)
    probed(engine, RampOptions(concurrencies=(1,), first=4080, output=16, to_the_end=True))
    assert max(lengths(engine)) == 4096 - 16


def test_a_limit_that_the_server_does_not_state_is_found_by_halving():
    engine = Engine(limit=None, blocks=10_000, mishap=lambda tokens, number: 400 if tokens > 3000 else None)
    result = probed(engine, RampOptions(concurrencies=(1,), output=4, longest=8192, resolution=100))
    assert result.fact("broke_how_at_1") == "refused"
    assert result.fact("carried_at_1") <= 3000 < result.fact("broke_at_1")
    assert result.fact("broke_at_1") - result.fact("carried_at_1") <= 100
    assert result.complete


def test_the_step_is_a_32nd_of_the_length_that_broke_and_not_of_a_limit_far_above_it():
    engine = Engine(limit=131_072, blocks=10_000, mishap=lambda tokens, number: 400 if tokens > 3000 else None)
    result = probed(engine, RampOptions(concurrencies=(1,), output=4))
    assert result.fact("carried_at_1") <= 3000 < result.fact("broke_at_1")
    # 1,024 and 2,048 go well, 4,096 does not; halving ends where less than a 32nd is between
    assert result.fact("resolution_at_1") == result.fact("broke_at_1") // 32
    assert result.fact("broke_at_1") - result.fact("carried_at_1") <= 96


def test_a_limit_beyond_any_context_is_ramped_up_to_what_breaks():
    engine = Engine(limit=10**18, blocks=10_000, mishap=lambda tokens, number: 400 if tokens > 3000 else None)
    result = probed(engine, RampOptions(concurrencies=(1,), output=4, to_the_end=True))
    assert result.fact("carried_at_1") <= 3000 < result.fact("broke_at_1") <= 3100


def test_after_a_server_error_nothing_more_is_sent():
    engine = Engine(mishap=lambda tokens, number: 500 if tokens > 1500 else None)
    result = probed(engine, RampOptions(concurrencies=(1, 2), output=4))
    assert [tokens for tokens in lengths(engine) if tokens > 1500] == [2048]
    assert not result.complete
    assert "so that it survives" in result.stopped_because
    assert [row["outcome"] for row in result.rows] == ["ok", "failed"]
    assert "HTTP 500" in result.rows[1]["detail"]


def test_to_the_end_the_search_goes_on_after_a_server_error():
    engine = Engine(mishap=lambda tokens, number: 500 if tokens > 1500 else None)
    result = probed(engine, RampOptions(concurrencies=(1,), output=4, to_the_end=True))
    assert result.complete
    assert result.fact("carried_at_1") <= 1500 < result.fact("broke_at_1")


def test_a_server_that_dies_leaves_what_was_measured():
    engine = Engine()
    with serving(engine, keep := []) as url:
        run = Run.begin(Client(url), seconds=120.0)

        def die(tokens, number):
            if tokens <= 1500:
                return None
            threading.Thread(target=keep[0].stop, daemon=True).start()
            keep[0].stopped.wait(20)
            return "cut"

        engine.mishap = die
        result = ramp.probe(run, RampOptions(concurrencies=(1, 2), output=8))
        run.close()
    assert not result.complete
    assert result.stopped_because == GONE
    assert [row["outcome"] for row in result.rows] == ["ok", "lost"]


def test_a_server_without_metrics_is_measured_from_outside():
    engine = Engine(metrics=False, blocks=5, block=2048, prefill_rate=100_000.0)
    result = probed(engine, RampOptions(concurrencies=(4,), output=8, first=512))
    assert result.fact("kv_pool_tokens") is None
    assert all(row["kv_usage_ratio"] is None and row["preemptions"] is None for row in result.rows)
    # four blocks: prompts from 2,048 tokens take two of them
    assert result.fact("broke_how_at_4") == "apart"
    assert "a limit on sequences or a busy machine may be why (no page that shows why)" in result.conclusion[0]
    assert 1024 <= result.fact("carried_at_4") < 2048 <= result.fact("broke_at_4")
    assert any("preemptions cannot be seen" in sentence for sentence in result.conclusion)


def test_a_server_that_takes_text_only_is_ramped_with_text():
    engine = Engine(takes_ids=False, limit=2048)
    result = probed(engine, RampOptions(concurrencies=(1,), first=256, output=4))
    assert result.complete
    assert all(isinstance(body["prompt"], str) for body in engine.asked[1:])
    # the engine counts words as tokens, as it did when it was asked what a word costs
    assert result.fact("carried_at_1") == 2048 - 4


def test_the_time_limit_ends_the_probe_and_keeps_its_points():
    engine = Engine(mishap=lambda tokens, number: "hang" if tokens > 1500 else None)
    with running(engine) as run:

        def report(done, of, words):
            if "2,048" in words:
                run.deadline = time.monotonic() + 0.2

        run.report = report
        result = ramp.probe(run, RampOptions(concurrencies=(1,), output=4))
    assert (result.complete, result.stopped_because) == (False, OUT_OF_TIME)
    assert [row["outcome"] for row in result.rows] == ["ok", "stopped"]


def test_ctrl_c_ends_the_probe_and_keeps_its_points():
    engine = Engine()
    with running(engine) as run:
        hang = threading.Event()

        def mishap(tokens, number):
            if tokens > 1500:
                threading.Timer(0.05, run.cancel).start()
                hang.set()
                return "hang"
            return None

        engine.mishap = mishap
        result = ramp.probe(run, RampOptions(concurrencies=(1, 2), output=4))
    assert hang.is_set()
    assert (result.complete, result.stopped_because) == (False, INTERRUPTED)
    assert result.rows[0]["outcome"] == "ok"


def test_a_rate_limit_that_stays_ends_the_probe():
    engine = Engine()
    with running(engine) as run:
        engine.limited = 10_000
        result = ramp.probe(run, RampOptions(concurrencies=(1, 2), output=4))
    assert not result.complete
    assert "HTTP 429" in result.stopped_because
    assert [row["outcome"] for row in result.rows] == ["limited"]


def test_a_cut_is_seen_at_a_concurrency_at_which_streams_end_before_the_usage_comes():
    engine = Engine(blocks=2000, mishap=lambda tokens, number: "half" if tokens > 1500 else None)
    result = probed(engine, RampOptions(concurrencies=(4,), output=4, resolution=256, longest=3000))
    assert result.fact("broke_how_at_4") == "cut"
    assert 1500 - 256 < result.fact("carried_at_4") <= 1500 < result.fact("broke_at_4") <= 1756
    (found,) = [finding for finding in result.findings if finding.id == "silent_truncation"]
    broke = result.fact("broke_at_4")
    assert found.evidence[0].text == f"sent {broke:,} tokens, the server counts {broke // 2:,}"


def test_one_more_request_is_sent_only_for_a_length_that_was_not_yet_counted_whole():
    alone, after = Engine(), Engine()
    result = probed(alone, RampOptions(concurrencies=(2,), first=512, longest=512, output=4))
    assert [row["counted_tokens"] for row in result.rows] == [512]
    assert lengths(alone) == [512] * 3
    probed(after, RampOptions(concurrencies=(1, 2), first=512, longest=512, output=4))
    assert lengths(after) == [512] * 3


def test_a_ramp_over_a_server_that_counts_nothing_says_that_a_cut_cannot_be_seen():
    result = probed(
        Engine(mishap=lambda tokens, number: "silent"), RampOptions(concurrencies=(2,), longest=1024, output=4)
    )
    assert "counts no prompt tokens" in " ".join(result.conclusion)
    assert [row["outcome"] for row in result.rows] == ["ok"]


def test_a_server_that_ignores_max_tokens_is_measured_until_what_was_asked_for():
    engine = Engine(mishap=lambda tokens, number: "endless")
    result = probed(engine, RampOptions(concurrencies=(1, 2), longest=1024, output=4))
    assert [row["outcome"] for row in result.rows] == ["ok", "ok"]
    assert all(row["ttft_s"] > 0 and row["decode_tokens_per_s"] is None for row in result.rows)
    text = " ".join(result.conclusion)
    assert "The server ignores max_tokens" in text
    assert "No request was answered" not in text
    assert "counts no prompt tokens" not in text


def test_a_wave_with_a_rate_limit_has_times_and_no_rates():
    engine, sent_back = Engine(), []

    def mishap(tokens, number):
        if tokens == 1024 and not sent_back:
            sent_back.append(number)
            engine.limited = 1

    engine.mishap = mishap
    result = probed(engine, RampOptions(concurrencies=(1,), longest=2048, output=4))
    limited, free = result.rows
    assert (limited["outcome"], limited["detail"]) == ("ok", "1 sent back by a rate limit: no rates")
    assert (limited["prefill_tokens_per_s"], limited["output_tokens_per_s"]) == (None, None)
    assert limited["ttft_s"] > 0
    assert limited["decode_tokens_per_s"] > 0
    assert free["prefill_tokens_per_s"] > 0
    assert "A request was sent back by a rate limit" in " ".join(result.conclusion)


def test_lengths_that_would_fill_the_gpu_are_not_sent():
    engine = Engine(limit=32_768, blocks=4000)
    size = 10 * GIB

    def gpu_memory():
        # 8 GiB, and a quarter of a GiB for each 1,024 tokens of the longest prompt so far
        return {"GPU-1": (8 * GIB + max([0, *lengths(engine)]) * GIB / 4096, size)}

    result = probed(engine, RampOptions(concurrencies=(1,), output=4), gpu_memory=gpu_memory)
    # 8.5 GiB at 2,048 and 9 at 4,096; as much again and twice would be 10, of which a quarter is to stay free
    assert max(lengths(engine)) == 4096
    assert not result.complete
    assert "would fill the GPU" in result.stopped_because
    assert result.rows[0]["gpu_step_bytes"] == GIB / 4
    assert result.rows[-1]["gpu_peak_bytes"] == 9 * GIB


def test_no_prompt_is_in_a_result():
    engine = Engine(takes_ids=False, limit=2048)
    result = str(probed(engine, RampOptions(concurrencies=(1,), first=512, output=4)))
    words = engine.asked[-1]["prompt"].split()
    assert len(words) > 1000
    assert not [place for place in range(len(words) - 3) if " ".join(words[place : place + 3]) in result]
