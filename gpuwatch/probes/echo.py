"""A server's words without what was sent to it: the API key, the prompt, and bodies of requests that it repeats."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gpuwatch.engines.log_text import CUT, redact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatch.probes.exchange import Prompt

KEY_PART = 8
"""Characters of a key in a row that give it away; half of a key that is shorter than two of them."""
RUN = 12
"""Letters and digits in a row that a text has from the prompt, and not by chance; signs and spaces do not count."""
WIDE_RUN = 4
"""The same of signs that stand for a syllable or a word, such as Chinese."""
_WIDE = "\u2e80"
_ESCAPES = re.compile(r"\\+u([0-9a-fA-F]{4})|\\+([nrt])|\\+(?=['\"/\\])")
_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")
_IDS = re.compile(r"(?:\d+\s*,\s*){7,}\d+")
_MASKED = re.compile(r"[\w-]*\*{3,}[\w*-]*|\bsk-[\w-]*\.{2,}\w*")
"""Keys of which the server shows the ends: ``sk-ab****yz``, ``sk-...yz``."""
_HASH = re.compile(r"\b[0-9a-fA-F]{64}\b")
"""LiteLLM shows the SHA-256 of a key, or of the one that it has in its stead."""
_WORD = re.compile(r"\w{5,}")
_NO_SIGNS = {number: None for number in range(128) if not chr(number).isalnum()}
_FEW = 1000
"""So many parts are looked for one by one, which is faster than to take a long prompt apart."""
_QUOTES = "'\"`\u2018\u2019\u201c\u201d"
_ORDINARY = frozenset((
    "allowed", "available", "body", "bytes", "character", "characters", "chars", "completion", "completions",
    "content", "context", "count", "error", "exceed", "exceeds", "field", "given", "however", "input", "inputs",
    "invalid", "large", "least", "length", "limit", "longer", "maximum", "message", "messages", "model", "number",
    "output", "parameter", "prompt", "prompts", "reduce", "request", "requested", "required", "requests", "response",
    "sequence", "server", "size", "string", "system", "tokens", "total", "valid", "value", "window", "words",
))  # fmt: skip
"""Words of refusals: that a prompt has them, too, is no reason to cut them out."""


def without(text: str, key: str, prompt: Prompt) -> str:
    """Return what a server says without the API key and the prompt that were sent to it, whole or in part.

    Each is replaced by a mark. Escaped letters of JSON, HTML and addresses are read, so that they hide nothing.

    Args:
        text: Its words, before they are shortened: a key that is cut in two is not recognised.
        key: The API key; empty: none.
        prompt: What was sent, token ids or text.
    """
    text = _plain(text)
    marked = bytearray(len(text))
    _mark_key(text, key, marked)
    if isinstance(prompt, str):
        _mark_runs(text, prompt, marked)
        _mark_words(text, prompt, marked)
    for pattern in (_IDS, _MASKED, _HASH):
        for found in pattern.finditer(text):
            _mark(marked, found.start(), found.end())
    return redact(_cut(text, marked))


def _plain(text: str) -> str:
    """Return `text` with the letters that escapes stand for."""
    text = _ESCAPES.sub(lambda found: chr(int(found[1], 16)) if found[1] else " " if found[2] else "", text)
    if "&" in text:
        text = html.unescape(text)
    return unquote(text) if _PERCENT.search(text) else text


def _mark(marked: bytearray, start: int, end: int) -> None:
    marked[start:end] = b"\1" * (end - start)


def _mark_key(text: str, key: str, marked: bytearray) -> None:
    if not key:
        return
    for found in re.finditer(rf"(?<!\w){re.escape(key)}(?!\w)", text, re.IGNORECASE):
        _mark(marked, found.start(), found.end())
    if len(key) < KEY_PART:
        return
    size = min(KEY_PART, (len(key) + 1) // 2)
    parts = set(_parts(key, size))
    for at, part in enumerate(_parts(text, size)):
        if part in parts:
            _mark(marked, at, at + size)


def _mark_runs(text: str, prompt: str, marked: bytearray) -> None:
    """Mark what stands in the prompt in the same order of letters and digits."""
    letters, places = [], []
    for place, letter in enumerate(text):
        for folded in letter.casefold():
            if folded.isalnum():
                letters.append(folded)
                places.append(place)
    said = "".join(letters)
    sent = _letters(prompt)
    for size, wide in ((RUN, False), (WIDE_RUN, True)):
        parts = {part for part in _parts(said, size) if not wide or min(part) >= _WIDE}
        if not parts:
            continue
        few = len(parts) < _FEW
        common = {part for part in parts if part in sent} if few else parts.intersection(_parts(sent, size))
        for at, part in enumerate(_parts(said, size)):
            if part in common:
                _mark(marked, places[at], places[at + size - 1] + 1)


def _letters(text: str) -> str:
    """Return the letters and digits of `text`, all small."""
    if text.isascii():
        return text.lower().translate(_NO_SIGNS)
    return "".join(filter(str.isalnum, text.casefold()))


def _parts(text: str, size: int) -> Iterable[str]:
    return (text[at : at + size] for at in range(len(text) - size + 1))


def _mark_words(text: str, prompt: str, marked: bytearray) -> None:
    """Mark single words of the prompt that are names, codes or quoted; plain ones may be the server's own."""
    sent = prompt.casefold()
    for found in _WORD.finditer(text):
        word = found[0]
        if word.casefold() in _ORDINARY:
            continue
        if word.isdigit():
            telling = len(word) >= 8
        else:
            before, after = text[: found.start()][-1:], text[found.end() :][:1]
            quoted = bool(before) and bool(after) and before in _QUOTES and after in _QUOTES
            telling = quoted or not word.isascii() or word[1:] != word[1:].lower() or any(map(str.isdigit, word))
        if telling and re.search(rf"(?<!\w){re.escape(word.casefold())}(?!\w)", sent):
            _mark(marked, found.start(), found.end())


def _cut(text: str, marked: bytearray) -> str:
    """Return `text` with a mark for each marked stretch and the rest of the words that it begins and ends in."""
    pieces: list[str] = []
    at = 0
    while (start := marked.find(1, at)) >= 0:
        end = start
        while end < len(text) and (marked[end] or _goes_on(text, end)):
            end += 1
        while start > at and _goes_on(text, start):
            start -= 1
        between = text[at:start]
        if pieces and len(between) <= 4:  # a short word or a sign between two stretches is of the same text
            pieces[-1] = CUT
        else:
            pieces += [between, CUT]
        at = end
    return "".join([*pieces, text[at:]])


def _goes_on(text: str, at: int) -> bool:
    """Return whether a word has letters on both sides of a place."""
    return 0 < at < len(text) and _of_word(text[at - 1]) and _of_word(text[at])


def _of_word(letter: str) -> bool:
    return (letter.isalnum() or letter in "_-") and letter < _WIDE
