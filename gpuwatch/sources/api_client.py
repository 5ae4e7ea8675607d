"""Requests to an HTTP API: a deadline for the whole of each, a size limit, a login, and errors people understand."""

from __future__ import annotations

import base64
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from gpuwatch.config import ConfigError
from gpuwatch.model import Reason, SourceError
from gpuwatch.sources.engine.deadline import Deadline
from gpuwatch.sources.engine.http import explain_failure, show_size, show_url

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from gpuwatch.config import EndpointConfig

MOST_BYTES = 64 * 1024 * 1024

# Damaged headers are our answer's business; urllib3 would also print them, with a traceback, over the screen.
logging.getLogger("urllib3").setLevel(logging.ERROR)
# `verify = false` was written by a person; a warning with each request would go over the screen, too.
urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)


@dataclass(frozen=True, slots=True)
class Reply:
    """What an API answered, whatever its status. `url` is the address that did, after redirects."""

    status: int
    kind: str
    body: bytes
    url: str


def login(config: EndpointConfig, variables: str) -> Callable[[], dict[str, str]]:
    """Return a function that gives the headers of each request, with secrets read anew so that they may change.

    Args:
        config: Where the secrets are.
        variables: Start of the names of the variables that are used where `config` names no login, such as
            ``GPUWATCH_PROMETHEUS``: ``…_TOKEN``, or ``…_USER`` with ``…_PASSWORD``.

    Raises:
        ConfigError: a secret that is named cannot be read, by this call or later by the function it returns.
    """

    def headers() -> dict[str, str]:
        given = dict(config.headers)
        token = _secret(config.url, config.token_file, config.token_env)
        user, password = config.user, _secret(config.url, config.password_file, config.password_env)
        if not (token or user):
            token = os.environ.get(variables + "_TOKEN", "")
            user = os.environ.get(variables + "_USER", "")
        if user and not password:
            password = os.environ.get(variables + "_PASSWORD", "")
        if token:
            given["Authorization"] = f"Bearer {token}"
        elif user:
            given["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        return given

    headers()
    return headers


def _secret(url: str, file: str, variable: str) -> str:
    if file:
        try:
            secret = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{url}: {file}: {getattr(error, 'strerror', None) or error}") from None
        if not secret or not secret.isprintable():
            raise ConfigError(f"{url}: {file}: allowed: one line with the secret")
        return secret
    if variable:
        secret = os.environ.get(variable, "")
        if not secret:
            raise ConfigError(f"{url}: the variable {variable} is not set")
        return secret
    return ""


def _watched(connection: socket.socket, deadline: Deadline) -> socket.socket:
    """Hand a new connection to the deadline; where the time is over already, it is closed."""
    try:
        deadline.watch(connection)
    except TimeoutError:
        connection.close()
        raise
    return connection


def _pool_classes(deadline: Deadline) -> dict[str, type[HTTPConnectionPool]]:
    """Return urllib3 pools whose connections report their sockets to `deadline`."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _watched(super()._new_conn(), deadline)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _watched(super()._new_conn(), deadline)

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


class DeadlineSession(requests.Session):
    """A session whose redirects change no request and take no secret to another server.

    `given` are the headers of the present request that its caller gave; any of them may be a secret. `home` is the only
    host that a redirect may lead to; empty: it may lead to any.
    """

    given: frozenset[str] = frozenset()
    home: str = ""

    def rebuild_method(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Refuse a redirect to a host other than `home`, and one that turns a POST into a GET without its form.

        The latter is what 301, 302 and 303 do.

        Raises:
            SourceError: it is one of them.
        """
        if self.home and urlsplit(prepared_request.url or "").hostname != self.home:
            raise SourceError(
                Reason.FAILED,
                f"{show_url(response.url)} redirects with {response.status_code} to another host, "
                f"{show_url(prepared_request.url or '')}, which is not followed; give that address, if it is meant",
            )
        before = prepared_request.method
        super().rebuild_method(prepared_request, response)
        if prepared_request.method != before:
            target = show_url(prepared_request.url or "")
            raise SourceError(
                Reason.FAILED,
                f"{show_url(response.url)} redirects with {response.status_code} to {target}, which loses what was "
                "sent; give the address that it points to",
            )

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Leave all given headers out of a request to another server; nothing is taken from ``~/.netrc``."""
        before, after = response.request.url, prepared_request.url
        if self.should_strip_auth(before, after):  # type: ignore[no-untyped-call]  # the stubs leave its types out
            for name in self.given:
                prepared_request.headers.pop(name, None)


def _as_given(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Leave the Authorization header alone: without an `auth` of its own, requests replaces it from ``~/.netrc``."""
    return request


def deadline_session(deadline: Deadline) -> DeadlineSession:
    """Return a session for one thread whose connections are shut down when `deadline` expires."""
    session = DeadlineSession()
    session.auth = _as_given
    session.headers["User-Agent"] = "gpuwatch"
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Adapter(deadline))
    return session


