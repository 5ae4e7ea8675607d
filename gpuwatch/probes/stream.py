"""The answer of ``/v1/completions`` as it comes in: server-sent events, cut anywhere, until the last one.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html, of which OpenAI-compatible servers use lines
``data: JSON`` and a last ``data: [DONE]``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

LONGEST_LINE = 4 * 2**20
ERROR_CHARACTERS = 200
MOST_CHARACTERS = 2**16
"""Longest text of an error that is looked at; it is shortened once what was sent is cut out of it."""


def one_line(text: str, most: int = ERROR_CHARACTERS) -> str:
    """Return `text` as one line of printable characters, cut to `most`."""
    shown = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def error_text(document: Any) -> str:
    """Return what an error document says: OpenAI's, FastAPI's and plain forms; empty where it says nothing.

    It is whole: what the server repeats of the request has to be cut out before it is shortened.
    """
    if isinstance(document, str):
        return one_line(document, MOST_CHARACTERS)
    if isinstance(document, list):
        return error_text(document[0]) if document else ""
    if not isinstance(document, dict):
        return ""
    for key in ("error", "message", "msg", "detail"):
        if document.get(key):
            return error_text(document[key])
    return ""


@dataclass(slots=True)
class Events:
    """Collects one streamed completion.

    Attributes:
        texts: The pieces of the completion, in order.
        times: When each piece came, in the time given to `feed`, without those before the first text; see `pieces`.
        first_tokens: Tokens in the first piece, 1 where the server does not count as it goes.
        usage: The newest ``usage`` object of the server, empty where it sent none.
        error: What the server reported instead of going on, or what is wrong with the stream; empty: nothing.
        finished: Whether the last event came.
        ran_on: Whether more came than was asked for; the reader says so.
        broke_off: Whether the connection ended before the stream did.
    """

    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    first_tokens: int = 1
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    finished: bool = False
    ran_on: bool = False
    broke_off: bool = False
    _rest: bytes = b""
    _reason: str = ""
    _blank: list[float] = field(default_factory=list)
    """When pieces without text came before the first text. Gateways send one at once; an engine counts its tokens."""

    @property
    def pieces(self) -> list[float]:
        """When each piece came; those without text at the start count only where no text came at all."""
        return self.times or self._blank

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes, which came at `now`. Never raises: what is no event stream ends up in `error`."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LONGEST_LINE:
            self.error = f"the stream has a line over {LONGEST_LINE // 2**20} MiB"
        for line in lines:
            if self.finished or self.error:
                return
            self._line(line.strip(b"\r"), now)

    def end(self, now: float) -> None:
        """Take the end of the connection."""
        if self._rest and not self.finished and not self.error:
            self._line(self._rest.strip(b"\r"), now)
            self._rest = b""
        if not self.finished and not self.error:
            if self._reason:  # some servers leave the last event out
                self.finished = True
            else:
                self.broke_off = True
                self.error = f"the stream broke off after {len(self.pieces)} pieces"

    def _line(self, line: bytes, now: float) -> None:
        if not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return
        if not line.startswith(b"data:"):
            self.error = "the answer is no event stream"
            return
        payload = line[5:].strip()
        if payload == b"[DONE]":
            self.finished = True
            return
        try:
            document = json.loads(payload)
        except (ValueError, RecursionError):
            self.error = "an event of the stream is not JSON"
            return
        self._event(document, now)

    def _event(self, document: Any, now: float) -> None:
        if not isinstance(document, dict) or not ("choices" in document or "usage" in document):
            self.error = error_text(document) or "an event of the stream is no completion"
            return
        if isinstance(document.get("usage"), dict):
            self.usage = document["usage"]
        choices = document.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(first, dict):
            return
        text, reason = first.get("text"), first.get("finish_reason")
        text = text if isinstance(text, str) else ""
        if not text and not reason and not self.times and not self.count("completion_tokens"):
            self._blank.append(now)
        elif text or not reason:
            self.texts.append(text)
            self.times.append(now)
            if len(self.times) == 1:
                self.first_tokens = max(1, self.count("completion_tokens") or 1)
        if isinstance(reason, str):
            self._reason = reason

    @property
    def counts(self) -> bool:
        """Whether `usage` was filled in: no prompt has 0 tokens, and no text that came has.

        Gateways that count nothing send zeros.
        """
        nothing = self.count("completion_tokens") == 0 and any(self.texts)
        return not nothing and self.count("prompt_tokens") != 0

    @property
    def generated(self) -> int:
        """Tokens so far as the server counts them, the pieces where it does not count as it goes."""
        return max(len(self.times), self.count("completion_tokens") or 0)

    def count(self, *path: str) -> int | None:
        """Return a number of `usage`, such as ``count("prompt_tokens")``; None where the server does not say it."""
        value: Any = self.usage
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
