"""HTTP APIs in the configuration: a Prometheus that knows a fleet, Alertmanagers that take findings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gpuwatch.config_checks import ConfigError, flag, label_name, named, number, pairs, printable, tables, text, values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """An HTTP API and how to log in there: a Prometheus or an Alertmanager. `timeout` in seconds for a whole answer.

    Secrets are named, not written: `password_file`, `password_env`, `token_file` and `token_env` say where they are.
    `headers` are sent as they are, such as a tenant's name.
    """

    url: str
    user: str = ""
    password_file: str = ""
    password_env: str = ""
    token_file: str = ""
    token_env: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    timeout: float = 10.0
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PrometheusConfig:
    """Which Prometheus knows the fleet. `matchers` are (label, value) pairs that every series must have.

    `cluster_label` is the label that tells clusters apart where one Prometheus holds several.
    """

    endpoint: EndpointConfig
    matchers: tuple[tuple[str, str], ...] = ()
    cluster_label: str = "cluster"


OTLP_LOGIN = "the variable OTEL_EXPORTER_OTLP_HEADERS"
"""Where the login at a collector belongs: the exporter of OpenTelemetry reads it there."""


def endpoint_url(address: str, what: str, login: str = "user with password_file") -> str:
    """Return the address of an HTTP API; ``host:port`` alone is taken for http.

    `login` is where a login belongs, for the message that refuses one in the address.

    Raises:
        ConfigError: the text is no http or https address, or carries a user name, a password or a query.
    """
    url = address if "://" in address else f"http://{address}"
    allowed = "allowed: http://HOST:PORT or https://HOST:PORT, with a path where there is one"
    if not printable(url):
        raise ConfigError(f"{what}: only ASCII without blanks in an address; {allowed}")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{what}: {error}; {allowed}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{named(what, address)}: {allowed}")
    if parts.username or parts.password:
        raise ConfigError(f"{what} at {host}: no user or password in the address; use {login}")
    if parts.query or parts.fragment:
        raise ConfigError(f"{what} at {host}: no query in the address; {allowed}")
    return url.rstrip("/")


def endpoint_at(url: str, known: EndpointConfig) -> EndpointConfig:
    """Return how to ask at `url`: as the file says, where it names this address or none.

    The login and the headers in the file belong to the address in the file; any other one gets the time limit only.
    """
    if known.url in ("", url):
        return replace(known, url=url)
    return EndpointConfig(url, timeout=known.timeout)


ENDPOINT_KEYS: dict[str, Callable[[Any], Any]] = {
    "url": text,
    "user": text,
    "password_file": text,
    "password_env": text,
    "token_file": text,
    "token_env": text,
    "ca_file": text,
    "cert_file": text,
    "key_file": text,
    "verify": flag,
    "timeout": number(0.1, 300),
    "headers": pairs,
}
PROMETHEUS_KEYS: dict[str, Callable[[Any], Any]] = {
    **ENDPOINT_KEYS,
    "matchers": pairs,
    "cluster_label": label_name,
}


def prometheus(data: Mapping[str, Any], where: str) -> PrometheusConfig | None:
    """Return the table ``[prometheus]``; `where` names the file in errors.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    table = data.get("prometheus")
    if table is None:
        return None
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: key 'prometheus': allowed: one table written as [prometheus]")
    items = values(table, PROMETHEUS_KEYS, where, "prometheus: ")
    own = {key: items.pop(key) for key in ("matchers", "cluster_label") if key in items}
    for name, _ in own.get("matchers", ()):
        try:
            label_name(name)
        except ValueError:
            raise ConfigError(f"{where}: prometheus: key 'matchers': {name!r} is no label name") from None
    return PrometheusConfig(_endpoint(items, where, "prometheus"), **own)


def alertmanagers(data: Mapping[str, Any], where: str) -> tuple[EndpointConfig, ...]:
    """Return the tables ``[[alertmanager]]``; `where` names the file in errors.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    found = []
    for index, table in enumerate(tables(data, "alertmanager", where), 1):
        what = f"alertmanager {index}"
        found.append(_endpoint(values(table, ENDPOINT_KEYS, where, what + ": "), where, what))
    return tuple(found)


def _endpoint(items: dict[str, Any], where: str, what: str) -> EndpointConfig:
    if "url" not in items:
        raise ConfigError(f"{where}: {what}: key 'url' is missing")
    try:
        return EndpointConfig(**{**items, "url": endpoint_url(items["url"], what)})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
