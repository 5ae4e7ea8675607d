"""One vLLM or SGLang server: its metrics page becomes `gpuwatch_engine_*` series, one GET per poll."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpuwatch.engines.catalog import detect
from gpuwatch.engines.derive import Compiled, compile_page
from gpuwatch.engines.plan import MAX_SERIES
from gpuwatch.model import Absence, Batch, Fact, Reason, SourceError, series
from gpuwatch.sources.engine.about import About
from gpuwatch.sources.engine.connect import proxies_for
from gpuwatch.sources.engine.exposition import ExpositionParser
from gpuwatch.sources.engine.http import Client, show_size, show_url, tls_hint
from gpuwatch.sources.engine.restart import RestartWatch

if TYPE_CHECKING:
    from gpuwatch.clock import Clock
    from gpuwatch.engines.catalog import Coverage
    from gpuwatch.engines.info import EngineInfo
    from gpuwatch.engines.metric import Kind
    from gpuwatch.model import Labels
    from gpuwatch.sources.engine.exposition import Layout, Page
    from gpuwatch.sources.engine.http import Answer

ACCEPT = "text/plain; version=0.0.4"
"""OpenMetrics is never asked for: SGLang would answer with other names, and exemplars cost time."""
MAX_LINES = 500_000
TOKEN_BYTES = 16 * 2**10
ASK_AGAIN_SECONDS = (5.0, 20.0, 60.0)
"""Pauses before a server that was too slow is asked again who it is; after the last one not any more."""


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """Where an engine's metrics are.

    Args:
        url: ``http://HOST:PORT`` or ``https://…``, with a path where the server sits behind one. ``http://`` may be
            left out, and a path that ends in `path` is taken for the page itself.
        kind: The engine, where a page with metrics of both is possible. The page itself decides otherwise.
        path: Path of the metrics page.
        token: Bearer token, the engine's API key. Never shown.
        token_file: File with the token; read at every poll, so that it may be renewed.
        ca_file: Certificates to trust instead of the system's.
        verify: Whether to check the server's certificate.
        timeout: Seconds for one poll.
        server: Our label `server`; ``HOST:PORT`` of `url` where empty.
        max_bytes: Largest page that is read, after decompression.

    Raises:
        ValueError: `url` is not an HTTP address.
    """

    url: str
    kind: Kind | None = None
    path: str = "/metrics"
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca_file: str | None = None
    verify: bool = True
    timeout: float = 5.0
    server: str = ""
    max_bytes: int = 16 * 2**20

    def __post_init__(self) -> None:
        url = self.url.strip() if "://" in self.url else f"http://{self.url.strip()}"
        parts = urlsplit(url)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or not port or " " in url:
            raise ValueError(
                f"{show_url(url)!r} is no address of an engine; expected http://HOST:PORT or https://HOST:PORT"
            )
        prefix = parts.path.rstrip("/").removesuffix(self.path.rstrip("/"))
        object.__setattr__(self, "url", f"{parts.scheme}://{parts.netloc}{prefix}")
        if not self.server:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            object.__setattr__(self, "server", f"{host}:{port}")

    @property
    def page_url(self) -> str:
        """Address of the metrics page."""
        return self.url + self.path


class EngineSource:
    """Reads one engine.

    The first poll, and each one after a restart of the engine was noticed, also asks the server for its version and
    limits; that takes at most `timeout` once more. A restart is a new `process_start_time_seconds`, or a counter
    that fell; it is reported as the fact ``engine_restarted``.

    Args:
        target: Where to read.
        host: Our label `host`.
        clock: Time of the batches.
    """

    def __init__(self, target: EngineTarget, host: str, clock: Clock) -> None:
        self.target = f"engine:{target.server}"
        self.engine = target
        self.info: EngineInfo | None = None
        self._host = host
        self._clock = clock
        verify = target.ca_file if target.verify and target.ca_file else target.verify
        self._client = Client(verify=verify, proxies=proxies_for(target.url))
        self._about = About(self._client, target.url, clock)
        self._parser = ExpositionParser()
        self._restarts = RestartWatch()
        self._layout: Layout | None = None
        self._compiled: Compiled | None = None
        self._absent: tuple[Absence, ...] = ()
        self._unusable: tuple[Absence, ...] = ()
        self._left_out = ""
        self._dropped = self._newly_dropped = 0
        self._planned: tuple[Labels, ...] = ()
        self._keys: tuple[Labels, ...] = ()
        self._ask_at: float | None = None
        self._pauses: tuple[float, ...] = ASK_AGAIN_SECONDS
        self._unknown = 0
        self._other = ""
        self._facts: list[Fact] = []

    @property
    def coverage(self) -> Coverage | None:
        """How complete the last page was for its version; None before the first page."""
        return self._compiled.coverage if self._compiled is not None else None

    def poll(self) -> Batch:
        """Read the page once."""
        now, begun = self._clock.now(), self._clock.monotonic()
        self._facts = []
        page = None
        other = ""
        try:
            token = self._token()
            page = self._page(self._read(token))
            batch = self._digest(page, now, token)
        except SourceError as error:
            batch = Batch(self.target, now, up=False, reason=error.reason, detail=str(error))
            other = str(error) if page is None and error.reason is Reason.NOT_METRICS else ""
        if other != self._other:
            self._other = other
            self._fact("page.other", other, now)
        return replace(batch, duration=self._clock.monotonic() - begun, facts=tuple(self._facts))

    def close(self) -> None:
        """End a request in progress and close the connection."""
        self._client.close()

    # Reading

    def _token(self) -> str:
        file = self.engine.token_file
        token = ((self.engine.token or "") if file is None else read_token(file)).strip()
        if not all(" " < letter <= "~" for letter in token):
            where = "the token" if file is None else f"the token in token_file {file}"
            text = f"{where} is not one word of plain ASCII (a line break, a space?): no HTTP header can carry it"
            raise SourceError(Reason.UNAUTHORIZED, text)
        return token

    def _read(self, token: str) -> bytes:
        engine = self.engine
        url = engine.page_url
        answer = self._client.get(url, timeout=engine.timeout, limit=engine.max_bytes, accept=ACCEPT, token=token)
        if answer.status in (401, 403):
            hint = (
                "the token was refused" if token else "it wants a token: give token_file or token_env under [[engine]]"
            )
            raise SourceError(Reason.UNAUTHORIZED, f"HTTP {answer.status} from {show_url(url)}: {hint}")
        if answer.status == 404:
            hint = "vLLM has it by default; SGLang needs --enable-metrics"
            raise SourceError(Reason.NOT_FOUND, f"no {engine.path} at {show_url(engine.url)} (HTTP 404); {hint}")
        if answer.status != 200:
            hint = tls_hint(answer.status, answer.body)
            raise SourceError(Reason.FAILED, f"HTTP {answer.status} from {show_url(url)}{hint}")
        if answer.body.count(b"\n") > MAX_LINES:
            raise SourceError(Reason.TOO_LARGE, f"{show_url(url)} has more than {MAX_LINES:,} lines; not read")
        self._refuse_other(answer)
        return answer.body

    def _refuse_other(self, answer: Answer) -> None:
        """Raise where the body cannot be a metrics page; the content type is a hint only."""
        where, body = show_url(self.engine.page_url), answer.body
        head = body[:1024].lstrip().lower()
        if not head:
            what = "is empty"
        elif b"\0" in body[:4096]:
            what = "is binary data, not metrics"
        elif head.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
            what = "is a web page (HTML), not metrics"
        elif head.startswith((b"{", b"[")) and "json" in answer.content_type.lower():
            what = "is JSON, not metrics"
        elif not body.endswith(b"\n"):
            raise SourceError(Reason.FAILED, f"the page {where} ends in the middle of a line ({show_size(len(body))})")
        else:
            return
        raise SourceError(Reason.NOT_METRICS, f"the page {where} {what}")

    def _page(self, body: bytes) -> Page:
        page = self._parser.parse(body)
        where = show_url(self.engine.page_url)
        if not page.layout.keys:
            raise SourceError(Reason.NOT_METRICS, f"no line of {where} is a metric")
        if page.unknown != self._unknown:
            self._unknown = page.unknown
            self._fact("engine_page_unreadable_lines", page.unknown, self._clock.now())
        return page

    # From the page to the batch

    def _digest(self, page: Page, now: int, token: str) -> Batch:
        changed = page.layout is not self._layout
        kind = self._kind(page.layout) if changed or self.info is None else self.info.kind
        restart = self._restarts.by_start_time(page)
        if self.info is None or self.info.kind != kind or restart or self._ask_due():
            self._ask(kind, token, now)
        compiled = self._compile(page)
        keys, values = compiled.plan.apply(page.values)
        fallen = self._restarts.by_counters(compiled.plan.counters, keys, values)
        if fallen and not restart:
            self._ask(kind, token, now)
            compiled = self._compile(page)
            keys, values = compiled.plan.apply(page.values)
        if restart or fallen:
            self._fact("engine_restarted", restart or fallen, now)
        if self._restarts.alternates():
            self._fact("engine_answers_alternate", "two processes answer in turn on this address", now)
        if keys is not self._planned:
            self._planned = keys
            self._keys = self._keys if keys == self._keys else keys
            self._unusable = unusable(compiled.plan.keys, keys)
        absent = (*self._absent, *self._unusable) if self._unusable else self._absent
        dropped, self._newly_dropped = self._newly_dropped, 0
        return Batch(
            self.target, now, self._keys, values.tolist(), absent=absent, detail=self._left_out, dropped=dropped
        )

    def _kind(self, layout: Layout) -> Kind:
        detected = detect(layout.names(), self.engine.kind)
        if detected is None:
            hint = "vLLM started with --disable-log-stats has none"
            raise SourceError(
                Reason.NOT_METRICS,
                f"{show_url(self.engine.page_url)} answers, but no vLLM or SGLang metric is on it ({hint})",
            )
        return detected.kind

    def _ask_due(self) -> bool:
        return self._ask_at is not None and self._clock.monotonic() >= self._ask_at

    def _ask(self, kind: Kind, token: str, now: int) -> None:
        """Ask the server who it is, note the facts, and plan the next try where it was too slow."""
        self._pauses = self._pauses[1:] if self._ask_due() else ASK_AGAIN_SECONDS
        info, failures, again = self._about.ask(kind, self.engine.timeout, token)
        self._ask_at = self._clock.monotonic() + self._pauses[0] if again and self._pauses else None
        self.info = info
        self._layout = None
        facts: dict[str, str | float] = {"engine": kind, "version": info.version}
        facts |= {"served_model_name": info.models[0]} if info.models else {}
        facts |= {"max_model_len": info.max_model_len} if info.max_model_len else {}
        facts |= dict(info.facts) | {"engine_not_told": "; ".join(failures)}
        for key, value in facts.items():
            if value != "":
                self._fact(key, value, now)

    def _compile(self, page: Page) -> Compiled:
        assert self.info is not None
        if self._compiled is None or page.layout is not self._layout:
            keys, names = page.layout.keys, page.layout.names()
            self._compiled = compile_page(keys, names, self.info, self._host, self.engine.server)
            self._layout = page.layout
            self._absent, self._left_out = self._compiled.absent, ""
            dropped = self._compiled.plan.dropped
            self._newly_dropped += max(0, dropped - self._dropped)
            self._dropped = dropped
            if dropped:
                self._left_out = (
                    f"{dropped:,} series of this page are left out; at most {MAX_SERIES:,} are kept, those of the "
                    "first models and ranks"
                )
                labels = series("gpuwatch_engine_info", host=self._host, server=self.engine.server)
                self._absent = (*self._absent, Absence(labels, Reason.TOO_LARGE, self._left_out))
        return self._compiled

    def _fact(self, key: str, value: str | float, now: int) -> None:
        self._facts.append(Fact(key, value, show_url(self.engine.page_url), time=now, server=self.engine.server))


def read_token(path: str) -> str:
    """Return what is in a token file.

    Raises:
        SourceError: It is missing, empty, unreadable, no regular file, or far too large for a token.
    """
    file = Path(path).expanduser()
    try:
        if file.exists() and not file.is_file():
            raise SourceError(Reason.FAILED, f"token_file {path} is no regular file")
        with file.open("rb") as opened:
            token = opened.read(TOKEN_BYTES + 1).decode()
    except FileNotFoundError:
        raise SourceError(Reason.NOT_FOUND, f"token_file {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise SourceError(Reason.NO_PERMISSION, f"token_file {path} cannot be read: {type(error).__name__}") from None
    if not token.strip() or len(token) > TOKEN_BYTES:
        what = "is empty" if not token.strip() else f"is over {TOKEN_BYTES // 1024} KiB: no token is so long"
        raise SourceError(Reason.FAILED, f"token_file {path} {what}")
    return token


def unusable(planned: tuple[Labels, ...], given: tuple[Labels, ...]) -> tuple[Absence, ...]:
    """Return the absences of the series of a page that hold no usable number."""
    if planned is given:
        return ()
    there = frozenset(given)
    detail = "the page has no usable number for it now (NaN, infinite or negative)"
    return tuple(Absence(labels, Reason.FAILED, detail) for labels in planned if labels not in there)
