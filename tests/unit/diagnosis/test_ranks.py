"""Findings about the ranks of one engine: who is the odd one, why, and when they wait for each other."""

from __future__ import annotations

import pytest

from gpuwatch.diagnosis.group import Rank, odd_ranks
from tests.unit.diagnosis.groups import GIB, STEADY, after, group
from tests.unit.diagnosis.watch import CONFIG, ENGINE, SERVER, Watch, fact, flags, gpu, name, texts

MHZ = 1e6
LANE4 = 16 * 123.077e6
"""Bytes per second of one lane of generation 4."""


class TestStraggler:
    def slow(self, index=2, ranks=4, more=()):
        clocks = [1755 * MHZ] * ranks
        clocks[index] = 1200 * MHZ
        return {**group(ranks, **{**STEADY, "sm_clock_hertz": clocks}), **dict(more)}

    def test_the_slow_rank_is_named_with_its_throttling(self):
        heat = {
            name("gpu_throttle_seconds_total", gpu(i), reason="hw_thermal"): lambda now, i=i: now * 0.7 * (i == 2)
            for i in range(4)
        }
        watch = Watch().run(100, self.slow(more=heat))
        finding = watch["tp_straggler"]
        assert finding.cause.startswith("GPU 2 has a clock 32 % below the fastest rank's")
        assert "it is throttled (hw_thermal)" in finding.cause
        assert "SM clock 1,200 MHz, the others 1,755 MHz" in texts(finding)
        assert finding.labels["uuid"] == "GPU-2"

    def test_a_lower_power_limit_is_answered_with_that_of_the_others(self):
        limits = [700.0, 700.0, 450.0, 700.0]
        live = self.slow()
        live.update({name("gpu_power_limit_watts", gpu(index)): limit for index, limit in enumerate(limits)})
        finding = Watch().run(100, live)["tp_straggler"]
        assert flags(finding) == [("nvidia-smi -i 2 -pl", "450", "700")]

    def test_another_model_of_card_is_named(self):
        names = ["H100", "H100", "A100", "H100"]
        infos = {name("gpu_info", gpu(index), name=card): 1.0 for index, card in enumerate(names)}
        finding = Watch().run(100, self.slow(more=infos))["tp_straggler"]
        assert "another model of card" in finding.cause

    def test_another_model_of_card_is_not_given_the_power_limit_of_the_others(self):
        live = self.slow(
            more={name("gpu_info", gpu(at), name="A100 PCIe" if at == 2 else "A100"): 1.0 for at in range(4)}
        )
        live |= {name("gpu_power_limit_watts", gpu(at)): 300.0 if at == 2 else 400.0 for at in range(4)}
        finding = Watch().run(100, live)["tp_straggler"]
        assert "it is another model of card" in finding.cause
        assert not [flag for flag, _, _ in flags(finding) if flag.startswith("nvidia-smi")]

    def limited(self, limit, default, names=None, reason="power", share=0.3):
        """A slow rank beside three cards of 400 W."""
        live = self.slow()
        for at in range(4):
            live[name("gpu_power_limit_watts", gpu(at))] = float(limit) if at == 2 else 400.0
            live[name("gpu_power_limit_default_watts", gpu(at))] = float(default) if at == 2 else 400.0
            if names:
                live[name("gpu_info", gpu(at), name=names[at == 2])] = 1.0
        live[name("gpu_throttle_seconds_total", gpu(2), reason=reason)] = lambda now: share * now
        return Watch().run(100, live)["tp_straggler"]

    @pytest.mark.parametrize("names", [None, ("A100-SXM4", "A100 PCIe"), ("A100", "A100")])
    def test_a_card_that_is_built_for_less_power_is_given_no_more_than_its_default(self, names):
        finding = self.limited(limit=300, default=300, names=names)
        assert "it is another model of card" in finding.cause
        assert not [flag for flag, _, _ in flags(finding) if flag]

    def test_a_lowered_limit_of_another_model_goes_back_to_its_own_default(self):
        finding = self.limited(limit=200, default=300, names=("A100-SXM4", "A100 PCIe"))
        assert flags(finding) == [("nvidia-smi -i 2 -pl", "200", "300")]
        assert "the others are A100-SXM4" in texts(finding)

    def test_a_card_built_for_more_power_and_lowered_goes_back_to_its_own_default(self):
        finding = self.limited(limit=450, default=700, names=("A100-SXM4", "H100"))
        assert flags(finding) == [("nvidia-smi -i 2 -pl", "450", "700")]

    def test_a_lowered_limit_that_is_never_reached_is_not_blamed_beside_another_model(self):
        finding = self.limited(limit=200, default=300, names=("A100-SXM4", "A100 PCIe"), share=0.01)
        assert "it is another model of card" in finding.cause

    def test_a_lowered_limit_of_the_same_model_goes_to_that_of_the_others(self):
        finding = self.limited(limit=250, default=400, names=("A100", "A100"))
        assert flags(finding) == [("nvidia-smi -i 2 -pl", "250", "400")]

    def test_heat_that_lowers_the_clock_comes_before_a_limit_that_is_only_lower(self):
        finding = self.limited(limit=250, default=400, reason="thermal")
        assert "it is throttled (thermal)" in finding.cause
        assert flags(finding) == [("", None, None)]

    def test_a_clock_without_a_visible_reason_says_so(self):
        finding = Watch().run(100, self.slow())["tp_straggler"]
        assert "why is not visible" in finding.cause
        assert finding.confidence < 0.7

    def test_it_is_found_within_two_minutes(self):
        clocks = [1755 * MHZ, after(120, 1755 * MHZ, 1480 * MHZ)]
        watch = Watch().run(260, group(2, **{**STEADY, "sm_clock_hertz": clocks}))
        assert 120 < watch.first_seen["tp_straggler"] <= 240

    def test_a_throttled_rank_has_the_throttling_as_its_cause(self):
        live = group(2, **{**STEADY, "sm_clock_hertz": [1900 * MHZ, 1100 * MHZ], "sm_clock_max_hertz": 1980 * MHZ})
        live[name("gpu_throttle_seconds_total", gpu(0), reason="thermal")] = 0.0
        live[name("gpu_throttle_seconds_total", gpu(1), reason="thermal")] = lambda now: 0.8 * now
        watch = Watch().run(120, live)
        assert watch["tp_straggler"].caused_by == "throttling"

    def test_all_slow_ranks_are_named_each_with_its_reason(self):
        # 1,200 of 1,900 MHz are 37 % less.
        clocks = [1200 * MHZ, 1200 * MHZ, 1900 * MHZ, 1900 * MHZ]
        limits = [500.0, 700.0, 700.0, 700.0]
        live = group(4, **{**STEADY, "sm_clock_hertz": clocks, "power_limit_watts": limits})
        finding = Watch().run(100, live)["tp_straggler"]
        assert finding.cause == (
            "GPUs 0 and 1 have clocks 37 % below the fastest rank's, and all ranks wait for them: "
            "GPU 0: its power limit is lower; GPU 1: why is not visible; the driver does not tell its throttling."
        )
        for index in (0, 1):
            assert f"GPU {index}: SM clock 1,200 MHz, the others 1,900 MHz" in texts(finding)
        assert flags(finding)[0] == ("nvidia-smi -i 0 -pl", "500", "700")
        assert "-i 1:" in finding.advice[1].text

    def test_a_reason_that_all_slow_ranks_share_is_said_once_and_the_median_is_that_of_the_others(self):
        clocks = [1200 * MHZ, 1250 * MHZ, 1300 * MHZ, 1900 * MHZ]
        live = group(4, **{**STEADY, "sm_clock_hertz": clocks, "power_limit_watts": [450.0, 450.0, 450.0, 700.0]})
        finding = Watch().run(100, live)["tp_straggler"]
        assert finding.cause == (
            "GPUs 0, 1 and 2 have clocks 32 % to 37 % below the fastest rank's, and all ranks wait for them: "
            "its power limit is lower."
        )
        assert flags(finding) == [(f"nvidia-smi -i {index} -pl", "450", "700") for index in range(3)]

    def test_all_slow_links_are_named(self):
        live = group(4, **{**STEADY, "pcie_link_width": [4.0, 16.0, 8.0, 16.0], "sm_clock_hertz": 1755 * MHZ})
        finding = Watch().run(100, live)["tp_straggler"]
        assert "The PCIe links of GPUs 0 and 2 are up to 4 times slower than the fastest" in finding.cause
        assert "GPU 0: PCIe link 7.9 GB/s, the others 31.5 GB/s" in texts(finding)
        assert "GPU 2: PCIe link 15.8 GB/s, the others 31.5 GB/s" in texts(finding)

    def test_a_slow_link_is_named_where_nothing_faster_joins_the_ranks(self):
        live = group(2, **{**STEADY, "pcie_link_width": [16.0, 4.0], "sm_clock_hertz": 1755 * MHZ})
        finding = Watch().run(100, live)["tp_straggler"]
        assert "GPU 1 is 4 times slower" in finding.cause
        assert "PCIe link 7.9 GB/s, the others 31.5 GB/s" in texts(finding)
        (link,) = [each for each in finding.evidence if each.unit == "bytes/s"]
        assert link.value == pytest.approx(4 * 1.97e9, rel=0.01)  # four lanes of generation 4 at 1.97 GB/s
        assert link.name == "gpuwatch_gpu_pcie_link_width * 123.077e6 * 2 ^ gpuwatch_gpu_pcie_link_generation"

    def test_ranks_alike_at_their_power_limit_are_healthy(self):
        clocks = [1755 * MHZ, 1700 * MHZ, 1770 * MHZ, 1690 * MHZ]
        assert Watch().run(100, group(4, **{**STEADY, "sm_clock_hertz": clocks})).ids == []


