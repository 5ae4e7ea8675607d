"""Secrets in a launch command: its words and its text as they may be shown and kept."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_names import in_full
from gpuwatch.engines.flags import FLAGS
from gpuwatch.engines.log_text import CUT, redact

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME = re.compile(r"(?:^|-)(?:api-?key|token|secret|passw(?:or)?d|credentials?)$")
"""Ends of the names of flags that hold a secret, whether or not the engine has them: a slip holds it, too."""
_WITHIN = re.compile(
    r"api[_-]?key|secret|passw|credential|access[_-]?key|_TOKEN\b|authorization|bearer\s|://[^/\s]*@|\b(?:hf_|sk-)",
    re.IGNORECASE,
)
"""What a text has in it that may hold a secret."""


def shown_words(engine: str, words: Sequence[str], model: str = "") -> list[str]:
    """Return the arguments of an engine with `CUT` in place of keys, tokens and passwords.

    A flag takes several keys: all words up to the next flag are cut, but for the first word that is the `model`.
    """
    shown, hides, first = [], False, False
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("-") and not first:
            hides = _is_secret(engine, name)
            first = hides and not equals
            shown.append(f"{name}={CUT}" if hides and equals else shown_text(word))
        elif hides and (first or word != model):
            shown.append(CUT)
            first = False
        else:
            shown.append(shown_text(word))
    return shown


_SHELL = re.compile(r"[|&;<>]+|2>(?:&1)?")


def shown_command(engine: str, text: str) -> str:
    """Return the text of a command with `CUT` in place of what nobody else may see: secrets, prompts, chat templates.

    What is cut for one flag ends at the next one: the names of all flags stay. A text that holds nothing of the kind
    comes back as it is.
    """
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError:
        return redact(text)
    shown = shown_words(engine, words)
    if shown == words and redact(text) == text:
        return text
    parts: list[list[str]] = [[]]
    for word in shown:
        if word.startswith("-"):
            parts.append([])
        parts[-1].append(word if _SHELL.fullmatch(word) else _quoted(word))
    return " ".join(redact(" ".join(part)) for part in parts if part)


def _quoted(word: str) -> str:
    """Return a word as a shell wants it; `CUT` needs no quotes."""
    bare = word.replace(CUT, "")
    return word if word != bare and (not bare or shlex.quote(bare) == bare) else shlex.quote(word)


def shown_text(text: str) -> str:
    """Return text of a command with `CUT` in place of keys, tokens and passwords that it sets or carries."""
    return redact(text) if _WITHIN.search(text) is not None else text


def _is_secret(engine: str, spelling: str) -> bool:
    if not spelling.startswith("--"):
        return False
    name = spelling[2:].replace("_", "-")
    flag = FLAGS[engine].get(in_full(engine, name))
    return (flag is not None and flag.kind == "secret") or _NAME.search(name) is not None
