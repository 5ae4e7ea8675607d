"""The functions of templates, with how many arguments each takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, unquote, urlsplit

from gpuwatch.promql import goformat
from gpuwatch.promql.duration import parse_duration
from gpuwatch.promql.goformat import show, sprintf
from gpuwatch.promql.gotime import METHODS, Moment, Named, moment
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


class Args(dict[str, Any]):
    """What the function ``args`` gives: ``arg0``, ``arg1``, …; one that is not there is nil."""


def field_of(value: Any, name: str) -> Any:
    """Return a field of a value, or what a method without arguments gives; a label that does not exist is empty.

    Raises:
        PromQLError: The value has no such field.
    """
    if isinstance(value, Sample):
        if name in ("Labels", "Value"):
            return value.labels if name == "Labels" else value.value
        raise PromQLError(f"a sample has no field {name}; it has Labels and Value")
    if isinstance(value, dict):
        return value.get(name, None if isinstance(value, Args) else "")
    if value is None:
        return None
    if isinstance(value, Moment):
        try:
            return method_of(value, name)(value)
        except TypeError:
            raise PromQLError(f"the method {name} of a time needs an argument") from None
    raise PromQLError(f"{show(value) if not isinstance(value, list) else 'a list'} has no field {name}")


def method_of(value: Any, name: str) -> Callable[..., Any]:
    """Return the method `name` of a value; it takes the value first.

    Raises:
        PromQLError: It has none of that name.
    """
    if not isinstance(value, Moment):
        raise PromQLError(f"{name} is no method and takes no arguments")
    if name not in METHODS:
        raise PromQLError(f"a time has no {name} here; it has {', '.join(METHODS)}")
    return METHODS[name]


def path_of(url: str) -> str:
    """Return what ``pathPrefix`` gives: the path of the external URL."""
    return unquote(urlsplit(url).path)


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


def _basic(value: Any) -> type:
    return int if isinstance(value, Named) else type(value)


def _comparable(one: Any, other: Any) -> None:
    if _basic(one) is not _basic(other) or not isinstance(one, (bool, int, float, str)):
        raise TypeError(f"{show(one)} and {show(other)} have different types; a number with a fraction is needed")


def _ordered(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a comparison; Go defines gt and ge as the opposite of le and lt, which shows where one side is NaN."""

    def compare(one: Any, other: Any) -> bool:
        _comparable(one, other)
        return test(one, other)

    return compare


def _shown(arg: Any) -> str:
    return "<nil>" if arg is None else show(arg)


def _print(*args: Any) -> str:
    parts: list[str] = []
    for number, arg in enumerate(args):
        if number and not isinstance(arg, str) and not isinstance(args[number - 1], str):
            parts.append(" ")
        parts.append(_shown(arg))
    return "".join(parts)


