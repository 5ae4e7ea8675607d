from __future__ import annotations

import pytest

from gpuwatch.diagnosis.capacity import pool_of
from gpuwatch.diagnosis.context import Context
from gpuwatch.model import series
from tests.unit.diagnosis.storms import KEYS, START, VLLM_0_10_2, VLLM_0_31_0, VLLM_0_32_0, values
from tests.unit.diagnosis.watch import CONFIG, ENGINE, SERVER, SGLANG, Watch, event, fact, flags, gpu, name, texts

STORM = "kv_preemption_storm"
FACTS = (
    fact("kv.blocks_profiled", 4096, 43),
    fact("kv.blocks_override", 40, 43),
    fact("max_num_seqs", 16, 8),
    fact("max_model_len", 4096, 10),
)


def replay(pages, begin=30):
    """The series of a captured storm whose requests are sent at `begin`; a page holds until the next one."""

    def at(row):
        def value(second):
            page = [page for page in pages if page.at <= max(0, second - begin)][-1]
            return float(values(page)[row])

        return value

    return {key: at(row) for row, key in enumerate(KEYS)}


def finished(pages, prompt, output, begin=30):
    """The length histograms of finished requests, which all had the same lengths."""

    def count(second):
        return float([page for page in pages if page.at <= max(0, second - begin)][-1].finished)

    rows = {}
    for histogram, length in (("prompt_length_tokens", prompt), ("generation_length_tokens", output)):
        rows[name(f"engine_{histogram}_count", ENGINE)] = count
        rows[name(f"engine_{histogram}_sum", ENGINE)] = lambda second, length=length: length * count(second)
    return rows


def test_the_storm_of_0_31_0_is_named_a_second_after_its_first_eviction_eleven_before_the_engine_counts():
    watch = Watch(FACTS).run(66, {**replay(VLLM_0_31_0), **finished(VLLM_0_31_0, 600, 1500)}, derive=True)
    assert watch.first_seen == {STORM: 30 + 12 + 1}
    assert watch.ids == [STORM]


def test_the_storm_of_0_10_2_is_named_within_20_seconds_although_the_engine_never_counts():
    watch = Watch(FACTS).run(66, replay(VLLM_0_10_2), derive=True)
    assert watch.first_seen[STORM] - (30 + 6) <= 20
    assert "has not moved yet" in texts(watch[STORM])


def test_the_storm_of_0_32_0_is_one_finding_until_nobody_waits_and_half_of_the_pool_is_free():
    # Running falls from 6 to 4 at second 3, which nothing has healed at second 4; the engine counts its first
    # preemption at second 10; a queue that is empty for one page, at second 33, does not end it; half of the pool is
    # free from second 40 on, and half a minute later it is over.
    watch, states = Watch(FACTS), {}
    live = {**replay(VLLM_0_32_0, begin=0), **finished(VLLM_0_32_0, 600, 1500, begin=0)}
    for second in range(76):
        watch.run(1, live, derive=True)
        states[second] = [(finding.id, finding.state) for finding in watch.findings]
    assert {second for second, found in states.items() if found == [(STORM, "firing")]} == set(range(4, 70))
    assert all(states[second] == [(STORM, "resolved")] for second in range(70, 76))
    storm = watch[STORM]
    assert storm.since == START + 4000
    assert ("--max-num-seqs", "16", "2") in flags(storm)
    assert "16 are admitted" in storm.cause


def test_its_cause_is_the_override_and_the_advice_is_computed_from_finished_requests():
    # 600 + 1,500 tokens take 17 blocks of 128: 39 usable blocks hold 2; 16 requests need 16 x 17 + 1 = 273 blocks.
    watch = Watch(FACTS).run(66, {**replay(VLLM_0_31_0), **finished(VLLM_0_31_0, 600, 1500)}, derive=True)
    storm = watch[STORM]
    assert storm.severity == "critical"
    assert "--num-gpu-blocks-override limits the KV pool to 40 blocks (5,120 tokens)" in storm.cause
    assert "room for 4,096" in storm.cause
    assert "holds 2.2 requests of 2,100 tokens, and up to 16 are admitted at once" in storm.cause
    assert flags(storm) == [
        ("--num-gpu-blocks-override", "40", "4096"),
        ("--max-num-seqs", "16", "2"),
        ("--num-gpu-blocks-override", "40", "273"),
    ]
    assert storm.advice[0].text.endswith("16 requests of 2,100 tokens need 273")
    assert "a pool of 33,600 tokens (+28,480) for 16 requests of 2,100" in storm.advice[2].text
    line = next(evidence for evidence in storm.evidence if evidence.name == "kv.blocks_profiled")
    assert (line.source, line.line, line.value) == ("/var/log/vllm.log", 43, 4096)


