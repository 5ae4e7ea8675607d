"""Cleaning, measuring and fitting text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.tui.draw.bars import cells, chart, meter, sparkline, stacked
from gpuwatch.tui.text import clean, crop, fit, line_width, plain, rule, width_of, wrap


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain text", "plain text"),
        ("\x1b[31mred\x1b[0m", "·[31mred·[0m"),
        ("a\tb", "a b"),
        ("a\r\nb", "a··b"),
        ("\x9b2J\x07\x00", "·2J··"),
        ("\u202egnp.exe", "·gnp.exe"),
        ("zero\u200bwidth\ufeff", "zero·width·"),
        ("\ud800", "·"),
        ("❤\ufe0f", "❤"),
        ("日本語", "日本語"),
        ("[bold red]x[/]", "[bold red]x[/]"),
    ],
)
def test_nothing_that_acts_on_a_terminal_survives_cleaning(raw, shown):
    assert clean(raw) == shown


@pytest.mark.parametrize(
    ("text", "width", "align", "shown"),
    [
        ("ab", 4, "<", "ab  "),
        ("ab", 4, ">", "  ab"),
        ("abcdef", 4, "<", "abc…"),
        ("名前名前", 5, "<", "名前…"),
        ("名前名前", 4, "<", "名 …"),
        ("abc", 0, "<", ""),
    ],
)
def test_text_fits_its_column_in_cells(text, width, align, shown):
    assert fit(text, width, align) == shown
    assert width_of(shown) == width


def test_a_cropped_line_says_that_something_is_missing():
    assert plain(crop((("abc", "a"), ("defgh", "b")), 6)) == "abcde…"
    assert plain(crop((("abc", "a"), ("def", "b")), 3)) == "ab…"
    assert plain(crop((("abc", "a"),), 3)) == "abc"


def test_wrapping_keeps_every_word_and_marks_what_was_left_out():
    assert wrap("the pool of 5,120 tokens holds", 12) == ["the pool of", "5,120 tokens", "holds"]
    assert wrap("one two three four", 9, 2) == ["one two", "three…"]
    assert "".join(wrap("x" * 25, 10)) == "x" * 25
    assert all(width_of(line) <= 10 for line in wrap("ab " + "名" * 30, 10))


@pytest.mark.parametrize("width", [10, 40, 80])
def test_a_rule_is_exactly_as_wide_as_asked(width):
    assert line_width(rule((("Findings of a long name", "title"),), width, (("1 critical", "dim"),))) == width


def test_a_meter_shows_eighths_and_an_unknown_ratio_is_no_zero():
    assert plain(meter(0.5, 10, "x")) == "▕████    ▏"
    assert plain(meter(0.97, 6, "x")) == "▕███▉▏"
    assert plain(meter(0.0001, 6, "x")) == "▕▏   ▏"
    assert plain(meter(0.0, 6, "x")) == "▕    ▏"
    assert plain(meter(None, 6, "x")) == "▕····▏"


def test_the_border_of_used_memory_does_not_depend_on_its_division():
    assert sum(cells([10, 20, 30.4], 100, 40)) == sum(cells([60.4], 100, 40)) == 24


def test_the_peak_is_marked_in_the_free_part_only():
    parts = [("█", "a", 50.0)]
    assert plain(stacked(parts, 100, 75, 12)) == "▕█████··╎··▏"
    assert plain(stacked(parts, 100, 40, 12)) == "▕█████·····▏"
    assert plain(stacked(parts, 100, None, 12)) == "▕█████·····▏"
    assert plain(stacked(parts, 100, 100, 12)) == "▕█████····╎▏"


def test_a_sparkline_starts_at_zero_and_leaves_gaps_for_missing_ticks():
    assert sparkline([0, None, 7, 3.5], 6) == "  ▁ █▅"
    assert sparkline([1, 2, 3], 2) == "▆█"
    assert sparkline([0.5], 1, 1.0) == "▅"
    assert sparkline([], 3) == "   "


def test_a_chart_has_the_highest_row_first():
    assert chart([0, 4, 2, None], 5, 2) == ["  █  ", " ▁██ "]


NUMBERS = st.floats() | st.sampled_from([-1.0, 0.0, 2.0**64, 1e308, 5e-324, float("inf"), float("-inf"), float("nan")])


@settings(deadline=None)
@given(NUMBERS | st.none(), st.integers(-3, 200))
def test_a_meter_is_as_wide_as_asked_whatever_the_ratio(ratio, width):
    assert line_width(meter(ratio, width, "x")) == max(width, 0)


@settings(deadline=None)
@given(st.lists(NUMBERS, max_size=8), NUMBERS, st.integers(-3, 200))
def test_cells_never_exceed_the_width_whatever_the_amounts(amounts, total, width):
    found = cells(amounts, total, width)
    assert len(found) == len(amounts)
    assert all(number >= 0 for number in found)
    assert sum(found) <= max(width, 0)


@settings(deadline=None)
@given(st.lists(NUMBERS, max_size=8), NUMBERS, NUMBERS | st.none(), st.integers(-3, 200))
def test_a_ledger_bar_is_as_wide_as_asked_whatever_the_amounts(amounts, total, peak, width):
    assert line_width(stacked([("█", "x", amount) for amount in amounts], total, peak, width)) == max(width, 0)


@settings(deadline=None)
@given(st.lists(NUMBERS | st.none(), max_size=60), st.integers(-3, 50), st.integers(-3, 9), NUMBERS | st.none())
def test_charts_are_as_large_as_asked_whatever_the_values(values, width, height, top):
    assert len(sparkline(values, width, top)) == max(width, 0)
    rows = chart(values, width, height, top)
    assert len(rows) == max(height, 0)
    assert all(len(row) == max(width, 0) for row in rows)


def test_parts_beyond_the_total_fill_the_bar_in_proportion():
    assert plain(stacked([("a", "x", 3e30), ("b", "x", 50.0)], 100, None, 14)) == "▕aaaaaaaabbbb▏"
