"""A look at the text of an expression before it is parsed: what only newer Prometheus versions accept is refused."""

from __future__ import annotations

import re

from gpuwatch.promql.nodes import quote
from gpuwatch.promql.values import PromQLError

TOKEN = re.compile(
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
_MOST_TOKENS = 2000  # the parser recurses over operators without a limit of its own
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
    seen = [""] * 3
    for found in TOKEN.finditer(text):
        kind, word = found.lastgroup or "", found[0]
        if kind == "space":
            out.append(" ")
            continue
        _check(kind, word, seen, stack)
        if word in _OPEN:
            stack.append((word, seen[-1]))
            if len(stack) > _DEEPEST:
                raise PromQLError(f"the expression is nested more than {_DEEPEST} levels deep")
        elif stack and word == _OPEN[stack[-1][0]]:
            stack.pop()
        out.append(quote(word[1:-1]) if word.startswith("`") and kind == "string" else word)
        seen.append(word)
        if len(seen) > _MOST_TOKENS:
            raise PromQLError(f"the expression has more than {_MOST_TOKENS} words and signs")
    if not "".join(out).strip():
        raise PromQLError("the expression is empty")
    return "".join(out)


def _check(kind: str, word: str, seen: list[str], stack: list[tuple[str, str]]) -> None:
    """Refuse one token where its place makes it newer syntax; `stack` holds (bracket, word in front of it)."""
    bracket, owner = stack[-1] if stack else ("", "")
    is_duration = bracket == "[" or _after_offset(seen)
    if kind == "duration" and not is_duration:
        raise PromQLError(f"a duration such as {word} as a number needs Prometheus 2.54 or newer; write seconds")
    if is_duration and (kind == "number" or word.lower() in ("nan", "inf")):
        raise PromQLError(f"{word} is not a duration; write a unit, such as {word}s")
    if word == "-" and seen[-1] == "@":
        raise PromQLError("a time before 1970 behind @ is not supported")
    if kind == "string" and (bracket == "{" or owner.lower() in _GROUPING) and seen[-1] in ("{", "(", ","):
        raise PromQLError(f"a quoted name such as {word} needs Prometheus 3.0 or newer")
    if word == "$":
        raise PromQLError("variables such as $__rate_interval must be replaced first")


def _after_offset(seen: list[str]) -> bool:
    """Say whether the next token belongs to an offset modifier; a metric may be called offset, too."""
    at = -2 if seen[-1] in ("-", "+") else -1
    if seen[at].lower() != "offset":
        return False
    return re.search(r"[\w:)\]}\"'`]$", seen[at - 1]) is not None
