"""Strict reading of YAML files whose every problem is reported with file and line.

The text of a scalar is taken as it is written, as Prometheus' own reader does for string fields: ``for: 0`` and
``alert: yes`` need no quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from yaml.nodes import Node

_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_UNITS_MS = (31_536_000_000, 604_800_000, 86_400_000, 3_600_000, 60_000, 1_000, 1)
_UNIT_NAMES = ("y", "w", "d", "h", "m", "s", "ms")
_SHOWN = 40
_LARGEST_MS = (2**63 - 1) // 1_000_000


def parse_duration(text: str) -> int:
    """Return a Prometheus duration such as ``1m30s`` in milliseconds.

    Follows ``model.ParseDuration`` of prometheus/common: units from large to small, each at most once, ``0``
    without a unit, at most 2**63 nanoseconds.

    Raises:
        ValueError: `text` is not a duration.
    """
    if text == "0":
        return 0
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError(
            f"{text!r} is not a duration; allowed are whole numbers with the units y, w, d, h, m, s, ms "
            "from large to small, such as 30s or 1m30s"
        )
    total = sum(int(number) * unit for number, unit in zip(match.groups(), _UNITS_MS, strict=True) if number)
    if total > _LARGEST_MS:
        raise ValueError(f"the duration {text!r} is out of range")
    return total


def format_duration(milliseconds: int) -> str:
    """Return milliseconds as Prometheus writes durations: ``1m30s``, ``0s``, ``90d`` rather than ``12w6d``."""
    if milliseconds == 0:
        return "0s"
    parts = []
    for name, unit in zip(_UNIT_NAMES, _UNITS_MS, strict=True):
        if name in ("y", "w") and milliseconds % unit:
            continue
        count, milliseconds = divmod(milliseconds, unit)
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a part of a file is refused, or (as a warning) ignored. `line` is 1-based; 0: the whole file."""

    file: str
    line: int
    message: str
    rule: str = ""

    def __str__(self) -> str:
        """Return one line for people: where, which rule, what and what is allowed."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        rule = f"rule {self.rule}: " if self.rule else ""
        return f"{where}: {rule}{self.message}"


class YamlFile:
    """One YAML file being read: typed access to its nodes, with all problems collected in `problems`.

    The accessors return None, or leave items out, where a node is not what was asked for. Null counts as not
    written. `rule` may be set to the name of the rule being read; it then stands in each problem.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.rule = ""

    def root(self) -> Node | None:
        """Read the file; None when it cannot be read, is not YAML, or is empty."""
        try:
            text = self.path.read_bytes().decode()
        except OSError as error:
            self.refuse(None, f"cannot be read: {error.strerror or error}")
            return None
        except UnicodeDecodeError as error:
            self.refuse(None, f"is not UTF-8 text (byte {error.start}); rule files are UTF-8")
            return None
        try:
            node: Node | None = yaml.compose(text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            message = f"is not valid YAML: {error.problem or error.context}"
            self.problems.append(Problem(str(self.path), mark.line + 1 if mark else 0, message))
            return None
        except (yaml.YAMLError, RecursionError) as error:
            self.refuse(None, f"is not valid YAML: {' '.join(str(error).split())}")
            return None
        return None if node is None or _is_null(node) else node

    def refuse(self, node: Node | None, message: str) -> None:
        """Add a problem at the line of `node`."""
        line = node.start_mark.line + 1 if node is not None and node.start_mark else 0
        self.problems.append(Problem(str(self.path), line, message, self.rule))

    def mapping(self, node: Node, what: str, allowed: Sequence[str] | None) -> dict[str, Node]:
        """Return the entries of a mapping; keys that are not `allowed` (None: all are) are refused."""
        if not isinstance(node, yaml.MappingNode):
            self.refuse(node, f"{what} must be a mapping of keys to values, not {_kind(node)}")
            return {}
        entries: dict[str, Node] = {}
        for key_node, value in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                self.refuse(key_node, f"a key of {what} must be plain text, not {_kind(key_node)}")
            elif key in entries:
                self.refuse(key_node, f"{key!r} is given twice in {what}")
            elif allowed is not None and key not in allowed:
                self.refuse(key_node, f"unknown key {key!r} in {what}; allowed are: {', '.join(allowed)}")
            else:
                entries[key] = value
        return {key: value for key, value in entries.items() if not _is_null(value)}

    def items(self, node: Node | None, what: str) -> list[Node]:
        """Return the items of a list; an absent one is empty."""
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.refuse(node, f"{what} must be a list, not {_kind(node)}")
            return []
        return [item for item in node.value if not _is_null(item)]

    def text(self, node: Node | None, what: str) -> str | None:
        """Return the text of a scalar."""
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node, f"{what} must be text, not {_kind(node)}")
            return None
        return str(node.value)

    def texts(self, node: Node | None, what: str) -> dict[str, str]:
        """Return a mapping of texts to texts; null values are empty texts."""
        if node is None:
            return {}
        if isinstance(node, yaml.MappingNode):
            nulls = {key.value for key, value in node.value if isinstance(key, yaml.ScalarNode) and _is_null(value)}
        else:
            nulls = set()
        found = {key: self.text(value, f"{what} {key!r}") for key, value in self.mapping(node, what, None).items()}
        return {key: value for key, value in found.items() if value is not None} | dict.fromkeys(nulls, "")

    def duration(self, node: Node | None, what: str) -> int | None:
        """Return a duration in milliseconds."""
        text = self.text(node, what)
        if node is None or text is None:
            return None
        try:
            return parse_duration(text)
        except ValueError as error:
            self.refuse(node, f"{what}: {error}")
            return None


def _is_null(node: Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _kind(node: Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = str(node.value)
    return f"the text {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'!r}"
