"""Traffic and scheduling: the shipped rules over series given second by second, and what is said about them."""

from __future__ import annotations

import pytest

from gpuwatch.diagnosis.explanation import rate
from gpuwatch.model import series
from tests.unit.diagnosis.watch import CONFIG, ENGINE, SERVER, SGLANG, Watch, event, fact, flags, gpu, name, texts


def after(second, before, then):
    return lambda now: then if now >= second else before


def ramp(second, before, then):
    """A counter that grows by `before` a second, from `second` on by `then`."""
    return lambda now: float(before * min(now, second) + then * max(0, now - second))


def placed(index=0, busy=0.95):
    return {
        series("gpuwatch_gpu_engine", **gpu(index), server=SERVER, basis="process"): 1.0,
        series("gpuwatch_gpu_busy_ratio", **gpu(index)): busy,
    }


class TestQueue:
    def live(self, waiting, *, running=16, ended=0.5, **more):
        return {
            name("engine_requests_running", ENGINE): float(running),
            name("engine_requests_waiting", ENGINE): waiting,
            name("engine_requests_finished_total", ENGINE, reason="stop"): lambda s: ended * s,
            **{name("engine_" + key, ENGINE): value for key, value in more.items()},
        }

    def growing(self, now):
        return 2.0 * max(0, now - 60)

    def test_it_is_seen_within_30_seconds_with_both_rates_and_the_waiting_time(self):
        # Two more are open every second and one ends every two seconds: 2.5 arrive, 5 replicas. After 40 seconds 80
        # wait, which takes 160 s; after ten minutes 1,280, 2,560 s.
        watch = Watch().run(101, self.live(self.growing))
        assert watch.first_seen["queue_growth"] - 60 <= 30
        finding = watch["queue_growth"]
        assert finding.cause == (
            "2.5 requests per second arrive and 0.5 end: a request that arrives now waits about 160 s, "
            "in 10 minutes 2560 s if nothing changes; clients that a load test starts one after the other look alike "
            "until all of them have started."
        )
        assert finding.advice[0].text.startswith("serve it with 5 replicas")

    def test_rates_beyond_a_hundred_are_written_out(self):
        finding = Watch().run(101, self.live(lambda now: 200.0 * max(0, now - 60), ended=1_130.0))["queue_growth"]
        assert finding.cause.startswith("1,330 requests per second arrive and 1,130 end")
        assert "open requests grow by 200 per second" in texts(finding)

    @pytest.mark.parametrize(
        ("value", "text"),
        [(0.0, "0"), (0.00002, "0.000020"), (0.0521, "0.052"), (4.46, "4.5"), (9.99, "10"), (124.4, "124")],
    )
    def test_a_rate_has_no_exponent(self, value, text):
        assert rate(value) == text

    def test_a_batch_at_its_limit_beside_an_empty_pool_is_raised_to_what_the_pool_holds(self):
        # 65,536 tokens in 512 blocks of 128, requests of 100 + 156 tokens take two blocks: 511 // 2 = 255 fit.
        live = self.live(
            self.growing,
            kv_cache_usage_ratio=0.07,
            kv_cache_tokens=65_536.0,
            kv_cache_blocks=512.0,
            kv_block_size_tokens=128.0,
            generation_length_tokens_count=lambda s: 0.5 * s,
            generation_length_tokens_sum=lambda s: 78.0 * s,
            prompt_length_tokens_count=lambda s: 0.5 * s,
            prompt_length_tokens_sum=lambda s: 50.0 * s,
        )
        watch = Watch((fact("max_num_seqs", 16),)).run(100, live)
        assert flags(watch["queue_growth"])[0] == ("--max-num-seqs", "16", "255")

    def test_a_full_pool_is_named_instead_of_the_batch_limit(self):
        watch = Watch((fact("max_num_seqs", 16),)).run(100, self.live(self.growing, kv_cache_usage_ratio=0.95))
        assert "a higher batch limit does not help: the KV pool is 95 % full" in watch["queue_growth"].advice[0].text

    @pytest.mark.parametrize(
        ("version", "flag", "text"),
        [
            ("", ("--max-num-queued-reqs", None, "20"), "20 that wait take 30 s (vLLM 0.29 and newer)"),
            ("0.31.0", ("--max-num-queued-reqs", None, "20"), "20 that wait take 30 s"),
            ("0.10.2", ("", None, None), "20 that wait take 30 s; at the gateway, vLLM 0.10.2 cannot (0.29 and newer"),
        ],
    )
    def test_the_queue_that_is_refused_is_what_ends_in_30_seconds_not_what_waits_now(self, version, flag, text):
        # Two requests end every three seconds, 20 in 30 s; 80 wait.
        facts = (fact("version", version),) if version else ()
        finding = Watch(facts).run(101, self.live(self.growing, ended=2 / 3))["queue_growth"]
        refuse = finding.advice[-1]
        assert refuse.text.startswith("or refuse early")
        assert text in refuse.text
        assert (refuse.flag, refuse.current, refuse.proposed) == flag

    def test_where_nothing_ends_no_queue_is_short_enough_to_be_proposed(self):
        finding = Watch().run(101, self.live(self.growing, ended=0.0))["queue_growth"]
        assert not any("refuse early" in advice.text for advice in finding.advice)

    def test_one_that_is_served_in_minutes_may_wait(self):
        finding = Watch().run(101, self.live(self.growing, ended=1 / 60))["queue_growth"]
        assert finding.advice[-1].proposed == "1"
        assert "1 that wait take 60 s" in finding.advice[-1].text

    def test_requests_that_come_back_from_the_host_did_not_arrive(self):
        # 40 are open all the time; V0 swaps in what it had swapped out.
        back = self.live(
            lambda s: 4.0 + min(20, max(0, s - 60)), requests_swapped=lambda s: 20.0 - min(20, max(0, s - 60))
        )
        assert "queue_growth" not in Watch().run(78, back).first_seen
        back[name("engine_requests_swapped", ENGINE)] = 0.0
        assert "queue_growth" in Watch().run(78, back).first_seen

    def test_without_ends_only_the_growth_is_told(self):
        live = self.live(self.growing)
        del live[name("engine_requests_finished_total", ENGINE, reason="stop")]
        finding = Watch().run(100, live)["queue_growth"]
        assert "open requests grow by 2 per second" in finding.cause
        assert finding.confidence < 0.7

    @pytest.mark.parametrize("memory", [True, False])
    def test_while_it_is_kept_firing_it_says_what_was_seen_while_it_grew(self, memory):
        watch = Watch(memory=memory).run(130, self.live(lambda s: 2.0 * max(0, min(s, 100) - 60)))
        finding = watch["queue_growth"]
        assert finding.state == "firing"
        assert "requests per second arrive and 0.5 end" in finding.cause
        assert "0.5 requests per second arrive" not in finding.cause

    def test_a_burst_is_no_growth(self):
        assert Watch().run(120, self.live(after(60, 0.0, 40.0))).findings == ()


