"""A launch command as it was typed: what stands in front of the engine's arguments, they, and what stands behind."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuwatch.cli import UsageError
from gpuwatch.engines.flag_secrets import shown_text, shown_words
from gpuwatch.ledger.command import in_full_words, read_command, repaired
from gpuwatch.ledger.command_values import check_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatch.engines.flag_versions import FlagProblem
    from gpuwatch.ledger.command import Command

_WORD = re.compile(r"""(?:[^\s'"\\;&|<>]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""", re.DOTALL)
_OPERATOR = re.compile(r"&&|\|\||;|\||&>>?|\d*(?:>>|>|<)(?:&\d*-?)?|&")
"""What ends a command in a shell: the next command, or where its input and output go."""
_COMMENT = re.compile(r"#[^\n]*")
_SPACE = re.compile(r"(?:\s|\\\n)+")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_VLLM_IMAGE = re.compile(r"(?:^|/)vllm-openai(?:-\w+)*(?:[:@]|$)")
"""The image whose entry point is the engine: what follows its name are the engine's arguments."""
_IMAGE = re.compile(
    r"(?:^|[/=])(?:(?P<vllm>vllm(?:-(?:openai|dev|cpu|xpu|rocm|ascend|release|repo))*)|(?P<sglang>sglang(?:-\w+)*|sgl-dev))"
    r":(?P<tag>[\w.-]+)"
)
"""Images that are called after the engine in them. Those of LMCache are tagged with its own version."""
_TAG = re.compile(r"(?:^v?|(?:vllm|sglang|sgl)[_-]v?)(?P<version>\d\.\d+(?:\.\d+)?)(?!\d)")
_FOREIGN_TAGS = ("lmcache/",)
_YAML_KEY = re.compile(
    r"\A\s*(?:-\s+)?(?:command|args|entrypoint)\s*:\s*(?:[>|][+-]?\s*$)?", re.MULTILINE | re.IGNORECASE
)

_LONGER = re.compile(
    r"\b(?:VLLM_ALLOW_LONG_MAX_MODEL_LEN|SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN)=['\"]?(?:1|[tT]rue)\b"
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch command: the text before the engine's arguments, the text behind them, and what they say.

    `image` is the engine's version where the command starts an image that names it, else empty. `around` is what stands
    before and behind the words that hold the whole line, as in ``bash -c "vllm serve …"``, the innermost first.
    """

    before: str
    command: Command
    after: str
    image: str = ""
    around: tuple[tuple[str, str], ...] = ()

    @property
    def longer_allowed(self) -> bool:
        """Whether what stands in front lets the engine take a length beyond its model's."""
        return any(_LONGER.search(text) is not None for text in (self.before, *(before for before, _ in self.around)))

    @property
    def names_by_flag(self) -> bool:
        """Whether the engine takes its model from a flag alone (``python -m sglang.launch_server``)."""
        return self.command.engine == "sglang" and self.before.split()[-1:] != ["serve"]

    def repaired(self, problems: Sequence[FlagProblem]) -> str:
        """Return the whole command with the faults of its flags repaired, and without its secrets."""
        words = shown_words(self.command.engine, shlex.split(repaired(self.command, problems)), self.command.model)
        line = _joined(shown_text(self.before), shlex.join(words), shown_text(self.after))
        for before, after in self.around:
            line = _joined(shown_text(before), shlex.quote(line), shown_text(after))
        return line


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    start: int
    end: int
    operator: bool = False


def read_launch(text: str) -> Launch:
    """Read a launch command, through variables set in front of it and what starts it (``docker run …``, ``bash -c``).

    The list or the block of a compose file or of Kubernetes is taken as the command that it is.

    Raises:
        UsageError: it has no engine, or a value is none that the engine takes.
    """
    text = _from_yaml(text)
    try:
        shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UsageError(f"--from-command cannot be split into words: {error}") from None
    launch = _read(text)
    if launch is not None:
        return launch
    raise UsageError(
        "--from-command has no engine in it; expected: vllm serve …, python -m vllm.entrypoints.openai.api_server …, "
        "python -m sglang.launch_server … or sglang serve …"
    )


def _read(text: str) -> Launch | None:
    """Read a line of a shell; None where no engine is started in it."""
    from gpuwatch.sources.discovery.processes import engine_role  # noqa: PLC0415  # loads psutil

    words = _words(text)
    for first, last in _commands(words):
        plain = [word.text for word in words[first:last]]
        for start in _started(plain):
            role = engine_role(start)
            if role is not None and role.role == "server":
                own = last - len(role.arguments)
                return _launch(text, words, role.engine, (own, last), _version_of(role.engine, words[first:own]))
        for at, word in enumerate(plain if _entry_point(plain) is None else (), first):
            if _VLLM_IMAGE.search(word) and not _is_line(word):
                return _launch(text, words, "vllm", (at + 1, last), _version_of("vllm", words[at : at + 1]))
        for at, word in enumerate(plain, first):
            inner = _within(word)
            if inner is not None:
                around = _one_line(words[:at], text), _one_line(words[at + 1 :], text)
                named = inner.image or _version_of(inner.command.engine, words[first:at])
                return replace(inner, image=named, around=(*inner.around, around))
    return None


def _started(plain: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield what the words of a command may start: their ends, and what an image starts in place of its own program."""
    yield from (plain[at:] for at, word in enumerate(plain) if not _ASSIGNMENT.match(word))
    entry = _entry_point(plain)
    if entry is not None:
        program, behind = entry
        yield from ([program, *plain[at + 1 :]] for at in range(behind, len(plain)))


def _entry_point(plain: Sequence[str]) -> tuple[str, int] | None:
    """Return the program of ``--entrypoint`` and the place behind it; None where it is not given."""
    for at, word in enumerate(plain):
        name, equals, value = word.partition("=")
        if name == "--entrypoint":
            return (value, at + 1) if equals else ("".join(plain[at + 1 : at + 2]), at + 2)
    return None


def _is_line(word: str) -> bool:
    return len(word.split()) > 1


def _within(word: str) -> Launch | None:
    """Read a word that is a whole line, as a shell takes it behind ``-c``; None where it is none."""
    if not _is_line(word):
        return None
    try:
        shlex.split(word.replace("\\\n", " "), comments=True)
    except ValueError:
        return None
    return _read(word)


def _version_of(engine: str, words: Sequence[_Word]) -> str:
    """Return the version of an engine that the name of its image says; empty where none does."""
    for word in words:
        image = _IMAGE.search(word.text)
        if image is not None and image[engine] and not word.text.startswith(_FOREIGN_TAGS):
            tag = _TAG.search(image["tag"])
            return tag["version"] if tag is not None else ""
    return ""


def _from_yaml(text: str) -> str:
    """Return the command of a list or a block as compose files and Kubernetes have it; other texts as they are."""
    plain = _YAML_KEY.sub("", text, count=1)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    if lines and all(line.startswith("- ") for line in lines):
        return shlex.join(_unquoted(line[2:].strip()) for line in lines)
    if not plain.lstrip().startswith("["):
        return plain
    try:
        listed = json.loads(plain)
    except ValueError:
        return plain
    is_command = isinstance(listed, list) and all(isinstance(word, str) for word in listed)
    return shlex.join(listed) if is_command else plain


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


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
