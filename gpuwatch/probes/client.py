"""Requests to an OpenAI-compatible server: completions that stream, from many threads, each with a deadline."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import requests
import urllib3

from gpuwatch.config import ConfigError
from gpuwatch.config_endpoints import endpoint_url
from gpuwatch.model import Reason, SourceError
from gpuwatch.probes.answer import parts, read, refusal, seconds, take_whole
from gpuwatch.probes.echo import without
from gpuwatch.probes.exchange import Reply
from gpuwatch.probes.named_limit import shortened
from gpuwatch.probes.stream import Events
from gpuwatch.sources.api_client import deadline_session
from gpuwatch.sources.engine.connect import proxies_for
from gpuwatch.sources.engine.deadline import Deadline
from gpuwatch.sources.engine.http import explain_failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuwatch.probes.exchange import Ask, Kind

TRIES_WHEN_LIMITED = 4
ERROR_CHARACTERS = 300
LONGEST_PAUSE = 30.0
EXTRA_PIECES = 8
"""Pieces more than asked for that a stream may have; some servers send an empty one at either end."""
_FAILURES = (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError)


class ProbeError(Exception):
    """What makes a probe impossible, in one clear line; `code` is the exit code (3: nothing answered)."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Server:
    """What is known about the server before the probe. None or empty: it does not say.

    `takes_token_ids` was tried, not assumed. `adapters` are the LoRA adapters among its models.
    """

    url: str
    engine: Literal["vllm", "sglang", "other"] = "other"
    version: str = ""
    model: str = ""
    max_model_len: int | None = None
    takes_token_ids: bool = False
    has_metrics: bool = False
    adapters: tuple[str, ...] = ()


class _Line:
    """The connection of one thread."""

    def __init__(self, url: str, headers: Mapping[str, str], *, verify: bool | str) -> None:
        self.deadline = Deadline()
        self.session = deadline_session(self.deadline)
        self.session.home = host_of(url)
        self.session.trust_env = False
        self.session.proxies = {key: value for key, value in proxies_for(url).items() if value}
        self.session.verify = verify
        self.session.headers.update(headers)


