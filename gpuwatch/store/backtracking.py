"""Regular expressions that would make a backtracking matcher run for hours.

Prometheus matches with RE2, in time linear in the text. Python's `re` tries one way after the other, and where a
pattern can match the same text in many ways, as in ``(a+)+b``, it tries all of them: 30 characters take minutes. Such
patterns are found by their position automaton (Glushkov): a state that comes back to itself over the same text by two
ways makes the number of ways grow exponentially (Weber and Seidl, On the degree of ambiguity of finite automata,
1991), and each further unbounded repeat that accepts the same character multiplies it by the length of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

MOST_REPEATS_IN_A_ROW = 4
"""With so many unbounded repeats of one character a text of 200 characters is still refused in a second or so."""
MOST_COPIES = 3
"""A repeat of at most so many times is written out; one of more is judged as if it were unbounded."""
MOST_STEPS = 100_000
"""The size of automaton up to which a pattern is judged."""
DEEPEST = 100

_REPEAT = re.compile(r"([*+?]|\{(\d+)(,(\d*))?\})\??")
_OPEN = re.compile(r"\((?:\?(?:P<\w+>|[ims]*:))?")
_FLAGS = re.compile(r"\(\?[ims]+\)")
_ATOM = re.compile(r"\[\^?(?:\\.|[^\]\\])*\]|\\.|.", re.DOTALL)
_ZERO_WIDTH = frozenset({"^", "\\A", "\\b", "\\B", "\\Z"})
_Key = TypeVar("_Key", bound="Hashable")


class TooComplexError(ValueError):
    """The pattern is too large or too deep to be judged."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a pattern: the positions with which it can begin and end, and whether it can be empty."""

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    empty: bool = True


@dataclass(slots=True)
class _Automaton:
    """Positions of a pattern: their texts, the ways from one to the next, and where its repeats are."""

    atoms: list[str] = field(default_factory=list)
    follow: list[dict[int, int]] = field(default_factory=list)
    repeats: list[tuple[int, int, str]] = field(default_factory=list)
    steps: int = 0

    def add(self, atom: str) -> _Part:
        self.atoms.append(atom)
        self.follow.append({})
        position = len(self.atoms) - 1
        return _Part((position,), (position,), empty=False)

    def link(self, before: _Part, after: _Part) -> None:
        self.spend(len(before.last) * len(after.first))
        for position in before.last:
            ways = self.follow[position]
            for to in after.first:
                ways[to] = ways.get(to, 0) + 1

    def join(self, before: _Part, after: _Part) -> _Part:
        self.link(before, after)
        return _Part(
            before.first + after.first if before.empty else before.first,
            before.last + after.last if after.empty else after.last,
            before.empty and after.empty,
        )

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise TooComplexError