class TestImbalance:
    def uneven(self, more, extra=3.0, ranks=4):
        used = [70.0 * GIB] * ranks
        used[0] += extra * GIB
        return {**group(ranks, **{**STEADY, "memory_used_bytes": used}), **more}

    def own(self, extra=3.0, processes=(1, 1, 1, 1)):
        rows = {
            name("gpu_memory_engine_bytes", gpu(i), server=SERVER): (70.0 + (extra if i == 0 else 0)) * GIB
            for i in range(4)
        }
        rows |= {name("gpu_memory_other_bytes", gpu(i)): 0.0 for i in range(4)}
        return rows | {name("gpu_processes", gpu(i)): float(count) for i, count in enumerate(processes)}

    def test_contexts_of_the_other_ranks_on_the_first_gpu_are_counted(self):
        finding = Watch().run(70, self.uneven(self.own(processes=(4, 1, 1, 1))))["tp_imbalance"]
        assert "3 more processes of the engine have a context there, 1.0 GiB each" in finding.cause
        assert ("--disable-custom-all-reduce", None, None) in flags(finding)

    def test_as_many_processes_mean_an_uneven_share_of_the_model(self):
        finding = Watch().run(70, self.uneven(self.own()))["tp_imbalance"]
        assert "in as many processes" in finding.cause
        assert "Ruled out: more processes" in texts(finding)

    def test_what_else_stands_apart_is_shown_beside_it(self):
        live = self.uneven(self.own())
        live[name("gpu_temperature_celsius", gpu(0))] = 85.0
        live |= {name("gpu_temperature_celsius", gpu(i)): 60.0 for i in (1, 2, 3)}
        assert "GPU 0: temperature 85 °C, the others 60 °C" in texts(Watch().run(70, live)["tp_imbalance"])

    def beside(self, engines, other=0.0):
        """70 GiB of the engine on each of two GPUs, and other engines with so many GiB on GPU 0."""
        rows = {name("gpu_memory_engine_bytes", gpu(i), server=SERVER): 70.0 * GIB for i in range(2)}
        rows |= {name("gpu_memory_other_bytes", gpu(i)): (0.0 if i else other) * GIB for i in range(2)}
        rows |= {name("gpu_memory_unattributed_bytes", gpu(i)): 0.0 for i in range(2)}
        for server, held in engines.items():
            rows[name("gpu_engine", gpu(0), server=server, basis="process")] = 1.0
            rows[name("gpu_memory_engine_bytes", gpu(0), server=server)] = held * GIB
        return self.uneven(rows, extra=sum(engines.values()) + other, ranks=2)

    def test_a_second_known_engine_on_one_rank_is_named(self):
        finding = Watch().run(70, self.beside({"127.0.0.1:8001": 6.0}))["tp_imbalance"]
        assert finding.cause == (
            "GPU 0 holds 6.0 GiB more than GPU 1: on it is also the engine 127.0.0.1:8001, which uses 6.0 GiB of it."
        )
        assert finding.advice[0].text.startswith("move 127.0.0.1:8001 to a GPU of its own")
        assert "the engine 127.0.0.1:8001 uses 6.0 GiB of GPU 0" in texts(finding)

    def test_the_memory_of_several_other_engines_is_added_up(self):
        live = self.beside({"127.0.0.1:8001": 3.0, "127.0.0.1:8002": 2.0}, other=1.0)
        finding = Watch().run(70, live)["tp_imbalance"]
        assert "the engine 127.0.0.1:8001, which uses 3.0 GiB and the engine 127.0.0.1:8002" in finding.cause
        assert "processes of no known engine: 1.0 GiB more" in texts(finding)

    def test_parts_none_of_which_makes_up_the_difference_are_told(self):
        live = self.beside({}, other=3.0)
        live[name("gpu_memory_engine_bytes", gpu(0), server=SERVER)] = 73.0 * GIB
        live[name("gpu_memory_used_bytes", gpu(0))] = 76.0 * GIB
        finding = Watch().run(70, live)["tp_imbalance"]
        assert finding.cause == "GPU 0 holds 6.0 GiB more than GPU 1. No single part makes up most of it."
        assert "the engine's own processes: 3.0 GiB more" in texts(finding)
        assert "processes of no known engine: 3.0 GiB more" in texts(finding)

    def test_without_memory_by_process_nobody_is_named(self):
        finding = Watch().run(70, self.uneven({}))["tp_imbalance"]
        assert "Whose it is cannot be told" in finding.cause


