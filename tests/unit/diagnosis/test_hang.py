"""Findings about ranks that wait for each other in a collective, and what only looks like it."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.groups import GIB, STEADY, after, group
from tests.unit.diagnosis.watch import ENGINE, SERVER, Watch, event, fact, flags, gpu, name, texts

OTHER = "127.0.0.1:9000"
LINE = (
    "[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={seq}, OpType=GATHER, NumelIn=8000, NumelOut=0, Timeout(ms)=600000) ran for 600327 milliseconds"
)


class TestHang:
    def frozen(self, busy, watts):
        live = group(2, **{**STEADY, "busy_ratio": list(busy), "power_watts": list(watts)})
        live[name("engine_page_frozen_seconds", ENGINE)] = lambda now: max(0.0, now - 20.0)
        return live

    def test_a_rank_that_does_not_come_is_named(self):
        watch = Watch().run(100, self.frozen(busy=(1.0, 0.0), watts=(150.0, 90.0)))
        assert watch.first_seen["nccl_hang"] == 66  # 30 seconds without a change from second 20 on, held for 15
        finding = watch["nccl_hang"]
        assert "(GPU 0 waits, GPU 1 has not come)" in finding.cause
        assert watch["engine_stalled"].caused_by == "nccl_hang"

    def stranger(self, *ranks, seen="other"):
        rows = {name("gpu_memory_engine_bytes", gpu(at), server=SERVER): 50.0 * GIB for at in range(2)}
        return rows | {name(f"gpu_memory_{seen}_bytes", gpu(at)): 20.0 * GIB * (at in ranks) for at in range(2)}

    @pytest.mark.parametrize(
        ("seen", "told"),
        [
            ("other", "processes of no known engine use 20.0 GiB of GPU 0"),
            ("unattributed", "no visible process owns 20.0 GiB of GPU 0"),
        ],
    )
    def test_a_program_of_no_known_engine_may_be_what_keeps_the_cards_busy(self, seen, told):
        live = {**self.frozen(busy=(1.0, 1.0), watts=(300.0, 300.0)), **self.stranger(0, 1, seen=seen)}
        finding = Watch().run(100, live)["nccl_hang"]
        assert "or the engine stands still and another program keeps its GPUs busy" in finding.cause
        assert told in texts(finding)
        assert finding.confidence == 0.5

    @pytest.mark.parametrize("busy", [(1.0, 1.0), (1.0, 0.0)])
    def test_a_card_that_spins_with_the_engine_alone_on_it_is_a_hang(self, busy):
        live = {**self.frozen(busy=busy, watts=(150.0, 90.0)), **self.stranger(1)}
        finding = Watch().run(100, live)["nccl_hang"]
        assert finding.cause.endswith(": GPUs are busy at little power, nothing moves.")

    def test_a_card_that_came_to_rest_a_moment_ago_does_not_spin(self):
        rests = self.frozen(busy=(1.0, lambda now: 0.9 if now < 20 else 0.0), watts=(300.0, 90.0))
        finding = Watch().run(67, {**rests, **self.stranger(0)})["nccl_hang"]
        assert "or the engine stands still and another program" in finding.cause

    def beside(self, running, *ranks):
        """Both cards busy, and another engine with `running` requests on `ranks`."""
        other = {**ENGINE, "server": OTHER, "model_name": "other"}
        live = self.frozen(busy=(1.0, 1.0), watts=(300.0, 300.0))
        live |= {name("engine_requests_running", other): float(running), name("engine_requests_waiting", other): 0.0}
        return live | {name("gpu_engine", gpu(at), server=OTHER, basis="process"): 1.0 for at in ranks}

    def test_an_engine_beside_one_that_computes_on_all_its_cards_is_only_stalled(self):
        assert Watch().run(100, self.beside(20, 0, 1)).ids == ["engine_stalled"]

    @pytest.mark.parametrize(("running", "ranks"), [(0, (0, 1)), (20, (1,))])
    def test_a_hang_is_found_beside_an_engine_at_rest_or_on_one_card_only(self, running, ranks):
        watch = Watch().run(100, self.beside(running, *ranks))
        assert watch.first_seen["nccl_hang"] == 66
        assert watch["engine_stalled"].caused_by == "nccl_hang"

    def test_two_engines_that_stand_still_on_the_same_cards_may_each_be_what_keeps_them_busy(self):
        live = self.beside(3, 0, 1)
        live[name("engine_page_frozen_seconds", {**ENGINE, "server": OTHER, "model_name": "other"})] = lambda now: max(
            0.0, now - 30.0
        )
        watch = Watch().run(100, live)
        hangs = [finding for finding in watch.findings if finding.id == "nccl_hang"]
        assert {finding.labels["server"] for finding in hangs} == {SERVER, OTHER}
        assert watch.first_seen["nccl_hang"] == 76  # once the other one has stood still for 30 seconds too, held for 15
        assert {finding.confidence for finding in hangs} == {0.5}
        own = next(finding for finding in hangs if finding.labels["server"] == SERVER)
        assert "or the engine stands still and another program keeps its GPUs busy" in own.cause
        assert f"the engine {OTHER}, on GPU 1 too, has not changed a value of its page for 68 s" in texts(own)

    def test_an_engine_at_rest_is_not_what_keeps_the_cards_busy_beside_one_that_stands_still(self):
        finding = Watch().run(100, self.beside(0, 0, 1))["nccl_hang"]
        assert finding.cause.endswith(": GPUs are busy at little power, nothing moves.")

    def test_an_engine_that_stands_still_with_idle_cards_is_stalled_only(self):
        watch = Watch().run(100, self.frozen(busy=(0.0, 0.0), watts=(90.0, 90.0)))
        assert watch.ids == ["engine_stalled"]

    def timed_out(self, seq, events=()):
        line = event("nccl_timeout", LINE.format(seq=seq), 50, seq=str(seq), op="GATHER")
        log = {"host": "h", "log": "/var/log/vllm.log", "server": SERVER}
        live = {**group(2, **STEADY), name("log_events_total", log, event="nccl_timeout"): after(50, 0, 1)}
        return Watch((), (line, *events)), live

    def test_the_first_collective_points_at_the_links(self):
        watch, live = self.timed_out(1)
        finding = watch.run(60, live)["nccl_hang"]
        assert watch.first_seen == {"nccl_hang": 50}
        assert "peer-to-peer between the GPUs does not work" in finding.cause
        assert flags(finding)[0] == ("NCCL_P2P_DISABLE", None, "1")

    def test_a_late_collective_points_at_a_stall_while_running(self):
        watch, live = self.timed_out(50404)
        finding = watch.run(60, live)["nccl_hang"]
        assert "number 50,404 (GATHER)" in finding.cause
        assert "not the network at start" in finding.cause
        # The call that hung is one of NCCL: a dying card is looked for before vLLM's own kernel is suspected.
        assert flags(finding) == [("", None, None), ("", None, None), ("--disable-custom-all-reduce", None, "(set)")]
        assert "Xid" in finding.advice[0].text

    @pytest.mark.parametrize(
        "known", [fact("engine", "sglang"), fact("flag.disable-custom-all-reduce", value=True), fact("flag.nnodes", 2)]
    )
    def test_where_the_custom_kernel_cannot_run_it_is_not_blamed(self, known):
        watch, live = self.timed_out(50404)
        finding = Watch((known,), watch.events).run(60, live)["nccl_hang"]
        assert "--disable-custom-all-reduce" not in [flag for flag, _, _ in flags(finding)]

    @pytest.mark.parametrize(("seq", "start"), [(4, True), (5, False)])
    def test_the_first_four_collectives_form_the_group(self, seq, start):
        watch, live = self.timed_out(seq)
        assert ("peer-to-peer" in watch.run(60, live)["nccl_hang"].cause) == start

    @pytest.mark.parametrize(
        ("kind", "cause", "minutes"),
        [
            ("nccl_timeout", "A collective of the ranks did not end in time. Which one it was is not known here.", 10),
            ("rendezvous_timeout", "The ranks never met: the group was not formed in time.", 5),
        ],
    )
    def test_a_line_that_is_only_counted_tells_nothing_of_power(self, kind, cause, minutes):
        log = {"host": "h", "log": "/var/log/vllm.log", "server": SERVER}
        live = {**group(2, **STEADY), name("log_events_total", log, event=kind): after(50, 0, 1)}
        finding = Watch().run(60, live)["nccl_hang"]
        assert finding.cause.startswith(cause)
        assert finding.confidence == 0.6
        assert f"lines of the engine's log that say so in {minutes} minutes: 1" in texts(finding)

    def test_a_failing_card_is_the_root(self):
        watch, live = self.timed_out(50404)
        live[name("gpu_xid_errors_total", gpu(1), xid="94")] = after(45, 0, 3)
        watch.run(60, live)
        assert watch.ids == ["xid_hardware", "nccl_hang"]
        assert watch["nccl_hang"].caused_by == "xid_hardware"
        assert "waits for GPU 1, which has a hardware fault (Xid 94)" in watch["nccl_hang"].cause
