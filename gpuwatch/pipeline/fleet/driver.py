"""The driver of a screen that watches a fleet: snapshots made of a Prometheus' answers."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpuwatch.alerts.rulefile import AlertRule
from gpuwatch.pipeline.feed import Questions, Subscribers
from gpuwatch.pipeline.fleet import questions as q
from gpuwatch.pipeline.fleet.asking import Asker
from gpuwatch.pipeline.fleet.findings import Said, Teller, explanation, firing
from gpuwatch.pipeline.fleet.views import failures_text, rule_views, source_states
from gpuwatch.promql.remote import RemoteQuerier
from gpuwatch.queries import PER_HOST
from gpuwatch.snapshot import PARTIAL, Answer, Snapshot, SourceState
from gpuwatch.sources.engine.http import show_url

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping
    from concurrent.futures import Future

    from gpuwatch.alerts.rulefile import RuleSet
    from gpuwatch.clock import Clock
    from gpuwatch.config import PrometheusConfig
    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.model import Labels
    from gpuwatch.pipeline.fleet.asking import Round
    from gpuwatch.pipeline.fleet.questions import Machine
    from gpuwatch.snapshot import RuleView

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two looks; the series themselves are as young as the last scrape."""
LONGEST_INTERVAL = 60.0
"""Seconds between two looks at a Prometheus that does not answer."""
SLOW_SHARE = 0.5
"""A look that took this share of the time limit is called slow."""
META_MS = 60_000
"""How often rules and scrape interval are looked at."""
EXPLAINED_EACH = 4
"""Alerts that are explained in one look."""
REFRESH_MS = 60_000
"""Age at which an explanation is worked out again."""
STOP_SECONDS = 2.0
_META = ("rules", "scrapes")


@dataclass(slots=True)
class _Known:
    """What is known between two looks."""

    scrape: float = q.SCRAPE_SECONDS
    rules: tuple[RuleView, ...] = ()
    rules_error: str = ""
    asked_meta: int | None = None
    last: Snapshot | None = None
    success: int | None = None
    failing: int = 0
    since_down: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """One look: its snapshot, and whether a verdict can be based on it."""

    snapshot: Snapshot
    judged: bool
    alerts: tuple[Any, ...] = field(default=(), repr=False)


