"""Storms of different kinds: swap, recompute, read back from the host, half-computed prompts, and what never fits."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.watch import CONFIG, ENGINE, Watch, event, fact, flags, name, texts


def storm(**more):
    """Two evictions at second 20 on a pool of 5,120 tokens while others wait."""
    live = {
        "requests_running": lambda s: 4.0 if s < 20 else 2.0,
        "requests_waiting": 10.0,
        "kv_cache_usage_ratio": 0.95,
        "kv_cache_tokens": 5120.0,
        "kv_cache_blocks": 40.0,
        "kv_block_size_tokens": 128.0,
        "evictions_total": lambda s: 0.0 if s < 20 else 3.0,
        "time_to_first_token_seconds_count": float,
        **more,
    }
    ended = live.pop("ended", lambda s: s / 10)
    return {
        **{name("engine_" + key, ENGINE): value for key, value in live.items()},
        name("engine_requests_finished_total", ENGINE, reason="stop"): ended,
    }


def test_without_further_signs_victims_are_computed_again():
    assert "thrown out of it and computed again" in Watch().run(30, storm())["kv_preemption_storm"].cause


def test_a_request_that_fills_the_pool_alone_can_never_end():
    # 39 usable blocks of 128 tokens hold 4,992.
    live = storm(requests_running=1.0, ended=0.0, kv_cache_usage_ratio=lambda s: 1.0 if s % 4 else 0.1)
    finding = Watch((fact("max_model_len", 8192),)).run(30, live)["kv_preemption_storm"]
    assert "One request needs more than the whole KV pool of 5,120 tokens" in finding.cause
    assert flags(finding)[0] == ("--max-model-len", "8192", "4992")
    assert "--max-num-seqs" not in [flag for flag, _, _ in flags(finding)]


@pytest.mark.parametrize(("waiting", "named"), [(0.0, True), (1.0, False)])
def test_a_request_that_is_admitted_again_between_two_pages_is_a_livelock_where_nobody_waits(waiting, named):
    # It fills the pool five times a second: the pages of a minute show 40 to 80 % and a counter that runs.
    live = storm(
        requests_running=1.0,
        requests_waiting=waiting,
        ended=0.0,
        kv_cache_usage_ratio=lambda s: 0.4 if s % 4 else 0.8,
        evictions_total=0.0,
        preemptions_total=lambda s: 5.0 * s,
    )
    finding = Watch((fact("max_model_len", 8192),)).run(40, live)["kv_preemption_storm"]
    assert ("One request needs more than the whole KV pool" in finding.cause) == named


def test_one_request_at_a_time_that_ends_is_no_livelock():
    finding = Watch().run(30, storm(requests_running=1.0))["kv_preemption_storm"]
    assert "One request needs more" not in finding.cause


def test_vllm_v0_that_swaps_is_told_from_one_that_computes_again():
    text = "Sequence group 165 is preempted by PreemptionMode.SWAP mode because there is not enough KV cache space."
    lines = (event("preempted_v0", text, 20, line=4, mode="SWAP"),)
    finding = Watch((), lines).run(30, storm(requests_swapped=37.0))["kv_preemption_storm"]
    assert "swapped to the host and read back" in finding.cause
    assert "up to 37 requests were swapped out" in texts(finding)
    assert ("--swap-space", "4", "8") in flags(finding)


def test_a_preemption_by_recomputation_is_no_swap():
    text = (
        "Sequence group 221 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space."
    )
    lines = (event("preempted_v0", text, 20, line=4, mode="RECOMPUTE"),)
    assert "computed again" in Watch((), lines).run(30, storm(requests_swapped=0.0))["kv_preemption_storm"].cause


def test_a_swap_space_that_is_full_is_the_engines_own():
    lines = (event("swap_abort_v0", "Aborted due to the lack of CPU swap space.", 25, line=9),)
    facts = (fact("flag.swap-space", 16.0),)
    finding = Watch(facts, lines).run(30, storm(requests_swapped=3.0))["kv_preemption_storm"]
    assert "requests are aborted" in finding.cause
    assert ("--swap-space", "16.0", "32") in flags(finding)
    assert any("vLLM's own swap space on the host, not the system's" in advice.text for advice in finding.advice)


@pytest.mark.parametrize(
    ("version", "facts", "expected"),
    [
        ("0.17.0", (), ("", None, None)),
        (
            "0.32.0",
            (fact("flag.scheduler-reserve-full-isl", value=False),),
            ("--scheduler-reserve-full-isl", "false", "true"),
        ),
    ],
)
def test_prompts_that_are_thrown_out_half_computed_are_to_be_admitted_whole(version, facts, expected):
    live = storm(
        time_to_first_token_seconds_count=5.0,
        prompt_length_tokens_count=lambda s: float(s // 5),
        prompt_length_tokens_sum=lambda s: 1000.0 * (s // 5),
    ) | {name("engine_info", CONFIG, version=version): 1.0}
    finding = Watch(facts).run(30, live)["kv_preemption_storm"]
    assert "admitted when their first chunk fits, thrown out half computed" in finding.cause
    assert expected in flags(finding)
    assert any("fits" in advice.text for advice in finding.advice)


def test_before_anything_has_finished_the_prompts_that_got_a_token_tell_how_long_prompts_are():
    live = storm(
        time_to_first_token_seconds_count=lambda s: 0.0 if s < 4 else 2.0,
        prompt_tokens_total=lambda s: 0.0 if s < 4 else 2000.0,
        ended=0.0,
    )
    finding = Watch().run(30, live)["kv_preemption_storm"]
    assert "admitted when their first chunk fits, thrown out half computed" in finding.cause
    assert "prompts have 1,000 tokens on average, 20 % of the pool" in texts(finding)


def test_prompts_that_get_their_first_token_are_not_half_computed():
    live = storm(
        prompt_length_tokens_count=lambda s: float(s // 5), prompt_length_tokens_sum=lambda s: 1000.0 * (s // 5)
    )
    assert "half computed" not in Watch().run(30, live)["kv_preemption_storm"].cause


def test_cache_that_is_read_back_from_the_host_is_named():
    live = storm(kv_offload_loaded_bytes_total=lambda s: 1e9 * s)
    finding = Watch().run(30, live)["kv_preemption_storm"]
    assert "read back from the host or computed again" in finding.cause
    assert "GiB of KV cache were read back from the host in 60 s" in texts(finding)


def test_a_storm_that_only_the_engine_counts_is_not_proved_by_what_was_not_seen():
    own = {"evictions_total": 0.0, "preemptions_total": lambda s: 0.0 if s < 20 else 33.0}
    found = Watch().run(40, storm(**own))["kv_preemption_storm"]
    outside = [(one.text, one.value) for one in found.evidence if one.name == "gpuwatch_engine_evictions_total"]
    assert outside == [
        ("from outside none was seen: a victim that runs again within 2 s shows in the engine's counter only", 0.0)
    ]
    assert "the engine itself counted 33 preemptions in 60 s" in texts(found)
    assert "running requests fell" not in texts(found)
    assert "stayed empty for 2 s" not in texts(found)  # nothing was seen to leave
