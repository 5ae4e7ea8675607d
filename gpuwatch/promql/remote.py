"""PromQL put to a Prometheus (or something that speaks its HTTP API, such as VictoriaMetrics)."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gpuwatch.model import Reason, SourceError
from gpuwatch.promql.values import PromQLError, RangeSeries, Vector
from gpuwatch.sources.api_client import ApiClient
from gpuwatch.sources.engine.http import show_url, tls_hint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatch.config import EndpointConfig
    from gpuwatch.model import Labels
    from gpuwatch.sources.api_client import Reply

VARIABLES = "GPUWATCH_PROMETHEUS"
"""Start of the names of the variables that may hold user, password or token."""

_LONGEST_MESSAGE = 300

T = TypeVar("T")


class RemoteError(PromQLError):
    """The server did not answer a query; `reason` says how, for programs."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RemoteQuerier:
    """Asks a Prometheus over HTTP; implements `gpuwatch.promql.values.Querier`.

    Args:
        base: Such as ``http://prometheus:9090``, with a path prefix where there is one; or a client that is ready.
        timeout: Seconds for the whole answer; also sent as the query's own limit.
        headers: Sent with each request, such as an Authorization header.
        verify: Whether TLS certificates are checked, or the path of a CA bundle.
    """

    def __init__(
        self,
        base: str | ApiClient,
        timeout: float = 10.0,
        headers: Mapping[str, str] | None = None,
        *,
        verify: bool | str = True,
    ) -> None:
        self._client = base if isinstance(base, ApiClient) else ApiClient(base, timeout, headers, verify=verify)

    @classmethod
    def of(cls, config: EndpointConfig) -> RemoteQuerier:
        """Return the querier of a configured Prometheus.

        Raises:
            ConfigError: a secret or a certificate file that is named cannot be read.
        """
        return cls(ApiClient.of(config, VARIABLES))

    def instant(self, expr: str, time: int) -> Vector:
        """Evaluate `expr` at `time` (milliseconds).

        Raises:
            RemoteError: The server cannot be reached, refuses the query, or answers something else or only in part.
        """
        vector, missing = self.instant_in_part(expr, time)
        return _whole(vector, missing)

    def instant_in_part(self, expr: str, time: int) -> tuple[Vector, str]:
        """Evaluate `expr` at `time` (milliseconds) and return what came, and why it may not be all (empty: it is).

        Thanos, Mimir and VictoriaMetrics' cluster answer from the stores that they reach. What is there is true, but
        a sum may lack summands, and what is absent may exist.

        Raises:
            RemoteError: As for `instant`, but not for an answer in part.
        """
        data, missing = self._ask("query", {"query": expr, "time": _seconds(time)})
        with _reading(self._client.base):
            if data["resultType"] == "scalar":
                return Vector(((),), np.array([float(data["result"][1])])), missing
            if data["resultType"] != "vector":
                raise RemoteError(Reason.FAILED, f"{expr}: the answer is a {data['resultType']}, not a vector")
            labels = tuple(_labels(one["metric"]) for one in data["result"])
            values = np.array([float(one["value"][1]) for one in data["result"]], dtype=np.float64)
            return Vector(labels, values), missing

    def range(self, expr: str, start: int, end: int, step: int) -> tuple[RangeSeries, ...]:
        """Evaluate `expr` at start, start + step, … up to `end` (milliseconds).

        Raises:
            RemoteError: As for `instant`.
        """
        form = {"query": expr, "start": _seconds(start), "end": _seconds(end), "step": _seconds(step)}
        data = _whole(*self._ask("query_range", form))
        with _reading(self._client.base):
            return tuple(
                RangeSeries(
                    _labels(one["metric"]),
                    tuple(round(float(at) * 1000) for at, _ in one["values"]),
                    tuple(float(value) for _, value in one["values"]),
                )
                for one in data["result"]
            )

    def read(self, endpoint: str) -> Any:
        """Return the data of another endpoint of the API, such as ``rules``; what came, where it is only a part.

        Raises:
            RemoteError: As for `instant`, but not for an answer in part.
        """
        return self._ask(endpoint, None)[0]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _ask(self, endpoint: str, form: dict[str, str] | None) -> tuple[Any, str]:
        """Return the data of an answer, and why it is only a part of it."""
        path = f"/api/v1/{endpoint}"
        if form is not None:
            form = {**form, "timeout": f"{self._client.timeout:g}s"}
        try:
            reply = self._client.ask(path, form)
        except SourceError as error:
            raise RemoteError(error.reason, str(error)) from None
        where = show_url(reply.url)
        reason = _REASONS.get(reply.status, Reason.FAILED)
        if reason is Reason.UNAUTHORIZED:
            raise RemoteError(reason, f"{where}: HTTP {reply.status} ({_LOGIN})")
        try:
            answer = json.loads(reply.body)
        except (ValueError, RecursionError):
            reason = reason if reply.status >= 400 else Reason.NOT_METRICS
            hint = tls_hint(reply.status, reply.body)
            raise RemoteError(reason, f"{where}: HTTP {reply.status} with {_no_json(reply)}{hint}") from None
        if not isinstance(answer, dict) or "status" not in answer:
            raise RemoteError(reason, f"{where}: HTTP {reply.status} without a Prometheus answer")
        if answer["status"] != "success":
            message = _one_line(str(answer.get("error", f"HTTP {reply.status}")))
            raise RemoteError(_ERROR_TYPES.get(str(answer.get("errorType")), reason), f"{where}: {message}")
        if answer.get("data") is None:
            raise RemoteError(Reason.NOT_METRICS, f"{where}: the answer has an unexpected shape (no data)")
        warnings = [str(one) for one in answer.get("warnings") or () if not str(one).startswith("PromQL ")]
        partial = bool(warnings) or bool(answer.get("isPartial"))
        told = _one_line("; ".join(warnings) or "isPartial")
        return answer["data"], f"{where}: the answer is not complete: {told}" if partial else ""


_LOGIN = f"give user and password_file, or token_file, in [prometheus], or {VARIABLES}_USER and {VARIABLES}_PASSWORD"
_REASONS = {401: Reason.UNAUTHORIZED, 403: Reason.UNAUTHORIZED, 404: Reason.NOT_FOUND, 504: Reason.TIMEOUT}
_ERROR_TYPES = {"timeout": Reason.TIMEOUT, "canceled": Reason.TIMEOUT}
"""Prometheus' own error types (``web/api/v1/api.go``) that are no fault of the query."""


def _whole(data: T, missing: str) -> T:
    """Return the data of an answer that is complete; refuse one that is not."""
    if missing:
        raise RemoteError(Reason.FAILED, missing)
    return data


@contextmanager
def _reading(base: str) -> Iterator[None]:
    """Turn an answer of unexpected shape into a clear error."""
    try:
        yield
    except KeyError as error:
        raise RemoteError(Reason.NOT_METRICS, f"{base}: the answer has an unexpected shape (no {error})") from None
    except (AttributeError, IndexError, TypeError, ValueError):
        raise RemoteError(Reason.NOT_METRICS, f"{base}: the answer has an unexpected shape") from None


def _no_json(reply: Reply) -> str:
    """Return what an answer that cannot be read as JSON is."""
    if not reply.body.strip():
        return "an empty answer instead of JSON"
    if "json" in reply.kind.lower():
        return f"JSON that is damaged or was cut short ({len(reply.body):,} bytes)"
    return f"{reply.kind or 'no content type'} instead of JSON"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f}"


def _labels(metric: dict[str, str]) -> Labels:
    return tuple(sorted((str(name), str(value)) for name, value in metric.items() if value))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_MESSAGE]
