"""The real chain of one part of the program: store, shipped rules, alert states, diagnosis, second by second."""

from __future__ import annotations

from gpuwatch.alerts import rulefile
from gpuwatch.alerts.engine import RuleEngine
from gpuwatch.diagnosis.context import Context, Facts
from gpuwatch.diagnosis.explain import Memory, explain
from gpuwatch.model import Batch, Fact, LogEvent, series
from gpuwatch.promql.local import LocalQuerier
from gpuwatch.sources.derived.derive import Derived
from gpuwatch.store import Store
from tests.unit.diagnosis.storms import START

RULES = rulefile.load(rulefile.shipped_paths())
HOST = "h"
SERVER = "127.0.0.1:8000"
ENGINE = {"host": HOST, "server": SERVER, "engine_kind": "vllm", "model_name": "tiny"}
SGLANG = {**ENGINE, "engine_kind": "sglang"}
CONFIG = {"host": HOST, "server": SERVER, "engine_kind": "vllm"}


def gpu(index: int) -> dict[str, str]:
    return {"host": HOST, "uuid": f"GPU-{index}", "gpu": str(index)}


def name(short: str, labels: dict[str, str], **extra: str):
    return series("gpuwatch_" + short, **labels, **extra)


def fact(key, value, line=None, server=SERVER):
    return Fact(key, value, "/var/log/vllm.log", line, START, server)


def event(kind, text, second, *, line=7, server=SERVER, source="/var/log/vllm.log", **fields):
    return LogEvent(kind, text, source, line, START + second * 1000, server, tuple(fields.items()))


class Watch:
    """Feeds series given as numbers or functions of the second, and keeps what was found at each second."""

    def __init__(self, facts=(), events=(), memory=True) -> None:
        self.store = Store()
        self.querier = LocalQuerier(self.store)
        self.engine = RuleEngine(RULES, self.querier, self.store)
        self.facts = Facts(facts)
        self.events = tuple(events)
        self.derived = Derived(HOST)
        self.memory = Memory() if memory else None
        self.second = 0
        self.first_seen: dict[str, int] = {}
        self.findings, self.not_enough = (), ()

    def run(self, seconds: int, live=(), derive=False, every: int = 1) -> Watch:
        live = dict(live)
        keys: tuple = ()
        for _ in range(0, seconds, every):
            now = START + self.second * 1000
            found = {key: value(self.second) if callable(value) else value for key, value in live.items()}
            shown = tuple(key for key, value in found.items() if value is not None)
            keys = keys if shown == keys else shown
            batch = Batch("engine:" + SERVER, now, keys, [found[key] for key in keys])
            self.store.append(batch.target, now, batch.keys, batch.values)
            if derive:
                out = self.derived.update(now, [batch])
                self.store.append(out.target, now, out.keys, out.values)
            self.evaluate(now)
            self.second += every
        return self

    def take(self, batch: Batch) -> None:
        """One tick with a batch of a real source."""
        self.second = (batch.time - START) // 1000
        self.store.append(batch.target, batch.time, batch.keys, batch.values)
        out = self.derived.update(batch.time, [batch])
        self.store.append(out.target, batch.time, out.keys, out.values)
        self.facts.update(batch.facts)
        self.evaluate(batch.time)

    def evaluate(self, now: int) -> None:
        self.evaluation = self.engine.tick(now)
        assert not self.evaluation.errors
        events = tuple(event for event in self.events if event.time <= now)
        self.findings, self.not_enough = explain(
            self.evaluation, Context(self.querier, now, self.facts, events), self.memory
        )
        for finding in self.findings:
            self.first_seen.setdefault(finding.id, self.second)

    @property
    def ids(self) -> list[str]:
        return [finding.id for finding in self.findings]

    def __getitem__(self, id_: str):
        (finding,) = [finding for finding in self.findings if finding.id == id_]
        return finding


def flags(finding):
    return [(advice.flag, advice.current, advice.proposed) for advice in finding.advice]


def texts(finding) -> str:
    return "\n".join(evidence.text for evidence in finding.evidence)
