"""PromQL put to a Prometheus (or something that speaks its HTTP API, such as VictoriaMetrics)."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from gpuwatch.promql.values import PromQLError, RangeSeries, Vector
from gpuwatch.sources.engine.deadline import Deadline
from gpuwatch.sources.engine.http import explain_failure, show_url

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping

    from gpuwatch.model import Labels

_LONGEST_MESSAGE = 300
_MOST_BYTES = 64 * 1024 * 1024

# Damaged headers are our answer's business; urllib3 would also print them, with a traceback, over the screen.
logging.getLogger("urllib3").setLevel(logging.ERROR)


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


class RemoteQuerier:
    """Asks a Prometheus over HTTP; implements `gpuwatch.promql.values.Querier`.

    Args:
        base_url: Such as ``http://prometheus:9090``, with a path prefix where there is one.
        timeout: Seconds for the whole answer; also sent as the query's own limit.
        headers: Sent with each request, such as an Authorization header.
        verify: Whether TLS certificates are checked, or the path of a CA bundle.
    """

    def __init__(
        self,
        base_url: str,
        timeout: float = 10.0,
        headers: Mapping[str, str] | None = None,
        *,
        verify: bool | str = True,
    ) -> None:
        self._base = base_url.rstrip("/")
        self._timeout = timeout
        self._deadline = Deadline()
        self._session = requests.Session()
        self._session.headers.update(headers or {})
        self._session.verify = verify
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _Adapter(self._deadline))

    def instant(self, expr: str, time: int) -> Vector:
        """Evaluate `expr` at `time` (milliseconds).

        Raises:
            PromQLError: The server cannot be reached, refuses the query, or answers something else or only in part.
        """
        data = self._ask("query", {"query": expr, "time": _seconds(time)})
        with _reading(self._base):
            if data["resultType"] == "scalar":
                return Vector(((),), np.array([float(data["result"][1])]))
            if data["resultType"] != "vector":
                raise PromQLError(f"{expr}: the answer is a {data['resultType']}, not a vector")
            labels = tuple(_labels(one["metric"]) for one in data["result"])
            return Vector(labels, np.array([float(one["value"][1]) for one in data["result"]], dtype=np.float64))

    def range(self, expr: str, start: int, end: int, step: int) -> tuple[RangeSeries, ...]:
        """Evaluate `expr` at start, start + step, … up to `end` (milliseconds).

        Raises:
            PromQLError: As for `instant`.
        """
        form = {"query": expr, "start": _seconds(start), "end": _seconds(end), "step": _seconds(step)}
        data = self._ask("query_range", form)
        with _reading(self._base):
            return tuple(
                RangeSeries(
                    _labels(one["metric"]),
                    tuple(round(float(at) * 1000) for at, _ in one["values"]),
                    tuple(float(value) for _, value in one["values"]),
                )
                for one in data["result"]
            )

    def close(self) -> None:
        """Close the connections."""
        self._deadline.expire()
        self._session.close()

    def _ask(self, endpoint: str, form: dict[str, str]) -> Any:
        url = f"{self._base}/api/v1/{endpoint}"
        where = show_url(url)
        status, kind, body = self._post(url, {**form, "timeout": f"{self._timeout:g}s"})
        try:
            answer = json.loads(body)
        except ValueError:
            raise PromQLError(f"{where}: HTTP {status} with {kind or 'no content type'} instead of JSON") from None
        if not isinstance(answer, dict) or "status" not in answer:
            raise PromQLError(f"{where}: HTTP {status} without a Prometheus answer")
        if answer["status"] != "success":
            raise PromQLError(f"{where}: {_one_line(str(answer.get('error', f'HTTP {status}')))}")
        warnings = [str(one) for one in answer.get("warnings") or () if not str(one).startswith("PromQL ")]
        if answer.get("isPartial") or warnings:
            raise PromQLError(f"{where}: the answer is not complete: {_one_line('; '.join(warnings) or 'isPartial')}")
        return answer.get("data")

    def _post(self, url: str, form: dict[str, str]) -> tuple[int, str, bytes]:
        """Return status, content type and body."""
        self._deadline.start(self._timeout)
        parts, size = [], 0
        try:
            with self._session.post(url, data=form, timeout=self._timeout, stream=True) as response:
                for part in response.iter_content(65_536):
                    size += len(part)
                    if size > _MOST_BYTES:
                        raise PromQLError(f"{show_url(url)}: the answer is over {_MOST_BYTES} bytes")
                    parts.append(part)
            if self._deadline.expired:  # the end of file may be ours
                raise TimeoutError
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            self._deadline.release()
            cause = TimeoutError() if self._deadline.expired else error
            raise PromQLError(str(explain_failure(cause, url, self._timeout))) from None
        finally:
            self._deadline.stop()
        return response.status_code, response.headers.get("Content-Type", ""), b"".join(parts)


@contextmanager
def _reading(base: str) -> Iterator[None]:
    """Turn an answer of unexpected shape into a clear error."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise PromQLError(f"{base}: the answer has an unexpected shape ({type(error).__name__}: {error})") from None


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f}"


def _labels(metric: dict[str, str]) -> Labels:
    return tuple(sorted((str(name), str(value)) for name, value in metric.items() if value))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_MESSAGE]
