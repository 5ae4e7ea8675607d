"""Which rank of a group stands behind the others, by the numbers of the collectives that did not end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.diagnosis.causes import moments
from gpuwatch.diagnosis.causes.view import group, number
from gpuwatch.diagnosis.explanation import count, logged

if TYPE_CHECKING:
    from gpuwatch.diagnosis.causes.view import View
    from gpuwatch.diagnosis.finding import Evidence
    from gpuwatch.model import LogEvent

# torch: ``[Rank 3] Watchdog``, ``[PG ID 0 PG GUID 0(default_pg) Rank 3]``, ``[PG 3 Rank 5]``.
_RANK = re.compile(r"\[(?:PG (?:ID )?(?P<group>\d+)[^\]]*?)?\bRank (?P<rank>\d+)\]")


@dataclass(frozen=True, slots=True)
class Late:
    """The ranks that wait in a later collective than the others, which stand `behind`; the lines by rank."""

    behind: dict[int, LogEvent]
    ahead: dict[int, LogEvent]

    def cause(self, when: str) -> str:
        """Return who stands where; `when` is empty or begins with a space."""
        late, others = next(iter(self.behind.values())), next(iter(self.ahead.values()))
        verb = "stands" if len(self.behind) == 1 else "stand"
        waits = "waits" if len(self.ahead) == 1 else "wait"
        return (
            f"{_named(self.behind)} {verb} behind the others{when}: in {_what(late)}, while "
            f"{_named(self.ahead).lower()} {waits} in {_what(others)}."
        )

    def advice(self) -> str:
        """Return where to look first."""
        return f"{_named(self.behind).lower()} first: its GPU (nvidia-smi, dmesg of its node) and its lines in the log"

    def evidence(self) -> tuple[Evidence, ...]:
        """Return the lines of the ranks behind, and one of the others."""
        return (*(logged(each) for each in list(self.behind.values())[:2]), logged(next(iter(self.ahead.values()))))


def behind(view: View, event: LogEvent) -> Late | None:
    """Return which few ranks stand behind the others at a time-out; None where the lines do not tell.

    Numbers count within a group of ranks, so only lines that name the same group, or none, are compared.
    """
    first: dict[int, tuple[int, LogEvent]] = {}
    groups = set()
    for each in view.events("nccl_timeout"):
        place, found = number(each, "seq", "work"), _RANK.search(each.text)
        if place is None or found is None or moments.together(each, event) is False:
            continue
        if found["rank"] and int(found["rank"]) not in first:
            first[int(found["rank"])] = (int(place), each)
            groups.add(found["group"])
    if len(groups) != 1 or len(first) < 3:
        return None
    least = min(place for place, _ in first.values())
    late = {rank: each for rank, (place, each) in sorted(first.items()) if place == least}
    rest = {rank: each for rank, (place, each) in sorted(first.items()) if place > least}
    return Late(late, rest) if len(late) < len(rest) else None


def _named(ranks: dict[int, LogEvent]) -> str:
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"Rank {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2:
        return f"Ranks {numbers[0]} to {numbers[-1]}"
    return "Ranks " + ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"


def _what(event: LogEvent) -> str:
    return f"{group(event, 'op') or 'operation'} number {count(number(event, 'seq', 'work') or 0)}"
