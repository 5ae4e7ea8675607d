from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from gpuwatch.model import Reason, label, name_of
from gpuwatch.series import METRICS
from gpuwatch.sources.nvml.attribution import EngineProcess
from gpuwatch.sources.nvml.source import Timing

# What the fake H100 of tests/fakenvml/fakenvml.py must read as, worked out by hand from its raw numbers.
READINGS = [
    ("memory_total_bytes", {}, 85520809984),
    ("memory_used_bytes", {}, 73014444032),
    ("memory_reserved_bytes", {}, 535822336),
    ("memory_free_bytes", {}, 85520809984 - 73014444032 - 535822336),
    ("busy_ratio", {}, 0.97),
    ("memory_bandwidth_busy_ratio", {}, 0.61),
    ("sm_active_ratio", {}, 0.882),
    ("tensor_active_ratio", {}, 0.524),
    ("dram_active_ratio", {}, 0.637),
    ("sm_clock_hertz", {}, 1_755_000_000),
    ("sm_clock_max_hertz", {}, 1_980_000_000),
    ("memory_clock_hertz", {}, 2_619_000_000),
    ("power_watts", {}, 642.4),
    ("power_limit_watts", {}, 690.0),
    ("energy_joules_total", {}, 918273645.123),
    ("temperature_celsius", {}, 66),
    ("memory_temperature_celsius", {}, 71),
    ("throttle_seconds_total", {"reason": "power"}, 7.4),
    ("throttle_seconds_total", {"reason": "thermal"}, 7.5),
    ("throttle_seconds_total", {"reason": "sync_boost"}, 7.6),
    ("throttle_seconds_total", {"reason": "board_limit"}, 7.7),
    ("throttle_seconds_total", {"reason": "reliability"}, 7.9),
    ("throttle_seconds_total", {"reason": "sw_thermal"}, 269.0),
    ("throttle_seconds_total", {"reason": "hw_thermal"}, 270.0),
    ("throttle_seconds_total", {"reason": "power_brake"}, 271.0),
    ("clocks_event_active", {"reason": "sw_power_cap"}, 1),
    ("clocks_event_active", {"reason": "idle"}, 0),
    ("clocks_event_active", {"reason": "hw_thermal"}, 0),
    ("pcie_link_generation", {}, 4),
    ("pcie_link_generation_max", {}, 5),
    ("pcie_link_width", {}, 8),
    ("pcie_link_width_max", {}, 16),
    ("pcie_transmit_bytes_total", {}, 123456789),
    ("pcie_receive_bytes_total", {}, 98765432),
    ("pcie_replays_total", {}, 3),
    ("nvlink_transmit_bytes_total", {}, 4_000_000 * 1024),
    ("nvlink_receive_bytes_total", {}, 5_000_000 * 1024),
    ("ecc_errors_total", {"type": "corrected"}, 5),
    ("ecc_errors_total", {"type": "uncorrected"}, 1),
    ("row_remap_pending", {}, 0),
    ("row_remap_failed", {}, 0),
    ("recovery_action", {}, 0),
    ("xid_errors_total", {"xid": "79"}, 0),
    ("processes", {}, 0),
    ("memory_other_bytes", {}, 0),
    ("memory_unattributed_bytes", {}, 73014444032),
]


def test_every_reading_of_an_h100_arrives_in_base_units(machine, watch):
    watched = watch(machine(gpus=1))
    watched.until(lambda: watched.value("dram_active_ratio") is not None)
    for name, labels, expected in READINGS:
        assert watched.value(name, **labels) == pytest.approx(expected), (name, labels)
    assert watched.state() == "ok"
    assert watched.batch.absent == ()
    assert watched.labels("info") == {
        "__name__": "gpuwatch_gpu_info",
        "host": "node-1",
        "uuid": "GPU-fa4e0000-0000-0000-0000-000000000000",
        "gpu": "0",
        "name": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": "00000000:19:00.0",
        "driver_version": "580.95.05",
        "memory_kind": "dedicated",
        "architecture": "Hopper",
    }
    exported = {name_of(key) for key in watched.batch.keys}
    assert exported <= METRICS.keys()
    for key in watched.batch.keys:
        assert set(dict(key)) - {"__name__"} <= set(METRICS[name_of(key)].labels)


def test_keys_are_the_same_object_while_the_series_do_not_change(machine, watch):
    fake = machine(gpus=2)
    watched = watch(fake)
    watched.until(
        lambda: None not in (watched.value("dram_active_ratio", "0"), watched.value("dram_active_ratio", "1"))
    )
    before = watched.batch.keys
    fake.set(0, util_gpu=12)
    watched.until(lambda: watched.value("busy_ratio") == 0.12)
    assert watched.batch.keys is before
    fake.unset(0, "temp")
    watched.until(lambda: watched.value("temperature_celsius") is None)
    assert watched.batch.keys is not before


