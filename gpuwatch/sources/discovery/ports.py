"""Which ports of this machine answer like an engine: a few known ones on loopback, never a wide scan."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import selectors
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatch.clock import Clock

LOOPBACK = "127.0.0.1"
_CONNECT = 0.3
_ANSWER = 1.0
_MOST_BYTES = 2**18
_WORKERS = 6
_REQUEST = "GET /metrics HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
_NAMES = re.compile(rb"(?m)^(?:# (?:HELP|TYPE) )?(?:ray_)?(?P<engine>vllm|sglang)[:_]\w")
_STATUS = re.compile(rb"^HTTP/1\.[01] (?P<code>\d{3})")


@dataclass(frozen=True, slots=True)
class PortAnswer:
    """What a port said to ``GET /metrics``: `engine` is vllm, sglang or empty; `text` says it in words."""

    port: int
    engine: str
    text: str


def open_ports(ports: Iterable[int], timeout: float = _CONNECT, host: str = LOOPBACK) -> tuple[int, ...]:
    """Return those of `ports` that accept a connection within `timeout` seconds. All are tried at once."""
    found = []
    waiting: dict[socket.socket, int] = {}
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for port in sorted(set(ports)):
            attempt = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            attempt.settimeout(0)
            code = attempt.connect_ex((host, port))
            if code == 0:
                found.append(port)
            elif code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
                waiting[attempt] = port
                selector.register(attempt, selectors.EVENT_WRITE)
        while waiting:
            ready = selector.select(timeout)
            if not ready:
                break
            for key, _ in ready:
                attempt = next(each for each in waiting if each is key.fileobj)
                selector.unregister(attempt)
                port = waiting.pop(attempt)
                if attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.append(port)
    return tuple(sorted(found))


def ask_ports(ports: Sequence[int], clock: Clock, timeout: float = _ANSWER, host: str = LOOPBACK) -> list[PortAnswer]:
    """Ask each port for its metrics, several at a time, `timeout` seconds each."""
    if not ports:
        return []
    with ThreadPoolExecutor(min(_WORKERS, len(ports)), "discovery") as pool:
        return list(pool.map(lambda port: _ask(host, port, clock, timeout), ports))


def _ask(host: str, port: int, clock: Clock, timeout: float) -> PortAnswer:
    deadline = clock.monotonic() + timeout
    received = b""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(_REQUEST.format(host=host, port=port).encode())
            while len(received) < _MOST_BYTES:
                left = deadline - clock.monotonic()
                if left <= 0:
                    break
                connection.settimeout(left)
                piece = connection.recv(2**16)
                if not piece:
                    break
                received += piece
                if (named := _engine(received)) is not None:
                    return PortAnswer(port, named, f"answers with metrics of {named}")
    except TimeoutError:
        pass
    except OSError as error:
        if not received:
            return PortAnswer(port, "", f"listens, but ends the connection ({os.strerror(error.errno or 0)})")
    return PortAnswer(port, "", _no_engine(received))


def _engine(received: bytes) -> str | None:
    status = _STATUS.match(received)
    named = _NAMES.search(received) if status is not None and status["code"] == b"200" else None
    return None if named is None else named["engine"].decode()


def _no_engine(received: bytes) -> str:
    status = _STATUS.match(received)
    if not received:
        return "listens, but does not answer in time"
    if status is None:
        return "answers, but not in plain HTTP"
    if status["code"] == b"404":
        return "answers, but has no /metrics (an SGLang without --enable-metrics looks like this)"
    if status["code"] != b"200":
        return f"answers /metrics with status {status['code'].decode()}"
    return "answers, but with no metric of vLLM or SGLang"
