"""Units as a person reads them, and absent values that are never zeros."""

from __future__ import annotations

import math

import pytest

from gpuwatch import units as f

GIB = 1024**3


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (f.gib, 74.1 * GIB, "74.1"),
        (f.gib, 0.0, "0.0"),
        (f.size, 0, "0 B"),
        (f.size, 1000**3, "954 MiB"),
        (f.size, 512 * 1024**2, "512 MiB"),
        (f.size, 80 * GIB, "80.0 GiB"),
        (f.size, 1.5 * 1024 * GIB, "1.5 TiB"),
        (f.count, 4990, "4,990"),
        (f.count, math.inf, "∞"),
        (f.percent, 0.0, "0 %"),
        (f.percent, 0.001, "<1 %"),
        (f.percent, 0.9746, "97 %"),
        (f.percent, 0.999, ">99 %"),
        (f.percent, 1.0, "100 %"),
        (f.number, 0, "0"),
        (f.number, 0.001, "<0.01"),
        (f.number, 0.42, "0.42"),
        (f.number, 1.54, "1.5"),
        (f.number, 5.0, "5"),
        (f.number, 154.6, "155"),
        (f.number, 2310, "2,310"),
        (f.seconds, 0, "0 s"),
        (f.seconds, 0.0004, "0.4 ms"),
        (f.seconds, 0.212, "212 ms"),
        (f.seconds, 0.9996, "1.0 s"),
        (f.seconds, 1.2, "1.2 s"),
        (f.seconds, 41.4, "41 s"),
        (f.seconds, 80, "1 min 20 s"),
        (f.seconds, 60, "1 min"),
        (f.seconds, 7500, "2 h 5 min"),
        (f.seconds, 90000, "1 d 1 h"),
        (f.seconds, math.inf, "∞"),
        (f.age, 0.4, "0 s"),
        (f.age, 1.0, "1 s"),
        (f.age, -3, "0 s"),
        (f.age, 75, "1 min 15 s"),
        (f.megahertz, 1755e6, "1,755 MHz"),
        (f.watts, 612.4, "612 W"),
        (f.celsius, 64, "64 °C"),
    ],
)
def test_a_figure_reads_as_people_write_it(function, value, text):
    assert function(value) == text


@pytest.mark.parametrize(
    "function", [f.gib, f.size, f.count, f.percent, f.number, f.seconds, f.age, f.megahertz, f.watts, f.celsius]
)
@pytest.mark.parametrize("value", [None, math.nan])
def test_an_absent_figure_is_never_a_zero(function, value):
    assert function(value) == "n/a"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.97, "ratio", "97 %"),
        (26.0, "", "26"),
        (5120.0, "tokens", "5,120 tokens"),
        (155.2, "tokens/s", "155 tok/s"),
        (0.42, "per second", "0.42/s"),
        (3.2 * GIB, "bytes/s", "3.2 GiB/s"),
        (1.35, "cores", "1.4 cores"),
        ("auto", "", "auto"),
        (None, "bytes", "n/a"),
    ],
)
def test_evidence_carries_its_unit(value, unit, text):
    assert f.with_unit(value, unit) == text


def test_times_are_local(monkeypatch):
    assert f.clock(1_700_000_000_000) == "22:13:20"
    assert f.clock_short(1_700_000_000_000) == "22:13"
