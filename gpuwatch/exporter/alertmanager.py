"""Findings to Alertmanager, for people without a Prometheus: the alerts that Prometheus would send, with advice.

The protocol is Prometheus' own (``notifier/notifier.go`` and ``rules/manager.go``, 2.42): firing alerts are sent again
every minute with an end four intervals ahead, so that Alertmanager resolves them by itself when we are gone; resolved
ones are sent with their true end for a quarter of an hour.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuwatch.config import ConfigError, EndpointConfig
from gpuwatch.config_endpoints import endpoint_url
from gpuwatch.model import Batch, Reason, SourceError, series
from gpuwatch.sources.api_client import ApiClient
from gpuwatch.sources.engine.http import show_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpuwatch.clock import Clock
    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.model import Labels
    from gpuwatch.sources.api_client import Reply

    Changes: TypeAlias = "Callable[[Mapping[Labels, _Sent], int], tuple[int, list[Notice]]]"

VARIABLES = "GPUWATCH_ALERTMANAGER"
"""Start of the names of the variables that may hold user, password or token."""
PATH = "/api/v2/alerts"

RESEND_SECONDS = 60.0
KEEP_INTERVALS = 4
"""Resend intervals after which Alertmanager takes an alert for over that nobody sends any more."""
RESOLVED_MS = 15 * 60 * 1000
"""How long a resolved alert is sent again."""
BATCH = 64
"""Alerts of one request."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds to wait after a failure: the first time, and at most."""
BAD_REQUEST = (400, 413, 422)
"""Answers after which the same batch is not tried again at once: others must not wait behind it."""
CLOSE_SECONDS = 2.0
LONGEST_TEXT = 1000
RUNBOOK = "docs/runbook.md"
"""The runbook as the shipped rules name it: in our repository."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """One alert as it is sent. Times are milliseconds since the epoch; `until` is None while it fires."""

    labels: Labels
    since: int
    annotations: Mapping[str, str]
    until: int | None = None

    def as_json(self, ends: int, ahead: int = 0) -> dict[str, Any]:
        """Return the alert for ``/api/v2/alerts``; one that still fires ends at `ends` unless it is sent again.

        `ahead` is what our times are ahead of the machine's clock (`Clock.ahead`): others compare with their own.
        """
        return {
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "startsAt": _timestamp(self.since - ahead),
            "endsAt": _timestamp((self.until if self.until is not None else ends) - ahead),
        }


@dataclass(slots=True)
class _Sent:
    """What one Alertmanager was told last, and when (milliseconds)."""

    notice: Notice
    time: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """How sending to one Alertmanager goes. `error` is the reason of the last failure, empty after a success."""

    url: str
    sent: int = 0
    failures: int = 0
    error: str = ""


@dataclass(slots=True)
class _State:
    """The alerts of the newest tick at `time`, and those that ended lately."""

    time: int = 0
    firing: dict[Labels, Notice] = field(default_factory=dict)
    resolved: dict[Labels, Notice] = field(default_factory=dict)


def notices(
    findings: Iterable[Finding], external: Mapping[str, str] | None = None, runbook: str = RUNBOOK
) -> dict[Labels, Notice]:
    """Return the alerts of `findings` by their labels, with what a person needs at night as annotations.

    A symptom is sent as well: Alertmanager mutes it by its own inhibition. `external` labels are added where an alert
    does not have them, as Prometheus does with its ``external_labels``.
    """
    found = {}
    for finding in findings:
        for labels, since in finding.alerts:
            merged = {**(external or {}), **dict(labels)}
            key = tuple(sorted((name, value) for name, value in merged.items() if value))
            found[key] = Notice(key, since, annotations_of(finding, runbook))
    return found


def annotations_of(finding: Finding, runbook: str = RUNBOOK) -> dict[str, str]:
    """Return the annotations of a finding: summary, cause, advice (one change a line), evidence and runbook.

    `runbook` is the address of the page; each id is a section of it.
    """
    texts = {
        "summary": finding.title,
        "cause": finding.cause,
        "advice": "\n".join(_advice(finding)),
        "evidence": "\n".join(item.text for item in finding.evidence if item.text),
        "runbook_url": f"{runbook}#{finding.id}",
    }
    if finding.caused_by:
        texts["caused_by"] = finding.caused_by
    return {name: _bounded(text) for name, text in texts.items() if text}


def _advice(finding: Finding) -> Iterable[str]:
    for item in finding.advice:
        current = f" {item.current}" if item.current is not None else ""
        proposed = f" → {item.proposed}" if item.proposed is not None else ""
        yield f"{item.flag}{current}{proposed}: {item.text}" if item.flag else item.text


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def _timestamp(ms: int) -> str:
    when = datetime.fromtimestamp(ms // 1000, timezone.utc)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


class Notifier:
    """Sends alerts to each of several Alertmanagers, every one by a thread of its own.

    `notify` only leaves the newest alerts behind; it never waits. One Alertmanager that is down does not hold up the
    others, and gets what it missed as soon as it answers again.

    Args:
        alertmanagers: Addresses, or addresses with a login.
        clock: Measures the time between two deliveries.
        resend: Seconds after which a firing alert is sent again.
        pause: Seconds to wait after a failure; doubled by each that follows, up to a minute.
        external_labels: Labels that every alert gets, such as ``cluster``.
        runbook: Address of the runbook; empty: where it stands in our repository.

    Raises:
        ConfigError: an address is wrong, or a secret that is named cannot be read.
    """

    def __init__(
        self,
        alertmanagers: Sequence[str | EndpointConfig],
        clock: Clock,
        *,
        resend: float = RESEND_SECONDS,
        pause: float = FIRST_PAUSE,
        external_labels: Mapping[str, str] | None = None,
        runbook: str = "",
    ) -> None:
        self._runbook = runbook or RUNBOOK
        self._external = dict(external_labels or {})
        self._lock = threading.Lock()
        self._state = _State()
        self._keys: tuple[Labels, ...] = ()
        configs = [
            item if isinstance(item, EndpointConfig) else EndpointConfig(endpoint_url(item, "Alertmanager"))
            for item in alertmanagers
        ]
        doubled = next((item.url for item in configs if [one.url for one in configs].count(item.url) > 1), "")
        if doubled:
            raise ConfigError(f"the Alertmanager {doubled} is named more than once")
        self._senders = [
            _Sender(ApiClient.of(item, VARIABLES), clock, (resend, pause), self._changes) for item in configs
        ]
        for sender in self._senders:
            sender.start()

    @property
    def deliveries(self) -> tuple[Delivery, ...]:
        """How sending goes, one entry per Alertmanager."""
        return tuple(sender.delivery for sender in self._senders)

    def batch(self, host: str, time: int) -> Batch:
        """Return how sending goes as series of `host` at `time` (milliseconds)."""
        done = self.deliveries
        if not self._keys:
            self._keys = tuple(
                series("gpuwatch_alertmanager_" + name, host=host, alertmanager=show_url(one.url))
                for one in done
                for name in ("alerts_sent_total", "failures_total")
            )
        return Batch("alertmanager", time, self._keys, [float(n) for one in done for n in (one.sent, one.failures)])

    def notify(self, findings: Iterable[Finding], time: int) -> None:
        """Take over the findings of the tick at `time` (milliseconds); what fired before and does not now is over."""
        firing = notices(findings, self._external, self._runbook)
        with self._lock:
            before = self._state
            resolved = {
                key: notice
                for key, notice in before.resolved.items()
                if key not in firing and notice.until is not None and time - notice.until <= RESOLVED_MS
            }
            for key, notice in before.firing.items():
                if key not in firing:
                    resolved[key] = Notice(key, notice.since, notice.annotations, until=time)
            self._state = _State(time, firing, resolved)
            changed = before.firing.keys() != firing.keys()
        if changed:
            for sender in self._senders:
                sender.wake()

    def close(self) -> None:
        """Stop sending; waits two seconds at most. What fires is resolved by Alertmanager after its time."""
        for sender in self._senders:
            sender.stop()
        for sender in self._senders:
            sender.join(CLOSE_SECONDS / len(self._senders))

    def _changes(self, sent: Mapping[Labels, _Sent], resend_ms: int) -> tuple[int, list[Notice]]:
        """Return the time of the newest tick and what an Alertmanager that was told `sent` has to be told now."""
        with self._lock:
            state = self._state
        out = []
        for key, notice in state.firing.items():
            before = sent.get(key)
            new = before is None or before.notice.until is not None or before.notice.since != notice.since
            if new or (before is not None and state.time - before.time >= resend_ms):
                out.append(notice)
        for key, notice in state.resolved.items():
            before = sent.get(key)
            if before is not None and (before.notice.until is None or state.time - before.time >= resend_ms):
                out.append(notice)
        return state.time, out


class _Sender:
    """The thread of one Alertmanager."""

    def __init__(self, client: ApiClient, clock: Clock, timing: tuple[float, float], changes: Changes) -> None:
        self.delivery = Delivery(client.base)
        self._client = client
        self._clock = clock
        resend, self._pause = timing
        self._resend_ms = int(resend * 1000)
        self._idle = min(resend / 4, 5.0)
        self._changes = changes
        self._sent: dict[Labels, _Sent] = {}
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"alertmanager {client.base}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()
        self._client.close()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped.is_set():
            if pause:
                self._clock.wait(self._stopped, pause)
            else:
                self._clock.wait(self._woken, self._idle)
                self._woken.clear()
            if self._stopped.is_set():
                return
            try:
                self._send_changes()
                pause = 0.0
            except SourceError as error:
                pause = min(LONGEST_PAUSE, 2 * pause or self._pause)
                self._failed(str(error))
            except Exception as error:
                pause = LONGEST_PAUSE
                log.exception("sending to %s failed", self.delivery.url)
                self._failed(f"internal error: {type(error).__name__}: {error}")

    def _send_changes(self) -> None:
        """Send what is due, in batches; what was accepted is remembered batch by batch."""
        time, due = self._changes(self._sent, self._resend_ms)
        ends = time + KEEP_INTERVALS * self._resend_ms
        for first in range(0, len(due), BATCH):
            batch = due[first : first + BATCH]
            ahead = self._clock.ahead()
            refused = self._post([notice.as_json(ends, ahead) for notice in batch])
            for notice in batch:
                self._sent[notice.labels] = _Sent(notice, time)
            if refused:
                self._failed(refused)
            else:
                self._delivered(len(batch))
        for key in [key for key, sent in self._sent.items() if _forgotten(sent, time)]:
            del self._sent[key]

    def _post(self, body: list[dict[str, Any]]) -> str:
        """Send one batch. Return why it was refused for good, or nothing.

        Raises:
            SourceError: it could not be delivered and is worth another try.
        """
        reply = self._client.ask(PATH, json=body)
        if 200 <= reply.status < 300:
            page = _page(reply)
            if page:
                text = f"{show_url(reply.url)}: HTTP {reply.status} with {page} instead of Alertmanager's empty answer"
                raise SourceError(Reason.FAILED, f"{text}; is a login in between?")
            return ""
        said = " ".join(reply.body.decode("utf-8", "replace").split())[:200]
        login = " (give user and password_file, or token_file)" if reply.status in (401, 403) else ""
        text = f"{self._client.base}{PATH}: HTTP {reply.status}{login}: {said or 'no text'}"
        if reply.status in BAD_REQUEST:
            return text
        raise SourceError(Reason.UNAUTHORIZED if login else Reason.FAILED, text)

    def _delivered(self, number: int) -> None:
        done = self.delivery
        self.delivery = Delivery(done.url, done.sent + number, done.failures)
        if done.error:
            log.warning("%s takes alerts again", done.url)

    def _failed(self, error: str) -> None:
        before = self.delivery
        if self._stopped.is_set():
            return
        if before.error != error:
            log.error("findings cannot be sent: %s", error)
        self.delivery = Delivery(before.url, before.sent, before.failures + 1, error)


def _page(reply: Reply) -> str:
    """Return what kind of page for people an answer is, or nothing: one of a login or of a proxy, not of the API.

    Alertmanager itself answers nothing; what stands in for it may say something, such as ``{}`` or ``ok``.
    """
    kind = reply.kind.partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml"):
        return kind
    return "a page" if reply.body.lstrip()[:1] == b"<" else ""


def _forgotten(sent: _Sent, time: int) -> bool:
    """Return whether an alert was resolved so long ago that it is not sent again."""
    return sent.notice.until is not None and time - sent.notice.until > RESOLVED_MS
