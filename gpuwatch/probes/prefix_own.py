"""Two requests of the user's own: where they part, and how much of the later one could be found if they did not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.finding import Advice
from gpuwatch.units import percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatch.probes.client import Client

MOST_CHARACTERS = 8 * 2**20
WORTH_MOVING = 0.3
"""Common part behind the first difference from which it is worth to move what differs."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two texts part. Nothing of the texts themselves.

    Attributes:
        shared: Characters that both begin with.
        line: Line of the first difference, from 1.
        column: Its column, from 1.
        same: Whether the texts are equal.
        common: Part of the second text, from the first difference on, whose lines stand in the first text, too (there
            also behind the difference). None: nothing comes behind it.
    """

    shared: int
    line: int
    column: int
    same: bool
    common: float | None


def part(first: str, second: str) -> Parting:
    """Compare two prompts."""
    shared = next(
        (index for index, (a, b) in enumerate(zip(first, second)) if a != b),  # noqa: B905  # the shorter one decides
        min(len(first), len(second)),
    )
    before = second[:shared]
    begin = before.rfind("\n") + 1
    known = Counter(first[begin:].splitlines())
    common = total = 0
    for line in second[begin:].splitlines():
        total += len(line)
        if known[line] > 0:
            known[line] -= 1
            common += len(line)
    return Parting(
        shared, before.count("\n") + 1, shared - begin + 1, first == second, common / total if total else None
    )


def shared_tokens(client: Client, first: str, second: str, shared: int) -> tuple[int, bool]:
    """Return how many leading tokens two prompts share, and whether that was counted with the server's own tokenizer.

    Where the server has no ``/tokenize``, English text's four characters a token are assumed.
    """
    ids = [client.tokenize(text) for text in (first, second)]
    one, other = ids
    if one is None or other is None:
        return shared // 4, False
    pairs = zip(one, other)  # noqa: B905  # the shorter one decides
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other))), True


def parted(parting: Parting, tokens: int | None) -> str:
    """Return where two prompts part, as the rest of a sentence; `tokens` are those that they share."""
    if parting.same:
        return "are the same text"
    after = "" if tokens is None else f", after {tokens:,} token{'' if tokens == 1 else 's'}"
    return f"part at line {parting.line:,}, column {parting.column:,}{after}"


def moving(parting: Parting) -> Iterator[Advice]:
    """Say that what differs should come last, where much of what follows it is the same in both."""
    if parting.same or parting.common is None or parting.common < WORTH_MOVING:
        return
    yield Advice(
        f"in your prompts: move what differs at line {parting.line:,}, column {parting.column:,} to the end; behind "
        f"it, {percent(parting.common)} of the text is the same in both, and is computed again each time"
    )
