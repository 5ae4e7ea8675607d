from __future__ import annotations

import pytest

from gpuwatch.model import series
from tests.unit.diagnosis.watch import CONFIG, ENGINE, SERVER, Watch, event, fact, flags, gpu, name, texts

GIB = 1 << 30
MIB = 1 << 20


def card(index=0, total=80.0, **gib):
    """Memory series of one GPU, in GiB or as functions of the second."""
    rows = {series("gpuwatch_gpu_memory_total_bytes", **gpu(index)): total * GIB}
    for short, value in gib.items():
        key = series(f"gpuwatch_gpu_memory_{short}_bytes", **gpu(index))
        rows[key] = (lambda second, value=value: value(second) * GIB) if callable(value) else value * GIB
    return rows


def placed(index=0, server=SERVER):
    return {series("gpuwatch_gpu_engine", **gpu(index), server=server, basis="process"): 1.0}


def after(second, low, high):
    return lambda now: high if now >= second else low


PEAK = {
    **card(used=after(20, 70, 75), free=after(20, 9.5, 4.5), peak=after(20, 70, 79), step=after(20, 0, 9)),
    **placed(),
    name("engine_requests_running", ENGINE): 4.0,
    name("engine_prompt_tokens_total", ENGINE): lambda second: 2000.0 * second,
}


class TestMemory:
    def test_a_prefill_peak_is_answered_with_a_chunk_that_leaves_room(self):
        watch = Watch((fact("max_num_batched_tokens", 8192),)).run(30, PEAK)
        finding = watch["prefill_memory_peak"]
        assert watch.first_seen == {"prefill_memory_peak": 20}
        assert "A prefill took 9.0 GiB on top of the pool and left 512 MiB free" in finding.cause
        assert flags(finding) == [("--max-num-batched-tokens", "8192", "5632")]  # 6.3 GiB at 9 GiB per 8,192 tokens

    def test_without_prompt_tokens_it_is_not_called_a_prefill(self):
        live = {key: value for key, value in PEAK.items() if key != name("engine_prompt_tokens_total", ENGINE)}
        finding = Watch().run(30, live)["prefill_memory_peak"]
        assert "prefill" not in finding.cause
        assert finding.confidence < 0.6

    def test_an_engine_that_allocated_92_percent_in_advance_is_healthy(self):
        live = {
            **card(used=73.6, free=5.9, peak=73.6, step=0, transient=0),
            **placed(),
            name("engine_requests_running", ENGINE): 4.0,
        }
        assert Watch().run(100, live).findings == ()

    def test_headroom_that_another_process_took_is_answered_with_that_process(self):
        live = card(
            used=after(60, 60, 75),
            free=after(60, 19.5, 4.5),
            transient=after(60, 8, 0),
            other=after(60, 0, 15),
            peak=75,
        )
        finding = Watch().run(160, live)["gpu_headroom_low"]
        assert "Another process took 15.0 GiB" in finding.cause
        assert "8.0 GiB" in finding.cause

    def test_headroom_that_the_engine_lacks_itself_is_answered_with_its_own_settings(self):
        live = {
            **card(used=after(60, 60, 75), free=after(60, 19.5, 4.5), transient=after(60, 8, 0), other=0, peak=75),
            **placed(),
            name("engine_config_memory_fraction_ratio", CONFIG): 0.95,
            name("engine_config_max_num_batched_tokens", CONFIG): 8192.0,
        }
        finding = Watch().run(160, live)["gpu_headroom_low"]
        assert flags(finding) == [
            ("--max-num-batched-tokens", "8192", "1280"),  # 4.5 GiB less 3.2 GiB to keep, at 8 GiB per 8,192 tokens
            ("--gpu-memory-utilization", "0.95", "0.86"),  # 6.7 of 80 GiB are lacking
        ]

    def test_fragmentation_is_named_with_the_sizes_and_the_line(self):
        log = {"host": "h", "log": "/var/log/vllm.log", "server": SERVER}
        text = "CUDA out of memory. Tried to allocate 16.41 GiB … try PYTORCH_ALLOC_CONF=expandable_segments:True"
        live = {
            series("gpuwatch_log_oom_requested_bytes", **log): lambda s: 16.41 * GIB if s >= 20 else None,
            series("gpuwatch_log_oom_reserved_unallocated_bytes", **log): lambda s: 20.07 * GIB if s >= 20 else None,
            series("gpuwatch_log_events_total", **log, event="torch_oom"): lambda s: float(s >= 20),
        }
        finding = Watch((), (event("torch_oom", text, 20, line=311),)).run(30, live)["allocator_fragmentation"]
        assert finding.severity == "critical"
        assert "20.1 GiB are reserved and unused, in pieces too small for 16.4 GiB" in finding.cause
        assert flags(finding) == [("PYTORCH_ALLOC_CONF", None, "expandable_segments:True")]
        assert finding.evidence[-1].line == 311


