"""The words of a launch command as an engine's argument parser takes them, and the forms that it refuses.

Sources: Python's ``argparse``; ``utils/argparse_utils.py`` of vLLM, which alone takes underscores in names of flags.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuwatch.engines.flag_forms import arity, has_off, takes_truth
from gpuwatch.engines.flag_names import in_full, is_listed
from gpuwatch.engines.flag_versions import FlagProblem
from gpuwatch.engines.flags import FLAGS
from gpuwatch.ledger.command_refused import refused_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.engines.version import Version

_TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
_TRUTH = {"true": True, "false": False}
_MODELS = ("model", "model-path")
_TO_BE_FILLED = ("$", "{{", "...", "…", "`", "<", "[")
"""What a shell, a template or a reader puts other words in place of."""
_GOES_ON = "`"
"""How a line of PowerShell goes on: a word of its own where the next line was joined to it."""


@dataclass(slots=True)
class Forms:
    """The words of a command with its refused forms mended, what was wrong, and the words that belong to no flag."""

    engine: str
    version: Version
    words: list[str] = field(default_factory=list)
    problems: list[FlagProblem] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)


def mended_forms(engine: str, version: Version, arguments: Sequence[str]) -> Forms:
    """Return the arguments of an engine in forms that its parser takes, the meaning unchanged.

    Raises:
        ValueError: a value is none that the version takes, and says nothing that it could be mended to.
    """
    forms = Forms(engine, version)
    filled = any("{{" in word for word in arguments)  # a template, whose words nobody can tell apart
    named = any(_is_flag(word) and _name(engine, word) in _MODELS for word in arguments)
    at = 0
    while at < len(arguments):
        word = arguments[at]
        behind = _values(arguments, at)
        if not _is_flag(word):
            if at == 0 or filled:
                named = True
                forms.words.append(word)
            else:
                named |= not _bare(forms, word, named=named)
            at += 1
            continue
        name = _name(engine, word)
        takes = arity(engine, name) if name else None
        if takes == "none":
            at += 1 + _switch(forms, name, word, behind)
        elif takes == "one" and (behind or "=" in word):
            _valued(forms, name, word, behind)
            at += 1 if "=" in word else 2
        else:  # how many words an unknown flag takes is not known: all that follow may be its own
            given = [] if "=" in word else behind
            forms.words += [_spelt(forms, word), *given]
            at += 1 + len(given)
    return forms


def _bare(forms: Forms, word: str, *, named: bool) -> bool:
    """Read a word that is no flag's; return whether it is not the model."""
    if named and not _stands_for_others(word):
        forms.loose.append(word)
    elif named or forms.engine == "sglang":
        forms.words.append(word)
    else:
        forms.words.insert(0, word)  # vLLM's may stand behind its flags
        return False
    return True


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not word[1].isdigit() and not word[1].isspace()


def _values(arguments: Sequence[str], at: int) -> list[str]:
    """Return the words behind one that are no flags."""
    end = at + 1
    while end < len(arguments) and not _is_flag(arguments[end]):
        end += 1
    return list(arguments[at + 1 : end])


def _stands_for_others(word: str) -> bool:
    return not word or (word != _GOES_ON and any(sign in word for sign in _TO_BE_FILLED))


def _name(engine: str, word: str) -> str:
    """Return the flag that a word names, in full and without dashes; empty where that is not known."""
    spelling = word.partition("=")[0]
    if "." in spelling:
        return ""
    if spelling.startswith("--"):
        return in_full(engine, spelling[2:].replace("_", "-"))
    flag = FLAGS[engine].get(spelling)
    return flag.name if flag is not None else ""


def _spelt(forms: Forms, word: str) -> str:
    """Return a flag, with its value if it has one, in the spelling that the engine takes."""
    spelling, equals, value = word.partition("=")
    if forms.engine != "sglang" or "_" not in spelling or "." in spelling or not spelling.startswith("--"):
        return word
    plain = spelling.replace("_", "-")
    if not is_listed(forms.engine, plain[2:]):
        return word
    text = f"SGLang takes no underscores in the names of flags: {spelling} is none"
    forms.problems.append(FlagProblem(plain[2:], "unknown", value, text, plain))
    return f"{plain}{equals}{value}"


def _switch(forms: Forms, name: str, word: str, behind: Sequence[str]) -> int:
    """Read a switch; return how many of the words behind it are its own: a truth that it takes, or was given."""
    engine, version = forms.engine, forms.version
    _, equals, value = word.partition("=")
    following = behind[0] if behind and behind[0].lower() in _TRUTH else ""
    given = value if equals else following
    off = name.startswith("no-")
    bare = name.removeprefix("no-") if off else name
    if takes_truth(engine, version, bare):
        forms.words += [word, following] if following else [word]
    elif equals or following:
        on = _TRUTH.get(given.lower(), True) != off
        plain = f"--{bare}" if on else f"--no-{bare}" if has_off(engine, version, bare) else ""
        text = f"it is a switch and takes no value: the engine refuses {given[:40]!r}"
        forms.problems.append(FlagProblem(name, "unknown", given, text, plain))
        forms.words += [plain] if plain else []
    elif off and engine == "sglang" and not has_off(engine, version, bare):
        text = f"SGLang has no --no-{bare}: the switch is off where it is not given"
        forms.problems.append(FlagProblem(name, "unknown", "", text))
    else:
        forms.words.append(_spelt(forms, word))
    return 1 if following and not equals else 0


def _valued(forms: Forms, name: str, word: str, behind: Sequence[str]) -> None:
    """Read a flag with its one value."""
    _, equals, inline = word.partition("=")
    value = inline if equals else behind[0]
    flag = FLAGS[forms.engine].get(name)
    canonical = flag.name if flag is not None else name
    refused = refused_value(forms.engine, forms.version, canonical, value)
    word = _spelt(forms, word)
    if refused is not None:
        text, value = refused
        forms.problems.append(FlagProblem(canonical, "unknown", inline or behind[0], text, "", value))
    forms.words += [f"{word.partition('=')[0]}={value}"] if equals else [word, value]


def loose_words(engine: str, loose: Sequence[str]) -> str:
    """Say which words of a command belong to no flag."""
    shown = ", ".join(repr(word[:40]) for word in loose[:5]) + (", …" if len(loose) > 5 else "")
    return f"{_TITLES[engine]} refuses words that belong to no flag; the repaired command leaves them out: {shown}"
