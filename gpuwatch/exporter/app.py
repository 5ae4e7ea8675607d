"""What is at which address: the metrics, the health of the daemon, the snapshot as JSON."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Protocol

from gpuwatch import __version__
from gpuwatch.exporter.http_message import Response, quality, refused
from gpuwatch.exporter.render import CONTENT_TYPES
from gpuwatch.exporter.snapshot_json import encode

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gpuwatch.exporter.exposition import Exposition
    from gpuwatch.exporter.http_message import Request
    from gpuwatch.exporter.render import Format
    from gpuwatch.snapshot import Snapshot

PATHS = {
    "/metrics": "every series, for Prometheus (text format; OpenMetrics on request)",
    "/-/healthy": "200 while the pipeline runs",
    "/-/ready": "200 from the first tick on",
    "/api/v1/snapshot": "everything there is to see, as JSON",
}
ASK_SECONDS = 5.0


class Daemon(Protocol):
    """What the application needs to know of the daemon. No method blocks."""

    def trouble(self) -> str:
        """Return why the pipeline counts as stuck, or the empty string."""
        ...

    def ready(self) -> bool:
        """Return whether there was a tick."""
        ...

    def ask_snapshot(self, *, time: int | None, rules: bool, since: int | None) -> Future[Snapshot]:
        """Ask for the newest snapshot, or that of a past `time`.

        `rules` adds the readings of rules; log lines before `since` are left out. Times are in milliseconds.
        """
        ...


class Application:
    """Answers the requests of one daemon."""

    def __init__(self, exposition: Exposition, daemon: Daemon) -> None:
        self._exposition = exposition
        self._daemon = daemon

    async def __call__(self, request: Request) -> Response:
        """Return the answer to a request."""
        if request.path == "/metrics":
            return self._metrics(request)
        if request.path == "/-/healthy":
            trouble = self._daemon.trouble()
            return refused(503, trouble) if trouble else refused(200, "gpuwatch is healthy")
        if request.path == "/-/ready":
            return self._unready() or refused(200, "gpuwatch is ready")
        if request.path == "/api/v1/snapshot":
            return await self._snapshot(request)
        if request.path == "/":
            return _index()
        return refused(404, f"nothing is at this address; there are {', '.join(PATHS)}")

    def _unready(self) -> Response | None:
        """Return why no values can be given: none were read yet, or none are new any more."""
        trouble = self._daemon.trouble()
        if trouble:
            return refused(503, trouble)
        return None if self._daemon.ready() else refused(503, "gpuwatch is starting: nothing was read yet")

    def _metrics(self, request: Request) -> Response:
        unready = self._unready()
        if unready is not None:
            return unready
        accept = request.header("accept")
        wanted = quality(accept, "application/openmetrics-text")
        form: Format = "openmetrics" if wanted and wanted >= quality(accept, "text/plain") else "text"
        gzip = quality(request.header("accept-encoding"), "gzip") > 0
        zipped = self._exposition.page(form, gzip=True) if gzip else None
        return Response(200, self._exposition.page(form), CONTENT_TYPES[form], zipped=zipped)

    async def _snapshot(self, request: Request) -> Response:
        unready = self._unready()
        if unready is not None:
            return _error(503, unready.body.decode().strip())
        numbers: dict[str, int | None] = {}
        for name in ("time", "since"):
            text = request.query.get(name, "")
            if text and not (text.isascii() and text.isdigit() and len(text) < 16):
                return _error(400, f"{name} is {text[:20]!r}; allowed: milliseconds since the epoch")
            numbers[name] = int(text) if text else None
        rules = request.query.get("rules", "") not in ("", "0", "false")
        asked = self._daemon.ask_snapshot(time=numbers["time"], rules=rules, since=numbers["since"])
        try:
            snapshot = await asyncio.wait_for(asyncio.wrap_future(asked), ASK_SECONDS)
        except asyncio.TimeoutError:
            return _error(503, f"the pipeline did not answer within {ASK_SECONDS:g} s")
        except LookupError as error:
            return _error(404, str(error.args[0]) if error.args else "nothing is kept of that time")
        body = await asyncio.get_running_loop().run_in_executor(None, encode, snapshot)
        return Response(200, body, "application/json")


def _error(status: int, text: str) -> Response:
    return Response(status, json.dumps({"error": text}).encode(), "application/json")


def _index() -> Response:
    rows = "".join(f'<li><a href="{path}">{path}</a> {what}</li>' for path, what in PATHS.items())
    title = f"gpuwatch {__version__}"
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><h1>{title}</h1><ul>{rows}</ul></body></html>\n"
    )
    return Response(200, page.encode(), "text/html; charset=utf-8")