class Client:
    """Talks to one server from any number of threads.

    Args:
        url: Such as ``http://127.0.0.1:8000``; a path ``/v1`` at its end may be there or not.
        token_env: Name of the environment variable with the API key; empty: none is needed.
        timeout: Seconds for a request that names no deadline of its own.
        model: Model to ask for; empty: the server's first one.
        verify: Whether to check certificates, or the file with those to trust.

    Raises:
        ProbeError: the address or the variable cannot be used.
    """

    def __init__(
        self, url: str, *, token_env: str = "", timeout: float = 60.0, model: str = "", verify: bool | str = True
    ) -> None:
        try:
            self.url = endpoint_url(url, "--engine", "--token-env with the name of a variable").removesuffix("/v1")
        except ConfigError as error:
            raise ProbeError(str(error)) from None
        self.timeout = timeout
        self.model = model
        self.server: Server | None = None
        self.token = _token(token_env)
        self.verify = verify
        self._headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self._spoke = False
        """Whether the server has ever answered."""
        self._lines: list[_Line] = []
        self._others: list[Client] = []
        self._free: list[_Line] = []
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    def look(self) -> Server:
        """Ask the server who it is, and try whether it takes token ids.

        Raises:
            ProbeError: nothing answers, or what answers is no OpenAI-compatible server.
        """
        from gpuwatch.probes.look import look  # noqa: PLC0415  # it imports this module

        self.server = look(self, self.model)
        self.model = self.server.model
        return self.server

    def complete(self, ask: Ask) -> Reply:
        """Ask for one completion and read it as it streams. Failures are replies, too; see `Reply.kind`."""
        body = self._body(ask)
        pauses = 0
        while True:
            reply, after = self._stream(body, ask)
            if reply.error:
                said = shortened(without(reply.error, self.token, ask.prompt), ERROR_CHARACTERS)
                reply = replace(reply, error=said)
            if reply.kind != "limited" or pauses >= TRIES_WHEN_LIMITED:
                return replace(reply, pauses=pauses)
            pause = min(2.0**pauses if after is None else after, LONGEST_PAUSE) + random.uniform(0, 0.1)  # noqa: S311  # spreads the tries
            if time.monotonic() + pause >= ask.stop_at or self._cancelled.wait(pause):
                return replace(reply, pauses=pauses)
            pauses += 1

    def document(self, path: str, body: Any = None, timeout: float = 10.0) -> tuple[int, Any]:
        """Return status and JSON of a GET, or of a POST where `body` is given; None where the answer is not JSON.

        Raises:
            SourceError: nothing answered, or not in time.
        """
        url = self.url + path
        with self._line() as line:
            return self._document(line, url, body, timeout)

    def _document(self, line: _Line, url: str, body: Any, timeout: float) -> tuple[int, Any]:
        method = "GET" if body is None else "POST"
        line.deadline.start(timeout)
        try:
            with line.session.request(method, url, json=body, timeout=timeout, stream=True) as response:
                self._spoke = True
                content = read(response)
            if line.deadline.expired:
                raise TimeoutError
        except _FAILURES as error:
            raise self._explain(line, error, url, timeout) from None
        finally:
            line.deadline.stop()
        try:
            return response.status_code, json.loads(content)
        except (ValueError, RecursionError):
            return response.status_code, None

    def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Return the token ids of `text` without special ones, as the server's own ``/tokenize`` gives them.

        None: the server has no such path, or its answer makes no sense.
        """
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        try:
            status, document = self.document("/tokenize", body)
        except SourceError:
            return None
        ids = document.get("tokens") if status == 200 and isinstance(document, dict) else None
        if not isinstance(ids, list) or not all(isinstance(one, int) and one >= 0 for one in ids):
            return None
        return tuple(ids)

    def cancel(self) -> None:
        """End all requests in progress; every later one is answered with a reply of the kind `cancelled`."""
        self._cancelled.set()
        with self._lock:
            lines, others = list(self._lines), list(self._others)
        for line in lines:
            line.deadline.expire()
        for other in others:
            other.cancel()

    def take_along(self, other: Client) -> None:
        """Cancel `other` as well when this one is cancelled."""
        with self._lock:
            self._others.append(other)

    def close(self) -> None:
        """Cancel, and close the connections."""
        self.cancel()
        with self._lock:
            lines, self._lines = self._lines, []
        for line in lines:
            line.deadline.release()
            line.session.close()

    @contextmanager
    def _line(self) -> Iterator[_Line]:
        """Lend a connection that no other thread uses now."""
        with self._lock:
            line = self._free.pop() if self._free else None
            if line is None:
                line = _Line(self.url, self._headers, verify=self.verify)
                self._lines.append(line)
        try:
            yield line
        finally:
            with self._lock:
                self._free.append(line)

    def _body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": ask.lora or self.model,
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        known = self.server is not None and self.server.engine != "other"
        if ask.enough is not None and known:
            body["stream_options"]["continuous_usage_stats"] = True
        if ask.ignore_eos and known:
            body["ignore_eos"] = True
        if ask.salt:
            body["cache_salt"] = ask.salt
        return body

    def _stream(self, body: dict[str, Any], ask: Ask) -> tuple[Reply, float | None]:
        """Send one request; return the reply, and the seconds after which a rate limit allows another try.

        Where an idle connection was closed just when it was used again, nobody has answered yet: once more.
        """
        with self._line() as line:
            reply, after = self._send(line, body, ask)
            if reply.kind == "lost" and reply.status == 0 and line.deadline.connections == 0:
                reply, after = self._send(line, body, ask)
        return reply, after

    def _send(self, line: _Line, body: dict[str, Any], ask: Ask) -> tuple[Reply, float | None]:
        url = self.url + "/v1/completions"
        data = json.dumps(body, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        events, status, after = Events(), 0, None
        started = time.monotonic()
        left = ask.stop_at - started
        if left <= 0 or self._cancelled.is_set():
            kind: Kind = "cancelled" if self._cancelled.is_set() else "timeout"
            return Reply(ok=False, error="no time left", kind=kind, started=started, ended=started), None
        line.deadline.start(left)
        if self._cancelled.is_set():
            line.deadline.expire()
        try:
            with line.session.post(url, data=data, headers=headers, timeout=left, stream=True) as response:
                self._spoke, status = True, response.status_code
                after = seconds(response.headers.get("Retry-After"))
                if status == 200:
                    self._follow(response, events, ask)
                else:
                    events.error = refusal(status, read(response, limit=2**16))
            if line.deadline.expired:
                raise TimeoutError
            if events.error or not events.finished:
                line.deadline.release()  # else its duplicate of the socket would keep the server writing
        except SourceError as error:  # a redirect that is not followed
            line.deadline.release()
            return _reply(events, started, status, "failed", str(error), sent=len(data)), None
        except _FAILURES as error:
            line.deadline.release()
            why = self._explain(line, error, url, round(left, 1))
            kind = "cancelled" if self._cancelled.is_set() else "timeout" if why.reason is Reason.TIMEOUT else "lost"
            broken = (
                f"the stream broke off after {len(events.pieces)} pieces" if kind == "lost" and status else str(why)
            )
            said = "" if events.broke_off and kind != "lost" else events.error
            return _reply(events, started, status, kind, said or broken, sent=len(data)), None
        finally:
            line.deadline.stop()
        return _reply(events, started, status, _kind(status, events.error), events.error, sent=len(data)), after

    def _follow(self, response: requests.Response, events: Events, ask: Ask) -> None:
        """Read a stream to its end, and no further than the tokens that were asked for."""
        if "json" in response.headers.get("Content-Type", "").lower():
            take_whole(read(response), events)
            return
        for part in parts(response):
            events.feed(part, time.monotonic())
            came, asked = len(events.pieces), ask.max_tokens
            if came > asked + EXTRA_PIECES:
                events.ran_on = True
                events.error = f"the server ignores max_tokens: {came} pieces came, {asked} were asked for"
            if events.error or (ask.enough is not None and came and ask.enough(events.generated)):
                response.close()
                return
        events.end(time.monotonic())

    def _explain(self, line: _Line, error: Exception, url: str, timeout: float) -> SourceError:
        if isinstance(error, SourceError):
            return error
        return explain_failure(TimeoutError() if line.deadline.expired else error, url, timeout, answered=self._spoke)


def _token(name: str) -> str:
    if not name:
        return ""
    token = os.environ.get(name, "")
    if not token:
        raise ProbeError(f"--token-env: the variable {name} is not set")
    if not all(" " < letter <= "~" for letter in token):
        raise ProbeError(f"--token-env: the variable {name} is not one word of plain ASCII")
    return token


def _kind(status: int, error: str) -> Kind:
    if status == 200:
        return "failed" if error else "ok"
    if status in (429, 503):
        return "limited"
    if status in (401, 403):
        return "login"
    return "refused" if 400 <= status < 500 else "failed"


def _reply(events: Events, started: float, status: int, kind: Kind, error: str, *, sent: int) -> Reply:
    times = tuple(events.pieces)
    count = events.count if events.counts else lambda *_path: None
    return Reply(
        ok=kind == "ok",
        text="".join(events.texts),
        error=error,
        status=status,
        kind=kind,
        started=started,
        first_token=times[0] if times else None,
        ended=time.monotonic(),
        token_times=times,
        first_tokens=events.first_tokens,
        prompt_tokens=count("prompt_tokens"),
        cached_tokens=count("prompt_tokens_details", "cached_tokens"),
        completion_tokens=count("completion_tokens"),
        sent_bytes=sent,
        ran_on=events.ran_on,
    )


def host_of(url: str) -> str:
    """Return the host in an address."""
    return urlsplit(url).hostname or ""
