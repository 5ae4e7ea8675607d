"""GET of one small document with a deadline for the whole of it, a size limit, and errors that people understand."""

from __future__ import annotations

import errno
import http.client
import socket
import sys
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urldefrag, urljoin, urlsplit

from gpuwatch.model import Reason, SourceError
from gpuwatch.sources.engine.connect import basic, open_connection, proxy_headers
from gpuwatch.sources.engine.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CHUNK = 16 * 1024
MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_UNQUOTED = "/%:=&?~#+!$,;'@()*[]"


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
        self._verify = verify
        self._proxies = dict(proxies or {})
        self._deadline = Deadline()
        self._connection: http.client.HTTPConnection | None = None
        self._server: tuple[str, str] | None = None
        self._at = ""
        self._spoke: set[tuple[str, str]] = set()
        """Servers that have answered."""

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
            self._drop()
            if self._deadline.expired:  # what was cut short, the watchdog cut
                raise _too_slow(self._at, timeout) from None
            raise
        except (http.client.HTTPException, OSError, ValueError, zlib.error) as error:
            self._drop()
            raise self._explain(error, self._at, timeout) from None
        finally:
            self._deadline.stop()

    def close(self) -> None:
        """End a request in progress and close the connection."""
        self._deadline.expire()
        self._drop()

    def _drop(self) -> None:
        """Close the connection; the next request opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):
                connection.close()
        self._deadline.release()

    def _get_again(self, url: str, headers: dict[str, str], timeout: float, limit: int) -> Answer:
        """Ask once more where an idle connection was closed just when it was used again: nobody has answered yet."""
        try:
            return self._follow(url, headers, timeout, limit)
        except (ConnectionResetError, BrokenPipeError):
            if self._deadline.connections or self._deadline.expired:
                raise
            self._drop()
            return self._follow(url, headers, timeout, limit)

    def _follow(self, url: str, headers: dict[str, str], timeout: float, limit: int) -> Answer:
        """Ask, and follow a few redirects."""
        at = url
        for _ in range(MAX_REDIRECTS + 1):
            self._at = at
            response = self._send(at, headers, timeout)
            location = response.headers.get("Location", "")
            if response.status not in _REDIRECTS or not location:
                return self._answer(response, at, limit)
            response.read(CHUNK)
            if not response.isclosed():
                self._drop()
            target = urldefrag(urljoin(at, location))[0]
            if urlsplit(target).scheme not in ("http", "https"):
                raise SourceError(Reason.FAILED, f"{show_url(url)} cannot be read: it redirects to something else")
            if _origin(target) != _origin(at):
                headers = {name: value for name, value in headers.items() if name != "Authorization"}
            at = target
        raise SourceError(Reason.FAILED, f"{show_url(url)} redirects more than {MAX_REDIRECTS} times")

    def _send(self, url: str, headers: dict[str, str], timeout: float) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme, "")
        target = quote(parts.path or "/", safe=_UNQUOTED) + (f"?{quote(parts.query, _UNQUOTED)}" if parts.query else "")
        who = parts.netloc.rpartition("@")[0]
        if who:
            headers = {**headers, "Authorization": basic(who)}
        if proxy and parts.scheme == "http":
            target = f"http://{parts.netloc.rpartition('@')[2]}{target}"
            headers = {**headers, **proxy_headers(proxy)}
        connection = self._connection
        if connection is None or self._server != _origin(url):
            self._drop()
            connection = open_connection(parts, proxy, self._deadline, verify=self._verify, timeout=timeout)
            self._connection, self._server = connection, _origin(url)
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        self._spoke.add(_origin(url))
        return response

    def _answer(self, response: http.client.HTTPResponse, url: str, limit: int) -> Answer:
        body = b"".join(_decoded(response, limit, url))
        if self._deadline.expired:  # the end of file may be ours
            raise TimeoutError
        if response.will_close:
            self._drop()
        return Answer(response.status, body, response.headers.get("Content-Type", ""))

    def _explain(self, error: Exception, url: str, timeout: float) -> SourceError:
        if self._deadline.expired:
            return _too_slow(url, timeout)
        return explain_failure(error, url, timeout, answered=_origin(url) in self._spoke)


def _origin(url: str) -> tuple[str, str]:
    """Return scheme and server of an address: what a connection is good for, and a token is meant for."""
    parts = urlsplit(url)
    return parts.scheme, f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _too_slow(url: str, timeout: float) -> SourceError:
    return SourceError(Reason.TIMEOUT, f"no complete answer from {show_url(url)} within {timeout:g} s")


def _decoded(response: http.client.HTTPResponse, limit: int, url: str) -> Iterator[bytes]:
    """Yield the body, decompressed, and raise as soon as it is over `limit` or ends before its end."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower() or "identity"
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise SourceError(
            Reason.NOT_METRICS, f"{show_url(url)} answers in the encoding {encoding[:20]!r}; gzip is read"
        )
    inflate = None if encoding == "identity" else zlib.decompressobj(zlib.MAX_WBITS + 32)
    received = total = 0
    while chunk := response.read(CHUNK):
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