def test_a_memory_peak_between_two_ticks_is_seen(machine, watch):
    fake = machine(gpus=1)
    watched = watch(fake, timing=Timing(interval=1.0, start_wait=5.0))
    watched.until(lambda: watched.value("memory_used_high_bytes") == 73014444032)

    def peak_seen():
        fake.set(0, mem_used=80_000_000_000)
        time.sleep(0.25)
        fake.set(0, mem_used=70_000_000_000)
        for _ in range(60):
            watched.poll()
            shown = [watched.value(f"memory_used_{name}bytes") for name in ("high_", "", "low_")]
            if shown == [80_000_000_000, 70_000_000_000, 70_000_000_000]:
                return True
            time.sleep(0.03)
        return False

    assert any(peak_seen() for _ in range(10))  # a sampler that a busy machine holds up misses one
    watched.until(lambda: watched.value("memory_used_high_bytes") == 70_000_000_000)


def test_impossible_values_are_absent(machine, watch):
    fake = machine(gpus=1)
    fake.set(0, util_gpu=808, temp=2619)
    watched = watch(fake)
    watched.poll()
    assert watched.value("busy_ratio") is None
    assert watched.value("memory_bandwidth_busy_ratio") == 0.61
    assert watched.absent("busy_ratio") == (Reason.FAILED, "the driver reported an impossible value")
    assert watched.absent("temperature_celsius") == (Reason.FAILED, "the driver reported an impossible value")


@pytest.mark.parametrize(
    "memory",
    [{"mem_used": 2**60}, {"mem_used": 85_899_345_921, "mem_total": 85_899_345_920}, {"mem_total": 2**63}],
)
def test_memory_that_cannot_be_is_no_reading(machine, watch, memory):
    fake = machine(gpus=1)
    fake.set(0, **memory)
    watched = watch(fake)
    watched.poll()
    assert watched.value("memory_used_bytes") is None
    assert watched.value("memory_used_high_bytes") is None
    assert watched.absent("memory_used_bytes") == (Reason.FAILED, "the driver reported an impossible value")
    assert watched.state() == "ok"
    fake.set(0, mem_used=70_000_000_000, mem_total=85_899_345_920)
    watched.until(lambda: watched.value("memory_used_bytes") == 70_000_000_000)
    assert watched.value("memory_used_high_bytes") <= 70_000_000_000


def test_unsupported_values_are_absent_with_the_reason_and_the_rest_is_there(machine, watch):
    fake = machine(gpus=1)
    fake.unset(0, "temp", "ecc_corr_vol", "ecc_unc_vol", "remap_corr", "power_enforced")
    fake.field_set(0, f82="!3", f186="!3", f197="!3", f198="!3")
    watched = watch(fake)
    watched.poll()
    for name in ("temperature_celsius", "memory_temperature_celsius", "power_limit_watts", "row_remap_pending"):
        assert watched.value(name) is None
        assert watched.absent(name)[0] is Reason.NOT_SUPPORTED
    assert watched.value("ecc_errors_total") is None
    assert watched.value("pcie_receive_bytes_total") is None
    # Without the instantaneous field power comes from GetPowerUsage, which is a number of its own here.
    assert watched.value("power_watts") == pytest.approx(642.318)
    assert watched.state() == "ok"


def test_mig_devices_have_their_own_memory_and_an_instance_is_not_counted_twice(machine, watch):
    fake = machine(gpus=1)
    first = fake.mig(0, slot=1, gi=3, ci=0, total=10 << 30, used=1 << 30)
    second = fake.mig(0, slot=2, gi=3, ci=1, total=10 << 30, used=1 << 30)
    third = fake.mig(0, slot=5, gi=4, ci=0, total=20 << 30, used=7 << 30)
    fake.process(0, os.getpid(), memory=5 << 30, gi=4, ci=0)
    watched = watch(fake)
    watched.until(lambda: watched.value("memory_used_bytes", "0:5") is not None)
    assert watched.labels("info", "0:5")["uuid"] == third
    assert watched.labels("info", "0:5")["memory_kind"] == "mig"
    assert watched.labels("info", "0:5")["name"] == "NVIDIA H100 MIG 1g.10gb"
    assert watched.value("memory_used_bytes", "0:5") == 7 << 30
    assert watched.value("memory_other_bytes", "0:5") == 5 << 30
    assert watched.value("memory_unattributed_bytes", "0:5") == 2 << 30
    assert {watched.labels("info", f"0:{slot}")["uuid"] for slot in (1, 2)} == {first, second}
    memory = [watched.value("memory_used_bytes", f"0:{slot}") for slot in (1, 2)]
    assert memory == [1 << 30, None]
    assert watched.value("busy_ratio") is None
    assert watched.absent("busy_ratio")[0] is Reason.NOT_SUPPORTED
    assert watched.value("memory_used_bytes") == 73014444032