class TestGpus:
    def ranks(self, **parts):
        """Two ranks that differ by 3 GiB; `parts` are (rank 0, rank 1) in GiB of what is known."""
        rows = {**placed(0), **placed(1), name("engine_requests_running", ENGINE): 0.0}
        for index, used in enumerate((22, 19)):
            rows.update(card(index, total=24, used=used))
            for part, values in parts.items():
                extra = {"server": SERVER} if part == "engine" else {}
                rows[series(f"gpuwatch_gpu_memory_{part}_bytes", **gpu(index), **extra)] = values[index] * GIB
        return rows

    @pytest.mark.parametrize(
        ("parts", "words"),
        [
            ({"other": (3, 0), "engine": (19, 19)}, "another process uses 3.0 GiB"),
            ({"other": (0, 0), "engine": (22, 19)}, "it is the engine's own"),
            ({"other": (0, 0), "unattributed": (3, 0)}, "no visible process owns it"),
            ({}, "cannot be told"),
        ],
    )
    def test_the_odd_rank_is_named_with_what_makes_it_odd(self, parts, words):
        finding = Watch().run(70, self.ranks(**parts))["tp_imbalance"]
        assert "GPU 0 holds 3.0 GiB more than GPU 1" in finding.cause
        assert words in finding.cause

    def test_a_lost_gpu_is_named_with_its_xid_and_its_engine(self):
        live = {
            series("gpuwatch_gpu_state", **gpu(1), state="lost"): lambda s: float(s >= 10),
            series("gpuwatch_gpu_xid_errors_total", **gpu(1), xid="79"): lambda s: float(s >= 10),
            **placed(1),
        }
        finding = Watch().run(15, live)["gpu_lost"]
        assert "Xid 79" in finding.cause
        assert "fallen off the bus" in texts(finding)
        assert SERVER in texts(finding)

    def test_one_hanging_gpu_among_others_that_answer(self):
        live = {
            series("gpuwatch_gpu_unresponsive_seconds", **gpu(0)): lambda s: s - 10.0 if s >= 12 else None,
            series("gpuwatch_gpu_state", **gpu(1), state="ok"): 1.0,
        }
        watch = Watch().run(20, live)
        assert watch.first_seen == {"driver_unresponsive": 16}
        assert "GPU 0 hangs while the other GPUs answer" in watch["driver_unresponsive"].cause
        assert "1 other GPU answers" in texts(watch["driver_unresponsive"])

    def test_a_driver_that_hangs_as_a_whole_is_one_finding(self):
        live = {
            series("gpuwatch_gpu_unresponsive_seconds", **gpu(0)): float,
            series("gpuwatch_gpu_unresponsive_seconds", **gpu(1)): float,
            series("gpuwatch_host_nvml_unresponsive_seconds", host="h"): float,
        }
        assert "NVML hangs as a whole" in Watch().run(10, live)["driver_unresponsive"].cause


