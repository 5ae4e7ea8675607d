"""Real vLLM servers of one and two ranks, with fake GPUs that a scenario makes ill: what is found, and how fast.

The seconds from the cause to the finding are printed as a table at the end of the run. Bounds are those that are
promised for 1 Hz, plus what a machine may add that does other things at the same time (`detected.GRACE_SECONDS`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from detected import detect
from fakenvml.machine import FakeNvml
from follow import Follow
from simulated_gpus import GIB, SimulatedGpus
from vllm_server import Load, VllmServer, tokens

AMPLE = ["--max-model-len", "4096", "--num-gpu-blocks-override", "400", "--max-num-seqs", "8"]
TINY = ["--max-model-len", "4096", "--num-gpu-blocks-override", "40", "--max-num-seqs", "16"]
LONG = [
    "--max-model-len", "32768", "--num-gpu-blocks-override", "1200", "--max-num-seqs", "8",
    "--max-num-batched-tokens", "4096", "--no-enable-prefix-caching",
]  # fmt: skip
PAIR = "vLLM 0.32, 2 ranks"
SINGLE = "vLLM 0.32, 1 rank"
WARM_TOKENS = 10_500
BUSY_SECONDS = 65.0
"""A load that has gone on for so long fills the minute over which the rules average how busy a GPU is."""
PREFIX_FINDINGS = {"prefix_cache_zero_hit", "prefix_cache_collapse", "prefix_metrics_wrong"}


class Restartable:
    """A server that can be started again at the same address, with the same log file."""

    def __init__(self, folder: Path, flags: list[str], ranks: int) -> None:
        self.folder = folder
        self.ranks = ranks
        self.flags = flags
        self.server = VllmServer(flags, folder / "vllm.log", ranks)

    def again(self, flags: list[str]) -> None:
        """Start a new one; the old one must have ended."""
        self.flags = flags
        self.server = VllmServer(flags, self.folder / "vllm.log", self.ranks, port=self.server.port)

    def need(self, flags: list[str]) -> None:
        """Have one with these flags that serves."""
        if self.flags != flags:
            self.server.stop()
            self.again(flags)
            self.server.wait_ready()
            self.server.complete(tokens(400, 1), 30)


def serve(folder: Path, flags: list[str], ranks: int):
    held = Restartable(folder, flags, ranks)
    try:
        held.server.wait_ready()
        for seed in range(3):  # the first requests compile kernels
            held.server.complete(tokens(400, seed), 30)
        yield held
    finally:
        held.server.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    yield from serve(tmp_path_factory.mktemp("pair"), AMPLE, ranks=2)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    yield from serve(tmp_path_factory.mktemp("long"), LONG, ranks=1)


@contextmanager
def watched(server: VllmServer, folder: Path, gpus: int = 2):
    """Yield the simulated GPUs of a server and somebody who watches both, who has begun."""
    folder.mkdir(exist_ok=True)
    fake = FakeNvml(folder / "gpus", gpus=gpus)
    simulated = SimulatedGpus(fake, server, gpus)
    simulated.start()
    try:
        with Follow("--engine", server.url, "--log", str(server.log), env=fake.env()) as follow:
            follow.lead(0)
            yield simulated, follow
    finally:
        simulated.close()


@contextmanager
def steady(server: VllmServer, clients: int = 2):
    load = Load()
    load.steady(server, clients, 500, 150, shared=256)
    try:
        yield load
    finally:
        load.stop(timeout=10)


# --- a healthy pair, and faults of its GPUs ---------------------------------------------------------------------------


def test_two_healthy_ranks_under_load_raise_nothing(pair, tmp_path):
    with watched(pair.server, tmp_path) as (_, follow), steady(pair.server):
        follow.lead(40)
        assert follow.ever() == []


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong with GPU 1. `lead` seconds are watched before, `limit` is what is promised."""

    id: str
    limit: float
    make: Callable[[SimulatedGpus], None]
    lead: float = 20.0
    below: tuple[str, ...] = ()
    """Findings that may come with it, and then as its symptoms."""


def lock_clocks(gpus: SimulatedGpus) -> None:
    """Somebody locked the clocks of one card: no throttle counter moves."""
    gpus.hold(1, clk_sm=1200, throttle=0x2)


def overheat(gpus: SimulatedGpus) -> None:
    gpus.hold(1, clk_sm=1110, throttle=0x40, temp=91)
    gpus.throttle(1, "hw_thermal", 0.9)


def lose_lanes(gpus: SimulatedGpus) -> None:
    gpus.hold(1, pcie_width=4)


def leak(gpus: SimulatedGpus) -> None:
    gpus.grow(1, 0.015 * GIB)


def fall_off_the_bus(gpus: SimulatedGpus) -> None:
    gpus.fake.xid(1, 79)
    gpus.hold(1, dev_err=15)


def hang_driver(gpus: SimulatedGpus) -> None:
    gpus.fake.fail("nvmlDeviceGetMemoryInfo_v2", gpu=1, delay_ms=60_000)