class TestOddRanks:
    def test_the_odd_one_of_eight_is_found_though_the_others_differ_a_little(self):
        ranks = [Rank(str(i), f"GPU-{i}", "", clock=(1755 + 5 * i) * MHZ) for i in range(8)]
        ranks[5] = Rank("5", "GPU-5", "", clock=1300 * MHZ)
        (odd,) = odd_ranks(ranks)
        assert (odd.rank.gpu, odd.figure.name) == ("5", "SM clock")
        assert odd.others == 1770 * MHZ  # the median of the other seven

    def test_of_two_ranks_the_worse_one_is_named(self):
        pair = [
            Rank("0", "", "", used=70.0 * GIB, temperature=60.0),
            Rank("1", "", "", used=76.0 * GIB, temperature=80.0),
        ]
        assert {(odd.figure.name, odd.rank.gpu) for odd in odd_ranks(pair)} == {
            ("used memory", "1"),
            ("temperature", "1"),
        }
        slow = [Rank("0", "", "", clock=1200 * MHZ, link=64.0), Rank("1", "", "", clock=1755 * MHZ, link=256.0)]
        assert {(odd.figure.name, odd.rank.gpu) for odd in odd_ranks(slow)} == {("SM clock", "0"), ("PCIe link", "0")}

    def test_what_is_not_known_is_not_compared(self):
        assert odd_ranks([Rank("0", "", "", clock=1200 * MHZ), Rank("1", "", "")]) == []


