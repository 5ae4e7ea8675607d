"""The containers in what kubectl prints of a pod: which lines are about which one, and what memory it may use.

Three forms are read: ``kubectl describe`` (a heading with the name), and lists of objects with ``name`` and ``image``
in YAML and indented JSON, as ``kubectl get -o yaml`` and ``-o json`` and manifests have them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatch.model import LogEvent

MARKS = ("Image:", "image:", '"image":')
_ENGINE = re.compile(r"vllm|sglang|launch_server|\bllm\b|inference", re.IGNORECASE)
_HEADING = re.compile(r"^(?P<indent> +)(?P<name>[a-z0-9][\w.-]*):\s*$")
_ITEM = re.compile(r"^(?P<indent> *)- (?=\S)")
_OBJECT = re.compile(r"^(?P<indent> *)\{\s*$")
_KEY = re.compile(r"^ *\"?(?P<key>[\w. -]+?)\"?: *\"?(?P<value>[^\",]*)\"?,?\s*$")
_LIMITS = re.compile(r"^ *\"?[Ll]imits\"?:")
_MEMORY = re.compile(r"^ *\"?memory\"?: *\"?(?P<size>\d+(?:\.\d+)?(?:[KMGT]i?)?)\"?,?\s*$")
_COMMANDS = re.compile(r"vllm serve|launch_server|api_server|\"serve\"", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Container:
    """One mention of a container: the lines `start` to before `end`, its image, its memory limit as it is written."""

    name: str
    image: str
    start: int
    end: int
    limit: str = ""
    command: bool = False

    @property
    def engine(self) -> bool:
        """Whether name, image or command are those of an inference engine."""
        return self.command or _ENGINE.search(f"{self.name} {self.image}") is not None


def read_containers(lines: Sequence[tuple[int, str]]) -> list[Container]:
    """Return every mention of a container in (number, text) lines, in order."""
    found = []
    for at, (_, text) in enumerate(lines):
        for regex, shift in ((_HEADING, 1), (_ITEM, 2), (_OBJECT, 1)):
            opened = regex.match(text)
            if opened is None:
                continue
            block = _block(lines, at, len(opened["indent"]))
            container = _container(block, opened.groupdict().get("name") or "", len(opened["indent"]) + shift)
            if container is not None:
                found.append(container)
    return found


def _block(lines: Sequence[tuple[int, str]], at: int, indent: int) -> Sequence[tuple[int, str]]:
    """Return the line that opens a block and those that are further in than it."""
    end = at + 1
    while end < len(lines) and (not lines[end][1].strip() or _indent(lines[end][1]) > indent):
        end += 1
    return lines[at:end]


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _container(block: Sequence[tuple[int, str]], name: str, least: int) -> Container | None:
    """Return the container that a block is about; None where it is about something else."""
    own = [_Key(block[0][1].replace("- ", "  ", 1))] if not name else []
    own += [_Key(text) for _, text in block[1:]]
    depth = min((key.indent for key in own if key.name and key.indent >= least), default=0)
    keys = {key.name.lower(): key.value for key in reversed(own) if key.name and key.indent == depth}
    name = name or keys.get("name", "")
    if not name or not keys.get("image"):
        return None
    command = any(_COMMANDS.search(text) for _, text in block)
    return Container(name, keys["image"], block[0][0], block[-1][0] + 1, _limit(block), command)


class _Key:
    """A key of a mapping, its value and how far in it stands; without a name where a line is none."""

    def __init__(self, text: str) -> None:
        found = _KEY.match(text)
        self.name = found["key"].strip() if found is not None else ""
        self.value = found["value"].strip() if found is not None else ""
        self.indent = _indent(text)


def _limit(block: Sequence[tuple[int, str]]) -> str:
    for at, (_, text) in enumerate(block):
        if _LIMITS.match(text):
            for _, inner in _block(block, at, _indent(text))[1:]:
                if (memory := _MEMORY.match(inner)) is not None:
                    return memory["size"]
    return ""


def attributed(events: Iterable[LogEvent], containers: Sequence[Container]) -> list[LogEvent]:
    """Return events with the container whose lines they stand in: its name, its memory limit, whether it is an engine.

    That a container is none is said (``no``) only where another one of the same text is.
    """
    engines = {container.name for container in containers if container.engine}
    limits = {container.name: container.limit for container in containers if container.limit}
    found = []
    for event in events:
        inside = [container for container in containers if container.start <= event.line < container.end]
        if inside:
            name = inside[-1].name
            fields = [("container", name), ("limit", limits.get(name, ""))]
            fields.append(("engine", "yes" if name in engines else "no" if engines else ""))
            found.append(replace(event, fields=(*event.fields, *(pair for pair in fields if pair[1]))))
        else:
            found.append(event)
    return found
