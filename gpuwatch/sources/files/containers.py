"""The containers in what kubectl prints of a pod: which lines are about which one, and what memory it may use.

Three forms are read: ``kubectl describe`` (a heading with the name), and lists of objects with ``name`` and ``image``
in YAML and indented JSON, as ``kubectl get -o yaml`` and ``-o json`` and manifests have them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from gpuwatch.engines.log_prefixes import time_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gpuwatch.model import LogEvent

MARKS = ("Image:", "image:", '"image":')
"""What a text about containers holds."""
ENDS = ("Finished:", "finishedAt", "FinishedAt")
"""What a text holds that tells when a container ended."""
_ENGINE = re.compile(r"vllm|sglang|launch_server|\bllm\b|inference", re.IGNORECASE)
_HEADING = re.compile(r"^(?P<indent> +)(?P<name>[a-z0-9][\w.-]*):\s*$")
_ITEM = re.compile(r"^(?P<indent> *)- (?=\S)")
_OBJECT = re.compile(r"^(?P<indent> *)\{\s*$")
_KEY = re.compile(r"^ *\"?(?P<key>[\w. -]+?)\"?: *\"?(?P<value>[^\",]*)\"?,?\s*$")
_LIMITS = re.compile(r"^ *\"?[Ll]imits\"?:")
_MEMORY = re.compile(r"^ *\"?memory\"?: *\"?(?P<size>\d+(?:\.\d+)?(?:[KMGT]i?)?)\"?,?\s*$")
_GPUS = re.compile(r"^ *\"?nvidia\.com/[\w.-]+\"?: *\"?[1-9]\d*\"?,?\s*$")
_INIT = re.compile(r"^ *\"?(?:Init Containers|initContainers|initContainerStatuses)\"?:")
_STATUSES = re.compile(r"^ *\"?(?:initC|ephemeralC|c)ontainerStatuses\"?:")
_WAITS = re.compile(r"PodInitializing|\bInit:\d|\bInit:(?:OOMKilled|CrashLoopBackOff|Error)\b")
_FINISHED = re.compile(r"^ *\"?(?:Finished|[fF]inishedAt)\"?: *\"?(?P<date>[^\"]+?)\"?,?\s*$")
_COMMANDS = re.compile(r"vllm serve|launch_server|api_server|\"serve\"", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Container:
    """One mention of a container: the lines `start` to before `end`, its image, its memory limit as it is written.

    `command` says that it runs an engine's command, `gpus` that it was given GPUs, `init` that it is an init container.
    """

    name: str
    image: str
    start: int
    end: int
    limit: str = ""
    command: bool = False
    gpus: bool = False
    init: bool = False

    @property
    def engine(self) -> bool:
        """Whether name, image or command are those of an inference engine, or it has GPUs, and works for long."""
        named = self.command or self.gpus or _ENGINE.search(f"{self.name} {self.image}") is not None
        return named and not self.init


def read_containers(lines: Sequence[tuple[int, str]]) -> list[Container]:
    """Return every mention of a container in (number, text) lines, in order."""
    found = []
    for at, (_, text) in enumerate(lines):
        for regex, shift in ((_HEADING, 1), (_ITEM, 2), (_OBJECT, 1)):
            opened = regex.match(text)
            if opened is None:
                continue
            block = _block(lines, at, len(opened["indent"]))
            section = _section(lines, at, len(opened["indent"]))
            name = opened.groupdict().get("name") or ""
            container = _container(block, name, len(opened["indent"]) + shift, _STATUSES.match(section) is not None)
            if container is not None:
                found.append(replace(container, init=_INIT.match(section) is not None))
    return found


def _block(lines: Sequence[tuple[int, str]], at: int, indent: int) -> Sequence[tuple[int, str]]:
    """Return the line that opens a block and those that are further in than it."""
    end = at + 1
    while end < len(lines) and (not lines[end][1].strip() or _indent(lines[end][1]) > indent):
        end += 1
    return lines[at:end]


def _section(lines: Sequence[tuple[int, str]], at: int, indent: int) -> str:
    """Return the line that heads the list in which a block stands; YAML may write it no further out than its items."""
    item = lines[at][1].lstrip().startswith("- ")
    for place in range(at - 1, -1, -1):
        text = lines[place][1]
        if text.strip() and (_indent(text) < indent or (item and _indent(text) == indent and text[indent] != "-")):
            return text
    return ""


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _container(block: Sequence[tuple[int, str]], name: str, least: int, status: bool) -> Container | None:
    """Return the container that a block is about; None where it is about something else.

    The status of a container may have no image.
    """
    own = [_Key(block[0][1].replace("- ", "  ", 1))] if not name else []
    own += [_Key(text) for _, text in block[1:]]
    depth = min((key.indent for key in own if key.name and key.indent >= least), default=0)
    keys = {key.name.lower(): key.value for key in reversed(own) if key.name and key.indent == depth}
    name = name or keys.get("name", "")
    if not name or not (keys.get("image") or status):
        return None
    command = any(_COMMANDS.search(text) for _, text in block)
    gpus = any(_GPUS.match(text) for _, text in block)
    return Container(name, keys.get("image", ""), block[0][0], block[-1][0] + 1, _limit(block), command, gpus)


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


def attributed(
    events: Iterable[LogEvent], containers: Sequence[Container], lines: Sequence[tuple[int, str]] = ()
) -> list[LogEvent]:
    """Return events with the container whose lines they stand in: its name, its memory limit, whether it is an engine.

    That a container is none is said (``no``) only where another one of the same text is; ``init`` is ``waits`` for an
    init container for which the others still wait. `lines` are those of the text.
    """
    engines = {container.name for container in containers if container.engine}
    limits = {container.name: container.limit for container in containers if container.limit}
    waits = any(_WAITS.search(text) for _, text in lines)
    found = []
    for event in events:
        inside = [container for container in containers if container.start <= event.line < container.end]
        if inside:
            name = inside[-1].name
            fields = [("container", name), ("limit", limits.get(name, ""))]
            fields.append(("engine", "yes" if name in engines else "no" if engines else ""))
            fields.append(("init", "waits" if inside[-1].init and waits else ""))
            found.append(replace(event, fields=(*event.fields, *(pair for pair in fields if pair[1]))))
        else:
            found.append(event)
    return found


def dated(events: Iterable[LogEvent], lines: Sequence[tuple[int, str]], names: Collection[str]) -> list[LogEvent]:
    """Return events, those of some names with the time at which the state in which they stand ended.

    A line of kubectl has no time of its own: ``Last State`` may be of another week.
    """
    found = []
    for event in events:
        known = event.time == 0 and event.event in names and 0 < event.line <= len(lines)
        found.append(replace(event, time=_finished(lines, event.line - 1)) if known else event)
    return found


def _finished(lines: Sequence[tuple[int, str]], at: int) -> int:
    """Return the milliseconds of the end that is told among the keys beside a line; 0 where none is."""
    indent = _indent(lines[at][1])
    beside: list[str] = []
    for way in (range(at + 1, len(lines)), range(at - 1, -1, -1)):
        for other in way:
            if not lines[other][1].strip() or _indent(lines[other][1]) < indent:
                break
            if _indent(lines[other][1]) == indent:
                beside.append(lines[other][1])
    for text in beside:
        told = _FINISHED.match(text)
        if told is not None:
            return _millis(told["date"])
    return 0


def _millis(date: str) -> int:
    try:
        return round(parsedate_to_datetime(date).timestamp() * 1000)
    except (TypeError, ValueError, IndexError):
        return time_of(date, 0) or 0
