"""Prompts: no stray digits, facts where they belong, the same question for the same seed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.probes.haystack import NAMES, contradiction, digits, needle, place, record, seeded, sentences
from gpuwatch.probes.heatmap import heat_map, shade
from gpuwatch.probes.statistics import Share


def numbers(text):
    return re.findall(r"[0-9]+", text)


def test_the_filler_has_no_digit_and_no_name_of_a_fact():
    text = " ".join(sentences(seeded("filler"), 2000))
    assert not numbers(text)
    assert not any(name in text for name in NAMES)


def test_facts_stand_at_their_depth():
    filler = ["a.", "b.", "c.", "d."]
    assert place(filler, [(0.0, "X"), (1.0, "Y")]) == "X a. b. c. d. Y"
    assert place(filler, [(0.5, "X")]) == "a. b. X c. d."
    assert place(filler, [(0.5, "X"), (0.5, "Y")]) == "a. b. X Y c. d."
    assert place([], [(0.5, "X")]) == "X"


@given(st.integers(0, 60), st.floats(0, 1), st.integers(0, 5), st.integers(0, 1000))
def test_a_needle_stands_once_among_its_distractors(filler, depth, distractors, seed):
    question = needle(seeded(seed), filler, depth, 7, distractors)
    assert sorted(numbers(question.prompt)) == sorted([question.expected, *question.others])
    assert len({question.expected, *question.others}) == 1 + distractors
    name = re.search(r"Answer: The access number of (\w+) is$", question.prompt)
    assert f"The access number of {name[1]} is {question.expected}." in question.prompt


def test_the_same_seed_asks_the_same_question_and_another_one_another():
    assert needle(seeded(1, 0.5), 20, 0.5) == needle(seeded(1, 0.5), 20, 0.5)
    assert needle(seeded(1, 0.5), 20, 0.5) != needle(seeded(2, 0.5), 20, 0.5)


@pytest.mark.parametrize("last", [True, False])
def test_a_contradiction_asks_for_one_of_two_numbers_by_position(last):
    question = contradiction(seeded("order"), 30, (0.1, 0.9), last)
    first, second = numbers(question.prompt)
    assert (question.expected, question.others) == ((second, (first,)) if last else (first, (second,)))
    body = question.prompt.split("\n\n")[1]
    assert body.index(first) < len(body) / 3
    assert body.index(second) > 2 * len(body) / 3


@pytest.mark.parametrize("length", [8, 12, 20])
def test_a_record_asks_for_one_of_many_strings(length):
    question = record(seeded("digits", length), 24, length, 12)
    assert len(question.others) == 11
    assert all(len(number) == length for number in (question.expected, *question.others))
    asked = re.search(r"Answer: The record of (\w+) is$", question.prompt)[1]
    assert f"The record of {asked} is {question.expected}." in question.prompt


def test_numbers_have_their_length_and_no_leading_zero():
    rng = seeded("numbers")
    found = [digits(rng, 8) for _ in range(200)]
    assert all(re.fullmatch(r"[1-9][0-9]{7}", number) for number in found)
    with pytest.raises(ValueError, match="1 digits"):
        digits(rng, 1)


@pytest.mark.parametrize(
    ("ratio", "shown"), [(None, "··"), (0.0, "  "), (0.2, "░░"), (0.5, "▒▒"), (0.8, "▓▓"), (0.99, "▓▓"), (1.0, "██")]
)
def test_shades_grow_with_the_share_and_only_all_is_full(ratio, shown):
    assert shade(ratio) == shown


def test_a_heat_map_has_a_row_for_each_depth_and_a_dot_where_nothing_was_measured():
    cells = {(1024, 0): Share(5, 5), (1024, 50): Share(0, 5), (2048, 0): Share(2, 4)}
    lines = heat_map(cells, [1024, 2048], [0, 50], ("depth", lambda row: f"{row} %", lambda column: f"{column:,}"))
    assert lines == (
        "depth    1,024    2,048",
        "  0 %   ██ 100   ▒▒  50",
        " 50 %        0   ··   -",
    )
    assert heat_map({}, [], [], ("depth", str, str)) == ("depth",)
