"""Strict reading of YAML files whose every problem is reported with file and line.

The text of a scalar is taken as it is written, as Prometheus' own reader does for string fields: ``for: 0`` and
``alert: yes`` need no quotes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from gpuwatch.promql.duration import parse_duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from yaml.nodes import Node

_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SHOWN = 40
_MERGE = "tag:yaml.org,2002:merge"


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
    written. The merge key ``<<`` adds the keys of other mappings to those that a mapping has itself. `rule` may be set
    to the name of the rule being read; it then stands in each problem. `warnings` tells what of the file is not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.rule = ""
        self._root: Node | None = None  # keeps the nodes, and with them their ids
        self._flattened: dict[int, list[tuple[Node, Node]]] = {}
        self._merging: list[Node] = []

    def root(self, *, first: bool = False) -> Node | None:
        """Read the file; None when it cannot be read, is not YAML, or is empty.

        Several documents are a problem; with `first`, as in Prometheus' rule files, only the first one is read, and
        `warnings` says so.
        """
        try:
            text = self.path.read_bytes().decode()
        except OSError as error:
            self.refuse(None, f"cannot be read: {error.strerror or error}")
            return None
        except UnicodeDecodeError as error:
            self.refuse(None, f"is not UTF-8 text (byte {error.start}); rule files are UTF-8")
            return None
        try:
            loader = _LOADER(text)
            try:
                node: Node | None = loader.get_node() if loader.check_node() else None
                later = _later(loader)
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            message = f"is not valid YAML: {error.problem or error.context}"
            self.problems.append(Problem(str(self.path), mark.line + 1 if mark else 0, message))
            return None
        except (yaml.YAMLError, RecursionError) as error:
            self.refuse(None, f"is not valid YAML: {' '.join(str(error).split())}")
            return None
        if later:
            message = "only the first YAML document is read, as in Prometheus; the one that begins here is ignored"
            if not first:
                message = "is not valid YAML: another document begins here; one is allowed"
            (self.warnings if first else self.problems).append(Problem(str(self.path), later, message))
            node = node if first else None
        self._root = None if node is None or _is_null(node) else node
        return self._root

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
        for key_node, value in self._entries(node):
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

    def _entries(self, node: Node) -> list[tuple[Node, Node]]:
        """Return the keys and values of a mapping, those of its merge key behind its own ones."""
        known = self._flattened.get(id(node))
        if known is not None:
            return known
        own = [(key, value) for key, value in node.value if key.tag != _MERGE]
        self._flattened[id(node)] = own
        self._merging.append(node)
        merges = [(key, value) for key, value in node.value if key.tag == _MERGE]
        for key, _ in merges[1:]:
            self.refuse(key, "'<<' is given twice in one mapping; it may have a list of mappings")
        for key, value in merges[:1]:
            sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for source in sources:
                if not isinstance(source, yaml.MappingNode):
                    self.refuse(key, f"'<<' must have a mapping or a list of mappings, not {_kind(source)}")
                    continue
                if any(source is one for one in self._merging):
                    self.refuse(key, "'<<' names a mapping that it is part of")
                    continue
                present = {_key(one) for one, _ in own}
                own.extend([pair for pair in self._entries(source) if _key(pair[0]) not in present])
        self._merging.pop()
        return own

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
            nulls = {
                key.value for key, value in self._entries(node) if isinstance(key, yaml.ScalarNode) and _is_null(value)
            }
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


def _key(node: Node) -> object:
    return node.value if isinstance(node, yaml.ScalarNode) else id(node)


def _later(loader: Any) -> int:
    """Return the line of the first document, behind the one that was read, that is not empty; 0: there is none."""
    try:
        while loader.check_node():
            node = loader.get_node()
            if not _is_null(node):
                return int(node.start_mark.line) + 1
    except yaml.MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark
        return mark.line + 1 if mark else 1
    except (yaml.YAMLError, RecursionError):
        return 1
    return 0


def _is_null(node: Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _kind(node: Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = str(node.value)
    return f"the text {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'!r}"