def test_what_is_admitted_is_no_part_of_the_cause_where_the_pool_holds_as_many():
    # 39 / 17 blocks = 2.29 requests are held, rounded down to 2.2, and two seats cannot be more than that.
    facts = (*(one for one in FACTS if one.key != "max_num_seqs"), fact("max_num_seqs", 2, 8))
    watch = Watch(facts).run(66, {**replay(VLLM_0_31_0), **finished(VLLM_0_31_0, 600, 1500)}, derive=True)
    assert "It holds 2.2 requests of 2,100 tokens: requests are" in watch[STORM].cause
    assert "admitted" not in watch[STORM].cause


def test_one_request_is_written_as_one():
    # 600 + 3,000 tokens take 29 blocks of 128: 39 usable blocks hold 1.
    watch = Watch(FACTS).run(66, {**replay(VLLM_0_31_0), **finished(VLLM_0_31_0, 600, 3000)}, derive=True)
    assert watch[STORM].advice[1].text.startswith("admit only what fits: 5,120 tokens hold one request of 3,600")


def test_the_engines_own_counter_raises_the_confidence_when_it_moves():
    before = Watch(FACTS).run(30 + 20, replay(VLLM_0_31_0), derive=True)[STORM]
    after = Watch(FACTS).run(30 + 32, replay(VLLM_0_31_0), derive=True)[STORM]
    assert before.confidence < after.confidence
    assert "the engine itself counted 7 preemptions" in texts(after)


def test_before_anything_has_finished_the_running_requests_are_taken_to_be_half_done():
    # Second 18: 2 requests hold 28 blocks, 14 each, so 13 x 128 + 1 = 1,665 tokens at least, 600 of them prompt:
    # 600 + 2 x 1,065 = 2,730 tokens, 22 blocks, of which 39 hold 1.
    storm = Watch(FACTS).run(30 + 20, replay(VLLM_0_31_0), derive=True)[STORM]
    assert "about 2,730 tokens" in storm.cause
    seats = storm.advice[1]
    assert (seats.flag, seats.current, seats.proposed) == ("--max-num-seqs", "16", "1")
    assert "estimate" in seats.text


def test_short_requests_that_finished_do_not_hide_the_long_ones_that_run():
    # The finished ones had 300 + 120 tokens; at second 18 the two that run hold 14 blocks each, 13 x 128 + 1 = 1,665
    # tokens at least. 39 usable blocks hold 2 of those.
    live = {**replay(VLLM_0_31_0), **finished(VLLM_0_31_0, 300, 120)}
    storm = Watch(FACTS).run(66, live, derive=True)[STORM]
    assert "at least 1,665 tokens" in storm.cause
    seats = storm.advice[1]
    assert (seats.flag, seats.proposed) == ("--max-num-seqs", "2")
    assert "fewer fit if they grow" in seats.text


