"""A launch command as compose files and Kubernetes hold it: a list, a block, or several keys of one container."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEYS = ("entrypoint", "command", "args")
"""In the order in which their words follow each other."""
_KEY = re.compile(r"\A\s*(?:-\s+)?(?:command|args|entrypoint)\s*:\s*(?:[>|][+-]?\s*$)?", re.MULTILINE | re.IGNORECASE)
_DEEPEST = 10
_ENGINE = re.compile(r"vllm|sglang")
_BLOCK = re.compile(r"^- [>|][+-]?$")
_LOOKS_SO = re.compile(r"\A\s*(?:-\s|\[)|^\s*(?:-\s+)?(?:command|args|entrypoint)\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Held:
    """A command as a line of a shell, and what stands beside it: the image, and variables as ``NAME=VALUE``.

    `others` are the lines of further containers of the text that name an engine.
    """

    line: str
    image: str = ""
    variables: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def from_yaml(text: str) -> Held:
    """Return the command of a list, a block or the keys of a container as a line of a shell; other texts as they are.

    An image whose own program takes the words stands in front of them.
    """
    plain = _KEY.sub("", text, count=1)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    if lines and all(line.startswith("- ") and not _BLOCK.search(line) for line in lines):  # however they are indented
        return Held(_line([word for line in lines for word in _words(_loaded(line)) or [line[2:].strip()]]))
    found = _loaded(text) if _LOOKS_SO.search(text) else None
    if words := _words(found):
        return Held(_line(words))
    held = [one for one in map(_of_container, _containers(found, _DEEPEST)) if one.line]
    engines = [one for one in held if _ENGINE.search(one.line)]
    if engines:
        return replace(engines[0], others=tuple(one.line for one in engines[1:]))
    return held[0] if held else Held(plain)


def _containers(found: object, depth: int) -> Iterator[dict[object, object]]:
    """Yield the mappings that have a command, of a file of services or pods as well."""
    if isinstance(found, dict) and any(key in found for key in _KEYS):
        yield found
    elif depth and isinstance(found, (dict, list)):
        for inner in found.values() if isinstance(found, dict) else found:
            yield from _containers(inner, depth - 1)


def _of_container(found: dict[object, object]) -> Held:
    """Return the command that the keys of a container make; empty where one of them alone is a text, or none is there.

    A text alone is taken as it was typed, with the ends of its lines.
    """
    keys = [key for key in _KEYS if key in found]
    parts = []
    for key in keys:
        value = found[key]
        words = _words(value)
        if not words and not isinstance(value, str):
            return Held("")
        parts.append(shlex.join(words) if words else str(value))
    if len(found) == 1 and isinstance(found[keys[0]] if keys else None, str):
        return Held("")
    image = found.get("image")
    image = image if isinstance(image, str) else ""
    alone = len(keys) == 1 and not any(len(word.split()) > 1 for word in _words(found[keys[0]]))
    line = " ".join([image, *parts] if image and alone else parts)
    return Held(line, image, (*_variables(found.get("environment")), *_variables(found.get("env"))))


def _variables(found: object) -> list[str]:
    """Return variables as ``NAME=VALUE``: of a mapping, of a list of such texts, or of names with values."""
    if isinstance(found, dict):
        return [f"{name}={value}" for name, value in found.items() if isinstance(value, str)]
    listed = found if isinstance(found, list) else []
    named = [one for one in listed if isinstance(one, dict) and isinstance(one.get("value"), str)]
    return [*(one for one in listed if isinstance(one, str)), *(f"{one.get('name')}={one['value']}" for one in named)]


def _line(words: list[str]) -> str:
    """Return words as a line; one alone is a line itself."""
    return words[0] if len(words) == 1 else shlex.join(words)


def _words(found: object) -> list[str]:
    """Return the words of a list; none where it is not one of words."""
    return [*found] if isinstance(found, list) and all(isinstance(word, str) for word in found) else []


def _loaded(text: str) -> object:
    """Return what a text says as YAML, every scalar as it is written; None where it is none."""
    import yaml  # noqa: PLC0415  # only texts that look like it need it

    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  # makes texts, lists and mappings alone
    except (yaml.YAMLError, RecursionError):
        return None
