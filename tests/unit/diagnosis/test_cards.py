"""Findings about single cards: Xids, throttled clocks, PCIe links, memory that grows."""

from __future__ import annotations

import re

import pytest

from gpuwatch.diagnosis.xid_table import TABLE, is_hardware
from tests.unit.diagnosis.watch import CONFIG, ENGINE, RULES, SERVER, Watch, event, flags, gpu, name, texts

GIB = 1 << 30
MIB = 1 << 20
MHZ = 1e6


def after(second, low, high):
    return lambda now: float(high) if now >= second else float(low)


def placed(index=0, server=SERVER):
    return {name("gpu_engine", gpu(index), server=server, basis="process"): 1.0}


class TestXids:
    def xid(self, code, index=0, second=20, times=1):
        return {name("gpu_xid_errors_total", gpu(index), xid=str(code)): after(second, 0, times)}

    def test_a_fault_of_the_card_is_found_at_once_and_names_the_engine_that_stands_on_it(self):
        live = {
            **self.xid(79),
            **self.xid(154),
            **placed(),
            name("gpu_state", gpu(0), state="lost"): after(22, 0, 1),
            name("gpu_state", gpu(0), state="ok"): after(22, 1, 0),
            name("engine_page_frozen_seconds", ENGINE): lambda now: max(0.0, now - 25.0),
        }
        line = "NVRM: Xid (PCI:0000:19:00): 79, pid=1234, GPU has fallen off the bus."
        seen = event("xid", line, 20, source="kernel log", server="", code="79", pci="PCI:0000:19:00")
        watch = Watch((), (seen,)).run(100, live)
        assert watch.first_seen["xid_hardware"] == 20
        finding = watch["xid_hardware"]
        assert "Xid 79, the GPU has fallen off the bus" in finding.cause
        assert SERVER in finding.cause
        assert line in texts(finding)
        assert any("power supply" in advice.text for advice in finding.advice)
        assert watch.ids[0] == "xid_hardware"
        assert watch["gpu_lost"].caused_by == "xid_hardware"
        assert watch["engine_stalled"].caused_by == "xid_hardware"

    def test_an_engine_on_another_card_of_the_host_stalls_for_a_reason_of_its_own(self):
        frozen = {name("engine_page_frozen_seconds", ENGINE): lambda now: max(0.0, now - 25.0)}
        watch = Watch().run(100, {**self.xid(79), **placed(1), **frozen})
        assert watch["engine_stalled"].caused_by is None

    def test_a_line_about_another_card_is_no_evidence(self):
        info = {name("gpu_info", gpu(0), pci_bus_id="00000000:19:00.0", name="H100"): 1.0}
        seen = event("xid", "NVRM: Xid …", 20, source="kernel log", server="", code="48", pci="PCI:0000:9c:00")
        finding = Watch((), (seen,)).run(30, {**self.xid(48), **info})["xid_hardware"]
        assert "NVRM" not in texts(finding)

    def test_two_numbers_of_one_card_are_one_finding(self):
        watch = Watch().run(30, {**self.xid(48), **self.xid(63), **self.xid(94)})
        assert watch.ids == ["xid_hardware", "xid_software"]
        assert watch["xid_software"].caused_by == "xid_hardware"
        assert "Xid 63" in texts(watch["xid_hardware"])

    @pytest.mark.parametrize(
        ("code", "after", "advice"),
        [
            (63, "It goes on working.", "when its work allows"),
            (156, "A reset has to complete that.", "drain the card and reset it"),
            (160, "It goes on working.", "when its work allows"),
        ],
    )
    def test_memory_that_was_taken_out_of_use_is_no_failure_of_the_engine_on_it(self, code, after, advice):
        watch = Watch().run(30, {**self.xid(code), **placed(), name("gpu_row_remap_failed", gpu(0)): 0.0})
        assert watch.ids == ["xid_software"]
        finding = watch["xid_software"]
        assert (finding.severity, "follows from it" in finding.cause) == ("warning", False)
        assert f"Xid {code}" in finding.cause
        assert finding.cause.endswith(after)
        assert advice in finding.advice[0].text

    @pytest.mark.parametrize(
        ("code", "severity", "words", "advice"),
        [
            (46, "critical", "needs a reset", "reset it"),
            (54, "critical", "auxiliary power", "power cables"),
            (109, "critical", "needs a reset", "reset it"),
            (121, "warning", "goes on working", "nothing now"),
            (157, "warning", "goes on working", "plan the replacement"),
            (161, "warning", "goes on working", "plan the replacement"),
        ],
    )
    def test_a_number_is_as_bad_as_the_action_that_nvidia_asks_for(self, code, severity, words, advice):
        (finding,) = Watch().run(30, self.xid(code)).findings
        assert finding.severity == severity
        assert words in finding.cause
        assert advice in finding.advice[0].text
        assert "no fault of the card" not in finding.title + finding.cause

    @pytest.mark.parametrize("cause", [{"xid": 79}, {"state": "lost"}])
    def test_an_engine_that_is_gone_follows_from_its_gpu(self, cause):
        live = self.xid(79) if "xid" in cause else {name("gpu_state", gpu(0), state="lost"): after(20, 0, 1)}
        down = {"host": "h", "source": "engine", "target": SERVER, "server": SERVER}
        up = {
            name("source_up", down): after(22, 1, 0),
            name("source_age_seconds", down): lambda second: float(max(0, second - 21)),
        }
        watch = Watch().run(60, {**live, **placed(), **up})
        found = {finding.id: finding.caused_by for finding in watch.findings}
        assert found["engine_down"] == watch.ids[0]
        assert watch.ids[0] == ("xid_hardware" if "xid" in cause else "gpu_lost")
        apart = Watch().run(60, {**live, **placed(1), **up})
        assert {finding.id: finding.caused_by for finding in apart.findings}["engine_down"] is None

    def test_a_fault_of_a_card_explains_no_engine_that_is_well(self):
        finding = Watch().run(30, {**self.xid(48), **placed()})["xid_hardware"]
        assert "follows from it" not in finding.cause

    @pytest.mark.parametrize(("left", "found"), [(0.0, []), (3.0, ["xid_software"])])
    def test_work_removed_with_the_end_of_an_engine_is_silent(self, left, found):
        live = {**self.xid(45), **placed(), name("engine_processes", CONFIG): after(22, 3, left)}
        assert Watch().run(60, live).ids == found

    def test_the_same_number_on_two_cards_speaks_for_software(self):
        watch = Watch().run(30, {**self.xid(13), **self.xid(13, 1)})
        assert watch.ids == ["xid_software", "xid_software"]
        assert "no memory error of the card" in watch.findings[0].cause
        assert "came from 1 other GPUs" in texts(watch.findings[0])

    def test_a_number_that_nobody_knows_blames_nobody(self):
        finding = Watch().run(30, self.xid(999))["xid_software"]
        assert "whose fault it is cannot be told" in finding.cause
        assert finding.confidence < 0.5

    def test_an_error_that_follows_is_not_taken_for_the_cause(self):
        watch = Watch().run(40, {**self.xid(45), **self.xid(74)})
        assert watch["xid_software"].caused_by == "xid_hardware"
        assert "follows from something else" in watch["xid_software"].cause

    def test_the_card_s_own_counters_tell_where_no_xid_does(self):
        live = {
            name("gpu_ecc_errors_total", gpu(0), type="uncorrected"): after(20, 0, 2),
            name("gpu_recovery_action", gpu(0)): after(25, 0, 4),
            name("gpu_row_remap_pending", gpu(0)): 1.0,
        }
        watch = Watch().run(40, live)
        assert watch.first_seen == {"xid_hardware": 20}
        told = texts(watch["xid_hardware"])
        assert "2 uncorrected ECC errors" in told
        assert "a drain, then a reset" in told
        assert "a row remap waits for a reset" in told

    def test_the_rules_take_those_numbers_for_faults_of_the_card_that_the_table_does(self):
        exprs = {rule.name: rule.expr for rule in RULES.alerts}
        wanted = {code for code in TABLE if is_hardware(str(code))}
        for alert, operator, others in (("GpuwatchXidHardware", "=~", set()), ("GpuwatchXidSoftware", "!~", {43, 45})):
            (pattern,) = re.findall(f'xid{operator}"([^"]+)"', exprs[alert])
            assert {code for code in range(1000) if re.fullmatch(pattern, str(code))} == wanted | others, alert

    def test_every_number_has_a_meaning_and_advice(self):
        assert all(xid.meaning and xid.advice for xid in TABLE.values())


