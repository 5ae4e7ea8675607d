"""What an engine says about itself beside its metrics: asked once per start of the engine, within one deadline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpuwatch.engines.info import EngineInfo, read_models, read_server_info, read_version
from gpuwatch.model import Reason, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatch.clock import Clock
    from gpuwatch.engines.metric import Kind
    from gpuwatch.sources.engine.http import Client

LIMIT = 4 * 2**20
_READERS: dict[Kind, tuple[tuple[tuple[str, ...], Callable[[EngineInfo, Any], EngineInfo]], ...]] = {
    "vllm": ((("/version",), read_version), (("/v1/models",), read_models)),
    "sglang": ((("/server_info", "/get_server_info"), read_server_info), (("/v1/models",), read_models)),
}


class About:
    """Asks one server who it is.

    Args:
        client: How to ask.
        base: URL that the paths are appended to.
        clock: For the deadline.
    """

    def __init__(self, client: Client, base: str, clock: Clock) -> None:
        self._client = client
        self._base = base
        self._clock = clock

    def ask(self, kind: Kind, timeout: float, token: str = "") -> tuple[EngineInfo, tuple[str, ...], bool]:
        """Return what the server says, what it would not say (one line each), and whether asking again may help.

        All requests together take at most `timeout` seconds. A path that does not exist (a gateway, Ray Serve) or
        that wants a key is not worth a second try; a server that was too slow is.
        """
        info = EngineInfo(kind)
        failures: list[str] = []
        again = False
        end = self._clock.monotonic() + timeout
        for paths, read in _READERS[kind]:
            for path in paths:
                left = end - self._clock.monotonic()
                if left <= 0:
                    return info, (*failures, f"{path} was not asked: no time left"), True
                try:
                    info = read(info, self._get(self._base + path, left, token))
                except SourceError as error:
                    if error.reason is Reason.NOT_FOUND and path != paths[-1]:
                        continue
                    again |= error.reason in (Reason.TIMEOUT, Reason.FAILED, Reason.UNREACHABLE)
                    failures.append(f"{path}: {error}")
                break
        return info, tuple(failures), again

    def _get(self, url: str, timeout: float, token: str) -> Any:
        answer = self._client.get(url, timeout=timeout, limit=LIMIT, accept="application/json", token=token)
        if answer.status in (401, 403):
            raise SourceError(Reason.UNAUTHORIZED, f"HTTP {answer.status}: needs the API key as token")
        if answer.status in (404, 405, 501):
            raise SourceError(Reason.NOT_FOUND, f"HTTP {answer.status}")
        if answer.status != 200:
            raise SourceError(Reason.FAILED, f"HTTP {answer.status}")
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise SourceError(Reason.NOT_METRICS, "the answer is not JSON") from None
