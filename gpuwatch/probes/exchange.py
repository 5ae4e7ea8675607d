"""One completion: what is asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Prompt: TypeAlias = "tuple[int, ...] | str"
Kind: TypeAlias = Literal["ok", "refused", "login", "limited", "failed", "timeout", "lost", "cancelled"]
FEWEST_PIECES = 8
"""A stream of fewer pieces does not show whether it was held back."""
PIECES_AT_ONCE = 4
"""Where so many pieces come with each read on average, the stream was held back."""
FASTEST_PIECE = 0.0002
"""Seconds between two tokens that no engine is faster than."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion to ask for.

    Attributes:
        prompt: Token ids, or text.
        max_tokens: Most tokens to generate.
        stop_at: Monotonic time at which to give up.
        salt: Separates the prefix cache of this request from that of others (``cache_salt``); empty: none.
        lora: Name of the adapter to use; empty: the model itself.
        ignore_eos: Whether to generate all of `max_tokens`, where the engine can.
        enough: Called with the tokens so far, or the pieces where the server does not count as it goes; the stream is
            closed, and counts as complete, once it is true.
    """

    prompt: Prompt
    max_tokens: int
    stop_at: float
    salt: str = ""
    lora: str = ""
    ignore_eos: bool = False
    enough: Callable[[int], bool] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one completion. Times are monotonic seconds; None: did not happen, or the server does not say.

    Attributes:
        ok: Whether a complete answer came.
        text: The completion, for scoring only; it is never stored.
        error: One clear line, or empty; nothing of the key and the prompt that the server repeats.
        status: HTTP status, 0 where none came.
        kind: ok; refused (a status that blames the request); login (401 or 403: it says nothing of the request);
            limited (rate limit, after several tries); failed (the server's own error, or an answer that makes no
            sense); timeout; lost (the connection); cancelled.
        token_times: When each piece of the stream came; a piece is one token with most servers, sometimes several.
        first_tokens: Tokens in the first piece.
        pauses: How often a rate limit made the client wait.
        sent_bytes: Size of the body that was sent; 0: nothing was.
        ran_on: Whether the server went on after `max_tokens` tokens and was cut off: it failed, and what came until
            then is an answer all the same. What it counts comes at the end and was not seen.
    """

    ok: bool
    text: str = ""
    error: str = ""
    status: int = 0
    kind: Kind = "ok"
    started: float = 0.0
    first_token: float | None = None
    ended: float = 0.0
    token_times: tuple[float, ...] = ()
    first_tokens: int = 1
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    pauses: int = 0
    sent_bytes: int = 0
    ran_on: bool = False

    @property
    def answered(self) -> bool:
        """Whether an answer came: a complete one, or all of the tokens that were asked for and more."""
        return self.ok or self.ran_on

    @property
    def buffered(self) -> bool:
        """Whether the pieces of the stream came in one go or a few, or faster than any engine: something held them.

        Then no time within the stream is that of the server.
        """
        pieces = len(self.token_times)
        if pieces < FEWEST_PIECES:
            return False
        span = self.token_times[-1] - self.token_times[0]
        return len(set(self.token_times)) * PIECES_AT_ONCE <= pieces or span < FASTEST_PIECE * (pieces - 1)

    @property
    def ttft(self) -> float | None:
        """Seconds from sending to the first token; None where the stream was held back."""
        return None if self.first_token is None or self.buffered else self.first_token - self.started

    @property
    def generated(self) -> int:
        """Tokens generated: as the server counts them, else the pieces that came."""
        return len(self.token_times) if self.completion_tokens is None else self.completion_tokens

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first token; None where fewer than two came, or faster than any engine is."""
        if len(self.token_times) < 2 or self.buffered:
            return None
        seconds = self.token_times[-1] - self.token_times[0]
        later = self.generated - self.first_tokens
        return later / seconds if later > 0 and seconds >= FASTEST_PIECE * later else None