class _Reader:
    """Reads a pattern in Python's spelling, as the translation from RE2 writes it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self.automaton = _Automaton()

    def run(self) -> _Automaton:
        found = _FLAGS.match(self._pattern)
        self._at = found.end() if found else 0
        self._alternatives()
        return self.automaton

    def _alternatives(self) -> _Part:
        part = self._sequence()
        while self._pattern.startswith("|", self._at):
            self._at += 1
            other = self._sequence()
            part = _Part(part.first + other.first, part.last + other.last, part.empty or other.empty)
        return part

    def _sequence(self) -> _Part:
        part = _Part()
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            part = self.automaton.join(part, self._repeated())
        return part

    def _repeated(self) -> _Part:
        start, position, repeats = self._at, len(self.automaton.atoms), len(self.automaton.repeats)
        part = self._single()
        found = _REPEAT.match(self._pattern, self._at)
        if not found:
            return part
        end = found.end()
        least, most = _bounds(found)
        single = len(self.automaton.atoms) == position + 1 and len(self.automaton.repeats) == repeats and not part.empty
        if most is not None and most <= MOST_COPIES:
            for number in range(2, most + 1):
                self._at = start
                copy = self._single()
                part = self.automaton.join(part, _Part(copy.first, copy.last, copy.empty or number > least))
        elif not (single and least == most):
            self.automaton.link(part, part)
            text = self._pattern[start:end]
            self.automaton.repeats.append((position, len(self.automaton.atoms), text))
        self._at = end
        return _Part(part.first, part.last, part.empty or least == 0)

    def _single(self) -> _Part:
        opened = _OPEN.match(self._pattern, self._at)
        if opened:
            self._depth += 1
            if self._depth > DEEPEST:
                raise TooComplexError
            self._at = opened.end()
            part = self._alternatives()
            self._at += 1
            self._depth -= 1
            return part
        found = _ATOM.match(self._pattern, self._at)
        assert found is not None
        self._at = found.end()
        self.automaton.spend(1)
        return _Part() if found[0] in _ZERO_WIDTH else self.automaton.add(found[0])


def _bounds(found: re.Match[str]) -> tuple[int, int | None]:
    """Return how often at least and at most; None for no bound."""
    if found[1] in ("*", "+", "?"):
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[found[1]]
    least = int(found[2])
    if found[3] is None:
        return least, least
    return least, int(found[4]) if found[4] else None


def endless(pattern: str) -> str:
    """Return why matching `pattern`, in Python's spelling, can take hours; the empty string where it cannot.

    Raises:
        TooComplexError: The pattern has an unbounded repeat and is too large or too deep to be judged.
    """
    automaton = _Reader(pattern).run()
    if not automaton.repeats:
        return ""
    masks = _masks(automaton.atoms, ignore_case="i" in "".join(re.findall(r"\(\?([ims]+)", pattern)))
    loops = _components(range(len(masks)), lambda position: automaton.follow[position])
    culprit = _ambiguous(automaton, masks, loops)
    if culprit:
        return f"the repeat {culprit!r} can match the same text in many ways, and trying them all may take hours"
    if _in_a_row(automaton, masks) > MOST_REPEATS_IN_A_ROW:
        return (
            f"more than {MOST_REPEATS_IN_A_ROW} unbounded repeats accept the same character one after the other, and "
            "trying all ways to share a text among them may take hours"
        )
    return ""


def _masks(atoms: list[str], *, ignore_case: bool) -> list[int]:
    """Return, for each position, which of some characters it accepts; every class of the pattern differs in one."""
    named = {char for atom in atoms for char in atom if ord(char) > 127}
    beside = {chr(min(max(ord(char) + step, 128), 0x10FFFF)) for char in named for step in (-1, 0, 1)}
    sample = [chr(code) for code in range(128)] + sorted(beside | {"\U0010fffe"})
    flags = re.DOTALL | re.ASCII | (re.IGNORECASE if ignore_case else re.RegexFlag(0))
    known = {}
    for atom in set(atoms):
        matches = re.compile(atom, flags).fullmatch
        known[atom] = sum(1 << bit for bit, char in enumerate(sample) if matches(char))
    return [known[atom] for atom in atoms]


def _ambiguous(automaton: _Automaton, masks: list[int], loops: dict[int, int]) -> str:
    """Return the repeat in which a state comes back to itself over one text by two ways."""
    follow = automaton.follow
    for position, ways in enumerate(follow):
        for to, times in ways.items():
            if times > 1 and loops[position] == loops[to]:
                return _repeat_of(automaton, position, to)

    inner = [[to for to in ways if loops[to] == loops[position]] for position, ways in enumerate(follow)]

    def pairs(pair: tuple[int, int]) -> list[tuple[int, int]]:
        one, other = pair
        automaton.spend(len(inner[one]) * len(inner[other]))
        return [(a, b) for a in inner[one] for b in inner[other] if masks[a] & masks[b]]

    together = _components([(position, position) for position in range(len(masks))], pairs)
    same = {component: pair for pair, component in together.items() if pair[0] == pair[1]}
    for pair, component in together.items():
        if pair[0] != pair[1] and component in same:
            return _repeat_of(automaton, *pair)
    return ""


def _repeat_of(automaton: _Automaton, one: int, other: int) -> str:
    found = [
        (end - start, text)
        for start, end, text in automaton.repeats
        if start <= min(one, other) and max(one, other) < end
    ]
    return min(found)[1] if found else ""


def _in_a_row(automaton: _Automaton, masks: list[int]) -> int:
    """Return how many repeats can follow one another over a text of one character, for the worst character."""
    most = 0
    accepting = (
        frozenset(position for position, mask in enumerate(masks) if mask >> bit & 1)
        for bit in range(max(masks).bit_length())
    )
    for own in set(accepting):
        if len(own) <= MOST_REPEATS_IN_A_ROW:
            continue
        ways = {position: [to for to in automaton.follow[position] if to in own] for position in own}
        automaton.spend(sum(map(len, ways.values())))
        component = _components(own, ways.__getitem__)
        rows: dict[int, int] = {}
        members: dict[int, list[int]] = {}
        for position in own:
            members.setdefault(component[position], []).append(position)
        for number in sorted(members):  # what comes later in the text has the lower number
            after = {component[to] for position in members[number] for to in ways[position]}
            rows[number] = max((rows[to] for to in after - {number}), default=0) + (number in after)
        most = max(most, *rows.values())
    return most


def _components(starts: Iterable[_Key], successors: Callable[[_Key], Iterable[_Key]]) -> dict[_Key, int]:
    """Return the strongly connected component of everything within reach of `starts` (Tarjan), successors first."""
    order: dict[_Key, int] = {}
    low: dict[_Key, int] = {}
    component: dict[_Key, int] = {}
    open_: list[_Key] = []
    number = 0
    for start in starts:
        if start in order:
            continue
        order[start] = low[start] = len(order)
        open_.append(start)
        work = [(start, iter(successors(start)))]
        while work:
            node, rest = work[-1]
            for to in rest:
                if to not in order:
                    order[to] = low[to] = len(order)
                    open_.append(to)
                    work.append((to, iter(successors(to))))
                    break
                if to not in component:
                    low[node] = min(low[node], order[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    cut = open_.index(node)
                    component.update(dict.fromkeys(open_[cut:], number))
                    del open_[cut:]
                    number += 1
    return component
