"""A launch command as it was typed: what stands in front of the engine's arguments, they, and what stands behind."""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.cli import UsageError
from gpuwatch.engines.flag_secrets import shown_text, shown_words
from gpuwatch.ledger.command import in_full_words, read_command, repaired
from gpuwatch.ledger.command_values import check_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.engines.flag_versions import FlagProblem
    from gpuwatch.ledger.command import Command

_WORD = re.compile(r"""(?:[^\s'"\\;&|<>]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""", re.DOTALL)
_OPERATOR = re.compile(r"&&|\|\||;|\||&>>?|\d*(?:>>|>|<)(?:&\d*-?)?|&")
"""What ends a command in a shell: the next command, or where its input and output go."""
_COMMENT = re.compile(r"#[^\n]*")
_SPACE = re.compile(r"(?:\s|\\\n)+")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_VLLM_IMAGE = re.compile(r"(?:^|/)vllm-openai(?:[:@]|$)")
"""The image whose entry point is the engine: what follows its name are the engine's arguments."""
_IMAGE_TAG = re.compile(r"vllm-openai:v?(?P<version>\d+\.\d+(?:\.\d+)?)")

_LONGER = re.compile(
    r"\b(?:VLLM_ALLOW_LONG_MAX_MODEL_LEN|SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN)=['\"]?(?:1|[tT]rue)\b"
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch command: the text before the engine's arguments, the text behind them, and what they say.

    `image` is the engine's version where the command starts an image that names it, else empty.
    """

    before: str
    command: Command
    after: str
    image: str = ""

    @property
    def longer_allowed(self) -> bool:
        """Whether what stands in front lets the engine take a length beyond its model's."""
        return _LONGER.search(self.before) is not None

    def repaired(self, problems: Sequence[FlagProblem]) -> str:
        """Return the whole command with the faults of its flags repaired, and without its secrets."""
        words = shown_words(self.command.engine, shlex.split(repaired(self.command, problems)), self.command.model)
        parts = (shown_text(self.before), shlex.join(words), shown_text(self.after))
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    start: int
    end: int
    operator: bool = False


def read_launch(text: str) -> Launch:
    """Read a launch command, through variables set in front of it and what starts it (``docker run …``, ``nohup``).

    Raises:
        UsageError: it has no engine, or a value is none that the engine takes.
    """
    from gpuwatch.sources.discovery.processes import engine_role  # noqa: PLC0415  # loads psutil

    try:
        shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UsageError(f"--from-command cannot be split into words: {error}") from None
    words = _words(text)
    for first, last in _commands(words):
        plain = [word.text for word in words[first:last]]
        for at, word in enumerate(plain):
            role = None if _ASSIGNMENT.match(word) else engine_role(plain[at:])
            if role is not None and role.role == "server":
                return _launch(text, words, role.engine, (last - len(role.arguments), last))
        for at, word in enumerate(plain):
            if _VLLM_IMAGE.search(word):
                tag = _IMAGE_TAG.search(word)
                return _launch(text, words, "vllm", (first + at + 1, last), tag["version"] if tag is not None else "")
    raise UsageError(
        "--from-command has no engine in it; expected: vllm serve …, python -m vllm.entrypoints.openai.api_server …, "
        "python -m sglang.launch_server … or sglang serve …"
    )


def checked(engine: str, arguments: Sequence[str]) -> Command:
    """Read the arguments of an engine.

    Raises:
        UsageError: a value is none that the engine takes, or missing.
    """
    try:
        check_values(engine, in_full_words(engine, arguments))
    except ValueError as error:
        raise UsageError(f"--from-command: {error}") from None
    return read_command(engine, arguments)


def _launch(text: str, words: Sequence[_Word], engine: str, where: tuple[int, int], image: str = "") -> Launch:
    """Read the engine's arguments, which are the words from the first to before the last of `where`."""
    first, last = where
    _nothing_behind(words[last:])
    arguments = [word.text for word in words[first:last]]
    before = _one_line(words[:first], text)
    return Launch(before, checked(engine, arguments), _one_line(words[last:], text), image)


def _nothing_behind(words: Sequence[_Word]) -> None:
    """Check that no arguments follow where input and output go.

    Raises:
        UsageError: some do.
    """
    target = False  # the next word is the file of a redirection
    for word in words:
        if not word.operator:
            if not target:
                raise UsageError(f"--from-command: {word.text[:40]!r} stands behind a redirection; put it in front")
            target = False
        elif "<" in word.text or ">" in word.text:
            target = not word.text[-1:].isdigit() and word.text[-1] != "-"
        else:
            return


def _one_line(words: Sequence[_Word], text: str) -> str:
    """Return words as they were typed, with one space where there was space."""
    line = ""
    for at, word in enumerate(words):
        apart = at > 0 and words[at - 1].end < word.start
        line += (" " if apart else "") + text[word.start : word.end]
    return line


def _words(text: str) -> list[_Word]:
    """Cut a command line into words and operators, without comments; quotes are balanced."""
    found, at = [], 0
    while at < len(text):
        space = _SPACE.match(text, at)
        comment = _COMMENT.match(text, at) if at == 0 or text[at - 1].isspace() else None
        skipped = space or comment
        if skipped is not None:
            at = skipped.end()
            continue
        operator = _OPERATOR.match(text, at)
        word = operator or _WORD.match(text, at)
        end = word.end() if word is not None else at + 1
        plain = text[at:end] if operator is not None else "".join(shlex.split(text[at:end].replace("\\\n", "")))
        found.append(_Word(plain, at, end, operator is not None))
        at = end
    return found


def _commands(words: Sequence[_Word]) -> list[tuple[int, int]]:
    """Return where the commands of a line begin and end."""
    cuts = [-1, *(at for at, word in enumerate(words) if word.operator), len(words)]
    return [(first + 1, last) for first, last in itertools.pairwise(cuts) if first + 1 < last]