class TestThroughput:
    def live(self, **more):
        return {
            name("engine_generation_tokens_total", ENGINE): ramp(700, 400, 100),
            name("engine_prompt_tokens_total", ENGINE): ramp(700, 100, 80),
            name("engine_requests_running", ENGINE): 8.0,
            name("engine_requests_waiting", ENGINE): 0.0,
            **more,
        }

    def test_it_is_seen_within_120_seconds_and_says_what_it_cannot_explain(self):
        watch = Watch().run(830, self.live(), every=15)
        assert watch.first_seen["throughput_collapse"] - 700 <= 120
        finding = watch["throughput_collapse"]
        assert "to 100 tokens/s under the same load; clocks, lengths and the use of the GPUs do not explain it" in (
            finding.cause
        )
        assert finding.confidence == 0.5

    def test_what_it_was_before_is_what_it_was_before_it_fell(self):
        # 75 s after the alert became active the ten minutes before the last one hold 75 s of the fall: 362 tokens/s.
        finding = Watch().run(835, self.live(), every=15)["throughput_collapse"]
        assert "Output fell from 400 to 100 tokens/s" in finding.cause
        assert "400 tokens/s in the 10 minutes before" in texts(finding)

    def test_a_shorter_history_is_named_as_long_as_it_is(self):
        live = self.live() | {
            name("engine_generation_tokens_total", ENGINE): ramp(480, 400, 100),
            name("engine_prompt_tokens_total", ENGINE): ramp(480, 100, 80),
        }
        found = texts(Watch().run(600, live, every=15)["throughput_collapse"])
        assert "400 tokens/s in the 8 minutes before" in found

    def test_lowered_clocks_are_named_with_the_card(self):
        throttle = series("gpuwatch_gpu_throttle_seconds_total", **gpu(1), reason="thermal")
        live = self.live() | {**placed(0), **placed(1), throttle: ramp(700, 0, 0.8)}
        finding = Watch().run(830, live, every=15)["throughput_collapse"]
        assert "GPU 1 runs with lowered clocks 80 % of the time (thermal)" in finding.cause

    def test_clocks_that_were_as_low_before_explain_nothing(self):
        throttle = series("gpuwatch_gpu_throttle_seconds_total", **gpu(0), reason="power")
        live = self.live() | {**placed(0), throttle: lambda s: 0.5 * s}
        assert "do not explain it" in Watch().run(830, live, every=15)["throughput_collapse"].cause

    def test_drafts_that_are_refused_are_named(self):
        live = self.live() | {
            name("engine_spec_decode_draft_tokens_total", ENGINE): lambda s: 100.0 * s,
            name("engine_spec_decode_accepted_tokens_total", ENGINE): ramp(700, 80, 20),
        }
        finding = Watch().run(830, live, every=15)["throughput_collapse"]
        assert "drafts are accepted less often" in finding.cause
        assert "20 % now" in finding.cause

    def test_requests_that_hold_more_are_named(self):
        live = self.live() | {name("engine_kv_cache_usage_ratio", ENGINE): after(700, 0.2, 0.6)}
        assert "times the KV cache it held before" in Watch().run(830, live, every=15)["throughput_collapse"].cause

    def test_gpus_that_wait_are_named(self):
        live = self.live() | {
            series("gpuwatch_gpu_engine", **gpu(0), server=SERVER, basis="process"): 1.0,
            series("gpuwatch_gpu_busy_ratio", **gpu(0)): after(700, 0.9, 0.3),
        }
        assert "the GPUs work 30 % of the time" in Watch().run(830, live, every=15)["throughput_collapse"].cause


