"""Failures that a growing log tells of: the causes of a post-mortem, found as the lines come, as counters for rules.

One line, such as torch's out-of-memory error, has half a dozen causes; which one it is, the traceback and the lines
before it tell. The same functions judge here as in ``gpuwatch diagnose``, when a line comes that reports a failure.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuwatch.alerts.inhibitions import FAILED_STARTS
from gpuwatch.diagnosis.causes.ids import KINDS
from gpuwatch.diagnosis.causes.incident import Incident
from gpuwatch.diagnosis.startup import CAUSES
from gpuwatch.model import Batch, Labels, label, series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.diagnosis.finding import Finding
    from gpuwatch.model import Fact, LogEvent

TARGET = "log-causes"
TRIGGERS = frozenset(
    {
        "torch_oom",
        "cuda_oom_other",
        "load_oom",
        "graph_capture_failed",
        "warmup_oom",
        "no_kv_blocks",
        "sglang_no_memory",
        "free_memory_below_budget",
        "memory_profile_drift",
        "sglang_oom",
        "port_in_use",
        "model_not_found",
        "model_access_denied",
        "dtype_unsupported",
        "driver_too_old",
        "gpu_unsupported",
        "no_gpu",
        "worker_dead",
        "process_crashed",
        "process_killed",
        "engine_dead",
        "ray_memory_kill",
        "out_of_memory_killed",
        "pod_evicted",
        "unknown_flag",
        "flag_value_invalid",
    }
)
"""Events that report a failure; only after one of them the log is judged."""
ENDS = frozenset({"engine_dead", "engine_start_failed", "worker_dead", "process_killed"})
"""Events after which the server does not take requests any more."""
UNTOLD = frozenset({"engine_dead", "engine_start_failed"})
"""Events that say that an engine ended, and not why: where nothing else does in time, that is a finding."""
SETTLED_MS = 3000
"""How long after such a line its cause is looked for: the traceback of a large engine comes in several polls."""
WHEN = ("start", "serving")
PAST = "past."
"""How the names of facts begin that stand for an event from before the log was read."""
_EVENTS = 400
_FACTS = 2000
_MARKS = 100


@dataclass(slots=True)
class _End:
    """The end of an engine, of the run that began at the line `began`. Its cause is looked for until `settled`."""

    event: LogEvent
    began: int
    settled: int = 0


@dataclass(slots=True)
class _Log:
    """What one log has said so far. `ups` and `downs` are the lines at which the server began and ceased to serve.

    `counts` are the failures by (cause, when), `shown` what the series said last, under the server `emitted`. `died`
    is the line at which the run that was there before us ended, 0 where it did not. `began` is the line at which the
    newest run began, `ended` that at which the last one began that has ended; `ends` are those that are looked into.

    Where the numbers of the lines are not known, the order in which they came stands for them.
    """

    server: str = ""
    facts: deque[Fact] = field(default_factory=lambda: deque(maxlen=_FACTS))
    events: deque[LogEvent] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    ups: deque[int] = field(default_factory=lambda: deque(maxlen=_MARKS))
    downs: deque[int] = field(default_factory=lambda: deque(maxlen=_MARKS))
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    shown: Counter[tuple[str, str]] = field(default_factory=Counter)
    emitted: str | None = None
    told: set[tuple[str, int]] = field(default_factory=set)
    taken: bool = False
    died: int = 0
    ends: list[_End] = field(default_factory=list)
    began: int = 0
    ended: int = -1
    last: int = 0
    numbered: bool = True

    def serving(self, before: int | None = None) -> bool:
        """Whether the server takes requests, now or at the line `before`."""
        ups = [line for line in self.ups if before is None or line < before]
        downs = [line for line in self.downs if before is None or line < before]
        return max(ups, default=-1) > max(downs, default=-1)

    def take(self, batch: Batch) -> list[LogEvent]:
        """Take in the facts and events of one poll; return the events that report a failure."""
        lines = [line for line in (*(f.line for f in batch.facts), *(e.line for e in batch.events)) if line]
        if lines and max(lines) < self.last:
            self._begin_anew()
        self.last = max([self.last, *lines])
        begins = [self.began]
        for fact in batch.facts:
            line = fact.line or self._next()
            self.facts.append(fact if fact.line else replace(fact, line=line))
            if fact.key == "started":
                self.downs.append(line)
                self.began, self.taken = line, False
                begins.append(line)
                self.died = 0 if line > self.died else self.died
            elif fact.key == "ready" and fact.value is True and not self.taken:
                self.ups.append(line)
                self.died = 0 if line > self.died else self.died
        for fact in batch.facts:
            event = fact.key.removeprefix(PAST)
            # What served has to say that it ended; a start has failed by its failure.
            if event != fact.key and event in (ENDS if self.ups else TRIGGERS | ENDS):
                line = fact.line or self.last
                if line > max([0, self.died, *self.ups]):
                    self.died = line
                    self.downs.append(line)
        events = [event if event.line else replace(event, line=self._next()) for event in batch.events]
        self.events.extend(events)
        self.downs.extend(event.line for event in events if event.event in ENDS)
        for end in (event for event in events if event.event in UNTOLD):
            began = max((line for line in begins if line <= end.line), default=self.ended)
            if began > self.ended:
                self.ends.append(_End(end, began))
                self.ended = began
        return [event for event in events if event.event in TRIGGERS]

    def _next(self) -> int:
        self.numbered = False
        self.last += 1
        return self.last

    def _begin_anew(self) -> None:
        """The lines are counted from the start again: another file took the place of this one."""
        for kept in (self.facts, self.events, self.ups, self.downs, self.told):
            kept.clear()
        self.ends.clear()
        self.last = self.died = self.began = 0
        self.ended = -1


class LogCauses:
    """Counts the failures of every log by their cause, and keeps the newest finding of each."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._logs: dict[str, _Log] = {}
        self._keys: tuple[Labels, ...] = ()
        self.findings: dict[tuple[str, str], Finding] = {}

    def update(self, time: int, batches: Sequence[Batch]) -> Batch:
        """Take the batches of one tick; return the counters at `time` (milliseconds since the epoch)."""
        changed = False
        for batch in batches:
            kind, _, name = batch.target.partition(":")
            if kind != "log" or not batch.up:
                continue
            fresh = name not in self._logs
            log = self._logs.setdefault(name, _Log())
            server = label(batch.keys[0], "server") if batch.keys else log.server
            moved = server != log.server
            log.server = server
            changed = changed or fresh or moved
            failures = log.take(batch)
            if failures:
                self._judge(name, log, failures)
        for name, log in self._logs.items():
            for end in tuple(log.ends):
                end.settled = end.settled or time + SETTLED_MS
                if time >= end.settled:
                    log.ends.remove(end)
                    self._judge_end(name, log, end)
        if changed:
            self._keys = tuple(self._series())
        values = []
        for log in self._logs.values():
            # A new series is seen at its old value before it steps, however many batches a tick has.
            if log.emitted == log.server:
                log.shown = Counter(log.counts)
            log.emitted = log.server
            values += [float(log.shown[cause, when]) for cause in CAUSES for when in WHEN]
            values.append(float(log.serving()))
        return Batch(TARGET, time, self._keys, values)

    @property
    def dead(self) -> tuple[str, ...]:
        """The logs whose last run had ended, or failed to start, before they were read, and has not begun anew."""
        return tuple(name for name, log in self._logs.items() if log.died and not log.serving())

    def forget(self, target: str) -> None:
        """Drop a log that is not read any more."""
        kind, _, name = target.partition(":")
        if kind == "log" and self._logs.pop(name, None) is not None:
            self._keys = tuple(self._series())
            self.findings = {key: finding for key, finding in self.findings.items() if key[0] != name}

    def _judge(self, name: str, log: _Log, failures: list[LogEvent]) -> None:
        from gpuwatch.diagnosis.causes.verdict import LIVE, judge  # noqa: PLC0415  # most logs never fail

        lines = {event.line for event in failures}
        # Of several alike the first one is judged: the new ones come first.
        events = (*failures, *(event for event in log.events if event.line not in lines))
        found, _ = judge(Incident((), tuple(log.facts), events), LIVE)
        for finding in found:
            line = finding.evidence[0].line or 0
            counted = finding.id in CAUSES and finding.severity == KINDS[finding.id].severity
            if not counted or line not in lines or (finding.id, line) in log.told:
                continue
            self._count(name, log, finding, line)
            if finding.id in FAILED_STARTS:
                log.downs.append(line)
            log.taken = log.taken or finding.id == "port_in_use"

    def _judge_end(self, name: str, log: _Log, end: _End) -> None:
        """Tell of the end of an engine for which no cause was found, once the lines around it have come."""
        from gpuwatch.diagnosis.causes.verdict import unknown_end  # noqa: PLC0415  # most logs never fail

        events = tuple(event for event in log.events if event.line >= end.began)
        finding = unknown_end(Incident((), tuple(log.facts), events), end.event)
        if finding is not None:
            self._count(name, log, finding, end.event.line)

    def _count(self, name: str, log: _Log, finding: Finding, line: int) -> None:
        log.told.add((finding.id, line))
        log.counts[finding.id, "serving" if log.serving(line) else "start"] += 1
        evidence = finding.evidence
        if not log.numbered:
            evidence = tuple(replace(each, line=None) for each in evidence)
        self.findings[name, finding.id] = replace(finding, caused_by=None, evidence=evidence)

    def _series(self) -> list[Labels]:
        rows = []
        for name, log in self._logs.items():
            common = {"host": self._host, "log": name, "server": log.server}
            rows += [
                series("gpuwatch_log_causes_total", **common, cause=cause, when=when)
                for cause in CAUSES
                for when in WHEN
            ]
            rows.append(series("gpuwatch_log_serving", **common))
        return rows