_CLOSED = "{where} closed the connection without an answer"
_FAILURES: tuple[tuple[tuple[type[BaseException], ...], Reason, str], ...] = (
    ((zlib.error,), Reason.NOT_METRICS, "{where} announces gzip, but the data is not gzip"),
    ((ConnectionRefusedError,), Reason.UNREACHABLE, "connection refused: nothing listens at {server}"),
    ((socket.gaierror,), Reason.UNREACHABLE, "the name {host!r} cannot be resolved"),
    ((http.client.IncompleteRead,), Reason.FAILED, "the answer of {where} was cut short"),
    (
        (ConnectionResetError, BrokenPipeError, http.client.HTTPException),
        Reason.FAILED,
        _CLOSED,
    ),
)

_UNTRUSTED = "is not trusted (give ca_file, or verify = false)"
_ANOTHER_NAME = "is not for {host}: ask by a name that it holds, or give it this one"
_CERTIFICATES = {
    9: "is not valid yet: is this machine's clock right?",
    10: "has expired: the server needs a new one",
    23: "was revoked: the server needs a new one",
    62: _ANOTHER_NAME,
    64: _ANOTHER_NAME,
}
"""What is wrong with a certificate besides its issuer, by the X509_V_ERR codes of OpenSSL's ``x509_vfy.h``."""


def explain_failure(error: Exception, url: str, timeout: float, *, answered: bool = False) -> SourceError:
    """Say in one line why a request to `url` with `timeout` seconds failed; `answered`: there were answers before.

    What another HTTP library raised is explained by the exceptions inside it.
    """
    parts = urlsplit(url)
    where, host = show_url(url), parts.hostname or ""
    server = f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    tls = sys.modules.get("ssl")  # what is not loaded has raised nothing
    if tls is not None and _find(error, (tls.SSLError,)):
        if "certificate verify failed" in str(error).lower().replace("_", " "):
            refused = _find(error, (tls.SSLCertVerificationError,), lambda one: hasattr(one, "verify_code"))
            why = _CERTIFICATES.get(getattr(refused, "verify_code", 0), _UNTRUSTED).format(host=host)
            text = f"the certificate of {where} {why}"
        else:
            text = f"{where} does not speak TLS as expected; is it http:// instead of https://?"
        return SourceError(Reason.FAILED, text)
    for kinds, reason, template in _FAILURES:
        if _find(error, kinds):
            text = template.format(where=where, server=server, host=host)
            never = parts.scheme == "http" and not answered and template is _CLOSED
            return SourceError(reason, f"{text}; is it https://?" if never else text)
    found = _find(error, (OSError,), lambda one: getattr(one, "errno", None) in (errno.EHOSTUNREACH, errno.ENETUNREACH))
    if found is not None:
        return SourceError(Reason.UNREACHABLE, f"no route to {server}")
    if _find(error, (TimeoutError,)):
        return _too_slow(url, timeout)
    return SourceError(Reason.FAILED, f"{where} cannot be read: {type(error).__name__}")


def tls_hint(status: int, body: bytes) -> str:
    """Return the question whether it is https, where a server says that plain HTTP reached its TLS port.

    Go, nginx and Apache answer such a request with 400 and a text that names HTTPS.
    """
    return "; is it https://?" if status == 400 and b"https" in body[:4096].lower() else ""


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