def clients(dip):
    """An engine under load whose clients give up and send again every 10 s: `dip` seconds until places are filled."""

    def page(second):
        low = second % 10 < dip and second >= 10
        running, waiting = (12, 24) if low else (16, 20)
        return [running, waiting, 0.95, 0, 5000 + 50 * second, 1000 + 100 * second, 9, 5120, 40, 128]

    live = {key: (lambda second, row=row: float(page(second)[row])) for row, key in enumerate(KEYS[:10])}
    live |= {key: (lambda second: float(second // 3)) for key in KEYS[11:12]}
    return live | {KEYS[10]: 0.0, KEYS[12]: 0.0, name("engine_info", CONFIG, version="0.32.0"): 1.0}


def test_clients_that_time_out_and_send_again_are_no_storm():
    watch = Watch(FACTS).run(90, clients(dip=1), derive=True)
    assert STORM not in watch.first_seen


def test_places_that_stay_empty_without_the_engine_counting_are_not_called_evictions_for_sure():
    watch = Watch(FACTS).run(10 + 20, clients(dip=8), derive=True)
    assert watch[STORM].confidence >= 0.7
    assert "not separated" not in texts(watch[STORM])
    watch.run(40, clients(dip=8), derive=True)
    storm = watch[STORM]
    assert storm.confidence == 0.4
    assert "not separated from clients that time out and send again: vLLM 0.32.0" in texts(storm)
    assert "went away" not in texts(storm)
    assert "not separated" in storm.cause


def test_an_engine_whose_counter_is_known_to_stay_still_is_not_doubted_for_it():
    live = clients(dip=8)
    del live[name("engine_info", CONFIG, version="0.32.0")]
    live[name("engine_info", CONFIG, version="0.10.2")] = 1.0
    storm = Watch(FACTS).run(70, live, derive=True)[STORM]
    assert storm.confidence > 0.4
    assert "has not moved yet" in texts(storm)


def test_an_override_without_a_known_profile_is_to_be_removed():
    facts = (fact("kv.blocks_override", 40), fact("max_num_seqs", 16))
    storm = Watch(facts).run(66, {**replay(VLLM_0_31_0), **finished(VLLM_0_31_0, 600, 1500)}, derive=True)[STORM]
    assert flags(storm)[0] == ("--num-gpu-blocks-override", "40", "(none)")


def test_the_override_is_also_known_from_the_page():
    live = {**replay(VLLM_0_31_0), name("engine_num_gpu_blocks_override", ENGINE): 40.0}
    storm = Watch().run(66, live, derive=True)[STORM]
    assert flags(storm)[0] == ("--num-gpu-blocks-override", "40", "(none)")


def test_without_an_override_the_batch_limit_comes_first_and_the_fraction_is_computed():
    # 5,120 tokens in 8 GiB are 1.6 MiB each: 28,480 more take 44.5 GiB of the 50 GiB that are free on an 80 GiB card:
    # 0.30 + 44.5 / 80 = 0.856, so 0.86.
    gib = 1 << 30
    placed = {"host": "h", "uuid": "GPU-0", "gpu": "0"}
    live = {
        **replay(VLLM_0_31_0),
        **finished(VLLM_0_31_0, 600, 1500),
        series("gpuwatch_gpu_engine", **placed, server=SERVER, basis="process"): 1.0,
        series("gpuwatch_gpu_memory_free_bytes", **placed): 50.0 * gib,
        series("gpuwatch_gpu_memory_total_bytes", **placed): 80.0 * gib,
        name("engine_config_kv_cache_bytes", CONFIG): 8.0 * gib,
        name("engine_config_memory_fraction_ratio", CONFIG): 0.3,
        name("engine_config_max_num_seqs", CONFIG): 16.0,
    }
    storm = Watch().run(66, live, derive=True)[STORM]
    assert flags(storm) == [("--max-num-seqs", "16", "2"), ("--gpu-memory-utilization", "0.3", "0.86")]
    assert "44.5 GiB more per GPU" in storm.advice[1].text


def constant(running=4.0, waiting=8.0, facts=(), more=()):
    """A storm whose pool holds 4 requests of the mean length: 10,240 tokens, 1,000 prompt and 1,500 output tokens."""
    live = {
        name("engine_requests_running", ENGINE): running,
        name("engine_requests_waiting", ENGINE): waiting,
        name("engine_evictions_total", ENGINE): lambda second: float(second // 4),
        name("engine_preemptions_total", ENGINE): lambda second: float(second // 4),
        name("engine_kv_cache_tokens", ENGINE): 10_240.0,
        name("engine_kv_cache_blocks", ENGINE): 640.0,
        name("engine_kv_block_size_tokens", ENGINE): 16.0,
        name("engine_kv_cache_usage_ratio", ENGINE): 0.97,
        name("engine_requests_finished_total", ENGINE, reason="stop"): lambda second: float(second // 4),
    }
    for histogram, length in (("prompt_length_tokens", 1000.0), ("generation_length_tokens", 1500.0)):
        live[name(f"engine_{histogram}_count", ENGINE)] = lambda second: second / 4
        live[name(f"engine_{histogram}_sum", ENGINE)] = lambda second, length=length: length * second / 4
    return Watch(facts).run(60, {**live, **dict(more)})[STORM]


def roomy(free, cache_bytes=8):
    gib = 1 << 30
    return {
        name("gpu_engine", gpu(0), server=SERVER, basis="process"): 1.0,
        name("gpu_memory_free_bytes", gpu(0)): free * gib,
        name("gpu_memory_total_bytes", gpu(0)): 80.0 * gib,
        name("engine_config_kv_cache_bytes", CONFIG): float(cache_bytes * gib),
    }


@pytest.mark.parametrize(
    ("limit", "running", "fewer"),
    [
        (4, 4.0, "3"),  # all four fit by their mean: one fewer
        (4, 2.0, "2"),  # two of them stay beside the evictions
        (1, 1.0, None),  # nothing is fewer than one
    ],
)
def test_where_all_fit_by_their_mean_fewer_than_the_limit_are_advised_because_lengths_vary(limit, running, fewer):
    storm = constant(running, facts=(fact("max_num_seqs", limit),))
    if fewer is None:
        assert [advice.flag for advice in storm.advice if advice.flag == "--max-num-seqs"] == []
        return
    assert flags(storm) == [("--max-num-seqs", str(limit), fewer)]
    assert f"{limit} requests would fit if each had the typical 2,500 tokens" in storm.advice[0].text


def test_a_limit_that_is_no_lower_than_what_ran_at_most_is_not_advised():
    # The pool holds 4 requests of the mean length; no more than 3 ever ran, and 8 wait.
    storm = constant(running=3.0, facts=(fact("max_num_seqs", 64),))
    assert flags(storm)[0] == ("--max-num-seqs", "64", "3")
    assert "4 requests would fit if each had the typical 2,500 tokens, but lengths vary" in storm.advice[0].text
    assert "3.0 ran on average" in storm.advice[0].text
    assert flags(constant(running=5.0, facts=(fact("max_num_seqs", 64),)))[0] == ("--max-num-seqs", "64", "4")


def test_requests_that_are_open_are_only_said_to_be_admitted_where_they_reach_the_limit():
    assert "and up to 12 are open at once: requests are thrown out" in constant().cause
    assert "and up to 12 are open at once" in constant(facts=(fact("max_num_seqs", 64),)).cause
    assert "and up to 10 are admitted at once" in constant(facts=(fact("max_num_seqs", 10),)).cause


def test_a_limit_that_is_never_reached_is_not_lowered_to_what_runs_anyway():
    storm = constant(running=3.0, waiting=1.0, facts=(fact("max_num_seqs", 64),))
    assert flags(storm) == [("--max-num-seqs", "64", "3")]  # 4 were open, and 3 of them run


def test_a_pool_fixed_in_bytes_is_enlarged_in_bytes():
    # 12 requests of 2,500 tokens are 30,000: 19,760 more, at 8 GiB for 10,240 tokens, are 15.44 GiB; 23.44 in all,
    # which is 24,000 MiB exactly.
    facts = (fact("max_num_seqs", 64), fact("memory_fraction", 0.9), fact("flag.kv-cache-memory-bytes", 8 << 30))
    storm = constant(facts=facts, more=roomy(30.0))
    assert flags(storm)[1] == ("--kv-cache-memory-bytes", str(8 << 30), str(24_000 << 20))
    assert "15.4 GiB more per GPU, and 30.0 GiB are free" in storm.advice[1].text


def test_a_pool_fixed_in_bytes_names_its_own_flag_where_nothing_can_be_proposed():
    facts = (fact("max_num_seqs", 64), fact("memory_fraction", 0.9), fact("flag.kv-cache-memory-bytes", 8 << 30))
    storm = constant(facts=facts, more=roomy(3.0))
    assert flags(storm)[1] == ("--kv-cache-memory-bytes", str(8 << 30), None)


def test_free_memory_is_not_promised_to_every_engine_on_the_card():
    # 15.4 GiB are wanted and 30 free, but only 15 for each of two engines.
    other = {name("gpu_engine", gpu(0), server="127.0.0.1:8001", basis="process"): 1.0}
    facts = (fact("max_num_seqs", 64), fact("memory_fraction", 0.5))
    assert flags(constant(facts=facts, more=roomy(30.0)))[1] == ("--gpu-memory-utilization", "0.5", "0.7")
    storm = constant(facts=facts, more=roomy(30.0) | other)
    assert flags(storm)[1] == ("--gpu-memory-utilization", "0.5", None)
    assert "30.0 GiB are free for 2 engines" in storm.advice[1].text


@pytest.mark.parametrize(
    ("kind", "said"),
    [("fp8", False), ("fp8_e5m2", False), ("torch.float8_e4m3fn", False), ("auto", True), ("torch.bfloat16", True)],
)
def test_a_cache_of_8_bits_is_not_answered_with_8_bits(kind, said):
    storm = constant(facts=(fact("max_num_seqs", 64), fact("kv.dtype", kind)), more=roomy(3.0))
    assert ("an 8-bit KV cache" in storm.advice[1].text) == said
    assert "more GPUs enlarge it" in storm.advice[1].text


def test_the_type_on_the_page_tells_as_well():
    page = {name("engine_cache_config_info", ENGINE, cache_dtype="fp8"): 1.0}
    storm = constant(facts=(fact("max_num_seqs", 64),), more=roomy(3.0) | page)
    assert "8-bit" not in storm.advice[1].text


def test_advice_that_comes_first_is_no_alternative_to_anything():
    live = {
        name("engine_requests_running", ENGINE): 16.0,
        name("engine_requests_waiting", ENGINE): 3.0,
        name("engine_kv_cache_usage_ratio", ENGINE): 0.9,
        name("engine_evictions_total", ENGINE): 0.0,
        name("engine_kv_cache_tokens", ENGINE): 10_000.0,
        name("engine_request_length_seen_tokens", ENGINE): 500.0,
    }
    finding = Watch((fact("max_num_seqs", 16),)).run(120, live)["kv_pool_saturated"]
    assert finding.advice[0].text.startswith("a pool of 16,000 tokens (+6,000) for 16 requests of 1,000")


def test_without_a_known_limit_the_present_value_stays_unknown():
    storm = Watch().run(66, {**replay(VLLM_0_31_0), **finished(VLLM_0_31_0, 600, 1500)}, derive=True)[STORM]
    assert flags(storm)[0] == ("--max-num-seqs", None, "2")


def test_a_storm_is_not_also_called_saturation():
    watch = Watch(FACTS).run(66, replay(VLLM_0_31_0), derive=True)
    assert "kv_pool_saturated" not in watch.ids


def test_after_the_load_has_ended_the_finding_is_resolved_and_keeps_what_was_said():
    watch = Watch(FACTS)
    live = {**replay(VLLM_0_31_0), **finished(VLLM_0_31_0, 600, 1500)}
    watch.run(66, live, derive=True)
    said = watch[STORM].cause
    idle = {key: (0.0 if key in KEYS[:3] else value) for key, value in live.items()}
    watch.run(35, idle, derive=True)
    storm = watch[STORM]
    assert (storm.state, storm.cause) == ("resolved", said)
    assert storm.until is not None


def test_a_resolved_finding_is_explained_at_its_last_moment_when_nobody_listened_before():
    watch = Watch(FACTS, memory=False)
    live = {**replay(VLLM_0_31_0), **finished(VLLM_0_31_0, 600, 1500)}
    watch.run(66, live, derive=True)
    watch.run(35, {key: (0.0 if key in KEYS[:3] else value) for key, value in live.items()}, derive=True)
    assert watch[STORM].state == "resolved"
    assert "2,100 tokens" in watch[STORM].cause


def test_a_healthy_engine_gives_no_finding():
    live = replay(VLLM_0_31_0[:3])
    watch = Watch(FACTS).run(90, live, derive=True)
    assert watch.findings == ()


def test_an_engine_without_counters_is_not_called_healthy():
    live = {name("engine_requests_running", ENGINE): 1.0, name("engine_kv_cache_usage_ratio", ENGINE): 0.99}
    watch = Watch().run(10, live)
    lacks = {item.id: item for item in watch.not_enough}
    assert lacks[STORM].labels == {"server": SERVER}
    assert "gpuwatch_engine" in lacks[STORM].missing


def test_sglang_speaks_of_retraction_and_of_its_own_flags():
    # 20,000 tokens hold 4 requests of 1,000 + 4,000.
    live = {
        name("engine_requests_running", SGLANG): 6.0,
        name("engine_requests_waiting", SGLANG): 4.0,
        name("engine_kv_cache_usage_ratio", SGLANG): 0.93,
        name("engine_kv_cache_swa_usage_ratio", SGLANG): 0.07,
        name("engine_kv_cache_tokens", SGLANG): 20_000.0,
        name("engine_preemptions_total", SGLANG): lambda second: float(second // 10),
        name("engine_requests_finished_total", SGLANG, reason="finished"): 4.0,
        name("engine_prompt_length_tokens_count", SGLANG): lambda second: second // 10,
        name("engine_prompt_length_tokens_sum", SGLANG): lambda second: 1000 * (second // 10),
        name("engine_generation_length_tokens_count", SGLANG): lambda second: second // 10,
        name("engine_generation_length_tokens_sum", SGLANG): lambda second: 4000 * (second // 10),
    }
    facts = (fact("max_num_seqs", 16), fact("flag.schedule-conservativeness", "1.0"))
    events = (event("retraction", "KV cache pool is full. Retract requests. #retracted_reqs: 1", 50, line=912),)
    watch = Watch(facts, events).run(60, live)
    storm = watch["sglang_retraction_storm"]
    assert "retracted" in storm.cause
    assert flags(storm)[:2] == [
        ("--max-running-requests", "16", "4"),
        ("--schedule-conservativeness", "1.0", "1.3"),
    ]
    assert flags(storm)[2][0] == "--mem-fraction-static"
    assert any(evidence.line == 912 for evidence in storm.evidence)
    assert "sliding-window pool" in texts(storm)


def sglang_without_histograms(second):
    """Return the counters of SGLang 0.4: 900 + 400 tokens a request, one that ends every 2 seconds."""
    ended = second // 2
    return {
        "engine_requests_finished_total": ended,
        "engine_prompt_tokens_total": 900 * ended,
        "engine_generation_tokens_total": 400 * ended,
    }


def test_sglang_without_length_histograms_has_the_mean_of_its_counters():
    # 20,000 tokens hold 15 requests of 1,300.
    def counter(key):
        return lambda second: float(sglang_without_histograms(second)[key])

    live = {
        name("engine_requests_running", SGLANG): 20.0,
        name("engine_requests_waiting", SGLANG): 20.0,
        name("engine_kv_cache_usage_ratio", SGLANG): 0.97,
        name("engine_kv_cache_tokens", SGLANG): 20_000.0,
        name("engine_request_length_seen_tokens", SGLANG): 1_200.0,
        name("engine_preemptions_total", SGLANG): lambda second: float(second // 10),
        name("engine_requests_finished_total", SGLANG, reason="finished"): counter("engine_requests_finished_total"),
        name("engine_prompt_tokens_total", SGLANG): counter("engine_prompt_tokens_total"),
        name("engine_generation_tokens_total", SGLANG): counter("engine_generation_tokens_total"),
    }
    storm = Watch((fact("max_num_seqs", 40),)).run(66, live)["sglang_retraction_storm"]
    assert "requests of 1,300 tokens" in storm.cause
    assert ("--max-running-requests", "40", "15") in flags(storm)
    assert "hardly any" not in texts(storm)


def test_a_page_without_lengths_does_not_say_that_hardly_any_request_has_finished():
    live = {
        name("engine_requests_running", SGLANG): 6.0,
        name("engine_kv_cache_usage_ratio", SGLANG): 0.97,
        name("engine_kv_cache_tokens", SGLANG): 20_000.0,
        name("engine_request_length_seen_tokens", SGLANG): 1_200.0,
        name("engine_preemptions_total", SGLANG): lambda second: float(second // 10),
    }
    storm = Watch().run(60, live)["sglang_retraction_storm"]
    assert "how long finished requests were is not known" in texts(storm)
    assert "hardly any" not in texts(storm)


def test_an_engine_that_did_not_start_for_an_override_is_told_to_lift_it_and_not_to_find_memory():
    log = {"host": "h", "log": "/var/log/vllm.log", "server": SERVER}
    line = event("max_model_len_exceeds_kv", "To serve at least one request … ", 50, mml="4096", fit="2944")
    live = {name("log_events_total", log, event="max_model_len_exceeds_kv"): lambda s: float(s >= 50)}
    facts = (fact("kv.blocks_override", 24, 3), fact("kv.blocks_profiled", 4096, 2))
    found = Watch(facts, (line,)).run(60, live)["max_model_len_exceeds_kv"]
    assert flags(found) == [("--num-gpu-blocks-override", "24", "4096"), ("--max-model-len", "4096", "2944")]
    assert found.advice[1].text.startswith("or accept shorter requests: 2,944")
    plain = Watch((), (line,)).run(60, live)["max_model_len_exceeds_kv"]
    assert [flag for flag, _, _ in flags(plain)] == ["--max-model-len", "--gpu-memory-utilization"]
    assert plain.advice[0].text.startswith("accept shorter requests")


def test_a_cap_on_sglangs_pool_is_the_nearest_cause():
    live = {
        name("engine_requests_running", SGLANG): 6.0,
        name("engine_kv_cache_tokens", SGLANG): 20_000.0,
        name("engine_preemptions_total", SGLANG): lambda second: float(second // 10),
    }
    storm = Watch((fact("flag.max-total-tokens", "20000"),)).run(60, live)["sglang_retraction_storm"]
    assert flags(storm)[0] == ("--max-total-tokens", "20000", "(none)")


@pytest.mark.parametrize(("limit", "at_limit"), [(9.0, True), (64.0, False)])
def test_saturation_tells_a_full_batch_from_a_full_pool(limit, at_limit):
    live = {
        name("engine_requests_running", ENGINE): 9.0,
        name("engine_requests_waiting", ENGINE): 6.0,
        name("engine_kv_cache_usage_ratio", ENGINE): 0.95,
        name("engine_preemptions_total", ENGINE): 0.0,
        name("engine_evictions_total", ENGINE): 0.0,
        name("engine_config_max_num_seqs", CONFIG): limit,
    }
    saturated = Watch().run(100, live)["kv_pool_saturated"]
    assert saturated.severity == "info"
    assert ("which is the limit" in saturated.cause) == at_limit


def saturated_by(version, more=(), facts=(), drop=()):
    live = {
        name("engine_requests_running", ENGINE): 9.0,
        name("engine_requests_waiting", ENGINE): 6.0,
        name("engine_kv_cache_usage_ratio", ENGINE): 0.95,
        name("engine_preemptions_total", ENGINE): 0.0,
        name("engine_evictions_total", ENGINE): 0.0,
        name("engine_info", CONFIG, version=version): 1.0,
    } | dict(more)
    live = {key: value for key, value in live.items() if key not in drop}
    return Watch(facts).run(150, live)["kv_pool_saturated"]


def test_a_storm_is_ruled_out_only_where_it_would_have_been_seen():
    assert "Ruled out: a preemption storm" in texts(saturated_by("0.32.0"))
    assert saturated_by("0.32.0").confidence == 0.9
    running, preempted = name("engine_requests_running", ENGINE), name("engine_preemptions_total", ENGINE)
    for finding, why in (
        (saturated_by("0.10.2"), "vLLM 0.10.2 may count none within a storm"),
        (saturated_by("?"), "a vLLM of unknown version may count none"),
        (saturated_by("0.32.0", drop=(preempted,)), "the page has no counter of preemptions"),
        (
            saturated_by("0.32.0", more={running: lambda s: 9.0 if s % 2 == 0 else None}.items()),
            "only 30 pages of the last minute are known",
        ),
        (
            saturated_by("0.32.0", facts=(fact("flag.scheduler-reserve-full-isl", value=False),)),
            "a prompt may be thrown out half computed",
        ),
    ):
        assert "a preemption storm is not ruled out" in texts(finding)
        assert why in texts(finding)
        assert "Ruled out" not in texts(finding)
        assert finding.confidence == 0.7
        assert "well" not in finding.cause


def test_a_pool_smaller_than_one_request_is_answered_with_the_length_that_fits():
    live = {
        name("engine_kv_cache_tokens", SGLANG): 1741.0,
        name("engine_config_max_model_len_tokens", {**CONFIG, "engine_kind": "sglang"}): 65_536.0,
    }
    finding = Watch().run(3, live)["max_model_len_exceeds_kv"]
    assert "65,536" in finding.cause
    assert flags(finding)[0] == ("--context-length", "65536", "1741")


SHARED = {
    name("engine_kv_cache_tokens", ENGINE): 64_000.0,
    name("engine_kv_cache_blocks", ENGINE): 1000.0,
    name("engine_kv_block_size_tokens", ENGINE): 64.0,
    name("engine_config_max_model_len_tokens", CONFIG): 262_144.0,
}


class TestContextParallel:
    """A page without the tokens of its own says 1,000 blocks of 64 tokens; eight ranks share each block."""

    DECODE = name("engine_config_decode_context_parallel_size", CONFIG)
    PREFILL = name("engine_config_prefill_context_parallel_size", CONFIG)
    CONCURRENCY = name("engine_config_max_concurrency", CONFIG)

    def pool(self, live):
        watch = Watch().run(3, live)
        return pool_of(Context(watch.querier, START + 2000, watch.facts).about(ENGINE)), watch.ids

    @pytest.mark.parametrize(
        ("more", "tokens", "requests"), [({}, 64_000, 1), ({DECODE: 8.0}, 512_000, 15), ({PREFILL: 2.0}, 128_000, 3)]
    )
    def test_an_engine_that_took_requests_has_a_pool_for_them(self, more, tokens, requests):
        pool, ids = self.pool({**SHARED, **more})
        assert (pool.tokens, pool.holds(32_000), ids) == (tokens, requests, [])

    def test_a_page_that_tells_the_tokens_is_believed(self):
        pool, _ = self.pool({**SHARED, name("engine_kv_cache_tokens", ENGINE): 512_000.0, self.DECODE: 8.0})
        assert (pool.tokens, pool.blocks, pool.block) == (512_000, 1000, 512)

    def test_what_the_engine_printed_is_told_in_tokens_that_fit(self):
        live = {**SHARED, self.DECODE: 2.0, self.CONCURRENCY: 0.49}
        finding = Watch().run(3, live)["max_model_len_exceeds_kv"]
        assert "holds 128,000" in finding.cause
        assert ("--max-model-len", "262144", str(999 * 128)) in flags(finding)


def test_an_engine_that_refused_to_start_is_answered_with_the_length_it_printed():
    text = "To serve at least one request with the model's max seq len (8192), (1.0 GiB KV cache is needed, …"
    events = (event("max_model_len_exceeds_kv", text, 30, line=88, server="", mml="8192", fit="4096"),)
    counter = series("gpuwatch_log_events_total", host="h", log="/var/log/vllm.log", event="max_model_len_exceeds_kv")
    finding = Watch((), events).run(40, {counter: lambda second: float(second >= 30)})["max_model_len_exceeds_kv"]
    assert flags(finding)[0] == ("--max-model-len", "8192", "4096")
    assert finding.evidence[0].line == 88
