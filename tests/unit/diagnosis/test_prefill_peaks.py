"""Prefill peaks: what one step took, what the next one takes, and the settings that make room for it."""

from __future__ import annotations

import math

import pytest

from gpuwatch.diagnosis.activation import Step, step_advice
from gpuwatch.diagnosis.context import Context
from tests.unit.diagnosis.storms import START
from tests.unit.diagnosis.watch import CONFIG, ENGINE, SGLANG, Watch, fact, flags, gpu, name, texts

GIB = 1 << 30


def after(second, low, high):
    return lambda now: high if now >= second else low


def card(**gib):
    rows = {name("gpu_memory_total_bytes", gpu(0)): 80.0 * GIB}
    for short, value in gib.items():
        rows[name(f"gpu_memory_{short}_bytes", gpu(0))] = lambda now, value=value: value(now) * GIB
    return rows


def peak(left=0.5, took=9.0, engine=ENGINE):
    """A step of `took` GiB at second 20 that leaves `left` GiB of an 80 GiB card, while prompts are computed."""
    room = took + left
    return {
        **card(
            used=after(20, 79.5 - room, 79.5 - room + took / 2),
            free=after(20, room, room - took / 2),
            peak=after(20, 79.5 - room, 79.5 - left),
            step=after(20, 0, took),
        ),
        name("gpu_engine", gpu(0), server=engine["server"], basis="process"): 1.0,
        name("engine_info", {key: value for key, value in engine.items() if key != "model_name"}): 1.0,
        name("engine_requests_running", engine): 4.0,
        name("engine_prompt_tokens_total", engine): lambda now: 2000.0 * now,
    }


def steps(bounds):
    """The histogram of step sizes: how many steps a second fall into each bucket."""
    rows, below = {}, 0
    for bound, rate in bounds.items():
        below += rate
        key = name("engine_iteration_tokens_bucket", ENGINE, le=bound)
        rows[key] = lambda now, below=below: float(below * now)
    return rows


BUDGET = {name("engine_config_max_num_batched_tokens", CONFIG): 8192.0}


def test_a_full_chunk_that_was_survived_says_what_is_left_for_the_next_one():
    live = peak() | BUDGET | steps({"4096.0": 1, "8192.0": 1, "+Inf": 0})
    finding = Watch().run(30, live)["prefill_memory_peak"]
    assert "A full chunk of 8,192 tokens was survived, and 512 MiB are left for the next one." in finding.cause
    # 9.5 GiB of room less 3.2 GiB to keep, at 9 GiB per 8,192 tokens: 5,734 tokens, in steps of 256.
    assert flags(finding) == [("--max-num-batched-tokens", "8192", "5632")]


def test_a_smaller_step_says_that_a_full_chunk_will_not_fit():
    live = peak() | BUDGET | steps({"2048.0": 1, "4096.0": 0, "8192.0": 0, "+Inf": 0})
    finding = Watch().run(30, live)["prefill_memory_peak"]
    assert "a full chunk of 8,192 tokens takes about 36.0 GiB and will not fit" in finding.cause
    assert "would take about 36.0 GiB; 9.5 GiB were free" in texts(finding)
    # 6.3 GiB at 9 GiB per 2,048 tokens: 1,433 tokens.
    assert flags(finding) == [("--max-num-batched-tokens", "8192", "1280")]


def test_the_pool_that_makes_room_is_computed_as_well():
    live = (
        peak() | BUDGET | steps({"8192.0": 1, "+Inf": 0}) | {name("engine_config_memory_fraction_ratio", CONFIG): 0.95}
    )
    finding = Watch().run(30, live)["prefill_memory_peak"]
    # 9 GiB for the step and 3.2 GiB to keep, less 9.5 GiB of room: 2.7 of 80 GiB, so 0.95 - 0.034, in steps of 0.01.
    assert flags(finding)[1] == ("--gpu-memory-utilization", "0.95", "0.91")