class TestHeadOfLine:
    def live(self, begin=90, labels=ENGINE):
        """Four answers at 25 tokens a second each; then a prompt that takes in 6,000 tokens a second."""
        return {
            name("engine_generation_tokens_total", labels): ramp(begin, 100, 4),
            name("engine_requests_running", labels): after(begin, 4.0, 5.0),
            name("engine_requests_waiting", labels): after(begin + 5, 0.0, 7.0),
            name("engine_kv_cache_free_tokens", labels): ramp(begin, 0, -6000),
            name("engine_time_to_first_token_seconds_count", labels): 40.0,
            name("engine_kv_cache_usage_ratio", labels): 0.4,
            name("engine_prompt_length_tokens_bucket", labels, le="50000.0"): 40.0,
            name("engine_prompt_length_tokens_bucket", labels, le="100000.0"): after(begin + 10, 40.0, 41.0),
            name("engine_prompt_length_tokens_bucket", labels, le="+Inf"): after(begin + 10, 40.0, 41.0),
        }

    def test_it_is_seen_within_30_seconds_and_the_chunk_is_computed_from_the_measured_speed(self):
        # 16,384 tokens take 2.7 s at 6,000 tokens a second; 0.2 s are 1,200 tokens, of which 1,024 is a power of two.
        facts = (fact("max_num_batched_tokens", 16_384), fact("version", "0.31.0"))
        live = self.live() | {name("engine_info", CONFIG, version="0.31.0"): 1.0}
        watch = Watch(facts).run(116, live)
        assert watch.first_seen["head_of_line"] - 90 <= 30
        finding = watch["head_of_line"]
        assert "a step of 16,384 tokens takes 2.7 s" in finding.cause
        assert flags(finding)[:2] == [
            ("--max-num-batched-tokens", "16384", "1024"),
            ("--long-prefill-token-threshold", None, "1024"),
        ]
        assert "7 requests wait behind it" in texts(finding)
        assert "prompts of more than 50,000 tokens came" in texts(finding)
        assert "Ruled out: a full KV pool: 40 % of it is used" in texts(finding)

    def test_it_is_kept_for_a_minute_with_the_figures_of_the_prompt(self):
        def ended(now):
            return 4.0 * min(20, max(0, now - 90)) + 100.0 * (min(now, 90) + max(0, now - 110))

        live = self.live()
        live[name("engine_generation_tokens_total", ENGINE)] = ended
        live[name("engine_kv_cache_free_tokens", ENGINE)] = lambda s: -6000.0 * min(20, max(0, s - 90))
        watch = Watch((fact("max_num_batched_tokens", 8192),)).run(140, live)
        assert watch["head_of_line"].state == "firing"
        assert "4 tokens/s" in watch["head_of_line"].evidence[0].text

    def test_a_counter_of_sglang_that_stands_still_until_a_request_ends_is_no_prompt(self):
        watch = Watch((fact("max_num_batched_tokens", 8192),)).run(116, self.live(labels=SGLANG))
        assert "head_of_line" not in watch.ids

    def test_throughput_that_falls_with_it_is_its_symptom(self):
        live = self.live(begin=700) | {name("engine_prompt_tokens_total", ENGINE): 0.0}
        watch = Watch().run(800, live, every=15)
        assert watch.ids == ["head_of_line", "throughput_collapse"]
        assert watch["throughput_collapse"].caused_by == "head_of_line"


