"""What ``docker inspect`` prints of a container: the memory that it may use.

``HostConfig`` holds the arguments of ``docker run``; sizes are bytes, and 0 stands for no limit.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatch.model import LogEvent

MARKS = ('"HostConfig"',)
UNLIMITED = "none"
"""Stands for the limit of a container that has none."""
_STATE = re.compile(r"^ *\"State\": \{\s*$")
_HOST = re.compile(r"^(?P<indent> *)\"HostConfig\": \{\s*$")
_MEMORY = re.compile(r"^ *\"Memory\": (?P<bytes>\d+),?\s*$")


def limited(events: Iterable[LogEvent], lines: Sequence[tuple[int, str]]) -> list[LogEvent]:
    """Return events, those of a container's state with ``runtime`` and the memory ``limit`` that the container has."""
    states = [at for at, text in lines if _STATE.match(text) is not None]
    limits = dict(_limits(lines))
    found = []
    for event in events:
        inside = [at for at in states if at < event.line]
        # The next object of a list has a state of its own.
        after = min((at for at in states if at > event.line), default=1 << 62)
        told = next((limits[at] for at in sorted(limits) if inside and inside[-1] < at < after), None)
        fields = (("runtime", "docker"), ("limit", told)) if told is not None else ()
        found.append(replace(event, fields=(*event.fields, *fields)))
    return found


def _limits(lines: Sequence[tuple[int, str]]) -> Iterable[tuple[int, str]]:
    """Yield (line, limit) of every ``HostConfig``."""
    deep = -1
    for at, text in lines:
        head = _HOST.match(text)
        if head is not None:
            deep = len(head["indent"])
        elif deep >= 0 and text.strip() and len(text) - len(text.lstrip(" ")) <= deep:
            deep = -1
        elif deep >= 0 and (found := _MEMORY.match(text)) is not None:
            yield at, _size(int(found["bytes"]))
            deep = -1


def _size(count: int) -> str:
    """Return bytes as ``docker run --memory`` takes them."""
    if not count:
        return UNLIMITED
    for unit, shift in (("g", 30), ("m", 20), ("k", 10)):
        if count % (1 << shift) == 0:
            return f"{count >> shift}{unit}"
    return str(count)
