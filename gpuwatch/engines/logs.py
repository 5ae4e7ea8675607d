"""Log lines of vLLM, SGLang and what they run on, recognised and read. Pure functions over the pattern tables.

A line goes through `log_text.clean`, `log_prefixes.strip_prefix` and `classify`; `facts_of` turns a match into facts.
A scan for all required literals at once decides first, so that ordinary lines cost a fraction of a microsecond.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gpuwatch.engines import (
    machine_log,
    refusal_log,
    sglang_log,
    stack_log,
    supervisor_log,
    torch_log,
    unmet_log,
    vllm_errors,
    vllm_log,
    vllm_stats,
)
from gpuwatch.engines.flags import config_facts, flag_facts
from gpuwatch.engines.log_pattern import Pattern, Value, read
from gpuwatch.engines.log_quoted import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

PATTERNS: tuple[Pattern, ...] = (
    *vllm_stats.PATTERNS,
    *vllm_errors.RAISED,
    *vllm_errors.LOOKALIKES,
    *vllm_errors.PATTERNS,
    *vllm_log.PATTERNS,
    *sglang_log.PATTERNS,
    *unmet_log.PATTERNS,
    *torch_log.PATTERNS,
    *machine_log.PATTERNS,
    *supervisor_log.PATTERNS,
    *stack_log.PATTERNS,
    *refusal_log.PATTERNS,
    stack_log.EXCEPTION,
)
"""Every pattern; the first that matches a line is the line's."""


_SAYING = ("event", "fact", "note")


@dataclass(frozen=True, slots=True)
class Match:
    """A recognised message: its pattern and the groups that took part."""

    pattern: Pattern
    groups: tuple[tuple[str, str], ...]

    def group(self, name: str) -> str:
        """Return one group, or the empty string."""
        return dict(self.groups).get(name, "")


def classify(message: str) -> Match | None:
    """Return what a message says, or None. `message` has no prefix and no terminal codes.

    Messages of kind ``ignore`` are reported as such: they look like something that they are not.
    """
    if prefilter().search(message) is None or _literals().search(message) is None:
        return None
    for pattern in PATTERNS:
        if any(needle in message for needle in pattern.needles):
            found = match_with(pattern, message)
            if found is not None:
                return found
    return None


def match_with(pattern: Pattern, message: str) -> Match | None:
    """Return what a message says according to one pattern, or None; what it only quotes, it does not say."""
    found = pattern.search(message)
    if found is None or (pattern.kind in _SAYING and not pattern.settings and quoted(message, pattern.needles)):
        return None
    return Match(pattern, tuple((name, text) for name, text in found.groupdict().items() if text is not None))


def facts_of(match: Match) -> dict[str, Value]:
    """Return the facts in a match by key, values in base units; empty for events, statistics and ignored lines."""
    pattern = match.pattern
    groups = dict(match.groups)
    facts: dict[str, Value] = {}
    for reading in pattern.readings:
        texts = [groups.get(name) for name in reading.group.split("+")] if reading.group else [""]
        values = [None if text is None else read(text, reading.unit) for text in texts]
        if any(value is None for value in values):
            continue
        # Several groups are parts of one amount, such as K and V; all other readings have one.
        facts[reading.fact] = sum(values) if len(values) > 1 else values[0]  # type: ignore[arg-type, assignment]  # None was left out above
    if pattern.settings:
        pairs = split_pairs(groups.get(pattern.pairs, ""))
        facts |= flag_facts(pattern.engine, pairs) if pattern.settings == "flags" else config_facts(pairs)
    if pattern.engine and pattern.kind == "fact":
        facts["engine"] = pattern.engine
    return facts


