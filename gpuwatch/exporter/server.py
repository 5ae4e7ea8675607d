"""An HTTP server for many small answers: one thread, bounded connections, a deadline for everything a client does."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpuwatch.config import ConfigError
from gpuwatch.exporter import listen
from gpuwatch.exporter.accept import Acceptor
from gpuwatch.exporter.access import Bucket, Passwords
from gpuwatch.exporter.http_message import (
    MAX_HEAD,
    BadRequestError,
    Request,
    Response,
    credentials,
    host_refusal,
    read_head,
    refused,
    write,
)
from gpuwatch.exporter.prepared import Prepared, built
from gpuwatch.exporter.webconfig import WebConfig, load_web_config

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Sequence

    from gpuwatch.exporter.webconfig import TlsConfig

log = logging.getLogger(__name__)

STOP_SECONDS = 1.0
WATCH_SECONDS = 5.0
"""How often the web configuration and the files it names are looked at for changes."""
_HEADERS = (("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store"))


class Application(Protocol):
    """Answers requests; called on the server's thread, so it must not block."""

    def __call__(self, request: Request) -> Awaitable[Response]:
        """Return the answer to a GET or HEAD."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the server. Seconds: `head` from the first byte of a request to its empty line, `idle` between two.

    `silent` is the age from which on a connection that has asked nothing gives way to a new one, where there is no
    room. `answer` for working out an answer, `write` for a client to take it, `handshake` for TLS.
    """

    connections: int = 512
    head: float = 5.0
    idle: float = 120.0
    silent: float = 1.0
    answer: float = 10.0
    write: float = 30.0
    handshake: float = 5.0


_LIMITS = Limits()