class TestCpu:
    def live(self, role="scheduler", cores=0.99, busy=0.4, host=0.3):
        return {
            name("engine_role_cpu_seconds_total", CONFIG, role=role): lambda s: cores * s,
            name("engine_role_cpu_seconds_total", CONFIG, role="worker"): lambda s: 1.0 * s,
            name("engine_requests_running", ENGINE): 4.0,
            series("gpuwatch_host_cpu_busy_ratio", host="h"): host,
            **placed(0, busy),
        }

    def test_the_api_server_is_answered_with_more_of_them(self):
        finding = Watch().run(90, self.live("api_server"))["cpu_bound"]
        assert finding.cause.startswith("The API server, which tokenises, checks and streams, uses 0.99 cores")
        assert flags(finding)[0] == ("--api-server-count", "1", "2")

    def test_a_version_that_has_one_api_server_is_not_advised_to_have_two(self):
        finding = Watch((fact("version", "0.8.5"),)).run(90, self.live("api_server"))["cpu_bound"]
        assert "--api-server-count" not in [flag for flag, _, _ in flags(finding)]

    def test_the_scheduler_is_answered_with_what_takes_python_out_of_a_step(self):
        facts = (fact("enforce_eager", value=True), fact("flag.async-scheduling", value=False))
        finding = Watch(facts).run(90, self.live())["cpu_bound"]
        assert "The scheduler (engine core)" in finding.cause
        assert "OMP_NUM_THREADS" in finding.cause
        assert [flag for flag, _, _ in flags(finding)] == ["--enforce-eager", "--async-scheduling", ""]

    def test_a_full_machine_is_named_as_such(self):
        finding = Watch().run(90, self.live(cores=0.3, host=0.99))["cpu_bound"]
        assert "All cores of the machine are in use" in finding.cause