def settle(facts: dict[str, Value]) -> dict[str, Value]:
    """Return the facts of one run with those corrected that only hold together with others.

    vLLM prints the memory found for the KV pool before an override shrinks or grows the pool; the pool then has
    override ÷ profiled blocks of it. Each of several data-parallel engines prints a data-parallel size of 1 where the
    model has no experts; the launch flag knows better.
    """
    replicas = facts.get("flag.data-parallel-size")
    if isinstance(replicas, int):
        facts = {**facts, "dp": replicas}
    found, profiled, forced = (facts.get(key) for key in ("kv.bytes", "kv.blocks_profiled", "kv.blocks_override"))
    if isinstance(found, int) and isinstance(profiled, int) and isinstance(forced, int) and profiled > 0:
        return {**facts, "kv.bytes": found * forced // profiled}
    return facts


def split_pairs(text: str) -> dict[str, str]:
    """Return the top-level pairs of a printed dict, dataclass or namespace.

    Understands ``'a': 1, 'b': 'x, y'`` and ``a=1, b=Config(c=[1, 2])``; a text that was cut short gives what it has.
    Quotes around names and simple strings are taken off.
    """
    pairs = {}
    for item in _split_top(text):
        found = _PAIR.match(item)
        if found is not None:
            pairs[found["name"]] = _unquote(found["value"])
    return pairs


_PAIR = re.compile(r"""^\s*(?P<q>['"]?)(?P<name>[A-Za-z_][\w.-]*)(?P=q)\s*[:=]\s*(?P<value>.*)$""", re.DOTALL)
_SPECIAL = re.compile(r"""["'()\[\]{},\\]""")


def _split_top(text: str) -> Iterable[str]:
    """Split at commas outside quotes and brackets; ends at the bracket that closes the enclosing one."""
    depth = 0
    quote = ""
    start = 0
    skip = -1
    for found in _SPECIAL.finditer(text):
        at, char = found.start(), found[0]
        if at == skip:
            continue
        if char == "\\":
            skip = at + 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth < 0:
                yield text[start:at]
                return
        elif char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _unquote(value: str) -> str:
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


@cache
def numeric_literals() -> tuple[bytes, ...]:
    """Return the required literals of which next to nothing is left without their digits."""
    every = {needle for pattern in PATTERNS for needle in pattern.needles}
    return tuple(
        sorted(
            needle.encode()
            for needle in every
            if any(map(str.isdigit, needle)) and sum(map(str.isalpha, needle)) < _FEWEST_LETTERS
        )
    )


@cache
def literals(deleted: bytes = b"") -> re.Pattern[bytes]:
    """Return one expression over UTF-8 text from which every byte in `deleted` was taken out.

    It has a hit in each such text that held a required literal before, those of `numeric_literals` apart: what is deleted
    from a text is deleted from the literals in it as well. A hit is only a reason to look.
    """
    rest = set(numeric_literals())
    every = {needle.encode() for pattern in PATTERNS for needle in pattern.needles}
    needles = {needle.translate(None, deleted).decode() for needle in every if needle not in rest}
    heads = _heads(needles)
    return re.compile(_trie(sorted({_tail(needle, heads) for needle in needles})).encode())


@cache
def _literals() -> re.Pattern[str]:
    """Return one expression with a hit in exactly the lines that hold a literal of the tables."""
    return re.compile(_trie(sorted({needle for pattern in PATTERNS for needle in pattern.needles})))


@cache
def prefilter() -> re.Pattern[str]:
    """Return one expression without a hit in any line that is not in the tables. A hit is only a reason to look.

    Of each required literal a tail is enough, so the tails are chosen to begin with few and rare characters: the
    expression engine skips to those faster than it tries alternatives.
    """
    needles = {needle for pattern in PATTERNS for needle in pattern.needles}
    heads = _heads(needles)
    return re.compile(_trie(sorted({_tail(needle, heads) for needle in needles})))


# How often a character stands in a log, per 1,000: access lines, statistics and tracebacks of vLLM. Others are rare.
_FREQUENT = (
    dict.fromkeys("1.02", 50)
    | dict.fromkeys("/OTo:ePeaitn", 25)
    | dict.fromkeys('"islpcm4I75-NFSH8Krdu3', 14)
    | {" ": 120}
    | dict.fromkeys("_gh9y6=[,()]'^Ef", 3)
)
_SHORTEST = 4
_FEWEST_LETTERS = 3


def _heads(needles: Iterable[str]) -> frozenset[str]:
    """Return characters of which each literal has one in front of a long enough tail; a greedy weighted set cover."""
    left = {needle: set(needle[: len(needle) - min(_SHORTEST, len(needle) // 2) + 1]) for needle in needles}
    heads = set()
    while left:
        gain = Counter(char for chars in left.values() for char in chars)
        best = max(sorted(gain), key=lambda char: gain[char] / _FREQUENT.get(char, 1))
        heads.add(best)
        left = {needle: chars for needle, chars in left.items() if best not in chars}
    return frozenset(heads)


def _tail(needle: str, heads: frozenset[str]) -> str:
    """Return the longest tail that begins with one of `heads`."""
    return needle[next(at for at, char in enumerate(needle) if char in heads) :]


def _trie(words: list[str]) -> str:
    """Return an alternation with common heads factored out; a word that extends another one is left out."""
    tree: dict[str, list[str]] = {}
    for word in words:
        tree.setdefault(word[0], []).append(word[1:])
    branches = []
    for head, tails in tree.items():
        if "" in tails:
            branches.append(re.escape(head))
            continue
        while all(tails) and len({tail[0] for tail in tails}) == 1:
            head += tails[0][0]  # noqa: PLW2901  # the head grows while the tails agree
            tails = [tail[1:] for tail in tails]  # noqa: PLW2901  # as above
        branches.append(re.escape(head) + ("" if "" in tails else _trie(tails)))
    return branches[0] if len(branches) == 1 else "(?:" + "|".join(branches) + ")"
