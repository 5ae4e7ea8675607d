"""Connections to HTTP servers: watched by a deadline, over TLS where asked for, through a proxy where there is one."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from gpuwatch.model import Reason, SourceError

if TYPE_CHECKING:
    import ssl

    from gpuwatch.sources.engine.deadline import Deadline


class _TlsConnection(http.client.HTTPConnection):
    """As HTTPSConnection of the standard library, which is missing where it was loaded without `ssl`."""

    default_port = 443

    def __init__(self, host: str, port: int, *, timeout: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout)
        self._context = context

    def connect(self) -> None:
        """Connect, through the proxy where there is one, and shake hands."""
        super().connect()
        # The standard library has kept the host behind a proxy in this attribute since Python 3.4.
        name = self._tunnel_host or self.host  # type: ignore[attr-defined]  # see the line above
        self.sock = self._context.wrap_socket(self.sock, server_hostname=name)


def open_connection(
    url: SplitResult, proxy: str, deadline: Deadline, *, verify: bool | str, timeout: float
) -> http.client.HTTPConnection:
    """Return a connection for requests to the server of `url`; it connects at the first one.

    Raises:
        SourceError: the certificates cannot be read, or the proxy is of a kind that is not supported.
    """
    secure = url.scheme == "https"
    through = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else url
    if proxy and (through.scheme not in ("http", "https") or (secure and through.scheme == "https")):
        raise SourceError(Reason.FAILED, f"a proxy of the kind {through.scheme}:// is not supported; use http://")
    host, port = through.hostname or "", through.port
    if secure or through.scheme == "https":
        connection: http.client.HTTPConnection = _TlsConnection(
            host, port or (80 if through.scheme == "http" else 443), timeout=timeout, context=_context(verify)
        )
    else:
        connection = http.client.HTTPConnection(host, port or 80, timeout=timeout)
    if proxy and secure:
        connection.set_tunnel(url.hostname or "", url.port or 443, headers=proxy_headers(proxy))

    def dial(server: tuple[str, int], *args: Any, **kwargs: Any) -> socket.socket:
        name, number = server
        # A name given as bytes does not make Python load its tables of international names (1 MiB).
        plain = name.encode() if name.isascii() else name
        opened = socket.create_connection((plain, number), *args, **kwargs)  # type: ignore[arg-type]  # bytes are fine
        try:
            deadline.watch(opened)
        except TimeoutError:
            opened.close()
            raise
        return opened

    # http.client has had this attribute for its own tests since Python 3.5; it is the only hook before the handshake.
    connection._create_connection = dial  # type: ignore[attr-defined]  # noqa: SLF001  # see the line above
    return connection


def _context(verify: bool | str) -> ssl.SSLContext:
    """Return the TLS settings: the system's certificates, those of a file or folder, or none that are checked."""
    import ssl  # noqa: PLC0415  # 5 MiB, for https only

    if isinstance(verify, str):
        try:
            folder = Path(verify).is_dir()
            return ssl.create_default_context(cafile=None if folder else verify, capath=verify if folder else None)
        except (OSError, ValueError) as error:
            detail = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise SourceError(Reason.NOT_FOUND, f"ca_file {verify} cannot be read: {detail}") from None
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None:
        with suppress(ImportError):
            import certifi  # noqa: PLC0415  # requests brings it; needed only on systems without certificates

            context.load_verify_locations(certifi.where())
    return context


def basic(user_and_password: str) -> str:
    """Return the value of an Authorization header for the ``user:password`` of an address."""
    user, _, password = user_and_password.partition(":")
    return "Basic " + base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


def proxy_headers(proxy: str) -> dict[str, str]:
    """Return the headers that the proxy at the address `proxy` wants."""
    who = proxy.rpartition("://")[2].rpartition("@")[0]
    return {"Proxy-Authorization": basic(who)} if who else {}


def proxies_for(url: str) -> dict[str, str]:
    """Return the environment's proxies for `url`; none for this machine, whatever the environment says."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return {}
    if host == "localhost" or host.endswith(".localhost"):
        return {}
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return {}
    from urllib.request import getproxies_environment, proxy_bypass  # noqa: PLC0415  # rarely needed

    proxies = getproxies_environment()
    if _in_network(host, proxies.get("no", "")) or proxy_bypass(urlsplit(url).netloc.rpartition("@")[2]):
        return {}
    found = {scheme: proxies.get(scheme) or proxies.get("all", "") for scheme in ("http", "https")}
    return {scheme: proxy for scheme, proxy in found.items() if proxy}


def _in_network(host: str, exceptions: str) -> bool:
    """Say whether an IP address lies in one of the networks (``10.0.0.0/8``) of a no_proxy list."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in exceptions.split(","):
        with suppress(ValueError):
            if "/" in entry and address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
    return False