def test_mig_devices_that_are_destroyed_disappear(machine, watch):
    fake = machine(gpus=1)
    fake.mig(0, slot=0, gi=1, ci=0, total=10 << 30, used=1 << 30)
    watched = watch(fake)
    watched.until(lambda: watched.state("0:0") == "ok")
    fake.gpus[0].migs.clear()
    fake.set(0, mig_mode=0)
    watched.until(lambda: watched.names("0:0") == set())
    assert watched.state() == "ok"


def test_unified_memory_is_the_machines_and_says_so(machine, watch):
    fake = machine(gpus=1)
    fake.unset(0, "mem_total", "mem_used", "mem_reserved", "power_enforced")
    fake.set(0, name="NVIDIA GB10", arch=10)
    watched = watch(fake)
    watched.poll()
    assert watched.labels("info")["memory_kind"] == "unified"
    assert watched.labels("info")["architecture"] == "Blackwell"
    assert watched.value("memory_total_bytes") == psutil.virtual_memory().total
    assert 0 < watched.value("memory_used_bytes") < psutil.virtual_memory().total
    assert watched.absent("memory_reserved_bytes")[0] is Reason.NOT_SUPPORTED
    assert watched.value("memory_unattributed_bytes") is None
    assert watched.state() == "ok"


def test_a_driver_that_reports_the_machines_memory_for_a_gb10_is_unified_too(machine, watch):
    fake = machine(gpus=1)
    fake.set(0, name="NVIDIA GB10", mem_total=psutil.virtual_memory().total, mem_used=1 << 30)
    watched = watch(fake)
    watched.poll()
    assert watched.labels("info")["memory_kind"] == "unified"


def test_a_memory_call_that_fails_does_not_make_a_card_unified(machine, watch):
    fake = machine(gpus=1)
    fake.set(0, mem_total="!999")
    watched = watch(fake)
    watched.poll()
    assert watched.labels("info")["memory_kind"] == "dedicated"
    assert watched.value("memory_used_bytes") is None
    assert watched.absent("memory_used_bytes") == (Reason.FAILED, "NVML error 999")
    assert watched.value("busy_ratio") == 0.97


def test_a_name_that_is_not_utf8_does_not_hide_the_card(machine, watch):
    fake = machine(gpus=1)
    fake.set(0, name="NVIDIA \udcff9000")
    watched = watch(fake)
    watched.poll()
    assert watched.labels("info")["name"] == "NVIDIA �9000"
    assert watched.value("busy_ratio") == 0.97


def test_r470_reads_used_memory_with_the_reserve_and_says_that_the_reserve_is_unknown(machine, watch):
    fake = machine(gpus=1, variant="r470")
    fake.system_set(driver_version="470.256.02")
    fake.process(0, os.getpid(), memory=3 << 30)
    watched = watch(fake)
    watched.poll()
    assert watched.value("memory_used_bytes") == 73014444032 + 535822336
    assert watched.value("memory_reserved_bytes") is None
    assert watched.absent("memory_reserved_bytes")[0] is Reason.NOT_SUPPORTED
    assert watched.value("clocks_event_active", reason="sw_power_cap") == 1
    assert watched.value("sm_active_ratio") is None
    assert watched.value("memory_other_bytes") == 3 << 30
    assert watched.value("throttle_seconds_total", reason="hw_thermal") is None


def test_the_32_byte_process_struct_of_r535_54_is_read_right(machine, watch):
    fake = machine(gpus=1, variant="r535")
    fake.system_set(driver_version="535.54.03", abi_proc_v3=32)
    pids = [os.getpid(), os.getppid(), 1]
    for number, pid in enumerate(pids):
        fake.process(0, pid, memory=(number + 1) << 30)
    watched = watch(fake)
    watched.poll()
    assert watched.value("processes") == len(set(pids))
    assert watched.value("memory_other_bytes") == 6 << 30


