"""Checks of single configuration values; every error says what is allowed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
    """Return a string."""
    if not isinstance(value, str):
        raise ValueError("a string")  # noqa: TRY004  # one kind of error for every wrong value
    return value


def log_source(value: Any) -> str:
    """Return where a log is."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("a file, '-', 'journal:UNIT', 'docker:NAME' or 'k8s:NAMESPACE/POD[/CONTAINER]'")
    return value


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
