"""The address a server listens on, from text to a bound socket, with errors that say what is taken."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import suppress

from gpuwatch.config import ConfigError

BACKLOG = 512


def parse(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an empty host means all interfaces.

    Raises:
        ConfigError: It is something else.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"listen {text!r}: allowed: HOST:PORT, [IPv6]:PORT or :PORT")
    return host, int(port)


def bind(text: str) -> socket.socket:
    """Return a listening socket for ``HOST:PORT``; port 0 takes a free one.

    Raises:
        ConfigError: The address is wrong, not of this machine, taken or not allowed; one line.
    """
    host, port = parse(text)
    if not host:
        with suppress(OSError):
            return _open(socket.AF_INET6, ("::", port), both=True)
        host = "0.0.0.0"  # noqa: S104  # the user asked for all interfaces, and this machine has no IPv6
    try:
        # A name given as bytes does not make Python load its tables of international names (1 MiB).
        name = host.encode() if host.isascii() else host
        family, _, _, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return _open(family, address)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(f"listen {text}: the name {host!r} cannot be resolved") from None
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: "another program listens there; choose another port with --listen",
            errno.EACCES: "not permitted; ports below 1024 need CAP_NET_BIND_SERVICE",
            errno.EADDRNOTAVAIL: "is no address of this machine",
        }
        raise ConfigError(f"listen {text}: {reasons.get(error.errno or 0, error.strerror)}") from None


def _open(family: int, address: object, *, both: bool = False) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both else 1)
        listener.bind(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def is_local(listener: socket.socket) -> bool:
    """Say whether only programs of this machine can reach the socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def shown(listener: socket.socket) -> str:
    """Return the address of a bound socket as ``host:port``."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
