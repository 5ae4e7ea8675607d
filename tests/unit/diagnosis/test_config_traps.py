"""Settings that cost capacity or accuracy, and pages that mislead: the shipped rules and what is said about them."""

from __future__ import annotations

import time

import pytest

from gpuwatch.model import series
from tests.unit.diagnosis.storms import START
from tests.unit.diagnosis.watch import CONFIG, ENGINE, SERVER, SGLANG, Watch, event, fact, flags, gpu, name, texts

GIB = 1 << 30
SG_CONFIG = {**CONFIG, "engine_kind": "sglang"}


def cards(free, total=80.0, count=2):
    rows = {}
    for index in range(count):
        rows[series("gpuwatch_gpu_engine", **gpu(index), server=SERVER, basis="process")] = 1.0
        rows[series("gpuwatch_gpu_memory_free_bytes", **gpu(index))] = (free + index) * GIB
        rows[series("gpuwatch_gpu_memory_total_bytes", **gpu(index))] = total * GIB
    return rows


class TestPool:
    def test_an_override_is_answered_with_its_removal(self):
        live = {
            name("engine_kv_cache_blocks", ENGINE): 400.0,
            name("engine_num_gpu_blocks_override", ENGINE): 400.0,
            name("engine_config_kv_cache_profiled_blocks", CONFIG): 4000.0,
            name("engine_kv_cache_usage_ratio", ENGINE): 0.8,
            name("engine_requests_running", ENGINE): 4.0,
        }
        watch = Watch().run(60, live)
        assert watch.first_seen == {"kv_pool_undersized": 30}
        finding = watch["kv_pool_undersized"]
        assert "limits the KV pool to 400 blocks although there is room for 4,000 (10.0 times as many)" in finding.cause
        assert flags(finding) == [("--num-gpu-blocks-override", "400", "(none)")]

    def test_free_memory_is_answered_with_the_fraction_that_takes_it(self):
        # 30 GiB are free on cards of 80; 4 of them (5 %) are to stay free: 0.45 + 26 / 80 = 0.775, rounded down.
        live = cards(30.0) | {
            name("engine_config_kv_cache_bytes", CONFIG): 20.0 * GIB,
            name("engine_config_memory_fraction_ratio", CONFIG): 0.45,
            name("engine_kv_cache_usage_ratio", ENGINE): 0.8,
        }
        finding = Watch().run(90, live)["kv_pool_undersized"]
        assert (
            "The KV pool of 20.0 GiB is in use while 30.0 GiB are free: it could be 2.3 times as large" in finding.cause
        )
        assert flags(finding) == [("--gpu-memory-utilization", "0.45", "0.77")]

    def undersized(self, fraction, free=30.0, **more):
        return cards(free) | {
            name("engine_config_kv_cache_bytes", CONFIG): 8.0 * GIB,
            name("engine_config_memory_fraction_ratio", CONFIG): fraction,
            name("engine_kv_cache_usage_ratio", ENGINE): 0.8,
            **more,
        }

    def test_a_pool_fixed_in_bytes_is_answered_with_more_bytes(self):
        # 30 GiB are free on cards of 80, 4 are to stay free: 8 + 26 = 34 GiB. The fraction has no effect.
        facts = (fact("flag.kv-cache-memory-bytes", 8 * GIB), fact("flag.gpu-memory-utilization", 0.9))
        finding = Watch(facts).run(90, self.undersized(0.9))["kv_pool_undersized"]
        assert flags(finding) == [("--kv-cache-memory-bytes", "8589934592", "36507222016")]
        assert "it could be 4.2 times as large" in finding.cause  # 34 / 8
        assert "fixes the pool at 8.0 GiB" in texts(finding)

    @pytest.mark.parametrize("fraction", [0.97, 0.98])
    def test_a_share_that_is_at_its_highest_is_neither_repeated_nor_lowered(self, fraction):
        finding = Watch().run(90, self.undersized(fraction))["kv_pool_undersized"]
        assert flags(finding) == [("", None, None)]
        assert "has no more to give" in finding.advice[0].text
        assert finding.cause == "The KV pool of 8.0 GiB is in use while 30.0 GiB are free."

    def test_the_gain_that_is_told_is_what_the_proposed_share_gives(self):
        # 0.97 - 0.9 of 80 GiB are 5.6 GiB: 13.6 / 8 = 1.7.
        finding = Watch().run(90, self.undersized(0.9))["kv_pool_undersized"]
        assert flags(finding) == [("--gpu-memory-utilization", "0.9", "0.97")]
        assert "1.7 times as large" in finding.cause

    def test_engines_on_one_card_are_each_offered_their_part_of_what_is_free(self):
        # 25 GiB of 80 are free, 4 are to stay free, 10.5 for each of two: 0.35 + 10.5 / 80 = 0.481, rounded down.
        other = "127.0.0.1:8001"
        live = cards(25.0, count=1)
        live[series("gpuwatch_gpu_engine", **gpu(0), server=other, basis="process")] = 1.0
        for server in (SERVER, other):
            live[name("engine_config_kv_cache_bytes", {**CONFIG, "server": server})] = 10.0 * GIB
            live[name("engine_config_memory_fraction_ratio", {**CONFIG, "server": server})] = 0.35
            live[name("engine_kv_cache_usage_ratio", {**ENGINE, "server": server})] = 0.8
        found = [item for item in Watch().run(90, live).findings if item.id == "kv_pool_undersized"]
        assert {item.labels["server"] for item in found} == {SERVER, other}
        assert [flags(item) for item in found] == [[("--gpu-memory-utilization", "0.35", "0.48")]] * 2
        assert "25.0 GiB are free for 2 engines" in found[0].cause

    def test_an_sglang_pool_of_a_few_thousand_tokens_is_answered_with_a_restart(self):
        live = cards(46.0) | {
            name("engine_config_kv_cache_bytes", SG_CONFIG): 0.5 * GIB,
            name("engine_config_memory_fraction_ratio", SG_CONFIG): 0.8,
            name("engine_kv_cache_usage_ratio", SGLANG): 0.9,
        }
        watch = Watch((fact("engine", "sglang"),)).run(90, live)
        advice = watch["kv_pool_undersized"].advice[0]
        assert (advice.flag, advice.current) == ("--mem-fraction-static", "0.8")
        assert "restart it" in advice.text

    def test_a_pool_of_half_empty_blocks_says_how_much_is_held_and_empty(self):
        # 180 tokens in blocks of 128 take two; half a block, 64 of 244 tokens, is empty on average.
        live = {
            name("engine_kv_block_size_tokens", ENGINE): 128.0,
            name("engine_kv_cache_blocks", ENGINE): 41.0,
            name("engine_kv_cache_tokens", ENGINE): 41 * 128.0,
            name("engine_kv_cache_usage_ratio", ENGINE): 0.8,
            name("engine_requests_running", ENGINE): 4.0,
        }
        for histogram, length in (("prompt_length_tokens", 120.0), ("generation_length_tokens", 60.0)):
            live[name(f"engine_{histogram}_count", ENGINE)] = lambda s: float(s // 5)
            live[name(f"engine_{histogram}_sum", ENGINE)] = lambda s, length=length: length * (s // 5)
        finding = Watch().run(120, live, every=5)["kv_block_waste"]
        assert "64 tokens of it (26 %) are held and empty; 5,248 tokens hold 20 such requests" in finding.cause
        assert flags(finding) == [("--block-size", "128", "16")]

    def short_requests(self, engine, block):
        live = {
            name("engine_kv_block_size_tokens", engine): block,
            name("engine_kv_cache_tokens", engine): 65_536.0,
            name("engine_kv_cache_usage_ratio", engine): 0.9,
            name("engine_requests_running", engine): 4.0,
        }
        for histogram, length in (("prompt_length_tokens", 20.0), ("generation_length_tokens", 1.0)):
            live[name(f"engine_{histogram}_count", engine)] = lambda s: float(s // 5)
            live[name(f"engine_{histogram}_sum", engine)] = lambda s, length=length: length * (s // 5)
        return live

    def test_the_smallest_block_is_not_answered_with_itself(self):
        watch = Watch().run(120, self.short_requests(ENGINE, 16.0), every=5)
        assert "kv_block_waste" not in watch.ids

    def test_sglang_has_a_page_of_one_token_for_short_requests(self):
        finding = Watch().run(120, self.short_requests(SGLANG, 16.0), every=5)["kv_block_waste"]
        assert flags(finding) == [("--page-size", "16", "1")]


class TestModel:
    def heads(self, tp, heads, **labels):
        config = {**CONFIG, **labels}
        return {
            name("engine_config_tensor_parallel_size", config): float(tp),
            name("engine_config_kv_heads", config): float(heads),
            name("engine_kv_cache_usage_ratio", {**ENGINE, **labels}): 0.9,
            name("engine_requests_running", {**ENGINE, **labels}): 4.0,
        }

    def test_one_latent_head_on_eight_ranks_is_kept_eight_times(self):
        facts = (fact("model.kv_heads", 1),)
        finding = Watch(facts).run(20, self.heads(8, 1))["kv_head_replication"]
        assert "each token is kept 8 times" in finding.cause
        assert flags(finding) == [("--decode-context-parallel-size", "1", "8"), ("--data-parallel-size", None, "8")]
        assert "MLA" in texts(finding)

    def test_ranks_that_split_the_tokens_hold_fewer_copies(self):
        live = self.heads(8, 1)
        live[name("engine_config_decode_context_parallel_size", CONFIG)] = 2.0
        live[name("engine_config_data_parallel_size", CONFIG)] = 2.0
        finding = Watch().run(20, live)["kv_head_replication"]
        assert "each token is kept 4 times, and ranks beyond 2 add no room" in finding.cause
        assert "splits the tokens over 2 ranks" in texts(finding)
        assert flags(finding) == [("--decode-context-parallel-size", "2", "8"), ("--data-parallel-size", "2", "16")]

    def test_more_attention_replicas_are_proposed_where_some_are_there(self):
        live = self.heads(16, 2, engine_kind="sglang")
        live[name("engine_config_data_parallel_size", {**CONFIG, "engine_kind": "sglang"})] = 2.0
        finding = Watch((fact("flag.enable-dp-attention", value=True),)).run(20, live)["kv_head_replication"]
        assert "each token is kept 4 times, and ranks beyond 4 add no room" in finding.cause
        assert flags(finding) == [("--dp-size", "2", "8")]

    def test_sglang_is_answered_with_attention_data_parallelism(self):
        finding = Watch().run(20, self.heads(16, 8, engine_kind="sglang"))["kv_head_replication"]
        assert flags(finding) == [("--enable-dp-attention", None, "true"), ("--dp-size", None, "2")]

    def test_a_stretched_context_is_answered_with_the_native_one_or_scaling(self):
        live = {
            name("engine_config_max_model_len_tokens", CONFIG): 131_072.0,
            name("engine_config_native_context_tokens", CONFIG): 32_768.0,
        }
        text = "User-specified max_model_len (131072) is greater than the derived max_model_len"
        watch = Watch((fact("model.context", 32_768, 9),), (event("rope_beyond_native", text, 3, line=9),)).run(5, live)
        finding = watch["rope_context"]
        assert flags(finding)[0] == ("--max-model-len", "131072", "32768")
        assert '"factor": 4.0, "original_max_position_embeddings": 32768' in flags(finding)[1][2]
        assert [evidence.line for evidence in finding.evidence if evidence.line] == [9, 9]

    def test_a_quantised_cache_without_scales_names_its_type(self):
        live = {
            name("engine_config_kv_cache_unscaled", CONFIG): 1.0,
            name("engine_cache_config_info", ENGINE, cache_dtype="fp8"): 1.0,
        }
        finding = Watch((fact("kv.unscaled", value=True, line=31),)).run(5, live)["fp8_kv_accuracy"]
        assert "The KV cache is stored as fp8 with scaling factors of 1.0" in finding.cause
        assert ("--kv-cache-dtype", "fp8", "auto") in flags(finding)
        assert 31 in [evidence.line for evidence in finding.evidence]

    @pytest.mark.parametrize(
        ("label", "told", "words", "current"),
        [
            ("auto", "fp8_e5m2", "is stored as fp8_e5m2 with", "fp8_e5m2"),
            ("auto", "auto", "is quantised with", None),
            ("", None, "is quantised with", None),
        ],
    )
    def test_what_is_no_type_is_not_named_as_one(self, label, told, words, current):
        live = {
            name("engine_config_kv_cache_unscaled", CONFIG): 1.0,
            name("engine_cache_config_info", ENGINE, cache_dtype=label): 1.0,
        }
        facts = (fact("flag.kv-cache-dtype", told),) if told else ()
        finding = Watch(facts).run(5, live)["fp8_kv_accuracy"]
        assert f"The KV cache {words} scaling factors of 1.0" in finding.cause
        assert ("--kv-cache-dtype", current, "auto") in flags(finding)

    def test_a_flag_with_a_trap_says_what_it_does_and_what_to_set(self):
        live = {
            name("engine_config_flag_problem", CONFIG, problem="risky", flag="gpu-memory-utilization"): 1.0,
            name("engine_info", CONFIG, version="0.32.0"): 1.0,
        }
        facts = (fact("flag.gpu-memory-utilization", 0.98), fact("engine", "vllm"))
        finding = Watch(facts).run(5, live)["flag_risky"]
        assert finding.cause.startswith("--gpu-memory-utilization 0.98: CUDA contexts")
        assert flags(finding) == [("--gpu-memory-utilization", "0.98", "0.92")]

    def test_a_flag_whose_value_is_not_known_here_is_not_explained(self):
        live = {name("engine_config_flag_problem", CONFIG, problem="risky", flag="cpu-offload-gb"): 1.0}
        watch = Watch().run(5, live)
        assert watch.findings == ()
        assert "the value of --cpu-offload-gb" in next(n.missing for n in watch.not_enough if n.id == "flag_risky")


SOURCE = {"host": "h", "source": "engine", "target": SERVER, "server": SERVER}


class TestPages:
    def failing(self, reason="not_metrics"):
        return {
            series("gpuwatch_source_up", **SOURCE): 0.0,
            series("gpuwatch_source_failing", **SOURCE, reason=reason): 1.0,
        }

    def test_a_page_without_metrics_is_not_an_engine_that_is_down(self):
        watch = Watch((fact("flag.disable-log-stats", value=True),)).run(660, self.failing(), every=15)
        assert watch.ids == ["metrics_disabled"]
        assert flags(watch["metrics_disabled"]) == [("--disable-log-stats", "true", "(none)")]
        assert watch["metrics_disabled"].confidence == 0.95

    def test_sglang_without_a_page_is_told_its_flag(self):
        watch = Watch((fact("engine", "sglang"),)).run(60, self.failing("not_found"), every=5)
        assert flags(watch["metrics_disabled"]) == [("--enable-metrics", None, "true")]

    @pytest.mark.parametrize("reason", ["not_found", "not_metrics"])
    def test_a_page_that_was_there_a_moment_ago_is_not_called_switched_off(self, reason):
        live = {**self.failing(reason), series("gpuwatch_source_age_seconds", **SOURCE): lambda s: 600.0 + s}
        finding = Watch().run(60, live, every=5)["metrics_disabled"]
        until = time.strftime("%H:%M", time.localtime(START / 1000 - 600))
        assert f"served engine metrics until {until} and does not any more" in finding.cause
        assert "switched off" not in finding.cause
        assert [flag for flag, _, _ in flags(finding)] == ["", ""]

    @pytest.mark.parametrize(
        ("reason", "flag"), [("not_found", "--enable-metrics"), ("not_metrics", "--disable-log-stats")]
    )
    def test_an_engine_of_unknown_kind_is_told_the_flag_that_fits_what_it_answers(self, reason, flag):
        # SGLang without metrics answers 404; vLLM without statistics has a page without its own metrics.
        finding = Watch().run(60, self.failing(reason), every=5)["metrics_disabled"]
        assert [flag for flag, _, _ in flags(finding)] == [flag, ""]

    @pytest.mark.parametrize("kind", ["", "sglang", "vllm"])
    def test_a_login_page_is_an_address_and_no_setting_of_an_engine(self, kind):
        text = "the page http://s:8000/metrics is a web page (HTML), not metrics"
        facts = (fact("page.other", text), *([fact("engine", kind)] if kind else []))
        finding = Watch(facts).run(60, self.failing(), every=5)["metrics_disabled"]
        assert [flag for flag, _, _ in flags(finding)] == ["", ""]
        assert "check the port and the path" in finding.advice[0].text
        assert text in texts(finding)

    def test_a_page_that_was_another_one_before_is_judged_by_what_it_is_now(self):
        finding = Watch((fact("page.other", ""),)).run(60, self.failing(), every=5)["metrics_disabled"]
        assert [flag for flag, _, _ in flags(finding)] == ["--disable-log-stats", ""]

    def test_a_gauge_for_each_process_is_not_several_engines(self):
        facts = (fact("flag.api-server-count", 8),)
        finding = Watch(facts).run(45, {name("engine_page_processes", CONFIG): 8.0})["metrics_multiproc"]
        assert "they are not 8 engines" in finding.cause
        assert "--api-server-count 8" in texts(finding)

    def test_counters_that_fall_again_and_again_are_two_processes(self):
        live = {
            name("engine_prompt_tokens_total", ENGINE): lambda s: 9000.0 + s if s % 30 < 15 else 100.0 + s,
            series("gpuwatch_source_up", **SOURCE): 1.0,
        }
        finding = Watch().run(330, live, every=15)["metrics_multiproc"]
        assert "Two or more processes answer on this address in turn" in finding.cause
        assert any("PROMETHEUS_MULTIPROC_DIR" in advice.text for advice in finding.advice)

    @pytest.mark.parametrize(
        ("shown", "words"), [(0, "one series stands for 4 ranks"), (3, "Only 3 of 4 ranks report on this page")]
    )
    def test_ranks_that_are_missing_are_neither_idle_nor_healthy(self, shown, words):
        rows = {name("engine_requests_running", ENGINE, dp_rank=str(rank)): 2.0 for rank in range(shown)}
        live = (rows or {name("engine_requests_running", ENGINE): 2.0}) | {
            name("engine_config_data_parallel_size", CONFIG): 4.0
        }
        assert words in Watch().run(75, live, every=5)["dp_labels"].cause

    def test_missing_prefix_metrics_say_nothing_about_the_cache(self):
        live = {
            name("engine_prefix_cache_enabled", ENGINE): 1.0,
            name("engine_requests_running", ENGINE): 2.0,
            name("engine_info", CONFIG, version="0.40.0"): 1.0,
        }
        finding = Watch().run(75, live, every=5)["prefix_metrics_wrong"]
        assert "not on the page of version 0.40.0" in finding.cause
        assert "The cache itself may be fine" in finding.cause

    def test_the_rate_that_v0_hides_is_named_with_the_flag_that_shows_it(self):
        live = {
            name("engine_prefix_cache_enabled", ENGINE): 1.0,
            name("engine_requests_running", ENGINE): 2.0,
            name("engine_info", CONFIG, version="0.8.5"): 1.0,
        }
        finding = Watch().run(75, live, every=5)["prefix_metrics_wrong"]
        assert flags(finding) == [("--show-hidden-metrics-for-version", None, "0.8")]

    def test_counters_in_blocks_are_told_with_their_factor(self):
        live = {
            name("engine_prefix_cache_queries_total", ENGINE): lambda s: 10.0 * s,
            name("engine_prompt_tokens_total", ENGINE): lambda s: 160.0 * s,
            name("engine_kv_block_size_tokens", ENGINE): 16.0,
            name("engine_info", CONFIG, version="0.8.2"): 1.0,
        }
        finding = Watch().run(120, live, every=5)["prefix_metrics_wrong"]
        assert "of vLLM 0.8.2 count blocks of 16 tokens" in finding.cause
        assert "16 times too small" in finding.cause
