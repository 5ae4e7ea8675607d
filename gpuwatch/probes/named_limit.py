"""The limit in tokens that a refusal names, in the words of the engines and of what stands in front of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gpuwatch.probes.stream import one_line

Counts: TypeAlias = Literal["request", "prompt", "pool"]
"""What a limit counts: prompt and answer; the prompt, or it is not clear which; the prompt, by what SGLang's KV pool
holds."""

_NUMBER = r"(?P<n>[0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]+)(?![0-9.]*[0-9%])"
_IS = r"[`'\"]?(?:\s+(?:is|of|was|limit|only))*\s*[:=(]*\s*"
_TEXTS: tuple[tuple[Counts, str], ...] = (
    # SGLang's max_req_input_len, what the KV pool and the context allow: managers/schedule_policy and scheduler.
    ("pool", rf"maximum allowed (?:input )?length{_IS}"),
    ("pool", rf"\bmax_req_input_len{_IS}"),
    # vLLM, SGLang, OpenAI, llama.cpp.
    ("request", rf"context[ _-](?:length|size|window|limit){_IS}"),
    ("request", rf"\bmax(?:imum)?[ _-](?:model|seq(?:uence)?|context|total)[ _-](?:len(?:gth)?|tokens){_IS}"),
    ("request", rf"\b(?:n_ctx|num_ctx){_IS}"),
    # Text Generation Inference.
    ("request", r"tokens \+ [`']?max_new_tokens[`']? must be <= "),
    ("prompt", r"must have less than "),
    ("prompt", rf"\bmax(?:imum)?[ _-](?:input|prompt)[ _-](?:tokens?|len(?:gth)?|size){_IS}"),
    ("prompt", r"tokens > (?=[0-9,]+(?: tokens)? maximum)"),  # Anthropic
    (
        "prompt",
        rf"(?:exceed|no more than|at most|up to|limit{_IS}|maximum (?:is|of)) ?(?=[0-9,_]+[ -](?:\w+ )?tokens?\b)",
    ),
)
_PATTERNS = tuple((counts, re.compile(text + _NUMBER, re.IGNORECASE)) for counts, text in _TEXTS)
_FIELDS = ("n_ctx", "max_model_len", "max_context_length", "max_total_tokens", "max_input_tokens")
"""Fields of an error document that hold the limit as a number; llama.cpp has ``n_ctx`` next to its message."""
_COUNT = r"(?:at least )?(?P<n>[0-9][0-9,_]{0,12})"
_WHOLE = re.compile(rf"(?:\btotal of|\brequested) {_COUNT} tokens", re.IGNORECASE)
_PROMPT = re.compile(
    rf"(?:\byour (?:request|prompt) (?:has|contains)|\byou passed|\binput(?: length)? \(|\bprompt \(length) ?{_COUNT}"
    r"(?: (?:input |prompt )?tokens|\))",
    re.IGNORECASE,
)
"""The size of a request, and of its prompt alone, in the words of vLLM, SGLang and OpenAI."""


@dataclass(frozen=True, slots=True)
class Named:
    """A limit that a refusal names, in tokens, and what it counts."""

    tokens: int
    counts: Counts


def named(text: str) -> Named | None:
    """Return the limit that the words of a refusal name; None where they name none."""
    found = _found(text)
    return None if found is None else Named(int(re.sub("[,_]", "", found[1]["n"])), found[0])


def requested(text: str, output: int) -> int | None:
    """Return the tokens of a request, prompt and answer, by the words of its refusal; None: they do not say.

    Where they count the prompt only, the `output` tokens that were asked for are added.
    """
    for pattern, more in ((_WHOLE, 0), (_PROMPT, output)):
        found = pattern.search(text)
        if found is not None:
            return int(re.sub("[,_]", "", found["n"])) + more
    return None


def _found(text: str) -> tuple[Counts, re.Match[str]] | None:
    for counts, pattern in _PATTERNS:
        found = pattern.search(text)
        if found is not None and len(found["n"]) <= 12:
            return counts, found
    return None


def from_fields(document: Any) -> str:
    """Return the limit that an error document holds beside its message, such as ``n_ctx 4096``; empty: none."""
    inner = document.get("error") if isinstance(document, dict) else None
    for fields in (inner, document):
        if not isinstance(fields, dict):
            continue
        for name in _FIELDS:
            value = fields.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return f"{name} {value}"
    return ""


def shortened(text: str, most: int) -> str:
    """Return `text` as one line of at most `most` characters; a limit that it names further on is kept."""
    line = one_line(text, len(text) + 1)
    found = _found(line)
    if len(line) <= most or found is None or found[1].end() < most:
        return one_line(line, most)
    end = min(len(line), found[1].end() + 8)
    half = most // 2
    tail = line[max(half, end - half + 2) : end]
    return f"{line[: most - len(tail) - 2].rstrip()}… {tail}"
