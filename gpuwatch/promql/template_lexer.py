"""From the text of a template to its texts and actions, and from an action to its tokens.

The rules are those of Go's ``text/template/parse/lex.go``.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLANK = " \t\r\n"
_INSIDE = re.compile(
    r"(?:`[^`]*`|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)+'|(?!\}\})[^`\"'])*\}\}",
    re.DOTALL,
)
_COMMENT = re.compile(r"(-[ \t\r\n])?(/\*)")
_COMMENT_END = re.compile(r"([ \t\r\n]-)?\}\}")
_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`)
      | (?P<character>'(?:[^'\\\n]|\\.)+')
      | (?P<number>[+-]?(?:0[xX][\da-fA-F_]+(?:\.[\da-fA-F_]*)?(?:[pP][+-]?\d+)?
                         |0[bB][01_]+|0[oO][0-7_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?)(?!\w))
      | (?P<variable>\$\w*(?:\.\w+)*)
      | (?P<field>(?:\.[A-Za-z_]\w*)+)
      | (?P<dot>\.)
      | (?P<symbol>:=|[=|(),])
      | (?P<word>\w+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}"
_TEXT = re.compile(rf"(?:[^\\]|\\(?:[abfnrtv\\\"]|{_ESCAPE}))*")
_CHARACTER = re.compile(rf"[^\\']|\\(?:[abfnrtv\\']|{_ESCAPE})")
_LARGEST = 2**63


@dataclass(frozen=True, slots=True)
class Token:
    """One word or sign of an action; `spaced` where a blank stands in front of it."""

    kind: str
    text: str
    spaced: bool


END = Token("end", "", spaced=True)
"""What follows the last token of an action."""


def split(text: str) -> Iterator[tuple[str, str]]:
    """Yield ("text", …) and ("action", …) with the trim marks applied and comments left out.

    Raises:
        PromQLError: An action or a comment is not closed.
    """
    at, trim = 0, False
    while at < len(text):
        begin = text.find("{{", at)
        plain = text[at:] if begin < 0 else text[at:begin]
        plain = plain.lstrip(_BLANK) if trim else plain
        if begin < 0:
            if plain:
                yield "text", plain
            return
        inside = begin + 2
        comment = _COMMENT.match(text, inside)
        if text.startswith("-", inside) and text[inside + 1 : inside + 2] in tuple(_BLANK):
            plain = plain.rstrip(_BLANK)
            inside += 1
        if plain:
            yield "text", plain
        if comment:
            at, trim = _comment(text, comment.end())
            continue
        found = _INSIDE.match(text, inside)
        if not found:
            raise PromQLError("{{ is not closed with }}")
        content, at = found[0][:-2], found.end()
        trim = content.endswith("-") and content[-2:-1] in tuple(_BLANK)
        yield "action", content[:-1] if trim else content


def _comment(text: str, begin: int) -> tuple[int, bool]:
    """Return where a comment's action ends, and whether the blanks behind it go."""
    end = text.find("*/", begin)
    if end < 0:
        raise PromQLError("a comment is not closed")
    close = _COMMENT_END.match(text, end + 2)
    if not close:
        raise PromQLError("a comment is not closed: }} or  -}} must follow its */ at once")
    return close.end(), close[1] is not None


def tokens(content: str) -> list[Token]:
    """Return the tokens of an action.

    Raises:
        PromQLError: There are none, or a sign has no meaning.
    """
    found, spaced = [], True
    for match in _TOKEN.finditer(content):
        kind = match.lastgroup or ""
        if kind == "other":
            raise PromQLError(f"unexpected {match[0]!r}")
        if kind != "space":
            found.append(Token(kind, match[0], spaced))
        spaced = kind == "space"
    if not found:
        raise PromQLError("an action is empty")
    return found


def constant(token: Token) -> str | float | int:
    """Return the value of a string, a character (its code point) or a number.

    Raises:
        PromQLError: It is malformed, or a whole number has more than 64 bits.
    """
    text = token.text
    if token.kind == "number":
        return _number(text)
    if token.kind == "character":
        if not _CHARACTER.fullmatch(text[1:-1]):
            raise PromQLError(f"{text} is not one character")
        return ord(ast.literal_eval(text))
    if text.startswith("`"):
        return text[1:-1]
    if not _TEXT.fullmatch(text[1:-1]):
        raise PromQLError(f"{text} has an unknown escape")
    return str(ast.literal_eval(text))


def _number(text: str) -> float | int:
    octal = re.fullmatch(r"([+-]?)0_?(\d[\d_]*)", text)
    try:
        if octal:
            whole = int(octal[1] + octal[2], 8)
        elif re.fullmatch(r"[+-]?(?:0[xXbBoO][\da-fA-F_]+|[\d_]+)", text):
            whole = int(text, 0)
        else:
            return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        raise PromQLError(f"{text} is not a number") from None
    if not -_LARGEST <= whole < _LARGEST:
        raise PromQLError(f"{text} has more than 64 bits")
    return whole
