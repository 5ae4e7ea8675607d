"""Prompts that share a known number of leading tokens, and what a cache of blocks can find of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpuwatch.probes.exchange import Prompt
    from gpuwatch.probes.vocabulary import Vocabulary

Units: TypeAlias = "tuple[int | str, ...]"
"""Token ids, or words where the server takes text only."""
TAIL = 16
"""Tokens at the end that differ in the case of a random tail: a question after a long common text."""


@dataclass(slots=True)
class Prompts:
    """Makes prompts. No two of them share anything that they are not meant to share.

    Attributes:
        vocabulary: What to draw from.
        seed: Two runs with the same seed would find each other's prompts in the cache: it has to be new each time.
    """

    vocabulary: Vocabulary
    seed: str
    _made: int = 0

    def units(self, tokens: int) -> int:
        """Return how many units make about `tokens` tokens; exactly so many where units are ids."""
        return tokens if self.vocabulary.exact else max(1, round(tokens / self.vocabulary.tokens_per_word))

    def tokens(self, units: int) -> int:
        """Return how many tokens `units` units are, about, or exactly where units are ids."""
        return units if self.vocabulary.exact else round(units * self.vocabulary.tokens_per_word)

    def fresh(self, units: int) -> Units:
        """Return a new prompt. Its first unit is told from those of the prompts before as far as the words go."""
        self._made += 1
        label = f"{self.seed}/{self._made}"
        if not self.vocabulary.exact:
            from gpuwatch.probes.vocabulary import filler  # noqa: PLC0415  # words are the exception

            return (f"Note{self._made}{self.seed[-6:]}", *filler(units, label).split()[: units - 1])
        made = self.vocabulary.tokens(units, label)
        ids = self.vocabulary.ids
        return (ids[self._made % len(ids)], *made[1:])

    def sharing(self, base: Units, shared: int, units: int) -> Units:
        """Return a new prompt of `units` units that begins like `base` for exactly `shared` units, and then differs."""
        rest = self.fresh(units - shared)
        if rest and shared < len(base) and rest[0] == base[shared]:
            rest = (self.fresh(1)[0], *rest[1:])
        return (*base[:shared], *rest)

    def prompt(self, units: Units) -> Prompt:
        """Return what is sent."""
        if self.vocabulary.exact:
            return tuple(int(unit) for unit in units)
        return " ".join(map(str, units))


def expected(shared: int, tokens: int, block: int | None) -> int | None:
    """Return the tokens that a cache of whole blocks finds, or None where the block size is not known.

    The last token of a prompt is always computed, because its output is needed: a prompt of exactly k blocks finds
    k - 1 of them (vLLM: ``v1/core/kv_cache_manager.py``, ``get_computed_blocks``).
    """
    return None if block is None else min(shared, tokens - 1) // block * block


def longest(limit: int | None, usable: int | None) -> int:
    """Return the tokens of the longest common prompt: what the context takes, a third of the pool at most."""
    return min(limit - 8 if limit else 1 << 30, usable // 3 if usable else 1 << 30)


def base_length(block: int | None, limit: int | None, usable: int | None) -> int:
    """Return the tokens of the common prompt: 16.5 blocks, at least 1,024, a third of the pool at most.

    Half a block at the end lets a change of the last few tokens cost nothing but those.
    """
    size = block or TAIL
    most = longest(limit, usable)
    wanted = max(1024, 16 * size + size // 2)
    if wanted <= most:
        return wanted
    return max(0, most - size // 2) // size * size + size // 2 if most > size else most
