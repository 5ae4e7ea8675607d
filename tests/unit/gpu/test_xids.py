"""Xids from NVML and from the kernel's log: each is counted once, whoever tells it first."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from gpuwatch.diagnosis.xid_table import TABLE
from gpuwatch.sources.nvml.gpus import XIDS
from gpuwatch.sources.nvml.xids import SAME_MS, XidCounts, pci_address

AT = 1_760_000_000_000


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("PCI:0000:19:00", "0000:19:00"),
        ("PCI:0000:9c:00.0", "0000:9c:00"),
        ("00000000:9C:00.0", "0000:9c:00"),
        ("00010000:01:1f.7", "10000:01:1f"),
        ("0000:01:00", "0000:01:00"),
        ("", ""),
        ("PCI:nonsense", ""),
        ("19:00.0", ""),
    ],
)
def test_an_address_is_the_same_however_it_is_printed(text, address):
    assert pci_address(text) == address


def test_an_xid_that_both_tell_counts_once():
    xids = XidCounts()
    assert xids.add(79, AT, "nvml")
    assert not xids.add(79, AT + 900, "kernel")
    assert xids.counts[79] == (1, AT)


def test_a_burst_that_both_tell_in_any_order_counts_each_once():
    xids = XidCounts()
    for offset in (0, 10, 20):
        xids.add(13, AT + offset, "kernel")
    for offset in (5, 15, 25):
        xids.add(13, AT + offset, "nvml")
    assert xids.counts[13][0] == 3
    xids.add(13, AT + 30, "kernel")  # one that NVML did not deliver
    assert xids.counts[13][0] == 4


def test_repeats_of_one_way_all_count_and_codes_do_not_mix():
    xids = XidCounts()
    for offset in range(4):
        xids.add(31, AT + offset, "kernel")
    xids.add(43, AT, "nvml")
    assert {code: count for code, (count, _) in xids.counts.items()} == {31: 4, 43: 1}


def test_the_same_number_much_later_is_another_event():
    xids = XidCounts()
    xids.add(79, AT, "nvml")
    assert xids.add(79, AT + SAME_MS + 1, "kernel")
    assert xids.counts[79] == (2, AT + SAME_MS + 1)


def test_the_source_counts_what_the_kernel_tells_of_its_cards(machine, watch):
    watched = watch(machine(gpus=2))
    watched.until(lambda: watched.state("1") == "ok")
    now = time.time_ns() // 1_000_000
    assert watched.source.saw_xid("0000:29:00", 79, now)  # the second card of the fake
    assert not watched.source.saw_xid("0000:99:00", 79, now)
    watched.until(lambda: watched.value("xid_errors_total", "1", xid="79") == 1)
    assert watched.value("xid_errors_total", "0", xid="79") == 0
    assert watched.value("xid_last_time_seconds", "1", xid="79") == pytest.approx(now / 1000)


def test_what_nvml_delivers_as_well_is_not_counted_again(machine, watch):
    fake = machine(gpus=1)
    watched = watch(fake)
    watched.until(lambda: watched.state() == "ok")
    fake.xid(0, 94)
    watched.until(lambda: watched.value("xid_errors_total", xid="94") == 1)
    assert watched.source.saw_xid("0000:19:00", 94, time.time_ns() // 1_000_000)
    assert watched.source.saw_xid("0000:19:00", 63, time.time_ns() // 1_000_000)
    watched.until(lambda: watched.value("xid_errors_total", xid="63") == 1)
    assert watched.value("xid_errors_total", xid="94") == 1


def test_every_xid_that_is_known_or_that_a_rule_names_is_at_zero_from_the_start():
    rules = (Path(__file__).resolve().parents[3] / "rules" / "gpu.yml").read_text()
    forms = re.findall(r'gpuwatch_gpu_xid_errors_total\{xid=~"([^"]+)"\}', rules)
    assert forms
    named = {code for code in range(1000) for form in forms if re.fullmatch(form, str(code))}
    assert named <= set(XIDS)
    assert set(TABLE) == set(XIDS)
    assert list(XIDS) == sorted(set(XIDS))
