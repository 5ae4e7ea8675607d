"""Checks of single configuration values; every error says what is allowed."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_URL_PATH = re.compile(r"/[!-~]*")
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})")
_LOGS = {
    "journal": (re.compile(r"[A-Za-z0-9][\w.@:\\-]{0,254}"), "journal:UNIT, such as journal:vllm.service"),
    "docker": (re.compile(r"[A-Za-z0-9][\w.-]{0,254}"), "docker:NAME, the name or id of a container"),
    "k8s": (
        re.compile(
            r"(?P<ns>[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)/(?P<pod>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)"
            r"(?:/(?P<c>[a-z0-9-]{1,63}))?"
        ),
        "k8s:NAMESPACE/POD or k8s:NAMESPACE/POD/CONTAINER",
    ),
}
"""Kinds of logs that a program prints: the form of their names, and how they are written."""


class ConfigError(Exception):
    """A configuration that cannot be used; the message is one line with file, key and what is allowed."""


def number(low: float, high: float) -> Callable[[Any], float]:
    """Return a check for a number from `low` to `high`."""

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def text(value: Any) -> str:
    """Return a string. No file, variable or address has a NUL in its name."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("a string")
    return value


def url_path(value: Any) -> str:
    """Return the path of an address, with its query where there is one."""
    if not isinstance(value, str) or not _URL_PATH.fullmatch(value):
        raise ValueError("a path that begins with /, in ASCII without blanks")
    return value


def named(what: str, address: str) -> str:
    """Return how an error names an address: with it, unless it may hold a password."""
    return what if "@" in address else f"{what} {address!r}"


def printable(address: str) -> bool:
    """Whether an address has no blanks, control characters or letters that a request cannot carry in it."""
    return re.fullmatch(r"[!-~]*", address) is not None


def web_address(value: Any) -> str:
    """Return the address of a page whose sections are named after it; an empty one stands for the default."""
    if value == "":
        return ""
    allowed = "an address such as https://HOST/PATH, without #"
    if not isinstance(value, str) or not printable(value) or "#" in value:
        raise ValueError(allowed)
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise ValueError(allowed)
    return value


def host_names(value: Any) -> tuple[str, ...]:
    """Return names under which a server is asked, without ports; an IPv6 address stands without brackets."""
    if not isinstance(value, list) or not all(isinstance(item, str) and _is_host(item) for item in value):
        raise ValueError("a list of host names or addresses, without a port")
    return tuple(value)


def _is_host(name: str) -> bool:
    if _HOST.fullmatch(name):
        return True
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def log_name(source: str) -> tuple[str, re.Match[str]] | None:
    """Return the kind and the name of a log that a program prints; None where `source` is a file or ``-``.

    Raises:
        ValueError: the name is not one that the program could know; the message says what is allowed.
    """
    kind, colon, name = source.partition(":")
    if not colon or kind not in _LOGS:
        return None
    form, allowed = _LOGS[kind]
    found = form.fullmatch(name)
    if found is None:
        raise ValueError(allowed)
    return kind, found


def log_source(value: Any) -> str:
    """Return where a log is."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("a file, '-', 'journal:UNIT', 'docker:NAME' or 'k8s:NAMESPACE/POD[/CONTAINER]'")
    log_name(value)
    return value


def log_or_none(value: Any) -> str:
    """Return where a log is; the empty string where there is none."""
    return "" if value == "" else log_source(value)


def flag(value: Any) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004  # one kind of error for every wrong value
    return value


def choice(*allowed: str) -> Callable[[Any], str]:
    """Return a check for one of a few words."""

    def check(value: Any) -> str:
        if value not in allowed:
            raise ValueError(" or ".join(repr(name) for name in allowed))
        return str(value)

    return check


def ports(value: Any) -> tuple[int, ...]:
    """Return a list of ports."""
    good = isinstance(value, list) and len(value) <= 64
    if not good or any(isinstance(p, bool) or not isinstance(p, int) or not 1 <= p <= 65535 for p in value):
        raise ValueError("a list of at most 64 ports from 1 to 65535")
    return tuple(value)


def texts(value: Any) -> tuple[str, ...]:
    """Return a list of strings."""
    if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
        raise ValueError("a list of strings")
    return tuple(value)


def pairs(value: Any) -> tuple[tuple[str, str], ...]:
    """Return a table of names and one-line strings as sorted pairs."""
    if not isinstance(value, dict) or any(
        not isinstance(item, str) or {"\r", "\n"} & set(item) for item in value.values()
    ):
        raise ValueError("a table of names and strings")
    return tuple(sorted(value.items()))


def label_name(value: Any) -> str:
    """Return the name of a label."""
    if not isinstance(value, str) or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", value, re.ASCII):
        raise ValueError("a label name")
    return value


def tables(data: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    """Return the tables of an array of tables.

    Raises:
        ConfigError: the key holds something else.
    """
    value = data.get(key, [])
    if not isinstance(value, list) or any(not isinstance(item, dict) for item in value):
        raise ConfigError(f"{where}: key '{key}': allowed: tables written as [[{key}]]")
    return value


def values(
    table: Mapping[str, Any],
    checks: Mapping[str, Callable[[Any], Any]],
    where: str,
    prefix: str,
    extra: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the checked values of a table; `where` and `prefix` name the place in errors.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    checked = {}
    for key, value in table.items():
        if key not in checks:
            allowed = ", ".join([*checks, *extra])
            raise ConfigError(f"{where}: {prefix}unknown key {key!r}; allowed: {allowed}")
        try:
            checked[key] = checks[key](value)
        except ValueError as error:
            raise ConfigError(f"{where}: {prefix}key {key!r} is {_show(value)}; allowed: {error}") from None
    return checked


def _show(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