class Server:
    """Listens at once; answers from `start` until `stop`.

    Args:
        address: ``HOST:PORT``.
        application: Answers requests.
        web_config: Path of a web-configuration file; read again when it or a file it names changes. One that has
            become wrong is reported once, and the last good one stays.
        names: Host names under which we are asked, beside those of this machine.
        limits: Bounds.

    Raises:
        ConfigError: The address or the web configuration cannot be used.
    """

    def __init__(
        self,
        address: str,
        application: Application,
        *,
        web_config: str = "",
        names: Sequence[str] = (),
        limits: Limits = _LIMITS,
    ) -> None:
        self._application = application
        self._names = tuple(name.lower() for name in names)
        self._limits = limits
        self._web_path = web_config
        self._web = WebConfig()
        self._context: ssl.SSLContext | None = None
        self._passwords = Passwords({})
        self._bucket = Bucket(None, 0.0)
        self._seen: object = None
        self._watched: TlsConfig | None = None
        self._use(self._prepare())
        self._socket = listen.bind(address)
        self._local = listen.is_local(self._socket)
        self._connections: dict[_Connection, None] = {}
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="web-worker")
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    @property
    def address(self) -> str:
        """``host:port`` as it is bound."""
        return listen.shown(self._socket)

    @property
    def url(self) -> str:
        """Address for people."""
        return f"{'https' if self._context is not None else 'http'}://{self.address}"

    @property
    def open_to_anybody(self) -> bool:
        """Whether other machines can read everything without a password or certificate."""
        certificates = self._web.tls is not None and self._web.tls.client_auth == "RequireAndVerifyClientCert"
        return not self._local and not self._passwords.needed and not certificates

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Close all connections; waits at most `STOP_SECONDS`."""
        if self._thread.is_alive():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(STOP_SECONDS)
        self._socket.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if not self._thread.is_alive() and not self._loop.is_closed():
            self._loop.close()

    def prepare(self) -> Prepared:
        """Read the web configuration again, for `use`.

        Raises:
            ConfigError: It cannot be used.
        """
        return self._prepare()

    def use(self, prepared: Prepared | None, names: Sequence[str]) -> None:
        """Go on with another web configuration, None: the same, and other host names; open connections stay."""

        def change() -> None:
            self._names = tuple(name.lower() for name in names)
            if prepared is not None:
                self._use(prepared)

        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(change)

    # Configuration

    def _prepare(self) -> Prepared:
        """Read the web configuration and all it names."""
        return built(self._web_path, *self._read())

    def _read(self) -> tuple[object, WebConfig]:
        """Return the signature of the web configuration, taken before what it names is read, and what it says."""
        own = self._signature(None)
        web = load_web_config(self._web_path) if self._web_path else WebConfig()
        return (own, self._signature(web.tls)), web

    def _use(self, prepared: Prepared) -> None:
        web = self._web = prepared.web
        self._watched = web.tls
        self._context, self._passwords, self._seen = prepared.context, prepared.passwords, prepared.seen
        self._bucket = Bucket(web.rate, time.monotonic())
        if web.tls is not None:
            from gpuwatch.exporter.tls import validity_warning  # noqa: PLC0415  # as in `built`

            warning = validity_warning(web.tls, time.time())
            if warning:
                log.error("%s", warning)

    def _signature(self, settings: TlsConfig | None) -> object:
        """Return what changes when the web configuration, or a file that `settings` name, is written or replaced."""
        marks: list[object] = []
        for name in settings.files if settings is not None else (self._web_path,):
            try:
                found = Path(name).stat() if name else None
                marks.append((name, found.st_mtime_ns, found.st_size, found.st_ino) if found else name)
            except OSError as error:
                marks.append((name, error.errno))
        return tuple(marks)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            seen: object = (self._signature(None), self._signature(self._watched))
            if seen == self._seen:
                continue
            try:
                seen, web = self._read()
                self._watched = web.tls
                self._use(built(self._web_path, seen, web))
            except (ConfigError, OSError) as error:
                log.error("%s; the web configuration before it stays in force", error)  # noqa: TRY400  # one line, no traceback
                self._seen = seen

    # The thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())

    async def _main(self) -> None:
        watch = asyncio.ensure_future(self._watch())
        acceptor = Acceptor(
            self._socket, self._serve, lambda: self._context, handshake=self._limits.handshake, limit=MAX_HEAD
        )
        try:
            await self._ended.wait()
        finally:
            watch.cancel()
            acceptor.close()
            for connection in list(self._connections):
                connection.abort()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # what was aborted is closed in the next round

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        room = len(self._connections) < self._limits.connections or self._make_room()
        self._connections[connection] = None
        try:
            await connection.serve(room=room)
        except (OSError, asyncio.TimeoutError, EOFError):  # the client went away, or took too long
            pass
        except asyncio.CancelledError:  # the server ends; asyncio.streams would report a cancelled task as an error
            pass
        finally:
            del self._connections[connection]
            connection.abort()

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest, or else the oldest that has been silent for too long.

        Return whether there was one.
        """
        late = time.monotonic() - self._limits.silent
        waiting = (one for one in self._connections if one.silent_since is not None and one.silent_since <= late)
        found = next((one for one in self._connections if one.idle), None) or next(waiting, None)
        if found is not None:
            found.abort()
        return found is not None

    def refusal(self, request: Request, peer: object) -> Response | None:
        """Return why a request is not answered, before anybody looks at what it asks for."""
        if not self._bucket.take(time.monotonic()):
            return refused(429, "too many requests")
        if self._web.tls is not None:
            from gpuwatch.exporter.tls import allowed_client  # noqa: PLC0415  # as in `built`

            if not allowed_client(peer, self._web.tls.allowed_sans):  # type: ignore[arg-type]  # as `ssl` gives it
                return refused(403, "the certificate has none of the names that are allowed")
        wrong_host = host_refusal(request.host, local=self._local, names=self._names)
        if wrong_host:
            return refused(421, wrong_host)
        if request.method not in ("GET", "HEAD"):
            return refused(405, f"{request.method} is not answered here", ("Allow", "GET, HEAD"))
        return None

    async def logged_in(self, request: Request) -> bool:
        """Say whether the request carries a good login, where one is needed."""
        passwords = self._passwords
        if not passwords.needed:
            return True
        login = credentials(request.header("authorization"))
        if login is None:
            return False
        if passwords.remembered(*login):
            return True
        return await self._loop.run_in_executor(self._pool, passwords.check, *login)

    async def respond(self, request: Request, peer: object) -> tuple[Response, tuple[tuple[str, str], ...]]:
        """Return the answer to a request and the headers that go with every answer."""
        extra = tuple({**dict(_HEADERS), **dict(self._web.headers)}.items())
        response = self.refusal(request, peer)
        if response is None:
            try:
                response = await asyncio.wait_for(self._answer(request), self._limits.answer)
            except asyncio.TimeoutError:
                response = refused(503, f"no answer within {self._limits.answer:g} s")
            except Exception:
                log.exception("a request failed: %s", request.path)
                response = refused(500, "internal error; the log says more")
        return response, extra

    async def _answer(self, request: Request) -> Response:
        if not await self.logged_in(request):
            return refused(401, "log in", ("WWW-Authenticate", 'Basic realm="gpuwatch", charset="UTF-8"'))
        return await self._application(request)

    @property
    def limits(self) -> Limits:
        """The bounds."""
        return self._limits


