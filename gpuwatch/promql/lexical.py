"""A look at the text of an expression before it is parsed: what only newer Prometheus versions accept is refused."""

from __future__ import annotations

import re

from gpuwatch.promql.nodes import quote
from gpuwatch.promql.values import PromQLError

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)
      | (?P<duration>(?:\d+(?:ms|[smhdwy]))+(?![\w.]))
      | (?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<word>(?:[A-Za-z_]|:(?=[A-Za-z_:]))[\w:]*)
      | (?P<symbol>.)""",
    re.VERBOSE | re.DOTALL,
)
_GROUPING = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_OPEN = {"(": ")", "[": "]", "{": "}"}
_DEEPEST = 64
_LONGEST = 20_000


def normalise(text: str) -> str:
    """Return `text` without comments and with every string in double or single quotes.

    Raises:
        PromQLError: The text uses syntax that Prometheus 2.42 does not have, is empty, too long or too deeply nested.
    """
    if len(text) > _LONGEST:
        raise PromQLError(f"the expression is longer than {_LONGEST} characters")
    out: list[str] = []
    stack: list[tuple[str, str]] = []
    previous = before = ""
    for found in _TOKEN.finditer(text):
        kind, word = found.lastgroup, found[0]
        if kind == "space":
            out.append(" ")
            continue
        _check(kind or "", word, previous, before, stack)
        if word in _OPEN:
            stack.append((word, previous))
            if len(stack) > _DEEPEST:
                raise PromQLError(f"the expression is nested more than {_DEEPEST} levels deep")
        elif stack and word == _OPEN[stack[-1][0]]:
            stack.pop()
        out.append(quote(word[1:-1]) if word.startswith("`") and kind == "string" else word)
        before, previous = previous, word
    if not "".join(out).strip():
        raise PromQLError("the expression is empty")
    return "".join(out)


def _check(kind: str, word: str, previous: str, before: str, stack: list[tuple[str, str]]) -> None:
    """Refuse one word where its place makes it newer syntax; `stack` holds (bracket, word in front of it)."""
    bracket, owner = stack[-1] if stack else ("", "")
    after_offset = previous.lower() == "offset" or (previous in ("-", "+") and before.lower() == "offset")
    if kind == "duration" and bracket != "[" and not after_offset:
        raise PromQLError(f"a duration such as {word} as a number needs Prometheus 2.54 or newer; write seconds")
    if kind == "number" and (bracket == "[" or after_offset):
        raise PromQLError(f"{word} is not a duration; write a unit, such as {word}s")
    if word == "@":
        raise PromQLError("the @ modifier is not supported")
    if kind == "string" and (bracket == "{" or owner.lower() in _GROUPING) and previous in ("{", "(", ","):
        raise PromQLError(f"a quoted name such as {word} needs Prometheus 3.0 or newer")
    if kind == "symbol" and word == "$":
        raise PromQLError("variables such as $__rate_interval must be replaced first")
