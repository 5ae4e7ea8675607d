"""Configuration: TOML to frozen dataclasses. Every error names the file, the key and what is allowed."""

from __future__ import annotations

import socket
import stat
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_BYTES = 1 << 20
"""Largest configuration file that is read."""
DEFAULT_PORTS = (*range(8000, 8011), *range(30000, 30006))


class ConfigError(Exception):
    """A configuration that cannot be used; the message is one line with file, key and what is allowed."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine to scrape. `timeout` in seconds; `token_file` and `token_env` name where a bearer token is read."""

    url: str
    kind: str = ""
    path: str = "/metrics"
    token_file: str = ""
    token_env: str = ""
    ca_file: str = ""
    verify: bool = True
    timeout: float = 3.0
    log: str = ""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One log to follow: a file, ``-``, ``journal:UNIT``, ``docker:NAME`` or ``k8s:NAMESPACE/POD``."""

    source: str
    server: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be configured. `interval` in seconds, `history_minutes` of samples kept in memory.

    `discovery` looks at the processes of this machine; with `find_engines` off, what it finds only tells whose
    processes use a GPU, and no engine is scraped that was not named.
    """

    interval: float = 1.0
    history_minutes: float = 15.0
    host: str = ""
    gpus: bool = True
    discovery: bool = True
    find_engines: bool = True
    ports: tuple[int, ...] = DEFAULT_PORTS
    rules: tuple[str, ...] = ()
    engines: tuple[EngineConfig, ...] = field(default=(), metadata={"toml": "engine"})
    logs: tuple[LogConfig, ...] = field(default=(), metadata={"toml": "log"})

    @property
    def host_name(self) -> str:
        """The value of the label `host`."""
        return self.host or socket.gethostname()


def engine_from_url(text: str) -> EngineConfig:
    """Return the engine at `text`, which may be a full URL or just ``host:port``.

    Raises:
        ConfigError: the text is no http or https address, or carries a user name or password.
    """
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"engine {text!r}: {error}; allowed: http://HOST:PORT or https://HOST:PORT") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"engine {text!r}: allowed: http://HOST:PORT or https://HOST:PORT")
    if parts.username or parts.password:
        raise ConfigError(f"engine at {host}: no user or password in the address; use token_file or token_env")
    netloc = f"[{host}]" if ":" in host else host
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    base = f"{parts.scheme}://{netloc}" + (f":{port}" if port else "")
    return EngineConfig(url=base, path=path)


def _number(low: float, high: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")  # noqa: TRY004  # one kind of error for every wrong value
    return value


def _log_source(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("a file, '-', 'journal:UNIT', 'docker:NAME' or 'k8s:NAMESPACE/POD[/CONTAINER]'")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004  # one kind of error for every wrong value
    return value


def _choice(*allowed: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in allowed:
            raise ValueError(" or ".join(repr(name) for name in allowed))
        return str(value)

    return check


def _ports(value: Any) -> tuple[int, ...]:
    good = isinstance(value, list) and len(value) <= 64
    if not good or any(isinstance(p, bool) or not isinstance(p, int) or not 1 <= p <= 65535 for p in value):
        raise ValueError("a list of at most 64 ports from 1 to 65535")
    return tuple(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
        raise ValueError("a list of strings")
    return tuple(value)


_ENGINE_KEYS: dict[str, Callable[[Any], Any]] = {
    "url": _text,
    "kind": _choice("", "vllm", "sglang"),
    "path": _text,
    "token_file": _text,
    "token_env": _text,
    "ca_file": _text,
    "verify": _flag,
    "timeout": _number(0.1, 60),
    "log": _text,
}
_LOG_KEYS: dict[str, Callable[[Any], Any]] = {"source": _log_source, "server": _text}
_KEYS: dict[str, Callable[[Any], Any]] = {
    "interval": _number(0.2, 60),
    "history_minutes": _number(1, 24 * 60),
    "host": _text,
    "gpus": _flag,
    "discovery": _flag,
    "find_engines": _flag,
    "ports": _ports,
    "rules": _texts,
}


def load(path: str | Path) -> Config:
    """Read a configuration file.

    Raises:
        ConfigError: the file cannot be read, is no regular file or over 1 MiB, is not TOML, or holds an unknown key or
            a wrong value.
    """
    raw = _bytes(path)
    try:
        data = _toml(raw.decode())
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    return parse(data, str(path))


def _bytes(path: str | Path) -> bytes:
    """Read a file that may be anything: a device or a pipe would never end."""
    try:
        file = Path(path)
        kind = file.stat().st_mode
        if stat.S_ISDIR(kind):
            raise ConfigError(f"{path}: Is a directory; allowed: a TOML file")
        if not stat.S_ISREG(kind):
            raise ConfigError(f"{path}: is no regular file; allowed: a TOML file")
        with file.open("rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: is over 1 MiB; allowed: a TOML file of at most 1 MiB")
    return raw


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415  # not in 3.10

        return tomllib.loads(text)
    import tomli  # noqa: PLC0415  # only where the standard library has no parser

    data: dict[str, Any] = tomli.loads(text)
    return data


def parse(data: Mapping[str, Any], where: str) -> Config:
    """Return the configuration in `data`; `where` names the file in errors.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    plain = {key: value for key, value in data.items() if key not in ("engine", "log")}
    values = _values(plain, _KEYS, where, "", extra=("[[engine]]", "[[log]]"))
    engines = []
    for number, table in enumerate(_tables(data, "engine", where), 1):
        prefix = f"engine {number}: "
        items = _values(table, _ENGINE_KEYS, where, prefix)
        if "url" not in items:
            raise ConfigError(f"{where}: {prefix}key 'url' is missing")
        try:
            base = engine_from_url(items.pop("url"))
        except ConfigError as error:
            raise ConfigError(f"{where}: {prefix}{error}") from None
        engines.append(EngineConfig(**{**_fields(base), **items}))
    logs = []
    for number, table in enumerate(_tables(data, "log", where), 1):
        items = _values(table, _LOG_KEYS, where, f"log {number}: ")
        if "source" not in items:
            raise ConfigError(f"{where}: log {number}: key 'source' is missing")
        logs.append(LogConfig(**items))
    return Config(**values, engines=tuple(engines), logs=tuple(logs))


def _fields(config: EngineConfig) -> dict[str, Any]:
    return {item.name: getattr(config, item.name) for item in fields(config)}


def _tables(data: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    value = data.get(key, [])
    if not isinstance(value, list) or any(not isinstance(item, dict) for item in value):
        raise ConfigError(f"{where}: key '{key}': allowed: tables written as [[{key}]]")
    return value


def _values(
    table: Mapping[str, Any],
    checks: Mapping[str, Callable[[Any], Any]],
    where: str,
    prefix: str,
    extra: tuple[str, ...] = (),
) -> dict[str, Any]:
    values = {}
    for key, value in table.items():
        if key not in checks:
            allowed = ", ".join([*checks, *extra])
            raise ConfigError(f"{where}: {prefix}unknown key {key!r}; allowed: {allowed}")
        try:
            values[key] = checks[key](value)
        except ValueError as error:
            raise ConfigError(f"{where}: {prefix}key {key!r} is {_show(value)}; allowed: {error}") from None
    return values


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