def test_a_rise_that_no_visible_process_owns_is_not_laid_to_a_prefill_alone():
    hidden = {name("gpu_memory_unattributed_bytes", gpu(0)): lambda now: (70 if now < 20 else 75) * GIB}
    finding = Watch().run(30, peak() | BUDGET | hidden)["prefill_memory_peak"]
    assert "no visible process owns it: a prefill, or a program that gpuwatch does not see" in finding.cause
    assert "memory that no visible process owns rose by up to 5.0 GiB" in texts(finding)
    assert finding.confidence == 0.5
    assert flags(finding)[1][0] == "--max-num-batched-tokens"
    half = {name("gpu_memory_unattributed_bytes", gpu(0)): lambda now: (70 if now < 20 else 74.5) * GIB}
    assert Watch().run(30, peak() | BUDGET | half)["prefill_memory_peak"].cause.startswith("A prefill took 9.0 GiB")


def test_a_rise_that_the_prompts_counted_so_far_cannot_have_taken_is_not_laid_to_them():
    # 9 GiB at 16 MiB a token are 576 tokens.
    few = {name("engine_prompt_tokens_total", ENGINE): lambda now: 500 / 30 * now}
    finding = Watch().run(30, peak() | BUDGET | few)["prefill_memory_peak"]
    assert "A prefill" not in finding.cause
    assert "more than the prompts counted so far take: one that still runs, or another program" in finding.cause
    assert finding.confidence == 0.5
    assert "would take" not in texts(finding)
    # As if the step had had the whole budget: 9.5 GiB of room less 3.2 GiB to keep, at 9 GiB per 8,192 tokens.
    assert [advice.flag for advice in finding.advice] == ["", "--max-num-batched-tokens"]
    assert flags(finding)[-1] == ("--max-num-batched-tokens", "8192", "5632")
    enough = {name("engine_prompt_tokens_total", ENGINE): lambda now: 700 / 30 * now}
    assert Watch().run(30, peak() | BUDGET | enough)["prefill_memory_peak"].cause.startswith("A prefill took 9.0 GiB")


def test_a_long_prompt_that_is_not_counted_yet_is_told_by_its_steps():
    few = {name("engine_prompt_tokens_total", ENGINE): lambda now: 2.0 * now}
    live = peak() | BUDGET | few | steps({"4096.0": 1, "8192.0": 1, "+Inf": 0})
    assert Watch().run(30, live)["prefill_memory_peak"].cause.startswith("A prefill took 9.0 GiB")


def headroom(**more):
    """Peaks of 8 GiB until second 60, and 4.5 GiB free since; `more` are further parts of the card."""
    return {
        **card(
            used=after(60, 60, 75), free=after(60, 19.5, 4.5), transient=after(60, 8, 0), peak=after(0, 75, 75), **more
        ),
        name("gpu_engine", gpu(0), server=ENGINE["server"], basis="process"): 1.0,
        name("engine_requests_running", ENGINE): 4.0,
    }


def test_peaks_that_no_visible_process_owns_may_be_those_of_another_program():
    unseen = headroom(unattributed=after(60, 60, 75))
    finding = Watch().run(160, unseen)["gpu_headroom_low"]
    assert "Whether it is the engine's, no visible process tells." in finding.cause
    assert "memory that no visible process owns rose by up to 15.0 GiB" in texts(finding)
    assert finding.confidence == 0.5
    assert "which process grew" in finding.advice[0].text
    seen = Watch().run(160, headroom(unattributed=after(60, 1, 4)))["gpu_headroom_low"]
    assert seen.cause == "The next peak of 8.0 GiB will not fit: 4.5 GiB are free."
    assert seen.confidence == 0.7


def test_peaks_of_an_engine_before_it_was_started_anew_are_not_those_of_the_next():
    tokens = name("engine_generation_tokens_total", ENGINE)
    live = headroom() | {tokens: lambda now: 100.0 * (now if now < 60 else now - 60)}
    assert Watch().run(160, live).ids == []
    transient = card(transient=lambda now: 8 if now < 60 else 0 if now < 100 else 6)
    finding = Watch().run(160, live | transient)["gpu_headroom_low"]
    assert "The next peak of 6.0 GiB will not fit: 4.5 GiB are free." in finding.cause


