"""GET of one small document with a deadline for the whole of it, a size limit, and errors that people understand.

requests' timeouts hold for one read each; a server that sends a byte now and then never runs into them. A watchdog
therefore shuts the socket down at the deadline, wherever the request hangs: TLS handshake, headers or body.
"""

from __future__ import annotations

import errno
import http.client
import ipaddress
import logging
import socket
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from gpuwatch.model import Reason, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Damaged headers are our answer's business; urllib3 would also print them, with a traceback, over the screen.
logging.getLogger("urllib3").setLevel(logging.ERROR)

CHUNK = 16 * 1024
MAX_REDIRECTS = 3


class Deadline:
    """Ends the request in progress when its time is over. One request at a time; `expire` may come from any thread."""

    def __init__(self) -> None:
        self.expired = False
        self.connections = 0
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._timer: threading.Timer | None = None

    def start(self, seconds: float) -> None:
        """Begin a request that may take `seconds`."""
        self.expired = False
        self.connections = 0
        self._timer = threading.Timer(seconds, self.expire)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """End the request; the connection may live on for the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch(self, connection: socket.socket) -> None:
        """Take charge of a new connection. Raises TimeoutError when the time is already over.

        A duplicate of the descriptor is kept: TLS wraps the original away, and the duplicate still reaches it.
        """
        with self._lock:
            self.connections += 1
            self._close()
            if self.expired:
                raise TimeoutError
            self._socket = connection.dup()

    def release(self) -> None:
        """Give the connection up; it is not used again."""
        with self._lock:
            self._close()

    def expire(self) -> None:
        """Shut the connection down; whoever reads from it gets an end of file."""
        with self._lock:
            self.expired = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _pool_classes(deadline: Deadline) -> dict[str, type[HTTPConnectionPool]]:
    """Return urllib3 pools whose connections report their sockets to `deadline`."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            connection = super()._new_conn()
            deadline.watch(connection)
            return connection

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            connection = super()._new_conn()
            deadline.watch(connection)
            return connection

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


class _Adapter(HTTPAdapter):
    def __init__(self, deadline: Deadline) -> None:
        self._classes = _pool_classes(deadline)
        super().__init__(pool_connections=2, pool_maxsize=1, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = self._classes

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = self._classes
        return manager


def watch_connections(session: requests.Session, deadline: Deadline) -> None:
    """Put every connection of `session` under the watch of `deadline`."""
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter(deadline))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered: the body with its content encoding undone."""

    status: int
    body: bytes
    content_type: str


class Client:
    """Reads documents from one server. Not for several threads at once, but `close` may come from any.

    Args:
        verify: Whether to check the server's certificate, or the file with the certificates to trust.
        proxies: Proxies by scheme; empty for none. Nothing else is taken from the environment or from .netrc.

    The name of the server is resolved by the system, whose own time limit holds for that part.
    """

    def __init__(self, *, verify: bool | str = True, proxies: Mapping[str, str] | None = None) -> None:
        self._deadline = Deadline()
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.max_redirects = MAX_REDIRECTS
        self._session.verify = verify
        self._session.proxies.update(proxies or {})
        watch_connections(self._session, self._deadline)
        if verify is False:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def get(self, url: str, *, timeout: float, limit: int, accept: str, token: str = "") -> Answer:
        """Return the answer to a GET, whatever its status.

        Args:
            url: Where to ask.
            timeout: Seconds for all of it.
            limit: Most bytes of body, after decompression.
            accept: Accept header.
            token: Bearer token; never part of an error text, and not sent on to another host by a redirect.

        Raises:
            SourceError: Nothing answered, not in time, not completely, or too much.
        """
        headers = {"Accept": accept, "Accept-Encoding": "gzip", "User-Agent": "gpuwatch"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._deadline.start(timeout)
        try:
            return self._get_again(url, headers, timeout, limit)
        except SourceError:
            self._deadline.release()
            if self._deadline.expired:  # what was cut short, the watchdog cut
                raise _too_slow(url, timeout) from None
            raise
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError, zlib.error) as error:
            self._deadline.release()
            raise self._explain(error, url, timeout) from None
        finally:
            self._deadline.stop()

    def close(self) -> None:
        """End a request in progress and close the connection."""
        self._deadline.expire()
        self._session.close()

    def _get_again(self, url: str, headers: dict[str, str], timeout: float, limit: int) -> Answer:
        """Ask once more where an idle connection was closed just when it was used again: nobody has answered yet."""
        try:
            return self._get(url, headers, timeout, limit)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            if self._deadline.connections or self._deadline.expired or not _is_closed(error):
                raise
            return self._get(url, headers, timeout, limit)

    def _get(self, url: str, headers: dict[str, str], timeout: float, limit: int) -> Answer:
        with self._session.get(url, headers=headers, timeout=timeout, stream=True) as response:
            kind = response.headers.get("Content-Type", "")
            body = b"".join(_decoded(response, limit, url))
            if self._deadline.expired:  # the end of file may be ours
                raise TimeoutError
            if response.raw.version < 11 or "close" in response.headers.get("Connection", "").lower():
                self._deadline.release()
            return Answer(response.status_code, body, kind)

    def _explain(self, error: Exception, url: str, timeout: float) -> SourceError:
        if self._deadline.expired:
            return _too_slow(url, timeout)
        return explain_failure(error, url, timeout)


def _too_slow(url: str, timeout: float) -> SourceError:
    return SourceError(Reason.TIMEOUT, f"no complete answer from {show_url(url)} within {timeout:g} s")


def _decoded(response: requests.Response, limit: int, url: str) -> Iterator[bytes]:
    """Yield the body, decompressed, and raise as soon as it is over `limit` or ends before its end."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower() or "identity"
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise SourceError(
            Reason.NOT_METRICS, f"{show_url(url)} answers in the encoding {encoding[:20]!r}; gzip is read"
        )
    inflate = None if encoding == "identity" else zlib.decompressobj(zlib.MAX_WBITS + 32)
    received = total = 0
    for chunk in response.raw.stream(CHUNK, decode_content=False):
        received += len(chunk)
        data = inflate.decompress(chunk, limit + 1 - total) if inflate is not None else chunk
        total += len(data)
        if total > limit:
            raise SourceError(
                Reason.TOO_LARGE, f"the answer of {show_url(url)} is over {show_size(limit)}; not read on"
            )
        yield data
    declared = response.headers.get("Content-Length", "")
    cut_short = declared.isdigit() and received < int(declared)
    if cut_short or (inflate is not None and received and not inflate.eof):
        raise SourceError(Reason.FAILED, f"the answer of {show_url(url)} was cut short after {received} bytes")


