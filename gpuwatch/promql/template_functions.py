"""The functions of templates, with how many arguments each takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuwatch.promql import goformat
from gpuwatch.promql.goformat import show, sprintf
from gpuwatch.promql.values import PromQLError
from gpuwatch.store import RegexError, compile_regex

if TYPE_CHECKING:
    from collections.abc import Callable

_REFERENCE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a query's answer."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Function:
    """A function and the fewest and most arguments it takes (None: any number)."""

    call: Callable[..., Any]
    fewest: int = 1
    most: int | None = 1


def field_of(value: Any, name: str) -> Any:
    """Return a field of a value; a label that does not exist is empty."""
    if isinstance(value, Sample):
        if name in ("Labels", "Value"):
            return value.labels if name == "Labels" else value.value
        raise PromQLError(f"a sample has no field {name}; it has Labels and Value")
    if isinstance(value, dict):
        return value.get(name, "")
    raise PromQLError(f"{show(value) if not isinstance(value, list) else 'a list'} has no field {name}")


def truth(value: Any) -> bool:
    """Return whether Go's templates count a value as true: not zero, not empty, not nil."""
    return bool(value)


def _number(value: Any) -> float:
    if isinstance(value, str):
        return float(value.replace("_", "x"))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise TypeError(f"{show(value)} is not a number")


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{show(value)} is not a text")
    return value


def _sample(value: Any) -> Sample:
    if not isinstance(value, Sample):
        raise TypeError("a sample is needed, such as `query … | first`")
    return value


def _samples(value: Any) -> list[Sample]:
    if not isinstance(value, list):
        raise TypeError("the result of a query is needed")
    return value


def _first(samples: Any) -> Sample:
    found = _samples(samples)
    if not found:
        raise ValueError("the query gave nothing")
    return found[0]


def _regex(pattern: Any) -> re.Pattern[str]:
    try:
        return compile_regex(_string(pattern))
    except RegexError as error:
        raise ValueError(str(error)) from None


def _replace_all(pattern: Any, replacement: Any, text: Any) -> str:
    def expand(match: re.Match[str]) -> str:
        def one(found: re.Match[str]) -> str:
            name = found[2] or found[3] or ""
            if found[1]:
                return "$"
            group = int(name) if name.isdigit() else match.re.groupindex.get(name, -1)
            return (match[group] or "") if 0 <= group <= match.re.groups else ""

        return _REFERENCE.sub(one, _string(replacement))

    return _regex(pattern).sub(expand, _string(text))


def _equal(one: Any, *others: Any) -> bool:
    for other in others:
        _comparable(one, other)
    return any(one == other for other in others)


def _comparable(one: Any, other: Any) -> None:
    if type(one) is not type(other) or not isinstance(one, (bool, int, float, str)):
        raise TypeError(f"{show(one)} and {show(other)} have different types; a number with a fraction is needed")


def _ordered(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a comparison; Go defines gt and ge as the opposite of le and lt, which shows where one side is NaN."""

    def compare(one: Any, other: Any) -> bool:
        _comparable(one, other)
        return test(one, other)

    return compare


def _print(*args: Any) -> str:
    parts: list[str] = []
    for number, arg in enumerate(args):
        if number and not isinstance(arg, str) and not isinstance(args[number - 1], str):
            parts.append(" ")
        parts.append(show(arg))
    return "".join(parts)


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        value = value.get(_string(key), "") if isinstance(value, dict) else _samples(value)[key]
    return value


def _of_number(function: Callable[[float], str]) -> Function:
    return Function(lambda value: function(_number(value)))


def _of_text(function: Callable[[str], str]) -> Function:
    return Function(lambda text: function(_string(text)))


def _and(*args: Any) -> Any:
    return next((arg for arg in args if not truth(arg)), args[-1])


def _or(*args: Any) -> Any:
    return next((arg for arg in args if truth(arg)), args[-1])


FUNCTIONS: dict[str, Function] = {
    "query": Function(lambda expr: expr),
    "externalURL": Function(str, 0, 0),
    "first": Function(_first),
    "label": Function(lambda name, sample: _sample(sample).labels.get(_string(name), ""), 2, 2),
    "value": Function(lambda sample: _sample(sample).value),
    "sortByLabel": Function(
        lambda name, samples: sorted(_samples(samples), key=lambda one: one.labels.get(_string(name), "")), 2, 2
    ),
    "humanize": _of_number(goformat.humanize),
    "humanize1024": _of_number(goformat.humanize1024),
    "humanizeDuration": _of_number(goformat.humanize_duration),
    "humanizePercentage": _of_number(goformat.humanize_percentage),
    "humanizeTimestamp": _of_number(goformat.humanize_timestamp),
    "title": _of_text(goformat.title),
    "toUpper": _of_text(str.upper),
    "toLower": _of_text(str.lower),
    "match": Function(lambda pattern, text: _regex(pattern).search(_string(text)) is not None, 2, 2),
    "reReplaceAll": Function(_replace_all, 3, 3),
    "printf": Function(lambda template, *args: sprintf(_string(template), list(args)), 1, None),
    "print": Function(_print, 0, None),
    "println": Function(lambda *args: " ".join(map(show, args)) + "\n", 0, None),
    "len": Function(len),
    "index": Function(_index, 2, None),
    "and": Function(_and, 1, None),
    "or": Function(_or, 1, None),
    "not": Function(lambda value: not truth(value)),
    "eq": Function(_equal, 2, None),
    "ne": Function(lambda one, other: not _equal(one, other), 2, 2),
    "lt": Function(_ordered(lambda one, other: one < other), 2, 2),
    "le": Function(_ordered(lambda one, other: one <= other), 2, 2),
    "gt": Function(_ordered(lambda one, other: not one <= other), 2, 2),
    "ge": Function(_ordered(lambda one, other: not one < other), 2, 2),
}
"""Every function a template may use; `query` and `externalURL` are answered by whoever renders."""
