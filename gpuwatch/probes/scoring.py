"""What an answer is worth: exact numbers only, so that nobody has to judge."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Outcome: TypeAlias = Literal["right", "other", "wrong", "none"]
"""The number asked for; another number of the prompt; a number that is nowhere in the prompt; no number."""

# In this order: thousands (4,821,937 or 4 821 937), digits one by one (4 8 2 1), plain and hyphenated (4821-937).
ENOUGH = 0.9
"""Share of right answers from which a length is said to be read, and an order to be respected."""
_NUMBER = re.compile(
    r"[0-9]{1,3}([,. '\u2019_\u00a0\u202f])[0-9]{3}(?:\1[0-9]{3})*(?![0-9])"
    r"|[0-9](?:[ -][0-9])+(?![0-9])"
    r"|[0-9]+(?:-[0-9]+)*"
)
_SEPARATORS = re.compile(r"[^0-9]")


def first_number(answer: str, digits: int) -> str:
    """Return the first number of `answer` without separators, or an empty text where there is none.

    Numbers with less than half of `digits` digits are passed over: they count a list or name a date.
    """
    for found in _NUMBER.finditer(answer):
        number = _SEPARATORS.sub("", found.group())
        if 2 * len(number) >= digits:
            return number
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