def test_more_processes_than_the_first_buffer_holds(machine, watch):
    fake = machine(gpus=1)
    for pid in range(900_001, 900_061):
        fake.process(0, pid, memory=1 << 20)
    for pid in range(910_001, 910_004):
        fake.process(0, pid, memory=1 << 20, kind="G")
    watched = watch(fake)
    watched.poll()
    assert watched.value("processes") == 63


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("570.86.10", None),
        ("575.57.08", 252.0),
        ("580.65.06", 252.0),
        ("580.76.05", None),
        ("580.82.07", 270.0),
        ("590.44.01", 270.0),
    ],
)
def test_throttle_field_ids_follow_the_driver_version(machine, watch, driver, expected):
    fake = machine(gpus=1)
    fake.system_set(driver_version=driver)
    watched = watch(fake)
    watched.poll()
    assert watched.value("throttle_seconds_total", reason="hw_thermal") == expected
    assert watched.value("throttle_seconds_total", reason="thermal") == 7.5


def test_processes_are_attributed_to_the_engine_whose_tree_they_are_in(machine, watch):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    root = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 5
        while not (children := psutil.Process(root.pid).children()) and time.monotonic() < deadline:
            time.sleep(0.02)
        worker = children[0].pid
        fake = machine(gpus=2)
        fake.process(0, worker, memory=50 << 30)
        fake.process(0, os.getpid(), memory=1 << 30)
        fake.process(1, os.getpid())
        engine = EngineProcess("127.0.0.1:8000", root.pid, frozenset({root.pid}))
        watched = watch(fake, engines=lambda: (engine,))
        watched.poll()
        assert watched.value("memory_engine_bytes", server="127.0.0.1:8000") == 50 << 30
        assert watched.value("engine", server="127.0.0.1:8000", basis="process") == 1
        assert watched.value("memory_other_bytes") == 1 << 30
        assert watched.value("memory_unattributed_bytes") == 73014444032 - (51 << 30)
        assert watched.value("engine", "1") is None
        # The driver does not know this process's memory, so neither sum is known.
        assert watched.value("memory_other_bytes", "1") is None
        assert watched.value("memory_unattributed_bytes", "1") is None
        assert watched.value("processes", "1") == 1
    finally:
        root.communicate(b"\n", timeout=5)


def test_xids_are_counted_once_and_start_at_zero(machine, watch):
    fake = machine(gpus=2)
    watched = watch(fake)
    watched.until(lambda: watched.value("xid_errors_total", "1", xid="79") == 0)
    assert watched.value("xid_last_time_seconds", "1") is None
    started = time.time()
    fake.xid(1, 79)
    watched.until(lambda: watched.value("xid_errors_total", "1", xid="79") == 1)
    assert started - 1 < watched.value("xid_last_time_seconds", "1", xid="79") < time.time() + 1
    assert watched.value("xid_errors_total", "0", xid="79") == 0
    # Other events carry data 0 and are no Xid 0; a code outside the list is seen at 0 before it counts.
    fake.xid(0, 0, event_type=2)
    fake.xid(0, 999)
    seen = []
    watched.until(lambda: seen.append(watched.value("xid_errors_total", "0", xid="999")) or seen[-1] == 1)
    assert [value for value in seen if value is not None] == [0, 1]
    assert watched.value("xid_errors_total", "0", xid="0") is None
    assert watched.value("xid_errors_total", "1", xid="79") == 1


def test_labels_of_all_series_are_known_to_the_vocabulary(machine, watch):
    fake = machine(gpus=1)
    fake.process(0, os.getpid(), memory=1)
    fake.set(0, dev_err=15)
    watched = watch(fake)
    watched.poll()
    for key in watched.batch.keys:
        assert label(key, "host") == "node-1"
        assert set(dict(key)) - {"__name__"} <= set(METRICS[name_of(key)].labels)


def test_readings_that_cannot_be_had_are_series_with_their_reason(machine, watch):
    fake = machine(gpus=2)
    fake.set(0, util_gpu="!4")
    watched = watch(fake)
    watched.until(lambda: watched.value("reading_absent", reading="busy_ratio") == 1)
    assert watched.value("reading_absent", reading="busy_ratio", reason="no_permission") == 1
    assert watched.value("reading_absent", "1") is None
    fake.set(0, util_gpu=50)
    watched.until(lambda: watched.value("reading_absent", reading="busy_ratio") is None)


def test_processes_that_the_process_table_does_not_show_are_counted(machine, watch):
    fake = machine(gpus=1)
    fake.process(0, os.getpid(), memory=1 << 30)
    fake.process(0, 2**22 + 7, memory=2 << 30)  # beyond the highest process id that Linux gives
    watched = watch(fake)
    watched.until(lambda: watched.value("processes") == 2)
    assert watched.value("processes_hidden") == 1


def test_the_default_power_limit_is_read_beside_the_limit_in_force(machine, watch):
    watched = watch(machine(gpus=1))
    watched.until(lambda: watched.value("power_limit_default_watts") is not None)
    assert (watched.value("power_limit_watts"), watched.value("power_limit_default_watts")) == (690, 700)