class _Connection:
    """One client: its requests, one after the other."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self.idle = False
        self.silent_since: float | None = time.monotonic()
        # So that `drain` waits until everything has gone out; at 0 the TLS transport would never go on.
        writer.transport.set_write_buffer_limits(high=1)

    def abort(self) -> None:
        """Close without waiting."""
        self._writer.transport.abort()

    async def serve(self, *, room: bool) -> None:
        """Answer until the client leaves, is too slow, or asks for something that cannot be read."""
        if not room:
            await self._write(None, refused(503, "too many connections"), (), close=True)
            return
        peer = self._writer.get_extra_info("peercert")
        first = True
        while True:
            try:
                head = await self._head(first=first)
                if head is None:
                    return
                request = read_head(head)
                self.silent_since = None
            except BadRequestError as error:
                await self._write(None, refused(error.status, str(error)), (), close=True)
                return
            first = False
            response, extra = await self._server.respond(request, peer)
            await self._write(request, response, extra, close=not request.keep_alive)
            if not request.keep_alive:
                return

    async def _head(self, *, first: bool) -> bytes | None:
        """Read to the empty line; None when the client has nothing more to ask."""
        limits = self._server.limits
        self.idle = not first
        try:
            start = await asyncio.wait_for(self._reader.read(1), limits.head if first else limits.idle)
        except asyncio.TimeoutError:
            return None
        self.idle = False
        if not start:
            return None
        if start not in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r\n":
            hint = "; this is HTTP, not HTTPS" if start == b"\x16" else ""
            raise BadRequestError(400, f"this is no HTTP request{hint}")
        try:
            rest = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), limits.head)
        except asyncio.TimeoutError:
            raise BadRequestError(408, f"the request did not come within {limits.head:g} s") from None
        except asyncio.LimitOverrunError:
            raise BadRequestError(431, f"the head of the request is over {MAX_HEAD} bytes") from None
        except asyncio.IncompleteReadError:
            return None
        return (start + rest)[:-4]

    async def _write(
        self, request: Request | None, response: Response, extra: Sequence[tuple[str, str]], *, close: bool
    ) -> None:
        limit = self._server.limits.write
        self._writer.write(write(request, response, extra, close=close))
        await asyncio.wait_for(self._writer.drain(), limit)
        if close:
            if self._writer.can_write_eof():
                self._writer.write_eof()
                await self._linger()
            self._writer.close()
            await asyncio.wait_for(self._writer.wait_closed(), limit)

    async def _linger(self) -> None:
        """Take what the client still sends for a moment: closing with unread data would destroy the answer."""
        with suppress(asyncio.TimeoutError, OSError):
            deadline = time.monotonic() + 1.0
            taken = 0
            while taken < 64 * MAX_HEAD:
                left = deadline - time.monotonic()
                data = await asyncio.wait_for(self._reader.read(MAX_HEAD), max(0.0, left))
                if not data:
                    return
                taken += len(data)
