"""Texts that speak of log lines and are none: rules of Prometheus, dashboards, histories of Git, sources of Python."""

from __future__ import annotations

import re

# Supervisors and kubectl put a prefix before a line. A history indents, a patch marks, a source quotes what it holds.
_BEFORE = rb"(?:[^\s+\-\"'#/][^\"'\n]{0,100})?"
_OUTPUT = re.compile(
    rb"^"
    + _BEFORE
    + rb"(?:Traceback \(most recent call last\):|NVRM: |(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d "
    rb"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)|^[\w.]{1,80}(?:Error|Exception): ",
    re.MULTILINE,
)
"""Lines that a program printed: a paste may hold them beside a script or a rule."""
_LOOKED_AT = 1 << 18
_RULE = re.compile(rb"^\s*- (?:alert|record): \S", re.MULTILINE)
_EXPRESSION = re.compile(rb"^\s*expr:", re.MULTILINE)
_DASHBOARD = (re.compile(rb'"panels"\s*:\s*\['), re.compile(rb'"(?:targets|schemaVersion)"\s*:'))
_HISTORY = re.compile(
    rb"\s*(?:commit [0-9a-f]{3,64}\b[^\n]*\n(?:Merge: [^\n]*\n)?Author: |From [0-9a-f]{40} Mon Sep 17 00:00:00 2001\n"
    rb"|diff --git \S+ \S+\n)"
)
_STATEMENT = re.compile(
    rb"(?:from [\w.]+ import |import [\w.]+(?: as \w+)?\s*$|(?:async )?def \w+\(|class \w+[(:]|if TYPE_CHECKING:)"
)
_STATEMENTS, _LINES = 2, 100


def kind_of(head: bytes) -> str:
    """Return in a few words what the beginning of a file says it is, or nothing for anything that may hold a log."""
    head = head[:_LOOKED_AT]
    if _OUTPUT.search(head) is not None:
        return ""
    if _RULE.search(head) is not None and _EXPRESSION.search(head) is not None:
        return "rules of Prometheus"
    if head.lstrip()[:1] == b"{" and all(mark.search(head) is not None for mark in _DASHBOARD):
        return "a dashboard"
    if _HISTORY.match(head) is not None:
        return "a history of Git"
    statements = sum(_STATEMENT.match(line) is not None for line in head.split(b"\n", _LINES)[:_LINES])
    return "a source of Python" if statements >= _STATEMENTS else ""
