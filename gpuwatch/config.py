"""Configuration: TOML to frozen dataclasses. Every error names the file, the key and what is allowed."""

from __future__ import annotations

import socket
import stat
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpuwatch import config_checks as check
from gpuwatch.config_checks import ConfigError, tables
from gpuwatch.config_endpoints import EndpointConfig, PrometheusConfig, alertmanagers, prometheus
from gpuwatch.config_serve import ServeConfig, attach, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Config",
    "ConfigError",
    "EndpointConfig",
    "EngineConfig",
    "LogConfig",
    "PrometheusConfig",
    "ServeConfig",
    "load",
    "parse",
]

MAX_BYTES = 1 << 20
"""Largest configuration file that is read."""
DEFAULT_PORTS = (*range(8000, 8011), *range(30000, 30006))


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
    kernel_log: str = "auto"
    discovery: bool = True
    find_engines: bool = True
    ports: tuple[int, ...] = DEFAULT_PORTS
    rules: tuple[str, ...] = ()
    engines: tuple[EngineConfig, ...] = field(default=(), metadata={"toml": "engine"})
    logs: tuple[LogConfig, ...] = field(default=(), metadata={"toml": "log"})
    prometheus: PrometheusConfig | None = None
    alertmanagers: tuple[EndpointConfig, ...] = field(default=(), metadata={"toml": "alertmanager"})
    serve: ServeConfig = field(default_factory=ServeConfig)
    attach: EndpointConfig = field(default_factory=lambda: attach({}, ""))

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
    what, allowed = check.named("engine", text), "allowed: http://HOST:PORT or https://HOST:PORT"
    if not check.printable(url):
        raise ConfigError(f"{what}: only ASCII without blanks in an address; {allowed}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{what}: {error}; {allowed}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{what}: {allowed}")
    if parts.username or parts.password:
        raise ConfigError(f"engine at {host}: no user or password in the address; use token_file or token_env")
    netloc = f"[{host}]" if ":" in host else host
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    base = f"{parts.scheme}://{netloc}" + (f":{port}" if port else "")
    return EngineConfig(url=base, path=path)


_ENGINE_KEYS: dict[str, Callable[[Any], Any]] = {
    "url": check.text,
    "kind": check.choice("", "vllm", "sglang"),
    "path": check.url_path,
    "token_file": check.text,
    "token_env": check.text,
    "ca_file": check.text,
    "verify": check.flag,
    "timeout": check.number(0.1, 60),
    "log": check.log_or_none,
}
_LOG_KEYS: dict[str, Callable[[Any], Any]] = {"source": check.log_source, "server": check.text}
_KEYS: dict[str, Callable[[Any], Any]] = {
    "interval": check.number(0.2, 60),
    "history_minutes": check.number(1, 24 * 60),
    "host": check.text,
    "gpus": check.flag,
    "kernel_log": check.choice("auto", "kmsg", "journal", "off"),
    "discovery": check.flag,
    "find_engines": check.flag,
    "ports": check.ports,
    "rules": check.texts,
}

TABLES = {
    "engine": "[[engine]]",
    "log": "[[log]]",
    "prometheus": "[prometheus]",
    "alertmanager": "[[alertmanager]]",
    "serve": "[serve]",
    "attach": "[attach]",
}
"""Keys that hold tables, and how they are written."""


def load(path: str | Path) -> Config:
    """Read a configuration file. The rule files that it names are looked for in its folder.

    Raises:
        ConfigError: the file cannot be read, is no regular file or over 1 MiB, is not TOML, or holds an unknown key or
            a wrong value.
    """
    raw = _bytes(path)
    try:
        data = _toml(raw.decode("utf-8-sig"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    config = parse(data, str(path))
    return replace(config, rules=tuple(_beside(Path(path), name) for name in config.rules))


def _beside(file: Path, name: str) -> str:
    """Return where a file is that the configuration in `file` names; ``~`` is left to those who read it."""
    return name if name.startswith("~") else str(file.parent / name)


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
    plain = {key: value for key, value in data.items() if key not in TABLES}
    values = check.values(plain, _KEYS, where, "", extra=tuple(TABLES.values()))
    engines = []
    for number, table in enumerate(tables(data, "engine", where), 1):
        prefix = f"engine {number}: "
        items = check.values(table, _ENGINE_KEYS, where, prefix)
        if "url" not in items:
            raise ConfigError(f"{where}: {prefix}key 'url' is missing")
        try:
            base = engine_from_url(items.pop("url"))
        except ConfigError as error:
            raise ConfigError(f"{where}: {prefix}{error}") from None
        engines.append(EngineConfig(**{**_fields(base), **items}))
    logs = []
    for number, table in enumerate(tables(data, "log", where), 1):
        items = check.values(table, _LOG_KEYS, where, f"log {number}: ")
        if "source" not in items:
            raise ConfigError(f"{where}: log {number}: key 'source' is missing")
        logs.append(LogConfig(**items))
    return Config(
        **values,
        engines=tuple(engines),
        logs=tuple(logs),
        prometheus=prometheus(data, where),
        alertmanagers=alertmanagers(data, where),
        serve=serve(data, where),
        attach=attach(data, where),
    )


def _fields(config: EngineConfig) -> dict[str, Any]:
    return {item.name: getattr(config, item.name) for item in fields(config)}
