"""The daemon in the configuration: where it listens and what it keeps, and how a running one is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuwatch.config_checks import ConfigError, host_names, number, text, values, web_address
from gpuwatch.config_endpoints import ENDPOINT_KEYS, EndpointConfig, endpoint_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFAULT_LISTEN = "127.0.0.1:19400"
"""Loopback, and a port that IANA has given to nobody and that Prometheus' list of exporter ports does not name."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """How `serve` is reached and what it keeps.

    `listen` is ``HOST:PORT``; `web_config` a Prometheus web-configuration file; `hosts` are names under which the
    server is asked beside those of this machine; `state` is the file that outlives a restart (empty: the user's state
    folder, ``off``: none). `otlp` is the address of an OpenTelemetry collector, sent to every `otlp_interval` seconds.
    `runbook_url` is the address of the runbook in alerts that are sent to an Alertmanager (empty: its path in our
    repository).
    """

    listen: str = DEFAULT_LISTEN
    web_config: str = ""
    hosts: tuple[str, ...] = ()
    state: str = ""
    otlp: str = ""
    otlp_interval: float = 15.0
    runbook_url: str = ""


SERVE_KEYS: dict[str, Callable[[Any], Any]] = {
    "listen": text,
    "web_config": text,
    "hosts": host_names,
    "state": text,
    "otlp": text,
    "otlp_interval": number(1, 3600),
    "runbook_url": web_address,
}
ATTACH_KEYS = ENDPOINT_KEYS


def serve(data: Mapping[str, Any], where: str) -> ServeConfig:
    """Return the table ``[serve]``; `where` names the file in errors.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    return ServeConfig(**values(_table(data, "serve", where), SERVE_KEYS, where, "serve: "))


def attach(data: Mapping[str, Any], where: str) -> EndpointConfig:
    """Return the table ``[attach]``: how to log in at a running `serve`. Its `url` is empty where none is given.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    items = values(_table(data, "attach", where), ATTACH_KEYS, where, "attach: ")
    try:
        url = endpoint_url(items["url"], "attach") if "url" in items else ""
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return EndpointConfig(**{"timeout": 5.0, **items, "url": url})


def _table(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: key '{key}': allowed: one table written as [{key}]")
    return table
