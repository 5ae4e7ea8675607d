"""What an answer is worth: exact numbers only, so that nobody has to judge."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Outcome: TypeAlias = Literal["right", "other", "wrong", "none"]
"""The number asked for; another number of the prompt; a number that is nowhere in the prompt; no number."""

ENOUGH = 0.9
"""Share of right answers from which a length is said to be read, and an order to be respected."""
THOUSAND = 3
"""Digits of a group of thousands."""
LARGEST_GROUP = 5
"""Digits of a group at most, of those in which numbers are written: 4821 9370, 48219 37012."""
_SEPARATORS = re.compile(r"[^0-9]")


_DIGIT = re.compile(r"[0-9]")


@lru_cache(maxsize=8)
def _readings(largest: int) -> tuple[re.Pattern[str], ...]:
    """Return patterns of the ways to write a number, with groups of at most `largest` digits.

    In this order: thousands (4,821,937 or 4 821 937), groups of one other size, whole from the right (482 1937) or from
    the left (4821 937) with one separator throughout, digits one by one (4 8 2 1), plain and hyphenated (4821-937). A
    point separates thousands only: otherwise it makes fractions, versions and dates.
    """
    marks = "'\u2019_\u00a0\u202f"
    ways = []
    for size in (size for size in (THOUSAND, 4, 2, 5) if size <= largest):
        sign = f"([,. {marks}])" if size == THOUSAND else f"([, {marks}])"
        ways.append(rf"[0-9]{{1,{size}}}{sign}[0-9]{{{size}}}(?:\1[0-9]{{{size}}})*")
        ways.append(rf"[0-9]{{{size}}}{sign}(?:[0-9]{{{size}}}\1)*[0-9]{{1,{size - 1}}}")
    ways += [rf"[0-9](, |[, {marks}])[0-9](?:\1[0-9])*", r"[0-9](?:[ -][0-9])+", r"[0-9]+(?:-[0-9]+)*"]
    return tuple(re.compile(f"{way}(?![0-9])") for way in ways)


def spoken(answer: str) -> str:
    """Return an answer without the reasoning before it, which stands between ``<think>`` and ``</think>``.

    Nothing is left of an answer that ends within its reasoning.
    """
    _, ended, rest = answer.rpartition("</think>")
    if ended:
        return rest
    return "" if reasons(answer) else answer


def reasons(answer: str) -> bool:
    """Return whether an answer begins with reasoning."""
    return answer.lstrip().startswith("<think>")


def _ascii(answer: str) -> str:
    """Return an answer with its decimal digits of any script, such as full-width ones, as ASCII digits."""
    if answer.isascii():
        return answer
    return "".join(str(unicodedata.decimal(letter)) if letter.isdecimal() else letter for letter in answer)


def first_number(answer: str, digits: int) -> str:
    """Return the first number of `answer` without separators, or an empty text where there is none.

    Where digits can be read as a number in several ways, the one with `digits` digits counts. Numbers with less than
    half of them are passed over: they count a list or name a date. What stands within ``<think>`` and ``</think>`` is
    no answer.
    """
    answer = _ascii(spoken(answer))
    readings, place = _readings(min(LARGEST_GROUP, digits - 1)), 0
    while (start := _DIGIT.search(answer, place)) is not None:
        found = [match for way in readings if (match := way.match(answer, start.start())) is not None]
        numbers = [_SEPARATORS.sub("", match.group()) for match in found]
        number = next((number for number in numbers if len(number) == digits), numbers[0])
        if 2 * len(number) >= digits:
            return number
        place = found[0].end()
    return ""


def judge(answer: str, expected: str, others: Iterable[str] = ()) -> Outcome:
    """Return what an answer is worth. Only its first number counts: a list of all numbers is no recall.

    Args:
        answer: What the model wrote.
        expected: The digits asked for.
        others: Digits that stand in the prompt, too, and were not asked for.
    """
    number = first_number(answer, len(expected))
    if not number:
        return "none"
    if number == expected:
        return "right"
    return "other" if number in set(others) else "wrong"


@dataclass(frozen=True, slots=True)
class Recall:
    """How much of a string of digits came back.

    Attributes:
        exact: The whole string, nothing more and nothing less.
        right_digits: Digits that are right at their place, counted from the front.
        first_wrong: Place of the first digit that is wrong or missing, from 0; None where all are there. An exact
            beginning that goes on is wrong at the place after the last.
    """

    exact: bool
    right_digits: int
    first_wrong: int | None


def recall(answer: str, expected: str) -> Recall:
    """Compare the first number of `answer` with the digits that were asked for."""
    number = first_number(answer, len(expected))
    same = [a == b for a, b in zip(number, expected)]  # noqa: B905  # the shorter one decides: the rest is missing
    if number == expected:
        return Recall(exact=True, right_digits=len(expected), first_wrong=None)
    first = same.index(False) if False in same else len(same)
    return Recall(exact=False, right_digits=sum(same), first_wrong=first)