class TestCache:
    def traffic(self, prompts=lambda s: s // 5, hits=0.0, block=128.0):
        """Prompts of 2,000 tokens; 24 of them finish within two minutes."""
        return {
            name("engine_time_to_first_token_seconds_count", ENGINE): lambda s: float(prompts(s)),
            name("engine_prefix_cache_queries_total", ENGINE): lambda s: 2000.0 * prompts(s),
            name("engine_prefix_cache_hits_total", ENGINE): hits,
            name("engine_prefix_cache_enabled", ENGINE): 1.0,
            name("engine_kv_block_size_tokens", ENGINE): block,
            name("engine_kv_cache_usage_ratio", ENGINE): 0.4,
            name("engine_prompt_tokens_total", ENGINE): lambda s: 2000.0 * prompts(s),
            name("engine_generation_tokens_total", ENGINE): lambda s: 100.0 * prompts(s),
            name("engine_prompt_length_tokens_bucket", ENGINE, le="1000.0"): 0.0,
            name("engine_prompt_length_tokens_bucket", ENGINE, le="2000.0"): lambda s: float(prompts(s)),
            name("engine_prompt_length_tokens_bucket", ENGINE, le="+Inf"): lambda s: float(prompts(s)),
        }

    def test_a_cache_that_never_hits_says_what_is_certain_and_what_is_not(self):
        finding = Watch().run(121, self.traffic())["prefix_cache_zero_hit"]
        assert finding.severity == "info"
        assert "No two of 24 prompts shared a first block of 128 tokens" in finding.cause
        assert "Not ruled out: a cache salt or LoRA adapter" in finding.cause
        assert "Ruled out: caching that is switched off" in texts(finding)
        assert "24 prompts in 2 minutes" in texts(finding)  # what was watched, not the ten minutes that are looked at

    def test_a_block_of_784_tokens_is_named_as_the_limit(self):
        finding = Watch().run(121, self.traffic(block=600.0))["prefix_cache_zero_hit"]
        assert ("--block-size", "600", None) in flags(finding)

    def test_a_random_tail_gives_no_finding(self):
        watch = Watch().run(121, self.traffic(hits=lambda s: 1920.0 * max(0, s // 5 - 1)))
        assert watch.findings == ()

    @pytest.mark.parametrize(
        ("change", "events", "words"),
        [
            ({}, (), "share less of their beginning"),
            ({name("engine_kv_cache_usage_ratio", ENGINE): 0.97}, (), "the pool is nearly full"),
            ({}, ((event("prefix_cache_reset", "Successfully reset prefix cache", 300)),), "the cache was emptied"),
            (
                {name("engine_prompt_tokens_total", ENGINE): lambda s: 2000.0 * s + 7000.0 * max(0, s - 300)},
                (),
                "the prompts have changed",
            ),
        ],
    )
    def test_a_collapse_is_explained_by_what_else_changed(self, change, events, words):
        hits = lambda s: 1200.0 * min(s, 300) + 100.0 * max(0, s - 300)  # noqa: E731  # the share falls from 60 % to 5 %
        live = {**self.traffic(prompts=lambda s: s, hits=hits), **change}
        finding = Watch((), events).run(480, live, every=5)["prefix_cache_collapse"]
        assert words in finding.cause

    @pytest.mark.parametrize(("kind", "flag"), [("vllm", "--max-num-seqs"), ("sglang", "--max-running-requests")])
    def test_fewer_requests_at_once_are_asked_for_by_the_flag_of_the_engine(self, kind, flag):
        engine, config = {**ENGINE, "engine_kind": kind}, {**CONFIG, "engine_kind": kind}
        live = {
            name("engine_prefix_cache_hits_total", engine): lambda s: 80.0 * min(s, 700) + 10.0 * max(0, s - 700),
            name("engine_prefix_cache_queries_total", engine): lambda s: 100.0 * s,
            name("engine_time_to_first_token_seconds_count", engine): lambda s: 0.5 * s,
            name("engine_kv_cache_usage_ratio", engine): 0.96,
            name("engine_requests_running", engine): 8.0,
            name("engine_config_max_num_seqs", config): 32.0,
        }
        finding = Watch().run(1000, live, every=5)["prefix_cache_collapse"]
        assert flags(finding) == [(flag, "32", None)]


SOURCE = {"host": "h", "source": "engine", "target": SERVER, "server": SERVER}


class TestObservation:
    def down(self, **extra):
        return {
            series("gpuwatch_source_up", **SOURCE): lambda s: float(s < 10),
            series("gpuwatch_source_age_seconds", **SOURCE): lambda s: max(0.0, s - 9),
            **extra,
        }

    def test_an_engine_that_was_killed_is_down_within_15_seconds(self):
        watch = Watch().run(40, {**self.down(), name("engine_processes", CONFIG): lambda s: 3.0 if s < 10 else 0.0})
        assert watch.first_seen == {"engine_down": 22}
        assert "its processes are gone" in watch["engine_down"].cause

    @pytest.mark.parametrize(("processes", "words"), [(3.0, "front end is overloaded or hangs."), (None, "hangs.")])
    def test_a_page_that_comes_too_late_is_not_an_engine_that_ended(self, processes, words):
        live = {
            **self.down(),
            series("gpuwatch_source_failing", **SOURCE, reason="timeout"): lambda s: 1.0 if s >= 10 else None,
            series("gpuwatch_source_poll_seconds", **SOURCE): lambda s: 0.01 if s < 10 else 3.004,
        }
        if processes is not None:
            live[name("engine_processes", CONFIG)] = processes
        finding = Watch().run(40, live)["engine_down"]
        assert "does not answer within 3.0 s" in finding.cause
        assert finding.cause.endswith(words)
        assert ("timeout", None, "8") in flags(finding)  # twice the 3.004 s, rounded up to whole seconds before
        said = " ".join(advice.text for advice in finding.advice)
        assert "dmesg" not in said
        assert "status 0" not in said

    @pytest.mark.parametrize(
        ("facts", "words"),
        [
            ((), "; vLLM 0.9.1 and newer shares the work among more (--api-server-count)"),
            ((fact("version", "0.31.0"),), "; vLLM shares the work among more (--api-server-count)"),
            ((fact("version", "0.8.5"),), ""),
            ((fact("engine", "sglang"), fact("version", "0.5.5")), ""),
        ],
    )
    def test_more_front_ends_are_not_advised_to_an_engine_that_cannot_have_them(self, facts, words):
        live = {**self.down(), series("gpuwatch_source_failing", **SOURCE, reason="timeout"): lambda s: float(s >= 10)}
        finding = Watch(facts).run(40, live)["engine_down"]
        (advice,) = [advice.text for advice in finding.advice if "front end (top)" in advice.text]
        assert advice.partition("answers late")[2] == words

    def test_on_another_machine_a_time_out_may_be_the_network(self):
        far = {**SOURCE, "target": "10.0.0.9:8000", "server": "10.0.0.9:8000"}
        live = {
            series("gpuwatch_source_up", **far): lambda s: float(s < 10),
            series("gpuwatch_source_age_seconds", **far): lambda s: max(0.0, s - 9),
            series("gpuwatch_source_failing", **far, reason="timeout"): lambda s: 1.0 if s >= 10 else None,
        }
        finding = Watch().run(40, live)["engine_down"]
        assert "or its machine or the network does not answer" in finding.cause

    def test_an_engine_whose_processes_exist_did_not_end_with_status_0(self):
        live = {**self.down(), name("engine_processes", CONFIG): 3.0}
        finding = Watch().run(40, live)["engine_down"]
        assert not any("status 0" in advice.text for advice in finding.advice)
        gone = {**self.down(), name("engine_processes", CONFIG): lambda s: 3.0 if s < 10 else 0.0}
        assert any("status 0" in advice.text for advice in Watch().run(40, gone)["engine_down"].advice)

    def unfit(self, more):
        return {
            name("engine_page_frozen_seconds", ENGINE): float,
            name("engine_requests_running", ENGINE): 0.0,
            name("engine_requests_waiting", ENGINE): 2.0,
            name("engine_kv_cache_usage_ratio", ENGINE): 0.0,
            name("engine_kv_cache_blocks", ENGINE): 40.0,
            name("engine_kv_block_size_tokens", ENGINE): 128.0,
            name("engine_config_max_model_len_tokens", CONFIG): 8192.0,
            name("engine_config_kv_transfer", CONFIG): 0.0,
            **more,
        }

    def test_a_request_that_never_fits_is_not_a_scheduler_that_is_dead(self):
        capacity = {name("engine_requests_waiting_by_reason", ENGINE, reason="capacity"): 2.0}
        watch = Watch().run(80, self.unfit(capacity))
        finding = watch["engine_stalled"]
        # 40 blocks of 128, one of them vLLM's null block.
        assert "needs more than the 4,992 tokens that the pool has room for" in finding.cause
        assert "hangs" not in finding.cause
        assert ("--max-model-len", "8192", "4992") in flags(finding)
        assert not any(advice.text.startswith("restart") for advice in finding.advice)
        # An older page does not say why a request waits: then both are said.
        assert "Or the scheduler hangs" in Watch().run(80, self.unfit({}))["engine_stalled"].cause

    @pytest.mark.parametrize(
        "other",
        [
            {name("engine_config_max_model_len_tokens", CONFIG): 4992.0},  # what is accepted fits
            {name("engine_kv_cache_usage_ratio", ENGINE): 0.6},  # something holds the pool
            {name("engine_requests_waiting_by_reason", ENGINE, reason="deferred"): 1.0},
        ],
    )
    def test_what_fits_or_waits_for_something_else_is_not_said_never_to_fit(self, other):
        finding = Watch().run(80, self.unfit(other))["engine_stalled"]
        assert "room for" not in finding.cause

    def test_the_log_says_why_it_is_down_and_the_root_line_comes_first(self):
        events = (
            event("engine_dead", "EngineCore encountered a fatal error.", 9, line=91),
            event("torch_oom", "CUDA out of memory. Tried to allocate 2.00 GiB.", 8, line=70),
        )
        finding = Watch((), events).run(40, self.down())["engine_down"]
        assert "CUDA out of memory" in finding.cause
        assert [evidence.line for evidence in finding.evidence if evidence.line] == [70, 91]

    def test_an_engine_that_is_down_does_not_also_storm_or_stall(self):
        live = {
            **self.down(),
            name("engine_page_frozen_seconds", ENGINE): 100.0,
            name("engine_requests_running", ENGINE): 3.0,
        }
        watch = Watch().run(40, live)
        assert watch.ids == ["engine_down", "engine_stalled"]
        assert watch["engine_stalled"].caused_by == "engine_down"

    def test_a_page_that_stands_still_is_a_finding_not_health(self):
        live = {
            name("engine_page_frozen_seconds", ENGINE): float,
            name("engine_requests_running", ENGINE): 3.0,
        }
        events = (event("sglang_watchdog", "Watchdog timeout (self.watchdog_timeout=300)", 30, line=5),)
        finding = Watch((), events).run(70, live)["engine_stalled"]
        assert finding.severity == "critical"
        assert finding.evidence[-1].line == 5

    @pytest.mark.parametrize(
        ("busy", "told"),
        [
            ((0.02, 0.19), "the busiest of the engine's 2 GPUs is 19 % busy: none of them computes"),
            ((0.1,), "the engine's GPU is 10 % busy: it computes nothing"),
            ((0.2, 0.6), "is 60 % busy; whether it computes or waits, that does not tell"),
            ((1.0,), "the engine's GPU is 100 % busy; whether it computes or waits, that does not tell"),
            ((1.0, 0.0), "is 100 % busy: one that is always busy may wait in a collective for another"),
        ],
    )
    def test_what_busy_gpus_say_about_an_engine_that_stands_still(self, busy, told):
        live = {name("engine_page_frozen_seconds", ENGINE): 70.0, name("engine_requests_running", ENGINE): 3.0}
        for index, value in enumerate(busy):
            live[name("gpu_busy_ratio", gpu(index))] = value
            live[name("gpu_engine", gpu(index), server=SERVER)] = 1.0
        finding = Watch().run(3, live)["engine_stalled"]
        assert any(told in evidence.text for evidence in finding.evidence)

    @pytest.mark.parametrize(
        ("facts", "words", "advice"),
        [
            ((), "makes no step", "restart the engine"),
            ((), "Or it is a decode server", "restart the engine"),
            ((fact("flag.max-num-seqs", 8),), "a scheduler or worker is dead or hangs.", "restart the engine"),
            ((fact("flag.kv-transfer-config", "{}"),), "does not come from the prefill server", "the prefill server"),
        ],
    )
    def test_an_engine_that_may_wait_for_a_prefill_server_is_not_called_dead(self, facts, words, advice):
        live = {
            name("engine_page_frozen_seconds", ENGINE): 70.0,
            name("engine_requests_running", ENGINE): 0.0,
            name("engine_requests_waiting", ENGINE): 2.0,
        }
        finding = Watch(facts).run(3, live)["engine_stalled"]
        assert words in finding.cause
        assert advice in finding.advice[0].text

    @pytest.mark.parametrize(
        ("source", "frozen", "words", "seen"),
        [
            ({name("engine_config_kv_transfer", CONFIG): 1.0}, 70.0, "", ""),
            ({name("engine_config_kv_transfer", CONFIG): 1.0}, 310.0, "prefill server", "as its launch flags say"),
            ({name("engine_external_prefix_cache_queries_total", ENGINE): 900.0}, 70.0, "", ""),
            (
                {name("engine_external_prefix_cache_queries_total", ENGINE): 900.0},
                310.0,
                "prefill server",
                "900 tokens",
            ),
            ({name("engine_info", CONFIG, role="decode"): 1.0}, 310.0, "prefill server", "the decode server of a pair"),
            ({name("engine_config_kv_transfer", CONFIG): 0.0}, 70.0, "they wait for a grammar", "no launch flag names"),
            ({}, 70.0, "The launch flags, which tell which, are not known", "2 of the requests that wait are deferred"),
        ],
    )
    def test_requests_that_are_put_off_wait_for_another_server_or_for_a_grammar(self, source, frozen, words, seen):
        live = {
            **source,
            name("engine_page_frozen_seconds", ENGINE): frozen,
            name("engine_requests_running", ENGINE): 0.0,
            name("engine_requests_waiting", ENGINE): 2.0,
            name("engine_requests_waiting_by_reason", ENGINE, reason="deferred"): 2.0,
            name("engine_requests_waiting_by_reason", ENGINE, reason="capacity"): 0.0,
        }
        watch = Watch().run(3, live)
        assert watch.ids == (["engine_stalled"] if words else [])
        for finding in watch.findings:
            assert words in finding.cause
            assert seen in texts(finding)

    @pytest.mark.parametrize(
        ("used", "hung", "root"),
        [
            (placed(0), {"gpu_unresponsive_seconds": gpu(0)}, "driver_unresponsive"),
            (placed(0), {"gpu_unresponsive_seconds": gpu(1)}, None),
            (placed(0), {"host_nvml_unresponsive_seconds": {"host": "h"}}, "driver_unresponsive"),
            ({name("engine_processes", CONFIG): 3.0}, {"host_nvml_unresponsive_seconds": {"host": "h"}},
             "driver_unresponsive"),
            ({}, {"host_nvml_unresponsive_seconds": {"host": "h"}}, None),
        ],
    )  # fmt: skip
    def test_an_engine_that_stands_on_a_driver_that_hangs_is_not_told_to_restart(self, used, hung, root):
        live = {
            **used,
            **{name(short, labels): lambda s: max(0.0, s - 20.0) for short, labels in hung.items()},
            name("engine_page_frozen_seconds", ENGINE): lambda s: max(0.0, s - 20.0),
            name("engine_requests_running", ENGINE): 8.0,
        }
        watch = Watch().run(100, live)
        assert watch.ids == ["driver_unresponsive", "engine_stalled"]
        finding = watch["engine_stalled"]
        assert finding.caused_by == root
        assert ("settle driver_unresponsive first" in finding.advice[0].text) == (root is not None)
        assert ("restart the engine" in finding.advice[0].text) == (root is None)

    def test_a_part_of_the_engine_that_died_behind_a_page_that_stands_still_is_the_cause(self):
        live = {
            name("engine_page_frozen_seconds", ENGINE): lambda s: max(0.0, s - 20.0),
            name("engine_requests_running", ENGINE): 3.0,
            name("engine_processes", CONFIG): lambda s: 3.0 if s < 21 else 2.0,
        }
        watch = Watch().run(40, live)
        assert watch.first_seen == {"engine_stalled": 29}
        finding = watch["engine_stalled"]
        assert finding.cause.endswith("a part of the engine behind it has died: 1 of 3 processes of the engine ended.")
        assert [evidence.value for evidence in finding.evidence if evidence.name == "gpuwatch_engine_processes"] == [2]

    def test_a_log_that_cannot_be_read_any_more(self):
        log = {"host": "h", "source": "log", "target": "vllm.log"}
        live = {
            series("gpuwatch_source_up", **log): lambda s: float(s < 10),
            series("gpuwatch_source_age_seconds", **log): lambda s: max(0.0, s - 9),
        }
        watch = Watch().run(60, live)
        assert watch.first_seen == {"source_degraded": 40}
        assert "log vllm.log can no longer be read" in watch["source_degraded"].cause

    @pytest.mark.parametrize(
        ("reason", "seen", "cause", "fix"),
        [
            ("driver_mismatch", 19, "the driver was replaced while it ran", "reload the kernel module"),
            ("no_permission", 40, "may not use the driver any more", "/dev/nvidiactl"),
            ("failed", 40, "nvml can no longer be read", "gpuwatch doctor"),
        ],
    )
    def test_gpus_that_cannot_be_read_any_more_are_told_why(self, reason, seen, cause, fix):
        nvml = {"host": "h", "source": "nvml", "target": "nvml"}
        live = {
            series("gpuwatch_source_up", **nvml): lambda s: float(s < 10),
            series("gpuwatch_source_age_seconds", **nvml): lambda s: max(0.0, s - 9),
            series("gpuwatch_source_failing", **nvml, reason=reason): lambda s: 1.0 if s >= 10 else None,
        }
        watch = Watch().run(60, live)
        assert watch.first_seen == {"source_degraded": seen}
        finding = watch["source_degraded"]
        assert cause in finding.cause
        assert "nvml nvml" not in finding.cause
        assert fix in finding.advice[0].text

    @pytest.mark.parametrize(("starved", "found"), [(1.7, "source_degraded"), (0.3, "engine_down")])
    def test_a_page_that_a_starved_watcher_cannot_read_says_nothing_about_the_engine(self, starved, found):
        engine = {"host": "h", "source": "engine", "target": SERVER, "server": SERVER}
        live = {
            series("gpuwatch_source_up", **engine): lambda s: float(s < 10),
            series("gpuwatch_source_age_seconds", **engine): lambda s: max(0.0, s - 9),
            series("gpuwatch_source_failing", **engine, reason="timeout"): lambda s: 1.0 if s >= 10 else None,
            series("gpuwatch_process_starved_ratio", host="h"): starved,
        }
        watch = Watch().run(60, live)
        assert list(watch.first_seen) == [found]
        finding = watch[found]
        assert ("gpuwatch itself gets no processor" in finding.cause) is (starved > 0.5)
        if starved > 0.5:
            assert "threads of gpuwatch waited 1.7 s in each second for a processor" in texts(finding)
            assert "CPUWeight=500" in finding.advice[0].text

    @pytest.mark.parametrize("moment", [120, 125])  # it answers, and it does not
    def test_a_source_that_answers_now_and_then_is_not_said_to_be_gone(self, moment):
        engine = {"host": "h", "source": "engine", "target": SERVER, "server": SERVER}
        live = {
            series("gpuwatch_source_up", **engine): lambda s: float(s % 10 < 5),
            series("gpuwatch_source_age_seconds", **engine): lambda s: float(max(0, s % 10 - 4)),
        }
        watch = Watch().run(moment + 1, live)
        cause = watch["source_degraded"].cause
        assert "answers only now and then" in cause
        assert "no longer" not in cause
        assert "is old" not in cause

    @pytest.mark.parametrize(("took", "timeout"), [(3.004, "8"), (4.5, "10"), (41.0, "60")])
    def test_an_engine_whose_page_comes_too_late_is_answered_with_the_time_to_wait(self, took, timeout):
        engine = {"host": "h", "source": "engine", "target": SERVER, "server": SERVER}
        live = {
            series("gpuwatch_source_up", **engine): lambda s: float(s % 10 < 5),
            series("gpuwatch_source_failing", **engine, reason="timeout"): lambda s: 1.0 if s % 10 >= 5 else None,
            series("gpuwatch_source_age_seconds", **engine): lambda s: float(max(0, s % 10 - 4)),
            series("gpuwatch_source_poll_seconds", **engine): took,
        }
        (advice,) = Watch().run(125, live)["source_degraded"].advice
        assert (advice.flag, advice.proposed) == ("timeout", timeout)
        assert "[[engine]] section" in advice.text
        refused = series("gpuwatch_source_failing", **engine, reason="refused")
        live = {key: value for key, value in live.items() if dict(key).get("reason") != "timeout"} | {refused: 1.0}
        (advice,) = Watch().run(125, live)["source_degraded"].advice
        assert advice.flag == ""
        assert "gpuwatch doctor" in advice.text

    @pytest.mark.parametrize(
        ("state", "meaning", "helps"),
        [
            ("resetting", "needs a reset", "nvidia-smi --gpu-reset -i 1"),
            ("no_permission", "may not be read", "--gpus all"),
            ("failed", "answers no call", "nvidia-smi -i 1"),
        ],
    )
    def test_a_gpu_without_readings_is_told_and_not_taken_for_healthy(self, state, meaning, helps):
        live = {
            name("gpu_state", gpu(0), state="ok"): 1.0,
            name("gpu_state", gpu(1), state="ok"): 0.0,
            name("gpu_state", gpu(1), state=state): 1.0,
        }
        watch = Watch().run(30, live)
        assert watch.first_seen == {"source_degraded": 15}
        finding = watch["source_degraded"]
        assert finding.severity == "warning"
        assert finding.cause.startswith(f"GPU 1 (GPU-1) {meaning}")
        assert any(helps in advice.text for advice in finding.advice)
        assert "GPUs that are read: 1" in texts(finding)

    def test_two_gpus_without_readings_are_two_findings_and_an_unknown_uuid_is_not_shown(self):
        rows = [{"host": "h", "uuid": f"index:{index}", "gpu": str(index)} for index in (0, 1)]
        watch = Watch().run(30, {name("gpu_state", row, state="failed"): 1.0 for row in rows})
        assert sorted(finding.cause[:20] for finding in watch.findings) == [
            "GPU 0 answers no cal",
            "GPU 1 answers no cal",
        ]

    def test_a_gpu_that_was_lost_before_it_could_say_its_uuid_is_named_without_one(self):
        row = {"host": "h", "uuid": "index:0", "gpu": "0"}
        watch = Watch().run(10, {name("gpu_state", row, state="lost"): 1.0})
        assert watch["gpu_lost"].cause.startswith("GPU 0 has dropped off")
