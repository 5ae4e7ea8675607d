"""What counts as recall: the first number of the answer, whole and alone."""

from __future__ import annotations

import pytest

from gpuwatch.probes.scoring import Recall, first_number, judge, recall


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        (" 4821937.", "4821937"),
        (" 4,821,937 and so on", "4821937"),
        ("4 821 937", "4821937"),
        ("4\u202f821\u202f937", "4821937"),
        ("4'821'937", "4821937"),
        ("4821-937", "4821937"),
        ("4 8 2 1 9 3 7", "4821937"),
        ("**4821937**", "4821937"),
        ("\n\n4821937\nQuestion: What is", "4821937"),
        ("1. The number is 4821937", "4821937"),
        ("4821937 4821937 4821937", "4821937"),
        ("4821937, 1112223", "4821937"),
        ("a48b", ""),
        ("four million", ""),
        ("", ""),
        ("482", ""),  # less than half of seven digits
        ("4821", "4821"),
    ],
)
def test_the_first_number_that_is_long_enough_is_the_answer(answer, number):
    assert first_number(answer, 7) == number


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (" 4821937", "right"),
        (" 4821938", "wrong"),
        (" 48219371", "wrong"),
        (" 482193", "wrong"),
        (" 04821937", "wrong"),
        (" 1112223. No: 4821937", "other"),
        (" 9998887", "wrong"),
        (" I do not know", "none"),
    ],
)
def test_only_the_whole_number_is_right(answer, outcome):
    assert judge(answer, "4821937", ["1112223", "5556667"]) == outcome


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (" 84720193", Recall(exact=True, right_digits=8, first_wrong=None)),
        (" 84720194", Recall(exact=False, right_digits=7, first_wrong=7)),
        (" 84220193", Recall(exact=False, right_digits=7, first_wrong=2)),
        (" 847201", Recall(exact=False, right_digits=6, first_wrong=6)),
        (" 847201935", Recall(exact=False, right_digits=8, first_wrong=8)),
        (" nothing", Recall(exact=False, right_digits=0, first_wrong=0)),
        (" 94720193 84720193", Recall(exact=False, right_digits=7, first_wrong=0)),
    ],
)
def test_recall_says_how_many_digits_came_back_and_where_the_first_is_wrong(answer, score):
    assert recall(answer, "84720193") == score