def test_one_peak_has_one_value_whichever_finding_tells_it():
    # 3.2 GiB on a card of 80 GiB with 3.15 GiB free: the readings at the peak add up to more than was ever free.
    live = peak(left=0.0, took=3.2) | card(
        used=after(20, 76.0, 76.0),
        free=after(20, 3.15, 3.15),
        peak=after(20, 76.0, 79.2),
        step=after(20, 0.0, 3.2),
        transient=after(20, 0.0, 3.2),
    )
    live |= BUDGET | steps({"8192.0": 1, "+Inf": 0}) | {name("engine_config_memory_fraction_ratio", CONFIG): 0.92}
    watch = Watch().run(60, live)
    assert watch.ids == ["prefill_memory_peak", "gpu_headroom_low"]
    for finding in watch.findings:
        # 3.2 GiB for the step and 3.2 GiB to keep, less 3.15 GiB: 3.25 of 80 GiB, so 0.92 - 0.0406, in steps of 0.01.
        assert flags(finding)[1] == ("--gpu-memory-utilization", "0.92", "0.87")


def test_a_step_beyond_what_was_profiled_says_so():
    live = peak() | BUDGET | {name("engine_config_activation_peak_bytes", CONFIG): 2.84 * GIB}
    told = texts(Watch().run(30, live)["prefill_memory_peak"])
    assert "profiled an activation peak of 2.8 GiB; this step took 9.0 GiB: more than it reserved for" in told


def test_a_step_within_what_was_profiled_does_not():
    live = peak() | BUDGET | {name("engine_config_activation_peak_bytes", CONFIG): 8.9 * GIB}
    told = texts(Watch().run(30, live)["prefill_memory_peak"])
    assert "more than it reserved for" not in told


def test_sglang_is_told_its_own_flags():
    config = {"host": "h", "server": SGLANG["server"], "engine_kind": "sglang"}
    live = peak(engine=SGLANG) | {
        name("engine_config_max_num_batched_tokens", config): 8192.0,
        name("engine_config_memory_fraction_ratio", config): 0.9,
    }
    finding = Watch().run(30, live)["prefill_memory_peak"]
    assert [flag for flag, _, _ in flags(finding)] == ["--chunked-prefill-size", "--mem-fraction-static"]


def test_an_unknown_budget_gives_no_number():
    finding = Watch().run(30, peak())["prefill_memory_peak"]
    assert finding.cause.endswith("It was survived; a larger one fails.")
    assert flags(finding) == [("--max-num-batched-tokens", None, None)]


@pytest.mark.parametrize(
    ("took", "room", "tokens", "budget", "chunk"),
    [
        (8.0, 16.0, 8192, 8192, 7936),  # everything fits: a little less than now
        (8.0, 4.5, 8192, 8192, 1280),  # (4.5 - 3.2) / 8 of 8,192 tokens = 1,331
        (8.0, 3.5, 8192, 8192, None),  # 307 tokens are no sensible chunk
        (8.0, 3.0, None, 8192, None),  # nothing is left above the reserve
        (8.0, 4.5, None, 8192, 1280),  # unknown tokens: the whole budget is assumed
        (8.0, 4.5, 8192, None, None),
    ],
)
def test_the_chunk_that_fits(took, room, tokens, budget, chunk):
    assert Step(took * GIB, room * GIB, tokens, budget, 80.0 * GIB).chunk() == chunk


def test_a_pool_fixed_in_bytes_is_lowered_in_bytes():
    # A step of 8 GiB, 3.2 to stay free, 4.5 of room: 6.7 GiB are lacking; 20 - 6.7 = 13.3 GiB, 13,619 MiB.
    live = {name("engine_config_memory_fraction_ratio", CONFIG): 0.9}
    watch = Watch((fact("flag.kv-cache-memory-bytes", 20 * GIB),)).run(5, live)
    engine = Context(watch.querier, START + 4000, watch.facts).about(dict(CONFIG))
    found = step_advice(engine, Step(8.0 * GIB, 4.5 * GIB, 8192, 8192, 80.0 * GIB))
    lowered = ("--kv-cache-memory-bytes", str(20 * GIB), str(13_619 << 20))
    assert (found[1].flag, found[1].current, found[1].proposed) == lowered


def test_a_fraction_is_never_raised_and_never_below_its_floor():
    roomy = Step(1.0 * GIB, 20.0 * GIB, 8192, 8192, 80.0 * GIB)
    assert math.isclose(roomy.fraction(0.9), 0.9)
    hopeless = Step(70.0 * GIB, 1.0 * GIB, 1024, 8192, 80.0 * GIB)
    assert math.isclose(hopeless.fraction(0.9), 0.05)
