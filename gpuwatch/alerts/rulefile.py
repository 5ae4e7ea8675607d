"""Prometheus rule files: reading, checking, and laying a user's rules over the shipped ones.

The format is that of Prometheus 2.42 (``model/rulefmt``), nothing more: a file without a problem here loads there. All
problems of a file are listed. Prometheus refuses a file with any; here a user's other rules are used, so that
a slip in one does not take the others away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gpuwatch.alerts.yamlfile import Problem, YamlFile
from gpuwatch.model import NAME
from gpuwatch.promql import templates
from gpuwatch.promql.nodes import kind
from gpuwatch.promql.plan import parse
from gpuwatch.promql.values import PromQLError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from yaml.nodes import Node

    from gpuwatch.promql.plan import Plan

FILE_KEYS = ("groups",)
GROUP_KEYS = ("name", "interval", "limit", "rules")
SEVERITIES = ("critical", "warning", "info")
"""The severities that findings have; a rule may carry another one for those who route its alerts."""
RULE_KEYS = ("alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations")

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """An alerting rule. `hold` (``for``) and `keep` (``keep_firing_for``) are milliseconds.

    `labels` and `annotations` are texts with template actions, parsed where they are rendered.
    """

    name: str
    expr: str
    plan: Plan
    hold: int
    keep: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    group: str
    file: str
    line: int
    shipped: bool

    @property
    def id(self) -> str:
        """The finding id: the label ``diagnosis``, or the empty string."""
        return self.labels.get("diagnosis", "")

    @property
    def severity(self) -> str:
        """The label ``severity``, or the empty string."""
        return self.labels.get("severity", "")


@dataclass(frozen=True, slots=True)
class RecordRule:
    """A recording rule: its result becomes the series `name`, with `labels` set (an empty value drops the label)."""

    name: str
    expr: str
    plan: Plan
    labels: Mapping[str, str]
    group: str
    file: str
    line: int
    shipped: bool


Rule: TypeAlias = AlertRule | RecordRule


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated in order. `limit` is the most series a rule may give; 0: none is set."""

    name: str
    file: str
    limit: int
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules in use, and what was refused (`problems`) or ignored (`warnings`) on the way.

    `replaced` are the shipped rules that a user's rule stands for.
    """

    groups: tuple[Group, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    replaced: tuple[Rule, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules in the order of evaluation."""
        return tuple(rule for group in self.groups for rule in group.rules)

    @property
    def alerts(self) -> tuple[AlertRule, ...]:
        """The alerting rules in the order of evaluation."""
        return tuple(rule for rule in self.rules if isinstance(rule, AlertRule))