def take_memory(gpus: SimulatedGpus) -> None:
    """A foreign process takes 4 GiB of one card."""
    gpus.fake.process(1, 1, memory=4 * GIB)
    gpus.hold(1, mem_used=int(77.3 * GIB))


QUICK = (
    Fault("xid_hardware", 15, fall_off_the_bus, below=("gpu_lost",)),
    Fault("xid_software", 15, lambda gpus: gpus.fake.xid(1, 31)),
    Fault("gpu_lost", 15, lambda gpus: gpus.hold(1, dev_err=15)),
    Fault("driver_unresponsive", 15, hang_driver),
)
SLOW = (
    Fault("throttling", 30, overheat, lead=BUSY_SECONDS, below=("tp_straggler",)),
    Fault("tp_straggler", 120, lock_clocks, lead=BUSY_SECONDS),
    Fault("pcie_degraded", 30, lose_lanes, lead=BUSY_SECONDS, below=("tp_straggler",)),
    Fault("gpu_memory_growth", 120, leak, lead=125.0, below=("gpu_headroom_low", "tp_imbalance")),
)


def suffer(fault: Fault, server: VllmServer, folder: Path, results: dict, ready: threading.Barrier) -> None:
    """Run one fault with a machine and a watcher of its own; put the view, or what went wrong, into `results`.

    At `ready` all watchers have begun, and the load may.
    """
    try:
        with watched(server, folder) as (gpus, follow):
            ready.wait()
            follow.lead(fault.lead)
            before = follow.ever(above_info=True)
            since = time.time()
            fault.make(gpus)
            view = detect(follow, fault.id, ("GPU 1 of two", PAIR), since, fault.limit)
            time.sleep(3)
            results[fault.id] = (before, view, follow.ever(since, above_info=True))
    except Exception as error:  # noqa: BLE001  # told to the test that asks for this fault
        results[fault.id] = error
        ready.abort()


def together(faults: tuple[Fault, ...], server: VllmServer, folder: Path) -> dict:
    """Run faults at the same time beside one load: each has GPUs and a watcher of its own."""
    results: dict = {}
    ready = threading.Barrier(len(faults) + 1, timeout=300)
    threads = [threading.Thread(target=suffer, args=(f, server, folder / f.id, results, ready)) for f in faults]
    for thread in threads:
        thread.start()
    with suppress(threading.BrokenBarrierError):  # the thread that broke it tells why
        ready.wait()
    with steady(server, clients=5):
        for thread in threads:
            thread.join(300)
    return results


@pytest.fixture(scope="module")
def quick(pair, tmp_path_factory):
    return together(QUICK, pair.server, tmp_path_factory.mktemp("quick"))


@pytest.fixture(scope="module")
def slow(pair, tmp_path_factory):
    return together(SLOW, pair.server, tmp_path_factory.mktemp("slow"))


def judge(fault: Fault, result) -> dict:
    """Check one fault and return its finding."""
    if isinstance(result, Exception):
        raise result
    before, view, after = result
    assert before == []
    assert view.firing()[0] == fault.id
    assert set(after) <= {fault.id, *fault.below}
    finding = view.finding(fault.id)
    assert finding["labels"].get("gpu", "1") == "1"
    assert finding["evidence"]
    return finding


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.id)
def test_a_sudden_fault_of_one_gpu_is_named_first_and_alone(quick, fault):
    judge(fault, quick[fault.id])


@pytest.mark.parametrize("fault", SLOW, ids=lambda fault: fault.id)
def test_a_lasting_fault_of_one_gpu_is_named_first_and_alone(slow, fault):
    judge(fault, slow[fault.id])


# --- workers that stop, die and come back -----------------------------------------------------------------------------


def test_a_stopped_worker_is_a_stall_and_over_when_it_goes_on(pair, tmp_path):
    with watched(pair.server, tmp_path) as (_, follow), steady(pair.server):
        follow.lead()
        until_warm(pair.server, 120)
        assert follow.ever() == []
        worker = pair.server.workers()[1]
        # The page says how many run as of its last step, none between two short requests: one runs all the time.
        held = Load()
        held.burst(pair.server, 1, 100, 3000)
        time.sleep(3)
        since = time.time()
        worker.suspend()
        try:
            view = detect(follow, "engine_stalled", ("worker stopped (SIGSTOP)", PAIR), since, 15)
        finally:
            worker.resume()
            held.stop(timeout=1)
        assert view.firing() == ["engine_stalled"]
        assert "engine_down" not in follow.ever()
        follow.wait_gone("engine_stalled", 60)


def until_warm(server: VllmServer, seconds: float) -> None:
    """Wait until the engine has generated so many tokens that silence is no longer taken for compiling."""
    deadline = time.monotonic() + seconds
    while server.page()("vllm:generation_tokens_total") <= WARM_TOKENS:
        assert time.monotonic() < deadline, f"fewer than {WARM_TOKENS} tokens within {seconds} s"
        time.sleep(1)


