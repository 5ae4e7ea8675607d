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
        ("\uff14\uff18\uff12\uff11\uff19\uff13\uff17", "4821937"),  # full-width
        ("<think> 1234567 or 7654321? </think> 4821937", "4821937"),
        ("It may be 1234567, I think.</think> 4821937", "4821937"),  # the template has opened it
        (" <think> 4821937 is", ""),
    ],
)
def test_the_first_number_that_is_long_enough_is_the_answer(answer, number):
    assert first_number(answer, 7) == number


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("4821 9370 1234 5678", "4821937012345678"),
        (" 4821,9370,1234,5678.", "4821937012345678"),
        ("48 21 93 70 12 34 56 78\n\n1", "4821937012345678"),
        ("48219 37012 34567 8", "4821937012345678"),
        ("482 193 701 234 567 8", "4821937012345678"),
        ("4 821 937 012 345 678", "4821937012345678"),
        ("4821\u202f9370\u202f1234\u202f5678 (16 digits)", "4821937012345678"),
        ("4,8,2,1,9,3,7,0,1,2,3,4,5,6,7,8", "4821937012345678"),
        ("4, 8, 2, 1, 9, 3, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8", "4821937012345678"),
        ("4821 9370 1234 5678 4", "4821937012345678"),
        ("4821937012345678 1234567812345678", "4821937012345678"),
        ("4821 9370,1234 5678", "48219370"),  # two signs: two numbers
        ("4821 9370", "48219370"),
        ("4821 937", ""),  # seven of sixteen digits
        ("version 1.25.3, 4821937012345678", "4821937012345678"),
    ],
)
def test_digits_in_groups_are_one_number(answer, number):
    assert first_number(answer, 16) == number


@pytest.mark.parametrize(
    ("answer", "number"), [("4821 4821 4821", "4821"), ("4,8,2,1", "4821"), ("48 21", "4821"), ("4821, 1112", "4821")]
)
def test_short_numbers_are_not_taken_for_groups_of_a_longer_one(answer, number):
    assert first_number(answer, 4) == number


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
