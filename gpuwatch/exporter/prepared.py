"""A web configuration made ready for use: TLS settings and passwords, or why it cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwatch.config import ConfigError
from gpuwatch.exporter.access import Passwords
from gpuwatch.exporter.webconfig import WebConfig, load_web_config

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Prepared:
    """A web configuration that was read and found to be good, and what its files looked like then."""

    web: WebConfig
    context: ssl.SSLContext | None
    passwords: Passwords
    seen: object


def built(path: str, seen: object, web: WebConfig) -> Prepared:
    """Return what `web`, read from `path` when its files looked like `seen`, asks for.

    Raises:
        ConfigError: It cannot be used.
    """
    try:
        context = None
        if web.tls is not None:
            from gpuwatch.exporter import tls  # noqa: PLC0415  # OpenSSL is 5 MiB

            context = tls.make_context(web.tls)
        return Prepared(web, context, Passwords(web.users), seen)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def check_web_config(path: str) -> None:
    """Read a web configuration and all it names, as a server does that is started with it.

    Raises:
        ConfigError: It cannot be used.
    """
    built(path, None, load_web_config(path))