class TestThrottling:
    def card(self, share, busy, clock, reason, **more):
        return {
            name("gpu_throttle_seconds_total", gpu(0), reason=reason): lambda now: share * now,
            name("gpu_busy_ratio", gpu(0)): busy,
            name("gpu_sm_clock_hertz", gpu(0)): clock * MHZ,
            name("gpu_sm_clock_max_hertz", gpu(0)): 1980 * MHZ,
            name("gpu_temperature_celsius", gpu(0)): 88.0,
            **{name(f"gpu_{key}", gpu(0)): float(value) for key, value in more.items()},
        }

    def test_heat_is_named_with_temperature_and_what_it_costs(self):
        finding = Watch().run(90, self.card(0.6, 0.97, 1188, "hw_thermal"))["throttling"]
        assert finding.cause == "GPU 0 runs 40 % below its highest clock because of heat (the card slows itself down)."
        assert "88 °C" in texts(finding)
        assert "cooling of GPU 0" in finding.advice[0].text

    def test_a_card_that_is_too_hot_is_given_the_power_that_its_cooling_bears(self):
        live = self.card(0.6, 0.97, 1188, "hw_thermal", power_limit_watts=350, power_watts=237)
        assert flags(Watch().run(90, live)["throttling"])[1] == ("nvidia-smi -i 0 -pl", "350", "230")
        at_limit = self.card(0.6, 0.97, 1188, "hw_thermal", power_limit_watts=350, power_watts=351)
        assert flags(Watch().run(90, at_limit)["throttling"])[1] == ("nvidia-smi -i 0 -pl", "350", None)

    def test_a_lowered_power_limit_is_answered_with_the_default(self):
        live = self.card(
            0.9, 0.97, 1188, "power", power_limit_watts=230, power_limit_default_watts=350, power_watts=229
        )
        finding = Watch().run(90, live)["throttling"]
        assert flags(finding) == [("nvidia-smi -i 0 -pl", "230", "350")]
        assert finding.confidence == 0.87  # 0.9 for a lowered limit, times 0.7 + 0.3 of the share of 0.9

    @pytest.mark.parametrize(
        ("power", "heat", "words", "flag"),
        [
            (0.95, 0.15, "because of its power limit", "400"),
            (0.55, 0.9, "because of heat (the driver slows it down)", None),
        ],
    )
    def test_of_two_reasons_the_one_that_holds_longer_is_the_cause_and_the_other_is_told(
        self, power, heat, words, flag
    ):
        live = self.card(power, 0.97, 1000, "power", power_limit_watts=400, power_limit_default_watts=700)
        live[name("gpu_throttle_seconds_total", gpu(0), reason="sw_thermal")] = lambda now: heat * now
        watch = Watch().run(100, live)
        finding = watch["throttling"]
        assert words in finding.cause
        assert finding.advice[0].current == flag
        less = f"{min(power, heat) * 100:.0f} % of it"
        assert less in texts(finding)

    def test_the_default_limit_is_not_called_lowered(self):
        live = self.card(0.9, 0.97, 1089, "power", power_limit_watts=700, power_limit_default_watts=700)
        finding = Watch().run(90, live)["throttling"]
        assert "Ruled out: a lowered limit" in texts(finding)
        assert finding.advice[0].proposed is None
        assert finding.confidence < 0.9

    def test_the_power_supply_is_not_answered_with_fans(self):
        finding = Watch().run(90, self.card(0.5, 0.97, 1188, "power_brake"))["throttling"]
        assert "power cables" in finding.advice[0].text

    def test_heat_is_found_within_half_a_minute(self):
        heat = lambda now: 0.9 * max(0, now - 100)  # noqa: E731  # from second 100 on
        live = {
            **self.card(0, 0.97, 0, "thermal"),
            name("gpu_throttle_seconds_total", gpu(0), reason="thermal"): heat,
            name("gpu_sm_clock_hertz", gpu(0)): after(100, 1900 * MHZ, 1000 * MHZ),
        }
        watch = Watch().run(140, live)
        assert 100 < watch.first_seen["throttling"] <= 130