class TestPcie:
    def test_ranks_that_fill_their_link_are_answered_with_fewer_ranks(self):
        traffic = [lambda now: 0.6 * 16 * LANE4 * now] * 4
        live = group(4, **{**STEADY, "pcie_transmit_bytes_total": traffic})
        told = fact("custom_allreduce", value=False)
        watch = Watch((told,)).run(120, live)
        finding = watch["tp_pcie_slow"]
        assert "4 GPUs exchange every layer's results over PCIe" in finding.cause
        assert "custom all-reduce is off" in finding.cause
        assert flags(finding)[0] == ("--tensor-parallel-size", "4", "2")
        assert "60 % full (18.9 GB/s)" in texts(finding)

    def test_two_ranks_are_answered_with_two_replicas(self):
        traffic = [lambda now: 0.6 * 16 * LANE4 * now] * 2
        finding = Watch().run(120, group(2, **{**STEADY, "pcie_transmit_bytes_total": traffic}))["tp_pcie_slow"]
        assert finding.advice[0].text.startswith("run 2 replicas on 1 of the GPUs each")

    @pytest.mark.parametrize(
        ("more", "told"),
        [
            (
                {name("gpu_engine", gpu(1), server="127.0.0.1:9000", basis="process"): 1.0},
                "the engine 127.0.0.1:9000 uses GPU 1 too",
            ),
            (
                {
                    name("gpu_memory_engine_bytes", gpu(0), server=SERVER): 50.0 * GIB,
                    name("gpu_memory_other_bytes", gpu(0)): 20.0 * GIB,
                },
                "processes of no known engine use 20.0 GiB of GPU 0",
            ),
        ],
    )
    def test_the_bytes_may_be_those_of_another_program_on_the_same_cards(self, more, told):
        traffic = [lambda now: 0.6 * 16 * LANE4 * now] * 2
        live = {**group(2, **{**STEADY, "pcie_transmit_bytes_total": traffic}), **more}
        finding = Watch().run(120, live)["tp_pcie_slow"]
        assert "Or it is the traffic of another program on these GPUs" in finding.cause
        assert told in texts(finding)
        assert finding.confidence == 0.5
        assert finding.advice[0].text == "see whether the links stay full while only this engine uses its GPUs"

    def test_an_engine_without_requests_sends_nothing_over_the_links(self):
        other = {**ENGINE, "server": "127.0.0.1:9000"}
        traffic = [lambda now: 0.6 * 16 * LANE4 * now] * 2
        live = group(2, **{**STEADY, "pcie_transmit_bytes_total": traffic})
        live[name("gpu_engine", gpu(1), server="127.0.0.1:9000", basis="process")] = 1.0
        live |= {name(f"engine_requests_{what}", other): 0.0 for what in ("running", "waiting")}
        finding = Watch().run(120, live)["tp_pcie_slow"]
        assert finding.cause == "2 GPUs exchange every layer's results over PCIe, and wait while the bytes cross."
        assert finding.confidence == 0.75

    def full(self, ranks, tp, pp):
        traffic = [lambda now: 0.6 * 16 * LANE4 * now] * ranks
        live = group(ranks, **{**STEADY, "pcie_transmit_bytes_total": traffic})
        live[name("engine_config_tensor_parallel_size", CONFIG)] = float(tp)
        live[name("engine_config_pipeline_parallel_size", CONFIG)] = float(pp)
        return Watch().run(120, live)["tp_pcie_slow"]

    def test_the_present_values_are_those_of_the_engine_not_the_number_of_gpus(self):
        finding = self.full(4, tp=2, pp=2)
        assert finding.advice[0].text.startswith("run 2 replicas on 2 of the GPUs each")
        assert flags(finding)[:2] == [("--tensor-parallel-size", "2", "1"), ("--pipeline-parallel-size", "2", "4")]

    def test_fewer_than_two_replicas_are_not_proposed(self):
        finding = self.full(3, tp=3, pp=1)
        assert [advice.flag for advice in finding.advice] == ["--pipeline-parallel-size", ""]
        assert flags(finding)[0] == ("--pipeline-parallel-size", "1", "3")
        assert finding.advice[0].text.startswith("split the model by layers")

    def test_stages_of_one_gpu_each_exchange_no_layers(self):
        finding = self.full(2, tp=1, pp=2)
        assert "2 GPUs hand their results on over PCIe" in finding.cause
        assert [advice.text[:3] for advice in finding.advice] == ["use"]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_healthy_engine_under_load_has_no_finding(ranks):
    figures = {
        **STEADY,
        "sm_clock_hertz": 1755 * MHZ,
        "sm_clock_max_hertz": 1980 * MHZ,
        "pcie_link_width_max": 16.0,
        "pcie_link_generation_max": 4.0,
        "memory_free_bytes": 6.0 * GIB,
    }
    live = group(ranks, **figures)
    for index in range(ranks):
        live[name("gpu_throttle_seconds_total", gpu(index), reason="power")] = lambda now: 0.95 * now
        live[name("gpu_xid_errors_total", gpu(index), xid="79")] = 0.0
        live[name("gpu_state", gpu(index), state="ok")] = 1.0
    assert Watch().run(120, live).findings == ()