class ApiClient:
    """Talks to one HTTP API over one connection. Not for several threads at once, but `close` may come from any.

    Args:
        base_url: Such as ``http://prometheus:9090``, with a path prefix where there is one.
        timeout: Seconds for a whole answer.
        headers: Sent with each request, or a function that gives them.
        verify: Whether TLS certificates are checked, or the path of a CA bundle.
        cert: Our own certificate, or (certificate, key), where the server asks for one.
    """

    def __init__(
        self,
        base_url: str,
        timeout: float,
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        *,
        verify: bool | str = True,
        cert: str | tuple[str, str] | None = None,
    ) -> None:
        self.base = base_url.rstrip("/")
        self.timeout = timeout
        self._headers = headers if callable(headers) else lambda: headers or {}
        self._deadline = Deadline()
        self._session = deadline_session(self._deadline)
        self._session.verify = verify
        self._session.cert = cert

    @classmethod
    def of(cls, config: EndpointConfig, variables: str) -> ApiClient:
        """Return the client of a configured API; `variables` as for `login`.

        Raises:
            ConfigError: a secret or a certificate file that is named cannot be read.
        """
        for file in (config.ca_file, config.cert_file, config.key_file):
            if file and not Path(file).is_file():
                raise ConfigError(f"{config.url}: {file}: No such file")
        cert = (config.cert_file, config.key_file) if config.key_file else config.cert_file or None
        verify = config.ca_file or True if config.verify else False
        return cls(config.url, config.timeout, login(config, variables), verify=verify, cert=cert)

    def ask(self, path: str, form: Mapping[str, str] | None = None, json: Any = None) -> Reply:
        """POST `form` or `json` to `path`, or GET it where neither is given.

        Raises:
            SourceError: Nothing answered, not in time, too much, a redirect that loses what was sent, or a secret that
                cannot be read.
        """
        at = url = self.base + path
        method = "GET" if form is None and json is None else "POST"
        self._deadline.start(self.timeout)
        parts, size = [], 0
        try:
            headers = self._headers()
            self._session.given = frozenset(headers)
            with self._session.request(
                method,
                url,
                data=form,
                json=json,
                headers=headers,
                timeout=self.timeout,
                stream=True,
                verify=self._session.verify,  # else REQUESTS_CA_BUNDLE would count more than a named file
            ) as response:
                at = response.url
                for part in response.iter_content(65_536):
                    size += len(part)
                    if size > MOST_BYTES:
                        raise SourceError(
                            Reason.TOO_LARGE, f"{show_url(at)}: the answer is over {show_size(MOST_BYTES)}"
                        )
                    parts.append(part)
            if self._deadline.expired:  # the end of file may be ours
                raise TimeoutError
        except ConfigError as error:
            raise SourceError(Reason.UNAUTHORIZED, str(error)) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            self._deadline.release()
            cause = TimeoutError() if self._deadline.expired else error
            asked = getattr(error, "request", None)
            raise explain_failure(cause, getattr(asked, "url", None) or at, self.timeout) from None
        finally:
            self._deadline.stop()
        return Reply(response.status_code, response.headers.get("Content-Type", ""), b"".join(parts), at)

    def close(self) -> None:
        """End a request in progress and close the connections."""
        self._deadline.expire()
        self._session.close()