class Fleet:
    """Looks at a Prometheus every few seconds, in a thread of its own.

    Args:
        config: Which Prometheus, and which of its series.
        rules: The shipped rules: how long each alert waits before it fires.
        clock: Times of the looks.
        interval: Seconds between two looks.

    Raises:
        ConfigError: a secret or a certificate file that is named cannot be read.
    """

    def __init__(self, config: PrometheusConfig, rules: RuleSet, clock: Clock, interval: float = INTERVAL) -> None:
        self.clock = clock
        self.subscribers = Subscribers()
        self.questions = Questions()
        self._url = show_url(config.endpoint.url)
        self._timeout = config.endpoint.timeout
        self._interval = max(1.0, interval)
        self._rules = {rule.name: rule for rule in rules.rules if isinstance(rule, AlertRule)}
        self._asker = Asker(lambda: RemoteQuerier.of(config.endpoint))
        self._phrasing = q.Phrasing.of(config)
        self._teller = Teller(self._phrasing, self._rules)
        self._known = _Known()
        self._focus: Machine | None = None
        self._started = clock.now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    @property
    def stopped(self) -> threading.Event:
        """Set when it is to stop."""
        return self._stop

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return self._interval

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; waits at most two seconds, never for a query that hangs."""
        self._stop.set()
        self._asker.close()
        self.questions.put(lambda: None)  # wakes the thread
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def subscribe(self, callback: Callable[[Snapshot], None]) -> Callable[[], None]:
        """Call `callback` with every snapshot; the returned function ends that."""
        return self.subscribers.add(callback)

    def focus(self, machine: Machine | None) -> None:
        """Look at everything about one machine, (cluster, host), from now on; None: at the fleet only."""

        def set_focus() -> None:
            self.look_at(machine)
            self._tick()

        self.questions.put(set_focus)

    def look_at(self, machine: Machine | None) -> None:
        """Set the machine in focus for the next look; for the thread that looks only."""
        self._focus = machine

    def at(self, time: int) -> Future[Snapshot]:
        """Ask for the snapshot of a past moment (milliseconds)."""
        return self.questions.put(lambda: self._past(time))

    def show_rule_readings(self, wanted: bool) -> None:
        """Readings are a local matter; rules of a Prometheus come without them."""

    def look(self, time: int) -> Look:
        """Ask everything at `time` (milliseconds) and return what came of it; never raises for what a server does."""
        asked, missing = _parted(self._asker.ask(self._wanted(time, meta=self._meta_due(time)), self._timeout))
        if asked.down is not None:
            return self._down(asked, time)
        known = self._known
        known.failing, known.since_down, known.success = 0, None, time
        self._take_meta(asked, time)
        alerts = firing(
            [labels for labels, _ in _samples(asked, "alerts")],
            _samples(asked, "starts"),
            self._rules,
            self._phrasing,
            time,
        )
        if "alerts" in asked.found and not missing:
            self._teller.forget(alerts)
        findings = self._teller.findings(alerts, [labels for labels, _ in _samples(asked, "infos")])
        snapshot = self._snapshot(asked, time, findings, missing)
        known.last = snapshot
        seen = bool(_samples(asked, "host_last_seen"))
        ruled = "alerts" in asked.found and bool(alerts or known.rules)
        return Look(snapshot, seen and ruled and not missing, tuple(alerts))

    def explain(self, look: Look, most: int = EXPLAINED_EACH) -> Look:
        """Explain up to `most` alerts of a look that are not explained yet, or not lately; return the look with it."""
        time = look.snapshot.time
        due = self._teller.due(look.alerts, self._focus, time, REFRESH_MS)[:most]
        if not due or self._known.failing:
            return look
        made: dict[Hashable, Callable[[RemoteQuerier], Any]] = {
            ("explain", alert.labels): explanation(alert, self._rules.get(alert.get("alertname")), self._phrasing, time)
            for alert in due
        }
        asked = self._asker.ask(made, self._timeout)
        for alert in due:
            before = self._teller.said.get(alert.labels)
            verdict = asked.found.get(("explain", alert.labels), before.verdict if before is not None else None)
            self._teller.said[alert.labels] = Said(time, verdict)
        infos = [labels for labels, _ in look.snapshot.answer("infos").samples]
        snapshot = replace(look.snapshot, findings=self._teller.findings(look.alerts, infos))
        self._known.last = snapshot
        return replace(look, snapshot=snapshot)

    def _wanted(self, time: int, *, meta: bool) -> dict[Hashable, Callable[[RemoteQuerier], Any]]:
        """Return the questions of one look."""
        exprs = self._phrasing.of_fleet()
        exprs["alerts"] = self._phrasing.expr(q.ALERTS)
        exprs["starts"] = self._phrasing.expr(q.STARTS)
        exprs["infos"] = self._phrasing.expr(q.INFOS)
        if meta:
            exprs["scrapes"] = self._phrasing.expr(q.SCRAPES)
        if self._focus is not None:
            exprs |= self._phrasing.of_machine(self._focus)
        wanted: dict[Hashable, Callable[[RemoteQuerier], Any]] = {
            name: _instant(expr, time) for name, expr in exprs.items()
        }
        if meta:
            wanted["rules"] = lambda querier: querier.read("rules?type=alert")
        return wanted

    def _meta_due(self, time: int) -> bool:
        asked = self._known.asked_meta
        return asked is None or time - asked >= META_MS

    def _take_meta(self, asked: Round, time: int) -> None:
        """Take in what was learnt about the Prometheus itself."""
        known = self._known
        if "rules" in asked.found or "rules" in asked.failed:
            known.asked_meta = time
            known.rules = rule_views(asked.found["rules"]) if "rules" in asked.found else known.rules
            known.rules_error = asked.failed["rules"].text if "rules" in asked.failed else ""
        if "scrapes" in asked.found:
            scrapes = next((value for _, value in asked.found["scrapes"].samples), None)
            known.scrape = q.scrape_seconds(scrapes)
            self._phrasing = replace(self._phrasing, scrape=known.scrape)

    def _snapshot(self, asked: Round, time: int, findings: tuple[Finding, ...], incomplete: str) -> Snapshot:
        answers: dict[str, Answer] = {}
        for key in (*asked.found, *asked.failed):
            if isinstance(key, str) and key not in _META:
                failure = asked.failed.get(key)
                answers[key] = Answer(error=failure.text) if failure is not None else asked.found[key]
        missing = [(str(key), failure) for key, failure in asked.failed.items() if key not in _META]
        slow = asked.seconds >= SLOW_SHARE * self._timeout
        detail = "; ".join(filter(None, (incomplete, failures_text(missing))))
        detail = detail or (f"slow: answers took {asked.seconds:.1f} s" if slow else "")
        return Snapshot(
            time=time,
            started=self._started - int(self._timeout * 1000),
            host=self._url,
            mode="prometheus",
            interval=self._interval,
            answers=answers,
            findings=findings,
            rules=self._known.rules,
            sources=(
                SourceState(
                    "prometheus", self._url, up=True, reason=PARTIAL if incomplete else "", detail=detail, age=0.0
                ),
                *source_states(answers),
            ),
            problems=self._problems(answers),
            focus=self._focus,
            cluster_label=self._phrasing.cluster_label,
        )

    def _problems(self, answers: Mapping[str, Answer]) -> tuple[str, ...]:
        """Return what keeps findings from being told, a line each."""
        rules = self._known.rules
        found = []
        if answers["alerts"].error:
            found.append(f"which alerts fire cannot be told: {answers['alerts'].error}")
        if self._known.rules_error:
            found.append(f"whether gpuwatch's rules are loaded cannot be told: {self._known.rules_error}")
        elif not rules and not answers["alerts"].samples:
            found.append(f"{self._url} lists no rule named Gpuwatch…: load rules/*.yml there, or nothing is judged")
        found += [f"rule {rule.name}: {rule.detail}" for rule in rules if rule.status == "error"]
        return tuple(found)

    def _down(self, asked: Round, time: int) -> Look:
        """Return the last snapshot with the word that it is old and why."""
        assert asked.down is not None
        known = self._known
        known.failing += 1
        known.since_down = known.since_down or time
        age = (time - known.success) / 1000 if known.success is not None else None
        state = SourceState(
            "prometheus", self._url, up=False, reason=asked.down.reason.value, detail=asked.down.text, age=age
        )
        last = known.last or Snapshot(
            time,
            self._started,
            self._url,
            "prometheus",
            self._interval,
            cluster_label=self._phrasing.cluster_label,
        )
        others = tuple(source for source in last.sources if source.kind != "prometheus")
        if last.focus != self._focus:
            last, others = replace(last, answers=_of_fleet(last.answers), focus=self._focus), ()
        return Look(replace(last, sources=(state, *others)), judged=False)

    def _past(self, time: int) -> Snapshot:
        """Return the snapshot of a past moment, without touching what is known of the present."""
        asked, missing = _parted(
            self._asker.ask({("past", key): ask for key, ask in self._wanted(time, meta=False).items()}, self._timeout)
        )
        if asked.down is not None:
            raise LookupError(asked.down.text)
        then = replace(
            asked,
            found={key[1]: value for key, value in asked.found.items() if isinstance(key, tuple)},
            failed={key[1]: failure for key, failure in asked.failed.items() if isinstance(key, tuple)},
        )
        alerts = firing(
            [labels for labels, _ in _samples(then, "alerts")],
            _samples(then, "starts"),
            self._rules,
            self._phrasing,
            time,
        )
        infos = [labels for labels, _ in _samples(then, "infos")]
        return self._snapshot(then, time, self._teller.findings(alerts, infos), missing)

    def _publish(self, snapshot: Snapshot) -> None:
        self.subscribers.publish(snapshot)

    def _run(self) -> None:
        due = self.clock.monotonic()
        while not self._stop.is_set():
            wait = due - self.clock.monotonic()
            if wait > 0:
                self.questions.answer_for(wait)
                continue
            try:
                self._tick()
            except Exception:
                log.exception("a look at the fleet failed")
            due = self.clock.monotonic() + self._pause()

    def _tick(self) -> None:
        look = self.look(self.clock.now())
        self._publish(look.snapshot)
        if not self._stop.is_set():
            told = self.explain(look)
            if told is not look:
                self._publish(told.snapshot)

    def _pause(self) -> float:
        """Return the seconds until the next look: more and more while nobody answers."""
        return min(self._interval * float(2 ** min(self._known.failing, 10)), max(LONGEST_INTERVAL, self._interval))


@dataclass(frozen=True, slots=True)
class _Part:
    """An answer that may be only a part; `missing` says why, and is empty where it is whole."""

    answer: Answer
    missing: str


def _instant(expr: str, time: int) -> Callable[[RemoteQuerier], _Part]:
    def ask(querier: RemoteQuerier) -> _Part:
        vector, missing = querier.instant_in_part(expr, time)
        return _Part(Answer(tuple(vector.items())), missing)

    return ask


def _parted(asked: Round) -> tuple[Round, str]:
    """Return a round with plain answers, and why some of them are only a part; empty where all are whole."""
    parts = {key: value for key, value in asked.found.items() if isinstance(value, _Part)}
    missing = dict.fromkeys(part.missing for part in parts.values() if part.missing)
    whole = replace(asked, found={**asked.found, **{key: part.answer for key, part in parts.items()}})
    return whole, "; ".join(missing)


def _samples(asked: Round, name: str) -> tuple[tuple[Labels, float], ...]:
    answer: Answer | None = asked.found.get(name)
    return answer.samples if answer is not None else ()


def _of_fleet(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Return the answers that are about all machines."""
    keep: Iterable[str] = (*PER_HOST, "alerts", "starts", "infos")
    return {name: answers[name] for name in keep if name in answers}