def _place(value: Any, size: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{show(value)} is not a whole number")
    if not 0 <= value < size:
        raise IndexError(f"index out of range: {value}")
    return value


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(value, dict):
            value = field_of(value, _string(key))
        else:
            items = value.encode() if isinstance(value, str) else _samples(value)
            value = items[_place(key, len(items))]
    return value


def _slice(value: Any, *bounds: Any) -> Any:
    """Cut a list, or a text by its bytes, as Go does."""
    items = value.encode() if isinstance(value, str) else _samples(value)
    if isinstance(value, str) and len(bounds) > 2:
        raise ValueError("a text cannot be sliced with three numbers")
    places = [_place(bound, len(items) + 1) for bound in bounds]
    if places != sorted(places):
        raise ValueError("the numbers of a slice must not fall")
    first, last = (places + [0, len(items)][len(places) :])[:2]
    return items[first:last].decode(errors="replace") if isinstance(items, bytes) else items[first:last]


def _len(value: Any) -> int:
    return len(value.encode() if isinstance(value, str) else value)


def _host_port(text: str) -> tuple[str, str] | None:
    """Split as ``net.SplitHostPort`` does; None where that fails."""
    found = re.fullmatch(r"(?:\[([^\[\]]*)\]|([^:\[\]]*)):([^:\[\]]*)", text, re.DOTALL)
    return (found[1] if found[1] is not None else found[2], found[3]) if found else None


def _strip_port(text: str) -> str:
    split = _host_port(text)
    return split[0] if split else text


def _strip_domain(text: str) -> str:
    from ipaddress import ip_address  # noqa: PLC0415  # hardly any template needs it

    host, port = _host_port(text) or (text, "")
    try:
        ip_address(host if "%" not in host else "")
    except ValueError:
        host = host.split(".")[0]
    else:
        return text
    if not port:
        return host
    return f"[{host}]:{port}" if ":" in host or "%" in host else f"{host}:{port}"


def _to_time(value: Any) -> Moment:
    at = moment(_number(value))
    if at is None:
        raise ValueError("the value is NaN or infinite")
    return at


_HTML = str.maketrans({'"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;", "\0": "\ufffd"})
_JS = str.maketrans(
    {"\\": "\\\\", "'": "\\'", '"': '\\"', "<": "\\u003C", ">": "\\u003E", "&": "\\u0026", "=": "\\u003D"}
)


def _js(text: str) -> str:
    plain = (char if char in " \x7f" or char.isprintable() else f"\\u{ord(char):04X}" for char in text.translate(_JS))
    return "".join(plain)


def _escaper(escape: Callable[[str], str]) -> Function:
    return Function(lambda *args: escape(_print(*(show(arg) if arg is None else arg for arg in args))), 1, None)


def _link(tab: int) -> Function:
    return _of_text(lambda expr: f"/graph?g0.expr={quote_plus(expr)}&g0.tab={tab}")


def _of_number(function: Callable[[float], str]) -> Function:
    return Function(lambda value: function(_number(value)))


def _of_text(function: Callable[[str], str]) -> Function:
    return Function(lambda text: function(_string(text)))


FUNCTIONS: dict[str, Function] = {
    "query": Function(lambda expr: expr),
    "externalURL": Function(str, 0, 0),
    "pathPrefix": Function(str, 0, 0),
    "first": Function(_first),
    "label": Function(lambda name, sample: _sample(sample).labels.get(_string(name), ""), 2, 2),
    "value": Function(lambda sample: _sample(sample).value),
    "strvalue": Function(lambda sample: _sample(sample).labels.get("__value__", "")),
    "args": Function(lambda *args: Args((f"arg{number}", arg) for number, arg in enumerate(args)), 0, None),
    "sortByLabel": Function(
        lambda name, samples: sorted(_samples(samples), key=lambda one: one.labels.get(_string(name), "")), 2, 2
    ),
    "humanize": _of_number(goformat.humanize),
    "humanize1024": _of_number(goformat.humanize1024),
    "humanizeDuration": _of_number(goformat.humanize_duration),
    "humanizePercentage": _of_number(goformat.humanize_percentage),
    "humanizeTimestamp": _of_number(goformat.humanize_timestamp),
    "toTime": Function(_to_time),
    "parseDuration": Function(lambda text: parse_duration(_string(text)) / 1000),
    "stripPort": _of_text(_strip_port),
    "stripDomain": _of_text(_strip_domain),
    "graphLink": _link(0),
    "tableLink": _link(1),
    "safeHtml": _of_text(str),
    "html": _escaper(lambda text: text.translate(_HTML)),
    "js": _escaper(_js),
    "urlquery": _escaper(quote_plus),
    "title": _of_text(goformat.title),
    "toUpper": _of_text(str.upper),
    "toLower": _of_text(str.lower),
    "match": Function(lambda pattern, text: _regex(pattern).search(_string(text)) is not None, 2, 2),
    "reReplaceAll": Function(_replace_all, 3, 3),
    "printf": Function(lambda template, *args: sprintf(_string(template), list(args)), 1, None),
    "print": Function(_print, 0, None),
    "println": Function(lambda *args: " ".join(map(_shown, args)) + "\n", 0, None),
    "len": Function(_len),
    "slice": Function(_slice, 1, 4),
    "index": Function(_index, 2, None),
    "and": Function(bool, 1, None),
    "or": Function(bool, 1, None),
    "not": Function(lambda value: not truth(value)),
    "eq": Function(_equal, 2, None),
    "ne": Function(lambda one, other: not _equal(one, other), 2, 2),
    "lt": Function(_ordered(lambda one, other: one < other), 2, 2),
    "le": Function(_ordered(lambda one, other: one <= other), 2, 2),
    "gt": Function(_ordered(lambda one, other: not one <= other), 2, 2),
    "ge": Function(_ordered(lambda one, other: not one < other), 2, 2),
}
"""Every function a template may use; whoever renders answers `query`, `externalURL`, `pathPrefix`, `and` and `or`."""