class TestLinks:
    def link(self, width, generation, busy=0.97, more=()):
        return {
            name("gpu_busy_ratio", gpu(0)): busy,
            name("gpu_pcie_link_width", gpu(0)): width,
            name("gpu_pcie_link_width_max", gpu(0)): 16.0,
            name("gpu_pcie_link_generation", gpu(0)): generation,
            name("gpu_pcie_link_generation_max", gpu(0)): 5.0,
            **dict(more),
        }

    def test_a_narrow_and_slow_link_is_one_finding_with_its_speed(self):
        replays = {name("gpu_pcie_replays_total", gpu(0)): lambda now: 3.0 * now}
        watch = Watch().run(90, self.link(8.0, 4.0, more=replays))
        assert watch.ids == ["pcie_degraded"]
        cause = watch["pcie_degraded"].cause
        assert "fewer lanes and a lower generation" in cause
        assert "15.8 of 63.0 GB/s" in cause  # 8 lanes of generation 4 at 1.97 GB/s, 16 of generation 5 at 3.94 GB/s
        assert "had to be sent again" in texts(watch["pcie_degraded"])

    def test_a_link_that_rests_is_none(self):
        assert Watch().run(90, self.link(16.0, 1.0, busy=0.0)).ids == []

    @pytest.mark.parametrize(("width", "generation"), [(after(100, 16, 4), 5.0), (16.0, after(100, 5, 1))])
    def test_a_link_that_goes_bad_under_load_is_found_within_half_a_minute(self, width, generation):
        watch = Watch().run(140, self.link(width, generation))
        assert watch.first_seen == {"pcie_degraded": 115}

    @pytest.mark.parametrize(("busy", "idle"), [(10, 5), (14, 2), (20, 2), (6, 9)])
    def test_a_bad_link_is_found_under_load_that_comes_in_bursts(self, busy, idle):
        watch = Watch().run(60, self.link(4.0, 3.0, busy=lambda now: float(now % (busy + idle) < busy)))
        assert watch.first_seen["pcie_degraded"] <= 16

    @pytest.mark.parametrize("rests", [1.0, 4.0])
    def test_a_link_that_rests_before_between_and_after_bursts_is_none(self, rests):
        """The link is read every ten seconds; the bursts of 12 seconds end and begin with one at rest."""
        busy = lambda now: float(30 <= now < 200 and now % 20 < 12)  # noqa: E731
        read = lambda now: busy(now - now % 10)  # noqa: E731
        live = self.link(lambda now: 16.0 if read(now) else 4.0, lambda now: 5.0 if read(now) else rests, busy=busy)
        assert Watch().run(280, live).first_seen == {}