def shipped_paths() -> tuple[Path, ...]:
    """Return the rule files that ship with gpuwatch: from the installed package, or from a source checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "data" / "rules", package.parent / "rules"):
        if folder.is_dir():
            return tuple(sorted(folder.glob("*.yml")))
    return ()


def load(shipped: Iterable[Path] = (), user: Iterable[Path] = ()) -> RuleSet:
    """Load rule files in two layers: a user's rule replaces every shipped rule of the same name.

    Never raises for what is in a file: a user's rule with a problem is left out, a shipped file with one as a whole,
    and the problems are returned.
    """
    shipped_groups, problems, warnings = _load_layer(shipped, shipped=True)
    user_groups, user_problems, user_warnings = _load_layer(user, shipped=False)
    own = {rule.name for group in user_groups for rule in group.rules}
    kept = []
    for group in shipped_groups:
        rules = tuple(rule for rule in group.rules if rule.name not in own)
        if rules:
            kept.append(Group(group.name, group.file, group.limit, rules))
    return RuleSet(
        groups=(*kept, *user_groups),
        problems=(*problems, *user_problems),
        warnings=(*warnings, *user_warnings),
        replaced=tuple(rule for group in shipped_groups for rule in group.rules if rule.name in own),
    )


def _load_layer(paths: Iterable[Path], *, shipped: bool) -> tuple[list[Group], list[Problem], list[Problem]]:
    groups: list[Group] = []
    problems: list[Problem] = []
    warnings: list[Problem] = []
    seen: dict[tuple[str, bool, tuple[tuple[str, str], ...]], Rule] = {}
    for path in paths:
        reader = _RuleFileReader(path, shipped=shipped)
        loaded, fresh = _without_duplicates(reader.groups(), seen, reader)
        problems.extend(reader.file.problems)
        warnings.extend(reader.warnings)
        if not shipped or not reader.file.problems:
            groups.extend(loaded)
            seen.update(fresh)
    return groups, problems, warnings


def _without_duplicates(
    groups: list[Group], seen: Mapping[tuple[str, bool, tuple[tuple[str, str], ...]], Rule], reader: _RuleFileReader
) -> tuple[list[Group], dict[tuple[str, bool, tuple[tuple[str, str], ...]], Rule]]:
    """Refuse rules whose name and labels another rule of the layer has; return the groups and their rules by both."""
    fresh: dict[tuple[str, bool, tuple[tuple[str, str], ...]], Rule] = {}
    kept = []
    for group in groups:
        rules = []
        for rule in group.rules:
            key = (rule.name, isinstance(rule, AlertRule), tuple(sorted(rule.labels.items())))
            first = fresh.get(key) or seen.get(key)
            if first is None:
                fresh[key] = rule
                rules.append(rule)
                continue
            message = (
                f"the name and labels are those of the rule at {first.file}:{first.line}; "
                "rules of one name must differ in their labels"
            )
            reader.file.problems.append(Problem(rule.file, rule.line, message, rule.name))
        kept.append(replace(group, rules=tuple(rules)))
    return kept, fresh


@dataclass(frozen=True, slots=True)
class _Head:
    """What both kinds of rules have; `plan` is None where the expression was refused."""

    name: str
    expr: str
    plan: Plan | None
    labels: Mapping[str, str]
    group: str
    file: str
    line: int
    shipped: bool


class _RuleFileReader:
    """Reads one rule file; problems are collected in `file.problems`, ignored keys in `warnings`."""

    def __init__(self, path: Path, *, shipped: bool) -> None:
        self.file = YamlFile(path)
        self.warnings: list[Problem] = []
        self._shipped = shipped

    def groups(self) -> list[Group]:
        """Read the groups; a rule with a problem is left out of its group."""
        root = self.file.root(first=True)
        self.warnings.extend(self.file.warnings)
        if root is None:
            return []
        entries = self.file.mapping(root, "the rule file", FILE_KEYS)
        groups: list[Group] = []
        lines: dict[str, int] = {}
        for node in self.file.items(entries.get("groups"), "groups"):
            group = self._group(node)
            if group is None:
                continue
            if group.name in lines:
                self.file.refuse(node, f"group {group.name!r} is already defined at line {lines[group.name]}")
            lines.setdefault(group.name, node.start_mark.line + 1)
            groups.append(group)
        return groups

    def _group(self, node: Node) -> Group | None:
        file = self.file
        before = len(file.problems)
        entries = file.mapping(node, "a group", GROUP_KEYS)
        name = file.text(entries.get("name"), "name")
        if not name:
            if len(file.problems) == before:
                file.refuse(node, "a group must have a name")
            return None
        self._interval(entries.get("interval"), name)
        limit = self._limit(entries.get("limit"))
        rules = []
        for item in file.items(entries.get("rules"), f"rules of group {name!r}"):
            rule = self._rule(item, name)
            file.rule = ""
            if rule is not None:
                rules.append(rule)
        return Group(name, str(file.path), limit, tuple(rules))

    def _interval(self, node: Node | None, group: str) -> None:
        if node is None:
            return
        if self.file.duration(node, "interval") is None:
            return
        if self._shipped:
            self.file.refuse(node, f"group {group!r} has an interval; shipped rules are evaluated at every tick")
            return
        message = f"the interval of group {group!r} is ignored: rules are evaluated at every tick"
        self.warnings.append(Problem(str(self.file.path), node.start_mark.line + 1, message))

    def _limit(self, node: Node | None) -> int:
        text = self.file.text(node, "limit")
        if text is None:
            return 0
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
            self.file.refuse(node, f"limit must be a whole number of series (0: none), not {text!r}")
            return 0
        return int(text)

    def _rule(self, node: Node, group: str) -> Rule | None:
        file = self.file
        before = len(file.problems)
        entries = file.mapping(node, f"a rule of group {group!r}", RULE_KEYS)
        alert = file.text(entries.get("alert"), "alert")
        record = file.text(entries.get("record"), "record")
        file.rule = alert or record or ""
        if alert and record:
            file.refuse(node, "only one of 'alert' and 'record' may be set")
        if not alert and not record:
            if len(file.problems) == before:
                file.refuse(node, f"a rule of group {group!r} must set 'alert' or 'record'")
            return None
        head = self._head(entries, node, group, alert or record or "")
        rule = self._alert(entries, head) if alert else self._record(entries, head)
        return rule if len(file.problems) == before else None

    def _head(self, entries: Mapping[str, Node], node: Node, group: str, name: str) -> _Head:
        expr, plan = self._expr(entries.get("expr"), node)
        labels = self._labels(entries.get("labels"), "label")
        return _Head(name, expr, plan, labels, group, str(self.file.path), node.start_mark.line + 1, self._shipped)

    def _expr(self, node: Node | None, rule: Node) -> tuple[str, Plan | None]:
        text = self.file.text(node, "expr")
        if node is not None and text is None:
            return "", None
        expr = (text or "").strip()
        if not expr:
            self.file.refuse(node or rule, "'expr' must be set")
            return "", None
        try:
            plan = parse(expr)
        except PromQLError as error:
            self.file.refuse(node, f"expr: {error}")
            return expr, None
        given = kind(plan.root)
        if given not in ("vector", "scalar"):
            what = "a string" if given == "string" else "a range vector"
            self.file.refuse(node, f"expr: it is {what}; allowed are an instant vector and a scalar")
            return expr, None
        return expr, plan

    def _alert(self, entries: Mapping[str, Node], head: _Head) -> AlertRule | None:
        hold = self.file.duration(entries.get("for"), "for") or 0
        keep = self.file.duration(entries.get("keep_firing_for"), "keep_firing_for") or 0
        annotations = self._labels(entries.get("annotations"), "annotation")
        if not self._shipped:  # the templates of the shipped rules are known to be good
            self._check_templates(entries.get("labels"), head.labels, "label")
            self._check_severity(entries.get("labels"), head)
            self._check_templates(entries.get("annotations"), annotations, "annotation")
        if head.plan is None:
            return None
        return AlertRule(
            name=head.name,
            expr=head.expr,
            plan=head.plan,
            hold=hold,
            keep=keep,
            labels=head.labels,
            annotations=annotations,
            group=head.group,
            file=head.file,
            line=head.line,
            shipped=head.shipped,
        )

    def _record(self, entries: Mapping[str, Node], head: _Head) -> RecordRule | None:
        file = self.file
        allowed = "a recording rule may have: record, expr, labels"
        if not _METRIC_NAME.fullmatch(head.name):
            message = f"{head.name!r} is not a metric name; allowed are letters, digits, '_' and ':'"
            file.refuse(entries["record"], message)
        for key in ("for", "keep_firing_for"):
            if file.duration(entries.get(key), key):
                file.refuse(entries[key], f"{key!r} is not allowed here; {allowed}")
        if file.texts(entries.get("annotations"), "annotations"):
            file.refuse(entries["annotations"], f"'annotations' are not allowed here; {allowed}")
        if head.plan is None:
            return None
        return RecordRule(
            name=head.name,
            expr=head.expr,
            plan=head.plan,
            labels=head.labels,
            group=head.group,
            file=head.file,
            line=head.line,
            shipped=head.shipped,
        )

    def _labels(self, node: Node | None, what: str) -> dict[str, str]:
        """Read the labels or annotations of a rule and check their names."""
        labels = self.file.texts(node, f"{what}s")
        for key in labels:
            if not _LABEL_NAME.fullmatch(key) or (what == "label" and key == NAME):
                self.file.refuse(
                    _key_node(node, key), f"{key!r} is not allowed as {what} name; allowed are letters, digits and '_'"
                )
        return labels

    def _check_severity(self, node: Node | None, head: _Head) -> None:
        """Warn of a severity that no finding has: routing sees it, the screen and the order of findings do not."""
        severity = head.labels.get("severity", "")
        if not severity or severity in SEVERITIES or "{{" in severity:
            return
        message = (
            f"severity {severity!r} is shown as a warning, or as the severity of the finding that the label diagnosis "
            f"names; known are {', '.join(SEVERITIES)}"
        )
        line = _key_node(node, "severity")
        at = line.start_mark.line + 1 if line is not None else head.line
        self.warnings.append(Problem(head.file, at, message, head.name))

    def _check_templates(self, node: Node | None, texts: Mapping[str, str], what: str) -> None:
        for key, text in texts.items():
            try:
                templates.parse(text)
            except PromQLError as error:
                self.file.refuse(_key_node(node, key), f"{what} {key!r}: {error}")


def _key_node(node: Node | None, key: str) -> Node | None:
    """Return the node of one key of a mapping, for its line."""
    if node is not None and isinstance(node.value, list):
        for key_node, _ in node.value:
            if getattr(key_node, "value", None) == key:
                return key_node  # type: ignore[no-any-return]  # the children of a mapping node are nodes
    return node
