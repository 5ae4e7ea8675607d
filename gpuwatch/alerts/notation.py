r"""The notation of series in rule tests: ``name{label="value"}`` and values such as ``0+1x10 _ stale 5``.

Source: Prometheus ``promql/parser`` 2.42 (lexValueSequence, series_item) and the page "Unit testing for rules".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpuwatch.model import NAME, Labels

Point: TypeAlias = float | Literal["stale"] | None
"""A value, a stale marker, or None: no sample at that step."""

MOST_POINTS = 1_000_000

_NUMBER = r"(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[iI][nN][fF]|[nN][aA][nN])"
_ITEM = re.compile(rf"(?P<value>[+-]?{_NUMBER})(?P<step>[+-]{_NUMBER})?(?:x(?P<times>\d+))?", re.ASCII)
_BLANK = re.compile(r"_(?:x(?P<times>\d+))?", re.ASCII)

_STRING = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`[^`]*`"
_ONE_PAIR = rf"[a-zA-Z_]\w*\s*=\s*(?:{_STRING})"
_METRIC = re.compile(
    rf"\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?\s*"
    rf"(?P<labels>\{{\s*(?:{_ONE_PAIR}(?:\s*,\s*{_ONE_PAIR})*\s*,?)?\s*\}})?\s*",
    re.ASCII,
)
_PAIR = re.compile(rf"([a-zA-Z_]\w*)\s*=\s*({_STRING})", re.ASCII)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def parse_metric(text: str) -> Labels:
    """Return the labels of ``name{label="value", …}``; the name or the braces may be missing.

    Raises:
        ValueError: `text` is not a metric, or names a label twice.
    """
    match = _METRIC.fullmatch(text)
    if match is None or (match["name"] is None and match["labels"] is None):
        raise ValueError(f'{text!r} is not a series; written like name{{label="value"}}')
    pairs = [(NAME, match["name"])] if match["name"] else []
    pairs.extend((name, _unquoted(quoted)) for name, quoted in _PAIR.findall(match["labels"] or ""))
    labels = dict(pairs)
    if len(labels) != len(pairs):
        raise ValueError(f"{text!r} names a label twice")
    return tuple(sorted((key, value) for key, value in labels.items() if value != ""))


def _unquoted(text: str) -> str:
    """Return the value of a Go string literal."""
    if text[0] == "`":
        return text[1:-1]
    return _ESCAPE.sub(_unescaped, text[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if len(code) == 3:  # an octal escape has three digits
        return chr(int(code, 8))
    return _ESCAPES.get(code, code)


@dataclass(frozen=True, slots=True)
class _Item:
    """One item of the notation: `count` points from `first` in steps of `step`."""

    first: Point
    step: float
    count: int


def parse_values(text: str) -> tuple[Point, ...]:
    """Return the points that the notation stands for: one per interval from time 0.

    ``a+bxn`` and ``a-bxn`` are n+1 values from a in steps of b, ``axn`` n+1 times a, ``_`` no sample, ``_xn`` n
    times no sample, ``stale`` a stale marker. Steps are summed one by one, as Prometheus does.

    Raises:
        ValueError: an item is not of this notation, or there are more than a million points.
    """
    points: list[Point] = []
    for word in text.split():
        item = _item(word)
        if len(points) + item.count > MOST_POINTS:
            raise ValueError(f"{text[:40]!r} stands for more than {MOST_POINTS:,} points")
        if not isinstance(item.first, float):
            points.extend([item.first] * item.count)
            continue
        value = item.first
        for _ in range(item.count):
            points.append(value)
            value += item.step
    return tuple(points)


def _item(word: str) -> _Item:
    if word == "stale":
        return _Item("stale", 0.0, 1)
    blank = _BLANK.fullmatch(word)
    if blank:
        return _Item(None, 0.0, int(blank["times"]) if blank["times"] else 1)
    match = _ITEM.fullmatch(word)
    if match is None or (match["step"] and not match["times"]):
        raise ValueError(f"{word!r} is not a value; allowed are numbers, a+bxn, a-bxn, axn, _, _xn and stale")
    count = int(match["times"]) + 1 if match["times"] else 1
    return _Item(float(match["value"]), float(match["step"] or 0), count)


def format_metric(labels: Labels) -> str:
    """Return labels as ``name{label="value"}``."""
    name = dict(labels).get(NAME, "")
    pairs = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in labels if key != NAME)
    return f"{name}{{{pairs}}}" if pairs or not name else name