class TestGrowth:
    def memory(self, used, engine=None, other=None, more=()):
        rows = {
            name("gpu_memory_total_bytes", gpu(0)): 80.0 * GIB,
            name("gpu_memory_used_bytes", gpu(0)): used,
            name("gpu_memory_step_bytes", gpu(0)): 0.0,
            name("engine_requests_running", ENGINE): 4.0,
            **placed(),
            **dict(more),
        }
        if engine is not None:
            rows[name("gpu_memory_engine_bytes", gpu(0), server=SERVER)] = engine
        if other is not None:
            rows[name("gpu_memory_other_bytes", gpu(0))] = other
        return rows

    def test_memory_that_the_engine_takes_second_by_second_is_found_within_two_minutes(self):
        leak = lambda now: 60.0 * GIB + 36 * MIB * max(0, now - 150)  # noqa: E731  # from second 150 on
        done = {name("engine_requests_finished_total", ENGINE, reason="stop"): lambda now: 18.0 * now}
        done[name("ledger_growth_bytes", gpu(0))] = lambda now: leak(now) - 60.0 * GIB
        watch = Watch().run(280, self.memory(leak, engine=leak, other=0.0, more=done))
        assert 150 < watch.first_seen["gpu_memory_growth"] <= 270
        finding = watch["gpu_memory_growth"]
        assert "The engine takes more and more memory of GPU 0" in finding.cause
        assert "not separated" in finding.cause
        told = texts(finding)
        assert "the engine's processes grew by 4.2 GiB" in told  # 36 MiB/s for 120 s
        assert "KiB each" in told
        # 36 MiB for each of the 129 seconds from second 150 to the last one, 279
        assert "the GPU holds 4.5 GiB more than a minute after its engines began to serve" in told
        assert finding.advice[1].proposed == "expandable_segments:True"

    def test_a_slow_growth_is_found_although_readings_go_up_and_down_by_half_a_gibibyte(self):
        # 77 GiB at second 0; 10 MiB/s are 1.2 GiB in two minutes, so 80 GiB are full in less than ten
        leak = lambda now: 77.0 * GIB + 10 * MIB * now + (0.25 * GIB if now % 2 else -0.25 * GIB)  # noqa: E731
        watch = Watch().run(180, self.memory(leak, engine=leak, other=0.0))
        assert watch.first_seen["gpu_memory_growth"] <= 140

    def test_another_process_is_named_instead_once_it_has_grown_for_longer_than_a_start(self):
        other = lambda now: 30.0 * MIB * now  # noqa: E731
        live = self.memory(lambda now: 60.0 * GIB + other(now), engine=60.0 * GIB, other=other)
        watch = Watch().run(480, live, every=15)
        assert 360 < watch.first_seen["gpu_memory_growth"] <= 450
        assert watch["gpu_memory_growth"].cause == "Another process on GPU 0 grows, not the engine."

    def test_memory_that_stays_after_each_sleep_says_so(self):
        sleeps = tuple(
            event("sleep", f"Sleep mode freed 40 GiB memory, {used} GiB memory is still in use.", second)
            for used, second in ((4, 300), (11, 540), (25, 780))
        )
        stairs = lambda now: (60.0 + sum(now >= at for at in (360, 600, 840))) * GIB  # noqa: E731
        watch = Watch((), sleeps).run(1020, self.memory(stairs, engine=stairs, other=0.0), every=15)
        finding = watch["gpu_memory_growth"]
        assert "keeps more after each sleep" in finding.cause
        assert "25 GiB memory is still in use" in texts(finding)

    def test_a_plateau_is_told_as_none(self):
        used = lambda now: (60.0 if now < 300 else 66.0) * GIB  # noqa: E731
        watch = Watch().run(720, self.memory(used), every=15)
        assert watch.ids == ["false_leak"]
        finding = watch["false_leak"]
        assert finding.severity == "info"
        assert "rose by 6.0 GiB and has stood still" in finding.cause
        assert "Ruled out: growth that goes on: 0 MiB in 5 minutes" in texts(finding)

    def test_a_pool_full_of_cache_is_told_as_none(self):
        engine = {**ENGINE, "engine_kind": "sglang"}
        live = {
            name("engine_kv_cache_tokens", engine): 1_000_000.0,
            name("engine_kv_cache_evictable_tokens", engine): 930_000.0,
            name("engine_kv_cache_usage_ratio", engine): 0.03,
        }
        finding = Watch().run(70, live)["false_leak"]
        assert "930,000 of 1,000,000 tokens" in texts(finding)
        assert "Ruled out: a pool that requests fill: they hold 3.0 %" in texts(finding)

    @pytest.mark.parametrize("used", [
        lambda now: (0.5 if now < 100 else min(73.6, 0.5 + 2 * (now - 100))) * GIB,  # weights, then the pool
        lambda now: 73.6 * GIB,  # allocated in advance
        lambda now: (73.6 if now < 400 or now > 700 else 4.0) * GIB,  # sleep and wake
    ])  # fmt: skip
    def test_loading_a_pool_allocated_in_advance_and_sleep_are_no_growth(self, used):
        live = self.memory(used)
        live[name("gpu_memory_step_bytes", gpu(0))] = lambda now: 0.0 if now > 150 else None
        watch = Watch().run(900, live, every=15)
        assert "gpu_memory_growth" not in watch.first_seen


def test_what_the_engine_cannot_explain_stands_beside_a_fragmented_allocator():
    log = {"host": "h", "log": "/var/log/vllm.log", "server": SERVER}
    live = {
        name("log_oom_requested_bytes", log): 2.0 * GIB,
        name("log_oom_reserved_unallocated_bytes", log): 20.0 * GIB,
        name("log_events_total", log, event="torch_oom"): after(10, 0, 1),
        name("gpu_memory_engine_bytes", gpu(0), server=SERVER): 78.0 * GIB,
        name("engine_config_weights_bytes", CONFIG): 16.0 * GIB,
        name("engine_config_kv_cache_bytes", CONFIG): 40.0 * GIB,
        name("engine_config_graph_bytes", CONFIG): 1.0 * GIB,
        name("ledger_growth_bytes", gpu(0)): 6.0 * GIB,
        **placed(),
    }
    told = texts(Watch().run(20, live)["allocator_fragmentation"])
    assert (
        "the engine holds 78.0 GiB; weights, pool, graphs and activations explain 57.0 GiB of it, 21.0 GiB remain"
        in told
    )
    assert "the fullest GPU holds 6.0 GiB more than a minute after its engines began to serve" in told
