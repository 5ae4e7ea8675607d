"""Prompts of a wanted length: random ordinary token ids, or plain sentences where a server only takes text."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.probes.client import ProbeError
from gpuwatch.probes.exchange import Ask

if TYPE_CHECKING:
    from gpuwatch.probes.client import Client
    from gpuwatch.probes.exchange import Prompt

_SUBJECTS = (
    "the baker", "a teacher", "the old captain", "my neighbour", "the gardener", "a young painter", "the mayor",
    "the carpenter", "a quiet visitor", "the fisherman", "her brother", "the librarian", "a tall stranger",
    "the driver", "the shepherd", "a tired traveller", "the doctor", "the miller", "our guide", "the musician",
)  # fmt: skip
_VERBS = (
    "carried", "found", "repaired", "described", "bought", "painted", "watched", "moved", "borrowed", "cleaned",
    "forgot", "remembered", "opened", "admired", "covered", "followed", "measured", "collected", "sold", "kept",
)  # fmt: skip
_OBJECTS = (
    "a wooden chair", "the garden gate", "an old map", "the yellow boat", "a basket of apples", "the church bell",
    "a heavy curtain", "the kitchen table", "a silver spoon", "the narrow bridge", "a letter from home",
    "the water wheel", "a woollen coat", "the broken window", "a glass bottle", "the market stall",
    "a leather saddle", "the village clock", "a bundle of straw", "the stone wall",
)  # fmt: skip
_ENDS = (
    "before the rain came", "near the river", "on a cold morning", "behind the mill", "after the market closed",
    "without saying a word", "during the long winter", "for a friend", "along the dusty road", "in the late summer",
    "while the children slept", "under the lime trees", "at the edge of the forest", "with great care",
    "when the wind turned", "across the valley", "on the way to town", "beside the fire", "all afternoon",
    "as the sun went down",
)  # fmt: skip
_CALIBRATION_WORDS = 240
_USUAL_TOKENS_PER_WORD = 1.3
GUESSED = "No count of prompt tokens was seen: all lengths are guesses from the number of words."
MOST_PROMPT_TOKENS = 10_485_760
"""Longest prompt that is made: the longest context of any model so far (Llama 4 Scout)."""
_SHORT_WORDS = 8
_TRIED_SIZES = (512, 1024, 2048, 4096, 8192, 16_384, 32_000)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Makes prompts for one server.

    Attributes:
        ids: Ordinary token ids to draw from; empty where the server takes text only.
        tokens_per_word: Tokens that a word of `filler` costs with this server's tokenizer.
        measured: Whether the server counted them; else they are those of usual English text.
    """

    ids: tuple[int, ...] = ()
    tokens_per_word: float = _USUAL_TOKENS_PER_WORD
    measured: bool = True

    @property
    def guessed(self) -> bool:
        """Whether nothing is known about the tokens of prompts but the number of their words."""
        return not self.ids and not self.measured

    @property
    def exact(self) -> bool:
        """Whether prompts have exactly the wanted number of tokens."""
        return bool(self.ids)

    def tokens(self, count: int, seed: int | str) -> tuple[int, ...]:
        """Return `count` random ordinary token ids, the same ones for the same seed.

        Raises:
            ValueError: the server takes text only.
            ProbeError: they are more than a prompt may have.
        """
        _check_length(count)
        if not self.ids:
            raise ValueError("this server takes text only")
        return tuple(random.Random(seed).choices(self.ids, k=count))  # noqa: S311  # reproducible, nothing secret

    def filler(self, tokens: int, seed: int | str) -> str:
        """Return sentences without digits that cost about `tokens` tokens, the same ones for the same seed.

        Raises:
            ProbeError: they are more than a prompt may have.
        """
        _check_length(tokens)
        return filler(max(1, round(tokens / self.tokens_per_word)), seed)

    def prompt(self, tokens: int, seed: int | str) -> Prompt:
        """Return a prompt of `tokens` tokens: exactly as ids, about as many as text."""
        return self.tokens(tokens, seed) if self.ids else self.filler(tokens, seed)


def _check_length(tokens: int) -> None:
    if tokens > MOST_PROMPT_TOKENS:
        raise ProbeError(f"a prompt of {tokens:,} tokens; allowed: up to {MOST_PROMPT_TOKENS:,}: name a shorter length")


def filler(words: int, seed: int | str) -> str:
    """Return `words` words of plain sentences, the same ones for the same seed; they hold no digits and no names."""
    rng = random.Random(seed)  # noqa: S311  # reproducible, nothing secret
    parts: list[str] = []
    while len(parts) < words:
        text = f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)} {rng.choice(_ENDS)}."
        parts += (text[0].upper() + text[1:]).split()
    return " ".join(parts[:words])


def find(client: Client) -> Vocabulary:
    """Return the vocabulary for the server that `client` has looked at.

    The ids are those that the server's own tokenizer gives for plain sentences, so that none is special. Without
    ``/tokenize``, vLLM is asked with growing ids, which it refuses once they are out of its vocabulary; the middle
    half of what it takes is used, because special ids stand at the ends.

    Raises:
        ProbeError: the server refuses every completion.
    """
    server = client.server
    if server is None:
        raise ValueError("the server was not looked at yet")
    if server.takes_token_ids:
        ids = client.tokenize(filler(1500, "vocabulary")) or ()
        distinct = tuple(sorted(set(ids)))
        if len(distinct) < 8 and server.engine == "vllm":
            distinct = _tried(client)
        if distinct:
            return Vocabulary(distinct, len(ids) / 1500 if ids else _USUAL_TOKENS_PER_WORD)
    known = _calibrated(client)
    return Vocabulary((), known or _USUAL_TOKENS_PER_WORD, measured=known is not None)


def _tried(client: Client) -> tuple[int, ...]:
    size = 0
    for tried in _TRIED_SIZES:
        if not client.complete(Ask((tried - 1,) * 4, 1, time.monotonic() + client.timeout)).ok:
            break
        size = tried
    return tuple(range(size // 4, size * 3 // 4))


def _calibrated(client: Client) -> float | None:
    """Return the tokens per word that the server counts for sentences, None where it counts none.

    Where the count at the end does not come, it is asked for with the first piece.
    """
    text = filler(_CALIBRATION_WORDS, "calibration")
    reply = client.complete(Ask(text, 1, time.monotonic() + client.timeout))
    if reply.kind == "refused":
        _check_short(client)
    if reply.answered and not reply.prompt_tokens:
        reply = client.complete(Ask(text, 1, time.monotonic() + client.timeout, enough=lambda _tokens: True))
    return reply.prompt_tokens / _CALIBRATION_WORDS if reply.prompt_tokens else None


def _check_short(client: Client) -> None:
    """Raise where a few words are refused as well: then it is not the length that is refused."""
    short = client.complete(Ask(filler(_SHORT_WORDS, "short"), 1, time.monotonic() + client.timeout))
    if short.kind == "refused":
        raise ProbeError(f"{client.url}/v1/completions refuses every completion: {short.error}", 3)
