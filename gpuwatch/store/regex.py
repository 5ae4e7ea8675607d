"""Regular expressions that mean the same in RE2 (Prometheus) and in Python.

Prometheus matches whole values with RE2. Python's `re` knows constructs that RE2 refuses, and the other way round.
What only one of the two understands, or both understand differently, is refused, and so is what RE2 matches at once
and Python in hours. Syntax of RE2:
https://github.com/google/re2/wiki/Syntax.
"""

from __future__ import annotations

import re
from functools import lru_cache

from gpuwatch.store.backtracking import TooComplexError, endless

_ESCAPES = frozenset("abfnrtv" + "dDsSwW" + "bBA" + "x")
_GROUP = re.compile(r"\(\?(?::|P<[A-Za-z_][A-Za-z0-9_]*>|(?P<on>[ims]+):|(?P<flags>[ims]+)\))")
_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_HEX = re.compile(r"\\x(?:[0-9A-Fa-f]{2}|\{([0-9A-Fa-f]{1,6})\})")
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r"\t ",
    "digit": "0-9",
    "lower": "a-z",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_MOST_REPEATS = 1000
_UNBOUNDED = re.compile(r"[*+{]")


class RegexError(ValueError):
    """A regular expression that RE2 refuses or that Python would read differently."""


@lru_cache(maxsize=1024)
def compile_regex(pattern: str) -> re.Pattern[str]:
    r"""Return `pattern` for use with `fullmatch`, which is how Prometheus applies it.

    Character classes such as ``\d`` are ASCII only and ``.`` matches a line break, as in Prometheus 3.

    Raises:
        RegexError: RE2 would refuse the pattern, or Python cannot express it or would take hours to match it.
    """
    translated = _Translator(pattern).run()
    try:
        compiled = re.compile(translated, re.DOTALL | re.ASCII)
        slow = endless(translated) if _UNBOUNDED.search(translated) else ""
    except (re.error, OverflowError) as error:
        raise RegexError(f"regular expression {pattern!r}: {error}") from None
    except (TooComplexError, RecursionError):
        raise RegexError(f"regular expression {pattern!r}: it is too large or too deeply nested") from None
    if slow:
        raise RegexError(f"regular expression {pattern!r}: {slow}")
    return compiled


class _Translator:
    """One pass over a pattern: checks it and rewrites the few forms that are spelled differently in Python."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._out: list[str] = []

    def run(self) -> str:
        """Return the pattern in Python's spelling."""
        text = self._pattern
        while self._at < len(text):
            char = text[self._at]
            if char == "\\":
                self._escape(in_class=False)
            elif char == "[":
                self._class()
            elif char == "(":
                self._group()
            elif char in "*+?" or _REPEAT.match(text, self._at):
                self._repeat()
            elif char == "$":
                self._put("\\Z", 1)  # Python's $ also matches before a final line break
            else:
                self._put(re.escape(char) if char in "{}" else char, 1)
        return "".join(self._out)

    def _put(self, text: str, used: int) -> None:
        self._out.append(text)
        self._at += used

    def _refuse(self, what: str) -> RegexError:
        return RegexError(f"regular expression {self._pattern!r}: {what}")

    def _escape(self, *, in_class: bool) -> None:
        text, at = self._pattern, self._at
        if at + 1 == len(text):
            raise self._refuse("it ends with a backslash")
        char = text[at + 1]
        if char == "x":
            found = _HEX.match(text, at)
            if not found or int(found[1] or "0", 16) > 0x10FFFF:
                raise self._refuse("\\x needs two hexadecimal digits or {…}")
            self._put(re.escape(chr(int(found[1] or found[0][2:], 16))), len(found[0]))
        elif char == "z" and not in_class:
            self._put("\\Z", 2)
        elif char.isdigit():
            raise self._refuse("back-references are not supported")
        elif char in "pP":
            raise self._refuse(f"Unicode classes such as \\{char}{{Greek}} are not supported")
        elif char.isalpha() and (char not in _ESCAPES or (in_class and char in "bBA")):
            raise self._refuse(f"the escape \\{char} is not supported")
        else:
            self._put("\\" + char, 2)

    def _class(self) -> None:
        text = self._pattern
        self._put("[", 1)
        if text.startswith("^", self._at):
            self._put("^", 1)
        if text.startswith("]", self._at):
            self._put("\\]", 1)
        while self._at < len(text) and text[self._at] != "]":
            char = text[self._at]
            if char == "\\":
                self._escape(in_class=True)
            elif text.startswith("[:", self._at):
                self._posix()
            elif char == "[" or text[self._at : self._at + 2] in ("--", "&&", "||", "~~"):
                self._put("\\" + char, 1)
            else:
                self._put(char, 1)
        if self._at == len(text):
            raise self._refuse("a character class is not closed")
        self._put("]", 1)

    def _posix(self) -> None:
        end = self._pattern.find(":]", self._at)
        name = self._pattern[self._at + 2 : end] if end > 0 else ""
        if name not in _POSIX:
            raise self._refuse(f"the character class [:{name}:] is not supported")
        self._put(_POSIX[name], len(name) + 4)

    def _group(self) -> None:
        text, at = self._pattern, self._at
        if not text.startswith("(?", at):
            self._put("(", 1)
            return
        found = _GROUP.match(text, at)
        if not found:
            if text[at + 2 : at + 3] in ("=", "!") or text[at + 2 : at + 4] in ("<=", "<!"):
                raise self._refuse("look-around is not supported")
            raise self._refuse(f"the group {text[at : at + 4]!r} is not supported")
        if found["flags"] and at:
            raise self._refuse(f"flags such as {found[0]} are only supported at the start")
        self._put(found[0], len(found[0]))

    def _repeat(self) -> None:
        text = self._pattern
        found = _REPEAT.match(text, self._at)
        if found and max(int(found[1]), int(found[2] or "0")) > _MOST_REPEATS:
            raise self._refuse(f"a repeat count is above {_MOST_REPEATS}")
        self._put(found[0] if found else text[self._at], len(found[0]) if found else 1)
        if text.startswith("?", self._at):
            self._put("?", 1)
        if self._at < len(text) and (text[self._at] in "*+?" or _REPEAT.match(text, self._at)):
            raise self._refuse("a repeat follows a repeat")
