"""Accepting connections with settings that may change between two of them.

`asyncio.start_server` ties the TLS settings to the listener: to change them the listener must be closed, and what it
has accepted but not yet handed over at that moment is reset. Here each connection asks for the settings of its time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds without accepting after the process ran out of descriptors or memory."""
_AT_ONCE = 64
"""Connections accepted before the loop gives others a turn."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Hands every connection of a listener to a coroutine; belongs to the running loop.

    Args:
        listener: A listening socket; it is made non-blocking.
        serve: Answers one connection.
        context: Returns the TLS settings of a connection that begins now; None for plain HTTP.
        handshake: Seconds a client has for the TLS handshake.
        limit: Most bytes that the reader of a connection holds.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Serve,
        context: Callable[[], ssl.SSLContext | None],
        *,
        handshake: float,
        limit: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._serve = serve
        self._context = context
        self._handshake = handshake
        self._limit = limit
        self._connecting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._exhausted = False
        listener.setblocking(False)  # noqa: FBT003  # the standard library's signature
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more; connections whose handshake is not finished end."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        for task in self._connecting:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._wait(error)
                    return
                continue  # the client went away before it was accepted
            self._exhausted = False
            client.setblocking(False)  # noqa: FBT003  # the standard library's signature
            task = self._loop.create_task(self._connect(client, self._context()))
            self._connecting.add(task)
            task.add_done_callback(partial(self._connected, client))

    def _wait(self, error: OSError) -> None:
        if not self._exhausted:
            log.error("no more connections can be accepted: %s", error.strerror)
        self._exhausted = True
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(_PAUSE, self._loop.add_reader, self._listener, self._accept)

    async def _connect(self, client: socket.socket, context: ssl.SSLContext | None) -> None:
        reader = asyncio.StreamReader(limit=self._limit)
        protocol = asyncio.StreamReaderProtocol(reader, self._serve)
        handshake = self._handshake if context is not None else None
        await self._loop.connect_accepted_socket(lambda: protocol, client, ssl=context, ssl_handshake_timeout=handshake)

    def _connected(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        if task.cancelled():
            client.close()
            return
        error = task.exception()
        if error is not None:
            client.close()
            if not isinstance(error, OSError):  # OSError, also ssl.SSLError: no handshake, or the client went away
                log.error("a connection failed", exc_info=error)
