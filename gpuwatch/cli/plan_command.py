"""A launch command as it was typed: what stands in front of the engine's arguments, they, and what stands behind."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpuwatch.cli import UsageError
from gpuwatch.cli.plan_image import image_version
from gpuwatch.cli.plan_yaml import from_yaml
from gpuwatch.engines.flag_secrets import shown_text, shown_words
from gpuwatch.ledger.command import in_full_words, read_command, repaired
from gpuwatch.ledger.command_forms import loose_words, mended_forms
from gpuwatch.ledger.command_values import check_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatch.engines.flag_versions import FlagProblem
    from gpuwatch.engines.version import Version
    from gpuwatch.ledger.command import Command

_WORD = re.compile(r"""(?:[^\s'"\\;&|<>]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""", re.DOTALL)
_OPERATOR = re.compile(r"&&|\|\||;|\||&>>?|\d*(?:>>|>|<)(?:&\d*-?)?|&")
"""What ends a command in a shell: the next command, or where its input and output go."""
_COMMENT = re.compile(r"#[^\n]*")
_SPACE = re.compile(r"(?:\s|\\\n|(?<=\s)[`^][ \t]*\r?\n)+")
"""With the ends of lines that go on: of a shell, of PowerShell and of cmd."""
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_VLLM_IMAGE = re.compile(r"(?:^|/)vllm-openai(?:-\w+)*(?:[:@]|$)")
"""The image whose entry point is the engine: what follows its name are the engine's arguments."""
_SHELL_LINE = re.compile(r'(?:^|")-\w*c(?:"\s*\])?$')
"""The option of a shell whose value is a line: ``-c``, ``-lc``, also at the end of the list of an entry point."""
_LINE_TAKERS = ("ssh", "tmux", "screen", "byobu", "su", "eval", "sbatch", "pdsh", "clush")
"""Programs that start a line which they are given as one word."""
_TELLERS = ("echo", "printf", "logger", "pkill", "pgrep", "kill", "grep", "curl")
"""Programs whose words start nothing."""

_DASHES = tuple("\u2010\u2011\u2012\u2013\u2014\u2212")
"""Hyphens and dashes of typography, which word processors and blogs make of ``--``."""

_LONGER = re.compile(
    r"\b(?:VLLM_ALLOW_LONG_MAX_MODEL_LEN|SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN)=['\"]?(?:1|[tT]rue)\b"
)

_V1 = re.compile(r"\bVLLM_USE_V1=['\"]?1\b")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch command: the text before the engine's arguments, the text behind them, and what they say.

    `image` is the engine's version where the command starts an image that names it, else empty. `around` is what stands
    before and behind the words that hold the whole line, as in ``bash -c "vllm serve …"``, the innermost first.
    `forms` is what was wrong with the words of the command, which has them mended.
    `variables` are those that a compose file or Kubernetes sets; `apart`: they or the image stand beside the command.
    `others` are the models of further engines that the text starts, which are not read.
    """

    before: str
    command: Command
    after: str
    image: str = ""
    around: tuple[tuple[str, str], ...] = ()
    forms: tuple[FlagProblem, ...] = ()
    variables: tuple[str, ...] = ()
    apart: bool = False
    others: tuple[str, ...] = ()

    @property
    def longer_allowed(self) -> bool:
        """Whether what stands in front or beside it lets the engine take a length beyond its model's."""
        return self._sets(_LONGER)

    @property
    def asks_for_v1(self) -> bool:
        """Whether what stands in front or beside it asks for V1 of vLLM, which is V0 or V1 up to 0.10."""
        return self._sets(_V1)

    def _sets(self, variable: re.Pattern[str]) -> bool:
        texts = (self.before, *(before for before, _ in self.around), *self.variables)
        return any(variable.search(text) is not None for text in texts)

    @property
    def names_by_flag(self) -> bool:
        """Whether the engine takes its model from a flag alone (``python -m sglang.launch_server``)."""
        return self.command.engine == "sglang" and self.before.split()[-1:] != ["serve"]

    def repaired(self, problems: Sequence[FlagProblem]) -> str:
        """Return the whole command with the faults of its flags repaired, and without its secrets."""
        left = [problem for problem in problems if problem not in self.forms]
        words = shown_words(self.command.engine, shlex.split(repaired(self.command, left)), self.command.model)
        line = _joined(shown_text(self.before), shlex.join(words), shown_text(self.after))
        for before, after in self.around:
            line = _joined(shown_text(before), shlex.quote(line), shown_text(after))
        return line

    def formed(self, version: Version) -> tuple[Launch, list[str]]:
        """Return the launch with the forms mended that its engine's parser refuses in `version`, and notes.

        Raises:
            UsageError: a value is none that the version takes.
        """
        engine = self.command.engine
        try:
            forms = mended_forms(engine, version, self.command.arguments)
        except ValueError as error:
            raise UsageError(f"--from-command: {error}") from None
        notes = [loose_words(engine, [*map(shown_text, forms.loose)])] if forms.loose else []
        if self.others:
            which = ", ".join(map(shown_text, self.others))
            notes.append(f"only the first engine is read; not read, and on the same cards if it starts there: {which}")
        if forms.words == list(self.command.arguments):
            return self, notes
        return replace(self, command=checked(engine, forms.words), forms=tuple(forms.problems)), notes


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
    held = from_yaml(text)
    text = held.line
    try:
        shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UsageError(f"--from-command cannot be split into words: {error}") from None
    launch = _read(text)
    if launch is not None:
        named = launch.image or image_version(launch.command.engine, [held.image])
        apart = bool(held.variables) or (held.image != "" and held.image not in launch.before.split())
        others = (*launch.others, *filter(None, (_model_of(line) for line in held.others)))
        return replace(launch, image=named, variables=held.variables, apart=apart, others=others)
    raise UsageError(
        "--from-command has no engine in it; expected: vllm serve …, python -m vllm.entrypoints.openai.api_server …, "
        "python -m sglang.launch_server … or sglang serve …"
    )


def _model_of(text: str) -> str:
    """Return the model of the engine that a line of a shell starts; empty where none is, or it cannot be read."""
    try:
        launch = _read(text)
    except (UsageError, ValueError):
        return ""
    return "" if launch is None else launch.command.model


def _read(text: str) -> Launch | None:
    """Read a line of a shell; None where no engine is started in it.

    A command that names an engine in its own words goes before one that holds a line within quotes, and that before an
    engine's image that starts a script; what only tells of others comes last.
    """
    words = _words(text)
    commands = _commands(words)
    telling = [place for place in commands if _tells(words[place[0] : place[1]])]
    doing = [place for place in commands if place not in telling]
    for way, places in ((_in_words, doing), (_in_quotes, doing), (_by_script, doing), (_in_words, telling)):
        for at, place in enumerate(places):
            found = way(text, words, place)
            if found is not None:
                rest = (text[words[first].start : words[last - 1].end] for first, last in places[at + 1 :])
                return replace(found, others=tuple(filter(None, map(_model_of, rest))))
    return None


def _in_words(text: str, words: Sequence[_Word], place: tuple[int, int]) -> Launch | None:
    """Read a command that starts an engine by its name, or an image whose program is the engine."""
    from gpuwatch.sources.discovery.processes import engine_role  # noqa: PLC0415  # loads psutil

    first, last = place
    plain = [word.text for word in words[first:last]]
    for start in _started(plain):
        role = engine_role(start)
        if role is not None and role.role == "server":
            own = last - len(role.arguments)
            version = image_version(role.engine, plain[: own - first])
            return _launch(text, words, role.engine, (own, last), version)
    return _by_image(text, words, place) if _entry_point(plain) is None else None


def _by_image(text: str, words: Sequence[_Word], place: tuple[int, int]) -> Launch | None:
    """Read a command whose image is the engine's."""
    first, last = place
    for at, word in enumerate((one.text for one in words[first:last]), first):
        if _VLLM_IMAGE.search(word) and not _is_line(word) and not _ASSIGNMENT.match(word):
            return _launch(text, words, "vllm", (at + 1, last), image_version("vllm", [word]))
    return None


def _by_script(text: str, words: Sequence[_Word], place: tuple[int, int]) -> Launch | None:
    """Read a command whose image is the engine's and starts a script, or is told its model: they pass on the words."""
    plain = [word.text for word in words[place[0] : place[1]]]
    entry = _entry_point(plain)
    script = entry is not None and any(PurePath(word).suffix == ".sh" for word in entry[0])
    told = any(word.partition("=")[0] == "--model" for word in plain)
    return _by_image(text, words, place) if script or told else None


def _in_quotes(text: str, words: Sequence[_Word], place: tuple[int, int]) -> Launch | None:
    """Read a command that is given a line to start, as one word."""
    first, last = place
    plain = [word.text for word in words[first:last]]
    for at, word in enumerate(plain):
        inner = _within(word) if _takes_line(plain[:at], alone=len(plain) == 1) else None
        if inner is not None:
            around = _one_line(words[: first + at], text), _one_line(words[first + at + 1 :], text)
            named = inner.image or image_version(inner.command.engine, plain[:at])
            return replace(inner, image=named, around=(*inner.around, around))
    return None


def _takes_line(before: Sequence[str], *, alone: bool) -> bool:
    """Return whether the word behind some others is a line that is started."""
    return alone or any(_SHELL_LINE.search(word) or PurePath(word).name in _LINE_TAKERS for word in before)


def _tells(words: Sequence[_Word]) -> bool:
    """Return whether a command only says something about others."""
    program = next((word.text for word in words if not _ASSIGNMENT.match(word.text)), "")
    return PurePath(program).name in _TELLERS


def _started(plain: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield what the words of a command may start: their ends, and what an image starts in place of its own program."""
    yield from (plain[at:] for at, word in enumerate(plain) if not _ASSIGNMENT.match(word))
    entry = _entry_point(plain)
    if entry is not None:
        program, behind = entry
        yield from ([*program, *plain[at + 1 :]] for at in range(behind, len(plain)))


def _entry_point(plain: Sequence[str]) -> tuple[list[str], int] | None:
    """Return the words of ``--entrypoint``, a program or a list, and the place behind it; None where there is none."""
    for at, word in enumerate(plain):
        name, equals, value = word.partition("=")
        if name == "--entrypoint":
            value, behind = (value, at + 1) if equals else ("".join(plain[at + 1 : at + 2]), at + 2)
            return _program(value), behind
    return None


def _program(value: str) -> list[str]:
    """Return the words of an entry point: those of a list (``["vllm", "serve"]``), else the program itself."""
    try:
        listed = json.loads(value) if value.startswith("[") else None
    except (ValueError, RecursionError):
        return [value]
    return [*listed] if isinstance(listed, list) and all(isinstance(one, str) for one in listed) else [value]


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


def checked(engine: str, arguments: Sequence[str]) -> Command:
    """Read the arguments of an engine.

    Raises:
        UsageError: a value is none that the engine takes, or missing; a flag begins with a dash that is no hyphen.
    """
    dashed = next((word.partition("=")[0][:60] for word in arguments if word.startswith(_DASHES)), "")
    if dashed:
        meant = "--" + dashed.lstrip("".join(_DASHES) + "-")
        raise UsageError(f"--from-command: {dashed!r} begins with a dash that is no hyphen; allowed: {meant}")
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
    """Return words as they were typed, with one space where there was space, and the ends of lines."""
    line = ""
    for at, word in enumerate(words):
        gap = text[words[at - 1].end : word.start].replace("\\\n", " ") if at > 0 else ""
        line += ("\n" if "\n" in gap else " " if gap else "") + text[word.start : word.end]
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