def test_a_killed_worker_takes_the_engine_down_and_a_restart_raises_nothing(pair, tmp_path):
    with watched(pair.server, tmp_path) as (gpus, follow):
        with steady(pair.server):
            follow.lead(15)
            assert follow.ever() == []
            pair.server.workers()[1].kill()
            pair.server.process.wait(60)
            gpus.free()
            gone = time.time()
        view = detect(follow, "engine_down", ("worker killed, server ends", PAIR), gone, 15)
        assert view.firing()[0] in ("engine_down", view.finding("engine_down")["caused_by"])
        pair.server.stop()
        pair.again(TINY)
        pair.server.wait_ready()
        gpus.hand_to(pair.server)
        follow.wait_gone("engine_down", 30)
        follow.wait_gone("worker_died", 30)
        back = time.time()
        pair.server.complete(tokens(400, 1), 30)
        time.sleep(15)
        assert follow.ever(back) == []


def test_a_storm_on_two_ranks_is_first_and_its_gpus_are_blamed_for_nothing(pair, tmp_path):
    pair.need(TINY)
    load = Load()
    with watched(pair.server, tmp_path) as (_, follow):
        follow.lead()
        begun = time.time()
        load.burst(pair.server, 16, 600, 1500)
        since = second_eviction(pair.server, 60)
        view = detect(follow, "kv_preemption_storm", ("16 requests on 5,120 tokens", PAIR), since, 15, begun=begun)
        time.sleep(20)
        seen = follow.ever(above_info=True)
    load.stop(timeout=1)
    assert view.firing()[0] == "kv_preemption_storm"
    assert set(seen) <= {"kv_preemption_storm", "queue_growth", "throughput_collapse", "kv_block_waste"}


def test_a_storm_that_breaks_into_a_load_is_not_hidden_by_what_finished_before(pair, tmp_path):
    pair.need(TINY)
    until_idle(pair.server, 120)
    load = Load()
    with watched(pair.server, tmp_path) as (_, follow), steady(pair.server):
        follow.lead(45)
        assert follow.ever() == []
        begun = time.time()
        load.burst(pair.server, 16, 600, 1500, seed=3)
        since = second_eviction(pair.server, 60)
        view = detect(follow, "kv_preemption_storm", ("the same, into a load", PAIR), since, 15, begun=begun)
    load.stop(timeout=1)
    assert view.firing()[0] == "kv_preemption_storm"
    assert set(follow.ever(begun, above_info=True)) <= {"kv_preemption_storm", "queue_growth", "throughput_collapse"}


def until_idle(server: VllmServer, seconds: float) -> None:
    """Wait until no request is open."""
    deadline = time.monotonic() + seconds
    while (page := server.page())("vllm:num_requests_running") + page("vllm:num_requests_waiting") > 0:
        assert time.monotonic() < deadline, f"requests still open after {seconds} s"
        time.sleep(1)


def second_eviction(server: VllmServer, seconds: float) -> float:
    """Return when a second request had left the batch for the queue, seen from outside: one is no storm."""
    before, evicted = None, 0.0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        page = server.page()
        now = (page("vllm:num_requests_running"), page("vllm:request_success_total"))
        if before is not None:
            evicted += max(0.0, before[0] - now[0] - (now[1] - before[1]))
        if evicted >= 2:
            return time.time()
        before = now
        time.sleep(0.25)
    raise AssertionError(f"{evicted:.0f} requests were evicted within {seconds} s")


# --- long prompts, and no prefix cache --------------------------------------------------------------------------------


def test_repeated_prompts_without_a_prefix_cache_raise_no_prefix_finding(long, tmp_path):
    with watched(long.server, tmp_path, gpus=1) as (_, follow):
        follow.lead(3)
        prompt = tokens(2000, 7)
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            long.server.complete(prompt, 8)
        assert not PREFIX_FINDINGS & set(follow.ever())
        assert follow.ever(above_info=True) == []


def test_long_prompts_that_hold_up_running_answers_are_head_of_line(long, tmp_path):
    load = Load()
    with watched(long.server, tmp_path, gpus=1) as (_, follow):
        load.steady(long.server, 4, 100, 3000)
        follow.lead(45)
        before = follow.ever(above_info=True)
        long_prompts = Load()
        since = time.time()
        long_prompts.burst(long.server, 2, 30_000, 4, seed=9)
        view = detect(follow, "head_of_line", ("2 prompts of 30,000 tokens", SINGLE), since, 30)
    load.stop(timeout=1)
    long_prompts.stop(timeout=1)
    assert before == []
    assert view.firing()[0] == "head_of_line"
    flags = {item["flag"] for item in view.finding("head_of_line")["advice"]}
    assert flags & {"--max-num-batched-tokens", "--long-prefill-token-threshold", "--max-num-partial-prefills"}