class TestContext:
    def live(self, hit=0.2, **more):
        def prompts(now):
            grown = max(now, 720) // 5 - 720 // 5  # from 720 s on each prompt is 200 tokens longer than the one before
            return 700.0 * (now // 5) + 100.0 * grown * (grown + 1)

        return {
            name("engine_prompt_tokens_total", ENGINE): prompts,
            name("engine_time_to_first_token_seconds_count", ENGINE): lambda s: float(s // 5),
            name("engine_prefix_cache_queries_total", ENGINE): prompts,
            name("engine_prefix_cache_hits_total", ENGINE): lambda s: hit * prompts(s),
            name("engine_prefix_cache_enabled", ENGINE): 1.0,
            **more,
        }

    def test_it_is_seen_within_120_seconds_with_both_lengths(self):
        watch = Watch().run(870, self.live(), every=15)
        assert watch.first_seen["context_growth"] - 720 <= 120
        finding = watch["context_growth"]
        assert "to 4,100 tokens, and 80 % of it is computed again each time" in finding.cause
        assert "look alike here" in finding.cause
        assert "route each conversation to the same replica" in finding.advice[0].text

    def test_the_share_of_very_long_requests_is_told(self):
        buckets = {"50000.0": 0.2, "100000.0": 0.5, "500000.0": 0.75, "+Inf": 1.0}
        rows = {
            name("engine_prompt_length_tokens_bucket", ENGINE, le=le): lambda s, share=share: share * s
            for le, share in buckets.items()
        }
        found = texts(Watch().run(870, self.live() | rows, every=15)["context_growth"])
        assert "50 % of the requests of the last 10 minutes had more than 100,000 prompt tokens" in found
        assert "25 % of the requests of the last 10 minutes had more than 500,000 prompt tokens" in found

    def test_caching_that_is_off_is_to_be_switched_on(self):
        live = self.live() | {
            name("engine_prefix_cache_enabled", ENGINE): 0.0,
            name("engine_prefix_cache_queries_total", ENGINE): 0.0,
            name("engine_prefix_cache_hits_total", ENGINE): 0.0,
        }
        finding = Watch().run(870, live, every=15)["context_growth"]
        assert "all of it is computed again" in finding.cause
        assert flags(finding)[0] == ("--enable-prefix-caching", "false", "true")


class TestTruncation:
    def live(self, **more):
        return {
            name("engine_prompt_length_tokens_sum", ENGINE): lambda s: 4090.0 * (s // 10),
            name("engine_prompt_length_tokens_count", ENGINE): lambda s: float(s // 10),
            name("engine_config_max_model_len_tokens", CONFIG): 4096.0,
            **more,
        }

    def test_prompts_that_fill_the_context_are_named_without_claiming_who_cut_them(self):
        live = self.live() | {name("engine_config_native_context_tokens", CONFIG): 32_768.0}
        finding = Watch().run(120, live)["silent_truncation"]
        assert "Prompts fill the context (4,090 of 4,096 tokens)" in finding.cause
        assert "Which of the two" in finding.cause
        assert flags(finding)[0] == ("--max-model-len", "4096", "32768")

    def test_a_prompt_that_vllm_v0_ignored_is_named_by_its_line(self):
        log = {"host": "h", "log": "/var/log/vllm.log", "server": SERVER}
        text = "Input prompt (48173 tokens) is too long and exceeds limit of 32768"
        live = {series("gpuwatch_log_events_total", **log, event="prompt_too_long"): lambda s: float(s >= 20)}
        lines = (event("prompt_too_long", text, 20, line=12, n="48173", limit="32768"),)
        finding = Watch((), lines).run(30, live)["silent_truncation"]
        assert "A prompt of 48,173 tokens is over the limit of 32,768" in finding.cause
        assert finding.evidence[0].line == 12


class TestReplicas:
    def live(self, *loads, labels=ENGINE):
        rows = {}
        for rank, load in enumerate(loads):
            rows[name("engine_requests_running", labels, dp_rank=str(rank))] = float(load)
            rows[name("engine_requests_waiting", labels, dp_rank=str(rank))] = 0.0
            rows[name("engine_time_to_first_token_seconds_count", labels, dp_rank=str(rank))] = lambda s: float(s // 5)
        return rows

    def test_each_rank_is_told_and_idle_ones_are_not_called_dead(self):
        finding = Watch().run(60, self.live(27, 5, 0, 0))["dp_imbalance"]
        assert "Rank 0 has 27 open requests, rank 2 0 (8 each would be even)" in finding.cause
        assert [evidence.text for evidence in finding.evidence[:2]] == [
            "rank 0: 27.0 open requests over 1 minute",
            "rank 1: 5.0 open requests over 1 minute",
        ]
        assert "Ruled out: ranks without requests that do not answer" in texts(finding)
        assert ("--data-parallel-external-lb", None, None) in flags(finding)

    def test_sglang_has_a_flag_for_it(self):
        facts = (fact("flag.load-balance-method", "round_robin"),)
        finding = Watch(facts).run(60, self.live(20, 2, labels=SGLANG))["dp_imbalance"]
        assert flags(finding) == [("--load-balance-method", "round_robin", "total_tokens")]


@pytest.mark.parametrize("kind", ["idle", "asleep", "warm-up"])
def test_an_engine_that_does_nothing_special_raises_nothing(kind):
    busy = after(60, 0.0, 100.0) if kind == "warm-up" else (lambda s: 0.0)
    live = {
        name("engine_requests_running", ENGINE): after(60, 0.0, 4.0) if kind == "warm-up" else 0.0,
        name("engine_requests_waiting", ENGINE): 0.0,
        name("engine_generation_tokens_total", ENGINE): lambda s: busy(s) * max(0, s - 60),
        name("engine_prompt_tokens_total", ENGINE): lambda s: busy(s) * max(0, s - 60),
        name("engine_kv_cache_free_tokens", ENGINE): 50_000.0,
        name("engine_time_to_first_token_seconds_count", ENGINE): lambda s: float(max(0, s - 60) // 10),
        name("engine_kv_cache_usage_ratio", ENGINE): 0.0,
        name("engine_asleep", ENGINE): float(kind == "asleep"),
        name("engine_role_cpu_seconds_total", CONFIG, role="scheduler"): lambda s: 1.0 * s,
        **placed(0, 0.7 if kind == "warm-up" else 0.0),
    }
    assert Watch().run(300, live, every=15).findings == ()
