"""Prompts for recall: plain sentences without a digit, and facts with numbers among them.

Everything is drawn from a seed, so that the same question can be put to two endpoints. No number stands in the filler:
a number in an answer comes from a fact or was invented.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SUBJECTS = (
    "The baker", "A gardener", "The old ferry", "My neighbour", "The night train", "A young painter", "The librarian",
    "The harbour master", "A travelling musician", "The village school", "The watchmaker", "A flock of starlings",
    "The river", "The market hall", "A retired pilot", "The lighthouse", "The orchestra", "A stray cat",
    "The weather office", "The bicycle shop",
)  # fmt: skip
VERBS = (
    "waited for", "looked across", "wrote a letter about", "passed slowly by", "was painted beside", "told a story of",
    "kept a careful record of", "walked around", "often dreamed of", "returned early from", "cleaned the windows of",
    "made a quiet promise to", "took shelter near", "borrowed a ladder from", "spent the afternoon in",
)  # fmt: skip
OBJECTS = (
    "the wooden bridge", "the empty square", "the apple orchard", "the northern hills", "the tram depot",
    "the glass pavilion", "the old mill", "the botanical garden", "the stone chapel", "the coffee house",
    "the railway museum", "the fishing boats", "the winter market", "the theatre courtyard", "the mountain hut",
)  # fmt: skip
ENDINGS = (
    "before the rain began", "while the bells were ringing", "on a bright spring morning", "without saying a word",
    "because the road was closed", "as the first lamps were lit", "long after supper", "with a basket of pears",
    "until the fog had lifted", "as everyone had expected", "for the sake of an old friend", "in a heavy woollen coat",
)  # fmt: skip
NAMES = (
    "Lisbon", "Oslo", "Nairobi", "Lima", "Hanoi", "Vienna", "Dakar", "Quito", "Riga", "Manila", "Tunis", "Havana",
    "Dublin", "Ankara", "Bogota", "Prague", "Accra", "Athens", "Seoul", "Warsaw", "Kyoto", "Geneva", "Bergen", "Porto",
    "Madrid", "Turin", "Delhi", "Perth", "Minsk", "Zagreb", "Leipzig", "Malmo",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and what is right. `expected` and `others` are digits that stand in the prompt."""

    prompt: str
    expected: str
    others: tuple[str, ...] = ()


def seeded(*parts: object) -> random.Random:
    """Return a generator that depends on `parts` only, the same on every machine and Python."""
    return random.Random("/".join(map(str, parts)))  # noqa: S311  # reproducible questions, no secrets


def sentences(rng: random.Random, count: int) -> list[str]:
    """Return `count` sentences without a digit."""
    return [
        f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)} {rng.choice(ENDINGS)}."
        for _ in range(max(0, count))
    ]


def digits(rng: random.Random, count: int, unlike: Sequence[str] = ()) -> str:
    """Return a number of `count` digits that does not begin with 0 and is not among `unlike`.

    Raises:
        ValueError: `count` is less than 2: too few numbers to tell them apart.
    """
    if count < 2:
        raise ValueError(f"{count} digits")
    while True:
        number = rng.choice("123456789") + "".join(rng.choice("0123456789") for _ in range(count - 1))
        if number not in unlike:
            return number


def place(filler: Sequence[str], facts: Sequence[tuple[float, str]]) -> str:
    """Put each fact into `filler` at its depth, 0 (before the first sentence) to 1 (after the last)."""
    spots: dict[int, list[str]] = {}
    for depth, fact in facts:
        spots.setdefault(round(depth * len(filler)), []).append(fact)
    parts: list[str] = []
    for index in range(len(filler) + 1):
        parts += spots.get(index, [])
        parts += filler[index : index + 1]
    return " ".join(parts)


def needle(rng: random.Random, filler: int, depth: float, length: int = 7, distractors: int = 3) -> Question:
    """Return a question for one number in the middle of plain text, with others of its kind at random depths.

    Args:
        rng: What names, numbers and sentences are drawn from.
        filler: Sentences of plain text.
        depth: Where the fact stands, 0 to 1.
        length: Digits of the number.
        distractors: Facts of the same form about other names.
    """
    name, *further = rng.sample(NAMES, 1 + distractors)
    numbers = [digits(rng, length)]
    for _ in further:
        numbers.append(digits(rng, length, numbers))
    facts = [(depth, f"The access number of {name} is {numbers[0]}.")]
    facts += [
        (rng.random(), f"The access number of {other} is {number}.")
        for other, number in zip(further, numbers[1:], strict=True)
    ]
    prompt = (
        "Read the text and remember the access numbers in it.\n\n"
        f"{place(sentences(rng, filler), facts)}\n\n"
        f"Question: What is the access number of {name}?\n"
        f"Answer: The access number of {name} is"
    )
    return Question(prompt, numbers[0], tuple(numbers[1:]))


def contradiction(
    rng: random.Random, filler: int, depths: tuple[float, float], last: bool, length: int = 7
) -> Question:
    """Return a question about a fact that the text states twice, differently: the first or the last one is asked for.

    The fact that is not asked for is the only one of `others`.
    """
    name = rng.choice(NAMES)
    first = digits(rng, length)
    second = digits(rng, length, [first])
    facts = [
        (depths[0], f"The access number of {name} is {first}."),
        (depths[1], f"The access number of {name} is {second}."),
    ]
    which = "last" if last else "first"
    prompt = (
        "Read the text. It states one access number twice, and the two statements differ.\n\n"
        f"{place(sentences(rng, filler), facts)}\n\n"
        f"Question: Which access number of {name} does the text state {which}?\n"
        f"Answer: The access number of {name} that the text states {which} is"
    )
    return Question(prompt, second if last else first, (first if last else second,))


def record(rng: random.Random, filler: int, length: int, records: int = 12) -> Question:
    """Return a question for one of `records` strings of `length` digits, spread over `filler` sentences."""
    names = rng.sample(NAMES, records)
    numbers: list[str] = []
    for _ in names:
        numbers.append(digits(rng, length, numbers))
    asked = rng.randrange(records)
    facts = [
        ((index + 0.5) / records, f"The record of {name} is {number}.")
        for index, (name, number) in enumerate(zip(names, numbers, strict=True))
    ]
    prompt = (
        "Read the text and remember the records in it, digit by digit.\n\n"
        f"{place(sentences(rng, filler), facts)}\n\n"
        f"Question: What is the record of {names[asked]}?\n"
        f"Answer: The record of {names[asked]} is"
    )
    others = tuple(number for index, number in enumerate(numbers) if index != asked)
    return Question(prompt, numbers[asked], others)