_FAILURES: tuple[tuple[tuple[type[BaseException], ...], Reason, str], ...] = (
    ((requests.TooManyRedirects,), Reason.FAILED, f"{{where}} redirects more than {MAX_REDIRECTS} times"),
    (
        (zlib.error, urllib3.exceptions.DecodeError),
        Reason.NOT_METRICS,
        "{where} announces gzip, but the data is not gzip",
    ),
    ((ConnectionRefusedError,), Reason.UNREACHABLE, "connection refused: nothing listens at {server}"),
    ((socket.gaierror,), Reason.UNREACHABLE, "the name {host!r} cannot be resolved"),
    (
        (urllib3.exceptions.IncompleteRead, requests.exceptions.ChunkedEncodingError, http.client.IncompleteRead),
        Reason.FAILED,
        "the answer of {where} was cut short",
    ),
    (
        (ConnectionResetError, BrokenPipeError, urllib3.exceptions.ProtocolError),
        Reason.FAILED,
        "{where} closed the connection without an answer; is it https://?",
    ),
)


def explain_failure(error: Exception, url: str, timeout: float) -> SourceError:
    """Say in one line why a GET of `url` with `timeout` seconds failed."""
    parts = urlsplit(url)
    where, host = show_url(url), parts.hostname or ""
    server = f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    if _find(error, (requests.exceptions.SSLError, urllib3.exceptions.SSLError)):
        if "certificate verify failed" in str(error).lower().replace("_", " "):
            text = f"the certificate of {where} is not trusted (give ca_file, or verify = false)"
        else:
            text = f"{where} does not speak TLS as expected; is it http:// instead of https://?"
        return SourceError(Reason.FAILED, text)
    for kinds, reason, template in _FAILURES:
        if _find(error, kinds):
            return SourceError(reason, template.format(where=where, server=server, host=host))
    found = _find(error, (OSError,), lambda one: getattr(one, "errno", None) in (errno.EHOSTUNREACH, errno.ENETUNREACH))
    if found is not None:
        return SourceError(Reason.UNREACHABLE, f"no route to {server}")
    # Not earlier: for urllib3 a refused connection is a kind of timeout.
    if _find(error, (TimeoutError, requests.Timeout, urllib3.exceptions.TimeoutError)):
        return _too_slow(url, timeout)
    return SourceError(Reason.FAILED, f"{where} cannot be read: {type(error).__name__}")


def _is_closed(error: BaseException) -> bool:
    return _find(error, (ConnectionResetError, BrokenPipeError, urllib3.exceptions.ProtocolError)) is not None


def _find(
    error: BaseException | None,
    kinds: tuple[type[BaseException], ...],
    accept: Callable[[BaseException], bool] = lambda _: True,
) -> BaseException | None:
    """Return the first of `kinds` in an exception, its arguments, its reason and what caused it."""
    pending: list[object] = [error]
    seen: set[int] = set()
    while pending:
        found = pending.pop(0)
        if not isinstance(found, BaseException) or id(found) in seen:
            continue
        if isinstance(found, kinds) and accept(found):
            return found
        seen.add(id(found))
        pending += [*found.args, getattr(found, "reason", None), found.__cause__, found.__context__]
    return None


def show_url(url: str) -> str:
    """Return `url` for an error text: without user, password, query and fragment, which may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def show_size(size: int) -> str:
    """Return a number of bytes in MiB, or in bytes where it is small."""
    return f"{size / 2**20:g} MiB" if size >= 2**20 else f"{size} bytes"


def proxies_for(url: str) -> dict[str, str]:
    """Return the environment's proxies for `url`; none for this machine, whatever the environment says."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return {}
    return {} if host == "localhost" or host.endswith(".localhost") else dict(get_environ_proxies(url, no_proxy=None))
